"""Networks computed by cuBLASLt and cuDNN: chosen, built, exported, loaded and run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import heteroplace as hp
from heteroplace.costs.store import CostStore
from heteroplace.costs.tunings import forget_tunings
from heteroplace.errors import CostStoreError, LoweringError, SolverError
from heteroplace.files.solution_file import solution_to_json
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.cost_models import CostOptions
from heteroplace.measure.kernel_variants import with_makers
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.profile import profile_network
from heteroplace.model.implementations import implementation_gains
from heteroplace.pipeline import prepare
from heteroplace.relay.annotate.tunings_attribute import TUNINGS_ATTRIBUTE
from tests.fake_cuda.build import CUBLAS, build_fake
from tests.fake_cuda.case_networks import two_gpus
from tests.fake_cuda.control import VERSIONS, FakeCuda

tvm = pytest.importorskip("tvm")
from tvm import relay  # noqa: E402

from tests.fake_cuda.library_networks import (  # noqa: E402
    FEED_FORWARD,
    NETWORKS,
    NetworkCase,
    all_networks,
    one_network,
    quick_on,
)

pytestmark = pytest.mark.timeout(300)

PROGRAM = Path(sysconfig.get_path("scripts")) / "heteroplace-run"


@pytest.mark.parametrize("cuda_graphs", [False, True])
@all_networks
def test_a_network_is_placed_exported_and_run(
    fake: FakeCuda, tmp_path: Path, case: NetworkCase, cuda_graphs: bool
) -> None:
    executable = case.build()
    solution = executable.solution
    gains = implementation_gains(solution.cluster, solution.costs, solution.plan)
    assert {name: count for name, (count, _) in gains.items()} == {case.twin: case.num_kernels}
    assert set(solution.devices_used) <= {"cpu.0", "gpu0", case.twin}
    executable.export_library(tmp_path / "model.so")
    before = fake.calls().get(case.computing, 0)
    executor = hp.load(tmp_path / "model.so", cuda_graphs=cuda_graphs)
    # When it is loaded: each once, and once more into a graph.
    assert fake.calls()[case.computing] == before + case.num_kernels * (1 + cuda_graphs)
    assert case.error_of(executor, fake) < 1e-5
    assert executor.memory()["gpu0"].workspace_bytes >= 4096


def test_a_library_computes_what_is_before_an_activation_that_it_lacks(fake: FakeCuda) -> None:
    executable = FEED_FORWARD.build()
    ops = [task.op for task in executable.solution.graph.tasks if "dense" in task.op]
    assert [len(op.split("+")) for op in ops] == [7, 3]
    before = fake.calls().get(FEED_FORWARD.computing, 0)
    executor = hp.Executor(executable)
    assert fake.calls()[FEED_FORWARD.computing] == before + FEED_FORWARD.num_kernels
    assert FEED_FORWARD.error_of(executor, fake) < 1e-5


@pytest.mark.parametrize("cuda_graphs", [False, True])
@all_networks
def test_calls_in_flight_have_operands_of_their_own(
    fake: FakeCuda, case: NetworkCase, cuda_graphs: bool
) -> None:
    executor = hp.Executor(case.build(), max_in_flight=3, cuda_graphs=cuda_graphs)
    inputs = [case.input(seed) for seed in range(12)]
    list(executor.run_many([{"x": x} for x in inputs]))  # which makes room for three
    with fake.running():
        outputs = list(executor.run_many([{"x": x} for x in inputs]))
    for x, (output,) in zip(inputs, outputs, strict=True):
        exact = case.numbers(x)
        np.testing.assert_allclose(output, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    threads, issued = fake.issued(0)
    assert threads == 1, issued


def test_both_libraries_share_a_network(fake: FakeCuda) -> None:
    case = NETWORKS[1]
    executable = case.build(case.twin, "gpu0:cublas", cublas="float32")
    assert {case.twin, "gpu0:cublas"} <= set(executable.solution.devices_used)
    before = fake.calls().get("cublasLtMatmul", 0)
    assert case.error_of(hp.Executor(executable), fake) < 1e-5
    assert fake.calls()["cublasLtMatmul"] > before


@all_networks
def test_without_being_asked_for_it_is_not_used(fake: FakeCuda, case: NetworkCase) -> None:
    executable = case.build("gpu0", precision="off")
    assert all(":" not in device.name for device in executable.solution.cluster.devices)
    assert not any(name.startswith(("cublasLt", "cudnn")) for name in fake.calls())


@pytest.mark.parametrize("precision", ["tf32", "half"])
@all_networks
def test_lower_precision_says_so_in_the_plan(
    fake: FakeCuda, case: NetworkCase, precision: str
) -> None:
    twin = f"{case.twin}_{precision}"
    executable = case.build(twin, precision=precision)
    assert twin in executable.solution.devices_used
    assert 1e-5 < case.error_of(hp.Executor(executable), fake) < 1e-2


def place(case: NetworkCase) -> tvm.IRModule:
    """The placed module."""
    options = {"costs": quick_on(case.twin), "solver": "heft", case.option: "float32"}
    with tvm.transform.PassContext(opt_level=3):
        return relay.transform.HeteroPlace(two_gpus(), store="off", **options)(case.module())


@all_networks
def test_a_placed_module_carries_its_algorithms(fake: FakeCuda, case: NetworkCase) -> None:
    placed = place(case)
    asked = fake.calls()[case.looking]
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(placed)
    assert fake.calls()[case.looking] == asked
    assert case.twin in executable.solution.devices_used
    assert case.error_of(hp.Executor(executable), fake) < 1e-5


@all_networks
def test_a_module_that_has_lost_its_algorithms_is_refused(
    fake: FakeCuda, case: NetworkCase
) -> None:
    placed = place(case)
    main = placed["main"].without_attr(TUNINGS_ATTRIBUTE)
    lost = tvm.IRModule({placed.get_global_var("main"): main})
    message = rf"{case.library.kernel} by {case.library.name}.*lost.*{case.option}='off'"
    with tvm.transform.PassContext(opt_level=3), pytest.raises(LoweringError, match=message):
        hp.build(lost)


@one_network
def test_a_saved_plan_is_taken_again(fake: FakeCuda, tmp_path: Path, case: NetworkCase) -> None:
    solution = case.build().solution
    (tmp_path / "solution.json").write_text(solution_to_json(solution))
    with tvm.transform.PassContext(opt_level=3):
        again = hp.build(
            case.module(),
            two_gpus(),
            costs=quick_on(case.twin),
            plan_in=tmp_path / "solution.json",
            store="off",
        )
    assert again.solution.devices_used == solution.devices_used
    assert case.error_of(hp.Executor(again), fake) < 1e-5


@all_networks
def test_the_store_keeps_what_was_timed(fake: FakeCuda, tmp_path: Path, case: NetworkCase) -> None:
    def asked() -> int:
        before = fake.calls().get(case.looking, 0)
        case.build(store=tmp_path / "costs.db")
        return fake.calls()[case.looking] - before

    symbols = case.library.symbols
    each = asked()
    assert 0 < each <= case.num_kernels
    assert asked() == 0
    fake.set_library(symbols, "version", VERSIONS[symbols] + 1)
    assert asked() == each
    fake.set_library(symbols, "version", VERSIONS[symbols])
    with CostStore(tmp_path / "costs.db") as store:
        assert forget_tunings(store) == 2 * each
    assert asked() == each


@one_network
def test_a_damaged_algorithm_in_the_store_is_told(
    fake: FakeCuda, tmp_path: Path, case: NetworkCase
) -> None:
    case.build(store=tmp_path / "costs.db")
    with CostStore(tmp_path / "costs.db") as store, store.transaction("IMMEDIATE") as connection:
        connection.execute("UPDATE tunings SET found = '[1, 2]'")
    with pytest.raises(CostStoreError, match=r"is damaged; .*costs forget --tuned"):
        case.build(store=tmp_path / "costs.db")


@all_networks
def test_what_the_library_cannot_compute_stays_with_tvm(fake: FakeCuda, case: NetworkCase) -> None:
    fake.set_library(case.library.symbols, "has_algorithms", 0)
    executable = case.build()
    assert all(":" not in device.name for device in executable.solution.cluster.devices)


@all_networks
def test_it_is_refused_beside_kernels_of_tvm_alone_and_without_a_gpu(
    fake: FakeCuda, case: NetworkCase
) -> None:
    option = case.option
    with pytest.raises(SolverError, match="exclude each other"):
        case.build("gpu0", kernels="tvm")
    expected = f"{option}='float16'; expected one of off, float32, tf32, half"
    with pytest.raises(SolverError, match=expected):
        case.build("gpu0", precision="float16")
    with pytest.raises(SolverError, match=f"{option}='float32' chooses for each task of one item"):
        with_makers(prepare(case.module()), two_gpus(), [option], CostOptions("off"), items=2)
    fake.set("num_devices", 0)
    missing = rf"{case.library.name}.*none is in this machine; .*{option}='off'"
    with pytest.raises(SolverError, match=missing):
        case.build("gpu0")


@pytest.mark.slow
@all_networks
def test_costs_are_measured_on_the_twin(fake: FakeCuda, case: NetworkCase) -> None:
    fake.set("delay_ns", 0)
    quiet = CostOptions("off")
    network, cluster = with_makers(prepare(case.module()), two_gpus(), [case.option], quiet)
    options = ProfileOptions(least_rounds=1, round_ns=1)
    costs = profile_network(CompiledNetwork.of(network), cluster, options).costs
    names = [device.name for device in cluster.devices]
    assert names == ["cpu.0", "gpu0", "gpu1", case.twin, case.twin.replace("0", "1")]
    times = [row[names.index(case.twin)].ns for row in costs.rows]
    assert sum(each is not None for each in times) == case.num_kernels
    assert all(row[names.index("gpu0")].ns is not None for row in costs.rows)


_LOAD = """
import sys, heteroplace as hp
try:
    hp.load(sys.argv[1])
except hp.errors.ExecutionError as error:
    print(error)
"""


@all_networks
def test_a_machine_without_the_library_says_how_to_get_it(
    fake: FakeCuda, tmp_path: Path, case: NetworkCase
) -> None:
    case.build().export_library(tmp_path / "model.so")
    done = run_code(_LOAD, f"{build_fake()}:{case.others}", str(tmp_path / "model.so"))
    missing = f"{case.library.name} cannot be opened: {case.file}"
    assert missing in done.stdout, done.stdout + done.stderr
    assert f"pip install nvidia-{case.option}-cu12` (CUDA 12) or `pip install" in done.stdout


@all_networks
def test_the_program_without_python_looks_for_the_library_too(
    fake: FakeCuda, tmp_path: Path, case: NetworkCase
) -> None:
    case.build().export_library(tmp_path / "model.so")
    command = [str(PROGRAM), str(tmp_path / "model.so"), "--describe"]
    done = run_elsewhere(command, f"{build_fake()}:{case.others}")
    assert f"{case.library.name} cannot be opened: {case.file}" in done.stderr


def run_code(code: str, library_path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that finds libraries elsewhere."""
    return run_elsewhere([sys.executable, "-c", code, *arguments], library_path)


def run_elsewhere(command: list[str], library_path: str) -> subprocess.CompletedProcess[str]:
    """Run a process that finds libraries elsewhere."""
    environment = {**os.environ, "LD_LIBRARY_PATH": library_path}
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)


_VERSION = """
from heteroplace.parts.kernels.native.core_libraries import library_version
from heteroplace.tvm_bridge import library_path
print(library_version(str(library_path()), "cublaslt"))
"""


@pytest.mark.parametrize("place", ["cublas/lib/libcublasLt.so.12", "cu13/lib/libcublasLt.so.13"])
def test_the_library_of_a_wheel_is_found_beside_the_runtime(tmp_path: Path, place: str) -> None:
    """Also where PyTorch for CUDA 13 has brought it."""
    runtime, cublas = tmp_path / "nvidia/cuda_runtime/lib", tmp_path / "nvidia" / place
    for folder in (runtime, cublas.parent):
        folder.mkdir(parents=True)
    for name in ("libcudart.so.12", "libcuda.so.1"):
        shutil.copy(build_fake() / name, runtime / name)
    shutil.copy(CUBLAS / "libcublasLt.so.12", cublas)
    done = run_code(_VERSION, str(runtime))
    assert done.stdout.strip() == "120903", done.stderr
