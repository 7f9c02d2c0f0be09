"""The front end `onnx`: the file of an ONNX model -> what commands need to know of it.

See `heteroplace.frontends.Frontend`. Each method loads the modules that it calls.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heteroplace.entries import load_entry
from heteroplace.errors import MissingPackageError
from heteroplace.frontends import Imported
from heteroplace.model.solution import Solution
from heteroplace.state_option import StateNames

_PREPARE = "heteroplace.parts.onnx.prepare"


class OnnxFrontend:
    """Files of ONNX models."""

    suffixes: tuple[str, ...] = (".onnx",)

    def check_installed(self) -> None:
        """Raise MissingPackageError if the package onnx is missing."""
        if importlib.util.find_spec("onnx") is None:
            raise MissingPackageError(
                "the package onnx, which reads models, is not installed; run: pip install onnx"
            )

    def reads(self, model: object) -> bool:
        """Return whether this is a model of the package onnx, which is then loaded already."""
        onnx = sys.modules.get("onnx")
        return onnx is not None and isinstance(model, onnx.ModelProto)

    def import_file(
        self,
        model: object,
        *,
        shapes: Mapping[str, Sequence[int]],
        values: Mapping[str, Any] | None = None,
        batch: int | None = None,
        is_any_batch: bool = False,
        keeps_weights: bool = False,
        state: StateNames = "",
    ) -> Imported:
        """Import a model; see `from_onnx`."""
        imported: Imported = load_entry("heteroplace.parts.onnx.importer:from_onnx")(
            model,
            input_shapes=shapes,
            input_values=values,
            batch="symbolic" if is_any_batch else batch,
            keep_weights=keeps_weights,
            state=state,
        )
        return imported

    def free_sizes(
        self, model: object, shapes: Mapping[str, Sequence[int]], state: StateNames = ""
    ) -> dict[str, tuple[int | str, ...]]:
        """Return the sizes of each input that leaves one free; a free one by its name."""
        load_entry("heteroplace.parts.onnx.import_arguments:check_arguments")(
            model, shapes, None, None
        )
        sizes: dict[str, tuple[int | str, ...]] = load_entry(f"{_PREPARE}.onnx_load:open_sizes")(
            model, shapes
        )
        if state and sizes:
            load_entry("heteroplace.parts.onnx.caches.grown_pairs:share_capacity")(
                model, sizes, shapes, state
            )
        return sizes

    def fixed_by_arrays(
        self, path: Path, arrays: Mapping[str, Any], batch: int | None
    ) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
        """Return the free sizes and the values that arrays for inputs fix."""
        fixed: tuple[dict[str, tuple[int, ...]], dict[str, Any]] = load_entry(
            f"{_PREPARE}.onnx_given_arrays:fixed_by_arrays"
        )(path, arrays, batch)
        return fixed

    def weight_files(self, path: Path) -> Sequence[str]:
        """Return the files with weights that a file refers to, relative to its folder."""
        files: Sequence[str] = load_entry(f"{_PREPARE}.onnx_source:external_locations")(path)
        return files

    def read_devices(self, model: object) -> Mapping[str, str]:
        """Return the device of each node that the model annotates with one, by the node's name."""
        devices: Mapping[str, str] = load_entry(f"{_PREPARE}.onnx_devices:read_devices")(model)
        return devices

    def check_annotatable(self, path: Path, output: str) -> None:
        """Raise what `annotate` would raise of the model and the file, before any work."""
        load_entry(f"{_PREPARE}.onnx_devices:check_annotatable")(path, output)

    def annotate(self, path: Path, output: str, solution: Solution) -> None:
        """Write the model with the devices of a plan."""
        load_entry(f"{_PREPARE}.onnx_devices:annotate")(path, output, solution)


ONNX = OnnxFrontend()
"""The entry point `onnx` of the group `heteroplace.frontends`."""
