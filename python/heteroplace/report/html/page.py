"""The content of a page -> one HTML file that needs nothing else: no network, no other file.

The scripts of `assets` are joined in the order of `_SCRIPTS`. The data are JSON, deflated, since
large plans repeat themselves; browsers inflate that themselves.
"""

from __future__ import annotations

import base64
import html
import os
import zlib
from importlib import resources

from heteroplace.files.output import json_text, write_text
from heteroplace.report.headline import solution_headline
from heteroplace.report.html.content import PageContent
from heteroplace.report.html.encode import encode
from heteroplace.report.notes import solution_notes

_SCRIPTS = (
    "format.js",
    "data.js",
    "elements.js",
    "headline.js",
    "lanes.js",
    "timeline.js",
    "memory.js",
    "graph.js",
    "links.js",
    "tasks.js",
    "ask.js",
    "accuracy.js",
    "solver.js",
    "machine.js",
    "main.js",
)


def write_page(content: PageContent, path: str | os.PathLike[str]) -> None:
    """Write a page to `path`; atomic.

    Raises
    ------
    OSError
        The folder does not exist or cannot be written to.
    """
    write_text(page_text(content), path)


def page_text(content: PageContent) -> str:
    """Return the HTML. Equal contents make equal texts."""
    data = json_text(encode(content), separators=(",", ":"), ensure_ascii=False)
    packed = base64.b64encode(zlib.compress(data.encode(), 9)).decode()
    solution = content.solution
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in solution_notes(solution))
    parts = {
        "title": html.escape(f"{solution.graph.name} on {solution.cluster.name}"),
        "headline": html.escape(solution_headline(solution)),
        "notes": notes,
        "style": _asset("page.css"),
        "script": "\n".join(_asset(name) for name in _SCRIPTS),
        "data": packed,
    }
    before, *rest = _asset("page.html").split("{{")
    # By parts, as what is put in may itself have braces.
    texts = [before]
    for text in rest:
        name, _, after = text.partition("}}")
        texts += [parts[name], after]
    return "".join(texts)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(f"assets/{name}").read_text(encoding="utf-8")
