"""What an export format is: a function from a solution, and its model, to another program's text.

A format is one module with one `ExportFormat`, registered in the group
`heteroplace.export_formats` by the name that `--to` takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heteroplace.model.solution import Solution

READ_PLACED_MODEL = "heteroplace.parts.exports.onnx_nodes:read_placed_model"
"""Reads the model of a solution; loaded when a format needs it, as it needs the package onnx."""


@dataclass(frozen=True)
class ExportedPlacement:
    """What a format makes of a solution."""

    text: str
    """What the other program reads, with an end of line."""
    warnings: tuple[str, ...] = ()
    """What the other program cannot express, one sentence each."""
    model: bytes | None = None
    """The model with the placement in it; None: the format writes no model."""


@dataclass(frozen=True)
class ExportFormat:
    """How placements are written for one other program."""

    write: Callable[[Solution, Path | None], ExportedPlacement]
    """Takes the solution and the path of its model, which is None if the caller names none."""
    needs_model: bool = False
    """The format cannot be written without the model."""
    writes_model: bool = False
    """It returns a model, which needs a file to go to."""
