"""The name of a seam -> what parts and installed packages plug into it, by entry points.

Each seam is one group of entry points. A part of ours registers in the file `entry_points.txt` of
its own folder. A package of someone else registers in its `pyproject.toml`:

    [project.entry-points."heteroplace.solvers"]
    mine = "my_package.solver:MySolver"

A value is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from heteroplace.entries import load_entry
from heteroplace.errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_PARTS = Path(__file__).parent / "parts"
_PREFIX = "heteroplace."
_ENTRY_POINT, _ENTRY_POINTS = "importlib.metadata:EntryPoint", "importlib.metadata:entry_points"
"""Loaded late: it takes as long as all the rest that `heteroplace --version` loads."""
_PARSER = "configparser:ConfigParser"


@cache
def _of_others() -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages in our groups; reading them takes 10 ms."""
    installed = load_entry(_ENTRY_POINTS)()
    groups = [group for group in installed.groups if group.startswith(_PREFIX)]
    return tuple(entry for group in groups for entry in installed.select(group=group))


@cache
def _of_parts() -> tuple[EntryPoint, ...]:
    """Return what our own parts register; a part whose folder was left out registers nothing."""
    entries = []
    for file in sorted(_PARTS.glob("*/entry_points.txt")):
        parser = load_entry(_PARSER)(delimiters=("=",))
        parser.optionxform = str  # names keep their case
        parser.read_string(file.read_text(encoding="utf-8"), source=str(file))
        for group in parser.sections():
            for name, value in parser.items(group):
                entries.append(load_entry(_ENTRY_POINT)(name, value, group))
    return tuple(entries)


@cache
def plugins(seam: str, *, is_ranked: bool = False) -> Mapping[str, EntryPoint]:
    """Return the entry points of a seam by name: ours, then others, each sorted.

    Nothing is imported.

    Parameters
    ----------
    seam
        Without the prefix of our groups: "solvers", "frontends".
    is_ranked
        Keep ours in the order of their files: help texts and tables list them so.

    Raises
    ------
    PluginError
        Two packages use the same name.
    """
    by_name: dict[str, EntryPoint] = {}
    group = _PREFIX + seam
    ours, others = (
        [entry for entry in entries if entry.group == group]
        for entries in (_of_parts(), _of_others())
    )
    others.sort(key=lambda entry: entry.name)
    if not is_ranked:
        ours.sort(key=lambda entry: entry.name)
    for entry in (*ours, *others):
        other = by_name.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise PluginError(
                f"two packages register {entry.name!r} in the group {group!r}: "
                f"{_described(other)} and {_described(entry)}; uninstall one of them"
            )
    return MappingProxyType(by_name)


def added_modules() -> list[str]:
    """Return the names of the top modules of all plugins from other packages; none is imported."""
    return sorted({entry.module.partition(".")[0] for entry in _of_others()} - {_PREFIX[:-1]})


def added_plugins(
    seam: str, own: Collection[str], *, is_ranked: bool = False
) -> Mapping[str, EntryPoint]:
    """Return the entry points of a seam for which the core has a table too.

    Parameters
    ----------
    own
        The names in that table, which no package may take.
    is_ranked
        See `plugins`.

    Raises
    ------
    PluginError
        A package registers one of these names; also see `plugins`.
    """
    added = plugins(seam, is_ranked=is_ranked)
    for name, entry in added.items():
        if name in own:
            raise PluginError(
                f"{_described(entry)} is registered as {name!r} in the group {_PREFIX + seam!r}, "
                f"and heteroplace has its own {name!r}; uninstall that package, or rename its entry"
            )
    return added


def plugins_of_others() -> tuple[tuple[str, EntryPoint], ...]:
    """Return each entry point in a group of ours that another package registers, with its seam."""
    entries = sorted(_of_others(), key=lambda entry: (entry.group, entry.name))
    return tuple((entry.group.removeprefix(_PREFIX), entry) for entry in entries)


def own_seams() -> frozenset[str]:
    """Return the seams that parts of ours plug into."""
    return frozenset(entry.group.removeprefix(_PREFIX) for entry in _of_parts())


def package_of(entry: EntryPoint) -> str:
    """Return the package that registers an entry point, with its version; "": it is not known."""
    package = getattr(entry, "dist", None)
    return "" if package is None else f"{package.metadata['Name']} {package.version}"


def _described(entry: EntryPoint) -> str:
    """The value of an entry point and its package, for a message."""
    package = package_of(entry)
    return f"{entry.value} of the package {package}" if package else entry.value


def load_plugin(seam: str, name: str) -> Any:
    """Return the value of an entry point; its module is imported now.

    Raises
    ------
    PluginError
        No package registers this name, or its module or attribute does not exist.
    """
    entries = plugins(seam)
    if name not in entries:
        raise PluginError(
            f"no installed package registers {name!r} in the group {_PREFIX + seam!r}; registered: "
            f"{', '.join(entries) or 'nothing'}"
        )
    entry = entries[name]
    try:
        return entry.load()
    except Exception as err:  # someone else's module may raise anything while it is imported
        raise PluginError(
            f"the entry point {name!r} of the group {_PREFIX + seam!r} cannot be loaded from "
            f"{_described(entry)}: {type(err).__name__}: {err}; install the package again, or "
            f"uninstall it"
        ) from err


def load_plugins(seam: str) -> Mapping[str, Any]:
    """Return all values of a seam by name.

    Raises
    ------
    PluginError
        See `plugins` and `load_plugin`.
    """
    return {name: load_plugin(seam, name) for name in plugins(seam)}
