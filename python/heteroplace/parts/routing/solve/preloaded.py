"""Plan of a routed network + budget -> the plan whose weights of branches fit, some loaded in time.

Weights that do not stay are kept in another memory and brought, task by task, to a place in the
room for them. On demand that is as soon as their router has decided and there is room; the weights
of likely branches come ahead, behind all that the routers before have asked for (what is asked for
goes first), and are loaded on demand where that was not predicted. Where there is too little room
for what is loaded ahead, the least likely branch is loaded on demand instead.

Source: Cui et al., "Optimizing Dynamic Neural Networks with Brainstorm" (OSDI 2023), 4.4. Unlike
there what is held is bounded, a load is of one task, and who lies where is decided in the plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from heteroplace.errors import InfeasibleError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Guard, Load, Plan, Run, Step, guard_of
from heteroplace.model.routed.routers import branches_around
from heteroplace.model.step_values import makes, reads
from heteroplace.model.units import format_bytes
from heteroplace.parts.routing.solve.weight_places import WeightPlaces

Branch = tuple[int, int]
"""(router id, branch)"""


@dataclass(frozen=True)
class Preloading:
    """What is to be loaded when; branches are those that are in no other branch."""

    budget_bytes: int
    """For the weights of branches in each memory where branches run."""
    kept: tuple[Branch, ...]
    """Those whose weights stay, as far as they leave room for the others; the dearest first."""
    ahead: tuple[Branch, ...]
    """Those whose weights are loaded before their router has decided, the likeliest first."""
    sizes: tuple[int, ...]
    """[num_tasks], bytes that the weights of each take where kernels read them."""


def preloading_view(view: TaskGraph, graph: TaskGraph, preloading: Preloading) -> TaskGraph:
    """Return the view of a routed network whose branches all take their share of the budget.

    Parameters
    ----------
    view
        As `expected_view` returns it.
    """
    routed = [task for task in range(len(graph.tasks)) if graph.branches[task]]
    total = sum(preloading.sizes[task] for task in routed)
    if total <= preloading.budget_bytes:
        return view
    tasks = list(view.tasks)
    for task in routed:
        share = preloading.sizes[task] * preloading.budget_bytes // total
        tasks[task] = replace(view.tasks[task], weight_bytes=share)
    return replace(view, tasks=tuple(tasks))


def preloaded(graph: TaskGraph, cluster: Cluster, plan: Plan, preloading: Preloading) -> Plan:
    """Return a guarded plan with the loads that keep weights of branches within a budget.

    Raises
    ------
    InfeasibleError
        A branch is larger than the budget; no other memory can keep weights of a memory.
    """
    plan = replace(plan, steps=_likely_last(graph, cluster, plan.steps, preloading.ahead))
    loads = _loads_of(graph, cluster, plan, preloading)
    if loads is None:
        plan = replace(plan, steps=tuple(_unpredicted(plan.steps)))
        loads = _loads_of(graph, cluster, plan, preloading)
        assert loads is not None  # in the order of runs one task after the other has room
    before: dict[int, list[Load]] = defaultdict(list)
    for position, load in loads:
        before[position].append(load)
    steps: list[Step] = []
    for index, step in enumerate(plan.steps):
        steps += [*before[index], step]
    return replace(plan, steps=tuple(steps), weights_budget=preloading.budget_bytes)


def _loads_of(
    graph: TaskGraph, cluster: Cluster, plan: Plan, preloading: Preloading
) -> list[tuple[int, Load]] | None:
    """(the step before which it comes, load) of all memories; None: see `_MemoryPlan.loads`."""
    loads_to_add: list[tuple[int, Load]] = []
    runs = [step for step in plan.steps if isinstance(step, Run)]
    for memory in sorted({cluster.devices[run.device].memory for run in runs}):
        loads = _MemoryPlan(graph, cluster, plan, preloading, memory).loads()
        if loads is None:
            return None
        loads_to_add += loads
    return loads_to_add


def _unpredicted(steps: Iterable[Step]) -> Iterator[Step]:
    """The steps without those that are predicted: what was missed is what is active."""
    for step in steps:
        guard = guard_of(step)
        if guard is None or guard.when == "active" or not isinstance(step, Run):
            yield step
        elif guard.when == "missed":
            yield replace(step, guard=replace(guard, when="active"))


def _likely_last(
    graph: TaskGraph, cluster: Cluster, steps: Sequence[Step], ahead: Sequence[Branch]
) -> tuple[Step, ...]:
    """The steps with branches that are loaded ahead behind the others of their router.

    What the next router wants ahead comes behind what is loaded on demand, so that must not wait
    for a likely branch to be done.
    """
    ordered = list(steps)
    around = {guard: _outer_of(graph, guard) for guard in map(guard_of, steps) if guard is not None}
    for router in dict.fromkeys(router for router, _ in ahead):
        outer = [None if (guard := guard_of(step)) is None else around[guard] for step in ordered]
        mine = [at for at, branch in enumerate(outer) if branch is not None and branch[0] == router]
        if not mine:
            continue
        window = range(mine[0], mine[-1] + 1)
        likely = {branch for branch in ahead if branch[0] == router}
        moved = [at for at in window if outer[at] in likely]
        values = {place for at in moved for place in makes(graph, cluster, ordered[at])}
        others = [at for at in window if at not in set(moved)]
        read = {place for at in others for place in reads(graph, cluster, ordered[at])}
        if not values & read:
            ordered[window.start : window.stop] = [ordered[at] for at in (*others, *moved)]
    return tuple(ordered)


def _outer_of(graph: TaskGraph, guard: Guard) -> Branch:
    """The branch in no other one that a guard is of, or is in."""
    branch = graph.routers[guard.router].name, guard.branch
    return branches_around(graph.routers, graph.router_ids, branch)[-1]


def _times(weights: _Weights, position: int) -> list[tuple[str, int]]:
    """When weights are loaded: the word of the guard, the step before which that is."""
    is_decided = position >= weights.ready and not weights.is_predicted
    if is_decided or not weights.is_ahead:
        return [("active", position)]
    return [("predicted", position), ("missed", max(position, weights.ready))]


@dataclass(frozen=True)
class _Weights:
    """Of one task, to be loaded."""

    task: int
    size: int
    outer: Branch
    guard: Guard
    """Of its run, but for when."""
    is_ahead: bool
    is_predicted: bool
    """Its first run is."""
    ready: int
    """The step before which it can come if it is not ahead."""
    first: int
    """Its first run."""
    last: int
    """Its last run; of one that is predicted that is the one that is missed."""
    takes_turns: bool
    """Loaded on demand, and no other branch of its router runs in the same run of the network."""


class _MemoryPlan:
    """The loads to one memory."""

    def __init__(
        self, graph: TaskGraph, cluster: Cluster, plan: Plan, preloading: Preloading, memory: int
    ) -> None:
        self._graph = graph
        self._cluster = cluster
        self._plan = plan
        self._preloading = preloading
        self._memory = memory
        self._runs: dict[int, list[int]] = defaultdict(list)
        """By task of a branch with weights, the runs in this memory."""
        self._decided: dict[int, int] = {}
        """By router, the step from which on its loads are here, whatever was predicted."""
        self._kept: frozenset[Branch] = frozenset()
        loads_of = {router.loads: id for id, router in enumerate(graph.routers)}
        for index, step in enumerate(plan.steps):
            if isinstance(step, Run) and self._has_weights_here(step):
                self._runs[step.task].append(index)
            for tensor, there in makes(graph, cluster, step):
                if there == memory and tensor in loads_of:
                    self._decided[loads_of[tensor]] = index + 1

    def loads(self) -> list[tuple[int, Load]] | None:
        """(the step before which it comes, load), in their order; None: predicted runs hold more
        weights at once than there is room for."""
        preloading = self._preloading
        groups: dict[Branch, int] = defaultdict(int)
        for task in self._runs:
            groups[self._graph.branches[task][-1]] += preloading.sizes[task]
        if sum(groups.values()) <= preloading.budget_bytes:
            return []
        largest = max(groups, key=lambda branch: groups[branch])
        if groups[largest] > preloading.budget_bytes:
            raise InfeasibleError(
                f"a budget of {format_bytes(preloading.budget_bytes)} for weights "
                f"does not hold those "
                f"of {self._called(largest)}, {format_bytes(groups[largest])}: give it at least "
                f"{groups[largest]} bytes"
            )
        room = self._keep(groups)
        self._source()
        count = len(preloading.ahead)
        while True:
            placed = self._placed(preloading.ahead[:count], room, in_order_of_runs=False)
            if placed is not None:
                return placed
            if not count:
                return self._placed((), room, in_order_of_runs=True)
            count = count * 3 // 4

    def _keep(self, groups: Mapping[Branch, int]) -> int:
        """Decide which branches stay; return what they leave of the budget."""
        branches = [branch for branch in self._preloading.kept if branch in groups]
        while True:
            room = self._preloading.budget_bytes - sum(groups[branch] for branch in branches)
            others = [size for branch, size in groups.items() if branch not in branches]
            if room >= max(others, default=0):
                self._kept = frozenset(branches)
                return room
            branches.pop()

    def _placed(
        self, ahead: Sequence[Branch], room: int, *, in_order_of_runs: bool
    ) -> list[tuple[int, Load]] | None:
        """The loads with these branches ahead; None: there is too little room."""

        def turn(weights: _Weights) -> tuple[int, ...]:
            if in_order_of_runs:
                return (weights.first,)
            router = weights.outer[0]
            decided = self._decided.get(router, weights.ready)
            return decided, router, 0 if weights.is_ahead else 1, weights.first

        turns = sorted(self._to_load(frozenset(ahead)), key=turn)
        lows = [each.first if each.is_ahead else each.ready for each in turns]
        lowest = list(accumulate(reversed(lows), min))[::-1]
        places = WeightPlaces(room)
        placed_loads: list[tuple[int, int, Load]] = []
        """(before which step, number, load)"""
        latest, router, behind = 0, -1, 0
        for weights, low in zip(turns, lowest, strict=True):
            if weights.outer[0] != router:
                router, behind = weights.outer[0], latest
                places.forget(min(behind, low))
            ready = behind if weights.is_ahead else weights.ready
            placed = places.place(
                *(weights.size, ready, weights.first, weights.last),
                takes_turns=weights.takes_turns,
            )
            if placed is None:
                return None
            position, begin = placed
            for when, at in _times(weights, position):
                latest = max(latest, at)
                load = self._load(weights, when, (begin, weights.size))
                placed_loads.append((at, len(placed_loads), load))
        return [(at, load) for at, _, load in sorted(placed_loads, key=lambda each: each[:2])]

    def _to_load(self, ahead: frozenset[Branch]) -> list[_Weights]:
        weights = []
        for task, runs in self._runs.items():
            outer, guard = self._outer(task), guard_of(self._plan.steps[runs[0]])
            if outer in self._kept:
                continue
            assert guard is not None  # a run in a branch has that of its branch
            is_predicted = guard.when == "predicted"
            router = self._graph.routers[guard.router]
            if outer in ahead and self._decided.get(outer[0], runs[0] + 1) <= runs[0]:
                guard = Guard(*outer)  # its router decides first
            is_ahead = is_predicted or (guard == Guard(*outer) and outer in ahead)
            weights.append(
                _Weights(
                    task,
                    self._preloading.sizes[task],
                    outer,
                    guard,
                    is_ahead,
                    is_predicted,
                    self._decided[guard.router],
                    runs[0],
                    runs[-1],
                    not is_ahead and router.num_cells == 1 and router.top_k == 1,
                )
            )
        return weights

    def _load(self, weights: _Weights, when: str, place: tuple[int, int]) -> Load:
        src = self._source()
        route = self._cluster.route(src, self._memory)
        guard = Guard(weights.guard.router, weights.guard.branch, when)
        return Load((weights.task,), src, self._memory, route, guard, place)

    def _source(self) -> int:
        """The memory that keeps the weights: one without devices, else the host's."""
        cluster, memory = self._cluster, self._memory
        used = {device.memory for device in cluster.devices}
        for link in cluster.links:
            if link.dst == memory and link.src not in used:
                return link.src
        host = cluster.host
        if host is not None and host != memory and cluster.is_reachable(host, memory):
            return host
        raise InfeasibleError(
            f"the weights of branches in memory {cluster.memories[memory].name!r} exceed the "
            f"budget of {format_bytes(self._preloading.budget_bytes)}, and no other memory can "
            f"keep them: add one without devices, and a link from it, to cluster {cluster.name!r}"
        )

    def _has_weights_here(self, run: Run) -> bool:
        """Whether it reads weights of a branch in this memory."""
        is_here = self._cluster.devices[run.device].memory == self._memory
        is_routed = bool(self._graph.branches[run.task])
        return is_here and is_routed and self._preloading.sizes[run.task] > 0

    def _outer(self, task: int) -> Branch:
        return self._graph.branches[task][-1]

    def _called(self, branch: Branch) -> str:
        return f"branch {branch[1]} of router {self._graph.routers[branch[0]].name!r}"
