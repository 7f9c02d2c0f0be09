"""lower: programs without races, deadlocks or overwritten values, checked by an oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import tvm
from hypothesis import given
from program_oracle import Oracle

from heteroplace.errors import InfeasibleError, LoweringError
from heteroplace.lower.kernels import Kernel, KernelCall, KernelCalls, Value
from heteroplace.lower.lower import lower
from heteroplace.lower.lowered import Lowered
from heteroplace.lower.order.order import order_instructions
from heteroplace.lower.workspace import Workspace
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Plan, Run
from heteroplace.simulate.simulator import simulate
from tests.corpus import corpus
from tests.strategies import Instance, num_cases, random_instance_with_plan

KERNEL = Kernel("", None, tvm.target.Target("llvm"), Workspace())
"""Stands for each: what it computes is no matter here."""

SIZES = (0, 1, 100, 128, 129, 1000)


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
    kernels = {call.kernel: KERNEL for call in calls}
    return KernelCalls(tuple(values), tuple(calls), outputs, kernels)


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


@pytest.mark.costly(5)
@num_cases(250)
@given(lowering_cases())
def test_every_read_finds_its_value_whatever_the_timing(case) -> None:
    check_program(case[0], lower_case(case))


@pytest.mark.costly(5)
@num_cases(100)
@given(lowering_cases())
def test_a_program_in_as_little_memory_as_its_order_allows_is_as_correct(case) -> None:
    calls, instance, plan = case
    least = lower(calls, instance.graph, instance.cluster, plan, None).memory_bytes
    predicted = simulate(instance.graph, instance.cluster, instance.costs, plan)
    lowered = lower(calls, instance.graph, with_memories(instance.cluster, least), plan, predicted)
    assert all(used <= limit for used, limit in zip(lowered.memory_bytes, least, strict=True))
    check_program(calls, lowered)
    if max(least) > 1:
        less = [max(1, limit - (limit == max(least))) for limit in least]
        with pytest.raises(InfeasibleError, match="the compiled program does not fit: memory"):
            lower(calls, instance.graph, with_memories(instance.cluster, less), plan, predicted)


def with_memories(cluster: Cluster, sizes: Sequence[int]) -> Cluster:
    named = zip(cluster.memories, sizes, strict=True)
    memories = tuple(replace(memory, bytes=max(1, size)) for memory, size in named)
    return replace(cluster, name="tight", memories=memories)


@pytest.mark.costly
@num_cases(100)
@given(lowering_cases())
def test_no_wait_is_implied_by_the_others(case) -> None:
    oracle = Oracle(case[0], lower_case(case))
    for number in range(len(oracle.nodes)):
        waits = {oracle.number[q, count - 1] for q, count in oracle.instruction(number).waits}
        others = oracle.direct(number)
        for wait in waits:
            implied = any(oracle.known[other] >> wait & 1 for other in others - {wait})
            assert not implied, f"{oracle.nodes[number]} need not wait for {oracle.nodes[wait]}"


@pytest.mark.costly
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


def test_calls_of_one_item_are_refused_for_a_plan_of_several() -> None:
    graph, cluster = chain_and_readers()
    calls = KernelCalls(
        (Value((64,), "int8", input_name="x"), Value((64,), "int8")),
        (KernelCall("k", 0, graph.tasks[0].name, (0,), (1,)),),
        (1,),
        {},
    )
    steps = (Run(0, 0, (0, 1)), Run(1, 0, (0, 1)))
    plan = Plan(graph.digest(), cluster.digest(), steps, "by hand", items=2)
    with pytest.raises(LoweringError, match=r"which the plan does not run for items \(0,\)"):
        order_instructions(calls, graph, cluster, plan, None)
