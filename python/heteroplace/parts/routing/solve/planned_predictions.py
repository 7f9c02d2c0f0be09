"""A plan with predicted branches -> what each prediction saves where it is right, and a miss costs.

Four timelines of one decision tell it: the router predicted or not, rightly or wrongly. What is
predicted of the other routers is right in all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.routed.decision import decision_of
from heteroplace.model.routed.route_profile import RouteProfile
from heteroplace.model.routed.routers import Router
from heteroplace.model.routed.speculation import PlannedPrediction, Prediction, SpeculationGain
from heteroplace.simulate.decisions import DecidedTimes


def planned_predictions(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    plan: Plan,
    predictions: Sequence[Prediction],
    profile: RouteProfile | None = None,
) -> tuple[PlannedPrediction, ...]:
    """Return what predictions are expected to gain in a plan that has them.

    Parameters
    ----------
    costs
        By capacity.
    predictions
        Of routers of whole tensors, each once.
    profile
        Which branches are active where a router is not as predicted; None: the first other one.
    """
    if not predictions:
        return ()
    gains = _Gains(graph, cluster, costs, plan, predictions, profile)
    return tuple(PlannedPrediction(each, gains.of(each)) for each in predictions)


class _Gains:
    def __init__(
        self,
        graph: TaskGraph,
        cluster: Cluster,
        costs: CostTable,
        plan: Plan,
        predictions: Sequence[Prediction],
        profile: RouteProfile | None,
    ) -> None:
        self._graph, self._profile = graph, profile
        self._times = DecidedTimes(graph, cluster, costs, plan)
        self._predicted = {each.router: each.branches for each in predictions}
        self._sets = {each.name: self._expected(each) for each in graph.routers}

    def of(self, prediction: Prediction) -> SpeculationGain:
        router = self._graph.routers[self._graph.router_ids[prediction.router]]
        branches = prediction.branches
        others = [b for b in range(router.num_branches) if b not in branches]
        right = self._among(router, branches)
        saved = self._makespan(router, right, ()) - self._makespan(router, right, branches)
        if not others:
            return SpeculationGain(max(0, saved), 0)
        wrong = self._often(router, others)
        missed = self._makespan(router, wrong, branches) - self._makespan(router, wrong, ())
        return SpeculationGain(max(0, saved), max(0, missed))

    def _makespan(self, router: Router, active: Collection[int], predicted: Collection[int]) -> int:
        """Of a run in which the router takes branches, and others of it are predicted."""
        sets = dict(self._sets)
        sets[router.name] = tuple(active)
        around = router.parent
        while around is not None:
            sets[around[0]] = (around[1],)
            around = self._graph.routers[self._graph.router_ids[around[0]]].parent
        loads: dict[str, tuple[int, ...]] = {}
        for each in self._graph.routers:
            parent = each.parent
            is_reached = parent is None or loads[parent[0]][parent[1]] > 0
            taken = sets[each.name] if is_reached else ()
            loads[each.name] = tuple(int(b in taken) for b in range(each.num_branches))
        predicted_routers = {
            name: prediction if set(prediction).issuperset(sets[name]) else sets[name]
            for name, prediction in self._predicted.items()
            if any(loads[name])
        }
        decision = decision_of(self._graph, loads, {**predicted_routers, router.name: predicted})
        return self._times.of(decision).makespan_ns

    def _expected(self, router: Router) -> tuple[int, ...]:
        prediction = self._predicted.get(router.name)
        return (
            self._among(router, prediction)
            if prediction
            else self._often(router, range(router.num_branches))
        )

    def _among(self, router: Router, branches: tuple[int, ...]) -> tuple[int, ...]:
        """What is active where a prediction is right: all its branches, or as many of them as cells
        can take, those that are active most often or come first."""
        most = router.num_cells * router.top_k
        if len(branches) <= most:
            return branches
        often = self._often(router, branches)
        return often if set(branches).issuperset(often) else branches[:most]

    def _often(self, router: Router, branches: Collection[int]) -> tuple[int, ...]:
        """The set of branches, with one of some, that is active most often; else the first one."""
        seen = () if self._profile is None else self._profile.router(router.name).active_sets
        sets = [(count, each) for each, count in seen if not set(each).isdisjoint(branches)]
        if not sets:
            return (min(branches),)
        return min(sets, key=lambda entry: (-entry[0], len(entry[1]), entry[1]))[1]
