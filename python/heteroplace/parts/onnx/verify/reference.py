"""ONNX models and inputs -> their outputs by onnxruntime: as they stand, nothing optimised.

One thread and one run: what is asked for are numbers, and starting costs more than running. It is
done in a process of its own (`prepare/onnx_process.py`), as a model may end the one that runs it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto

from heteroplace.errors import FrontendError, VerificationError
from heteroplace.parts.onnx.prepare.onnx_half_types import widen_half
from heteroplace.parts.onnx.prepare.onnx_process import ModelRun, run_models
from heteroplace.parts.onnx.prepare.onnx_source import OnnxSource

Values = Mapping[str, np.ndarray]
"""Arrays by the names of inputs, or of outputs."""


def is_installed() -> bool:
    """Say whether onnxruntime is there."""
    return importlib.util.find_spec("onnxruntime") is not None


def reference_name() -> str:
    """Return what the reference is called, with its version."""
    try:
        return f"onnxruntime {version('onnxruntime')}"
    except PackageNotFoundError:  # one of its other builds, e.g. onnxruntime-gpu
        (distribution, *_) = packages_distributions()["onnxruntime"]
        return f"onnxruntime {version(distribution)}"


def run_source(source: OnnxSource, inputs: Values, flops: int) -> Values:
    """Run the model that a module came from; return its outputs in their order.

    onnxruntime has few ops of bfloat16 for CPUs. Where it refuses a model with weights in bfloat16,
    the model is run in float32.

    Parameters
    ----------
    flops
        Of the run, for the limit of its time.

    Raises
    ------
    VerificationError
        onnxruntime does not take the model or the inputs, or ended or took too long on them.
    """
    # Not a copy: models are large.
    model = source.path if source.data is None else np.from_dlpack(source.data).data
    size = sum(Path(path).stat().st_size for path in source.digests)
    size += 0 if source.data is None else len(model)
    try:
        return _only([ModelRun(model, inputs)], size, flops)
    except VerificationError:
        weights = source.graph_only().graph.initializer
        if all(tensor.data_type != TensorProto.BFLOAT16 for tensor in weights):
            raise
    wide = source.load()
    widen_half(wide)
    return run_model(wide, inputs, flops)


def run_model(
    model: ModelProto, inputs: Values, flops: int, names: Sequence[str] | None = None
) -> Values:
    """Run a model in memory; return its outputs, or the named ones. Errors: see `run_source`."""
    content = model.SerializeToString()
    return _only([ModelRun(content, inputs, names)], len(content), flops)


def run_each(runs: Sequence[tuple[ModelProto, Values, Sequence[str]]]) -> list[Values | None]:
    """Run small models; return the named outputs of each, or None if onnxruntime refuses it.

    Raises
    ------
    VerificationError
        onnxruntime ended or took too long.
    """
    jobs = [ModelRun(model.SerializeToString(), given, names) for model, given, names in runs]
    size = sum(len(job.model) for job in jobs)
    results = _run(jobs, size, 0)
    return [None if isinstance(each, str) else each for each in results]


def run_by_evaluator(model: ModelProto, inputs: Values, names: Sequence[str]) -> Values | None:
    """Run a small model by ONNX's reference evaluator; None: it cannot, or not within its limits.

    It is written in Python: a convolution may take it hours, so its time is bounded by the size of
    the model and its inputs.
    """
    content = model.SerializeToString()
    try:
        (values,) = run_models(
            [ModelRun(content, inputs, names)], len(content), 0, is_evaluated=True
        )
    except FrontendError:
        return None
    return None if isinstance(values, str) else values


def _only(runs: Sequence[ModelRun], num_bytes: int, flops: int) -> Values:
    (values,) = _run(runs, num_bytes, flops)
    if isinstance(values, str):
        raise VerificationError(f"onnxruntime cannot run the model: {values}")
    return values


def _run(runs: Sequence[ModelRun], num_bytes: int, flops: int) -> list[dict[str, np.ndarray] | str]:
    try:
        return run_models(runs, num_bytes, flops)
    except FrontendError as fault:
        raise VerificationError(str(fault)) from fault
