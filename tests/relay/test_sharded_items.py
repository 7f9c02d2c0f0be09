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

from heteroplace.errors import LoweringError, UnsupportedRelayError
from heteroplace.lower.compile import CompiledKernels
from heteroplace.lower.executable import write_programs
from heteroplace.lower.lower import lower
from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Collective, Copy, Plan, Run
from heteroplace.model.solution import Solution
from heteroplace.relay import collective_ops as ops
from heteroplace.simulate.simulator import simulate

ENGINES = (None, 0, 1)
NUM_INPUTS = 3
NUM_BATCHES, NETWORKS_OF_BATCH, PLANS_OF_NETWORK = 10, 6, 15


class ShardedCase:
    """A random network of lanes, compiled, and what stock TVM makes of some inputs."""

    def __init__(self, seed: int, num_devices: int) -> None:
        self.random = Random(seed)
        self.num_devices, self.items = num_devices, self.random.randint(1, 4)
        mod = random_sharded(self.random, num_devices, self.items)
        extraction = extraction_of(mod)
        self.graph, self.compiled = extraction.graph, compiled_of(extraction)
        reference = Reference(mod)
        each = item_inputs(mod, self.items + NUM_INPUTS - 1)
        made = [reference.run(one) for one in each]
        self.samples = [
            (
                {name: np.concatenate([one[name] for one in each[k : k + self.items]])
                 for name in each[0]},
                [np.concatenate(parts)
                 for parts in zip(*made[k : k + self.items], strict=True)],
            )
            for k in range(NUM_INPUTS)
        ]  # fmt: skip
        """Inputs of a call, and its outputs."""

    def solution(self, cluster: Cluster) -> Solution:
        """Of a random plan."""
        plan = ShardedPlanner(self.random, self.graph, cluster, self.items).plan()
        return solution_of_plan(self.graph, cluster, plan)

    def kernels(self, solution: Solution) -> CompiledKernels:
        with tvm.transform.PassContext(opt_level=3):
            return self.compiled.kernels_of(solution.cluster, solution.plan)

    def check_here(self) -> None:
        """In one process, on the cores of this machine."""
        solution = self.solution(near_cluster(self.num_devices, self.random.choice(ENGINES)))
        (executable,) = write_programs(self.kernels(solution), [solution])
        check_same(executable, *self.samples[0])

    def check_ranks(self, *, is_pinned: bool) -> None:
        """On several hosts, which exchange messages after random delays."""
        random, count = self.random, self.num_devices
        engines = random.choice(ENGINES)
        cluster = far_cluster(count, random.randint(2, count), engines, is_pinned=is_pinned)
        solution = self.solution(cluster)
        kernels = self.kernels(solution)
        known = (solution.graph, cluster, solution.costs, solution.plan)
        predicted = simulate(*known) if random.random() < 0.5 else None
        lowered = lower(kernels.calls, self.graph, cluster, solution.plan, predicted)
        code = kernels.library.sealed()
        found = load_ranks(random, lowered, code).run([inputs for inputs, _ in self.samples])
        for outputs, (_, expected) in zip(found, self.samples, strict=True):
            for actual, wanted in zip(outputs, expected, strict=True):
                assert actual.tobytes() == wanted.tobytes(), lowered.text


@pytest.mark.costly
@pytest.mark.parametrize(("seed", "num_devices"), [(2, 4), (6, 2)])
def test_random_plans_equal_the_sharded_network_alone(seed: int, num_devices: int) -> None:
    case = ShardedCase(seed, num_devices)
    case.check_here()
    case.check_ranks(is_pinned=True)
    case.check_ranks(is_pinned=False)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(NUM_BATCHES))
def test_a_thousand_random_plans_equal_the_sharded_network_alone(batch: int) -> None:
    """Queues that are pinned nowhere interleave in any way."""
    for network in range(NETWORKS_OF_BATCH):
        case = ShardedCase(100 * batch + network, 2 + network % 3)
        case.check_here()
        for _ in range(PLANS_OF_NETWORK):
            case.check_ranks(is_pinned=False)


@pytest.mark.costly
def test_plans_of_equal_parts_share_their_kernels() -> None:
    case = ShardedCase(6, 2)
    solutions = [case.solution(near_cluster(2)) for _ in range(2)]
    assert solutions[0].plan != solutions[1].plan
    one, other = (case.kernels(solution) for solution in solutions)
    assert one.calls != other.calls
    assert one.library is other.library


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


@pytest.mark.costly
def test_a_sum_takes_over_nothing_that_an_output_is_read_from() -> None:
    """What the second lane makes is brought to where it is both added and returned."""
    mod = two_lanes(lambda parts: relay.Tuple([ops.all_reduce(parts), parts[1]]))
    extraction, cluster = extraction_of(mod), far_cluster(2, 2, is_pinned=False)
    graph = extraction.graph
    (x,), (_, part) = graph.inputs, graph.outputs
    first, second, added = range(3)
    there, back = cluster.route(0, 1), cluster.route(1, 0)
    steps = (
        *(Copy(x, 0, 1, there), Run(first, 0), Run(second, 1)),
        *(Copy(part, 1, 0, back), Collective(added, (0, 1))),
    )
    plan = Plan(graph.digest(), cluster.digest(), steps, "by hand")
    solution_of_plan(graph, cluster, plan)
    with tvm.transform.PassContext(opt_level=3):
        kernels = compiled_of(extraction).kernels_of(cluster, plan)
    lowered = lower(kernels.calls, graph, cluster, plan, None)
    (inputs,) = item_inputs(mod, 1)
    (found,) = load_ranks(Random(0), lowered, kernels.library.sealed()).run([inputs])
    for actual, wanted in zip(found, Reference(mod).run(inputs), strict=True):
        assert actual.tobytes() == wanted.tobytes(), lowered.text
