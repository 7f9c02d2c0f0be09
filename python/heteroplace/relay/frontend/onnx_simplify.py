"""An ONNX model -> a smaller equal one, by onnxruntime's offline optimisation.

Level BASIC folds constants, removes shape arithmetic and fuses batch norms into convolutions, all
within ONNX's own ops. Exports of swin transformers shrink to a tenth, and TVM's importer gets the
numbers of some of them wrong without it.

It runs in a process of its own (`onnx_child.py`), since a damaged or hostile model can kill it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto

from heteroplace.errors import FrontendError
from heteroplace.relay.frontend import onnx_child

_ONNX_DOMAINS = ("", "ai.onnx")
_MAX_MODEL_BYTES = 2**30
"""A serialised model cannot pass 2 GiB, and folding makes it larger."""
_CHILD_BYTES, _BYTES_PER_MODEL_BYTE = 4 * 2**30, 8
_CHILD_SECONDS, _MODEL_BYTES_PER_SECOND = 60, 2**21
"""What the process may take, and how much more for the size of the model; a ResNet-50 takes 1 s."""


def simplify_offline(model: ModelProto, where: str) -> tuple[ModelProto, list[str]]:
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
    num_bytes = model.ByteSize()
    if num_bytes > _MAX_MODEL_BYTES:
        return model, ["not simplified: the model is too large to be passed to onnxruntime"]
    with tempfile.TemporaryDirectory() as folder:
        path, result = Path(folder) / "model.onnx", Path(folder) / "simplified.onnx"
        path.write_bytes(model.SerializeToString())
        done = _run_child(path, result, num_bytes)
        if done.returncode == onnx_child.REFUSED:
            return model, [f"not simplified: onnxruntime refused it: {done.stdout.strip()}"]
        if done.returncode != 0:
            raise FrontendError(
                f"{where}: onnxruntime {_ending(done)} while it simplified the model. The model "
                f"is damaged, or meets a fault of onnxruntime; simplify=False goes without it."
            )
        try:
            simplified = onnx.load(result)
        except (DecodeError, OSError) as err:
            return model, [f"not simplified: onnxruntime's result cannot be read: {err}"]
    foreign = _domains(simplified) - _domains(model)
    if foreign:
        return model, [f"not simplified: onnxruntime put in ops of {', '.join(sorted(foreign))}"]
    before, after = len(model.graph.node), len(simplified.graph.node)
    return simplified, [f"onnxruntime (BASIC) simplified {before} nodes to {after}"]


def _run_child(path: Path, result: Path, num_bytes: int) -> subprocess.CompletedProcess[str]:
    limits = (
        _CHILD_BYTES + _BYTES_PER_MODEL_BYTE * num_bytes,
        _CHILD_SECONDS + num_bytes // _MODEL_BYTES_PER_SECOND,
    )
    # It shall find the packages that this process has found, however that was told where they are.
    packages = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, onnx_child.__file__, str(path), str(result), *map(str, limits)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env={**os.environ, "PYTHONPATH": packages},
    )


def _ending(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return "took too long, or too much memory,"
    if done.returncode < 0:
        return f"was killed by {signal.Signals(-done.returncode).name}"
    said = done.stderr.strip().splitlines() or ["no reason given"]
    return f"failed ({said[-1]})"


def _domains(model: ModelProto) -> set[str]:
    return {node.domain for node in model.graph.node if node.domain not in _ONNX_DOMAINS}
