"""Branches that are predicted: solved as if nothing decided on them, run when that is decided not.

To a solver a predicted branch does not hang on its router, so that it may be placed beside it. In
the plan its runs are made where the solver has put them, if they were predicted, and else (missed)
right before something outside of the branch reads what they make.

Source: Cui et al., "Optimizing Dynamic Neural Networks with Brainstorm" (OSDI 2023), 4.3. Unlike
there nothing is rolled back: what a wrong prediction made is never read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from heteroplace.errors import RoutingError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Guard, Load, Plan, Run, Step
from heteroplace.model.step_values import Place, makes, reads
from heteroplace.parts.routing.solve.expected_view import bring

Branch = tuple[int, int]
"""(router id, branch)"""


def speculated_view(view: TaskGraph, graph: TaskGraph, predicted: Collection[Branch]) -> TaskGraph:
    """Return the view of a routed network in which predicted branches read nothing of their router.

    Parameters
    ----------
    view
        As `expected_view` returns it.
    predicted
        Branches of `graph`.

    Raises
    ------
    RoutingError
        A branch has rows, which its router has to say, or routers of its own.
    """
    for router_id, branch in sorted(predicted):
        router = graph.routers[router_id]
        fault = ""
        if router.num_cells > 1:
            fault = f"it routes {router.num_cells} cells, whose rows are known when it has decided"
        elif any(other.parent == (router.name, branch) for other in graph.routers):
            fault = "it has a router in it"
        if fault:
            raise RoutingError(
                f"branch {branch} of router {router.name!r} cannot be predicted: {fault}"
            )
    tensors = list(view.tensors)
    for router_id in sorted({router for router, _ in predicted}):
        outputs = graph.task_outputs[graph.routers[router_id].task]
        for tensor in outputs:
            tensors[tensor] = replace(
                tensors[tensor],
                consumers=tuple(
                    task
                    for task in tensors[tensor].consumers
                    if not graph.branches[task] or graph.branches[task][0] not in predicted
                ),
            )
    return replace(view, tensors=tuple(tensors))


def behind_routers(
    view: TaskGraph, graph: TaskGraph, cluster: Cluster, plan: Plan, predicted: Collection[Branch]
) -> Plan:
    """Return a plan of the speculated view whose copies of what predicted branches make come behind
    their routers, as do the steps that need them: copies are guarded by what was decided."""
    if not predicted:
        return plan
    assert cluster.host is not None
    there: set[Place] = {(tensor, cluster.host) for tensor in graph.inputs}
    decided: set[int] = set()
    ordered: list[Step] = []

    def is_ready(step: Step) -> bool:
        if isinstance(step, Copy):
            maker = graph.tensors[step.tensor].producer
            around = () if maker is None else graph.branches[maker]
            if (
                around
                and around[0] in predicted
                and graph.routers[around[0][0]].task not in decided
            ):
                return False
        return there.issuperset(reads(view, cluster, step))

    waiting: list[Step] = []
    for step in plan.steps:
        waiting.append(step)
        while ready := next(filter(is_ready, waiting), None):
            waiting.remove(ready)
            ordered.append(ready)
            there.update(makes(view, cluster, ready))
            if isinstance(ready, Run):
                decided.add(ready.task)
    return replace(plan, steps=(*ordered, *waiting))


def speculated(
    graph: TaskGraph, cluster: Cluster, plan: Plan, predicted: Collection[Branch]
) -> Plan:
    """Return a guarded plan whose predicted branches are run as predicted, and as missed.

    Parameters
    ----------
    plan
        Of the speculated view, guarded.

    Raises
    ------
    PlanError
        The decision cannot reach a memory.
    """
    if not predicted:
        return plan
    return replace(plan, steps=tuple(_Speculating(graph, cluster, plan, predicted).steps()))


class _Speculating:
    """Walks a plan once."""

    def __init__(
        self, graph: TaskGraph, cluster: Cluster, plan: Plan, predicted: Collection[Branch]
    ) -> None:
        self._graph = graph
        self._cluster = cluster
        self._plan = plan
        self._predicted = frozenset(predicted)
        self._there: set[Place] = set()
        self._pending: dict[Branch, list[Run]] = {}
        """Predicted runs whose missed ones are still to come."""

    def steps(self) -> Iterator[Step]:
        """The steps of the plan."""
        for step in self._plan.steps:
            branch = self._branch_of(step)
            for read in self._branches_read(step, branch):
                yield from self._missed(read)
            if isinstance(step, Run) and branch is not None:
                run = replace(step, guard=Guard(*branch, "predicted"))
                self._pending.setdefault(branch, []).append(run)
                step = run
            elif isinstance(step, Copy) and (step.tensor, step.dst) in self._there:
                continue  # what a missed run has needed earlier
            yield from self._noted(step)

    def _branch_of(self, step: Step) -> Branch | None:
        """The predicted branch that a run is in."""
        if not isinstance(step, Run):
            return None
        around = self._graph.branches[step.task]
        return around[0] if around and around[0] in self._predicted else None

    def _branches_read(self, step: Step, own: Branch | None) -> list[Branch]:
        """Predicted branches of which a step reads what they make, but for its own."""
        if isinstance(step, Load):
            return []
        if isinstance(step, Copy):
            tensors: tuple[int, ...] = (step.tensor,)
        else:
            tensors = self._graph.task_inputs[step.task]
        branches: dict[Branch, None] = {}
        for tensor in tensors:
            maker = self._graph.tensors[tensor].producer
            around = () if maker is None else self._graph.branches[maker]
            if around and around[0] != own and around[0] in self._pending:
                branches[around[0]] = None
        return list(branches)

    def _missed(self, branch: Branch) -> Iterator[Step]:
        """The runs of a branch that was not predicted."""
        decision = self._graph.task_outputs[self._graph.routers[branch[0]].task]
        for run in self._pending.pop(branch):
            memory = self._cluster.devices[run.device].memory
            for tensor in self._graph.task_inputs[run.task]:
                if tensor in decision:  # the view did not tell the solver that it is read
                    yield from bring(self._graph, self._cluster, self._there, tensor, memory)
            yield from self._noted(replace(run, guard=Guard(*branch, "missed")))

    def _noted(self, step: Step) -> Iterator[Step]:
        yield step
        self._there.update(makes(self._graph, self._cluster, step))
