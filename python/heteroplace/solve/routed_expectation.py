"""Routed network + profile + interference -> what its plans are expected to take, on average.

A solver sees the average run, in which branches on two devices take as long as each other; in a run
the longer one counts. So what is promised of a plan, and by what it is compared with one device, is
the mean over decisions, with what tasks lose beside each other. It is told at the pace of costs:
the few long runs in which interference is measured say less of a machine than those of the costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.decision import Decision
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.route_profile import RouteProfile
from heteroplace.model.solution import RunTime
from heteroplace.model.speculation import Prediction
from heteroplace.simulate.decisions import sampled_decisions
from heteroplace.simulate.expect import expect_decisions
from heteroplace.simulate.interference import Interference

NUM_DECISIONS = 64
_NUM_OF_FEW = 1024
"""Where few decisions make up all, so many more cost nothing, and tell how often each is."""
_SEED = 0


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
            known = measure().at_pace_of_costs(self.graph)
            of = self.graph, self.cluster, self.costs, routed(plan)
            return expect_decisions(*of, known, self.decisions)

        return run_time
