"""The blocks of a tutorial -> a Jupyter notebook, with texts in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from docs.pages.blocks import Block

_HEADING = re.compile(r"^(.+)\n(=+|-+)$", re.MULTILINE)
_LINK = re.compile(r"`([^`<]+) <([^>`]+)>`_+")


def notebook(blocks: Iterable[Block]) -> str:
    """Return the file of a notebook without outputs: a cell for each text and each code."""
    cells = []
    for block in blocks:
        if block.text.strip():
            cells.append(new_markdown_cell(to_markdown(block.text.strip())))
        if block.code.strip():
            cells.append(new_code_cell(block.code.strip()))
    for number, cell in enumerate(cells):  # not at random: the same script gives the same file
        cell["id"] = f"cell{number}"
    language = {"name": "python", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(new_notebook(cells=cells, metadata={"kernelspec": language})) + "\n"


def to_markdown(text: str) -> str:
    """Turn the reStructuredText of a block into Markdown.

    >>> print(to_markdown("Title\\n=====\\n\\nSay ``x``, as `here <https://a.example>`_."))
    # Title
    <BLANKLINE>
    Say `x`, as [here](https://a.example).
    """
    text = _HEADING.sub(lambda match: f"{'#' if match[2][0] == '=' else '##'} {match[1]}", text)
    return _LINK.sub(r"[\1](\2)", text).replace("``", "`")
