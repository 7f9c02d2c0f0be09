"""An ONNX model -> a smaller equal one, by onnxruntime's offline optimisation.

Level BASIC folds constants, removes shape arithmetic and fuses batch norms into convolutions, all
within ONNX's own ops. Exports of swin transformers shrink to a tenth, and TVM's importer gets the
numbers of some of them wrong without it.
"""

from __future__ import annotations

import importlib.util

from onnx import ModelProto

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.prepare.onnx_process import (
    MAX_MODEL_BYTES,
    RefusedModelError,
    run_on_model,
)
from heteroplace.parts.onnx.prepare.onnx_tensors import serialised

_ONNX_DOMAINS = ("", "ai.onnx")


def simplify_offline(model: ModelProto) -> tuple[ModelProto, list[str]]:
    """Let onnxruntime fold constants and fuse at its level BASIC, which keeps to ONNX's own ops.

    Returns
    -------
    The simplified model and a line that says so; or the same model and a line that says why it
    could not be simplified.

    Raises
    ------
    FrontendError
        onnxruntime was killed by the model, or by the limits of memory and time.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return model, ["not simplified: onnxruntime is not installed"]
    if len(model.graph.node) < 2:
        return model, ["not simplified: one node has nothing to be simplified with"]
    content = serialised(model, MAX_MODEL_BYTES)
    if content is None:
        return model, ["not simplified: the model is too large to be passed to onnxruntime"]
    try:
        simplified = run_on_model("simplify", content)
    except RefusedModelError as err:
        return model, [f"not simplified: onnxruntime refused it: {err}"]
    except FrontendError as err:
        raise FrontendError(f"{err}, or import it with simplify=False.") from err
    foreign = _domains(simplified) - _domains(model)
    if foreign:
        return model, [f"not simplified: onnxruntime put in ops of {', '.join(sorted(foreign))}"]
    before, after = len(model.graph.node), len(simplified.graph.node)
    return simplified, [f"onnxruntime (BASIC) simplified {before} nodes to {after}"]


def _domains(model: ModelProto) -> set[str]:
    return {node.domain for node in model.graph.node if node.domain not in _ONNX_DOMAINS}
