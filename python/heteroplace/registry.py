"""The name of a seam -> what installed packages plug into it, by entry points.

Our own parts register in `pyproject.toml`; a package of someone else does the same in its own. Each
seam is one group of entry points, and a value is imported when it is asked for:

    [project.entry-points."heteroplace.solvers"]
    mine = "my_package.solver:MySolver"
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from heteroplace.errors import PluginError

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
    for entry in sorted(entry_points(group=_PREFIX + seam), key=lambda entry: entry.name):
        other = by_name.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise PluginError(
                f"two installed packages register {entry.name!r} in the group "
                f"{_PREFIX + seam!r}: {other.value} and {entry.value}; uninstall one of them"
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

    A part of ours whose folder was left out is skipped: the core works without it.

    Raises
    ------
    PluginError
        See `plugins` and `load_plugin`.
    """
    present = (name for name, entry in plugins(seam).items() if _is_present(entry))
    return {name: load_plugin(seam, name) for name in present}


def _is_present(entry: EntryPoint) -> bool:
    """Whether the package of an entry point is here; only our own parts may be left out."""
    parent = entry.module.rpartition(".")[0]
    if not parent.startswith("heteroplace.parts."):
        return True
    part = ".".join(parent.split(".")[:3])
    return find_spec(part) is not None
