"""An ONNX model -> a smaller equal one, by onnxruntime's offline optimisation.

Level BASIC folds constants, removes shape arithmetic and fuses batch norms into convolutions, all
within ONNX's own ops. Exports of swin transformers shrink to a tenth, and TVM's importer gets the
numbers of some of them wrong without it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
from onnx import ModelProto

_ONNX_DOMAINS = ("", "ai.onnx")
_MAX_MODEL_BYTES = 2**30
"""A serialised model cannot pass 2 GiB, and folding makes it larger."""


def simplify_offline(model: ModelProto) -> tuple[ModelProto, list[str]]:
    """Let onnxruntime fold constants and fuse at its level BASIC, which keeps to ONNX's own ops.

    Returns
    -------
    The simplified model and a line that says so; or the same model and a line that says why it
    could not be simplified.
    """
    try:
        import onnxruntime
    except ImportError:
        return model, ["not simplified: onnxruntime is not installed"]
    if model.ByteSize() > _MAX_MODEL_BYTES:
        return model, ["not simplified: the model is too large to be passed to onnxruntime"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "simplified.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 4  # its reasons come as exceptions; nothing to stderr
        try:
            onnxruntime.InferenceSession(
                model.SerializeToString(),
                options,
                providers=["CPUExecutionProvider"],
                enable_fallback=0,  # it would print, and try the same again
            )
        except onnxruntime_errors() as err:
            reason = str(err).strip().splitlines()[-1]
            return model, [f"not simplified: onnxruntime refused it: {reason}"]
        simplified = onnx.load(path)
    foreign = _domains(simplified) - _domains(model)
    if foreign:
        return model, [f"not simplified: onnxruntime put in ops of {', '.join(sorted(foreign))}"]
    before, after = len(model.graph.node), len(simplified.graph.node)
    return simplified, [f"onnxruntime (BASIC) simplified {before} nodes to {after}"]


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """Return what onnxruntime raises for a model or an input that it does not take."""
    import onnxruntime

    errors = onnxruntime.capi.onnxruntime_pybind11_state
    return (
        errors.EPFail,
        errors.Fail,
        errors.InvalidArgument,
        errors.InvalidGraph,
        errors.InvalidProtobuf,
        errors.NotImplemented,
        errors.RuntimeException,
        ValueError,
    )


def _domains(model: ModelProto) -> set[str]:
    return {node.domain for node in model.graph.node if node.domain not in _ONNX_DOMAINS}
