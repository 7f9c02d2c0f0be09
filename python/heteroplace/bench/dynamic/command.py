"""`bench dynamic`: networks with routers, specialised to traces of stated skew, against peers.

For each network and trace all variants run in turns, in one process, from arrays to arrays, over
the runs of the trace one after the other:

- ours: routers with the capacities of no profile ("default"), or what a pass makes of the trace's
  profile ("capacities": `ChooseCapacities`; "specialised": `Specialise`);
- dense: our build of the network in which every branch computes every cell (`DenseMasked`);
- padded: our build with one capacity, the fullest load of the trace (idle branches are skipped
  there too, which Tutel and others do not do);
- stock: `relay.build` of the dense network, on all cores;
- onnxruntime: the network's ONNX form, on one core, where it has one.

`ratio` is the time of ours over that of dense. Rows and hit rates are those of the trace, exact;
`predicted_ms` and `peak_bytes` are what the build promises.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import onnx
import tvm
from tvm import relay

import heteroplace
from heteroplace import routing
from heteroplace.bench.dynamic.figures import (
    copied_bytes,
    executed_rows,
    fullest,
    hit_rate,
    predicted_ns,
)
from heteroplace.bench.models.routed import RoutedNetwork
from heteroplace.bench.models.routed_catalogue import ROUTED, TRACES
from heteroplace.bench.models.routed_onnx import ONNX_FORMS
from heteroplace.bench.peers.onnx_runtime import OnnxExecutor
from heteroplace.bench.peers.stock import (
    StockExecutor,
    build_stock,
    in_pass_context,
    silence_tuning_hint,
    time_runs,
)
from heteroplace.bench.peers.timed_runs import TimedRuns, Timer, time_in_turns
from heteroplace.codegen.executable import Executable
from heteroplace.dynamic.profile import ProfileBuilder
from heteroplace.dynamic.traces import TraceOptions, synthesise
from heteroplace.machine.local import local_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.route_profile import RouteRecord
from heteroplace.progress import prefixed
from heteroplace.relay.routing.rewrite import model_digest, routers_of, update_routers
from heteroplace.report.tables import format_table
from heteroplace.run.executor import Executor

DEFAULT = "^(switch_layer|switch_layer_top2|swin_moe|task_moe|live_sr|msdnet)/(zipf1|coactive)$"
"""Networks and traces (name/trace) that are measured unless --only names others."""
NUM_ROUNDS = 9
PAPER_ROWS = (
    ("fusion, one layer (from the paper)", "up to 41.8x over PyTorch, one branch after another"),
    ("of that, tuned kernels and concurrency (from the paper)", "13.1x and 3.18x"),
    ("SwitchTransformer (from the paper)", "3.63x over PyTorch, 3.33x over Tutel"),
    ("LiveSR (from the paper)", "up to 8.62x"),
    ("TaskMoE placement (from the paper)", "1.34x, -42 .. -87 % traffic between GPUs"),
    ("MSDNet (from the paper)", "up to 11.7x"),
    ("DynamicRouting (from the paper)", "up to 1.7x; preloading 1.97x, -43.5 % memory"),
)
"""Brainstorm, 6, on A100 and V100."""

Say = Callable[[str], None]


def run(only: str, say: Say) -> list[dict[str, object]]:
    """Measure the pairs name/trace that match the regular expression `only`; return the rows."""
    silence_tuning_hint()
    pattern = re.compile(only or DEFAULT)
    rows: list[dict[str, object]] = []
    cluster = local_cluster(has_gpus=False)
    for name, trace in itertools.product(ROUTED, TRACES):
        label = f"{name}/{trace}"
        if pattern.search(label):
            with in_pass_context():
                network = ROUTED[name]()
                form = ONNX_FORMS[name]() if name in ONNX_FORMS else None
                found = rows_of(network, TRACES[trace], cluster, form, prefixed(say, label))
            rows += [{"model": name, "trace": trace, **row} for row in found]
    return rows


def rows_of(
    network: RoutedNetwork,
    trace: TraceOptions,
    cluster: Cluster,
    form: onnx.ModelProto | None = None,
    say: Say = lambda line: None,
    num_rounds: int = NUM_ROUNDS,
) -> list[dict[str, object]]:
    """Return the figures of one network and trace, a row for each variant of ours; times in ms."""
    records = list(synthesise(network.routers, _options(network, trace)))
    runs = sorted({record.run for record in records})
    inputs = [network.steered([r for r in records if r.run == run], run) for run in runs]
    mods = variants(network, records)
    dense = routing.dense_masked(network.mod)
    with ExitStack() as stack:
        timers: dict[str, Timer] = {}
        built: dict[str, Executable] = {}
        for name, mod in {**mods, "dense": dense}.items():
            say(f"building {name}")
            built[name] = heteroplace.build(mod, cluster, params=network.params)
            timers[name] = _ours(Executor(built[name]), inputs)
        say("building stock")
        timers |= _peers(stack, network, dense, cluster, inputs, form)
        say("measuring")
        timed = time_in_turns(timers, num_rounds=num_rounds)
    return [
        _row(name, network, mods[name], built[name], records, timed)
        for name in mods
        if name != "padded"
    ]


def variants(network: RoutedNetwork, records: Sequence[RouteRecord]) -> dict[str, tvm.IRModule]:
    """Return the modules that are built, by name: ours, and one with all branches padded alike."""
    mod = network.mod
    builder = ProfileBuilder(model_digest(mod), network.routers)
    for record in records:
        builder.add(record)
    profile = builder.profile()
    found = {
        "default": mod,
        "capacities": relay.transform.ChooseCapacities(profile)(mod),
        "specialised": relay.transform.Specialise(profile)(mod),
    }
    most = fullest(records)
    padded = {
        router.options.name: {
            "capacities": ((most[router.options.name],),) * router.options.num_branches
        }
        for router in routers_of(mod)
        if router.num_cells > 1 and router.options.overflow == "rounds"
    }
    return {**found, "padded": update_routers(mod, padded)}


def _options(network: RoutedNetwork, trace: TraceOptions) -> TraceOptions:
    return TraceOptions(trace.num_runs, trace.skew, trace.coactivation, network.top_k, trace.seed)


def _ours(executor: Executor, inputs: Sequence[Mapping[str, np.ndarray]]) -> Timer:
    turns = itertools.cycle(inputs)

    def run() -> None:
        executor.run(next(turns))

    return lambda num_runs: time_runs(run, num_runs)


def _peers(
    stack: ExitStack,
    network: RoutedNetwork,
    dense: tvm.IRModule,
    cluster: Cluster,
    inputs: Sequence[Mapping[str, np.ndarray]],
    form: onnx.ModelProto | None,
) -> dict[str, Timer]:
    """Whatever is decided they compute everything, so that one run stands for the trace."""
    cores = sorted({core for device in cluster.devices for core in device.cores})
    library = build_stock(dense, network.params, cluster.devices[0].target)
    stock = StockExecutor(library, inputs[0], cores)
    stack.callback(stock.close)
    timers: dict[str, Timer] = {"stock": stock.time_calls}
    if form is not None:
        names = {value.name for value in form.graph.input}
        given = {name: array for name, array in inputs[0].items() if name in names}
        peer = OnnxExecutor(form, given, cores[0])
        stack.callback(peer.close)
        timers["onnxruntime"] = peer.time_calls
    return timers


def _row(
    name: str,
    network: RoutedNetwork,
    mod: tvm.IRModule,
    executable: Executable,
    records: Sequence[RouteRecord],
    timed: TimedRuns,
) -> dict[str, object]:
    options = {router.options.name: router.options for router in routers_of(mod)}
    rows = executed_rows(options, records)
    solution = executable.solution
    times = {
        f"{peer}_ms": timed.median_ns(peer) / 1e6 if peer in timed.turns else None
        for peer in ("dense", "padded", "stock", "onnxruntime")
    }
    return {
        "variant": name,
        "devices": "+".join(solution.devices_used),
        "ours_ms": timed.median_ns(name) / 1e6,
        **times,
        "ratio": timed.ratio(name, "dense"),
        "executed_rows": rows.executed,
        "useful_rows": rows.useful,
        "hit_rate": hit_rate(records, network.routers),
        "cross_bytes": copied_bytes(solution.graph, solution.plan, records),
        "predicted_ms": predicted_ns(solution, records) / 1e6,
        "peak_bytes": max(use.total_bytes for use in executable.memory),
    }


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the rows as text, with the paper's figures below."""
    columns = (
        "model", "trace", "variant", "devices", "ours_ms", "dense_ms", "padded_ms", "stock_ms",
        "onnxruntime_ms", "ratio", "executed_rows", "useful_rows", "hit_rate", "cross_bytes",
        "predicted_ms", "peak_bytes",
    )  # fmt: skip
    body = [[_shown(row[column]) for column in columns] for row in rows]
    paper = "\n".join(f"{name}: {text}" for name, text in PAPER_ROWS)
    return f"{format_table(columns, body)}\n\n{paper}"


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
