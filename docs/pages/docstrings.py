"""Docstrings as this package writes them -> reStructuredText.

They are prose with names in single backticks and indented blocks that are shown as they are, as in
Markdown; the headings of numpydoc are left to the extension that comes next. Where a star, a bar or
an underscore would mean something in reStructuredText, it is escaped.
"""

from __future__ import annotations

import re

_CODE = re.compile(r"(``.+?``|`[^`]+`)")
_MEANS_SOMETHING = re.compile(r"(?<!\\)([*|])|(?<=\w)_(?=\W|$)")
_BLOCK_INDENT = 4


def to_rst(lines: list[str]) -> list[str]:
    """Return the lines of a docstring in reStructuredText."""
    made: list[str] = []
    in_block = in_example = False
    for index, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line.strip():
            starts = indent >= _BLOCK_INDENT and _is_after_paragraph(lines, index)
            if starts and not in_block:
                made += ["::", ""]
            in_block = starts or (in_block and indent >= _BLOCK_INDENT)
        in_example = bool(line.strip()) and (in_example or line.lstrip().startswith(">>>"))
        made.append(line if in_block or in_example else _escaped(line))
    return made


def _is_after_paragraph(lines: list[str], index: int) -> bool:
    """Whether a line comes after an empty line that ends text without indentation."""
    if index < 2 or lines[index - 1].strip():
        return False
    before = next((line for line in reversed(lines[: index - 1]) if line.strip()), " ")
    return not before.startswith(" ") and not before.rstrip().endswith("::")


def _escaped(line: str) -> str:
    parts = _CODE.split(line)
    for index, part in enumerate(parts):
        if index % 2 == 0:
            parts[index] = _MEANS_SOMETHING.sub(lambda found: "\\" + found[0], part)
        else:
            # Code must end where a word ends: `If`s.
            joint = "\\ " if re.match(r"\w", parts[index + 1]) else ""
            parts[index] = f"``{part.strip('`')}``{joint}"
    return "".join(parts)
