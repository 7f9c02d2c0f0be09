"""Programs of ranks: they cover the plan in its order, and random ones compute what it computes."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.model.check import check_plan
from heteroplace.model.collectives import collective_op
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Collective, Copy, Plan, Run, Step
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.strategy import Strategy
from tests.reference.distir.domain_numpy import NumpyDomain
from tests.reference.distir.interpret import interpret
from tests.reference.distir.project import Receive, RunHere, Send, TakePart, project
from tests.reference.ranks import Ranks
from tests.strategies import exact_cases
from tests.unit.transforms.sharded_cases import costs_by_op, plan_of, ranks, training


class RandomProgram:
    """Additions, copies and sums over some ranks, of values of several items that random ranks
    have."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.num_ranks = self.random.randint(2, 5)
        self.num_items = self.random.randint(1, 3)
        self.cluster = ranks(self.num_ranks)
        self.builder = TaskGraphBuilder("random")
        self.order: list[tuple[object, ...]] = []
        """("run", task, rank), ("copy", tensor, src, dst) or ("all", task, ranks), with an item."""
        self.homes: dict[tuple[str, int], set[int]] = {}
        self.pending: dict[str, set[int]] = {}
        for rank in range(self.num_ranks):
            name = self.builder.add_input(f"x{rank}", (2,), "float64")
            for item in range(self.num_items):
                self.homes[name, item] = set(range(self.num_ranks))

    def grow(self) -> None:
        """Add an op for all items, each where it happens to be."""
        random, number = self.random, len(self.order)
        names = list(dict.fromkeys(name for name, _ in self.homes))
        if random.random() < 0.6:
            first, second = random.sample(names, 2)
            self.builder.add_task(Task(f"add{number}", "add"), [first, second])
            made = self.builder.add_tensor(f"add{number}", (2,), "float64")
            for item in range(self.num_items):
                rank = random.randrange(self.num_ranks)
                for name in (first, second):
                    self.bring(name, item, rank)
                self.order.append(("run", f"add{number}", rank, item))
                self.homes[made, item] = {rank}
            return
        members = random.sample(range(self.num_ranks), random.randint(2, self.num_ranks))
        if len(names) < len(members):
            return
        chosen = sorted(random.sample(range(len(names)), len(members)))
        op = collective_op("all_reduce")
        self.builder.add_task(Task(f"sum{number}", op), [names[at] for at in chosen])
        made = self.builder.add_tensor(f"sum{number}", (2,), "float64")
        for item in range(self.num_items):
            for at, rank in zip(chosen, members, strict=True):
                self.bring(names[at], item, rank)
            self.order.append(("all", f"sum{number}", tuple(members), item))
            self.homes[made, item] = set(members)

    def bring(self, name: str, item: int, rank: int) -> None:
        if rank not in self.homes[name, item]:
            src = self.random.choice(sorted(self.homes[name, item]))
            self.order.append(("copy", name, src, rank, item))
            self.homes[name, item].add(rank)

    def finish(self) -> tuple[TaskGraph, Plan]:
        names = list(dict.fromkeys(name for name, _ in self.homes))
        graph = self.builder.finalize(names[self.num_ranks :])
        task_ids = {task.name: index for index, task in enumerate(graph.tasks)}
        ids = {tensor.name: index for index, tensor in enumerate(graph.tensors)}
        steps: list[Step] = []
        for kind, name, *rest in self.order:
            if kind == "run":
                rank, item = rest
                steps.append(Run(task_ids[name], rank, (item,)))  # type: ignore[index, arg-type]
            elif kind == "copy":
                src, dst, item = rest
                route = self.cluster.route(src, dst)  # type: ignore[arg-type]
                steps.append(Copy(ids[name], src, dst, route, (item,)))  # type: ignore[index, arg-type]
            else:
                members, item = rest
                steps.append(Collective(task_ids[name], members, (item,)))  # type: ignore[index, arg-type]
        plan = Plan(
            graph.digest(), self.cluster.digest(), tuple(steps), "by chance", items=self.num_items
        )
        return graph, plan


@given(st.integers(0, 2**32 - 1))
@exact_cases(100)
def test_random_programs_run_alike_on_ranks_in_any_order(seed: int) -> None:
    """Property 2: no deadlock, and the reference's results to the last bit."""
    program = RandomProgram(seed)
    for _ in range(program.random.randint(3, 14)):
        program.grow()
    graph, plan = program.finish()
    cluster = program.cluster
    check_plan(graph, cluster, costs_by_op(graph, cluster, {}), plan)
    rng = np.random.default_rng(seed)
    given_arrays = {
        tensor: [rng.normal(0, 1, 2) for _ in range(plan.items)] for tensor in graph.inputs
    }
    domain = NumpyDomain(graph, given_arrays)
    reference = interpret(graph, cluster, plan, domain).values
    job = Ranks(graph, cluster, plan, domain, seed, is_buffered=program.random.random() < 0.5)
    values = job.run()
    assert all(np.array_equal(np.asarray(value), values[key]) for key, value in reference.items())


@pytest.mark.parametrize("degrees", [Degrees(2, 2, 2, 2), Degrees(1, 4, 1, 1), Degrees(2, 1, 4, 4)])
def test_projections_cover_the_plan_in_its_order(degrees: Degrees) -> None:
    """Property 3."""
    strategy = Strategy(degrees, zero=2)
    sharded = training(strategy, batch=16)
    cluster = ranks(degrees.num_devices)
    plan = plan_of(sharded, strategy, cluster)
    programs = project(sharded.graph, cluster, plan)
    seen: dict[int, list[tuple[int, object]]] = {}
    for program in programs:
        tags = [step.tag for step in program.steps]
        assert tags == sorted(set(tags))
        for step in program.steps:
            seen.setdefault(step.tag, []).append((program.memory, step))
    assert sorted(seen) == list(range(len(plan.steps)))
    for tag, step in enumerate(plan.steps):
        if isinstance(step, Run):
            assert seen[tag] == [(step.device, RunHere(tag, step))]
        elif isinstance(step, Collective):
            assert [memory for memory, _ in seen[tag]] == sorted(step.devices)
            for memory, part in seen[tag]:
                assert isinstance(part, TakePart)
                assert [step.devices[at] for at in part.positions] == [memory]
                assert part.group == step.devices
        else:
            tensor = sharded.graph.tensors[step.tensor]
            sends = [part for _, part in seen[tag] if isinstance(part, Send)]
            gets = [part for _, part in seen[tag] if isinstance(part, Receive)]
            assert sends == [Send(tag, step.tensor, step.items, step.dst)]
            assert gets == [
                Receive(tag, step.tensor, step.items, step.src, tensor.shape, tensor.dtype,
                        tensor.bytes * len(step.items))
            ]  # fmt: skip


def test_a_scheduler_that_cannot_go_on_is_told() -> None:
    """The oracle itself: a send without its receiver."""
    program = RandomProgram(1)
    while not any(kind == "copy" for kind, *_ in program.order):
        program.grow()
    graph, plan = program.finish()
    domain = NumpyDomain(graph, {t: [np.zeros(2)] * plan.items for t in graph.inputs})
    job = Ranks(graph, program.cluster, plan, domain, 0, is_buffered=False)
    tag = next(at for at, step in enumerate(plan.steps) if isinstance(step, Copy))
    for memory, steps in job.programs.items():
        job.programs[memory] = tuple(
            step for step in steps if not (isinstance(step, Receive) and step.tag == tag)
        )
    with pytest.raises(AssertionError, match="wait for each other"):
        job.run()
