"""lower: programs without races, deadlocks or overwritten values, checked by an oracle of its own.

The oracle knows only the rules of a program: instructions of a queue run in order, an instruction
starts after its waits, a join after its leader's call. From these it derives what surely happens
before what, demands that two accesses to the same bytes, one of them a write, are ordered, and
then carries the program out on symbols: every kernel must read exactly what the calls say.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from hypothesis import given
from tests.corpus import corpus
from tests.strategies import Instance, num_cases, random_instance_with_plan

from heteroplace.codegen.artifact import weights_blob
from heteroplace.codegen.kernels import KernelCall, KernelCalls, Value
from heteroplace.codegen.lower import Lowered, lower
from heteroplace.codegen.order import order_instructions
from heteroplace.codegen.program import ALIGNMENT_BYTES, QueueInstruction
from heteroplace.errors import InfeasibleError, LoweringError
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Plan, Run
from heteroplace.simulate.simulator import simulate

SIZES = (0, 1, 100, 128, 129, 1000)


@dataclass
class Access:
    """One touch of a range of an arena."""

    instruction: int
    space: int
    begin: int
    end: int
    is_write: bool


class Oracle:
    """Happens-before of a program, by bit sets of predecessors."""

    def __init__(self, calls: KernelCalls, lowered: Lowered) -> None:
        self.calls = calls
        self.program = lowered.program
        self.blob = weights_blob(lowered).tobytes()
        program = lowered.program
        self.num_writes = {call.kernel: len(call.writes) for call in calls.calls}
        self.nodes = [
            (queue, index)
            for queue, description in enumerate(program.queues)
            for index in range(len(description.instructions))
        ]
        self.number = {node: number for number, node in enumerate(self.nodes)}
        self.order = self._topological_order()
        self.before = self._all_before()

    def instruction(self, number: int) -> QueueInstruction:
        queue, index = self.nodes[number]
        return self.program.queues[queue].instructions[index]

    def direct(self, number: int) -> set[int]:
        """What this instruction waits for, by the rules."""
        queue, index = self.nodes[number]
        instruction = self.instruction(number)
        found = {self.number[queue, index - 1]} if index else set()
        found |= {self.number[other, count - 1] for other, count in instruction.waits}
        if instruction.kind == "join":
            leader, position = map(int, instruction.fields)
            found.add(self.number[leader, position])
        return found

    def _topological_order(self) -> list[int]:
        order: list[int] = []
        done: set[int] = set()
        while len(order) < len(self.nodes):
            ready = [n for n in range(len(self.nodes)) if n not in done and self.direct(n) <= done]
            assert ready, "the waits form a cycle"
            order += ready
            done.update(ready)
        return order

    def _all_before(self) -> list[int]:
        before = [0] * len(self.nodes)
        for number in self.order:
            for earlier in self.direct(number):
                before[number] |= before[earlier] | 1 << earlier
        return before

    def tensors(self, number: int) -> tuple[list[int], list[int]]:
        """The tensors that an instruction reads and writes."""
        instruction = self.instruction(number)
        if instruction.kind == "join":
            return [], []
        if instruction.kind == "copy":
            return [int(instruction.fields[0])], [int(instruction.fields[1])]
        arguments = [int(text) for text in instruction.fields[2].split(",")]
        kernel = self.program.kernels[int(instruction.fields[0])]
        first_write = len(arguments) - self.num_writes[kernel]
        return arguments[:first_write], arguments[first_write:]

    def range(self, tensor: int) -> tuple[int, int, int] | None:
        """Space, begin and end in the arena; None for a weight."""
        found = self.program.tensors[tensor]
        if found.storage == "constant":
            return None
        num_bytes = Value(found.shape, found.dtype).bytes
        assert found.place % ALIGNMENT_BYTES == 0
        assert found.place + num_bytes <= self.program.spaces[found.space].arena_bytes
        return found.space, found.place, found.place + num_bytes

    def check_races(self) -> None:
        accesses = []
        for number in range(len(self.nodes)):
            for tensors, is_write in zip(self.tensors(number), (False, True), strict=True):
                ranges = [self.range(tensor) for tensor in tensors]
                accesses += [Access(number, *r, is_write) for r in ranges if r is not None]
        for i, one in enumerate(accesses):
            for other in accesses[:i]:
                if one.instruction == other.instruction or one.space != other.space:
                    continue
                overlaps = one.begin < other.end and other.begin < one.end
                if overlaps and (one.is_write or other.is_write):
                    a, b = one.instruction, other.instruction
                    is_ordered = self.before[a] >> b & 1 or self.before[b] >> a & 1
                    assert is_ordered, f"race between {self.nodes[a]} and {self.nodes[b]}"

    def check_values(self) -> None:
        """Carry the program out on symbols, in one order that its rules allow."""
        content: dict[tuple[int, int, int], object] = {}

        def write(tensor: int, symbol: object) -> None:
            place = self.range(tensor)
            assert place is not None, "a weight is overwritten"
            space, begin, end = place
            for other in list(content):
                if other[0] == space and other[1] < end and begin < other[2]:
                    del content[other]
            content[place] = symbol

        def read(tensor: int) -> object:
            place = self.range(tensor)
            if place is None:
                constant = self.program.constants[self.program.tensors[tensor].place]
                begin, end = constant.blob_offset, constant.blob_offset + constant.bytes
                return ("weights", self.blob[begin:end])
            if place[1] == place[2]:
                return "nothing"
            assert place in content, f"tensor {tensor} is read, but not there (any more)"
            return content[place]

        for name, tensor in self.program.inputs:
            write(tensor, ("input", name) if self._has_bytes(tensor) else "nothing")
        for number in self.order:
            reads, writes = self.tensors(number)
            instruction = self.instruction(number)
            symbols = tuple(read(tensor) for tensor in reads)
            for index, tensor in enumerate(writes):
                if instruction.kind == "copy":
                    write(tensor, symbols[0])
                else:
                    kernel = self.program.kernels[int(instruction.fields[0])]
                    write(tensor, (kernel, symbols, index))
        expected = self._expected()
        for (_, tensor), value in zip(self.program.outputs, self.calls.outputs, strict=True):
            assert read(tensor) == expected[value]
        for name, tensor in self.program.inputs:
            assert read(tensor) in (("input", name), "nothing"), "an input was overwritten"

    def _has_bytes(self, tensor: int) -> bool:
        place = self.range(tensor)
        return place is not None and place[1] < place[2]

    def _expected(self) -> list[object]:
        """The symbol of each value, from the calls alone."""
        symbols: list[object] = [None] * len(self.calls.values)
        for value, description in enumerate(self.calls.values):
            if description.constant is not None:
                symbols[value] = ("weights", description.constant.tobytes())

        def resolve(value: int) -> object:
            found = self.calls.values[value]
            if found.alias_of is not None:
                return resolve(found.alias_of)
            if symbols[value] is None:
                symbols[value] = ("input", found.input_name)
            return "nothing" if found.bytes == 0 and found.constant is None else symbols[value]

        remaining = list(self.calls.calls)
        ready = {
            v for v, d in enumerate(self.calls.values) if d.input_name or d.constant is not None
        }
        while remaining:
            call = next(r for r in remaining if all(_root(self.calls, v) in ready for v in r.reads))
            remaining.remove(call)
            arguments = tuple(resolve(value) for value in call.reads)
            for index, value in enumerate(call.writes):
                symbols[value] = (call.kernel, arguments, index)
                ready.add(value)
        return [resolve(v) if _root(self.calls, v) in ready else None for v in range(len(symbols))]


def _root(calls: KernelCalls, value: int) -> int:
    while (alias := calls.values[value].alias_of) is not None:
        value = alias
    return value


def check_program(calls: KernelCalls, lowered: Lowered) -> Oracle:
    oracle = Oracle(calls, lowered)
    oracle.check_races()
    oracle.check_values()
    return oracle


def random_calls(random: Random, graph: TaskGraph) -> KernelCalls:
    """One or two kernels per task: some with weights, some values in another layout or an alias."""
    values: list[Value] = []
    calls: list[KernelCall] = []
    value_of: dict[int, int] = {}

    def add(*arguments, **fields) -> int:
        values.append(Value(*arguments, **fields))
        return len(values) - 1

    for tensor in graph.inputs:
        size = random.choice(SIZES)
        value_of[tensor] = add((size,), "int8", input_name=graph.tensors[tensor].name)
    for task_id, task in enumerate(graph.tasks):
        reads = [value_of[tensor] for tensor in graph.task_inputs[task_id]]
        if random.random() < 0.5:
            size = random.randint(1, 3)
            reads.append(add((size,), "int8", constant=np.full(size, task_id % 3, "int8")))
        if random.random() < 0.5:
            between = add((random.choice(SIZES),), "int8")
            calls.append(KernelCall(f"{task.name}_first", 0, task.name, tuple(reads), (between,)))
            reads = [between, *reads[:1]]
        if reads and values[reads[0]].bytes and random.random() < 0.5:
            reads[0] = add((1, values[reads[0]].bytes), "int8", alias_of=reads[0])
        writes = [add((random.choice(SIZES),), "int8") for _ in graph.task_outputs[task_id]]
        calls.append(KernelCall(f"{task.name}_last", 0, task.name, tuple(reads), tuple(writes)))
        value_of.update(zip(graph.task_outputs[task_id], writes, strict=True))
    outputs = tuple(value_of[tensor] for tensor in graph.outputs)
    kernels = {call.kernel: None for call in calls}
    return KernelCalls(tuple(values), tuple(calls), outputs, kernels)  # type: ignore[arg-type]


@corpus
def lowering_cases(random: Random) -> tuple[KernelCalls, Instance, Plan]:
    instance, plan = random_instance_with_plan(random)
    while instance.cluster.host is None:
        instance, plan = random_instance_with_plan(random)
    return random_calls(random, instance.graph), instance, plan


def lower_case(case: tuple[KernelCalls, Instance, Plan]) -> Lowered:
    calls, instance, plan = case
    predicted = simulate(instance.graph, instance.cluster, instance.costs, plan)
    return lower(calls, instance.graph, instance.cluster, plan, predicted)


@num_cases(250)
@given(lowering_cases())
def test_every_read_finds_its_value_whatever_the_timing(case) -> None:
    check_program(case[0], lower_case(case))


@num_cases(100)
@given(lowering_cases())
def test_a_program_in_half_the_memory_is_as_correct_or_refused(case) -> None:
    calls, instance, plan = case
    needed = max(lower_case(case).memory_bytes)
    memories = tuple(
        Memory(memory.name, max(1, needed // 2)) for memory in instance.cluster.memories
    )
    cluster = Cluster(
        "tight", memories, instance.cluster.devices, instance.cluster.links, instance.cluster.host
    )
    predicted = simulate(instance.graph, instance.cluster, instance.costs, plan)
    try:
        lowered = lower(calls, instance.graph, cluster, plan, predicted)
    except InfeasibleError as err:
        assert "the compiled program does not fit: memory" in str(err)
        return
    assert max(lowered.memory_bytes) <= max(1, needed // 2)
    check_program(calls, lowered)


@num_cases(100)
@given(lowering_cases())
def test_no_wait_is_implied_by_the_others(case) -> None:
    oracle = Oracle(case[0], lower_case(case))
    for number in range(len(oracle.nodes)):
        waits = {oracle.number[q, count - 1] for q, count in oracle.instruction(number).waits}
        others = oracle.direct(number)
        for wait in waits:
            implied = any(oracle.before[other] >> wait & 1 for other in others - {wait})
            assert not implied, f"{oracle.nodes[number]} need not wait for {oracle.nodes[wait]}"


@num_cases(100)
@given(lowering_cases())
def test_every_kernel_runs_once_on_the_device_of_its_task(case) -> None:
    calls, instance, plan = case
    program = lower_case(case).program
    placement = plan.placement(len(instance.graph.tasks))
    tasks = {task.name: index for index, task in enumerate(instance.graph.tasks)}
    called = []
    for queue in program.queues:
        for instruction in queue.instructions:
            if instruction.kind == "call":
                kernel = program.kernels[int(instruction.fields[0])]
                task = tasks[kernel.rpartition("_")[0]]
                device = instance.cluster.devices[placement[task]]
                called.append(kernel)
                assert plan.steps[instruction.step] == Run(task, placement[task])
                assert int(instruction.fields[1]) == max(1, len(device.cores))
                assert queue.core == (device.cores[0] if device.cores else None)
    assert sorted(called) == sorted(call.kernel for call in calls.calls)


def chain_and_readers() -> tuple[TaskGraph, Cluster]:
    """Two tasks that read the input, on two cores."""
    builder = TaskGraphBuilder("readers")
    x = builder.add_input("x", (64,), "int8")
    for name in ("a", "b"):
        builder.add_task(Task(name, "op"), [x])
        builder.add_tensor(name, (64,), "int8")
    graph = builder.finalize(["a.0", "b.0"])
    devices = tuple(Device(f"cpu.{n}", "cpu", "", 0, 0, (n,)) for n in range(2))
    return graph, Cluster("two", (Memory("ram", 10**6),), devices, (), 0)


def test_readers_of_an_input_do_not_wait_for_each_other() -> None:
    graph, cluster = chain_and_readers()
    values = (Value((64,), "int8", input_name="x"), Value((64,), "int8"), Value((64,), "int8"))
    calls = KernelCalls(
        values,
        (KernelCall("ka", 0, "a", (0,), (1,)), KernelCall("kb", 0, "b", (0,), (2,))),
        (1, 2),
        {},
    )
    costs = build_table(graph, cluster, lambda task, device: Cost.given(10))
    plan = Plan(graph.digest(), cluster.digest(), (Run(0, 0), Run(1, 1)), "by hand")
    program = lower(calls, graph, cluster, plan, simulate(graph, cluster, costs, plan)).program
    assert [queue.instructions[0].waits for queue in program.queues] == [(), ()]


def test_an_unused_input_has_a_tensor_and_bytes_of_its_own() -> None:
    graph, cluster = chain_and_readers()
    values = (
        Value((64,), "int8", input_name="x"),
        Value((64,), "int8"),
        Value((64,), "int8"),
        Value((64,), "int8", input_name="unused"),
    )
    calls = KernelCalls(
        values,
        (KernelCall("ka", 0, "a", (0,), (1,)), KernelCall("kb", 0, "b", (0,), (2,))),
        (1, 2),
        {},
    )
    costs = build_table(graph, cluster, lambda task, device: Cost.given(10))
    plan = Plan(graph.digest(), cluster.digest(), (Run(0, 0), Run(1, 1)), "by hand")
    lowered = lower(calls, graph, cluster, plan, simulate(graph, cluster, costs, plan))
    assert [name for name, _ in lowered.program.inputs] == ["x", "unused"]
    check_program(calls, lowered)


def test_equal_weights_are_stored_once() -> None:
    graph, cluster = chain_and_readers()
    same = [Value((64,), "int8", constant=np.ones(64, "int8")) for _ in range(2)]
    values = (Value((64,), "int8", input_name="x"), *[Value((64,), "int8")] * 2, *same)
    calls = (KernelCall("ka", 0, "a", (0, 3), (1,)), KernelCall("kb", 0, "b", (0, 4), (2,)))
    costs = build_table(graph, cluster, lambda task, device: Cost.given(10))
    plan = Plan(graph.digest(), cluster.digest(), (Run(0, 0), Run(1, 1)), "by hand")
    predicted = simulate(graph, cluster, costs, plan)
    lowered = lower(KernelCalls(values, calls, (1, 2), {}), graph, cluster, plan, predicted)
    assert len(lowered.program.constants) == len(lowered.weights) == 1


def test_a_kernel_of_an_unknown_task_is_refused() -> None:
    graph, cluster = chain_and_readers()
    calls = KernelCalls((Value((64,), "int8"),), (KernelCall("k", 0, "other", (), (0,)),), (0,), {})
    plan = Plan(graph.digest(), cluster.digest(), (Run(0, 0), Run(1, 1)), "by hand")
    costs = build_table(graph, cluster, lambda task, device: Cost.given(10))
    with pytest.raises(LoweringError, match="belongs to task 'other', which the plan does not run"):
        order_instructions(calls, graph, cluster, plan, simulate(graph, cluster, costs, plan))


def test_a_plan_of_several_items_is_refused() -> None:
    graph, cluster = chain_and_readers()
    calls = KernelCalls((Value((64,), "int8", input_name="x"),), (), (0,), {})
    costs = build_table(graph, cluster, lambda task, device: Cost.given(10))
    steps = tuple(Run(task, 0, (item,)) for task in (0, 1) for item in (0, 1))
    plan = Plan(graph.digest(), cluster.digest(), steps, "by hand", items=2)
    with pytest.raises(LoweringError, match="the plan by 'by hand' is for 2 items"):
        lower(calls, graph, cluster, plan, simulate(graph, cluster, costs, plan))
