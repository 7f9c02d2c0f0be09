"""The scripts in `tutorials/` -> a page each: their text, their code, and what it printed and drew.

A script is a docstring, title underlined, and blocks that begin with `# %%`; comments behind that
line are text in reStructuredText. What a block printed and the pictures that it wrote are in
`docs/outputs`, by `python -m docs.run_tutorials`; nothing is run while the site is built.
"""

from __future__ import annotations

import ast
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUTPUTS = ROOT / "docs" / "outputs"
_BLOCK = "# %%"


@dataclass(frozen=True)
class Block:
    """Text, then code."""

    text: str
    code: str
    line: int
    """Where its code begins in the file, from 1."""


def tutorials() -> list[Path]:
    """Return the scripts in the order of their numbers."""
    return sorted((ROOT / "tutorials").glob("[0-9]*.py"))


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


def digest(script: str) -> str:
    """Return what names the code of a script: comments and layout do not count."""
    return hashlib.sha256(ast.dump(ast.parse(script)).encode()).hexdigest()


def tutorial_pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    pages = {f"tutorials/{path.stem}.rst": _page(path) for path in tutorials()}
    names = "\n   ".join(path.stem for path in tutorials())
    pages["tutorials/index.rst"] = (
        "Tutorials\n=========\n\nNumbered scripts of the folder ``tutorials``, each run by the "
        "tests: ``python tutorials/NAME.py``. They need no GPU. An environment of a wheel (which "
        "has ``heteroplace[relay]`` and had ``heteroplace setup-tvm``) needs one command more, "
        '``pip install "heteroplace[mpi]" matplotlib``. What they printed is as it came on the '
        "machine that each page names.\n\n"
        f".. toctree::\n   :maxdepth: 1\n\n   {names}\n"
    )
    return pages


def _page(path: Path) -> str:
    script = path.read_text()
    record = OUTPUTS / path.stem / "output.json"
    told = json.loads(record.read_text()) if record.exists() else {"blocks": []}
    text = ".. highlight:: python\n\n.. default-role:: literal\n\n"
    for index, block in enumerate(read_blocks(script)):
        text += block.text.strip() + "\n\n"
        if block.code.strip():
            text += ".. code-block:: python\n\n" + _indented(block.code.strip("\n")) + "\n\n"
        if index < len(told["blocks"]):
            text += _output(path.stem, told["blocks"][index])
    text += f"*The whole script:* ``tutorials/{path.name}``."
    if told["blocks"]:
        text += f" *Printed on {told['machine']}.*"
    return text + "\n"


def _output(name: str, block: dict[str, object]) -> str:
    text = ""
    if block["printed"]:
        text += (
            ".. code-block:: text\n   :class: output\n\n"
            + _indented(str(block["printed"]))
            + "\n\n"
        )
    pictures = block["pictures"]
    assert isinstance(pictures, list)
    for picture in pictures:
        text += f".. image:: ../../outputs/{name}/{picture['file']}\n   :alt: {picture['alt']}\n\n"
    return text


def _indented(text: str) -> str:
    return "\n".join(f"   {row}" if row else "" for row in text.rstrip("\n").splitlines())
