"""Programs of several hosts: put together they are the whole; no race, no cycle, all values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

import pytest
from host_clusters import random_hosts
from hypothesis import given
from item_plans import MAX_ITEMS, with_batch_sizes
from program_oracle import Oracle, together
from test_item_programs import ItemCase, random_item_case
from test_item_programs import random_graph as random_item_graph
from test_lower import random_calls

from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.lower import lower
from heteroplace.lower.lowered import Lowered
from heteroplace.lower.program import Program
from heteroplace.lower.project import named_tensors
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.hosts import feeding_rank
from heteroplace.model.plan import Plan
from heteroplace.simulate.simulator import simulate
from tests.corpus import corpus
from tests.strategies import exact_cases, random_graph, random_plan


@dataclass(frozen=True)
class HostCase:
    """What a program over hosts is made of; it is lowered and followed for the cases that are run.

    In memories as they come, or that are nearly as small as they may be.
    """

    calls: KernelCalls
    graph: TaskGraph
    cluster: Cluster
    costs: CostTable
    plan: Plan
    is_predicted: bool
    is_tight: bool

    @cached_property
    def lowered(self) -> Lowered:
        graph, cluster, costs, plan = self.graph, self.cluster, self.costs, self.plan
        check_plan(graph, cluster, costs, plan)
        predicted = simulate(graph, cluster, costs, plan) if self.is_predicted else None
        lowered = lower(self.calls, graph, cluster, plan, predicted)
        if self.is_tight:
            least = lower(self.calls, graph, cluster, plan, None).memory_bytes
            needs = zip(cluster.memories, least, strict=True)
            memories = tuple(replace(memory, bytes=max(1, need)) for memory, need in needs)
            lowered = lower(self.calls, graph, replace(cluster, memories=memories), plan, predicted)
        return lowered

    @cached_property
    def oracle(self) -> Oracle:
        return Oracle(self.calls, self.lowered)


@corpus
def host_cases(random: Random) -> HostCase:
    graph = random_graph(random, 8)
    graph = replace(graph, tasks=tuple(replace(task, together=None) for task in graph.tasks))
    calls = random_calls(random, graph)
    cluster = random_hosts(random, has_gpus=True)
    plan = random_plan(random, graph, cluster)
    costs = build_table(graph, cluster, lambda task, device: Cost.given(random.randint(0, 12)))
    is_predicted, is_tight = random.random() < 0.7, random.random() < 0.3
    return HostCase(calls, graph, cluster, costs, plan, is_predicted, is_tight)


@pytest.mark.costly
@exact_cases(40)
@given(host_cases())
def test_every_read_finds_its_value_on_every_host(case: HostCase) -> None:
    case.oracle.check_races()
    case.oracle.check_values()


@pytest.mark.costly
@exact_cases(40)
@given(host_cases())
def test_no_wait_is_implied_by_the_others(case: HostCase) -> None:
    oracle = case.oracle
    for number, (queue, index) in enumerate(oracle.nodes):
        waits = {oracle.number[q, count - 1] for q, count in oracle.instruction(number).waits}
        assert all(other != queue for other, _ in oracle.instruction(number).waits)
        others = oracle.direct(number)
        for wait in waits:
            implied = any(oracle.known[other] >> wait & 1 for other in others - {wait})
            if index and oracle.is_message(number):  # it starts after the one before it
                implied |= oracle.before[oracle.number[queue, index - 1]] >> wait & 1
            assert not implied, f"{oracle.nodes[number]} need not wait for {oracle.nodes[wait]}"


def whole_text(program: Program) -> Counter[str]:
    """What a program says, whatever its ids: each instruction with what it names."""
    found: Counter[str] = Counter()

    def tensor(at: int) -> str:
        named = program.tensors[at]
        place = program.constants[named.place] if named.storage == "constant" else named.place
        if named.storage == "constant":
            place = (place.blob_offset, place.bytes)
        return f"{program.spaces[named.space]} {place} {named.dtype} {named.shape}"

    def queue(at: int) -> str:
        each = program.queues[at]
        space = program.spaces[each.space].name if each.space >= 0 else None
        return str(replace(each, instructions=[], space=0)) + str(space)

    for at, each in enumerate(program.queues):
        found[queue(at)] += 1
        for position, instruction in enumerate(each.instructions):
            fields = list(instruction.fields)
            if instruction.kind == "call":
                fields[0] = program.kernels[int(fields[0])]
                fields[2] = ""
            elif instruction.kind == "join":
                fields[0] = queue(int(fields[0]))
            elif instruction.kind == "copy":
                fields = []
            else:
                fields[1] = ""
            named = [tensor(index) for index in named_tensors(instruction)]
            waits = [(queue(other), count) for other, count in instruction.waits]
            head = f"{queue(at)} {position} {instruction.kind} {instruction.step}"
            found[f"{head} {fields} {named} {waits}"] += 1
    found.update(f"input {name} {tensor(at)}" for name, at in program.inputs)
    found.update(f"output {name} {tensor(at)}" for name, at in program.outputs)
    return found


@pytest.mark.costly
@exact_cases(40)
@given(host_cases())
def test_the_programs_of_all_hosts_are_the_program(case: HostCase) -> None:
    cluster, lowered = case.cluster, case.lowered
    parts = lowered.programs
    assert whole_text(together(parts)) == whole_text(lowered.program)
    assert [part.rank.host for part in parts if part.rank] == list(cluster.hosts)
    for rank, part in enumerate(parts):
        assert {queue.host for queue in part.queues} == {rank}
        assert any(queue.peer is None for queue in part.queues)
        if rank != feeding_rank(cluster):
            assert not part.inputs
            assert not part.outputs
        # In the order of the whole, and nothing that it does not name.
        assert is_subsequence([queue.name for queue in part.queues], lowered.program.queues)
        assert is_subsequence_of(part.kernels, lowered.program.kernels)
        named = {t for q in part.queues for each in q.instructions for t in named_tensors(each)}
        named |= {tensor for _, tensor in (*part.inputs, *part.outputs)}
        assert named == set(range(len(part.tensors)))
        stored = {t.place for t in part.tensors if t.storage == "constant"}
        assert stored == set(range(len(part.constants)))


def is_subsequence(names, queues) -> bool:
    return is_subsequence_of(names, [queue.name for queue in queues])


def is_subsequence_of(part, whole) -> bool:
    rest = iter(whole)
    return all(each in rest for each in part)


@exact_cases(40)
@given(host_cases())
def test_each_message_has_two_equal_sides_in_one_order(case: HostCase) -> None:
    lowered = case.lowered
    sides: dict[tuple[str, int, int], list] = {}
    for rank, part in enumerate(lowered.programs):
        for queue in part.queues:
            if queue.peer is None:
                continue
            ends = (rank, queue.peer) if queue.kind == "send" else (queue.peer, rank)
            assert (queue.kind, *ends) not in sides
            rows = sides[(queue.kind, *ends)] = []
            for each in queue.instructions:
                tensor = part.tensors[int(each.fields[1])]
                assert part.spaces[tensor.space].dl_device == (1, 0)
                rows.append((each.fields[0], each.step, tensor.dtype, tensor.shape))
    sent = {ends[1:]: rows for ends, rows in sides.items() if ends[0] == "send"}
    received = {ends[1:]: rows for ends, rows in sides.items() if ends[0] == "recv"}
    assert sent == received
    tags = sorted(int(row[0]) for rows in sent.values() for row in rows)
    assert tags == list(range(len(tags)))


@exact_cases(40)
@given(host_cases())
def test_no_value_comes_to_a_memory_twice(case: HostCase) -> None:
    oracle = case.oracle
    sent: Counter[tuple[int, int]] = Counter()
    for number in range(len(oracle.nodes)):
        if oracle.instruction(number).kind == "recv":
            (tensor,) = oracle.tensors(number)[1]
            sent[oracle.nodes[number][0], tensor] += 1
    assert all(count == 1 for count in sent.values())


@corpus
def item_host_cases(random: Random) -> ItemCase:
    graph, tensors = random_item_graph(random)
    cluster = with_batch_sizes(random_hosts(random, has_gpus=False), range(1, MAX_ITEMS + 1))
    return random_item_case(random, graph, tensors, cluster)


@pytest.mark.costly
@exact_cases(40)
@given(item_host_cases())
def test_every_item_gets_what_it_gets_alone_on_any_host(case: ItemCase) -> None:
    case.check(case.lowered)
