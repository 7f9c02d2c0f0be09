"""What was measured for each graph of a part, as files, so that a run of hours can be resumed.

One file for each (part, graph), with all its rows, when and how long they were measured, and a
stamp: commit, processor, cores and budget. What has another stamp is measured again, so that no row
of a table is older than another. Of each table in the documents the manifest has the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from heteroplace.control_groups import processor_name, usable_cores
from heteroplace.errors import HeteroPlaceError
from heteroplace.files.output import json_text, write_text
from heteroplace.files.reader import read_json

Row = dict[str, object]
_UNKNOWN = "unknown"
_SOURCES = (":/python", ":/src", ":(top,exclude)*.md", ":(top,exclude)*/manifest.json")
"""Of the checkout; not what this command writes itself."""


@dataclass(frozen=True)
class Stamp:
    """What the rows of one run have in common."""

    commit: str
    """Short; if sources were changed or added, with "+" and a digest of that behind it; outside a
    checkout "unknown+" and a digest of the package."""
    processor: str
    cores: int
    budget_s: float
    """Seconds for each solver."""

    def of(self, budget_share: float) -> Stamp:
        """Return that of a part that gives its solvers a share of the seconds."""
        return replace(self, budget_s=round(self.budget_s * budget_share, 3))


@dataclass(frozen=True)
class Measured:
    """The rows of one graph."""

    stamp: Stamp
    began: str
    """UTC, as YYYY-MM-DD HH:MM."""
    seconds: float
    """Wall time of all solvers."""
    load: float
    """Mean number of running processes in the minute before the end."""
    rows: list[Row]


@dataclass(frozen=True)
class Made:
    """How a table in a document was made: an entry of the manifest."""

    stamp: Stamp
    began: str
    seconds: float
    """Sum over its graphs."""
    load: float
    """The largest of its graphs."""
    graphs: tuple[str, ...]
    solvers: tuple[str, ...]


class Store:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, part: str, graph: str) -> Measured | None:
        """Return what is there; None: nothing."""
        path = self._path(part, graph)
        if not path.is_file():
            return None
        value: Any = read_json(path, HeteroPlaceError)
        try:
            return Measured(**value | {"stamp": Stamp(**value["stamp"])})
        except (TypeError, KeyError) as err:
            raise HeteroPlaceError(
                f"{path}: not what is kept of a measured graph ({err}); delete it, and that is "
                f"measured again"
            ) from err

    def write(self, part: str, graph: str, found: Measured) -> None:
        """Keep it; whole or not at all."""
        path = self._path(part, graph)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(json_text(asdict(found), indent=1) + "\n", path)

    def _path(self, part: str, graph: str) -> Path:
        return self._folder / part / f"{graph.replace('/', '__') or 'all'}.json"


def read_manifest(path: Path) -> dict[str, Made]:
    """Return how each part was made that was, by name."""
    found = {}
    for name, value in json.loads(path.read_text()).items():
        names = {key: tuple(value[key]) for key in ("graphs", "solvers")}
        found[name] = Made(**value | names | {"stamp": Stamp(**value["stamp"])})
    return found


def write_manifest(path: Path, made: Mapping[str, Made]) -> None:
    """Write the same."""
    entries = {name: asdict(one) for name, one in sorted(made.items())}
    write_text(json_text(entries, indent=1) + "\n", path)


def stamp_now(budget_s: float) -> Stamp:
    """Return the stamp of what is measured here and now."""
    return Stamp(code_stamp(), processor_name(), usable_cores(), budget_s)


def load_now() -> float:
    """Return the mean number of running processes of the last minute."""
    return round(os.getloadavg()[0], 1)


def code_stamp(folder: Path = Path(__file__).parents[2]) -> str:
    """Return `Stamp.commit` of the checkout in which `folder` is, or of the package there."""
    try:
        root = Path(os.fsdecode(_git(folder, "rev-parse", "--show-toplevel")))
        commit = _git(root, "rev-parse", "--short=8", "HEAD").decode()
        changed = _git(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--", *_SOURCES)
        added = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *_SOURCES)
    except (OSError, subprocess.CalledProcessError):
        return f"{_UNKNOWN}+{_digest(b'', sorted(folder.rglob('*.py')))}"
    if not changed and not added:
        return commit
    paths = [root / os.fsdecode(name) for name in added.split(b"\0") if name]
    return f"{commit}+{_digest(changed, paths)}"


def _digest(begin: bytes, paths: Iterable[Path]) -> str:
    """Of some bytes and files, names included."""
    found = hashlib.sha256(begin)
    for path in paths:
        found.update(f"\0{path}\0".encode() + path.read_bytes())
    return found.hexdigest()[:8]


def _git(folder: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout.strip()
