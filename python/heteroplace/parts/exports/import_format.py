"""What an import format is: a function from another program's file to the devices of layers.

A format is one module with one `ImportFormat`, registered in the group `heteroplace.import_formats`
by the name that `--from` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from heteroplace.errors import PlanError
from heteroplace.files.reader import unreadable
from heteroplace.model.cluster import Cluster
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.placed_layers import gpu_index


@dataclass(frozen=True)
class ImportedPlacement:
    """Where another program runs the layers of a network."""

    devices: Mapping[str, tuple[str, ...]]
    """By layer the names of the devices that may run it. A layer that is missing is free."""
    warnings: tuple[str, ...] = ()
    """What the file leaves open, one sentence each."""


@dataclass(frozen=True)
class ImportFormat:
    """How the placements of one other program are read."""

    read: Callable[[Path, Solution, Path | None], ImportedPlacement]
    """Takes the file, any solution of the network, and the path of the network's model, which is
    None if the caller names none."""
    needs_model: bool = False
    """The format cannot be read without the model."""
    has_settings: bool = False
    """A file of settings lies next to the placement, with the suffix `.json`."""


def named_devices(cluster: Cluster, gpu: int | None) -> tuple[str, ...]:
    """Return the names of the GPUs with an ordinal, or of all CPU devices.

    Parameters
    ----------
    gpu
        Ordinal of a GPU among those of its kind; None: the CPU devices.
    """
    return tuple(each.name for each in cluster.devices if gpu_index(each) == gpu)


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises
    ------
    PlanError
        The file cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as err:
        raise PlanError(unreadable(path, err)) from err
    except UnicodeDecodeError as err:
        raise PlanError(f"{path}: is no text in UTF-8 ({err}); save it in this encoding") from err
