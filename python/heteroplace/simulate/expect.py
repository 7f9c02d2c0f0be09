"""Plan + costs + interference -> the run time to expect, with its scatter.

`simulate` gives the makespan of a plan for fixed times, which is what solvers minimise and bounds
hold for. Here the same plan is played with times as they are when it really runs (`disturbed.py`),
drawn from measured runs instead of fixed. All draws are played at once, as rows of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run
from heteroplace.model.routed.decision import Decision
from heteroplace.model.solution import RunTime
from heteroplace.model.timeline import Span, Timeline
from heteroplace.simulate.decisions import DecidedTimes
from heteroplace.simulate.disturbed import DisturbedRuns, times_alone
from heteroplace.simulate.interference import FloatArray, Interference, no_interference
from heteroplace.simulate.simulator import simulate

NUM_DRAWS = 101


@dataclass(frozen=True)
class Expectation:
    """How long a plan is expected to run."""

    makespan_ns: int
    """Median over the draws."""
    low_ns: int
    """A tenth of all runs are quicker."""
    high_ns: int
    """A tenth of all runs are slower."""
    timeline: Timeline
    """With the median start and finish of every step over the draws."""

    @property
    def run_time(self) -> RunTime:
        """The same without its timeline."""
        return RunTime(self.makespan_ns, self.low_ns, self.high_ns)


def expect(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    plan: Plan,
    interference: Interference,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
    decision: Decision | None = None,
) -> Expectation:
    """Return the run time to expect of `plan`, and when its steps are expected to run.

    Complexity: O(steps x draws).

    Parameters
    ----------
    decision
        As in `simulate`.

    Raises
    ------
    CostMismatchError
        `costs` or `interference` belong to another graph or cluster.
    PlanError
        As `simulate`.
    """
    runs = DisturbedRuns(graph, cluster, plan, interference)
    simulated = simulate(graph, cluster, costs, plan, decision=decision)
    duration_ns = runs.durations(costs, times_alone(plan, simulated), (decision,))
    scattered = duration_ns * _draws(plan, interference, num_draws, seed)
    start, finish = runs.play(scattered)
    ends = finish.max(axis=0) if len(plan.steps) else np.zeros(1)
    low, middle, high = (round(float(np.quantile(ends, q))) for q in (0.1, 0.5, 0.9))
    starts = np.median(start, axis=1).round().astype(np.int64).tolist()
    finishes = np.median(finish, axis=1).round().astype(np.int64).tolist()
    spans = tuple(
        Span(span.step, span.resource, starts[span.step], finishes[span.step])
        for span in simulated.spans
    )
    timeline = Timeline(spans, "simulated", simulated.peak_bytes, middle, plan.items)
    return Expectation(middle, low, high, timeline)


def expect_alone(graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan) -> Expectation:
    """Return the run time to expect where tasks do not disturb each other and do not scatter.

    It is the simulated time but for messages between hosts. Raises as `expect`.
    """
    return expect(graph, cluster, costs, plan, no_interference(graph, cluster), num_draws=1)


def expect_decisions(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    plan: Plan,
    interference: Interference,
    decisions: Sequence[Decision],
) -> RunTime:
    """Return the run time to expect of a routed plan, on average over decisions.

    A tenth of the decisions take less than its low end, and a tenth more than its high one; what
    scatters from run to run of one decision is left out.

    Parameters
    ----------
    costs
        By capacity.
    decisions
        At least one.

    Raises
    ------
    CostMismatchError, PlanError
        As `expect`.
    """
    runs = DisturbedRuns(graph, cluster, plan, interference)
    decided = DecidedTimes(graph, cluster, costs, plan)
    times = {decision: decided.of(decision) for decision in dict.fromkeys(decisions)}
    alone_ns = np.array([span.finish_ns - span.start_ns for span in times.values()]).T
    _, finish = runs.play(runs.durations(costs, alone_ns, tuple(times)))
    of_decision = dict(zip(times, finish.max(axis=0), strict=True))
    ends = [of_decision[decision] for decision in decisions]
    low, high = (round(float(np.quantile(ends, q))) for q in (0.1, 0.9))
    return RunTime(round(float(np.mean(ends))), low, high)


def _draws(plan: Plan, interference: Interference, num_draws: int, seed: int) -> FloatArray:
    """Factors of the durations, [num_steps, num_draws]; devices scatter independently."""
    random = np.random.default_rng(seed)
    rows = [
        np.resize(random.permutation(len(scatter)), num_draws) for scatter in interference.scatter
    ]
    factors = np.ones((len(plan.steps), num_draws))
    for index, step in enumerate(plan.steps):
        if isinstance(step, Run):
            factors[index] = interference.scatter[step.device][rows[step.device], step.task]
    return factors
