"""`benchmarks workloads`: decoders over a CPU and a GPU, against the splits that others make.

Each decoder has two entries, a token and 64 tokens of a prompt; the workload is a prompt of 512
tokens and 128 tokens of an answer. The GPU's memory is limited to ten parts of the weights. All
placements are simulated with the same estimated costs, and with the memory rule of the plans:

- llama.cpp's `-ngl N`: the last N layers on the GPU, with the head if all fit;
- accelerate's `device_map`: the first N layers on the GPU, from the embedding on;
- llama.cpp's `--n-cpu-moe N`: all but the experts of the first N layers on the GPU.

Each of these has the best N that fits.
"""

from __future__ import annotations

import re
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from benchmarks.row_table import row_table
from heteroplace.files.cluster_file import load_cluster
from heteroplace.model_entries import model_entries
from heteroplace.model_network import GivenSizes
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.pipeline.workload_stages import costed_workload
from heteroplace.progress import prefixed
from heteroplace.solve.problem import SolveOptions
from heteroplace.solve.workload.solve_workload import WorkloadResult, solve_workload
from heteroplace.solve.workload.workload import Workload
from heteroplace.solve.workload.workload_search import Sites
from heteroplace.solve.workload.workload_state import WorkloadTimes
from zoo.mixtral import MixtralSizes, mixtral, tiny_sizes
from zoo.models.catalogue import SMALLEST, matching_names
from zoo.smollm2 import smollm2

_CLUSTER = "cpu-one-gpu"
_GPU, _RAM = 1, 0
"""Memories of the cluster."""
_SHARES = tuple(tenth / 10 for tenth in range(1, 11))
_ROWS = {"token": 1, "prompt": 64}
_CALLS = {"token": 128, "prompt": 8}
_CAPACITY = 640
_TIME_LIMIT_S = 20.0
_NODE = re.compile(r"([A-Za-z]+)_(\d+)")
"""Of the name of an op: what the node of the model is, and its number."""

_Rank = Callable[[int, bool], float]
"""Of a task by its layer, and by whether it is of an expert: the highest go to the GPU first."""


@dataclass(frozen=True)
class _Model:
    make: Callable[[], onnx.ModelProto]
    capacity: int = _CAPACITY
    shares: tuple[float, ...] = _SHARES
    time_limit_s: float = _TIME_LIMIT_S


def _many_experts() -> MixtralSizes:
    """Four times as many experts of a quarter of the size, of which twice as many are chosen."""
    return replace(MixtralSizes(), inner=448, experts=32, chosen=4)


_MODELS: Mapping[str, _Model] = {
    SMALLEST: _Model(lambda: mixtral(tiny_sizes()), 64, (0.5,), 1.0),
    "smollm2-135m": _Model(lambda: smollm2(weights="float32")),
    "experts-8": _Model(mixtral),
    "experts-32": _Model(lambda: mixtral(_many_experts())),
}


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Place the models whose name matches the regular expression `only`; yield the rows."""
    for name in matching_names(only, tuple(name for name in _MODELS if name != SMALLEST)):
        model = _MODELS[name]
        whole = _costed(model, prefixed(say, name))
        total = whole.all_weight_bytes
        ours: WorkloadResult | None = None
        for share in model.shares:
            workload = whole.with_memory(_GPU, round(share * total))
            say(f"{name}: {share:.0%} of the weights on the GPU")
            options = SolveOptions(time_limit_s=model.time_limit_s)
            # What fits a smaller memory fits a larger one.
            ours = solve_workload(workload, options, earlier=ours)
            yield {"name": name, "share": share, **_row(workload, ours)}


def _costed(model: _Model, say: Callable[[str], None]) -> Workload:
    """The entries of a model with estimated costs, without a memory limit."""
    cluster = load_cluster(_CLUSTER)
    sizes = {"batch_size": 1, "past_sequence_length": model.capacity}
    sizes["total_sequence_length"] = model.capacity
    entries = {name: {"sequence_length": rows} for name, rows in _ROWS.items()}
    options = {"costs": "estimate", "state": "auto"}
    say("importing")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model.make(), path)
        given = GivenSizes(None, None, None, sizes)
        modules = model_entries(path, cluster, entries, _CALLS, given, options).modules
    say("estimating")
    return costed_workload(modules, cluster)


def _row(workload: Workload, ours: WorkloadResult) -> dict[str, object]:
    """Times of the whole workload in ms."""
    times = WorkloadTimes(workload)
    rules = {
        "llama_cpp": _best(times, _last_layers(times)),
        "device_map": _best(times, lambda layer, _: -layer),
        "n_cpu_moe": _best(times, lambda layer, is_expert: layer if is_expert else np.inf),
    }
    cpu_ns = times.value(_placed(times, lambda *_: 0, 1)).objective_ns
    others = [ns for ns in rules.values() if ns is not None]
    best_ns = min([*others, cpu_ns])
    return {
        "gpu_mb": round(workload.memory_bytes[_GPU] / 1e6),
        "cpu_ms": round(cpu_ns / 1e6, 1),
        **{f"{rule}_ms": None if ns is None else round(ns / 1e6, 1) for rule, ns in rules.items()},
        "ours_ms": round(ours.objective_ns / 1e6, 1),
        "bound_ms": round(ours.bound_ns / 1e6, 1),
        "gain": round(best_ns / ours.objective_ns, 3),
        "gap": round(ours.gap, 3),
        "gpu_weights_mb": round(ours.weight_bytes[_GPU] / 1e6),
        "wall_s": round(ours.wall_s, 1),
    }


def _best(times: WorkloadTimes, rank: _Rank) -> int | None:
    """The least time of the placements that have all tasks of some rank or a higher one on the GPU,
    in ns; None: none fits."""
    ranks = sorted({rank(layer, is_expert) for own in _layers(times) for layer, is_expert in own})
    best: int | None = None
    for least in ranks:
        value = times.value(_placed(times, rank, least))
        if value.excess_bytes == 0:
            best = min(value.objective_ns, best or value.objective_ns)
    return best


def _last_layers(times: WorkloadTimes) -> _Rank:
    """The last layers come first, then the head, and at last the embedding."""
    head = max(layer for own in _layers(times) for layer, _ in own)
    return lambda layer, _: -0.5 if layer == head else layer


def _placed(times: WorkloadTimes, rank: _Rank, least: float) -> Sites:
    """All tasks of a rank of `least` or higher on the GPU."""
    sites = []
    for each, own in zip(times.entries, _layers(times), strict=True):
        on_gpu = [_GPU if rank(*task) >= least else _RAM for task in own]
        sites.append(_possible(each.devices, np.array(on_gpu, dtype=np.int64)))
    return tuple(sites)


def _possible(devices: IntArray, memories: IntArray) -> IntArray:
    """Tasks that cannot run in a memory are in the other one."""
    can = devices[np.arange(len(memories)), memories] != IMPOSSIBLE
    possible: IntArray = np.where(can, memories, _GPU + _RAM - memories)
    return possible


def _layers(times: WorkloadTimes) -> list[list[tuple[int, bool]]]:
    """For each entry and task its layer, and whether it is of an expert.

    -1: it comes before the first layer; tasks after the last one are of a further layer. A layer
    has one attention, and begins with the norm before it. Tasks without a node of the model are of
    the layer of the task before.
    """
    result = []
    for each in times.entries:
        tasks = each.entry.problem.graph.tasks
        nodes = [_NODE.findall(" ".join(task.members)) for task in tasks]
        starts = _layer_starts([node for own in nodes for node in own])
        layers, latest = [], -1
        for own in nodes:
            number = max((int(number) for _, number in own), default=-1)
            latest = max(latest, bisect_right(starts, number) - 1)
            layers.append((latest, any(kind == "MoE" for kind, _ in own)))
        result.append(layers)
    return result


def _layer_starts(nodes: Collection[tuple[str, str]]) -> list[int]:
    """The number of the first node of each layer, and of the head."""
    attentions = sorted({int(n) for kind, n in nodes if kind == "GroupQueryAttention"})
    first_norm = min(int(n) for kind, n in nodes if kind == "SimplifiedLayerNormalization")
    starts = [number - attentions[0] + first_norm for number in attentions]
    return [*starts, 2 * starts[-1] - starts[-2]]


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text."""
    columns = {
        "name": "model",
        "share": "GPU / weights",
        "cpu_ms": "CPU alone",
        "llama_cpp_ms": "-ngl",
        "device_map_ms": "device_map",
        "n_cpu_moe_ms": "--n-cpu-moe",
        "ours_ms": "ours",
        "bound_ms": "bound",
        "gain": "best of them / ours",
        "gap": "gap",
        "wall_s": "seconds to place",
    }
    return row_table(rows, columns)
