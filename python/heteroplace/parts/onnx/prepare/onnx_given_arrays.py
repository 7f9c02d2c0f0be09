"""A model and arrays for its inputs -> the free sizes and the values that the arrays fix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.prepare.onnx_load import model_structure
from heteroplace.parts.onnx.prepare.onnx_operands import inputs_fixed_in

_MAX_FIXED = 64
"""Elements of an array that may be axes or sizes."""


def fixed_by_arrays(
    path: Path, arrays: Mapping[str, Any], batch: int | None
) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Return the free sizes, by input, and the values of small inputs that decide shapes.

    Parameters
    ----------
    batch
        Rows of the inputs whose first size is free; such a size is -1. None: arrays decide.

    Returns
    -------
    shapes, values
        Both empty if the file is no ONNX model: the import says what is wrong with it.
    """
    try:
        graph = model_structure(path).graph
    except FrontendError:
        return {}, {}
    shapes = {}
    for value in graph.input:
        tensor = value.type.tensor_type
        sizes = [dim.dim_value for dim in tensor.shape.dim]
        if value.name not in arrays or (tensor.HasField("shape") and all(sizes)):
            continue
        shape = tuple(int(size) for size in arrays[value.name].shape)
        is_batch = batch is not None and sizes and sizes[0] == 0
        if is_batch and all(sizes[1:]):
            continue
        shapes[value.name] = (-1, *shape[1:]) if is_batch else shape
    return shapes, _values(path, arrays)


def _values(path: Path, arrays: Mapping[str, Any]) -> dict[str, Any]:
    small = [
        name
        for name, array in arrays.items()
        if array.dtype.kind in "biu" and array.size <= _MAX_FIXED
    ]
    if not small:
        return {}
    needed = inputs_fixed_in(path)
    return {name: arrays[name].tolist() for name in small if name in needed}
