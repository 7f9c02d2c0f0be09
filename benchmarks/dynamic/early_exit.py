"""Early exit: the mean time of a trace beside that of each exit, and beside onnxruntime's `If`.

A classifier of the shape of MSDNet has exits behind about 30, 60 and 90 % of its work. In a trace
of labels `early_exit/msdnet/TRACE` images leave it at its exits, or at its end, in stated shares;
`shares` are these. Figures beside those of every row:

- `run_ms`: the mean of the runs of the trace without the caller's part, which `predicted_ms` is of;
  of each run the second shortest of several rounds;
- `exits_ms`: the time of an image that leaves at each exit, and at the end;
- `sum_ms`: the shares times these, what the trace should take;
- `static_ms`, `onnxruntime_static_ms`: the same layers without exits, ours and theirs;
- `against_if`: `ours_ms` / `onnxruntime_ms`, whose exits are `If`s; `against_static` the same of
  the two without exits. onnxruntime has the cores that ours has, one or all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from benchmarks.dynamic.builds import Builds
from benchmarks.dynamic.row import new_row
from benchmarks.dynamic.trace_runs import Inputs, mean_run_ns, passes, timer_of
from benchmarks.peers.stock import in_pass_context
from heteroplace.lower.executable import Executable
from heteroplace.machine.local import local_cluster
from heteroplace.measure.timed_runs import TimedRuns, Timer, cluster_cores, time_in_turns
from heteroplace.model.cluster import Cluster
from heteroplace.model.routed.decision import decision_of
from heteroplace.model.routed.route_profile import RouteRecord
from heteroplace.parts.onnx.peer_runtimes import OnnxExecutor
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from heteroplace.simulate.decisions import expected_ns
from zoo.models.routed import RoutedNetwork
from zoo.models.routed_onnx import exits
from zoo.models.routed_vision import msdnet

LAYERS = (6, 6, 6, 2)
"""Of the blocks: with the strides and widths of MSDNet a layer of each takes about as long."""
SHARES: Mapping[str, tuple[float, ...]] = {
    "even": (0.25, 0.25, 0.25, 0.25),
    "early": (0.6, 0.2, 0.1, 0.1),
    "late": (0.1, 0.1, 0.2, 0.6),
}
"""By the name of a trace: which share of the images leaves at each exit, and at the end."""
NUM_IMAGES = 20
"""In a trace; every share is a whole number of them."""
NUM_ROUNDS = 9


def rows(only: re.Pattern[str], say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the traces whose labels match; yield a row for each and for the cores of ours."""
    labels = {trace: f"early_exit/msdnet/{trace}" for trace in SHARES}
    traces = [trace for trace, label in labels.items() if only.search(label)]
    cores = sorted({core for one in local_cluster(has_gpus=False).devices for core in one.cores})
    for used in (cores[:1], cores) if traces and len(cores) > 1 else (cores,) if traces else ():
        cluster = local_cluster(used, has_gpus=False)
        variant = "one core" if len(used) == 1 else "all cores"
        with in_pass_context():
            yield from rows_of(traces, variant, cluster, prefixed(say, f"early_exit, {variant}"))


def rows_of(
    traces: Sequence[str],
    variant: str,
    cluster: Cluster,
    say: Callable[[str], None] = lambda line: None,
    *,
    layers: Sequence[int] = LAYERS,
    num_rounds: int = NUM_ROUNDS,
) -> list[dict[str, object]]:
    """Return the rows of some traces on one cluster."""
    network, static = msdnet(layers), msdnet(layers, has_exits=False)
    say("building")
    executable = Builds(cluster, network.params).ours(network.mod, say)
    cores = cluster_cores(cluster)
    orders = {trace: _order(SHARES[trace]) for trace in traces}
    with ExitStack() as stack:

        def peer(of: RoutedNetwork, inputs: Sequence[Inputs]) -> OnnxExecutor:
            found = OnnxExecutor(exits(of), inputs, cores)
            stack.callback(found.close)
            return found

        x = [static.inputs()]
        built = Builds(cluster, static.params).ours(static.mod, say)
        timers: dict[str, Timer] = {
            "static": passes(timer_of(Executor(built), x), NUM_IMAGES),
            "onnxruntime static": passes(peer(static, x).time_calls, NUM_IMAGES),
        }
        for exit_ in range(len(layers)):
            inputs = [left_at(network, exit_)]
            timers[f"exit {exit_}"] = passes(timer_of(Executor(executable), inputs), NUM_IMAGES)
        ours: dict[str, tuple[Executor, Sequence[Inputs]]] = {}
        for trace, order in orders.items():
            inputs = [left_at(network, exit_) for exit_ in order]
            ours[trace] = Executor(executable), inputs
            timers[trace] = passes(timer_of(*ours[trace]), NUM_IMAGES)
            timed_by = peer(network, inputs).time_calls
            timers[f"onnxruntime {trace}"] = passes(timed_by, NUM_IMAGES)
        say("measuring")
        timed = time_in_turns(timers, num_rounds=num_rounds)
        run_ns = mean_run_ns(ours)
    return [
        _row(trace, variant, executable, orders[trace], timed) | {"run_ms": run_ns[trace] / 1e6}
        for trace in traces
    ]


def left_at(network: RoutedNetwork, exit_: int) -> dict[str, np.ndarray]:
    """Return inputs of an image that leaves a network at an exit; behind the last: at its end."""
    records = [
        RouteRecord(0, router.name, (int(at == exit_), int(at != exit_)), ((int(at != exit_),),))
        for at, router in enumerate(network.routers[: exit_ + 1])
    ]
    return network.steered(records)


def _order(shares: Sequence[float]) -> list[int]:
    """The exits of the images of a trace, in any order, the same in every run."""
    counts = [round(share * NUM_IMAGES) for share in shares]
    assert sum(counts) == NUM_IMAGES
    return list(np.random.default_rng(0).permutation(np.repeat(range(len(counts)), counts)))


def _row(
    trace: str, variant: str, executable: Executable, order: Sequence[int], timed: TimedRuns
) -> dict[str, object]:
    times = {name: timed.median_ns(name) / NUM_IMAGES / 1e6 for name in timed.turns}
    shares = SHARES[trace]
    exits_ms = [times[f"exit {exit_}"] for exit_ in range(len(shares))]
    return new_row(
        "msdnet",
        trace,
        variant,
        "+".join(executable.solution.devices_used),
        ours_ms=times[trace],
        onnxruntime_ms=times[f"onnxruntime {trace}"],
        predicted_ms=_predicted_ns(executable, order) / 1e6,
        shares="/".join(f"{share:g}" for share in shares),
        exits_ms="/".join(f"{exit_ms:.3f}" for exit_ms in exits_ms),
        sum_ms=sum(p * exit_ms for p, exit_ms in zip(shares, exits_ms, strict=True)),
        static_ms=times["static"],
        onnxruntime_static_ms=times["onnxruntime static"],
        against_if=timed.ratio(trace, f"onnxruntime {trace}"),
        against_static=timed.ratio("static", "onnxruntime static"),
    )


def _predicted_ns(executable: Executable, order: Sequence[int]) -> float:
    solution = executable.solution
    decisions = []
    for exit_ in order:
        taken = enumerate(router.name for router in solution.graph.routers[: exit_ + 1])
        loads = {name: (int(at == exit_), int(at != exit_)) for at, name in taken}
        decisions.append(decision_of(solution.graph, loads))
    return expected_ns(solution.graph, solution.cluster, solution.costs, solution.plan, decisions)
