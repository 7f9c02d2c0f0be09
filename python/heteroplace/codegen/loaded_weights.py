"""Calls of a routed network + plan -> calls that read weights which the plan loads in the run.

Weights of tasks that a plan loads are kept in one memory and copied to where the tasks run, into
bytes that they hold from then to the last of these runs, as any value. A load that was predicted
and one that was missed fill the same bytes, and only one of them is made.

before ==> after, for a load of the weights of a

    y = a(x, w)  ==>  w' = copy of w; y = a(x, w')
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from heteroplace.codegen.instructions import Instruction
from heteroplace.codegen.kernels import KernelCall, KernelCalls, LoadedWeight, Value, Variant
from heteroplace.errors import LoweringError
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Load, Plan, guard_of


def with_loads(calls: KernelCalls, graph: TaskGraph, plan: Plan) -> KernelCalls:
    """Return the calls with the weights that a plan loads; of a plan without, as they are.

    Weights that other tasks read too stay where they are from the start.

    Raises
    ------
    LoweringError
        The weights of a task are loaded twice, and not once predicted and once missed.
    """
    if not plan.loads:
        return calls
    return _Loader(calls, graph, plan).loaded()


class _Loader:
    def __init__(self, calls: KernelCalls, graph: TaskGraph, plan: Plan) -> None:
        self._calls = calls
        self._plan = plan
        self._values = list(calls.values)
        self._loads: dict[str, list[int]] = defaultdict(list)
        """By task, the steps that load its weights."""
        for index, step in enumerate(plan.steps):
            for task in step.tasks if isinstance(step, Load) else ():
                self._loads[graph.tasks[task].name].append(index)
        self._own: set[int] = set()
        """Weights that tasks read alone whose weights are loaded."""
        self._found: list[LoadedWeight] = []
        self._loaded: dict[tuple[int, int], int] = {}
        """By step and weight, the value that it becomes."""

    def loaded(self) -> KernelCalls:
        readers: dict[int, set[str]] = defaultdict(set)
        for call in self._calls.calls:
            for value in call.reads:
                if self._calls.values[value].constant is not None:
                    readers[value].add(call.task)
        self._own = {
            value for value, tasks in readers.items() if all(self._loads.get(t) for t in tasks)
        }
        found = tuple(self._call(call) for call in self._calls.calls)
        return replace(
            self._calls, values=tuple(self._values), calls=found, loads=tuple(self._found)
        )

    def _call(self, call: KernelCall) -> KernelCall:
        steps = self._loads.get(call.task)
        if not steps:
            return call
        when = [_when(self._plan, step) for step in steps]
        if len(steps) > 1 and sorted(when) != ["missed", "predicted"]:
            raise LoweringError(
                f"the weights of task {call.task!r} are loaded by steps {steps}; expected one "
                f"step, or a predicted one and a missed one"
            )
        steps = sorted(steps, key=lambda step: when[steps.index(step)] != "predicted")
        run = None if call.at is None else guard_of(self._plan.steps[call.at[0]])
        if run is not None and run.when == "predicted":
            steps = steps[:1]
        variants = tuple(
            Variant(
                variant.capacity,
                variant.kernel,
                tuple(self._value(value, steps) for value in variant.reads),
                variant.writes,
            )
            for variant in call.variants
        )
        return replace(
            call,
            reads=tuple(self._value(value, steps) for value in call.reads),
            variants=variants,
        )

    def _value(self, value: int, steps: list[int]) -> int:
        """What a call reads in place of a weight, after the last of the steps that load it."""
        if value not in self._own:
            return value
        before: int | None = None
        for step in steps:
            if (step, value) not in self._loaded:
                own = self._values[value]
                self._loaded[step, value] = len(self._values)
                self._values.append(Value(own.shape, own.dtype, in_place_of=before))
                self._found.append(LoadedWeight(value, self._loaded[step, value], step))
            before = self._loaded[step, value]
        assert before is not None
        return before


def load_copies(
    calls: KernelCalls, plan: Plan, spans: Mapping[int, tuple[int, int]]
) -> list[Instruction]:
    """Return the copies of all weights that a plan loads, each over its whole route.

    Parameters
    ----------
    spans
        Predicted start and finish of each step.
    """
    found = []
    for each in calls.loads:
        step = plan.steps[each.step]
        assert isinstance(step, Load)
        before = calls.values[each.value].in_place_of
        found.append(
            Instruction(
                None,
                None,
                step.route,
                each.step,
                *spans[each.step],
                (),
                ((each.value, step.dst),),
                source=(each.weight, step.src),
                replaces=() if before is None else ((before, step.dst),),
                guard=step.guard,
            )
        )
    return found


def _when(plan: Plan, step: int) -> str:
    guard = guard_of(plan.steps[step])
    return "active" if guard is None else guard.when
