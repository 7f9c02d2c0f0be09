"""The content of a page -> one HTML file that needs nothing else: no network, no other file.

The scripts of `assets` are joined in the order of `_SCRIPTS`. The data are JSON, deflated, since
large plans repeat themselves; browsers inflate that themselves.
"""

from __future__ import annotations

import base64
import html
import os
import re
import zlib
from importlib import resources

from heteroplace.files.output import json_text, write_text
from heteroplace.report.headline import headline_parts
from heteroplace.report.html.content import PageContent
from heteroplace.report.html.encode import encode
from heteroplace.report.notes import solution_notes

_SCRIPTS = (
    "format.js",
    "data.js",
    "elements.js",
    "headline.js",
    "times.js",
    "what_if.js",
    "lanes.js",
    "timeline.js",
    "picture.js",
    "ops.js",
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
    notes = "".join(f"<li>{_with_commands(note)}</li>" for note in solution_notes(solution))
    claim, rest = headline_parts(solution)
    about = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in content.about
    )
    parts = {
        "title": html.escape(content.title),
        "claim": html.escape(claim[:1].upper() + claim[1:]),
        "rest": html.escape(_sentence(rest)),
        "about": about,
        "notes": notes,
        "style": _asset("page.css"),
        "script": "\n".join(_asset(name) for name in _SCRIPTS),
        "data": packed,
    }
    before, *others = _asset("page.html").split("{{")
    # By parts, as what is put in may itself have braces.
    texts = [before]
    for text in others:
        name, _, after = text.partition("}}")
        texts += [parts[name], after]
    return "".join(texts)


def _with_commands(note: str) -> str:
    """A note as HTML; a command stands between backticks.

    >>> _with_commands("a < b; see `heteroplace costs`.")
    'a &lt; b; see <code>heteroplace costs</code>.'
    """
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(note))


def _sentence(rest: str) -> str:
    """The rest of a headline, to stand on lines of its own.

    >>> _sentence(": 10 ns on a+b (gap 2 %)"), _sentence(" (gap 2 %)"), _sentence("")
    ('10 ns on a+b (gap 2 %)', 'Gap 2 %', '')
    """
    text = rest.lstrip(":, ")
    if text.startswith("("):
        text = text[1:].replace(")", "", 1) if text.count("(") == 1 else text
    return text[:1].upper() + text[1:]


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(f"assets/{name}").read_text(encoding="utf-8")
