"""A tutorial's script -> its blocks: text in reStructuredText, then code.

A script is a docstring, title underlined, and blocks that begin with `# %%`. Comments after that
line are text.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

_BLOCK = "# %%"


@dataclass(frozen=True)
class Block:
    """Text, then code."""

    text: str
    code: str
    line: int
    """Where its code begins in the file, from 1."""


def read_blocks(script: str) -> list[Block]:
    """Split a script; the first block has the docstring as text."""
    title = ast.get_docstring(ast.parse(script)) or ""
    blocks, text, code, line = [], [title], [], 1
    lines = script.splitlines()
    first = ast.parse(script).body[0].end_lineno or 0
    in_text = True
    for number, row in enumerate(lines[first:], first + 1):
        if row.startswith(_BLOCK):
            blocks.append(Block("\n".join(text), "\n".join(code), line))
            text, code, in_text = [], [], True
        elif in_text and row.startswith("#"):
            text.append(row.lstrip("#").removeprefix(" "))
        else:
            if in_text and row.strip():
                in_text, line = False, number
            code.append(row)
    return [*blocks, Block("\n".join(text), "\n".join(code), line)]
