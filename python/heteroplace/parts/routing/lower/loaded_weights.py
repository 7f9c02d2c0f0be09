"""Calls of a routed network + plan -> calls that read weights which the plan loads in the run.

Weights of tasks that a plan loads are kept in one memory and copied to where the tasks run, into
bytes that they hold from then to the last of these runs, as any value, or at their place in the
room for weights, after those that were there before. A load that was predicted and one that was
missed fill the same bytes, and only one of them is made.

before ==> after, for a load of the weights of a

    y = a(x, w)  ==>  w' = copy of w; y = a(x, w')
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from heteroplace.errors import InfeasibleError, LoweringError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.kernels import KernelCall, KernelCalls, LoadedWeight, Value, Variant
from heteroplace.lower.order.instructions import Instruction
from heteroplace.lower.program import packed
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import allowed_devices
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Load, Plan, guard_of
from heteroplace.relay.targets import cluster_targets


def with_loads(calls: KernelCalls, graph: TaskGraph, plan: Plan) -> KernelCalls:
    """Return the calls with the weights that a plan loads; of a plan without, as they are.

    Weights that other tasks read too stay where they are from the start.

    Raises
    ------
    LoweringError
        The weights of a task are loaded twice, and not once predicted and once missed.
    InfeasibleError
        In the layouts of the kernels they are larger than the place that the plan has for them.
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
        self._filled: dict[int, int] = defaultdict(int)
        """By step, bytes of its place that have an owner."""

    def loaded(self) -> KernelCalls:
        readers: dict[int, set[str]] = defaultdict(set)
        for call in self._calls.calls:
            for value in call.reads:
                if self._calls.values[value].constant is not None:
                    readers[value].add(call.task)
        self._own = {
            value for value, tasks in readers.items() if all(self._loads.get(t) for t in tasks)
        }
        calls = tuple(self._call(call) for call in self._calls.calls)
        return replace(
            self._calls, values=tuple(self._values), calls=calls, loads=tuple(self._found)
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
        steps = sorted(steps, key=lambda step: _when(self._plan, step) != "predicted")
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
                load = self._plan.steps[step]
                assert isinstance(load, Load)
                offset = self._offset(load, step, own) if before is None else None
                loaded_weight = LoadedWeight(
                    value, self._loaded[step, value], load.dst, step, offset
                )
                self._found.append(loaded_weight)
            before = self._loaded[step, value]
        assert before is not None
        return before

    def _offset(self, load: Load, step: int, weight: Value) -> int | None:
        """Where in the room a weight lies that a step is the first to bring."""
        if load.place is None:
            return None
        offset = load.place[0] + self._filled[step]
        self._filled[step] += packed(weight.bytes)
        if self._filled[step] > load.place[1]:
            raise InfeasibleError(
                f"step {step} of the plan by {self._plan.origin!r} loads weights to a place of "
                f"{load.place[1]} bytes, and in the layouts of the kernels they take at least "
                f"{self._filled[step]}; give a larger budget for weights, or none"
            )
        return offset


def weight_sizes(compiled: CompiledNetwork, cluster: Cluster) -> tuple[int, ...]:
    """Return what a load of the weights of each task fills, [num_tasks], in bytes.

    Kernels lay weights out as they read them, in panels or in half precision: of the targets of
    devices that may run a task, the one counts whose kernels take most.

    Raises
    ------
    LoweringError
        As `CompiledNetwork.calls`.
    """
    graph, (_, target_of_device) = compiled.graph, cluster_targets(cluster)
    allowed = allowed_devices(graph, cluster)
    sizes = dict.fromkeys((task.name for task in graph.tasks), 0)
    for target in sorted(set(target_of_device)):
        device = target_of_device.index(target)
        placement = [device if device in ids else ids[0] for ids in allowed]
        sizes_of: dict[str, set[int]] = defaultdict(set)
        calls = compiled.calls(cluster, placement)
        for call in calls.calls:
            read = (call.reads, *(variant.reads for variant in call.variants))
            sizes_of[call.task].update(value for values in read for value in values)
        for task, values in sizes_of.items():
            held = [calls.values[value] for value in values]
            filled = sum(packed(value.bytes) for value in held if value.constant is not None)
            sizes[task] = max(sizes[task], filled)
    return tuple(sizes.values())


def load_copies(
    calls: KernelCalls, plan: Plan, spans: Mapping[int, tuple[int, int]]
) -> list[Instruction]:
    """Return the copies of all weights that a plan loads, each over its whole route.

    Parameters
    ----------
    spans
        Predicted start and finish of each step.
    """
    instructions = []
    earlier = _earlier_in_room(calls)
    for each in calls.loads:
        step = plan.steps[each.step]
        assert isinstance(step, Load)
        before = calls.values[each.value].in_place_of
        replaces = earlier[each.value] if before is None else [before]
        instructions.append(
            Instruction(
                None,
                None,
                step.route,
                each.step,
                *spans[each.step],
                (),
                ((each.value, step.dst),),
                source=(each.weight, step.src),
                replaces=tuple((value, step.dst) for value in replaces),
                guard=step.guard,
            )
        )
    return instructions


def _earlier_in_room(calls: KernelCalls) -> dict[int, list[int]]:
    """For each loaded weight the values that had some of its bytes last."""
    ranges: dict[int, tuple[int, int]] = {}
    earlier: dict[int, list[int]] = {}
    there: dict[int, list[int]] = defaultdict(list)
    """By memory, values of which some bytes are not taken yet."""
    for each in sorted(calls.loads, key=lambda load: load.step):
        value = each.value
        before = calls.values[value].in_place_of
        earlier[value] = []
        if before in ranges:
            ranges[value] = ranges[before]
        elif each.offset is not None:
            begin, end = each.offset, each.offset + packed(calls.values[value].bytes)
            ranges[value] = begin, end
            left = []
            for other in there[each.memory]:
                first, last = ranges[other]
                if first < end and begin < last:
                    earlier[value].append(other)
                if first < begin or end < last:
                    left.append(other)
            there[each.memory] = left
        if value in ranges:
            there[each.memory].append(value)
    return earlier


def _when(plan: Plan, step: int) -> str:
    guard = guard_of(plan.steps[step])
    return "active" if guard is None else guard.when
