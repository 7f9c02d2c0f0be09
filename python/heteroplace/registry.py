"""The name of a seam -> what parts and installed packages plug into it, by entry points.

Each seam is one group of entry points. A part of ours registers in the file `entry_points.txt` of
its own folder. A package of someone else registers in its `pyproject.toml`:

    [project.entry-points."heteroplace.solvers"]
    mine = "my_package.solver:MySolver"

A value is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

from heteroplace.errors import PluginError

_PARTS = Path(__file__).parent / "parts"
_PREFIX = "heteroplace."


@cache
def plugins(seam: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a seam by name, sorted; nothing is imported.

    Parameters
    ----------
    seam
        Without the prefix of our groups: "solvers", "frontends".

    Raises
    ------
    PluginError
        Two packages use the same name.
    """
    by_name: dict[str, EntryPoint] = {}
    group = _PREFIX + seam
    entries = [*_of_parts(group), *entry_points(group=group)]
    for entry in sorted(entries, key=lambda entry: entry.name):
        other = by_name.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise PluginError(
                f"two packages register {entry.name!r} in the group {group!r}: {other.value} and "
                f"{entry.value}; uninstall one of them"
            )
    return MappingProxyType(by_name)


def load_plugin(seam: str, name: str) -> Any:
    """Return the value of an entry point; its module is imported now.

    Raises
    ------
    PluginError
        No package registers this name, or its module or attribute does not exist.
    """
    known = plugins(seam)
    if name not in known:
        raise PluginError(
            f"no installed package registers {name!r} in the group {_PREFIX + seam!r}; registered: "
            f"{', '.join(known) or 'nothing'}"
        )
    entry = known[name]
    try:
        return entry.load()
    except (ImportError, AttributeError) as err:
        raise PluginError(
            f"the entry point {name!r} of the group {_PREFIX + seam!r} cannot be loaded from "
            f"{entry.value}: {err}; install the package again, or uninstall it"
        ) from err


def load_plugins(seam: str) -> Mapping[str, Any]:
    """Return all values of a seam by name.

    Raises
    ------
    PluginError
        See `plugins` and `load_plugin`.
    """
    return {name: load_plugin(seam, name) for name in plugins(seam)}


def _of_parts(group: str) -> Iterator[EntryPoint]:
    """Yield what our own parts register; a part whose folder was left out registers nothing."""
    for file in sorted(_PARTS.glob("*/entry_points.txt")):
        parser = ConfigParser(delimiters=("=",))
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(file.read_text(encoding="utf-8"), source=str(file))
        if parser.has_section(group):
            for name, value in parser.items(group):
                yield EntryPoint(name, value, group)
