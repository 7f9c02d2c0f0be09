"""A profile or records of route decisions -> decisions, the times to expect of them, their mean.

A plan of a routed network has one timeline for each decision; what it takes on average is the mean
over those that were recorded, or over such as a profile makes likely.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from random import Random

from heteroplace.errors import RoutingError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Guard, Plan, Run, guard_of
from heteroplace.model.routed.capacities import padded_load
from heteroplace.model.routed.decision import Decision, decision_of
from heteroplace.model.routed.route_profile import RouteProfile, RouteRecord, RouterProfile
from heteroplace.model.routed.routers import Router
from heteroplace.native.core_problem import NativeProblem
from heteroplace.native.simulate import Simulation, StepTimes

LoadShares = tuple[tuple[int, float], ...]
"""(load, in what share of all runs) of one branch; what is left of 1 are runs without it."""
_Predicted = Mapping[str, Collection[int]] | None


def decisions_of_records(
    graph: TaskGraph, records: Iterable[RouteRecord], predicted: _Predicted = None
) -> list[Decision]:
    """Return the decision of each recorded run, in their order; `predicted` as in `decision_of`.

    Raises
    ------
    RoutingError
        The records are not those of the routers of the graph.
    """
    runs: dict[int, dict[str, Sequence[int]]] = {}
    for record in records:
        runs.setdefault(record.run, {})[record.router] = record.loads
    return [decision_of(graph, loads, predicted) for loads in runs.values()]


def sampled_decisions(
    graph: TaskGraph, profile: RouteProfile, count: int, seed: int, predicted: _Predicted = None
) -> list[Decision]:
    """Return random decisions as a profile makes them likely, each router on its own.

    Of each router a set of active branches is drawn, and a load of each of them; where that is more
    than there are cells, the largest loads are cut. Routers with whole tensors as cells are exact.

    Raises
    ------
    RoutingError
        The profile lacks a router, or has no run of one that is reached.
    """
    random = Random(seed)
    decisions = []
    for _ in range(count):
        loads: dict[str, tuple[int, ...]] = {}
        for router in graph.routers:
            parent = router.parent
            if parent is None or loads[parent[0]][parent[1]]:
                loads[router.name] = _sampled_loads(router, profile.router(router.name), random)
            else:
                loads[router.name] = (0,) * router.num_branches
        decisions.append(decision_of(graph, loads, predicted))
    return decisions


def _sampled_loads(router: Router, profile: RouterProfile, random: Random) -> tuple[int, ...]:
    _require_runs(profile)
    sets = profile.active_sets
    active = random.choices([one for one, _ in sets], [count for _, count in sets])[0]
    loads = [0] * router.num_branches
    for branch in active:
        some = [entry for entry in profile.loads[branch] if entry[0]]
        load = random.choices([load for load, _ in some], [count for _, count in some])[0]
        largest = router.capacities[branch][-1]
        loads[branch] = min(load, largest) if router.overflow == "error" else load
    for _ in range(sum(loads) - router.num_cells * router.top_k):
        loads[loads.index(max(loads))] -= 1
    return tuple(loads)


def _require_runs(profile: RouterProfile) -> None:
    """Raise RoutingError for a router that is reached in no run of the profile."""
    if not profile.active_sets:
        raise RoutingError(
            f"the profile has no runs of router {profile.name!r}, which is reached; record runs in "
            f"which it decides (executor.record)"
        )


def expected_ns(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    plan: Plan,
    decisions: Sequence[Decision],
) -> float:
    """Return the mean makespan of a plan over decisions, in ns; `costs` has times by capacity.

    Raises
    ------
    RoutingError
        There are no decisions.
    """
    if not decisions:
        raise RoutingError("no decisions are given; expected at least one")
    decided = DecidedTimes(graph, cluster, costs, plan)
    times: dict[Decision, int] = {}
    for decision in decisions:
        if decision not in times:
            times[decision] = decided.of(decision).makespan_ns
    return sum(times[decision] for decision in decisions) / len(decisions)


class DecidedTimes:
    """When each step of a plan starts and finishes in runs with different decisions.

    Parameters
    ----------
    costs
        By capacity.
    """

    def __init__(self, graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan) -> None:
        self._graph = graph
        native = NativeProblem(graph, cluster, full_table(graph, cluster, costs))
        self._simulation = Simulation(native, plan.steps, plan.items, costs)
        self._runs = {
            step.task: number for number, step in enumerate(plan.steps) if isinstance(step, Run)
        }
        self._predicted = [
            (number, guard)
            for number, guard in enumerate(map(guard_of, plan.steps))
            if guard is not None and guard.when == "predicted"
        ]

    def of(self, decision: Decision) -> StepTimes:
        """Return them; what is predicted wrongly is not begun any more once its router has
        decided."""
        times = self._simulation.times(decision)
        refuted = [
            number
            for number, guard in self._predicted
            if not decision.loads[guard.router][guard.branch]
            and decision.makes(guard)
            and times.start_ns[number] >= times.finish_ns[self._deciding(guard)]
        ]
        return self._simulation.times(decision, refuted) if refuted else times

    def _deciding(self, guard: Guard) -> int:
        """The step that runs the router of a guard."""
        return self._runs[self._graph.routers[guard.router].task]


def load_shares(
    graph: TaskGraph,
    profile: RouteProfile | None,
    predicted: Collection[tuple[int, int]] = (),
) -> Mapping[tuple[str, int], LoadShares]:
    """Return how often each branch has which load, by router's name and branch.

    Parameters
    ----------
    profile
        None: in each run of its router every branch has the same load.
    predicted
        (router id, branch) of whole tensors that are computed whenever there is a run.

    Raises
    ------
    RoutingError
        The profile lacks a router, or has no run of one that is reached.
    """
    shares: dict[tuple[str, int], LoadShares] = {}
    for router in graph.routers:
        reached = 1.0
        if router.parent is not None:
            reached = sum(share for load, share in shares[router.parent] if load)
        even = ceil(router.num_cells * router.top_k / router.num_branches)
        router_profile = None if profile is None else profile.router(router.name)
        if router_profile is not None and reached:
            _require_runs(router_profile)
        for branch in range(router.num_branches):
            pmf = ((even, 1.0),) if router_profile is None else router_profile.load_pmf(branch)
            shares[router.name, branch] = tuple((load, reached * share) for load, share in pmf)
            if (graph.router_ids[router.name], branch) in predicted:
                shares[router.name, branch] = ((1, 1.0),)
    return shares


def expected_table(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    profile: RouteProfile | None,
    predicted: Collection[tuple[int, int]] = (),
) -> CostTable:
    """Return what each task takes on average, of one item; what solvers of routed networks take.

    Of a task in a branch that is the mean over its loads of its times at the capacities that they
    are padded to, rounded up; of others what `costs` says. `predicted` as in `load_shares`.

    Raises
    ------
    MissingCostError
        `costs` has no times for a capacity.
    RoutingError
        As `load_shares`.
    """
    shares = load_shares(graph, profile, predicted)

    def cost(task: int, device: int) -> Cost:
        router, branch = _branch_of(graph, task)
        capacities = router.capacities[branch]
        times_ns: dict[int, int] = {}
        for rows in capacities:  # also of a branch that was never taken
            run_ns = costs.run_ns(task, device, rows)
            if run_ns is None:
                return costs.cost(task, device, rows)
            times_ns[rows] = run_ns
        mean = 0.0
        for load, share in shares[router.name, branch]:
            padded = padded_load(load, capacities, router.overflow)
            full, rest = divmod(padded, capacities[-1])
            for rows, times in ((capacities[-1], full), (rest, 1 if rest else 0)):
                mean += share * times * (times_ns[rows] if times else 0)
        return Cost.scaled(ceil(mean), "expected over the loads of its branch")

    return _table(graph, cluster, costs, cost)


def typical_capacity(graph: TaskGraph, profile: RouteProfile | None) -> int:
    """Return the median of the capacities that branches run at; 1 if there are none.

    Parameters
    ----------
    profile
        As of `load_shares`, which also says what is raised.
    """
    shares = load_shares(graph, profile)
    runs = sorted(
        (min(padded_load(load, sizes, router.overflow), sizes[-1]), share)
        for router in graph.routers
        for branch, sizes in enumerate(router.capacities)
        for load, share in shares[router.name, branch]
        if load
    )
    half, passed = sum(share for _, share in runs) / 2, 0.0
    for capacity, share in runs:
        passed += share
        if passed >= half:
            return capacity
    return 1


def full_table(graph: TaskGraph, cluster: Cluster, costs: CostTable) -> CostTable:
    """Return what each task takes if each branch has as many cells as it can have at once: its
    largest capacity, where `costs` is by capacity."""
    if costs.batches == (1,):
        return costs

    def cost(task: int, device: int) -> Cost:
        router, branch = _branch_of(graph, task)
        capacities = router.capacities[branch]
        is_by_capacity = set(capacities) <= set(costs.batches)
        return costs.cost(task, device, capacities[-1] if is_by_capacity else 1)

    return _table(graph, cluster, costs, cost)


def _branch_of(graph: TaskGraph, task: int) -> tuple[Router, int]:
    router, branch = graph.branches[task][0]
    return graph.routers[router], branch


def _table(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, of_branch: Callable[[int, int], Cost]
) -> CostTable:
    """A table of one item whose tasks in branches cost what `of_branch` says."""
    costs.check(graph, cluster)

    def cost(task: int, device: int) -> Cost:
        if graph.tasks[task].branch is None:
            return costs.cost(task, device)
        return of_branch(task, device)

    return replace(build_table(graph, cluster, cost), collectives=costs.collectives)
