"""Collectives over two cores of this machine, timed by real runs, and what plans say of them."""

from __future__ import annotations

import pytest
import tvm
from relay_models import cores
from shard_models import BATCH, perceptron, rank_cluster
from sharded_plans import near_cluster

from heteroplace.measure.collectives import MEASURED_KINDS, measure_collectives
from heteroplace.model.check import check_plan
from heteroplace.model.cost import CostTable
from heteroplace.model.step_values import collective_step_ns
from heteroplace.sharding.options import ShardOptions
from heteroplace.sharding.plan import ShardedModel, plan_model
from heteroplace.sharding.search import search_degrees
from heteroplace.sharding.source import ModelSource
from heteroplace.transforms.degrees import Degrees

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


def test_plans_of_lanes_have_measured_collectives_and_disturbed_times() -> None:
    model = planned(1, 2)
    solution = model.solution
    check_plan(solution.graph, solution.cluster, solution.costs, solution.plan)
    table: CostTable = solution.costs
    assert table.collectives is not None
    assert [fit[:2] for fit in table.collectives.fits] == [("all_reduce", 2)]
    (step, *_) = solution.plan.collectives
    by_rings = collective_step_ns(solution.graph, solution.cluster, None, step)
    assert collective_step_ns(solution.graph, solution.cluster, table.collectives, step) != by_rings
    assert solution.expected is not None and solution.expected_ns > 0


@pytest.mark.slow
def test_grids_know_the_collectives_of_lanes_and_of_replicas() -> None:
    mod, params = perceptron()
    options = ShardOptions(batch=BATCH, store=None, optimizer="sgd:0.1")
    with tvm.transform.PassContext(opt_level=3):
        source = ModelSource(mod, params, options)
        grid = search_degrees(source, rank_cluster(), options)
    assert {model.strategy.degrees.num_devices for model in grid.models} <= {1, 2}
    times = [model.solution.expected_ns for model in grid.models]
    assert times == sorted(times)
