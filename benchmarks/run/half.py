"""`run --half`: networks in float16 and bfloat16, against float32, beside onnxruntime.

Ours is the device of all cores and computes in float32; only what weights take differs. Everything
runs in turns in one process, each call from arrays to arrays. onnxruntime runs in float32, and in
float16, in which its products are then computed; it has no bfloat16 for CPUs. The difference is
that from the same network with the same weights in four bytes. The error is that from onnxruntime
in float32, by the largest value of an output: what half precision of the weights costs.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

import heteroplace
from benchmarks.differences import relative_difference
from benchmarks.row_table import row_table
from benchmarks.run.comparison import call_timers, widest_cpu
from heteroplace import frontend
from heteroplace.lower.executable import Executable
from heteroplace.measure.timed_runs import time_in_turns
from heteroplace.model.cluster import Cluster
from heteroplace.parts.onnx.peer_runtimes import OnnxExecutor
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from zoo.models.catalogue import (
    SMALLEST,
    import_model,
    load_model,
    matching_names,
    onnx_model_of,
)
from zoo.models.few_bits import decoder_layers
from zoo.models.low_precision import in_half, widened

_DECODERS: Mapping[str, Mapping[str, int]] = {
    "decoder": {"hidden": 1024, "inner": 2816, "layers": 4},
    SMALLEST: {"hidden": 256, "inner": 256, "layers": 1},
}
_NETWORKS = ("bert_base", "gpt2", "decoder")
_HALVES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    cluster = widest_cpu()
    for name in matching_names(only, _NETWORKS):
        yield _row(name, cluster, prefixed(say, name))


def _row(name: str, cluster: Cluster, say: Callable[[str], None]) -> dict[str, object]:
    """Measure one network; times in ms."""
    if name in _DECODERS:
        onnx_model = decoder_layers(bits=32, **_DECODERS[name])
        model = import_model(name, onnx_model)
    else:
        onnx_model, model = onnx_model_of(name), load_model(name)
    halves = {each: in_half(onnx_model, kind) for each, kind in _HALVES.items()}
    models = {"float32": onnx_model, **halves}
    inputs = {key: _in_both(array) for key, array in model.inputs.items()}
    executables = {}
    for each, network in models.items():
        say(f"compiling in {each}")
        executables[each] = _compiled(network, cluster)
    ours = {each: Executor(executable) for each, executable in executables.items()}
    cores = cluster.devices[0].cores
    peers = {}
    if importlib.util.find_spec("onnxruntime") is not None:
        peers["onnxruntime"] = OnnxExecutor(onnx_model, inputs, cores)
        peers["onnxruntime_float16"] = OnnxExecutor(halves["float16"], inputs, cores)
    say("measuring")
    calls = call_timers(ours, peers, inputs)
    timed = time_in_turns(calls)
    row: dict[str, object] = {"name": name, "others_cores": timed.median_others_cores}
    row |= {f"{each}_ms": round(timed.median_ns(each) / 1e6, 4) for each in calls}
    outputs = {each: [np.copy(one) for one in ours[each].run(inputs)] for each in ours}
    reference = peers["onnxruntime"].run() if peers else None
    for each in models:
        row[f"{each}_mb"] = round(_held_bytes(executables[each]) / 1e6, 1)
        row[f"{each}_file_mb"] = round(_file_bytes(executables[each]) / 1e6, 1)
        if reference is not None:
            row[f"{each}_error"] = relative_difference(outputs[each], reference)
    for each, half in halves.items():
        row[f"{each}_to_float32"] = round(timed.ratio(each, "float32"), 3)
        say(f"compiling what {each} holds in float32")
        wide = _compiled(widened(half), cluster)
        with Executor(wide) as executor:
            row[f"{each}_difference"] = relative_difference(outputs[each], executor.run(inputs))
    for peer in peers.values():
        peer.close()
    return row


def _in_both(array: np.ndarray) -> np.ndarray:
    """Inputs that float16 and bfloat16 hold exactly, so that their casts change nothing."""
    if array.dtype != np.float32:
        return array
    return np.round(array * 64).clip(-127, 127).astype(np.float32) / 64


def _compiled(model: onnx.ModelProto, cluster: Cluster) -> Executable:
    imported = frontend.from_onnx(model)
    return heteroplace.compile(
        imported.mod, cluster, params=imported.params, costs="estimate", verify="off"
    )


def _held_bytes(executable: Executable) -> int:
    """What weights take in memory."""
    return sum(use.weights_bytes for use in executable.memory)


def _file_bytes(executable: Executable) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.so"
        executable.export_library(path)
        return path.stat().st_size


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text."""
    columns = {
        "name": "network",
        "float32_ms": "float32",
        "float16_ms": "float16",
        "bfloat16_ms": "bfloat16",
        "float16_to_float32": "float16 / float32",
        "bfloat16_to_float32": "bfloat16 / float32",
        "onnxruntime_ms": "onnxruntime",
        "onnxruntime_float16_ms": "in float16",
        "float32_mb": "MB, float32",
        "float16_mb": "float16",
        "bfloat16_mb": "bfloat16",
        "float32_file_mb": "file, float32",
        "float16_file_mb": "file, float16",
        "bfloat16_file_mb": "file, bfloat16",
        "float16_difference": "difference, float16",
        "bfloat16_difference": "bfloat16",
        "float32_error": "error, float32",
        "float16_error": "float16",
        "bfloat16_error": "bfloat16",
        "others_cores": "busy cores",
    }
    return row_table(rows, columns)
