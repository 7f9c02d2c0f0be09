"""Networks whose products are computed by cuBLASLt: chosen, built, exported, loaded and run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import heteroplace as hp
from heteroplace.codegen.compile import CompiledNetwork
from heteroplace.costs.store import CostStore
from heteroplace.costs.tunings import forget_tunings
from heteroplace.errors import CostStoreError, LoweringError, SolverError
from heteroplace.files.solution import solution_to_json
from heteroplace.measure.cost_models import CostOptions
from heteroplace.measure.implementations import with_makers
from heteroplace.measure.options import ProfileOptions
from heteroplace.measure.profile import profile_network
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, allowed_devices, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.implementations import implementation_gains
from heteroplace.pipeline import prepare
from heteroplace.relay.annotate.tunings import TUNINGS_ATTRIBUTE
from tests.fake_cuda.build import CUBLAS, build_fake
from tests.fake_cuda.case_networks import two_gpus
from tests.fake_cuda.control import FakeCuda

tvm = pytest.importorskip("tvm")
from tvm import relay  # noqa: E402

pytestmark = pytest.mark.timeout(300)

QUICK_NS, SLOW_NS = 1_000, 1_000_000
ROWS, WIDTH, HEADS = 6, 16, 2


def weights() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    sizes = [(4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,)]
    return [random.standard_normal(size).astype("float32") for size in sizes]


def layers() -> tvm.IRModule:
    """Attention of two heads, then two dense layers, one with a relu."""
    first, first_bias, second, second_bias = (relay.const(each) for each in weights())
    x = relay.var("x", shape=(ROWS, WIDTH), dtype="float32")
    heads = relay.transpose(relay.reshape(x, (ROWS, HEADS, WIDTH // HEADS)), (1, 0, 2))
    scores = relay.nn.softmax(relay.nn.batch_matmul(heads, heads))
    mixed = relay.nn.batch_matmul(scores, heads, transpose_b=False)
    y = relay.reshape(relay.transpose(mixed, (1, 0, 2)), (ROWS, WIDTH))
    hidden = relay.nn.relu(relay.nn.dense(y, first) + first_bias)
    return tvm.IRModule.from_expr(relay.nn.dense(hidden, second) + second_bias)


def numbers(x: np.ndarray) -> np.ndarray:
    """What they compute, in float64."""
    first, first_bias, second, second_bias = (each.astype("float64") for each in weights())
    heads = x.astype("float64").reshape(ROWS, HEADS, -1).transpose(1, 0, 2)
    scores = np.exp(heads @ heads.transpose(0, 2, 1))
    scores /= scores.sum(axis=-1, keepdims=True)
    y = (scores @ heads).transpose(1, 0, 2).reshape(ROWS, WIDTH)
    return np.asarray(np.maximum(y @ first.T + first_bias, 0) @ second.T + second_bias)


def quick_on(device: str) -> Callable[[TaskGraph, Cluster], CostTable]:
    """Costs by which all that may run on a device is quick there, and next quick on gpu0."""

    def costs(graph: TaskGraph, cluster: Cluster) -> CostTable:
        allowed = allowed_devices(graph, cluster)

        def cost(task: int, index: int) -> Cost:
            if index not in allowed[task]:
                return Cost.excluded("by the graph")
            name = cluster.devices[index].name
            return Cost.given(
                QUICK_NS if name == device else SLOW_NS if name == "gpu0" else 4 * SLOW_NS
            )

        return build_table(graph, cluster, cost)

    return costs


def build(device: str, **options: object) -> hp.Executable:
    with tvm.transform.PassContext(opt_level=3):
        return hp.build(layers(), two_gpus(), costs=quick_on(device), solver="heft", **options)


def error_of(executor: hp.Executor, fake: FakeCuda) -> float:
    """The largest difference of three runs, of the largest number."""
    errors = []
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype("float32")
        with fake.running():
            (output,) = executor.run(x=x)
        errors.append(np.abs(output - numbers(x)).max() / np.abs(numbers(x)).max())
    return float(max(errors))


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_a_network_is_placed_exported_and_run(
    fake: FakeCuda, tmp_path: Path, cuda_graphs: bool
) -> None:
    executable = build("gpu0:cublas", cublas="float32", store="off")
    solution = executable.solution
    gains = implementation_gains(solution.cluster, solution.costs, solution.plan)
    assert {name: count for name, (count, _) in gains.items()} == {"gpu0:cublas": 4}
    executable.export_library(tmp_path / "model.so")
    before = fake.calls().get("cublasLtMatmul", 0)
    executor = hp.load(tmp_path / "model.so", cuda_graphs=cuda_graphs)
    # When it is loaded: each once, and once more into a graph.
    assert fake.calls()["cublasLtMatmul"] == before + 4 * (1 + cuda_graphs)
    assert error_of(executor, fake) < 1e-5
    assert executor.memory()["gpu0"].workspace_bytes >= 4096
    assert set(solution.devices_used) <= {"cpu.0", "gpu0", "gpu0:cublas"}


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_calls_in_flight_have_operands_of_their_own(fake: FakeCuda, cuda_graphs: bool) -> None:
    executable = build("gpu0:cublas", cublas="float32", store="off")
    executor = hp.Executor(executable, max_in_flight=3, cuda_graphs=cuda_graphs)
    random = np.random.default_rng(5)
    inputs = [random.standard_normal((ROWS, WIDTH)).astype("float32") for _ in range(12)]
    for x, (output,) in zip(inputs, executor.run_many([{"x": x} for x in inputs]), strict=True):
        np.testing.assert_allclose(output, numbers(x), rtol=0, atol=1e-5 * np.abs(numbers(x)).max())


def test_without_being_asked_for_it_is_not_used(fake: FakeCuda) -> None:
    executable = build("gpu0", store="off")
    assert all(":" not in device.name for device in executable.solution.cluster.devices)
    assert not any(name.startswith("cublasLt") for name in fake.calls())


@pytest.mark.parametrize("precision", ["tf32", "half"])
def test_lower_precision_says_so_in_the_plan(fake: FakeCuda, precision: str) -> None:
    executable = build(f"gpu0:cublas_{precision}", cublas=precision, store="off")
    assert f"gpu0:cublas_{precision}" in executable.solution.devices_used
    assert 1e-5 < error_of(hp.Executor(executable), fake) < 1e-2


def test_a_placed_module_carries_its_algorithms(fake: FakeCuda) -> None:
    with tvm.transform.PassContext(opt_level=3):
        options = {"costs": quick_on("gpu0:cublas"), "solver": "heft", "cublas": "float32"}
        placed = relay.transform.HeteroPlace(two_gpus(), store="off", **options)(layers())
        asked = fake.calls()["cublasLtMatmulAlgoGetHeuristic"]
        executable = hp.build(placed)
        assert relay.transform.HeteroPlace(two_gpus(), store="off", **options)(placed) is not None
    assert fake.calls()["cublasLtMatmulAlgoGetHeuristic"] == asked
    assert "gpu0:cublas" in executable.solution.devices_used
    assert error_of(hp.Executor(executable), fake) < 1e-5


def test_a_module_that_has_lost_its_algorithms_is_refused(fake: FakeCuda) -> None:
    with tvm.transform.PassContext(opt_level=3):
        options = {"costs": quick_on("gpu0:cublas"), "solver": "heft", "cublas": "float32"}
        placed = relay.transform.HeteroPlace(two_gpus(), store="off", **options)(layers())
        main = placed["main"].without_attr(TUNINGS_ATTRIBUTE)
        lost = tvm.IRModule({placed.get_global_var("main"): main})
        with pytest.raises(LoweringError, match=r"has lost the algorithms; .*cublas='off'"):
            hp.build(lost)


def test_a_saved_plan_is_taken_again(fake: FakeCuda, tmp_path: Path) -> None:
    executable = build("gpu0:cublas", cublas="float32", store="off")
    (tmp_path / "solution.json").write_text(solution_to_json(executable.solution))
    with tvm.transform.PassContext(opt_level=3):
        again = hp.build(
            layers(),
            two_gpus(),
            costs=quick_on("gpu0:cublas"),
            plan_in=tmp_path / "solution.json",
            store="off",
        )
    assert again.solution.devices_used == executable.solution.devices_used
    assert error_of(hp.Executor(again), fake) < 1e-5


def test_the_store_keeps_what_was_timed(fake: FakeCuda, tmp_path: Path) -> None:
    options = {"cublas": "float32", "store": tmp_path / "costs.db"}
    build("gpu0:cublas", **options)
    asked = fake.calls()["cublasLtMatmulAlgoGetHeuristic"]
    assert asked == 4
    build("gpu0:cublas", **options)
    assert fake.calls()["cublasLtMatmulAlgoGetHeuristic"] == asked
    fake.set_cublaslt("version", 120_904)
    build("gpu0:cublas", **options)
    assert fake.calls()["cublasLtMatmulAlgoGetHeuristic"] == 2 * asked
    fake.set_cublaslt("version", 120_903)
    with CostStore(tmp_path / "costs.db") as store:
        assert forget_tunings(store) == 2 * asked
    build("gpu0:cublas", **options)
    assert fake.calls()["cublasLtMatmulAlgoGetHeuristic"] == 3 * asked


def test_a_damaged_algorithm_in_the_store_is_told(fake: FakeCuda, tmp_path: Path) -> None:
    options = {"cublas": "float32", "store": tmp_path / "costs.db"}
    build("gpu0:cublas", **options)
    with CostStore(tmp_path / "costs.db") as store, store.transaction("IMMEDIATE") as connection:
        connection.execute("UPDATE tunings SET found = '[1, 2]'")
    with pytest.raises(CostStoreError, match=r"is damaged; .*costs forget --tuned"):
        build("gpu0:cublas", **options)


def test_what_the_library_cannot_compute_stays_with_tvm(fake: FakeCuda) -> None:
    fake.set_cublaslt("has_algorithms", 0)
    executable = build("gpu0:cublas", cublas="float32", store="off")
    assert all(":" not in device.name for device in executable.solution.cluster.devices)


def test_it_is_refused_beside_kernels_of_tvm_alone_and_without_a_gpu(fake: FakeCuda) -> None:
    with pytest.raises(SolverError, match="exclude each other"):
        build("gpu0", cublas="float32", kernels="tvm")
    with pytest.raises(SolverError, match="expected one of off, float32, tf32, half"):
        build("gpu0", cublas="float16")
    with pytest.raises(SolverError, match=r"cublas='float32' chooses for each task of one item"):
        with_makers(prepare(layers()), two_gpus(), ["cublas"], CostOptions("off"), items=2)
    fake.set("num_devices", 0)
    with pytest.raises(SolverError, match=r"none is in this machine; .*cublas='off'"):
        build("gpu0", cublas="float32", store="off")


@pytest.mark.slow
def test_costs_are_measured_on_the_twin(fake: FakeCuda) -> None:
    fake.set("delay_ns", 0)
    quiet = CostOptions("off")
    network, cluster = with_makers(prepare(layers()), two_gpus(), ["cublas"], quiet)
    options = ProfileOptions(num_rounds=1, round_ns=1)
    costs = profile_network(CompiledNetwork.of(network), cluster, options).costs
    names = [device.name for device in cluster.devices]
    assert names == ["cpu.0", "gpu0", "gpu1", "gpu0:cublas", "gpu1:cublas"]
    times = [row[names.index("gpu0:cublas")].ns for row in costs.rows]
    assert sum(each is not None for each in times) == 4
    assert all(row[names.index("gpu0")].ns is not None for row in costs.rows)


_LOAD = """
import sys, heteroplace as hp
try:
    hp.load(sys.argv[1])
except hp.errors.ExecutionError as error:
    print(error)
"""


def test_a_machine_without_the_library_says_how_to_get_it(fake: FakeCuda, tmp_path: Path) -> None:
    build("gpu0:cublas", cublas="float32", store="off").export_library(tmp_path / "model.so")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(build_fake())}
    command = [sys.executable, "-c", _LOAD, str(tmp_path / "model.so")]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert "cuBLASLt cannot be opened: libcublasLt.so.12" in done.stdout, done.stdout + done.stderr
    assert "pip install nvidia-cublas-cu12" in done.stdout


_VERSION = """
from heteroplace.native.libraries import library_version
from heteroplace.tvm_bridge import library_path
print(library_version(str(library_path()), "cublaslt"))
"""


def test_the_library_of_a_wheel_is_found_beside_the_runtime(tmp_path: Path) -> None:
    runtime, cublas = tmp_path / "nvidia/cuda_runtime/lib", tmp_path / "nvidia/cublas/lib"
    for folder in (runtime, cublas):
        folder.mkdir(parents=True)
    for name in ("libcudart.so.12", "libcuda.so.1"):
        shutil.copy(build_fake() / name, runtime / name)
    shutil.copy(CUBLAS / "libcublasLt.so.12", cublas)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(runtime)}
    command = [sys.executable, "-c", _VERSION]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert done.stdout.strip() == "120903", done.stderr
