"""A solution and a task -> why it is there, what each other device would cost, who waits for it.

What moving a task would cost is found by doing it: the placement with that task on another device
is scheduled again in the order of the plan, and simulated.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from heteroplace.model.answers import Choice, Moment, Reader, TaskAnswer
from heteroplace.model.cost import CostTable
from heteroplace.model.demands import layers_of
from heteroplace.model.plan import Collective, Copy, Load, Run, Step
from heteroplace.model.solution import Solution
from heteroplace.model.step_values import Place, items_of, makes, occupied, reads
from heteroplace.model.text.plan import step_name
from heteroplace.native.arrays import IMPOSSIBLE, IntArray
from heteroplace.native.list import evaluate_order
from heteroplace.native.simulate import simulate_plan
from heteroplace.native.throughput import placement_loads
from heteroplace.questions.judging import is_for_solvers, judge, judged_ns
from heteroplace.questions.names import find_tasks
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.explain import Reasons
from heteroplace.solve.objective import THROUGHPUT
from heteroplace.solve.problem import Problem

_UNKNOWN = "what moving it would cost is not known: "


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
    tasks = find_tasks(solution.graph, name)
    asked = _Asked(solution)
    return tuple(map(asked.about, tasks))


class _Asked:
    """A solution that several things are asked of; what is found once is kept."""

    def __init__(self, solution: Solution) -> None:
        graph, cluster = solution.graph, solution.cluster
        self._solution = solution
        self._is_per_item = solution.item_ns is not None
        self._times = simulate(graph, cluster, solution.costs, solution.plan).step_times
        self._devices = solution.plan.devices_of_tasks(len(graph.tasks))
        self._objective_ns = judged_ns(solution)
        self._problem = None
        if is_for_solvers(graph) and solution.plan.items == 1:
            self._problem = Problem(graph, cluster, solution.costs)

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
            self._readers(task, steps[0]),
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
        objective = THROUGHPUT if self._is_per_item else "latency"
        return Reasons(self._problem, self._solution.plan, objective).of(task)

    def _choices(self, task: int) -> tuple[Choice, ...]:
        solution, problem = self._solution, self._problem
        judge_on = self._judge_moved(task)
        baseline, _ = judge_on(self._devices[task][0])
        found = []
        for device, owner in enumerate(solution.cluster.devices):
            cost = solution.costs.cost(task, device)
            is_chosen = device in self._devices[task]
            total, note = judge_on(device)
            if problem is not None and problem.native.run_ns[task, device] == IMPOSSIBLE:
                total, note = None, self._why_not(task, device)
            change = None if total is None or baseline is None else total - baseline
            found.append(Choice(owner.name, cost.ns, cost.source, is_chosen, total, change, note))
        return tuple(found)

    def _judge_moved(self, task: int) -> Callable[[int], tuple[int | None, str]]:
        """Return what says, for a device, the objective with the task on it, or None and why."""
        problem, plan, graph = self._problem, self._solution.plan, self._solution.graph
        if problem is None:
            why = "the plan is for several items" if plan.items > 1 else "solvers cannot move it"
            return lambda device: (None, _UNKNOWN + why)
        native = problem.native
        placement: IntArray = np.array(native.placement(plan.steps), dtype=np.int64)
        order = [step.task for step in plan.steps if isinstance(step, Run)]
        group = graph.tasks[task].together
        members = [i for i, other in enumerate(graph.tasks) if group and other.together == group]
        note = f"with the {len(members) - 1} others of {group!r}" if len(members) > 1 else ""
        sizes = [memory.bytes for memory in problem.cluster.memories]

        def judged(device: int) -> tuple[int | None, str]:
            moved = placement.copy()
            moved[members or [task]] = device
            if np.any(native.run_ns[np.arange(len(moved)), moved] == IMPOSSIBLE):
                return None, "a task that must stay with it cannot run there"
            if self._is_per_item:
                loads = placement_loads(native, moved)
                if loads.num_unreachable:
                    return None, "no route leads there"
                if any(used > size for used, size in zip(loads.used_bytes, sizes, strict=True)):
                    return None, "a memory would be too small"
                return loads.item_ns, note
            native_plan = evaluate_order(native, moved, order)
            if native_plan.violation:
                return None, "a memory would be too small, or no route leads there"
            return simulate_plan(native, native_plan).makespan_ns, note

        return judged

    def _why_not(self, task: int, device: int) -> str:
        value, cost = self._solution.graph.tasks[task], self._solution.costs.cost(task, device)
        name = self._solution.cluster.devices[device].name
        if value.devices is not None and name not in value.devices:
            return f"it may run only on {', '.join(value.devices)}"
        if cost.ns is None:
            return cost.reason or "it cannot run there"
        return "the tasks that must stay with it cannot run there, or no route leads there"

    def _waits_for(self, index: int) -> tuple[Moment, ...]:
        """What a step needs, and when each was ready; the latest first."""
        solution = self._solution
        graph, cluster, steps = solution.graph, solution.cluster, solution.plan.steps
        step = steps[index]
        needed = self._values(reads(graph, cluster, step), step)
        own = set(occupied(graph, cluster, step))
        moments: dict[object, Moment] = {}
        for earlier, other in enumerate(steps[:index]):
            if earlier not in self._times:
                continue
            finish = self._times[earlier][1]
            name = step_name(other, graph, cluster)
            for value in sorted(needed & self._values(makes(graph, cluster, other), other)):
                moments[value] = Moment(_said(solution, name, other), finish)
            if own.intersection(occupied(graph, cluster, other)):
                busy = moments.get("busy")
                if busy is None or finish >= busy.ready_ns:
                    moments["busy"] = Moment(f"the device, which ran {name}", finish)
        return tuple(sorted(moments.values(), key=lambda moment: -moment.ready_ns))

    def _values(self, places: Iterable[Place], step: Step) -> set[tuple[int, int, int]]:
        """(tensor, memory, item) of places that a step reads or makes."""
        if isinstance(step, Load):
            return set()
        graph = self._solution.graph
        return {
            (tensor, memory, item)
            for tensor, memory in places
            for item in items_of(graph, tensor, step.items)
        }

    def _readers(self, task: int, index: int) -> tuple[Reader, ...]:
        solution = self._solution
        graph, cluster, steps = solution.graph, solution.cluster, solution.plan.steps
        made = set(graph.task_outputs[task])
        there: dict[tuple[int, int, int], int] = {}
        found: dict[int, Reader] = {}
        for later in range(index, len(steps)):
            if later not in self._times:
                continue
            step, (start, finish) = steps[later], self._times[later]
            if isinstance(step, (Run, Collective)) and step.task != task:
                read = self._values(reads(graph, cluster, step), step)
                ready = [there[value] for value in read if value in there]
                if ready and step.task not in found:
                    device = "+".join(cluster.devices[one].name for one in self._devices[step.task])
                    name = graph.tasks[step.task].name
                    found[step.task] = Reader(name, device, start, start - max(ready))
            for value in self._values(makes(graph, cluster, step), step):
                if value[0] in made and (isinstance(step, Copy) or _is_of(step, task)):
                    there.setdefault(value, finish)
        return tuple(sorted(found.values(), key=lambda reader: reader.start_ns))

    def _saved_ns(self, task: int) -> int | None:
        solution = self._solution
        if solution.plan.is_guarded:
            return None
        costs = _without_time(solution.costs, task)
        without = judge(
            solution.graph, solution.cluster, costs, solution.plan, is_per_item=self._is_per_item
        )
        return self._objective_ns - without


def _is_of(step: object, task: int) -> bool:
    return isinstance(step, (Run, Collective)) and step.task == task


def _said(solution: Solution, name: str, step: object) -> str:
    if isinstance(step, Copy):
        return f"the copy {name}"
    if isinstance(step, Run):
        return f"{name} on {solution.cluster.devices[step.device].name}"
    return name


def _without_time(costs: CostTable, task: int) -> CostTable:
    """The table in which a task takes no time wherever it can run."""
    begin = task * costs.num_devices
    tables = []
    for times in costs.ns:
        changed = array("q", times)
        for cell in range(begin, begin + costs.num_devices):
            changed[cell] = min(changed[cell], 0)  # below are no times but signs of none
        tables.append(changed)
    return replace(costs, ns=tuple(tables))
