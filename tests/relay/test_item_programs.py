"""Programs of several items, without compiling: no races, and every item gets its own values.

A kernel stands for a function of the bytes of each of its items. Tensors have items of any size,
along any axis; what a program makes of real bytes must be what each item alone gives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from random import Random

import pytest
import tvm
from hypothesis import given
from item_plans import (
    MAX_ITEMS,
    item_solution,
    random_item_steps,
    with_batch_sizes,
    with_second_memory,
)
from program_oracle import Oracle

from heteroplace.lower.items.combine import Items, ItemTensor, combine_batches
from heteroplace.lower.kernels import Kernel, KernelCall, KernelCalls, Value
from heteroplace.lower.lower import lower
from heteroplace.lower.lowered import Lowered
from heteroplace.lower.program import KERNEL_ALIGNMENT_BYTES
from heteroplace.lower.segment_calls import NetworkPart
from heteroplace.lower.segments import ValueName
from heteroplace.lower.workspace import Workspace
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Run, Step
from heteroplace.model.solution import Solution
from heteroplace.simulate.simulator import simulate
from tests.corpus import corpus
from tests.strategies import num_cases

KERNEL = Kernel("", None, tvm.target.Target("llvm"), Workspace())
"""Stands for each: what it computes is no matter here."""

SHAPES = ((1, 1), (1, 24), (1, 40), (1, 64), (1, 128), (2, 1, 24), (3, 1, 64), (1, 0), (1, 2, 32))
"""For one item; the item's axis is the first of extent 1 in front of the rest."""


def named(graph: TaskGraph, tensor: int) -> ValueName:
    found = graph.tensors[tensor]
    if found.producer is None:
        return ValueName(found.name)
    task = graph.tasks[found.producer].name
    return ValueName(f"{task}:0", graph.task_outputs[found.producer].index(tensor), task)


def random_graph(random: Random) -> tuple[TaskGraph, dict[ValueName, ItemTensor]]:
    """A few tasks that read what came before; inputs hold items along the first axis."""
    builder = TaskGraphBuilder("items")
    made = [builder.add_input(f"x{n}", random.choice(SHAPES[:5]), "int8") for n in range(2)]
    used = set()
    for number in range(random.randint(1, 5)):
        reads = random.sample(made, min(len(made), random.randint(1, 3)))
        used.update(reads)
        name = f"t{number}"
        builder.add_task(Task(name, "op", (), 1, 0), reads)
        count = random.randint(1, 2)
        made += [builder.add_tensor(name, random.choice(SHAPES), "int8") for _ in range(count)]
    outputs = [tensor for tensor in made[2:] if tensor not in used] or made[-1:]
    graph = builder.finalize(outputs)
    tensors = {}
    for tensor, found in enumerate(graph.tensors):
        axis = 1 if len(found.shape) == 3 and found.shape[0] > 1 else 0
        tensors[named(graph, tensor)] = ItemTensor(found.shape, found.dtype, axis)
    return graph, tensors


def part_of(
    graph: TaskGraph, tensors: dict[ValueName, ItemTensor], tasks: set[int], items: Items
) -> NetworkPart:
    """A batch: a kernel for each task, now and then after a reshape of what it reads."""
    values: list[Value] = []
    calls, imports, exports = [], {}, {}
    value_of: dict[int, int] = {}

    def add(tensor: int, alias_of: int | None = None) -> int:
        found = tensors[named(graph, tensor)]
        values.append(Value(found.shape_of(len(items)), "int8", alias_of=alias_of))
        return len(values) - 1

    for task in sorted(tasks):
        reads = []
        for tensor in graph.task_inputs[task]:
            if tensor not in value_of:
                value_of[tensor] = imports[named(graph, tensor)] = add(tensor)
            reads.append(add(tensor, value_of[tensor]) if task % 2 else value_of[tensor])
        writes = [add(tensor) for tensor in graph.task_outputs[task]]
        value_of.update(zip(graph.task_outputs[task], writes, strict=True))
        name = graph.tasks[task].name
        calls.append(KernelCall(f"{name}_{len(items)}", 0, name, tuple(reads), tuple(writes)))
        exports |= {named(graph, t): value_of[t] for t in graph.task_outputs[task]}
    kernels = {call.kernel: KERNEL for call in calls}
    lowered = KernelCalls(tuple(values), tuple(calls), tuple(exports.values()), kernels)
    return NetworkPart(lowered, imports, tuple(exports))


def calls_of(
    graph: TaskGraph, tensors: dict[ValueName, ItemTensor], solution: Solution
) -> KernelCalls:
    batches: dict[Items, set[int]] = {}
    for step in solution.plan.steps:
        if isinstance(step, Run):
            batches.setdefault(step.items, set()).add(step.task)
    parts = {items: part_of(graph, tensors, tasks, items) for items, tasks in batches.items()}
    names = {items: {graph.tasks[t].name for t in tasks} for items, tasks in batches.items()}
    inputs = [named(graph, tensor) for tensor in graph.inputs]
    outputs = [named(graph, tensor) for tensor in graph.outputs]
    return combine_batches(parts, names, tensors, inputs, outputs)


def made_bytes(task: str, index: int, reads: list[bytes], size: int) -> bytes:
    """What a kernel makes of one item."""
    seed = blake2b(repr((task, index, reads)).encode(), digest_size=32).digest()
    return (seed * (1 + size // 32))[:size]


def item_of(whole: bytes, outer: int, items: int, place: int) -> bytes:
    """The bytes of one item of a tensor."""
    size = len(whole) // max(1, outer * items)
    return b"".join(
        whole[(number * items + place) * size : (number * items + place + 1) * size]
        for number in range(outer)
    )


def together(parts: list[bytes], outer: int) -> bytes:
    """A tensor of these items."""
    size = len(parts[0]) // max(1, outer)
    return b"".join(
        part[number * size : (number + 1) * size] for number in range(outer) for part in parts
    )


def check_items(
    graph: TaskGraph, tensors: dict[ValueName, ItemTensor], solution: Solution, lowered: Lowered
) -> None:
    """Carry the program out on bytes, and each item alone."""
    calls = calls_of(graph, tensors, solution)
    oracle = Oracle(calls, lowered, KERNEL_ALIGNMENT_BYTES)
    oracle.check_races()
    program, items = oracle.program, solution.plan.items
    arenas = [bytearray(b"?" * space.arena_bytes) for space in program.spaces]

    def view(tensor: int) -> memoryview:
        place = oracle.range(tensor)
        assert place is not None
        return memoryview(arenas[place[0]])[place[1] : place[2]]

    alone: list[dict[int, bytes]] = []
    for item in range(items):
        found = {}
        for tensor in graph.inputs:
            found[tensor] = made_bytes(
                "input", tensor, [bytes([item])], graph.tensors[tensor].bytes
            )
        for task, of_task in enumerate(graph.task_outputs):
            reads = [found[tensor] for tensor in graph.task_inputs[task]]
            for index, tensor in enumerate(of_task):
                size = graph.tensors[tensor].bytes
                found[tensor] = made_bytes(graph.tasks[task].name, index, reads, size)
        alone.append(found)

    def whole(tensor: int, members: Items) -> bytes:
        outer = tensors[named(graph, tensor)].outer
        return together([alone[item][tensor] for item in members], outer)

    everything = tuple(range(items))
    for tensor, (_, port) in zip(graph.inputs, program.inputs, strict=True):
        view(port)[:] = whole(tensor, everything)
    sent: dict[str, bytes] = {}
    for number in oracle.acts():
        reads, writes = oracle.tensors(number)
        instruction = oracle.instruction(number)
        if instruction.kind == "copy":
            view(writes[0])[:] = bytes(view(reads[0]))
        elif instruction.kind == "send":
            sent[instruction.fields[0]] = bytes(view(reads[0]))
        elif instruction.kind == "recv":
            view(writes[0])[:] = sent[instruction.fields[0]]
        elif instruction.kind == "call":
            kernel = program.kernels[int(instruction.fields[0])]
            task = next(t for t, v in enumerate(graph.tasks) if v.name == kernel.split("_")[0])
            count = int(kernel.split("_")[1])
            outers = [tensors[named(graph, t)].outer for t in graph.task_inputs[task]]
            read = [bytes(view(tensor)) for tensor in reads]
            for index, (tensor, port) in enumerate(
                zip(graph.task_outputs[task], writes, strict=True)
            ):
                size = graph.tensors[tensor].bytes
                parts = []
                for place in range(count):
                    own = [
                        item_of(data, outer, count, place)
                        for data, outer in zip(read, outers, strict=True)
                    ]
                    parts.append(made_bytes(graph.tasks[task].name, index, own, size))
                view(port)[:] = together(parts, tensors[named(graph, tensor)].outer)
    for tensor, (_, port) in zip(graph.outputs, program.outputs, strict=True):
        assert bytes(view(port)) == whole(tensor, everything)
    for tensor, (_, port) in zip(graph.inputs, program.inputs, strict=True):
        assert bytes(view(port)) == whole(tensor, everything), "an input was overwritten"


def three_cores(num_bytes: int = 2**30) -> Cluster:
    devices = [Device(f"c{n}", "cpu", "llvm", 0, 0, (n,)) for n in range(3)]
    devices[2] = Device("all", "cpu", "llvm", 0, 0, (0, 1))
    return with_batch_sizes(
        Cluster("three", (Memory("ram", num_bytes),), tuple(devices), (), 0),
        range(1, MAX_ITEMS + 1),
    )


@dataclass(frozen=True)
class ItemCase:
    """What a plan for several items is made of; the plan is made for the cases that are run."""

    graph: TaskGraph
    tensors: dict[ValueName, ItemTensor]
    cluster: Cluster
    items: int
    steps: tuple[Step, ...]

    @cached_property
    def solution(self) -> Solution:
        return item_solution(self.graph, self.cluster, self.items, self.steps)

    @cached_property
    def lowered(self) -> Lowered:
        return self.lowered_on(self.cluster)

    def lowered_on(self, cluster: Cluster) -> Lowered:
        return lowered_of(self.graph, self.tensors, self.solution, cluster)

    def check(self, lowered: Lowered) -> None:
        check_items(self.graph, self.tensors, self.solution, lowered)


def random_item_case(
    random: Random, graph: TaskGraph, tensors: dict[ValueName, ItemTensor], cluster: Cluster
) -> ItemCase:
    items = random.randint(2, MAX_ITEMS)
    steps = random_item_steps(random, graph, cluster, items)
    return ItemCase(graph, tensors, cluster, items, steps)


@corpus
def item_cases(random: Random) -> ItemCase:
    graph, tensors = random_graph(random)
    cluster = three_cores()
    if random.random() < 0.5:
        cluster = with_second_memory(cluster)
    return random_item_case(random, graph, tensors, cluster)


def lowered_of(
    graph: TaskGraph, tensors: dict[ValueName, ItemTensor], solution: Solution, cluster: Cluster
) -> Lowered:
    timeline = simulate(graph, solution.cluster, solution.costs, solution.plan)
    return lower(calls_of(graph, tensors, solution), graph, cluster, solution.plan, timeline)


@pytest.mark.costly(8)
@num_cases(100)
@given(item_cases())
def test_every_item_gets_what_it_gets_alone(case: ItemCase) -> None:
    case.check(case.lowered)


@pytest.mark.costly
@num_cases(40)
@given(item_cases())
def test_so_it_does_in_as_little_memory_as_the_order_allows(case: ItemCase) -> None:
    calls = calls_of(case.graph, case.tensors, case.solution)
    least = lower(calls, case.graph, case.cluster, case.solution.plan, None).memory_bytes
    named = zip(case.cluster.memories, least, strict=True)
    memories = tuple(replace(memory, bytes=max(1, need)) for memory, need in named)
    lowered = case.lowered_on(replace(case.cluster, name="tight", memories=memories))
    assert all(used <= need for used, need in zip(lowered.memory_bytes, least, strict=True))
    case.check(lowered)


def kinds_of(lowered: Lowered) -> list[str]:
    return [each.kind for queue in lowered.program.queues for each in queue.instructions]


@pytest.mark.parametrize(("size", "num_copies"), [(64, 0), (24, 6)])
def test_nothing_is_copied_where_items_lie_at_places_of_kernels(size: int, num_copies: int) -> None:
    """Two tasks, the first for items 0, 1 and 2, 3, the second for 0 and 1, 2 and 3."""
    builder = TaskGraphBuilder("two")
    x = builder.add_input("x", (1, size), "int8")
    builder.add_task(Task("t0", "op", (), 1, 0), [x])
    y = builder.add_tensor("t0", (1, size), "int8")
    builder.add_task(Task("t1", "op", (), 1, 0), [y])
    graph = builder.finalize([builder.add_tensor("t1", (1, size), "int8")])
    tensors = {
        named(graph, t): ItemTensor(v.shape, v.dtype, 0) for t, v in enumerate(graph.tensors)
    }
    cluster = three_cores()
    steps = tuple(
        Run(task, 0, items)
        for task, batches in enumerate((((0, 1), (2, 3)), ((0,), (1, 2), (3,))))
        for items in batches
    )
    solution = item_solution(graph, cluster, 4, steps)
    lowered = lowered_of(graph, tensors, solution, cluster)
    assert kinds_of(lowered).count("copy") == num_copies
    check_items(graph, tensors, solution, lowered)
