"""A solution and a task -> why it is there, what each other device would cost, who waits for it.

What moving a task would cost is found by doing it (`solve.moves`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from heteroplace.model.answers import Choice, Moment, Reader, TaskAnswer
from heteroplace.model.collectives import CollectiveCosts
from heteroplace.model.cost import CostTable
from heteroplace.model.demands import layers_of
from heteroplace.model.plan import Collective, Copy, Load, Run, Step
from heteroplace.model.solution import Solution
from heteroplace.model.step_values import makers, occupied
from heteroplace.model.text.plan_text import step_name
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.questions.judging import judge, judged_ns
from heteroplace.questions.names import find_tasks
from heteroplace.solve.moves import moves, unmovable
from heteroplace.solve.objective import THROUGHPUT
from heteroplace.solve.plan_reasons import Reasons
from heteroplace.solve.problem import Problem


def explain(solution: Solution, name: str) -> tuple[TaskAnswer, ...]:
    """Explain every task that `name` means.

    Parameters
    ----------
    name
        Of a task, of a layer of the imported model, of an op, or a pattern of them ("conv*").

    Raises
    ------
    GraphError
        It means nothing; the nearest name is told.
    """
    return explain_tasks(solution, find_tasks(solution.graph, name))


def explain_tasks(solution: Solution, tasks: Iterable[int]) -> tuple[TaskAnswer, ...]:
    """Explain tasks, in that order."""
    question = _Asked(solution)
    return tuple(map(question.about, tasks))


class _Asked:
    """A solution that several things are asked of; what is found once is kept."""

    def __init__(self, solution: Solution) -> None:
        graph, cluster = solution.graph, solution.cluster
        self._solution = solution
        self._is_per_item = solution.item_ns is not None
        self._objective = THROUGHPUT if self._is_per_item else "latency"
        self._times = solution.timeline.step_times
        self._devices = solution.plan.devices_of_tasks(len(graph.tasks))
        self._objective_ns = judged_ns(solution)
        self._unmovable = unmovable(graph, solution.plan)
        self._problem = None if self._unmovable else Problem(graph, cluster, solution.costs)

    @cached_property
    def _makers(self) -> list[list[int]]:
        solution = self._solution
        return list(makers(solution.graph, solution.cluster, solution.plan.steps))

    @cached_property
    def _latest_before(self) -> list[int | None]:
        """For each step the earlier one that ended last of those on what it occupies."""
        solution, times = self._solution, self._times
        last: dict[int, tuple[int, int]] = {}  # resource -> (finish, step)
        latest: list[int | None] = []
        for index, step in enumerate(solution.plan.steps):
            own = occupied(solution.graph, solution.cluster, step)
            earlier = [last[resource] for resource in own if resource in last]
            latest.append(max(earlier)[1] if earlier else None)
            if index in times:
                now = times[index][1], index
                last.update((resource, max(now, last.get(resource, now))) for resource in own)
        return latest

    def about(self, task: int) -> TaskAnswer:
        """Return all there is to say about a task."""
        solution = self._solution
        value = solution.graph.tasks[task]
        steps = self._steps_of(task)
        first = min(steps, key=lambda index: self._times[index][0])
        return TaskAnswer(
            value.name,
            value.op,
            layers_of(value),
            tuple(solution.cluster.devices[device].name for device in self._devices[task]),
            self._times[first][0],
            max(self._times[index][1] for index in steps),
            self._reason(task),
            self._choices(task),
            self._waits_for(first),
            tuple(self._readers(task)),
            self._saved_ns(task),
            self._objective_ns,
            self._is_per_item,
        )

    def _steps_of(self, task: int) -> list[int]:
        return [
            index
            for index, step in enumerate(self._solution.plan.steps)
            if isinstance(step, (Run, Collective)) and step.task == task and index in self._times
        ]

    def _reason(self, task: int) -> str:
        reasons = self._solution.plan.reasons
        if reasons:
            return reasons[task]
        if self._problem is None:
            return ""
        return Reasons(
            self._problem, self._solution.plan, self._objective, self._solution.timeline
        ).of(task)

    def _choices(self, task: int) -> tuple[Choice, ...]:
        solution, problem, graph = self._solution, self._problem, self._solution.graph
        row: tuple[int | None, ...] = (None,) * len(solution.cluster.devices)
        baseline_ns = 0
        note = f"what moving it would cost is not known: {self._unmovable}"
        if problem is not None:
            answer = moves(problem, solution.plan, [task], self._objective)
            row, baseline_ns = answer.objective_ns[0], answer.baseline_ns
            group = graph.tasks[task].together
            others = sum(other.together == group for other in graph.tasks) - 1 if group else 0
            note = f"with the {others} others of {group!r}" if others else ""
        choices = []
        for device, (owner, total) in enumerate(zip(solution.cluster.devices, row, strict=True)):
            cost = solution.costs.cost(task, device)
            is_chosen = device in self._devices[task]
            change = None if total is None else total - baseline_ns
            why = note
            if problem is not None and total is None:
                why = self._why_not(problem, task, device)
            choices.append(Choice(owner.name, cost.ns, cost.source, is_chosen, total, change, why))
        return tuple(choices)

    def _why_not(self, problem: Problem, task: int, device: int) -> str:
        """Why there is no such plan."""
        value, cost = problem.graph.tasks[task], problem.costs.cost(task, device)
        name = problem.cluster.devices[device].name
        if value.devices is not None and name not in value.devices:
            return f"it may run only on {', '.join(value.devices)}"
        if cost.ns is None:
            return cost.reason or "it cannot run there"
        if problem.native.run_ns[task, device] == IMPOSSIBLE:
            return "the tasks that must stay with it cannot run there, or no route leads there"
        if self._solution.plan.items > 1:
            return "a memory would be too small, no route leads there, or not in such batches"
        return "a memory would be too small, or no route leads there"

    def _waits_for(self, index: int) -> tuple[Moment, ...]:
        """What a step needs, and when each was ready; the latest first."""
        solution, times = self._solution, self._times
        graph, cluster, steps = solution.graph, solution.cluster, solution.plan.steps
        needed = [maker for maker in self._makers[index] if maker in times]
        moments = [Moment(_said(solution, maker), times[maker][1]) for maker in needed]
        latest = self._latest_before[index]
        if latest is not None:
            name = step_name(steps[latest], graph, cluster)
            moments.append(Moment(f"the device, which ran {name}", times[latest][1]))
        return tuple(sorted(moments, key=lambda moment: -moment.ready_ns))

    def _readers(self, task: int) -> Iterator[Reader]:
        """Who reads what a task makes, the earliest start first; each by its first run."""
        solution, times = self._solution, self._times
        graph, steps = solution.graph, solution.plan.steps
        ready_ns = {
            index: times[index][1]
            for index, step in enumerate(steps)
            if index in times and self._brings(step, task)
        }
        runs = [
            (times[index][0], index, step.task)
            for index, step in enumerate(steps)
            if isinstance(step, (Run, Collective)) and step.task != task and index in times
        ]
        seen = set()
        for start, index, reader in sorted(runs):
            ready = [ready_ns[maker] for maker in self._makers[index] if maker in ready_ns]
            if ready and reader not in seen:
                seen.add(reader)
                places = "+".join(solution.cluster.devices[d].name for d in self._devices[reader])
                yield Reader(graph.tasks[reader].name, places, start, start - max(ready))

    def _brings(self, step: Step, task: int) -> bool:
        """Whether a step makes or moves what a task makes."""
        if isinstance(step, Copy):
            return self._solution.graph.tensors[step.tensor].producer == task
        return isinstance(step, (Run, Collective)) and step.task == task

    def _saved_ns(self, task: int) -> int | None:
        solution = self._solution
        if solution.plan.is_guarded:
            return None
        costs = _without_time(solution.costs, task, solution.graph.tasks[task].name)
        without = judge(
            solution.graph, solution.cluster, costs, solution.plan, is_per_item=self._is_per_item
        )
        return self._objective_ns - without


def _said(solution: Solution, index: int) -> str:
    step = solution.plan.steps[index]
    name = step_name(step, solution.graph, solution.cluster)
    if isinstance(step, Copy):
        return f"the copy {name}"
    if isinstance(step, Load):
        return f"the load of weights {name}"
    if isinstance(step, Run):
        return f"{name} on {solution.cluster.devices[step.device].name}"
    return name


def _without_time(costs: CostTable, task: int, name: str) -> CostTable:
    """The table in which a task takes no time wherever it can run, a collective either."""
    begin = task * costs.num_devices
    tables = []
    for times in costs.ns:
        changed = array("q", times)
        for cell in range(begin, begin + costs.num_devices):
            changed[cell] = min(changed[cell], 0)  # below are no times but signs of none
        tables.append(changed)
    collective_costs = costs.collectives or CollectiveCosts()
    collectives = replace(collective_costs, in_updates=collective_costs.in_updates | {name})
    return replace(costs, ns=tuple(tables), collectives=collectives)
