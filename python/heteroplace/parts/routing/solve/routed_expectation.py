"""Routed network + profile + interference -> what its plans are expected to take, on average.

A solver sees the average run, in which branches on two devices take as long as each other; in a run
the longer one counts. So what is promised of a plan, and by what it is compared with one device, is
the mean over decisions, with what tasks lose beside each other. It is told at the pace of costs:
the few long runs in which interference is measured say less of a machine than those of the costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.routed.decision import Decision
from heteroplace.model.routed.route_profile import RouteProfile, RouterProfile
from heteroplace.model.routed.routers import Router
from heteroplace.model.routed.speculation import Prediction
from heteroplace.model.solution import RunTime, Solution
from heteroplace.simulate.decisions import expected_ns, sampled_decisions
from heteroplace.simulate.expect import expect_decisions
from heteroplace.simulate.interference import Interference

NUM_DECISIONS = 64
_NUM_OF_FEW = 1024
"""Where few decisions make up all, so many more cost nothing, and tell how often each is."""
_SEED = 0
_ASSUMED_RUNS = 1000


@dataclass(frozen=True)
class RoutedExpectation:
    """What is known of the runs of a routed network."""

    graph: TaskGraph
    cluster: Cluster
    costs: CostTable
    """By capacity."""
    decisions: Sequence[Decision]
    """Empty: nothing is known of them."""
    interference: Callable[[], Interference] | None
    """Measures it; None: it is not to be had."""

    @classmethod
    def of(
        cls,
        graph: TaskGraph,
        cluster: Cluster,
        costs: CostTable,
        profile: RouteProfile | None,
        predictions: Sequence[Prediction],
        interference: Callable[[], Interference] | None,
    ) -> RoutedExpectation:
        """Return it for random decisions of a profile; parameters as of `solve_routed`."""
        decisions: Sequence[Decision] = ()
        if profile is not None and interference is not None:
            predicted = {each.router: each.branches for each in predictions}
            decisions = sampled_decisions(graph, profile, NUM_DECISIONS, _SEED, predicted)
            if len(set(decisions)) <= NUM_DECISIONS // 2:
                decisions = sampled_decisions(graph, profile, _NUM_OF_FEW, _SEED, predicted)
        return cls(graph, cluster, costs, decisions, interference)

    def of_view(self, view: TaskGraph) -> Callable[[], Interference] | None:
        """Return what measures the interference of the expected view."""
        measure = self.interference
        return None if measure is None else lambda: measure().at_pace_of_costs(view)

    def run_time_of(self, routed: Callable[[Plan], Plan]) -> Callable[[Plan], RunTime] | None:
        """Return what tells the mean over the decisions, of plans of the expected view; None: they
        are not known.

        Parameters
        ----------
        routed
            Makes a plan of the network of one of the view.
        """
        measure = self.interference
        if measure is None or not self.decisions:
            return None

        def run_time(plan: Plan) -> RunTime:
            measured = measure().at_pace_of_costs(self.graph)
            of = self.graph, self.cluster, self.costs, routed(plan)
            return expect_decisions(*of, measured, self.decisions)

        return run_time


def mean_ns(solution: Solution, profile: RouteProfile) -> float:
    """Return what a plan with its predictions takes over decisions that a profile makes likely: by
    what its runs are expected to take, else by the costs.

    Raises
    ------
    RoutingError
        As of `sampled_decisions`.
    """
    if solution.expected is not None:
        return solution.expected.expected_ns
    predicted = {each.prediction.router: each.prediction.branches for each in solution.predictions}
    decisions = sampled_decisions(solution.graph, profile, NUM_DECISIONS, _SEED, predicted)
    return expected_ns(solution.graph, solution.cluster, solution.costs, solution.plan, decisions)


def assumed_profile(graph: TaskGraph, predictions: Sequence[Prediction]) -> RouteProfile:
    """Return what is known of the routers where no profile is: they are right as often as their
    predictions say, and take all their branches alike else."""
    prediction_of = {each.router: each for each in predictions}
    return RouteProfile(
        "", tuple(_assumed(each, prediction_of.get(each.name)) for each in graph.routers)
    )


def _assumed(router: Router, prediction: Prediction | None) -> RouterProfile:
    count = router.num_branches
    branches = range(count)
    if router.num_cells > 1:
        sets = {tuple(branches): _ASSUMED_RUNS}
    elif prediction is None or prediction.probability is None:
        first = branches if prediction is None else prediction.branches
        sets = {(branch,): _ASSUMED_RUNS for branch in first}
    else:
        others = [branch for branch in branches if branch not in prediction.branches]
        hits = round((prediction.probability if others else 1) * _ASSUMED_RUNS)
        each = (_ASSUMED_RUNS - hits) / max(1, len(others))
        sets = {(branch,): ceil(each) for branch in others}
        if len(prediction.branches) <= router.top_k:
            sets[prediction.branches] = hits
        else:  # a hit is one of them, and what is begun beside it is wasted
            share = ceil(hits / len(prediction.branches))
            sets |= {(branch,): share for branch in prediction.branches}
    sets = {active: runs for active, runs in sets.items() if runs}
    num_runs = sum(sets.values())
    even = ceil(router.num_cells * router.top_k / count)
    active_runs = [sum(runs for active, runs in sets.items() if b in active) for b in branches]
    loads = tuple(
        tuple((load, runs) for load, runs in ((0, num_runs - active), (even, active)) if runs)
        for active in active_runs
    )
    shape = router.name, router.num_cells, count, num_runs
    return RouterProfile(*shape, loads, tuple(sorted(sets.items())))
