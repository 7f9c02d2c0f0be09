"""A network in Relay: placed over a core and two GPUs, built, exported, loaded and run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import heteroplace as hp
from benchmarks.run.gpus import (
    CORE_AND_GPU,
    EVENTS,
    GPU,
    GRAPHS,
    PARTS,
    PRODUCTS,
    GpuOptions,
    chain_model,
    core_and_gpu,
    measure_gpu,
    table,
)
from heteroplace.machine.gpu_parts import split_gpus
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from tests.fake_cuda.control import FakeCuda

tvm = pytest.importorskip("tvm")
from tvm import relay  # noqa: E402

pytestmark = pytest.mark.timeout(120)

GIB = 1 << 30
SPEED = 12 * GIB


def two_gpus() -> Cluster:
    """The first core of this machine and two GPUs, with links between all memories."""
    core = hp.local_cluster().devices[0]
    links = [
        Link(f"{src}{dst}", src, dst, SPEED, 10_000, f"{src}{dst}")
        for src in range(3)
        for dst in range(3)
        if src != dst
    ]
    return Cluster(
        "two-gpus",
        (Memory("ram", 8 * GIB), Memory("gpu0", 4 * GIB), Memory("gpu1", 4 * GIB)),
        (
            Device("cpu.0", "cpu", core.target, 0, 0, core.cores, "", 10**11, 10**10),
            Device("gpu0", "cuda", "cuda -arch=sm_80", 0, 1, (), "", 10**13, 10**12),
            Device("gpu1", "cuda", "cuda -arch=sm_80", 1, 2, (), "", 10**13, 10**12),
        ),
        tuple(links),
        0,
    )


def two_layers() -> tvm.IRModule:
    """Two branches of dense layers, and one that joins them; weights are constants."""
    random = np.random.default_rng(0)
    x = relay.var("x", shape=(4, 32), dtype="float32")
    weights = [relay.const(random.standard_normal((32, 32)).astype("float32")) for _ in range(3)]
    left = relay.nn.relu(relay.nn.dense(x, weights[0]))
    right = relay.nn.dense(x, weights[1])
    return tvm.IRModule.from_expr(relay.nn.dense(left + right, weights[2]))


def numbers(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    """What the layers compute, by numpy."""
    weights: list[np.ndarray] = []
    relay.analysis.post_order_visit(
        mod["main"],
        lambda node: (
            weights.append(node.data.numpy()) if isinstance(node, relay.Constant) else None
        ),
    )
    left, right = np.maximum(x @ weights[0].T, 0), x @ weights[1].T
    return np.asarray((left + right) @ weights[2].T)


def test_a_network_over_a_core_and_two_gpus(fake: FakeCuda, tmp_path: Path) -> None:
    mod = two_layers()
    pin = {"dense.1": "gpu0", "dense.2": "gpu1", "dense.3": "cpu.0"}
    with tvm.transform.PassContext(opt_level=3):
        options = {"costs": "estimate", "pin": pin, "solver": "heft"}
        placed = relay.transform.HeteroPlace(two_gpus(), **options)(mod)
        hp.build(placed).export_library(tmp_path / "model.so")
    executor = hp.load(tmp_path / "model.so")
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((4, 32)).astype("float32")
        with fake.running():
            (output,) = executor.run(x=x)
        np.testing.assert_allclose(output, numbers(mod, x), rtol=1e-4, atol=1e-3)
    assert fake.calls()["cuLaunchKernel"] > 0
    assert fake.has_peer(0, 1)


def test_a_network_over_two_parts_of_one_gpu(fake: FakeCuda, tmp_path: Path) -> None:
    # Two devices of cuda:0: a queue and an arena each, and copies on the card between them.
    fake.set("num_devices", 1)
    whole = two_gpus()
    links = tuple(link for link in whole.links if 2 not in (link.src, link.dst))
    one_gpu = replace(whole, memories=whole.memories[:2], devices=whole.devices[:2], links=links)
    cluster = split_gpus(one_gpu, 2)
    mod = two_layers()
    pin = {"dense.1": "gpu0.0", "dense.2": "gpu0.1", "dense.3": "gpu0.1"}
    with tvm.transform.PassContext(opt_level=3):
        options = {"costs": "estimate", "pin": pin, "solver": "heft"}
        placed = relay.transform.HeteroPlace(cluster, **options)(mod)
        hp.build(placed).export_library(tmp_path / "model.so")
    executor = hp.load(tmp_path / "model.so", max_in_flight=2)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((4, 32)).astype("float32")
        with fake.running():
            (output,) = executor.run(x=x)
        np.testing.assert_allclose(output, numbers(mod, x), rtol=1e-4, atol=1e-3)
    num_threads, issued = fake.issued(0)
    assert num_threads == 1
    assert "cuLaunchKernel" in issued
    assert "cudaMemcpyPeerAsync" not in issued
    assert set(executor.memory()) == {"ram", "gpu0.0", "gpu0.1"}
    resources = {span.resource for span in executor.timeline(3).spans}
    assert {"gpu0.0", "gpu0.1", "gpu0.0->gpu0.1"} <= resources


def test_scratch_memory_of_networks_is_there_before_the_run(fake: FakeCuda, tmp_path: Path) -> None:
    x = relay.var("x", shape=(4, 64), dtype="float32")
    ops = relay.Tuple([relay.cumsum(x, axis=1), relay.mean(x, 1), relay.argmax(x, 1)])
    with tvm.transform.PassContext(opt_level=3):
        options = {"costs": "estimate", "pin": {"*": "gpu1"}, "solver": "single"}
        placed = relay.transform.HeteroPlace(two_gpus(), **options)(tvm.IRModule.from_expr(ops))
        hp.build(placed).export_library(tmp_path / "model.so")
    executor = hp.load(tmp_path / "model.so")
    value = np.random.default_rng(0).integers(-50, 50, (4, 64)).astype("float32")
    for _ in range(2):
        with fake.running():  # reports any allocation
            found = executor.run(x=value)
        expected = (np.cumsum(value, 1), value.mean(1), value.argmax(1))
        for output, numbers_of_op in zip(found, expected, strict=True):
            np.testing.assert_allclose(output, numbers_of_op, rtol=1e-6)
    assert fake.calls()["cuLaunchKernel"] > 0


@pytest.mark.slow
def test_the_gpu_benchmark_runs_and_its_numbers_agree(fake: FakeCuda) -> None:
    fake.set("num_devices", 1)
    fake.set("delay_ns", 0)
    options = GpuOptions(num_rounds=2, turn_ns=1_000_000)
    rows = measure_gpu(chain_model(8), core_and_gpu(two_gpus()), options)
    assert [row["mode"] for row in rows] == [
        GPU,
        GRAPHS,
        CORE_AND_GPU,
        CORE_AND_GPU + EVENTS,
        PARTS,
        PRODUCTS,
    ]
    assert all(row["max_abs_diff"] < 1e-5 for row in rows)
    assert "two parts of a gpu" in table(rows)
    assert fake.calls()["cudaGraphLaunch"] > 0


def test_a_routed_network_is_compiled_for_its_gpu_whatever_compiled_before(
    fake: FakeCuda, tmp_path: Path
) -> None:
    tvm.register_func("tvm_callback_cuda_compile", lambda *_: bytearray(b"none"), override=True)
    x = relay.var("x", shape=(4, 8), dtype="float32")
    ids = relay.var("ids", shape=(4,), dtype="int32")
    scaled = [lambda rows, by=by: relay.multiply(rows, relay.const(by)) for by in (2.0, 3.0)]
    cells = hp.routing.annotate_cell(x, (0,), (1, 8))
    y = hp.routing.route(cells, hp.routing.label(ids, 2), scaled, capacities=[4], name="gate")
    mod = tvm.IRModule.from_expr(relay.Function([x, ids], y))
    pin = {"router.1": "gpu0", "multiply.1": "gpu1"}
    with tvm.transform.PassContext(opt_level=3):
        placed = relay.transform.HeteroPlace(two_gpus(), costs="estimate", pin=pin)(mod)
        hp.build(placed).export_library(tmp_path / "model.so")
    executor = hp.load(tmp_path / "model.so")
    for routes, expected in (([0, 1, -1, 1], [2, 3, 0, 3]), ([1, 0, 0, -1], [3, 2, 2, 0])):
        with fake.running():
            (output,) = executor.run(x=np.ones((4, 8), "float32"), ids=np.array(routes, "int32"))
        np.testing.assert_array_equal(output, np.repeat(np.float32(expected)[:, None], 8, 1))
