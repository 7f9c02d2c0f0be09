"""An ONNX model -> what a C++ library makes of it in a process of its own, or an error.

A process takes 0.15 s; in exchange no file can end the one that reads it (`onnx_child.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, helper, numpy_helper

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.prepare import onnx_child
from heteroplace.relay.limits import num_elements

Buffer = bytes | memoryview
MAX_MODEL_BYTES = 2**30
"""A serialised model cannot pass 2 GiB, and folding makes it larger."""
_MAX_SHAPE_ELEMENTS = 1024
"""Initialisers up to this size may be shapes, and are looked into by inference."""
_BYTES, _BYTES_PER_MODEL_BYTE = 4 * 2**30, 8
_SECONDS, _MODEL_BYTES_PER_SECOND = 20, 2**21
_FLOPS_PER_SECOND = 10**8
"""What the process may take, and how much more for the size of the model, and for the arithmetic of
a run; a ResNet-50 takes 1 s."""


class RefusedModelError(FrontendError):
    """A library refuses a model; the text is its reason."""


def run_on_model(command: str, content: bytes) -> ModelProto:
    """Return what a command of `onnx_child` makes of a model.

    Parameters
    ----------
    command
        See `onnx_child`.
    content
        The serialised model, of at most `MAX_MODEL_BYTES`.

    Raises
    ------
    RefusedModelError
        The library raised an error.
    FrontendError
        The process was killed, by the model or by its limits.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.onnx"
        with _in_memory([content]) as (path,):
            _run(command, path, result, len(content))
        try:
            return onnx.load(result, format="protobuf")
        except (DecodeError, OSError) as err:
            raise RefusedModelError(f"its result cannot be read: {err}") from err


def evaluate(model: ModelProto) -> np.ndarray | None:
    """Return the output of a model that has no inputs, by ONNX's reference; None: it has none.

    Raises
    ------
    FrontendError
        It takes too long, or too much memory.
    """
    try:
        (value,) = run_on_model("evaluate", model.SerializeToString()).graph.initializer
    except RefusedModelError:
        return None
    array: np.ndarray = numpy_helper.to_array(value)
    return array


@dataclass(frozen=True)
class ModelRun:
    """One run of a model by onnxruntime, as it stands."""

    model: str | Buffer
    """Path, or the serialised model."""
    inputs: Mapping[str, np.ndarray]
    names: Sequence[str] | None = None
    """Of the outputs that are asked for; None: all that are tensors of numbers."""


def run_models(
    runs: Sequence[ModelRun], num_bytes: int, flops: int, *, is_evaluated: bool = False
) -> list[dict[str, np.ndarray] | str]:
    """Run models by onnxruntime; return for each its outputs by name, or why there are none.

    Parameters
    ----------
    num_bytes
        Size of the models, with their weights in other files.
    flops
        Of all runs, for the limit of time.
    is_evaluated
        By ONNX's reference evaluator instead; runs name their outputs then.

    Raises
    ------
    FrontendError
        As `run_on_model`.
    """
    contents = [run.model for run in runs if not isinstance(run.model, str)]
    with tempfile.TemporaryDirectory() as name, _in_memory(contents) as paths:
        folder, written = Path(name), iter(paths)
        jobs: list[dict[str, Any]] = []
        for index, run in enumerate(runs):
            path = run.model if isinstance(run.model, str) else next(written)
            inputs = {}
            for position, (given, array) in enumerate(run.inputs.items()):
                inputs[given] = str(folder / f"{index}.in.{position}.npy")
                np.save(inputs[given], array)
            names = None if run.names is None else list(run.names)
            outputs = str(folder / f"{index}.out")
            jobs.append({"model": path, "inputs": inputs, "names": names, "outputs": outputs})
            num_bytes += sum(array.nbytes for array in run.inputs.values())
        (folder / "runs.json").write_text(json.dumps(jobs))
        runs_path, result = str(folder / "runs.json"), folder / "result.json"
        command = "run-evaluator" if is_evaluated else "run"
        _run(command, runs_path, result, num_bytes, flops)
        answers = json.loads(result.read_text())
        return [_outputs(job["outputs"], answer) for job, answer in zip(jobs, answers, strict=True)]


def _outputs(path: str, answer: Mapping[str, Any]) -> dict[str, np.ndarray] | str:
    if "reason" in answer:
        return str(answer["reason"])
    return {name: np.load(f"{path}.{index}.npy") for index, name in enumerate(answer["names"])}


def infer_shapes(model: ModelProto) -> ModelProto:
    """Return a copy of `model` with the types of its values, as ONNX's shape inference has them.

    Raises
    ------
    FrontendError
        As `run_on_model`.
    """
    return _without_weights("infer", model)


def inline_functions(model: ModelProto) -> ModelProto:
    """Return a copy of `model` with its functions in place of their calls.

    Raises
    ------
    FrontendError
        As `run_on_model`.
    """
    return _without_weights("inline", model)


def _without_weights(command: str, model: ModelProto) -> ModelProto:
    """Run a command on a model whose large initialisers need not travel."""
    large = {each.name for each in model.graph.initializer if _is_large(each)}
    content: bytes = with_inputs_for(model, large).SerializeToString()
    result = run_on_model(command, content)
    # All come back in their order; definitions may have added others.
    names = {tensor.name for tensor in model.graph.initializer}
    added = [tensor for tensor in result.graph.initializer if tensor.name not in names]
    return with_initialisers(result, large, [*model.graph.initializer, *added])


def with_inputs_for(model: ModelProto, names: Collection[str]) -> ModelProto:
    """Return a copy of a model in which the initialisers of these names are inputs."""
    copy, source = ModelProto(ir_version=max(model.ir_version, 4)), model.graph
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    graph = copy.graph
    graph.name = source.name
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(graph, field).extend(getattr(source, field))
    for tensor in source.initializer:
        if tensor.name in names:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(value)
        else:
            graph.initializer.append(tensor)
    return copy


def with_initialisers(
    model: ModelProto, names: Collection[str], initialisers: Iterable[TensorProto]
) -> ModelProto:
    """Return a copy of a model with these initialisers alone, and without the inputs `names`."""
    result = ModelProto(ir_version=model.ir_version)
    result.opset_import.extend(model.opset_import)
    result.functions.extend(model.functions)
    result.graph.name = model.graph.name
    for field in ("node", "output", "value_info", "sparse_initializer"):
        getattr(result.graph, field).extend(getattr(model.graph, field))
    result.graph.input.extend(value for value in model.graph.input if value.name not in names)
    result.graph.initializer.extend(initialisers)
    return result


def _is_large(tensor: TensorProto) -> bool:
    return num_elements(tensor.dims) > _MAX_SHAPE_ELEMENTS


@contextmanager
def _in_memory(contents: Sequence[Buffer]) -> Iterator[list[str]]:
    """Paths under which processes started meanwhile find some bytes, which are on no disk."""
    files: list[int] = []
    try:
        for content in contents:
            files.append(os.memfd_create("model"))
            os.set_inheritable(files[-1], True)
            with open(files[-1], "wb", closefd=False) as file:
                file.write(content)
        yield [f"/proc/self/fd/{opened}" for opened in files]
    finally:
        for opened in files:
            os.close(opened)


def _run(command: str, path: str, result: Path, num_bytes: int, flops: int = 0) -> None:
    """Let the other process run a command on a file; raise as `run_on_model` does."""
    seconds = _SECONDS + num_bytes // _MODEL_BYTES_PER_SECOND + flops // _FLOPS_PER_SECOND
    limits = _BYTES + _BYTES_PER_MODEL_BYTE * num_bytes, seconds
    # It shall find the packages that this process has found, however that was told where they are.
    packages = os.pathsep.join(entry for entry in sys.path if entry)
    # With these, `site` (-S) has nothing to add, and takes a tenth of the start.
    program = [sys.executable, "-S", onnx_child.__file__, command, path, str(result)]
    done = subprocess.run(
        [*program, *map(str, limits)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        close_fds=False,
        env={**os.environ, "PYTHONPATH": packages},
    )
    if done.returncode == onnx_child.REFUSED:
        raise RefusedModelError(done.stdout.strip() or _last_line(done.stderr))
    if done.returncode != 0:
        library = "onnxruntime" if command in ("simplify", "run") else "onnx"
        raise FrontendError(
            f"{library} {_ending(done)} on the model ({command}): the model is damaged, or "
            f"meets a fault of {library}. Check it by onnx.checker, or export it again"
        )


def _ending(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return "took too long, or too much memory,"
    if done.returncode < 0:
        return f"was killed by {signal.Signals(-done.returncode).name}"
    return f"failed ({_last_line(done.stderr)})"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]
