"""DistIR's pipeline program (instance A) and its memory under recomputation (instance F)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.graph import Task
from heteroplace.model.plan import Copy, Plan, Run, Step
from heteroplace.parts.parallel.transforms.assemble import assemble
from heteroplace.parts.parallel.transforms.builder import ShardedBuilder, TaskEntry
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.mlp import Mlp
from heteroplace.parts.parallel.transforms.recompute import recompute
from heteroplace.parts.parallel.transforms.replicas import sum_at_end
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.simulate.simulator import simulate
from tests.reference.distir.dispatch import Level
from tests.reference.distir.domain_cost import CostDomain
from tests.reference.distir.domain_numpy import run_reference
from tests.reference.distir.interpret import interpret
from tests.reference.distir.operations import built_in_operations
from tests.strategies import AMPLE
from tests.unit.transforms.sharded_cases import (
    BATCHES,
    costs_by_op,
    random_arrays,
    ranks,
    sgd_step,
    sums_of,
    worst_difference,
)

OPS_NS = {"split": 1, "dense": 4, "loss_grad": 1, "dense_grad": 8, "add_up": 1, "sgd": 1}
SEND_NS = 2


def two_layers() -> ShardedGraph:
    """Two layers for two microbatches, with the splits of x and y as tasks."""
    sharded = sum_at_end(Mlp(2, 6, 2, dtype="float64", is_fused=True).training(batch=4))
    builder = ShardedBuilder.of(sharded)
    for name, layer, backward in (("x", 0, False), ("y", 2, True)):
        whole = builder.tensors[name]
        part = f"{name}.part"
        builder.read_instead(name, part, builder.readers(name))
        builder.add_task(TaskEntry(Task(f"split.{name}", "split"), (name,), layer, 0, backward))
        made = replace(whole, name=part, producer=f"split.{name}")
        builder.add_tensor(made, after=name)
    return builder.finalize()


def pipeline_program(sharded: ShardedGraph, cluster: Cluster) -> Plan:
    """That of DistIR's section 2: the splits first, each for both microbatches at once."""
    plan = assemble(sharded, cluster, Degrees(1, 1, 2, 2), "1f1b", sums_at_end=sums_of(sharded))
    graph = sharded.graph
    splits = {at: graph.tasks[at].op == "split" for at in range(len(graph.tasks))}
    steps: list[Step] = [Run(task, device, (0, 1)) for device, task in
                         enumerate(at for at, is_split in splits.items() if is_split)]  # fmt: skip
    steps += [step for step in plan.steps if not (isinstance(step, Run) and splits[step.task])]
    return replace(plan, steps=tuple(steps))


def clocks(sharded: ShardedGraph, cluster: Cluster, plan: Plan) -> tuple[int, int]:
    """When both devices are done, by the core and by the oracle."""
    graph = sharded.graph
    costs = costs_by_op(graph, cluster, OPS_NS)
    check_plan(graph, cluster, costs, plan)
    oracle = CostDomain(graph, cluster, costs)
    interpret(graph, cluster, plan, oracle)
    timeline = simulate(graph, cluster, costs, plan)
    start_ns = [0] * len(plan.steps)
    for span in timeline.spans:
        start_ns[span.step] = span.start_ns
        assert (span.start_ns, span.finish_ns) == oracle.times_ns[span.step]
    found = [0, 0]
    for step, (_, finish) in zip(plan.steps, oracle.times_ns, strict=True):
        touched = (0, 1) if isinstance(step, Copy) else (step.device,)  # type: ignore[union-attr]
        for device in touched:
            found[device] = max(found[device], finish)
    return found[0], found[1]


def test_clocks_and_numbers_of_instance_a() -> None:
    cluster = ranks(2, latency_ns=SEND_NS, copy_engines=0)
    sharded = two_layers()
    graph = sharded.graph
    plan = pipeline_program(sharded, cluster)
    assert clocks(sharded, cluster, plan) == (49, 41)
    arrays = random_arrays(2, 6, 4)
    operations = built_in_operations()
    operations.register("split", [Level.CONCRETE], lambda call, part: [part])
    found, _ = run_reference(sharded, cluster, plan, arrays, operations=operations)
    assert worst_difference(found, sgd_step(arrays, 2)) <= 1e-15
    # p1, the first microbatch at stage 1, and ar2, the send of the second one, change places.
    names = [
        graph.tasks[s.task].name if isinstance(s, Run) else graph.tensors[s.tensor].name  # type: ignore[union-attr]
        for s in plan.steps
    ]
    p1 = names.index("dense.a1")
    ar2 = names.index("a0", names.index("a0") + 1)
    assert ar2 == p1 + 1
    steps = list(plan.steps)
    steps[p1], steps[ar2] = steps[ar2], steps[p1]
    swapped = replace(plan, steps=tuple(steps))
    assert clocks(sharded, cluster, swapped) == (53, 45)
    again, _ = run_reference(sharded, cluster, swapped, arrays, operations=operations)
    assert worst_difference(again, found) == 0


UNIT = 4 * 4
"""Bytes of a weight of 2 x 2 single precision numbers; an activation of 20 rows has ten times as
many."""


def time_and_peak(num_layers: int, every: int, loss_ns: int = 0) -> tuple[int, int]:
    """Of one device, the peak in units."""
    cluster = Cluster(
        "box", (Memory("m", AMPLE),), (Device("d", "cuda", "", 0, 0, batch_sizes=BATCHES),), (), 0
    )
    sharded = Mlp(num_layers, 2, rows=20, is_fused=True).training(batch=20)
    if every:
        sharded = recompute(sharded, every)
    op_ns = {"dense": 1, "dense_grad": 2, "loss_grad": loss_ns}
    costs = costs_by_op(sharded.graph, cluster, op_ns)
    plan = assemble(sharded, cluster, Degrees())
    check_plan(sharded.graph, cluster, costs, plan)
    timeline = simulate(sharded.graph, cluster, costs, plan)
    units, rest = divmod(timeline.peak_bytes[0], UNIT)
    assert rest == 0
    return timeline.makespan_ns, units


@pytest.mark.parametrize(
    ("num_layers", "every", "loss_ns", "expected"),
    [(6, 0, 0, (18, 97)), (6, 3, 0, (22, 77)), (2, 0, 1, (7, 53)), (2, 2, 1, (8, 53))],
)
def test_time_and_memory_of_instance_f(
    num_layers: int, every: int, loss_ns: int, expected: tuple[int, int]
) -> None:
    """Of two layers only the times with a loss of 1 are published."""
    assert time_and_peak(num_layers, every, loss_ns) == expected
