"""The scripts in `tutorials/` -> a page each, a gallery, scripts and notebooks to download.

A page has the texts of a script, its code, and its recorded outputs and pictures in `docs/outputs`,
by `python -m docs.run_tutorials`; nothing is run while the site is built.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from docs.pages.blocks import read_blocks
from docs.pages.notebooks import notebook

ROOT = Path(__file__).resolve().parents[2]
OUTPUTS = ROOT / "docs" / "outputs"
LEVELS = {
    "Beginner": (
        "01_first_placement", "14_from_torch", "15_serve", "16_generate_text", "08_pinning",
        "05_your_cluster"),
    "Intermediate": (
        "09_requests_in_flight", "06_tight_memory", "07_other_hardware", "12_without_python"),
    "Advanced": (
        "02_two_hosts", "13_sharded_transformer", "04_routed_network", "03_own_strategy",
        "10_own_cost_model", "11_own_solver"),
}  # fmt: skip
"""Names of scripts in the order of the gallery."""
_TIME = re.compile(r"[Ii]t\s+takes\s+((?:half\s+)?an?\s+(?:few\s+)?\w+)")
_THUMBNAIL_ROWS, _THUMBNAIL_COLUMNS = 11, 64


def tutorials() -> list[Path]:
    """Return the scripts in the order of their numbers."""
    return sorted((ROOT / "tutorials").glob("[0-9]*.py"))


def digest(script: str) -> str:
    """Return what names the code of a script: comments and layout do not count."""
    return hashlib.sha256(ast.dump(ast.parse(script)).encode()).hexdigest()


@dataclass(frozen=True)
class Card:
    """What the gallery shows of a tutorial."""

    title: str
    summary: str
    """Its first sentence."""
    time: str
    """How long it runs, in words."""


def card(script: str) -> Card:
    """Return the card of a script, from its docstring."""
    title, _, *rows = (ast.get_docstring(ast.parse(script)) or "").splitlines()
    text = " ".join(" ".join(rows).split())
    match = _TIME.search(text)
    assert match, f"the docstring of {title!r} does not say how long it takes"
    return Card(title, text.partition(". ")[0].rstrip(".") + ".", match[1])


def tutorial_pages() -> dict[str, str]:
    """Return the text of each page and file by its name."""
    pages = {}
    for path in tutorials():
        script = path.read_text()
        pages[f"tutorials/{path.stem}.rst"] = _page(path)
        pages[f"tutorials/{path.name}"] = script
        pages[f"tutorials/{path.stem}.ipynb"] = notebook(read_blocks(script))
        if _picture(path.stem) is None:
            pages[f"tutorials/{path.stem}.svg"] = _thumbnail(_record(path.stem))
    pages["tutorials/index.rst"] = _gallery()
    return pages


def _gallery() -> str:
    names = "\n   ".join(name for level in LEVELS.values() for name in level)
    text = (
        "Tutorials\n=========\n\nScripts and notebooks to download and run. The tests run each of "
        "them. They need no GPU. In an environment with ``heteroplace[relay]`` and after "
        "``heteroplace setup-tvm``, install what they also use: "
        '``pip install "heteroplace[mpi,serve]" matplotlib "tritonclient[http]"``. Each page names '
        "the machine that its outputs are from.\n\n"
    )
    for level, members in LEVELS.items():
        text += f"{level}\n{'-' * len(level)}\n\n.. grid:: 1 2 2 3\n   :gutter: 3\n\n"
        for name in members:
            shown = card((ROOT / "tutorials" / f"{name}.py").read_text())
            picture = _picture(name) or f"{name}.svg"
            text += (
                f"   .. grid-item-card:: {shown.title}\n      :link: {name}\n"
                f"      :link-type: doc\n      :img-top: {picture}\n"
                f"      :img-alt: output of the tutorial\n\n"
                f"      {shown.summary}\n\n      *Runs in {shown.time}.*\n\n"
            )
    return text + f".. toctree::\n   :hidden:\n   :maxdepth: 1\n\n   {names}\n"


def _record(name: str) -> dict[str, Any]:
    path = OUTPUTS / name / "output.json"
    return json.loads(path.read_text()) if path.exists() else {"blocks": []}


def _picture(name: str) -> str | None:
    """Return the first picture of a tutorial as the gallery names it; None: it draws none."""
    pictures = [one for block in _record(name)["blocks"] for one in block["pictures"]]
    return f"../../outputs/{name}/{pictures[0]['file']}" if pictures else None


def _thumbnail(record: dict[str, Any]) -> str:
    """Draw the first outputs of a tutorial as a terminal shows them."""
    printed = "\n".join(block["printed"] for block in record["blocks"] if block["printed"])
    rows = [row[:_THUMBNAIL_COLUMNS] for row in printed.splitlines()[:_THUMBNAIL_ROWS]]
    texts = "".join(
        f'<text x="14" y="{26 + 17 * number}" xml:space="preserve">{escape(row)}</text>'
        for number, row in enumerate(rows)
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 480 218" fill="#d6deeb" '
        'font-family="monospace" font-size="12"><rect width="480" height="218" fill="#1b2733"/>'
        f"{texts}</svg>\n"
    )


def _page(path: Path) -> str:
    script = path.read_text()
    record = _record(path.stem)
    text = ".. highlight:: python\n\n.. default-role:: literal\n\n"
    downloads = (
        f"Download: :download:`{path.name} <{path.name}>`, "
        f":download:`{path.stem}.ipynb <{path.stem}.ipynb>`.\n\n"
    )
    for index, block in enumerate(read_blocks(script)):
        text += block.text.strip() + "\n\n" + (downloads if index == 0 else "")
        if block.code.strip():
            text += ".. code-block:: python\n\n" + _indented(block.code.strip("\n")) + "\n\n"
        if index < len(record["blocks"]):
            text += _output(path.stem, record["blocks"][index])
    if record["blocks"]:
        text += f"*The outputs are from {record['machine']}.*\n"
    return text


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
