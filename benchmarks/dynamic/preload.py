"""Weights under a budget: all resident, loaded on demand, loaded ahead; timelines beside times.

A chain of layers (`models/routed_chain.py`) of which each router takes the one with weights in a
stated share of the runs, on one core; another thread brings weights from the compiled model:

- resident: all weights stay;
- on demand: half of their bytes may be held (`PreloadWeights(.., ahead=False)`);
- preloaded: likely ones are loaded ahead under the same budget (`PreloadWeights`).

Further figures of a row:

- budget_bytes, stays_bytes, room_bytes: of weights; `peak_bytes` is the sum of the last two, what
  is held at any time at most;
- run_ms: the mean of the runs of the trace without the caller's part, of each the second shortest
  of several rounds;
- ideal_ms: the timeline of the plan over the decisions of the trace, by the costs measured and the
  link's speed, which is `predicted_ms` too; over_ideal: `run_ms` over ideal;
- over_on_demand: over the time of "on demand", in turns; at most 1.02 is promised;
- is_equal: outputs are those of "resident" to the last bit.

`hit_rate` is the share of runs in which a router took what was predicted, as the executor counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import tvm
from tvm import relay

from benchmarks.dynamic.builds import Builds
from benchmarks.dynamic.row import new_row
from benchmarks.dynamic.trace_runs import Inputs, mean_run_ns, time_trace, timer_of
from benchmarks.peers.stock import in_pass_context
from heteroplace import pipeline
from heteroplace.lower.executable import Executable
from heteroplace.machine.local import local_cluster
from heteroplace.measure.cost_models.cost_model import CostOptions, choose_cost_model
from heteroplace.measure.timed_runs import TimedRuns, cluster_cores
from heteroplace.model.cluster import Cluster
from heteroplace.model.memory_use.weight_room import held_weights
from heteroplace.model.plan import Plan, guard_of
from heteroplace.model.routed.route_profile import RouteProfile, RouteRecord
from heteroplace.parts.routing.dynamic.recorded_routes import ProfileBuilder
from heteroplace.parts.routing.lower.loaded_weights import weight_sizes
from heteroplace.parts.routing.relay.rewrite import model_digest, named_routers
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from heteroplace.simulate.decisions import decisions_of_records, expected_ns
from zoo.models.routed import RoutedNetwork
from zoo.models.routed_chain import chain_records, routed_chain

MODEL = "routed_chain"
SHARES = {"always": 1.0, "mostly": 0.9}
"""Traces: how often the layer is not skipped."""
NUM_RUNS = 40
NUM_ROUNDS = 15
ON_DEMAND = "on demand"

Say = Callable[[str], None]


def rows(only: re.Pattern[str], say: Say) -> Iterator[dict[str, object]]:
    """Measure the traces whose label, preload/model/trace, matches."""
    labels = {trace: f"preload/{MODEL}/{trace}" for trace in SHARES}
    traces = [trace for trace, label in labels.items() if only.search(label)]
    if traces:
        cores = cluster_cores(local_cluster(has_gpus=False))
        with in_pass_context():
            network = routed_chain()
            builds = Builds(local_cluster([min(cores)], has_gpus=False), network.params)
            for trace in traces:
                records = chain_records(network, SHARES[trace], NUM_RUNS)
                yield from rows_of(network, builds, records, trace, prefixed(say, labels[trace]))


def rows_of(
    network: RoutedNetwork,
    builds: Builds,
    records: Sequence[RouteRecord],
    trace: str,
    say: Say = lambda line: None,
    num_rounds: int = NUM_ROUNDS,
) -> list[dict[str, object]]:
    """Return the figures of a network and the decisions of a trace, a row for each variant."""
    runs: dict[int, list[RouteRecord]] = {}
    for record in records:
        runs.setdefault(record.run, []).append(record)
    inputs = [network.steered(each, run) for run, each in runs.items()]
    mods, budget = variants(network, profile_of(network, records), builds.cluster)
    built: dict[str, Executable] = {}
    executors: dict[str, Executor] = {}
    with ExitStack() as stack:
        for name, mod in mods.items():
            say(f"building {name}")
            built[name] = builds.ours(mod, say)
            executors[name] = Executor(built[name])
            stack.callback(executors[name].close)
            executors[name].predict(predicted_of(built[name]))
        outputs = {name: _outputs(each, inputs) for name, each in executors.items()}
        say("measuring")
        timers = {name: timer_of(each, inputs) for name, each in executors.items()}
        timed = time_trace(timers, len(inputs), num_rounds=num_rounds, turn_ns=80_000_000)
        run_ns = mean_run_ns({name: (each, inputs) for name, each in executors.items()})
        return [
            new_row(
                MODEL,
                trace,
                name,
                "+".join(built[name].solution.devices_used),
                is_equal=outputs[name] == outputs["resident"],
                hit_rate=_hit_rate(executors[name]),
                budget_bytes=None if name == "resident" else budget,
                **_figures(name, built[name], records, timed, run_ns[name]),
            )
            for name in mods
        ]


def variants(
    network: RoutedNetwork, profile: RouteProfile, cluster: Cluster
) -> tuple[dict[str, tvm.IRModule], int]:
    """Return the modules by name, and the budget: half of the weights of all branches, as kernels
    read them."""
    mod = relay.transform.InferType()(named_routers(network.bound))
    cut = pipeline.prepare(mod, cluster=cluster)
    compiled = pipeline.compile(cut, cluster, choose_cost_model("estimate", CostOptions()))
    sizes = zip(compiled.graph.tasks, weight_sizes(compiled, cluster), strict=True)
    budget = sum(size for task, size in sizes if task.branch is not None) // 2
    preload = relay.transform.PreloadWeights
    return {
        "resident": mod,
        ON_DEMAND: preload(profile, budget, ahead=False)(mod),
        "preloaded": preload(profile, budget)(mod),
    }, budget


def profile_of(network: RoutedNetwork, records: Sequence[RouteRecord]) -> RouteProfile:
    """Return the profile of decisions of a network."""
    builder = ProfileBuilder(model_digest(network.bound), network.routers)
    for record in records:
        builder.add(record)
    return builder.profile()


def predicted_of(executable: Executable) -> dict[str, set[int]]:
    """Return the branches that a program predicts: those of which it has predicted steps."""
    found: dict[str, set[int]] = {}
    plan: Plan = executable.solution.plan
    for guard in filter(None, map(guard_of, plan.steps)):
        if guard.when == "predicted":
            name = executable.solution.graph.routers[guard.router].name
            found.setdefault(name, set()).add(guard.branch)
    return found


def _outputs(executor: Executor, inputs: Sequence[Inputs]) -> list[list[bytes]]:
    return [[array.tobytes() for array in executor.run(each)] for each in inputs]


def _hit_rate(executor: Executor) -> float | None:
    counts = executor.prediction_counts().values()
    runs = sum(count.num_calls for count in counts)
    return sum(count.num_exact for count in counts) / runs if runs else None


def _figures(
    name: str,
    executable: Executable,
    records: Sequence[RouteRecord],
    timed: TimedRuns,
    run_ns: float,
) -> dict[str, object]:
    solution = executable.solution
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    (held,) = held_weights(graph, cluster, plan)
    decisions = decisions_of_records(graph, records, predicted_of(executable))
    ideal_ns = expected_ns(graph, cluster, solution.costs, plan, decisions)
    return {
        "ours_ms": timed.median_ns(name) / 1e6,
        "ratio": timed.ratio(name, "resident"),
        "predicted_ms": ideal_ns / 1e6,
        "ideal_ms": ideal_ns / 1e6,
        "run_ms": run_ns / 1e6,
        "over_ideal": run_ns / ideal_ns,
        "over_on_demand": timed.ratio(name, ON_DEMAND),
        "stays_bytes": held.stays_bytes,
        "room_bytes": held.room_bytes,
        "peak_bytes": held.total_bytes,
    }
