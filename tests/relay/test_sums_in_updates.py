"""Sums of gradients over replicas that updates compute: which these are, and to the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from relay_models import cores
from shard_models import built_by_degrees, descend, layer_weights, perceptron, rows_of

import heteroplace
from heteroplace.files.sharding import ShardingRecord
from heteroplace.lower.program import Program
from heteroplace.model.collectives import CollectiveCosts, collective_kind
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective
from heteroplace.parts.parallel.collectives import versioned
from heteroplace.parts.parallel.collectives.sums_in_updates import sums_in_updates
from heteroplace.simulate.simulator import simulate

pytestmark = [
    pytest.mark.relay,
    pytest.mark.skipif(len(cores()) < 2, reason="two ranks need two cores"),
]

OPTIONS = {"batch": 8, "optimizer": "sgd:0.1"}


def trained(zero: int = 0, **options: object) -> tuple[heteroplace.Executable, ShardingRecord]:
    executable, record, _ = built_by_degrees(
        *perceptron(), degrees=(2, 1, 1), zero=zero, **(OPTIONS | options)
    )
    return executable, record


def kernel_steps(program: Program) -> set[int]:
    """The steps that call kernels."""
    return {
        each.step for queue in program.queues for each in queue.instructions if each.kind == "call"
    }


def gradient_sums(graph: TaskGraph) -> set[int]:
    """The collectives that sum gradients, not the loss."""
    found = set()
    for task, description in enumerate(graph.tasks):
        kind = collective_kind(description.op)
        is_matrix = len(graph.tensors[graph.task_inputs[task][0]].shape) == 2
        if kind is not None and kind.sums and is_matrix:
            found.add(task)
    return found


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_sums_of_gradients_have_no_kernels_of_their_own(zero: int) -> None:
    executable, record = trained(zero)
    graph, cluster, plan = record.solution.graph, record.solution.cluster, record.solution.plan
    summed = gradient_sums(graph)
    assert len(summed) == len(layer_weights())
    assert set(sums_in_updates(graph, cluster, plan)) == summed
    steps = kernel_steps(executable.lowered.program)
    exchanges = {index for index, step in enumerate(plan.steps) if isinstance(step, Collective)}
    loss = {index for index in exchanges if plan.steps[index].task not in summed}
    assert steps & exchanges <= loss
    executor = heteroplace.Executor(executable)
    weights, x, labels = layer_weights(), rows_of(0), rows_of(1)
    for _ in range(2):
        (found,) = executor.run({"x": x, "labels": labels})
        expected, weights = descend(weights, x, labels, 0.1)
        np.testing.assert_allclose(np.sum(found), expected, rtol=1e-5)
    for layer, weight in enumerate(weights):
        np.testing.assert_allclose(executor.state(f"w{layer}"), weight, rtol=1e-4, atol=1e-6)


@pytest.mark.costly(3)
def test_sums_in_updates_are_those_of_kernels_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for is_inside in (True, False):
        if not is_inside:
            monkeypatch.setattr(versioned, "sums_in_updates", lambda *_: {})
        executable, record = trained(optimizer="momentum:0.1")
        executor = heteroplace.Executor(executable)
        for seed in range(3):
            executor.run({"x": rows_of(seed), "labels": rows_of(seed + 1)})
        states = [
            record.solution.graph.tensors[state].name
            for state in record.solution.graph.state_of.values()
        ]
        found.append({name: executor.state(name) for name in states})
    assert len(found[0]) == 2 * len(layer_weights())
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name])


def test_sums_that_others_read_too_or_later_have_kernels() -> None:
    _, record = trained()
    graph, cluster, plan = record.solution.graph, record.solution.cluster, record.solution.plan
    summed = sorted(gradient_sums(graph))
    (made,) = graph.task_outputs[summed[0]]
    also_output = replace(graph, outputs=(*graph.outputs, made))
    assert set(sums_in_updates(also_output, cluster, plan)) == set(summed[1:])
    also_state = replace(graph, updates=(*graph.updates, (graph.inputs[0], made)))
    assert set(sums_in_updates(also_state, cluster, plan)) == set(summed[1:])
    # All sums first, then all updates: each but the last has others between it and its update.
    sums = [step for step in plan.steps if getattr(step, "task", None) in summed]
    updates = {graph.tensors[graph.task_outputs[task][0]].consumers[0] for task in summed}
    late = [step for step in plan.steps if getattr(step, "task", None) in updates]
    others = [step for step in plan.steps if step not in sums and step not in late]
    assert isinstance(sums[-1], Collective)
    found = sums_in_updates(graph, cluster, replace(plan, steps=(*others, *sums, *late)))
    assert set(found) <= {sums[-1].task}
    devices = (cluster.devices[0], replace(cluster.devices[1], host="other"))
    assert not sums_in_updates(graph, replace(cluster, devices=devices), plan)
    without = replace(graph, updates=())
    assert not sums_in_updates(without, cluster, plan)


@pytest.mark.costly
def test_sums_in_updates_take_nothing_by_themselves() -> None:
    _, record = trained()
    solution = record.solution
    graph, plan, cluster = solution.graph, solution.plan, solution.cluster

    def makespan_ns(names: frozenset[str]) -> int:
        fits = (("all_reduce", 2, 0.0, 1_000_000.0),)
        costs = replace(solution.costs, collectives=CollectiveCosts(fits, names))
        return simulate(graph, cluster, costs, plan).makespan_ns

    names = frozenset(graph.tasks[task].name for task in gradient_sums(graph))
    assert makespan_ns(frozenset()) - makespan_ns(names) == len(names) * 1_000_000
