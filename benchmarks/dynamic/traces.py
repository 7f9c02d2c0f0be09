"""Traces of stated skew -> networks specialised to them, in turns with what users run instead.

All variants run in one process, from arrays to arrays, over the runs of the trace one after the
other. Times of ours are means of a run of the trace, and so is that of halves; what computes
everything takes as long in every run. Variants are:

- ours: routers with the capacities of no profile ("default"; not of routers with many branches,
  each of which has about ten then), or what a pass makes of the trace's profile ("capacities":
  `ChooseCapacities`; "specialised": `Specialise`); variants that are the same module are one row,
  under the first of their names;
- dense: our build of the network in which every branch computes every cell (`DenseMasked`);
- padded: our build with one capacity, the fullest load of the trace, on decisions that give idle
  branches a cell of the fullest one, so that every branch computes that many rows in every run, as
  Tutel and others do it; only of routers with rows that drop none;
- stock: `relay.build` of the dense network, on all cores;
- onnxruntime: the network's ONNX form, on all cores, where it has one.

Further figures of a row; all but the first of networks with one router of equal branches
(`bounds`):

- run_ms: the mean of the runs of the trace without the caller's part, which `predicted_ms` is of;
  of each run the second shortest of several rounds;
- share_ms: the share of the dense network's rows that is executed, times its time;
- read_ms: reading as many bytes as the weights of active branches once, from memory, on all cores,
  of as many as all branches have;
- branches_ms: the sum over active branches of the larger of both, for that branch alone: what they
  take one after the other, if none is slowed by what it reads while it computes;
- bound_ratio: the time of ours over the larger of share_ms and read_ms;
- halves_ms: two programs of half of the branches each, side by side on a core each.

`ratio` is the time of ours over that of dense. Rows and hit rates are those of the trace, exact;
`peak_bytes` is what the build promises, and so is `predicted_ms` where the profile was given to it
and tasks disturb each other; else it is the mean over the runs of the trace, simulated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import tvm
from tvm import relay

from benchmarks.dynamic.bounds import bound_figures, bound_timers, is_bounded
from benchmarks.dynamic.builds import Builds
from benchmarks.dynamic.figures import (
    copied_bytes,
    executed_rows,
    fullest,
    hit_rate,
    predicted_ns,
)
from benchmarks.dynamic.row import new_row
from benchmarks.dynamic.trace_runs import (
    Inputs,
    TraceRuns,
    mean_run_ns,
    time_trace,
    timer_of,
    with_all_active,
)
from benchmarks.peers.stock import StockExecutor, in_pass_context
from heteroplace import routing
from heteroplace.files.route_profile_file import save_route_profile
from heteroplace.machine.local import local_cluster
from heteroplace.measure.timed_runs import TimedRuns, Timer, cluster_cores
from heteroplace.model.routed.route_profile import RouteRecord
from heteroplace.model.solution import Solution
from heteroplace.parts.onnx.peer_runtimes import OnnxExecutor
from heteroplace.parts.routing.relay.rewrite import routers_of, update_routers
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from zoo.models.routed_catalogue import (
    SMALLEST,
    TRACES,
    matching_labels,
    routed_network,
)
from zoo.models.routed_onnx import ONNX_FORMS

MAX_UNPROFILED = 16
"""Branches of a router up to which the default variant is built: it compiles each about ten times.
"""
PROFILED = ("capacities", "specialised")
"""Variants whose plans are made for the trace's profile too."""
NUM_ROUNDS = 9
"""Of every network but the smallest, which has one."""
STEADY = ("dense", "padded", "stock", "onnxruntime", "read")
"""What takes as long whatever is decided."""
TURN_NS = 300_000_000
"""Of a turn: the first runs after a pause are slower, those with many products more than others."""

Say = Callable[[str], None]


def rows(only: re.Pattern[str], say: Say) -> Iterator[dict[str, object]]:
    """Measure the networks and traces whose label, name/trace, matches."""
    cluster = local_cluster(has_gpus=False)
    for name, traces in matching_labels(only):
        num_rounds = 1 if name == SMALLEST else NUM_ROUNDS
        with in_pass_context():
            network = routed_network(name)
            form = ONNX_FORMS[name]() if name in ONNX_FORMS else None
            builds = Builds(cluster, network.params)
            for trace in traces:
                runs, tell = TraceRuns(network, TRACES[trace]), prefixed(say, f"{name}/{trace}")
                yield from rows_of((name, trace), runs, builds, form, tell, num_rounds)


def rows_of(
    names: tuple[str, str],
    runs: TraceRuns,
    builds: Builds,
    form: onnx.ModelProto | None = None,
    say: Say = lambda line: None,
    num_rounds: int = NUM_ROUNDS,
) -> list[dict[str, object]]:
    """Return the figures of one network and trace, a row for each variant of ours; times in ms."""
    inputs = runs.inputs()
    mods = variants(runs)
    dense = routing.dense_masked(runs.network.mod)
    peers = {"dense": (dense, inputs)}
    padded = padded_to_fullest(runs)
    if padded is not None:
        peers["padded"] = padded, runs.inputs(with_all_active(record) for record in runs.records)
    with ExitStack() as stack:
        routes = Path(stack.enter_context(TemporaryDirectory())) / "routes.json"
        save_route_profile(runs.profile, routes)
        timers: dict[str, Timer] = {}
        built: dict[str, Executor] = {}
        for name, (mod, given) in ({each: (mods[each], inputs) for each in mods} | peers).items():
            say(f"building {name}")
            known = routes if name in PROFILED else None
            built[name] = Executor(builds.ours(mod, say, known))
            stack.callback(built[name].close)
            timers[name] = timer_of(built[name], given)
        say("building peers")
        timers |= bound_timers(stack, names[0], runs, builds.cluster, say)
        timers |= _peers(stack, dense, builds, inputs[0], form)
        say("measuring")
        timed = time_trace(
            timers, len(inputs), steady=STEADY, num_rounds=num_rounds, turn_ns=TURN_NS
        )
        run_ns = mean_run_ns({name: (built[name], inputs) for name in mods})
        return [
            _row(names, name, runs, mods[name], built[name], timed) | {"run_ms": run_ns[name] / 1e6}
            for name in mods
        ]


def variants(runs: TraceRuns) -> dict[str, tvm.IRModule]:
    """Return the modules of ours by name, each once."""
    mod = runs.network.bound
    most = max(router.num_branches for router in runs.network.routers)
    found = {
        **({"default": mod} if most <= MAX_UNPROFILED else {}),
        "capacities": relay.transform.ChooseCapacities(runs.profile)(mod),
        "specialised": relay.transform.Specialise(runs.profile)(mod),
    }
    distinct: dict[str, tvm.IRModule] = {}
    for name, each in found.items():
        if not any(tvm.ir.structural_equal(each, other) for other in distinct.values()):
            distinct[name] = each
    return distinct


def padded_to_fullest(runs: TraceRuns) -> tvm.IRModule | None:
    """Return the module whose branches have one capacity, the fullest load; None: no rows."""
    mod, most = runs.network.mod, fullest(runs.records)
    changes = {
        router.options.name: {
            "capacities": ((most[router.options.name],),) * router.options.num_branches
        }
        for router in routers_of(mod)
        if router.num_cells > 1 and router.options.overflow == "rounds"
    }
    return update_routers(mod, changes) if changes else None


def _peers(
    stack: ExitStack,
    dense: tvm.IRModule,
    builds: Builds,
    inputs: Inputs,
    form: onnx.ModelProto | None,
) -> dict[str, Timer]:
    """Whatever is decided they compute everything, so that one run stands for the trace."""
    cores = cluster_cores(builds.cluster)
    stock = StockExecutor(builds.stock(dense), inputs, cores)
    stack.callback(stock.close)
    timers: dict[str, Timer] = {"stock": stock.time_calls}
    if form is not None:
        names = {value.name for value in form.graph.input}
        given = {name: array for name, array in inputs.items() if name in names}
        peer = OnnxExecutor(form, given, cores)
        stack.callback(peer.close)
        timers["onnxruntime"] = peer.time_calls
    return timers


def _row(
    names: tuple[str, str],
    variant: str,
    runs: TraceRuns,
    mod: tvm.IRModule,
    executor: Executor,
    timed: TimedRuns,
) -> dict[str, object]:
    records, solution = runs.records, executor.solution
    options = {router.options.name: router.options for router in routers_of(mod)}
    executed = executed_rows(options, records)
    figures: dict[str, object] = {"ours_ms": timed.median_ns(variant) / 1e6}
    for peer in ("dense", "padded", "stock", "onnxruntime"):
        figures[f"{peer}_ms"] = timed.median_ns(peer) / 1e6 if peer in timed.turns else None
    figures |= {
        "ratio": timed.ratio(variant, "dense"),
        "executed_rows": executed.executed,
        "useful_rows": executed.useful,
        "hit_rate": hit_rate(records, runs.network.routers),
        "cross_bytes": copied_bytes(solution.graph, solution.plan, records),
        "predicted_ms": _promised_ns(variant, solution, records) / 1e6,
        "peak_bytes": max(use.total_bytes for use in executor.predicted_memory),
    }
    if is_bounded(runs):
        (only,) = options.values()
        figures |= bound_figures(runs, variant, only, timed)
    return new_row(names[0], names[1], variant, "+".join(solution.devices_used), **figures)


def _promised_ns(variant: str, solution: Solution, records: Sequence[RouteRecord]) -> float:
    """What a run of the trace is predicted to take on average."""
    if variant in PROFILED and solution.expected is not None:
        return float(solution.expected_ns)
    return predicted_ns(solution, records)
