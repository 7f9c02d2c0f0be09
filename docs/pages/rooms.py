"""What is written beside the code, the README of each folder first -> a page each."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NO_SEARCH = "---\nnosearch: true\n---\n\n"
"""Front matter of pages that the search leaves out, because users look for others."""
_LINK = re.compile(r"\[([^\]]+)\]\(\s*([^)#\s]+)(#[^)]*)?\)")
_FOLDERS = (
    ROOT / "python" / "heteroplace",
    ROOT / "src",
    ROOT / "benchmarks",
    ROOT / "zoo",
)


@dataclass(frozen=True)
class Room:
    """A folder with a README, or another text in it."""

    title: str
    """Its path below the package's folder, or in the tree."""
    name: str
    """Name of its page, below the generated ones."""
    path: Path


def rooms() -> list[Room]:
    """Return all texts, those of the package first."""
    found = []
    for base in _FOLDERS:
        for path in sorted(base.rglob("*.md")):
            inner = path.relative_to(base.parent).with_suffix("").as_posix()
            inner = inner.removesuffix("/README")
            found.append(Room(inner, f"rooms/{inner.replace('/', '.')}.md", path))
    return found


def room_page(dotted: str) -> Room | None:
    """Return the room of a package by its dotted name; None: its folder has no README."""
    inner = dotted.replace(".", "/")
    return next((room for room in rooms() if room.title == inner), None)


def room_pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    by_path = {room.path: room for room in rooms()}
    pages = {room.name: _text(room, by_path) for room in rooms()}
    names = "\n".join(room.name.removeprefix("rooms/").removesuffix(".md") for room in rooms())
    pages["rooms/index.md"] = (
        f"{NO_SEARCH}# Folder by folder\n\nWhat each folder turns into what, from which papers, "
        "and why. `heteroplace` is the package, and `src` its core in C++.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"
    )
    return pages


def _text(room: Room, by_path: dict[Path, Room]) -> str:
    def linked(match: re.Match[str]) -> str:
        if match[2].startswith("http"):
            return match[0]
        target = Path(posixpath.normpath(room.path.parent / match[2]))
        target = target / "README.md" if target.is_dir() else target
        other = by_path.get(target)
        if other is None:
            return match[1]
        return f"[{match[1]}](<{other.name.removeprefix('rooms/')}>)"

    _, _, rest = room.path.read_text().partition("\n")
    heading = room.path.read_text().partition("\n")[0].lstrip("# ")
    told = heading.partition(": ")[2] or heading
    return f"{NO_SEARCH}# {room.title}\n\n*{told}*\n{_LINK.sub(linked, rest)}"
