"""Collectives and kernels of plans over two cores of this machine, timed by real runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import tvm
from relay_models import cores
from shard_models import BATCH, perceptron, rank_cluster
from sharded_plans import near_cluster

from heteroplace.measure.collective_times import MEASURED_KINDS, measure_collectives
from heteroplace.measure.plan_program import PlanProgram
from heteroplace.model.check import check_plan
from heteroplace.model.collectives import collective_kind
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.step_values import collective_step_ns
from heteroplace.native.execute import LoadedInstruction
from heteroplace.parts.parallel.sharding.degree_search import search_degrees
from heteroplace.parts.parallel.sharding.in_plan import _mean, _step_times, _Time
from heteroplace.parts.parallel.sharding.model_source import ModelSource
from heteroplace.parts.parallel.sharding.shard_options import ShardOptions
from heteroplace.parts.parallel.sharding.sharded_plan import ShardedModel, plan_model, plan_models
from heteroplace.parts.parallel.transforms.degrees import Degrees

pytestmark = [
    pytest.mark.costly,
    pytest.mark.skipif(len(cores()) < 2, reason="collectives need two cores"),
]
SIZES = (4096, 1 << 18)


def planned(data: int, tensor: int, **given: object) -> ShardedModel:
    mod, params = perceptron()
    options = ShardOptions(batch=BATCH, store=None, **given)  # type: ignore[arg-type]
    with tvm.transform.PassContext(opt_level=3):
        source = ModelSource(mod, params, options)
        return plan_model(source, Degrees(data, tensor, 1, 1), rank_cluster(), options)


def test_a_line_is_fitted_to_each_kind_that_computes() -> None:
    cluster = near_cluster(2, engines=0)
    found = measure_collectives(cluster, (0, 1), ["broadcast", "all_reduce"], SIZES)
    assert [(kind, count) for kind, count, *_ in found.fits] == [("all_reduce", 2)]
    large, small = (found.ns("all_reduce", 2, size) for size in (1 << 22, 4096))
    assert large is not None and small is not None and large > small > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", MEASURED_KINDS)
def test_every_kind_is_timed(kind: str) -> None:
    (fit,) = measure_collectives(near_cluster(2), (1, 0), [kind], SIZES).fits
    assert fit[:2] == (kind, 2)


@pytest.mark.costly(5)
@pytest.mark.parametrize("memory_bytes", [2**30, 2**14])
def test_plans_take_turns_and_keep_their_own_costs(memory_bytes: int) -> None:
    mod, params = perceptron()
    options = ShardOptions(batch=BATCH, store=None)
    several = [Degrees(1, 1, 1, 1), Degrees(1, 1, 2, 2), Degrees(2, 1, 1, 1)]
    with tvm.transform.PassContext(opt_level=3):
        source = ModelSource(mod, params, options)
        models = plan_models(source, several, rank_cluster(memory_bytes), options)
    assert [model.strategy.degrees for model in models] == several
    for model in models:
        solution = model.solution
        assert len(solution.costs.rows) == len(solution.graph.tasks)
        used = {(step.task, step.device) for step in solution.plan.steps if isinstance(step, Run)}
        for task, device in used:
            assert (solution.costs.rows[task][device].ns or 0) > 0
    apart = {step.device for step in models[1].solution.plan.steps if isinstance(step, Run)}
    assert apart == {0, 1}


@pytest.mark.costly(5)
def test_plans_of_lanes_have_measured_collectives_and_kernels() -> None:
    model = planned(1, 2)
    solution = model.solution
    graph, cluster, table = solution.graph, solution.cluster, solution.costs
    check_plan(graph, cluster, table, solution.plan)
    assert table.collectives is not None
    assert [fit[:2] for fit in table.collectives.fits] == [("all_reduce", 2)]
    (step, *_) = solution.plan.collectives
    by_rings = collective_step_ns(graph, cluster, None, step)
    assert collective_step_ns(graph, cluster, table.collectives, step) != by_rings
    for task, description in enumerate(graph.tasks):
        if collective_kind(description.op) is None:
            assert {table.cost(task, device).source for device in (0, 1)} == {"measured"}


def test_gradients_cost_what_adding_takes_for_all_but_the_first_microbatch() -> None:
    first, _ = times = [_Time(10.0, 1.0), _Time(30.0, 1.0)]
    assert _mean(times, True, 4).ns == (10 + 3 * 30) / 4
    assert _mean(times, False, 4).ns == 20
    assert _mean([first], True, 1).ns == 10


def test_cores_that_join_a_kernel_add_nothing_to_its_time() -> None:
    """A rank of two cores: the second one waits in its own instruction."""
    plan = Plan("", "", (Copy(0, 0, 1, (0,)), Run(0, 0), Run(1, 0)), "")
    instructions = (
        LoadedInstruction(0, 0, 0, None),
        *(LoadedInstruction(0, at, 1, "kernel") for at in (1, 2)),
        *(LoadedInstruction(1, at, 1, None) for at in (0, 1)),
        LoadedInstruction(0, 3, 2, None),  # a task that has no kernel
    )
    program = cast(
        PlanProgram, SimpleNamespace(executor=SimpleNamespace(instructions=instructions))
    )
    middle = np.array([7.0, 10.0, 20.0, 500.0, 500.0, 5.0])
    found = _step_times(program, np.stack([middle - 1, middle, middle + 1]), plan)
    assert found == {1: _Time(30.0, 2.0), 2: _Time(5.0, 1.0)}


@pytest.mark.slow
def test_grids_know_the_collectives_of_lanes_and_of_replicas() -> None:
    mod, params = perceptron()
    options = ShardOptions(batch=BATCH, store=None, optimizer="sgd:0.1")
    with tvm.transform.PassContext(opt_level=3):
        source = ModelSource(mod, params, options)
        grid = search_degrees(source, rank_cluster(), options)
    assert {model.strategy.degrees.num_devices for model in grid.models} <= {1, 2}
    times = [model.solution.predicted_ns for model in grid.models]
    assert times == sorted(times)
