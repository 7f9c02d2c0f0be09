"""Plans with collectives give, bit for bit, what stock TVM makes of the sharded network alone."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import tvm
from relay_models import compiled_of, cores, extraction_of
from sharded_plans import (
    ShardedPlanner,
    apart_cluster,
    item_inputs,
    random_sharded,
    solution_of_plan,
)
from test_items import Reference, check_same

from heteroplace.pipeline import build


def check_random_plan(seed: int, num_devices: int) -> None:
    random = Random(seed)
    items = random.randint(1, 4)
    mod = random_sharded(random, num_devices, items)
    extraction = extraction_of(mod)
    own = cores()
    cluster = apart_cluster(num_devices, lambda number: own[number % len(own)])
    plan = ShardedPlanner(random, extraction.graph, cluster, items).plan()
    solution = solution_of_plan(extraction.graph, cluster, plan)
    with tvm.transform.PassContext(opt_level=3):
        executable = build(compiled_of(extraction), solution)
    each = item_inputs(mod, items)
    reference = Reference(mod)
    outputs = zip(*map(reference.run, each), strict=True)
    inputs = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
    check_same(executable, inputs, [np.concatenate(parts) for parts in outputs])


@pytest.mark.parametrize(("seed", "num_devices"), [(0, 2), (1, 3), (2, 4)])
def test_random_plans_equal_the_sharded_network_alone(seed: int, num_devices: int) -> None:
    check_random_plan(seed, num_devices)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 60))
def test_more_random_plans_equal_the_sharded_network_alone(seed: int) -> None:
    check_random_plan(seed, 2 + seed % 3)
