"""`bench run --in-flight`: items per second of single cores with many requests in flight.

The plan for throughput, and the one for latency, over all single cores, with several requests in
flight, take turns with one core's plan and with as many independent programs of one core as there
are cores, side by side: by themselves, as `Executor.benchmark` repeats them, which is what two
cores can do at most, and called from a thread each, as streams are by their caller. The independent
ones hold all weights once per core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from heteroplace import pipeline
from heteroplace.bench.models.catalogue import Model, matching_models
from heteroplace.bench.peers.stock import in_pass_context, time_runs
from heteroplace.bench.peers.timed_runs import (
    Timer,
    cluster_cores,
    on_cores,
    side_by_side,
    time_in_turns,
)
from heteroplace.bench.prediction.command import prediction_cluster
from heteroplace.bench.row_table import row_table
from heteroplace.bench.run.calls import stream_timer
from heteroplace.bench.run.comparison import Prepared, place_on, prepare_model
from heteroplace.machine.local import local_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.run.executor import Executor
from heteroplace.solve.problem import SolveOptions

DEFAULT_MODELS = "^(resnet50|inception_v2)$"
IN_FLIGHT = (1, 2, 4, 8)
_ONE, _APART, _CALLERS = "one core", "independent programs", "independent callers"


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    cluster = prediction_cluster(local_cluster(has_gpus=False), all_devices=False)
    for model, tell in matching_models(only or DEFAULT_MODELS, say):
        yield from measure_in_flight(model, cluster, tell)


def measure_in_flight(
    model: Model,
    cluster: Cluster,
    say: Callable[[str], None] = lambda line: None,
    *,
    num_rounds: int = 11,
    turn_ns: int = 1_000_000_000,
    time_limit_s: float = 10.0,
) -> list[dict[str, object]]:
    """Return a row for each plan and number of requests in flight.

    Parameters
    ----------
    cluster
        Of devices of one core each.
    num_rounds, turn_ns
        See `time_in_turns`.
    time_limit_s
        Of the solver, for each plan.
    """
    prepared = prepare_model(model, cluster, say)
    names = [device.name for device in cluster.devices]
    timers: dict[str, Timer] = {}
    for objective in ("throughput", "latency"):
        say(f"placing for {objective} on {', '.join(names)}")
        executor = _executor(prepared, objective, time_limit_s)
        for count in IN_FLIGHT:
            timers[f"{objective} {count}"] = stream_timer(executor, model.inputs, count)
    apart = [Executor(place_on(prepared, (name,), time_limit_s)) for name in names]
    for executor in apart:
        executor.run(model.inputs)  # `benchmark` runs on the values of the last call
    timers[f"{_ONE} 1"] = apart[0].benchmark
    timers[f"{_APART} {len(apart)}"] = _per_item(side_by_side([e.benchmark for e in apart]), apart)
    callers = side_by_side([_caller(executor, model) for executor in apart])
    timers[f"{_CALLERS} {len(apart)}"] = _per_item(callers, apart)
    say(f"measuring {len(timers)} ways in {num_rounds} rounds")
    timed = time_in_turns(timers, num_rounds=num_rounds, turn_ns=turn_ns)
    rows: list[dict[str, object]] = []
    for key in timers:
        plan, _, in_flight = key.rpartition(" ")
        ns = timed.median_ns(key)
        rows.append(
            {
                "model": model.name,
                "plan": plan,
                "in_flight": int(in_flight),
                "ours_ms": round(ns / 1e6, 4),
                "items_per_s": round(1e9 / ns, 2),
                "rate_to_one_core": round(timed.ratio(f"{_ONE} 1", key), 3),
                "rate_to_independent": round(timed.ratio(f"{_APART} {len(apart)}", key), 3),
                "rate_to_callers": round(timed.ratio(f"{_CALLERS} {len(apart)}", key), 3),
            }
        )
    return rows


def _executor(prepared: Prepared, objective: str, time_limit_s: float) -> Executor:
    options = SolveOptions(objective=objective, time_limit_s=time_limit_s)
    with in_pass_context():
        solution = pipeline.solve(prepared.costed, options)
        executable = pipeline.build(prepared.costed.compiled, solution)
    return Executor(executable, max_in_flight=max(IN_FLIGHT))


def _caller(executor: Executor, model: Model) -> Timer:
    return on_cores(
        lambda num_runs: time_runs(lambda: executor.run(model.inputs), num_runs),
        cluster_cores(executor.solution.cluster),
    )


def _per_item(timer: Timer, programs: list[Executor]) -> Timer:
    return lambda num_runs: [ns // len(programs) for ns in timer(num_runs)]


def table(rows: Iterable[dict[str, object]]) -> str:
    """Return the rows as text; times in ms."""
    return row_table(rows, num_names=2)
