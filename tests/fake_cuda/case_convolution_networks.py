"""Networks whose convolutions are computed by cuDNN: chosen, built, exported, loaded and run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from convolution_programs import expected

import heteroplace as hp
from heteroplace.codegen.convolutions import Convolution
from heteroplace.errors import LoweringError, SolverError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, allowed_devices, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.implementations import implementation_gains
from heteroplace.relay.annotate.tunings import TUNINGS_ATTRIBUTE
from tests.fake_cuda.build import CUBLAS, build_fake
from tests.fake_cuda.case_networks import two_gpus
from tests.fake_cuda.control import FakeCuda

tvm = pytest.importorskip("tvm")
from tvm import relay  # noqa: E402

pytestmark = pytest.mark.timeout(300)

CHANNELS, SIZE = 4, 6
QUICK_NS, SLOW_NS = 1_000, 1_000_000


def weights() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    filters, channels = (CHANNELS, CHANNELS, 3, 3), (CHANNELS,)
    shapes = [filters, channels, filters, channels, (5, CHANNELS)]
    return [random.standard_normal(shape).astype("float32") for shape in shapes]


def block() -> tvm.IRModule:
    """A residual block, average and dense layer, as in ResNet."""
    first, first_bias, second, second_bias, dense = (relay.const(each) for each in weights())
    x = relay.var("x", shape=(1, CHANNELS, SIZE, SIZE), dtype="float32")
    steps = {"padding": (1, 1), "channels": CHANNELS, "kernel_size": (3, 3)}
    inner = relay.nn.relu(relay.nn.bias_add(relay.nn.conv2d(x, first, **steps), first_bias))
    outer = relay.nn.bias_add(relay.nn.conv2d(inner, second, **steps), second_bias)
    pooled = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(relay.nn.relu(outer + x)))
    return tvm.IRModule.from_expr(relay.nn.dense(pooled, dense))


def numbers(x: np.ndarray) -> np.ndarray:
    """What it computes, in float64."""
    first, first_bias, second, second_bias, dense = weights()
    each = ((CHANNELS, (3, 3), (1, 1), (1, 1), (1, 1), 1), (0, 1, 2))
    shape = (1, CHANNELS, SIZE, SIZE)
    inner = expected(
        Convolution(shape, *each[0], *each[1], None, "relu"), {0: x, 1: first, 2: first_bias}
    )
    outer = expected(
        Convolution(shape, *each[0], *each[1], 3, "relu"),
        {0: inner, 1: second, 2: second_bias, 3: x},
    )
    return np.asarray(outer.mean(axis=(2, 3)) @ dense.T.astype("float64"))


def quick_on(*names: str) -> Callable[[TaskGraph, Cluster], CostTable]:
    """Costs by which all that may run on some devices is quick there, and next quick on gpu0."""

    def costs(graph: TaskGraph, cluster: Cluster) -> CostTable:
        allowed = allowed_devices(graph, cluster)

        def cost(task: int, index: int) -> Cost:
            if index not in allowed[task]:
                return Cost.excluded("by the graph")
            name = cluster.devices[index].name
            quick = QUICK_NS if name in names else SLOW_NS if name == "gpu0" else 4 * SLOW_NS
            return Cost.given(quick)

        return build_table(graph, cluster, cost)

    return costs


def build(*devices: str, **options: object) -> hp.Executable:
    with tvm.transform.PassContext(opt_level=3):
        return hp.build(block(), two_gpus(), costs=quick_on(*devices), solver="heft", **options)


def error_of(executor: hp.Executor, fake: FakeCuda) -> float:
    """The largest difference of three runs, of the largest number."""
    errors = []
    for seed in range(3):
        shape = (1, CHANNELS, SIZE, SIZE)
        x = np.random.default_rng(seed).standard_normal(shape).astype("float32")
        with fake.running():
            (output,) = executor.run(x=x)
        errors.append(np.abs(output - numbers(x)).max() / np.abs(numbers(x)).max())
    return float(max(errors))


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_a_network_is_placed_exported_and_run(
    fake: FakeCuda, tmp_path: Path, cuda_graphs: bool
) -> None:
    executable = build("gpu0:cudnn", cudnn="float32", store="off")
    solution = executable.solution
    gains = implementation_gains(solution.cluster, solution.costs, solution.plan)
    assert {name: count for name, (count, _) in gains.items()} == {"gpu0:cudnn": 2}
    executable.export_library(tmp_path / "model.so")
    name = "cudnnConvolutionBiasActivationForward"
    before = fake.calls().get(name, 0)
    executor = hp.load(tmp_path / "model.so", cuda_graphs=cuda_graphs)
    # When it is loaded: each once, and once more into a graph.
    assert fake.calls()[name] == before + 2 * (1 + cuda_graphs)
    assert error_of(executor, fake) < 1e-5


def test_both_libraries_share_a_network(fake: FakeCuda) -> None:
    executable = build("gpu0:cudnn", "gpu0:cublas", cudnn="float32", cublas="float32", store="off")
    assert {"gpu0:cudnn", "gpu0:cublas"} <= set(executable.solution.devices_used)
    before = fake.calls().get("cublasLtMatmul", 0)
    assert error_of(hp.Executor(executable), fake) < 1e-5
    assert fake.calls()["cublasLtMatmul"] > before


def test_without_being_asked_for_it_is_not_used(fake: FakeCuda) -> None:
    executable = build("gpu0", store="off")
    assert all(":" not in device.name for device in executable.solution.cluster.devices)
    assert not any(name.startswith("cudnn") for name in fake.calls())


@pytest.mark.parametrize("precision", ["tf32", "half"])
def test_lower_precision_says_so_in_the_plan(fake: FakeCuda, precision: str) -> None:
    executable = build(f"gpu0:cudnn_{precision}", cudnn=precision, store="off")
    assert f"gpu0:cudnn_{precision}" in executable.solution.devices_used
    assert 1e-5 < error_of(hp.Executor(executable), fake) < 1e-2


def test_a_module_that_has_lost_its_algorithms_is_refused(fake: FakeCuda) -> None:
    with tvm.transform.PassContext(opt_level=3):
        options = {"costs": quick_on("gpu0:cudnn"), "solver": "heft", "cudnn": "float32"}
        placed = relay.transform.HeteroPlace(two_gpus(), store="off", **options)(block())
        assert error_of(hp.Executor(hp.build(placed)), fake) < 1e-5
        main = placed["main"].without_attr(TUNINGS_ATTRIBUTE)
        lost = tvm.IRModule({placed.get_global_var("main"): main})
        with pytest.raises(LoweringError, match=r"convolution by cuDNN.*lost.*cudnn='off'"):
            hp.build(lost)


def test_the_store_keeps_what_was_timed(fake: FakeCuda, tmp_path: Path) -> None:
    options = {"cudnn": "float32", "store": tmp_path / "costs.db"}
    name = "cudnnGetConvolutionForwardAlgorithm_v7"
    build("gpu0:cudnn", **options)
    asked = fake.calls()[name]
    build("gpu0:cudnn", **options)
    assert fake.calls()[name] == asked
    fake.set_cudnn("version", 91_100)
    build("gpu0:cudnn", **options)
    assert fake.calls()[name] == 2 * asked


def test_what_the_library_cannot_compute_stays_with_tvm(fake: FakeCuda) -> None:
    fake.set_cudnn("has_algorithms", 0)
    executable = build("gpu0:cudnn", cudnn="float32", store="off")
    assert all(":" not in device.name for device in executable.solution.cluster.devices)


def test_it_is_refused_beside_kernels_of_tvm_alone_and_without_a_gpu(fake: FakeCuda) -> None:
    with pytest.raises(SolverError, match="exclude each other"):
        build("gpu0", cudnn="float32", kernels="tvm")
    with pytest.raises(SolverError, match="cudnn='float16'; expected one of off, float32, tf32"):
        build("gpu0", cudnn="float16")
    fake.set("num_devices", 0)
    with pytest.raises(SolverError, match=r"cuDNN.*none is in this machine; .*cudnn='off'"):
        build("gpu0", cudnn="float32", store="off")


_LOAD = """
import sys, heteroplace as hp
try:
    hp.load(sys.argv[1])
except hp.errors.ExecutionError as error:
    print(error)
"""


def test_a_machine_without_the_library_says_how_to_get_it(fake: FakeCuda, tmp_path: Path) -> None:
    build("gpu0:cudnn", cudnn="float32", store="off").export_library(tmp_path / "model.so")
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{build_fake()}:{CUBLAS}"}
    command = [sys.executable, "-c", _LOAD, str(tmp_path / "model.so")]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert "cuDNN cannot be opened: libcudnn.so.9" in done.stdout, done.stdout + done.stderr
    assert "pip install nvidia-cudnn-cu12" in done.stdout
