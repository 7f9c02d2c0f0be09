"""What is wrong with the guards and loads of a plan: what is there when, whatever routers decide.

A guarded step makes its value in some runs only. Of the runs in which the branch has cells, a value
is there where a prediction said so, where it did not, or in both cases. A step may read it if it is
there whenever the step is made and anything comes of it: what is predicted in vain may read
anything, as nothing reads what it makes.
"""

from __future__ import annotations

from collections.abc import Iterator

from heteroplace.errors import PlanError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import WHEN, Copy, Load, Plan, Run, Step, guard_of
from heteroplace.model.routed.routers import branches_around
from heteroplace.model.step_values import Place, loaded_places, makes

_MISSED, _PREDICTED = 1, 2
_BOTH = _MISSED | _PREDICTED
_CASES = {"active": _BOTH, "predicted": _PREDICTED, "missed": _MISSED}
_WHERE = {
    _MISSED: "where it is not predicted",
    _PREDICTED: "where it is predicted",
    _BOTH: "where it has cells",
}
_Branch = tuple[int, int]
"""(router id, branch)"""
_Cases = tuple[_Branch, int]
"""In which runs something is there: of those in which a branch has cells, the cases."""


def unknown_guard(graph: TaskGraph, step: Step) -> list[tuple[str, int, int]]:
    """Return (kind, id, how many there are) of what the guard of a step names in vain."""
    guard = guard_of(step)
    if guard is None:
        return []
    if guard.router not in range(len(graph.routers)):
        return [("router", guard.router, len(graph.routers))]
    num_branches = graph.routers[guard.router].num_branches
    is_known = guard.branch in range(num_branches)
    return [] if is_known else [("branch", guard.branch, num_branches)]


def require_unguarded(plan: Plan, what: str) -> None:
    """Raise unless all steps of a plan are made in every run, and none loads weights.

    Parameters
    ----------
    what
        That knows nothing of them, e.g. "programs of ranks".

    Raises
    ------
    PlanError
        Some are not; the first is named.
    """
    for index, step in enumerate(plan.steps):
        if isinstance(step, Load) or guard_of(step) is not None:
            kind = "loads weights" if isinstance(step, Load) else "is guarded by a router"
            raise PlanError(
                f"step {index} of the plan by {plan.origin!r} {kind}, and {what} make every step "
                f"in every run; give a plan without guards and loads"
            )


class GuardCheck:
    """Walks a plan once, step by step; the ids in the steps must exist."""

    def __init__(self, graph: TaskGraph, cluster: Cluster, plan: Plan) -> None:
        """Begin."""
        self._graph = graph
        self._cluster = cluster
        self._num_items = plan.items
        self._to_load = loaded_places(plan.steps)
        self.concerns_plan = bool(graph.routers) or bool(self._to_load)
        """Whether there is anything to check."""
        self._values: dict[Place, _Cases] = {}
        """Of tensors that only guarded steps have made or brought."""
        self._runs: dict[int, tuple[int, int]] = {}
        """Cases and device of tasks that guarded steps have run."""
        self._weights: dict[tuple[int, int], _Cases | None] = {}
        """Of the weights of (task, memory) that loads have brought; None: in every run."""
        self._unused: dict[tuple[int, int], int] = {}
        """Last step that brought the weights of (task, memory), until they are used."""
        self._ran: dict[tuple[int, int], int] = {}
        """Cases in which (task, memory) has run so far."""

    def guard_faults(self, step: Run | Copy | Load) -> Iterator[str]:
        """What is wrong with the guard of a step in itself."""
        if self._num_items != 1 and (step.guard is not None or isinstance(step, Load)):
            yield f"in a plan of {self._num_items} items; guarded steps and loads are for one item"
        if step.guard is None:
            return
        if step.guard.when not in WHEN:
            yield f"it is guarded by {step.guard.when!r}; expected one of {', '.join(WHEN)}"
        if step.guard.when == "active" or isinstance(step, Load):
            return
        router = self._graph.routers[step.guard.router]
        moved = [step.tensor] if isinstance(step, Copy) else self._values_of(step.task)
        if router.num_cells != 1 or any(self._graph.tensors[t].buffer for t in moved):
            yield (
                f"router {router.name!r} is predicted to take branches, not with how many cells; "
                f"expected a guard by 'active', or whole tensors as cells"
            )

    def run_faults(self, step: Run) -> Iterator[str]:
        """What is wrong with when a run is made; notes it."""
        own = self._graph.branches[step.task][:1]
        around = self._around(step)[:1]
        if own != around:
            yield (
                f"the task is in {self._name(*own)} and the step is guarded by "
                f"{self._name(*around)}; expected the guard of its branch"
            )
        memory = self._cluster.devices[step.device].memory
        yield from self._weight_faults(step, memory)
        cases = _BOTH if step.guard is None else _CASES.get(step.guard.when, _BOTH)
        self._ran[step.task, memory] = self._ran.get((step.task, memory), 0) | cases
        self._unused.pop((step.task, memory), None)
        if step.guard is None:
            return
        before, device = self._runs.get(step.task, (0, step.device))
        if before & cases:
            yield f"the task has run before {_WHERE[before & cases]}"
        if device != step.device:
            here, there = (self._cluster.devices[d].name for d in (step.device, device))
            yield f"the task runs on {here}; {_WHERE[before]} it has run on {there}"
        self._runs[step.task] = before | cases, step.device

    def load_faults(self, index: int, step: Load) -> Iterator[str]:
        """What is wrong with a load but its way; notes it."""
        if not step.tasks or list(step.tasks) != sorted(set(step.tasks)):
            yield f"its tasks are {step.tasks}; expected some, ascending"
        key = next(iter(self._around(step)), None)
        cases = _BOTH if step.guard is None else _CASES.get(step.guard.when, _BOTH)
        for task in step.tasks:
            place = task, step.dst
            name = self._graph.tasks[task].name
            if self._ran.get(place, 0) & cases:
                yield f"task {name!r} has run there before"
            if place in self._weights:
                before = self._weights[place]
                if before is None or before[0] != key or before[1] & cases:
                    yield f"the weights of task {name!r} are there already"
                    continue
            earlier = self._weights.get(place)
            covered = cases | (0 if earlier is None else earlier[1])
            self._weights[place] = None if key is None else (key, covered)
            self._unused[place] = index

    def read_fault(self, step: Step | None, place: Place) -> str:
        """Return why a step may not read a tensor that some step has put there; "": it may.

        Parameters
        ----------
        step
            None: the tensor is read in every run.
        """
        cases = self._values.get(place)
        if cases is None:
            return ""
        producer = self._graph.tensors[place[0]].producer
        made_in = () if producer is None else self._graph.branches[producer][:1]
        # A task that joins branches asks the loads, as the graph makes sure, what is there.
        joins = not isinstance(step, (Copy, Load, type(None))) and cases[0] in made_in
        name = self._graph.tensors[place[0]].name
        return self._absence(step, cases, f"tensor {name!r} is", joins)

    def is_other_case(self, step: Copy, place: Place) -> bool:
        """Say whether a copy brings what is there already, but in other cases."""
        before = self._values.get(place)
        if step.guard is None or before is None:
            return False
        key = step.guard.router, step.guard.branch
        return before[0] == key and not before[1] & _CASES.get(step.guard.when, _BOTH)

    def make(self, step: Run | Copy) -> None:
        """Note what a step makes or brings."""
        if step.guard is None:
            return
        key = step.guard.router, step.guard.branch
        cases = _CASES.get(step.guard.when, _BOTH)
        for place in makes(self._graph, self._cluster, step):
            before = self._values.get(place, (key, 0))[1]
            self._values[place] = key, before | cases

    def end_faults(self) -> Iterator[tuple[int | None, str]]:
        """What is lacking at the end of the plan: (step, None if it is of none, fault)."""
        for task, (cases, _) in sorted(self._runs.items()):
            if cases != _BOTH:
                name, other = self._graph.tasks[task].name, _WHERE[_BOTH & ~cases]
                fault = f"task {name!r} is run only {_WHERE[cases]}; expected a run {other}, too"
                yield None, fault
        for (task, _), index in sorted(self._unused.items()):
            yield index, f"task {self._graph.tasks[task].name!r} does not run there"

    def _weight_faults(self, step: Run, memory: int) -> Iterator[str]:
        place = step.task, memory
        if place not in self._to_load:
            return
        if place not in self._weights:
            name = self._cluster.memories[memory].name
            yield f"its weights are loaded into memory {name!r} only after it"
            return
        cases = self._weights[place]
        if cases is not None:
            fault = self._absence(step, cases, "its weights are", joins=False)
            if fault:
                yield fault

    def _absence(self, step: Step | None, cases: _Cases, what: str, joins: bool) -> str:
        """Why a step may not read what is there in some cases only; "": it may."""
        branch, there = cases
        guard = None if step is None else guard_of(step)
        around = () if step is None else self._around(step)
        if branch not in around and not joins:
            return f"{what} there only where {self._name(branch)} has cells"
        is_own = guard is not None and (guard.router, guard.branch) == branch
        needed = _CASES.get(guard.when, _BOTH) if guard is not None and is_own else _BOTH
        if needed & ~there:
            return (
                f"{what} there only {_WHERE[there]} that {self._name(branch)} has cells; "
                f"expected the same {_WHERE[needed & ~there]}"
            )
        return ""

    def _around(self, step: Step) -> tuple[_Branch, ...]:
        """The branches in which a step is made, by its guard, the innermost first."""
        guard = guard_of(step)
        if guard is None:
            return ()
        graph = self._graph
        branch = graph.routers[guard.router].name, guard.branch
        return branches_around(graph.routers, graph.router_ids, branch)

    def _name(self, branch: _Branch | None = None) -> str:
        if branch is None:
            return "no branch"
        return f"branch {branch[1]} of router {self._graph.routers[branch[0]].name!r}"

    def _values_of(self, task: int) -> tuple[int, ...]:
        return *self._graph.task_inputs[task], *self._graph.task_outputs[task]
