"""`run --few-bits`: decoder layers with weights of 4 and 8 bits, beside memory and onnxruntime.

All cores compute one token. Each weight is read once, so memory sets the limit. The share is the
bytes read per second (weights as they are held, keys and values) over what the same cores read per
second from arrays that no cache holds. Ours runs with activations in float32, and with
`precision="int8"`, which rounds them to 8 bits. So does onnxruntime, with `accuracy_level` 1 and 4.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import onnx
import tvm

import heteroplace
from benchmarks.differences import relative_difference
from benchmarks.row_table import row_table
from benchmarks.run.comparison import call_timers, widest_cpu
from heteroplace.measure.timed_runs import on_cores, time_in_turns, time_runs
from heteroplace.model.cluster import Cluster
from heteroplace.parts.onnx.peer_runtimes import OnnxExecutor
from heteroplace.progress import prefixed
from heteroplace.relay.targets import multiplies_integers
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
    can_round = multiplies_integers(tvm.target.Target(cluster.devices[0].target))
    executables = {
        f"ours{suffix}": heteroplace.compile(
            model.mod,
            cluster,
            params=model.params,
            costs="estimate",
            verify="off",
            precision=precision,
        )
        for suffix, precision in (("", "float32"), ("_int8", "int8"))[: 1 + can_round]
    }
    peers = {}
    if importlib.util.find_spec("onnxruntime") is not None:
        for level in (1, 4):
            peer = OnnxExecutor(_at_level(onnx_model, level), model.inputs, cores)
            peers[f"onnxruntime_{level}"] = peer
    say("measuring")
    ours = {name: Executor(executable) for name, executable in executables.items()}
    timed = time_in_turns(calls := call_timers(ours, peers, model.inputs))
    outputs = {
        name: [np.copy(out) for out in each.run(model.inputs)] for name, each in ours.items()
    }
    read_bytes = sum(use.weights_bytes for use in executables["ours"].memory)
    read_bytes += sum(each.nbytes for each in model.inputs.values())
    memory_speed = _memory_bytes_per_ns(cores)
    row: dict[str, object] = {"name": name, "others_cores": timed.median_others_cores}
    row |= {f"{each}_ms": round(timed.median_ns(each) / 1e6, 4) for each in calls}
    row |= {"read_mb": round(read_bytes / 1e6, 1), "memory_gb_per_s": round(memory_speed, 2)}
    for each in ours:
        speed = read_bytes / timed.median_ns(each)
        row |= {
            f"{each}_gb_per_s": round(speed, 2),
            f"{each}_share": round(speed / memory_speed, 3),
        }
    if can_round:
        row["ours_int8_difference"] = relative_difference(outputs["ours_int8"], outputs["ours"])
        if "onnxruntime_4" in peers:
            row["ours_int8_to_onnxruntime_4"] = round(timed.ratio("ours_int8", "onnxruntime_4"), 3)
    for each, peer in peers.items():
        row[f"ours_to_{each}"] = round(timed.ratio("ours", each), 3)
        row[f"{each}_difference"] = relative_difference(peer.run(), outputs["ours"])
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
        "ours_int8_ms": "ours, int8",
        "onnxruntime_1_ms": "onnxruntime",
        "onnxruntime_4_ms": "level 4",
        "ours_to_onnxruntime_1": "ours / onnxruntime",
        "ours_to_onnxruntime_4": "/ level 4",
        "ours_int8_to_onnxruntime_4": "int8 / level 4",
        "read_mb": "MB read",
        "ours_gb_per_s": "GB/s",
        "ours_int8_gb_per_s": "int8",
        "memory_gb_per_s": "memory GB/s",
        "ours_share": "share",
        "ours_int8_share": "int8",
        "ours_int8_difference": "difference, int8",
        "onnxruntime_1_difference": "difference",
        "onnxruntime_4_difference": "of level 4",
        "others_cores": "busy cores",
    }
    return row_table(rows, columns)
