"""Random routed networks by random plans, with whatever optimisers and predictions: the numbers of
numpy, and the same bits by all plans that run the same kernels."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from random import Random

import numpy as np
import pytest
import tvm
from item_plans import with_second_memory
from relay_models import cpu_cluster, module, var
from routed_batches import check_batch
from routed_models import costs_by_capacity, routed_solution
from tvm import relay

import heteroplace
from heteroplace import routing
from heteroplace.errors import ExecutionError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.executable import Executable, write_programs
from heteroplace.model.cluster import Cluster
from heteroplace.model.routed.route_profile import RouteProfile
from heteroplace.parts.routing.dynamic.recorded_routes import read_profile
from heteroplace.parts.routing.relay.rewrite import named_routers, update_routers
from heteroplace.relay.tasks.network import cut_network
from heteroplace.run.executor import Executor

NUM_BATCHES, BATCH_SIZE = 125, 8
FEW = 2
CELLS, WIDTH = 6, 16
NUM_RUNS = 40
Inputs = dict[str, np.ndarray]


@pytest.mark.costly(4)
def test_random_routed_networks_equal_numpy_by_any_plan(pytestconfig: pytest.Config) -> None:
    check_batch(f"commit {pytestconfig.getoption('hypothesis_seed')}", FEW, max_parts=1)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(NUM_BATCHES))
def test_a_thousand_random_routed_networks_equal_numpy_by_any_plan(batch: int) -> None:
    check_batch(f"batch {batch}", BATCH_SIZE, max_parts=1 + batch % 2)


def integers(*shape: int, seed: int = 0) -> relay.Constant:
    return relay.const(np.random.default_rng(seed).integers(-3, 4, shape).astype("int32"))


def of_integers(width: int = WIDTH) -> tvm.IRModule:
    """Three experts for cells, of which one routes again, then two for the whole tensor."""
    x = var("x", (CELLS, width), "int32")

    def expert(seed: int) -> Callable[[relay.Expr], relay.Expr]:
        weights, bias = integers(width, width, seed=seed), integers(width, seed=seed)
        return lambda rows: relay.add(relay.nn.dense(rows, weights), bias)

    def nested(rows: relay.Expr) -> relay.Expr:
        by_sum = routing.hashed(relay.sum(rows, axis=1), 2)
        inner = routing.annotate_cell(rows, (0,), (1, width))
        return routing.route(
            inner, by_sum, [expert(5), expert(6)], capacities=[CELLS], name="inner"
        )

    cells = routing.annotate_cell(x, (0,), (1, width))
    decision = routing.hashed(relay.sum(x, axis=1), 3)
    branches = [nested, expert(0), expert(1)]
    y = routing.route(cells, decision, branches, None, x, [2, CELLS], name="experts")
    whole = relay.reshape(y, [1, CELLS * width])
    ids = routing.hashed(relay.sum(whole, axis=1), 2)
    scaled = [lambda z, by=by: relay.multiply(z, by) for by in map(relay.const, (3, 5))]
    z = routing.route(routing.annotate_cell(whole, (0,), (1, CELLS * width)), ids, scaled,
                      name="whole")  # fmt: skip
    return named_routers(module([x], z))


def inputs_of(number: int) -> Inputs:
    generator = np.random.default_rng(number)
    return {"x": generator.integers(-5, 6, (CELLS, WIDTH)).astype("int32")}


def two_memories() -> Cluster:
    return with_second_memory(cpu_cluster())


def built(mod: tvm.IRModule) -> Executable:
    return heteroplace.build(mod, two_memories(), costs=costs_by_capacity)


def bits(executor: Executor) -> list[bytes]:
    return [executor.run(inputs_of(number))[0].tobytes() for number in range(NUM_RUNS)]


@pytest.mark.costly(7)
def test_rows_of_no_cell_decide_nothing_wherever_a_nested_router_is() -> None:
    network, cluster = cut_network(of_integers()), two_memories()
    count, apart = len(network.graph.tasks), len(cluster.devices) - 1
    kernels = CompiledNetwork.of(network).kernels(cluster, [0] * count)
    random, found = Random(1), []
    for share in (0.0, 0.5, 0.5, 0.5):
        devices = [apart if random.random() < share else 0 for _ in range(count)]
        (executable,) = write_programs(kernels, [routed_solution(network, cluster, devices)])
        found.append(bits(Executor(executable)))
    assert found == found[:1] * len(found)


@pytest.mark.costly
def test_a_router_function_may_be_wrong_or_raise_and_the_next_run_works() -> None:
    says = [0]  # of a cell's first branch

    def decide(_: tvm.nd.NDArray, mask: tvm.nd.NDArray) -> None:
        if not says:
            raise ValueError("no branch for these cells")
        values = np.zeros(mask.shape, "int32")
        values[:, : len(says)] = says
        mask.copyfrom(values)

    tvm.register_func("tests.wrong_router", decide, override=True)
    x = var("x", (CELLS, 4))
    decision = routing.host("tests.wrong_router", [x], CELLS, 3, top_k=1)
    scaled = [lambda rows, by=by: relay.multiply(rows, relay.const(by)) for by in (2.0, 3.0, 4.0)]
    cells = routing.annotate_cell(x, (0,), (1, 4))
    y = routing.route(cells, decision, scaled, capacities=[CELLS], name="by host")
    executor = Executor(heteroplace.build(module([x], y), cpu_cluster(), costs=costs_by_capacity))
    ones = np.ones((CELLS, 4), "float32")
    for wrong, fault in (
        ([], "no branch for these cells"),
        ([1, 1], "router 'by host': Assert fail: .*, its mask gives a cell more than 1 branches"),
        ([-1], "router 'by host': Assert fail: .*, a route decision is none of its 3 branches"),
    ):
        says[:] = wrong
        with pytest.raises(ExecutionError, match=fault):
            executor.run({"x": ones})
        says[:] = [0, 1]
        np.testing.assert_array_equal(executor.run({"x": ones})[0], 3 * ones)


def passes(profile: RouteProfile) -> dict[str, tvm.transform.Pass]:
    transform, cluster = relay.transform, two_memories()
    return {
        "capacities": transform.ChooseCapacities(profile, num_sizes=2),
        "memories": transform.PlaceBranches(profile, cluster),
        "predictions": transform.SpeculateRoutes(profile),
        "preloading": transform.PreloadWeights(profile, budget_bytes=16 * WIDTH * WIDTH),
        "all": transform.Specialise(profile, cluster),
    }


PAIRS = list(combinations(["capacities", "memories", "predictions", "preloading", "all"], 2))


def check_pair(pair: tuple[str, str], folder: Path) -> None:
    """Integers are the same to the bit after two optimisers, whatever is predicted."""
    mod = of_integers()
    plain = Executor(built(mod))
    with plain.record(folder / "routes.jsonl", level=2):
        expected = bits(plain)
    profile = read_profile(folder / "routes.jsonl")
    # The inner router decides in the runs in which its branch has cells, and is recorded in these.
    reached = round(NUM_RUNS * profile.router("experts").activation(0))
    expected_runs = {"experts": NUM_RUNS, "inner": reached, "whole": NUM_RUNS}
    assert {router.name: router.num_runs for router in profile.routers} == expected_runs
    optimisers = passes(profile)
    for name in pair:
        mod = optimisers[name](mod)
    changed = update_routers(mod, {"whole": {"predict": "1"}})  # pays only by its profile
    executor = Executor(built(changed))
    for branches in ([0], [1], [0, 1], []):
        executor.predict({"whole": branches})
        assert bits(executor) == expected, f"{pair} with {branches} predicted"


@pytest.mark.costly(14)
def test_a_pair_of_optimisers_changes_no_bit(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    seed = str(pytestconfig.getoption("hypothesis_seed"))
    check_pair(Random(seed).choice(PAIRS), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_optimisers_in_pairs_change_no_bit(pair: tuple[str, str], tmp_path: Path) -> None:
    check_pair(pair, tmp_path)
