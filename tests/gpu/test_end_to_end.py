"""The whole line on a machine with an NVIDIA GPU: place, build, export, load, run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import heteroplace as hp
from heteroplace.demo.networks import small_cnn
from heteroplace.errors import ExecutionError
from heteroplace.machine.gpu_parts import split_gpus
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from tests.compiled_files import read_parts

tvm = pytest.importorskip("tvm")
relay = pytest.importorskip("tvm.relay")


def cpu_and_gpu() -> Cluster:
    """The first core of this machine and its first GPU, with figures of PCIe 3.0 x16."""
    core = hp.local_cluster().devices[0]
    arch = "sm_" + tvm.cuda(0).compute_version.replace(".", "")
    return Cluster(
        "cpu-and-gpu",
        (Memory("ram", 8 << 30), Memory("gpu0", 4 << 30)),
        (
            Device("cpu.0", "cpu", core.target, 0, 0, core.cores),
            Device("gpu0", "cuda", f"cuda -arch={arch}", 0, 1),
        ),
        (
            Link("up", 0, 1, 12_000_000_000, 10_000, "up"),
            Link("down", 1, 0, 12_000_000_000, 10_000, "down"),
        ),
        0,
    )


def reference(mod: tvm.IRModule, params: dict, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target="llvm", params=params)
    graph = tvm.contrib.graph_executor.GraphModule(library["default"](tvm.cpu(0)))
    graph.run(**inputs)
    return graph.get_output(0).numpy()


@pytest.mark.parametrize(
    "pin", [{}, {"conv2d.*": "gpu0"}, {"conv2d.1": "gpu0", "conv2d.2": "cpu.0"}]
)
def test_mixed_plan_gives_the_numbers_of_stock_tvm(pin: dict[str, str], tmp_path: Path) -> None:
    mod, params, shapes = small_cnn()
    random = np.random.default_rng(0)
    inputs = {name: random.random(shape).astype("float32") for name, shape in shapes.items()}
    with tvm.transform.PassContext(opt_level=3):
        placed = relay.transform.HeteroPlace(cpu_and_gpu(), params=params, pin=pin)(mod)
        hp.build(placed).export_library(tmp_path / "model.so")
    executor = hp.load(tmp_path / "model.so")
    expected = reference(mod, params, inputs)
    for _ in range(20):
        (output,) = executor.run(**inputs)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_two_parts_of_a_gpu_and_graphs_give_the_numbers_of_stock_tvm(
    cuda_graphs: bool, tmp_path: Path
) -> None:
    mod, params, shapes = small_cnn()
    random = np.random.default_rng(0)
    inputs = {name: random.random(shape).astype("float32") for name, shape in shapes.items()}
    cluster = split_gpus(cpu_and_gpu(), 2)
    pin = {"*": "gpu0.0", "conv2d.2": "gpu0.1"}
    with tvm.transform.PassContext(opt_level=3):
        placed = relay.transform.HeteroPlace(cluster, params=params, pin=pin)(mod)
        hp.build(placed).export_library(tmp_path / "model.so")
    executor = hp.load(tmp_path / "model.so", max_in_flight=3, cuda_graphs=cuda_graphs)
    expected = reference(mod, params, inputs)
    for (output,) in executor.run_many([inputs] * 20):
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_timeline_of_a_gpu_covers_its_kernels() -> None:
    mod, params, shapes = small_cnn()
    with tvm.transform.PassContext(opt_level=3):
        options = {"params": params, "pin": {"conv2d.*": "gpu0"}}
        executable = hp.build(relay.transform.HeteroPlace(cpu_and_gpu(), **options)(mod))
    executor = hp.Executor(executable)
    executor.run(**{name: np.ones(shape, "float32") for name, shape in shapes.items()})
    spans = [span for span in executor.timeline().spans if span.resource == "gpu0"]
    assert spans
    assert all(span.finish_ns > span.start_ns >= 0 for span in spans)


def test_code_for_a_newer_gpu_is_refused_before_it_is_run(tmp_path: Path) -> None:
    mod, params, _ = small_cnn()
    path = tmp_path / "model.so"
    with tvm.transform.PassContext(opt_level=3):
        options = {"params": params, "pin": {"conv2d.*": "gpu0"}}
        hp.build(relay.transform.HeteroPlace(cpu_and_gpu(), **options)(mod)).export_library(path)
    capability = tvm.cuda(0).compute_version.replace(".", "")
    parts = read_parts(path)
    assert f"\ncuda 0 {capability}\n".encode() in parts.needs
    hp.load(path)
    needs = parts.needs.replace(f"cuda 0 {capability}".encode(), b"cuda 0 999")
    path.write_bytes(replace(parts, needs=needs).to_bytes())
    with pytest.raises(ExecutionError, match=r"needs compute capability 99\.9, this GPU has"):
        hp.load(path)


@pytest.mark.parametrize("name", ["sin", "cos", "log", "exp", "sigmoid"])
def test_functions_of_a_gpu_are_right_for_all_numbers(name: str) -> None:
    x = relay.var("x", shape=(4, 256), dtype="float32")
    mod = tvm.IRModule.from_expr(relay.Function([x], getattr(relay, name)(x)))
    with tvm.transform.PassContext(opt_level=3):
        placed = relay.transform.HeteroPlace(cpu_and_gpu(), pin={"*": "gpu0"}, store="off")(mod)
        executable = hp.build(placed)
    random = np.random.default_rng(0)
    low, high = {"log": (0.999, 1.001), "exp": (-80, 80), "sigmoid": (-80, 80)}.get(
        name, (-1e4, 1e4)
    )
    values = random.uniform(low, high, (4, 256)).astype("float32")
    exact = values.astype("float64")
    expected = 1 / (1 + np.exp(-exact)) if name == "sigmoid" else getattr(np, name)(exact)
    (found,) = hp.Executor(executable).run(x=values)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-7 if name != "log" else 1e-10)
