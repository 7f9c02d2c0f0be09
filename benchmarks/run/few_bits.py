"""`run --few-bits`: decoder layers with weights of 4 and 8 bits, beside memory and onnxruntime.

All cores compute one token. Each weight is read once, so memory sets the limit. The share is the
bytes read per second (weights as they are held, keys and values) over what the same cores read per
second from arrays that no cache holds. onnxruntime runs with `accuracy_level` 1, float32 as we do,
and with 4, which rounds the activations to 8 bits.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import onnx

import heteroplace
from benchmarks.differences import relative_difference
from benchmarks.row_table import row_table
from benchmarks.run.comparison import call_timers, widest_cpu
from heteroplace.measure.timed_runs import on_cores, time_in_turns, time_runs
from heteroplace.model.cluster import Cluster
from heteroplace.parts.onnx.peer_runtimes import OnnxExecutor
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from zoo.models.catalogue import SMALLEST, import_model, matching_names
from zoo.models.few_bits import decoder_layers

_SIZES = {"hidden": 2048, "inner": 5632, "layers": 8}
_NETWORKS: dict[str, dict[str, int]] = {
    "decoder_4bit": {"bits": 4, **_SIZES},
    "decoder_8bit": {"bits": 8, **_SIZES},
    SMALLEST: {"bits": 4, "hidden": 256, "inner": 256, "layers": 1},
}
_STREAM_BYTES = 2**28
"""Of the array that each core reads."""


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    cluster = widest_cpu()
    names = [name for name in _NETWORKS if name != SMALLEST]
    for name in matching_names(only, names):
        yield _row(name, cluster, prefixed(say, name))


def _row(name: str, cluster: Cluster, say: Callable[[str], None]) -> dict[str, object]:
    """Measure one network; times in ms."""
    onnx_model = decoder_layers(**_NETWORKS[name])
    model = import_model(name, onnx_model)
    cores = cluster.devices[0].cores
    say("compiling")
    executable = heteroplace.compile(
        model.mod, cluster, params=model.params, costs="estimate", verify="off"
    )
    peers = {}
    if importlib.util.find_spec("onnxruntime") is not None:
        for level in (1, 4):
            peer = OnnxExecutor(_at_level(onnx_model, level), model.inputs, cores)
            peers[f"onnxruntime_{level}"] = peer
    say("measuring")
    with Executor(executable) as ours:
        calls = call_timers({"ours": ours}, peers, model.inputs)
        timed = time_in_turns(calls)
        outputs = [np.copy(each) for each in ours.run(model.inputs)]
    read_bytes = sum(use.weights_bytes for use in executable.memory)
    read_bytes += sum(each.nbytes for each in model.inputs.values())
    speed, memory_speed = read_bytes / timed.median_ns("ours"), _memory_bytes_per_ns(cores)
    row: dict[str, object] = {"name": name, "others_cores": timed.median_others_cores}
    row |= {f"{each}_ms": round(timed.median_ns(each) / 1e6, 4) for each in calls}
    row |= {
        "read_mb": round(read_bytes / 1e6, 1),
        "gb_per_s": round(speed, 2),
        "memory_gb_per_s": round(memory_speed, 2),
        "share": round(speed / memory_speed, 3),
    }
    for each, peer in peers.items():
        row[f"ours_to_{each}"] = round(timed.ratio("ours", each), 3)
        row[f"{each}_difference"] = relative_difference(peer.run(), outputs)
        peer.close()
    return row


def _at_level(model: onnx.ModelProto, level: int) -> onnx.ModelProto:
    """The model with what onnxruntime may round."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for node in changed.graph.node:
        if node.op_type == "MatMulNBits":
            node.attribute.append(onnx.helper.make_attribute("accuracy_level", level))
    return changed


def _memory_bytes_per_ns(cores: Sequence[int]) -> float:
    """What the cores read together, each from an array of its own."""
    arrays = [np.ones(_STREAM_BYTES // 4, "float32") for _ in cores]
    with ThreadPoolExecutor(len(cores)) as pool:
        read = partial(time_runs, lambda: list(pool.map(np.max, arrays)))
        timed = time_in_turns({"read": on_cores(read, cores)})
    return len(cores) * _STREAM_BYTES / timed.median_ns("read")


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text."""
    columns = {
        "name": "network",
        "ours_ms": "ours",
        "onnxruntime_1_ms": "onnxruntime",
        "onnxruntime_4_ms": "level 4",
        "ours_to_onnxruntime_1": "ours / onnxruntime",
        "ours_to_onnxruntime_4": "/ level 4",
        "read_mb": "MB read",
        "gb_per_s": "GB/s",
        "memory_gb_per_s": "memory GB/s",
        "share": "share",
        "onnxruntime_1_difference": "difference",
        "onnxruntime_4_difference": "of level 4",
        "others_cores": "busy cores",
    }
    return row_table(rows, columns)
