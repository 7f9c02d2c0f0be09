"""Code -> the pages of the site that nobody writes by hand."""

from __future__ import annotations

from pathlib import Path

from docs.pages.api import api_pages
from docs.pages.commands import command_pages
from docs.pages.errors import error_pages
from docs.pages.formats import format_pages
from docs.pages.ops import op_pages
from docs.pages.readme import readme_pages
from docs.pages.rooms import room_pages
from docs.pages.tutorials import tutorial_pages

_MAKERS = (
    api_pages,
    command_pages,
    error_pages,
    format_pages,
    op_pages,
    readme_pages,
    room_pages,
    tutorial_pages,
)


def write_pages(folder: Path) -> None:
    """Write all pages below `folder`; one that has not changed keeps its date, others go."""
    pages: dict[str, str] = {}
    for maker in _MAKERS:
        pages |= maker()
    for old in folder.rglob("*.*"):
        if old.relative_to(folder).as_posix() not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
