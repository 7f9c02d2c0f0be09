"""`run --precision`: networks in float32, bfloat16 and as far as the error allows, beside runtimes.

Ours is the device of all cores, so that only kernels differ. Everything runs in turns in one
process, each call from arrays to arrays. OpenVINO runs in its default precision and in float32, MNN
in its modes "high" (float32) and "low".
Errors are the largest difference of an output from onnxruntime's, over its largest value. That of
`auto` is the largest over seeded inputs that its choice did not see, from ours in float32.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import geometric_mean

import numpy as np
import tvm

import heteroplace
from benchmarks.differences import relative_difference
from benchmarks.row_table import row_table
from benchmarks.run.comparison import call_timers, widest_cpu
from heteroplace.errors import FrontendError
from heteroplace.lower.executable import Executable
from heteroplace.measure.timed_runs import time_in_turns
from heteroplace.model.cluster import Cluster
from heteroplace.model.implementations import BFLOAT16, maker_of
from heteroplace.parts.onnx.peer_runtimes import (
    MnnExecutor,
    OnnxExecutor,
    OpenVinoExecutor,
    RuntimeExecutor,
)
from heteroplace.progress import prefixed
from heteroplace.relay.ranges.array_intervals import legal_arrays
from heteroplace.relay.targets import multiplies_bfloat16
from heteroplace.run.executor import Executor
from zoo.models.catalogue import Model, load_model, matching_names

NETWORKS = (
    *("resnet50", "bert_base", "mobilenet_v3_large", "efficientnet_b0", "vit_b_16", "gpt2"),
    *("inception_v2", "convnext_tiny"),
)
MAX_ERROR = 0.01
"""Of `auto`."""
_UNSEEN = range(100, 110)
"""Seeds of inputs."""
_PEERS: Mapping[str, tuple[str, Callable[..., RuntimeExecutor]]] = {
    "onnxruntime": ("onnxruntime", OnnxExecutor),
    "openvino": ("openvino", partial(OpenVinoExecutor, hint=None)),
    "openvino_float32": ("openvino", OpenVinoExecutor),
    "mnn_float32": ("MNN", MnnExecutor),
    "mnn_low": ("MNN", partial(MnnExecutor, mode="low")),
}
"""Packages and makers by name."""
_RATIOS = (
    ("bf16", "float32"),
    ("bf16", "openvino"),
    ("bf16", "onnxruntime"),
    ("bf16", "mnn_low"),
    ("float32", "openvino_float32"),
    ("float32", "mnn_float32"),
    ("auto", "float32"),
)
"""What is divided by what: medians of the ratios of rounds."""


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    cluster = widest_cpu()
    target = tvm.target.Target(cluster.devices[0].target)
    precisions = ("float32", "bf16", "auto") if multiplies_bfloat16(target) else ("float32",)
    if len(precisions) == 1:
        say(f"target {cluster.devices[0].target!r} has no AVX512-BF16: float32 alone is measured")
    for name in matching_names(only, NETWORKS):
        yield _row(load_model(name), cluster, precisions, prefixed(say, name))


def _row(
    model: Model, cluster: Cluster, precisions: tuple[str, ...], say: Callable[[str], None]
) -> dict[str, object]:
    """Measure one network; times in ms."""
    executables = {}
    for precision in precisions:
        say(f"compiling in {precision}")
        executables[precision] = _compiled(model, cluster, precision)
    ours = {name: Executor(executable) for name, executable in executables.items()}
    cores = cluster.devices[0].cores
    peers, faults = _peers(model, cores)
    for fault in faults.values():
        say(fault)
    say("measuring")
    timed = time_in_turns(call_timers(ours, peers, model.inputs))
    row: dict[str, object] = {"name": model.name, "others_cores": timed.median_others_cores}
    row |= {f"{name}_ms": round(timed.median_ns(name) / 1e6, 4) for name in (*ours, *peers)}
    row |= {f"{name}_fault": fault for name, fault in faults.items()}
    for name, other in _RATIOS:
        if {name, other} <= timed.turns.keys():
            row[f"{name}_to_{other}"] = round(timed.ratio(name, other), 3)
    outputs = {name: executor.run(model.inputs) for name, executor in ours.items()}
    outputs |= {name: peer.run() for name, peer in peers.items()}
    for name in {"float32", "bf16", "openvino", "mnn_float32", "mnn_low"} & outputs.keys():
        if "onnxruntime" in peers:
            row[f"{name}_error"] = relative_difference(outputs[name], outputs["onnxruntime"])
    if "openvino" in peers:
        row["openvino_precision"] = peers["openvino"].precision or "f32"
    if "auto" in ours:
        row |= _of_auto(executables, ours)
    for peer in peers.values():
        peer.close()
    return row


def _peers(model: Model, cores: Sequence[int]) -> tuple[dict[str, RuntimeExecutor], dict[str, str]]:
    """The installed runtimes that can load a model and run it, and why the others cannot."""
    peers: dict[str, RuntimeExecutor] = {}
    faults: dict[str, str] = {}
    for name, (package, make) in _PEERS.items():
        if importlib.util.find_spec(package) is None:
            continue
        try:
            peers[name] = make(model.onnx_model, model.inputs, cores)
        except FrontendError as fault:
            faults[name] = str(fault)
    return peers, faults


def _compiled(model: Model, cluster: Cluster, precision: str) -> Executable:
    """Kernels are measured where there is a choice; errors are looked at here."""
    costs = "measure" if precision == "auto" else "estimate"
    return heteroplace.compile(
        model.mod,
        cluster,
        params=model.params,
        precision=precision,
        max_error=MAX_ERROR,
        costs=costs,
        verify="off",
    )


def _of_auto(
    executables: Mapping[str, Executable], ours: Mapping[str, Executor]
) -> dict[str, object]:
    """How far `auto` is off on inputs that its choice did not see, and how much it chose."""
    source = executables["float32"].source
    assert source is not None  # it was compiled here
    worst = 0.0
    for seed in _UNSEEN:
        inputs = legal_arrays(source.mod["main"], seed)
        pair = [[np.copy(each) for each in ours[name].run(inputs)] for name in ("auto", "float32")]
        worst = max(worst, relative_difference(*pair))
    solution = executables["auto"].solution
    placement = solution.plan.placement(len(solution.graph.tasks))
    makers = [maker_of(solution.cluster.devices[device].name) for device in placement]
    return {"auto_error": worst, "auto_tasks": makers.count(BFLOAT16)}


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text, and geometric means."""
    columns = {
        "name": "network",
        "float32_ms": "float32",
        "bf16_ms": "bf16",
        "auto_ms": "auto",
        "openvino_ms": "OpenVINO",
        "openvino_precision": "in",
        "openvino_float32_ms": "OpenVINO f32",
        "mnn_low_ms": "MNN low",
        "mnn_float32_ms": "MNN f32",
        "onnxruntime_ms": "onnxruntime",
        "bf16_to_float32": "bf16 / float32",
        "bf16_to_openvino": "bf16 / OpenVINO",
        "bf16_to_mnn_low": "bf16 / MNN low",
        "float32_to_openvino_float32": "float32 / OpenVINO f32",
        "float32_to_mnn_float32": "float32 / MNN f32",
        "bf16_error": "error, bf16",
        "auto_error": "auto",
        "auto_tasks": "tasks",
        "openvino_error": "OpenVINO",
        "mnn_low_error": "MNN low",
        "others_cores": "busy cores",
    }
    lines = [row_table(rows, columns)]
    for key, text in (
        ("bf16_to_float32", "bf16 / float32"),
        ("bf16_to_openvino", "bf16 / OpenVINO in its default precision"),
        ("bf16_to_onnxruntime", "bf16 / onnxruntime in float32"),
        ("bf16_to_mnn_low", "bf16 / MNN in its low precision"),
        ("float32_to_openvino_float32", "float32 / OpenVINO in float32"),
        ("float32_to_mnn_float32", "float32 / MNN in float32"),
    ):
        ratios = [float(str(row[key])) for row in rows if row.get(key) is not None]
        if ratios:
            lines.append(f"{text}: {geometric_mean(ratios):.3f}, at worst {max(ratios):.3f}")
    lines += [
        f"{row['name']}: {row[key]}"
        for row in rows
        for key in ("mnn_float32_fault", "mnn_low_fault")
        if row.get(key) is not None
    ]
    return "\n".join(lines)
