"""Affinities of OpenVINO's device HETERO -> the devices of layers.

The file is JSON, as the export format `openvino` writes it, or what Python prints of the dictionary
that `openvino.Core.query_model` returns. Its names are those of OpenVINO's operations.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

from heteroplace.entries import load_entry
from heteroplace.errors import PlanError
from heteroplace.files.reader import parse_json
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.import_format import (
    ImportedPlacement,
    ImportFormat,
    named_devices,
    read_text,
)
from heteroplace.parts.exports.placed_layers import gpu_indices, shown_names

_READ_OPERATIONS = "heteroplace.parts.exports.openvino_affinities:read_operations"
_FILL = "heteroplace.parts.exports.onnx_nodes:filled_devices"
_DEVICE = re.compile(r"CPU|GPU(?:\.(\d+))?")


def read_affinities(path: Path, solution: Solution, model_path: Path | None) -> ImportedPlacement:
    """Return the devices of the nodes of a model. A node without an affinity follows its reader.

    Raises
    ------
    FrontendError
        The model cannot be read.
    PlanError
        The file has no affinities or those of another model, or the cluster lacks a device.
    """
    affinities = _read_file(path)
    devices = {name: _devices(path, solution, name, word) for name, word in affinities.items()}
    nodes, operations, values = load_entry(_READ_OPERATIONS)(model_path)
    own = [devices.get(operation) for operation in operations.values()]
    if not any(own):
        raise PlanError(
            f"{path}: none of its {len(devices)} operations is a node of {model_path}, whose first "
            f"operation is {next(iter(operations.values()), None)!r}; give the affinities of this "
            f"model"
        )
    placed: list[tuple[str, ...]] = load_entry(_FILL)(nodes, own)
    unknown = [name for name in devices if name not in values]
    warnings = (
        (
            f"{shown_names(unknown)} are no nodes of {model_path} and do not count; OpenVINO makes "
            f"such operations itself",
        )
        if unknown
        else ()
    )
    return ImportedPlacement(dict(zip(operations, placed, strict=True)), warnings)


def _read_file(path: Path) -> Mapping[str, object]:
    """The words of devices, by operation."""
    text = read_text(path)
    try:
        affinities = parse_json(text)
    except ValueError as fault:
        try:
            affinities = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            raise PlanError(f"{path}: not valid JSON: {fault}") from fault
    if not isinstance(affinities, dict):
        raise PlanError(
            f'{path}: expected an object of operations and devices, such as {{"conv": "GPU.0"}}, '
            f"got a {type(affinities).__name__}"
        )
    return {str(name): word for name, word in affinities.items()}


def _devices(path: Path, solution: Solution, name: str, word: object) -> tuple[str, ...]:
    """Names of the devices that OpenVINO's name means; "GPU" is the first one."""
    cluster = solution.cluster
    match = _DEVICE.fullmatch(word) if isinstance(word, str) else None
    gpu = None if match is None or match[0] == "CPU" else int(match[1] or 0)
    names = () if match is None else named_devices(cluster, gpu)
    if not names:
        expected = ["CPU", *(f"GPU.{index}" for index in gpu_indices(cluster))]
        raise PlanError(
            f"{path}: {name!r} is on {word!r}; expected {', '.join(expected)}, the devices of "
            f"cluster {cluster.name!r}"
        )
    return names


OPENVINO_FILE = ImportFormat(read_affinities, needs_model=True)
