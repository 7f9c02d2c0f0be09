"""A random ONNX model -> what onnxruntime and we make of it, and how the two differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm

from benchmarks.conformance.worker import turn_by_turn, two_memories
from heteroplace import HeteroPlace, build
from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.run.executor import Executor

Arrays = list[np.ndarray]

ROUNDING = 1e-6
"""By which inputs are changed to see what rounding makes of them."""
_TOLERANCE = {"float16": 4e-3}
_OTHERS = 1e-4
"""Of the largest, beside what a change of the inputs by their rounding makes."""
_REFUSED = (
    "does not fit in",  # a window larger than its map, which onnxruntime may round into it
    "kernel is shorter than its stride",  # onnxruntime and the specification make different sizes
    "is rounded differently by each runtime",
    "has no scale",  # from no elements to some
)


def reference(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> Arrays | None:
    """What onnxruntime makes of it, node by node; None where it has no kernel."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, inputs)  # type: ignore[no-any-return]
    except Exception:  # it has no common base of its errors
        return None


def nearby(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs that differ by the rounding of floats."""
    return {
        name: np.asarray(x * (1 + ROUNDING), x.dtype) if x.dtype.kind == "f" else x
        for name, x in inputs.items()
    }


def ours(model: onnx.ModelProto, inputs: dict[str, np.ndarray], **options: Any) -> Arrays | None:
    """What we make of it, tasks in turn on two devices; None where it is refused as it should."""
    chosen = {"costs": turn_by_turn, "solver": "heft", "verify": "off", **options}
    try:
        imported = from_onnx(model, input_shapes={name: x.shape for name, x in inputs.items()})
        with tvm.transform.PassContext(opt_level=3):
            place = HeteroPlace(two_memories(), params=imported.params, **chosen)
            executor = Executor(build(place(imported.mod)))
    except FrontendError as err:
        if any(text in str(err) for text in _REFUSED):
            return None
        raise
    return executor.run({name: inputs[name] for name, _, _ in executor.inputs})


def fault(actual: np.ndarray, expected: np.ndarray, nearby: np.ndarray) -> str:
    """How two results differ, by more than the rounding of inputs changes the second one."""
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return f"{actual.dtype}{actual.shape} instead of {expected.dtype}{expected.shape}"
    if not expected.size:
        return ""
    if expected.dtype.kind != "f":
        wrong = (actual != expected) & (nearby == expected)
        places = np.argwhere(wrong)
        return f"{len(places)} of {wrong.size} off, first {places[0]}" if len(places) else ""
    tolerance = _TOLERANCE.get(actual.dtype.name, _OTHERS)
    actual, expected, nearby = (x.astype(np.float64) for x in (actual, expected, nearby))
    is_known = np.isfinite(expected) & np.isfinite(nearby)
    actual, expected, nearby = (x[is_known] for x in (actual, expected, nearby))
    if not np.isfinite(actual).all():
        return f"{np.count_nonzero(~np.isfinite(actual))} values are not finite"
    if not expected.size:
        return ""
    allowed = tolerance * max(float(np.abs(expected).max()), 1e-3)
    allowed += 10 * float(np.abs(nearby - expected).max())
    difference = float(np.abs(actual - expected).max())
    return "" if difference <= allowed else f"{difference} off, {allowed} allowed"
