"""`benchmarks run --gpu` without a GPU: plans are built, and a slow peer is left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")

import tvm
from tvm import relay
from tvm.contrib import graph_executor

from benchmarks.peers.stock_process import build_within
from benchmarks.run.gpus import GPU, STOCK, build_halves, build_peer, row_of, table
from heteroplace.errors import ExecutionError
from heteroplace.measure.timed_runs import TimedRuns, Turn
from heteroplace.model.cluster import Cluster
from tests.relay.relay_models import mixed_cluster, module, var
from zoo.models.catalogue import Model, load_model

pytestmark = pytest.mark.relay


def with_speeds(cluster: Cluster) -> Cluster:
    """The same with figures for the roofline, by which these plans are costed."""
    devices = tuple(
        replace(device, flops_per_second=10**12, memory_bytes_per_second=10**11)
        for device in cluster.devices
    )
    return replace(cluster, devices=devices)


def devices_by_task(model: Model, devices: tuple[str, ...]) -> dict[str, str]:
    """Where the tasks of a network in halves are."""
    executable = build_halves(model, with_speeds(mixed_cluster()), devices)
    solution = executable.solution
    placement = solution.plan.placement(len(solution.graph.tasks))
    names = [solution.cluster.devices[device].name for device in placement]
    return {task.name: name for task, name in zip(solution.graph.tasks, names, strict=True)}


def test_halves_have_the_tasks_of_the_pass_context_that_they_are_built_under() -> None:
    """Of two equal ops, which opt level 3 makes one, opt level 2 keeps both."""
    x = var("x")
    both = relay.concatenate([relay.nn.softmax(x), relay.nn.softmax(x)], 1)
    mod = module([x], relay.nn.softmax(both))
    found = devices_by_task(Model("twice", mod, {}, {}), ("cpu.0", "gpu0"))
    assert list(found.values()) == sorted(found.values())
    assert set(found.values()) == {"cpu.0", "gpu0"}


@pytest.mark.costly(3)
def test_halves_of_a_quantised_network_are_built() -> None:
    found = devices_by_task(load_model("int8_qdq"), ("gpu0",))
    assert set(found.values()) == {"gpu0"}


def test_halves_keep_sorting_on_the_core() -> None:
    x = var("x", (4, 16))
    mod = module([x], relay.topk(relay.nn.softmax(x), k=3, ret_type="values"))
    found = devices_by_task(Model("sorted", mod, {}, {}), ("gpu0",))
    assert found == {"softmax.1": "gpu0", "topk.1": "cpu.0"}


def test_a_peer_past_its_limit_is_left_out_with_a_line() -> None:
    x = var("x", (4, 16))
    lines: list[str] = []
    model = Model("small", module([x], relay.nn.relu(x)), {}, {})
    assert build_peer(model, "cuda -arch=sm_90", 0.05, lines.append) is None
    assert lines[-1].startswith(f"left out: {STOCK}: stock TVM had not compiled it for cuda")
    rows = [row_of("small", GPU, TimedRuns({GPU: (Turn(10**6),)}), {"max_abs_diff": 0.0})]
    assert (rows[0]["ours_ms"], rows[0]["stock_ms"], rows[0]["ratio_to_stock"]) == (1.0, None, None)
    assert "gpu" in table(rows)


@pytest.mark.costly(3)
def test_stock_tvm_compiles_in_another_process() -> None:
    x, w = var("x", (4, 16)), relay.var("w", shape=(8, 16))
    params = {"w": tvm.nd.array(np.ones((8, 16), "float32"))}
    library = build_within(module([x, w], relay.nn.dense(x, w)), params, "llvm", 60.0)
    stock = graph_executor.GraphModule(library["default"](tvm.cpu(0)))
    stock.set_input("x", np.ones((4, 16), "float32"))
    stock.run()
    np.testing.assert_array_equal(stock.get_output(0).numpy(), np.full((4, 8), 16, "float32"))
    with pytest.raises(ExecutionError, match=r"ended with 1 for no-such-target: .*no-such-target"):
        build_within(module([x, w], relay.nn.dense(x, w)), params, "no-such-target", 60.0)
