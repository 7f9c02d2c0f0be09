"""Plans with collectives give, bit for bit, what stock TVM makes of the sharded network alone: in
one process, and on ranks that exchange messages."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
import tvm
from relay_models import compiled_of, extraction_of, module, var, weights
from sharded_plans import (
    ShardedPlanner,
    far_cluster,
    item_inputs,
    near_cluster,
    random_sharded,
    solution_of_plan,
)
from test_items import Reference, check_same
from test_random_ranks import load_ranks
from tvm import relay

from heteroplace.codegen.executable import Executable, write_programs
from heteroplace.codegen.kernels import KernelCalls
from heteroplace.codegen.lower import lower
from heteroplace.errors import LoweringError, UnsupportedRelayError
from heteroplace.relay import collective_ops as ops

ENGINES = (None, 0, 1)


def check_ranks(
    random: Random,
    executable: Executable,
    calls: KernelCalls,
    inputs: dict[str, np.ndarray],
    expected: list[np.ndarray],
) -> None:
    """The same steps on hosts answer the same."""
    solution = executable.solution
    count = len(solution.cluster.devices)
    cluster = far_cluster(count, random.randint(2, count))
    lowered = lower(calls, solution.graph, cluster, solution.plan, None)
    code = executable.library.sealed()
    (outputs,) = load_ranks(random, lowered, code.path).run([inputs])
    for actual, wanted in zip(outputs, expected, strict=True):
        assert actual.tobytes() == wanted.tobytes(), lowered.text


def check_random_plan(seed: int, num_devices: int) -> None:
    random = Random(seed)
    items = random.randint(1, 4)
    mod = random_sharded(random, num_devices, items)
    extraction = extraction_of(mod)
    cluster = near_cluster(num_devices, random.choice(ENGINES))
    plan = ShardedPlanner(random, extraction.graph, cluster, items).plan()
    solution = solution_of_plan(extraction.graph, cluster, plan)
    with tvm.transform.PassContext(opt_level=3):
        kernels = compiled_of(extraction).kernels_of(cluster, plan)
    (executable,) = write_programs(kernels, [solution])
    each = item_inputs(mod, items)
    reference = Reference(mod)
    outputs = zip(*map(reference.run, each), strict=True)
    expected = [np.concatenate(parts) for parts in outputs]
    inputs = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
    check_same(executable, inputs, expected)
    check_ranks(random, executable, kernels.calls, inputs, expected)


@pytest.mark.parametrize(("seed", "num_devices"), [(2, 4), (3, 2)])
def test_random_plans_equal_the_sharded_network_alone(seed: int, num_devices: int) -> None:
    check_random_plan(seed, num_devices)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 70))
def test_more_random_plans_equal_the_sharded_network_alone(seed: int) -> None:
    check_random_plan(seed, 2 + seed % 3)


def two_lanes(change: Callable[[list[relay.Expr]], relay.Expr]) -> tvm.IRModule:
    x = var("x", (4, 8))
    return module([x], change([relay.nn.dense(x, weights(8, 8, seed=n)) for n in range(2)]))


REFUSED: dict[str, tuple[tvm.IRModule, int, type[Exception], str]] = {
    "another order": (
        two_lanes(
            lambda parts: ops.all_reduce([relay.nn.dense(parts[0], weights(8, 8)), parts[0]])
        ),
        1,
        LoweringError,
        "reads its 2 tensors in another order",
    ),
    "rows of items": (
        two_lanes(lambda parts: ops.all_gather(parts, 0)),
        2,
        UnsupportedRelayError,
        "cannot run for 2 items",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_give_other_numbers_is_refused(name: str) -> None:
    mod, items, error, message = REFUSED[name]
    extraction, cluster = extraction_of(mod), near_cluster(2)
    plan = ShardedPlanner(Random(0), extraction.graph, cluster, items).plan()
    with pytest.raises(error, match=message):
        compiled_of(extraction).kernels_of(cluster, plan)
