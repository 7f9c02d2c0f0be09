"""`bench run --helping`: what plans of single cores gain when cores that wait help each other.

Each plan is loaded twice, with helping and without, over the same kernels and weights, and both
take turns. Plans: the solver's, HEFT's, and placements drawn uniformly, in two orders (see
`prediction/random_plans.py`): how far helping forgives a bad plan. `ratio` is without / with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from heteroplace.bench.differences import largest_difference
from heteroplace.bench.models.catalogue import Model, matching_models
from heteroplace.bench.peers.stock import (
    StockExecutor,
    build_stock,
    in_pass_context,
    silence_tuning_hint,
)
from heteroplace.bench.peers.timed_runs import time_in_turns
from heteroplace.bench.prediction.command import prediction_cluster
from heteroplace.bench.prediction.random_plans import random_plans
from heteroplace.bench.row_table import row_table
from heteroplace.bench.run.comparison import Prepared, core_to_core_probe, prepare_model
from heteroplace.lower.executable import Executable, write_programs
from heteroplace.machine.local import local_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Plan
from heteroplace.model.solution import Solution
from heteroplace.run.executor import Executor
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.registry import get_solver

DEFAULT_MODELS = "^(inception_v2|randomly_wired|randomly_wired_small)$"
_NUM_DRAWN = 12
"""Random plans, of which those of uniform placements are measured."""
_UNIFORM = ("uniform", "shuffled")
_WITH, _WITHOUT, _STOCK = "with", "without", "stock"


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    silence_tuning_hint()
    cluster = prediction_cluster(local_cluster(has_gpus=False), all_devices=False)
    for model, tell in matching_models(only or DEFAULT_MODELS, say):
        yield from measure_helping(model, cluster, tell)


def measure_helping(
    model: Model,
    cluster: Cluster,
    say: Callable[[str], None] = lambda line: None,
    *,
    num_rounds: int = 15,
    turn_ns: int = 40_000_000,
    time_limit_s: float = 5.0,
) -> list[dict[str, object]]:
    """Place a network on single cores in several ways; return a row for each.

    Parameters
    ----------
    cluster
        Of devices of one core each.
    num_rounds, turn_ns
        See `time_in_turns`.
    time_limit_s
        Of each solver.
    """
    say("compiling with stock TVM")
    mod, params, inputs = model.stock()
    stock = StockExecutor(
        build_stock(mod, params, cluster.devices[0].target), inputs, cluster.devices[0].cores
    )
    expected = stock.run()
    prepared = prepare_model(model, cluster, say)
    executables = _programs(prepared, _plans(prepared, time_limit_s))
    executors = {
        (index, mode): Executor(executable, helping=None if mode == _WITH else False)
        for index, executable in enumerate(executables)
        for mode in (_WITH, _WITHOUT)
    }
    outputs = {key: executor.run(model.inputs) for key, executor in executors.items()}
    say(f"measuring {len(executables)} plans, each with and without, in {num_rounds} rounds")
    names = {key: f"{key[0]} {key[1]}" for key in executors}
    timers = {names[key]: executor.benchmark for key, executor in executors.items()}
    timed = time_in_turns(
        {**timers, _STOCK: stock.benchmark},
        num_rounds=num_rounds,
        turn_ns=turn_ns,
        core_to_core_ns=core_to_core_probe({names[k]: e for k, e in executors.items()}),
    )
    stock.close()
    rows: list[dict[str, object]] = []
    for index, executable in enumerate(executables):
        with_, without = ((index, mode) for mode in (_WITH, _WITHOUT))
        rows.append(
            {
                "model": model.name,
                "plan": executable.solution.plan.origin,
                "is_helping": executors[with_].is_helping,
                "predicted_ms": _ms(executable.solution.expected_ns),
                "without_ms": _ms(timed.median_ns(names[without])),
                "with_ms": _ms(timed.median_ns(names[with_])),
                "ratio": round(timed.ratio(names[without], names[with_]), 3),
                "stock_one_core_ms": _ms(timed.median_ns(_STOCK)),
                "ratio_to_stock": round(timed.ratio(names[with_], _STOCK), 3),
                "max_abs_diff": largest_difference(
                    [*outputs[with_], *outputs[without]], [*expected, *expected]
                ),
                "core_to_core_ns": timed.median_core_to_core_ns,
            }
        )
    return rows


def _plans(prepared: Prepared, time_limit_s: float) -> list[Plan]:
    problem = Problem(prepared.graph, prepared.costed.cluster, prepared.costed.costs)
    limits = SolveOptions(time_limit_s=time_limit_s)
    plans = [get_solver(name).solve(problem, limits).plan for name in ("auto", "heft")]
    drawn = random_plans(problem, _NUM_DRAWN, seed=0)
    return plans + [plan for plan in drawn if plan.origin.startswith(_UNIFORM)]


def _programs(prepared: Prepared, plans: Sequence[Plan]) -> list[Executable]:
    costed, graph = prepared.costed, prepared.graph
    with in_pass_context():
        kernels = costed.compiled.kernels(costed.cluster, [0] * len(graph.tasks))
    simulated = [simulate(graph, costed.cluster, costed.costs, plan) for plan in plans]
    solutions = [
        Solution(graph, costed.cluster, costed.costs, plan, timeline.makespan_ns, 0)
        for plan, timeline in zip(plans, simulated, strict=True)
    ]
    return write_programs(kernels, solutions, simulated)


def table(rows: Iterable[dict[str, object]]) -> str:
    """Return the rows as text; times in ms."""
    return row_table(rows, num_names=2)


def _ms(ns: int) -> float:
    return round(ns / 1e6, 4)
