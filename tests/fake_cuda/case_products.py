"""Products by cuBLASLt on the fake: numbers, what a run may do, and each call failing once."""

from __future__ import annotations

import time

import numpy as np
import pytest
from product_programs import (
    ProductProgram,
    algorithms,
    expected,
    random_product,
    set_operands,
)

from heteroplace.codegen.products import Product
from heteroplace.errors import ArtifactError, ExecutionError, HeteroPlaceError
from heteroplace.measure.known_library_kernels import time_algorithms
from tests.fake_cuda.control import FakeCuda, Live

pytestmark = pytest.mark.timeout(300)

DENSE = Product(1, 5, 7, 9, False, True, False, False, 0, 1, 2, None, "relu")
EXECUTION_FAILED = 13
ILLEGAL_ADDRESS = 700
TEARDOWN = {
    "cublasLtDestroy",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatmulPreferenceDestroy",
}


@pytest.mark.parametrize("seed", range(24))
def test_every_algorithm_of_any_product_keeps_the_rules_of_a_run(fake: FakeCuda, seed: int) -> None:
    product = random_product(seed)
    device = seed % 2
    symbols = algorithms(product, device=device)
    assert len(symbols) == 2  # neither the one in a bad state, nor that for aligned matrices
    program = ProductProgram(product, symbols * 2, device)  # enough for a graph
    executor = program.executor(cuda_graphs=bool(seed % 3))
    for run in range(3):
        operands = program.operands(run)
        set_operands(executor, operands)
        fake.run(executor) if run % 2 == 0 else executor.run_timed()
        for output in program.outputs(executor):
            np.testing.assert_allclose(
                output, expected(product, operands), rtol=1e-5, atol=1e-5, err_msg=product.name
            )


@pytest.mark.parametrize("precision", ["tf32", "half"])
def test_lower_precision_is_another_result(fake: FakeCuda, precision: str) -> None:
    product = Product(1, 16, 16, 64, False, True, False, False, 0, 1)
    program = ProductProgram(product, algorithms(product, precision))
    executor, operands = program.executor(), program.operands(0)
    set_operands(executor, operands)
    fake.run(executor)
    exact = expected(product, operands)
    difference = np.abs(program.outputs(executor)[0] - exact).max() / np.abs(exact).max()
    assert 1e-5 < difference < 1e-2


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_a_run_only_multiplies(fake: FakeCuda, cuda_graphs: bool) -> None:
    symbols = algorithms(DENSE) * 3
    executor = ProductProgram(DENSE, symbols).executor(cuda_graphs=cuda_graphs)
    set_operands(executor, ProductProgram(DENSE, symbols).operands(0))
    before = fake.calls()
    for _ in range(3):
        fake.run(executor)
    after = fake.calls()
    names = {name for name in after if after[name] != before.get(name, 0)}
    changed = {name for name in names if name.startswith("cublasLt")}
    # The bias of each call is where it was.
    assert changed == (set() if cuda_graphs else {"cublasLtMatmul"})
    assert ("cudaGraphLaunch" in names) == cuda_graphs


def test_the_same_product_on_two_gpus(fake: FakeCuda) -> None:
    programs = [ProductProgram(DENSE, algorithms(DENSE, device=at), at) for at in (0, 1)]
    executors = [program.executor() for program in programs]
    operands = [program.operands(seed) for seed, program in enumerate(programs)]
    for executor, each in zip(executors, operands, strict=True):
        set_operands(executor, each)
    for _ in range(2):
        for program, executor, each in zip(programs, executors, operands, strict=True):
            fake.run(executor)
            for output in program.outputs(executor):
                np.testing.assert_allclose(output, expected(DENSE, each), rtol=1e-5, atol=1e-5)


def test_the_quicker_algorithm_has_the_shorter_time(fake: FakeCuda) -> None:
    # That of the fake without scratch memory sleeps for 3 ms.
    fake.set("delay_ns", 0)
    slow, quick = algorithms(DENSE)
    times = time_algorithms(0, DENSE, [slow, quick])
    assert times[0] > times[1]
    assert time_algorithms(0, DENSE, []) == []


def test_a_product_that_the_library_cannot_compute_has_no_algorithm(fake: FakeCuda) -> None:
    fake.set_cublaslt("has_algorithms", 0)
    assert algorithms(DENSE) == []


def test_nothing_is_left_when_an_executor_goes(fake: FakeCuda) -> None:
    before = fake.live()
    executor = ProductProgram(DENSE, algorithms(DENSE)[:1]).executor()
    # The handle, the operation and three matrices.
    assert fake.live().library_objects == before.library_objects + 5
    del executor
    assert fake.live() == before


def test_another_version_of_the_library_is_refused_with_the_mend(fake: FakeCuda) -> None:
    program = ProductProgram(DENSE, algorithms(DENSE))
    before = fake.live()
    fake.set_cublaslt("version", 130_001)
    with pytest.raises(
        ExecutionError,
        match=r"kernels were chosen for cuBLASLt 12\.9\.3, this machine has cuBLASLt 13\.0\.1; "
        r"place the model again here, or run `pip install nvidia-cublas-cu12==12\.9\.3\.\*`",
    ):
        program.executor()
    assert fake.live() == before


def test_an_algorithm_of_another_product_is_refused_when_it_is_loaded(fake: FakeCuda) -> None:
    other = Product(1, 5, 7, 8, False, True, False, False, 0, 1, 2, None, "relu")
    tail = algorithms(other)[0].rpartition(":")[2]
    head = algorithms(DENSE)[0].rpartition(":")[0]
    before = fake.live()
    with pytest.raises(ExecutionError, match=r"on cuda:0 .*place the model again.*NOT_SUPPORTED"):
        ProductProgram(DENSE, [f"{head}:{tail}"]).executor()
    assert fake.live() == before


def test_scratch_memory_that_the_program_lacks_is_told_when_it_is_loaded(fake: FakeCuda) -> None:
    symbol = algorithms(DENSE)[1].replace(":4096:", ":0:")
    with pytest.raises(ExecutionError, match=r"needs 4096 bytes of scratch memory.* has 0"):
        ProductProgram(DENSE, [symbol]).executor()


def whole_life() -> None:
    """Ask for algorithms, load, run twice with the bias in two places, and give all back."""
    program = ProductProgram(DENSE, algorithms(DENSE))
    executor, operands = program.executor(), program.operands(0)
    set_operands(executor, operands)
    executor.run()
    for output in program.outputs(executor):
        np.testing.assert_allclose(output, expected(DENSE, operands), rtol=1e-5, atol=1e-5)


def await_live(fake: FakeCuda, live: Live, case: str) -> None:
    """Wait until no more lives than before: a thread ends an executor that is slow to end."""
    for _ in range(2000):
        if fake.live() == live:
            return
        time.sleep(0.01)
    raise AssertionError(f"{case}: {fake.live()} is left of {live}")


@pytest.mark.parametrize("code", [EXECUTION_FAILED, ILLEGAL_ADDRESS], ids=["call", "device"])
def test_each_call_that_fails_is_told_and_everything_is_given_back(
    fake: FakeCuda, code: int
) -> None:
    fake.set("delay_ns", 0)
    whole_life()
    before = fake.calls()
    whole_life()
    counts = {name: count - before.get(name, 0) for name, count in fake.calls().items()}
    functions = {name: count for name, count in counts.items() if name.startswith("cublasLt")}
    assert len(functions) >= 13
    for function, count in sorted(functions.items()):
        for after in range(count):
            fail_once(fake, function, after, code)
    whole_life()


def fail_once(fake: FakeCuda, function: str, after: int, code: int) -> None:
    """Let one call of a life fail; check what comes of it."""
    live, case = fake.live(), f"call {after} of {function} fails with {code}"
    fake.fail(function, after, code)
    try:
        whole_life()
    except HeteroPlaceError as error:
        # cuBLASLt has no status for a device that is lost; CUDA tells it where it is asked next.
        status = 14 if code == ILLEGAL_ADDRESS else code
        told = (f"(cuBLASLt status {status})", f"(CUDA error {code})")
        assert any(text in str(error) for text in told), f"{case}: {error}"
    else:
        is_harmless = function in TEARDOWN or fake.is_pending(function)
        assert is_harmless, f"{case}: nobody noticed"
    await_live(fake, live, case)
    reports = fake.reports()
    assert not reports, f"{case}: {reports}"
    fake.reset()
    fake.set("delay_ns", 0)


def test_a_product_that_faults_on_the_device_is_told(fake: FakeCuda) -> None:
    before = fake.live()
    program = ProductProgram(DENSE, algorithms(DENSE))
    executor = program.executor()
    set_operands(executor, program.operands(0))
    fake.fail("kernel cublasLtMatmul", 1, ILLEGAL_ADDRESS)
    with pytest.raises(ExecutionError, match=r"illegal memory access .*\(CUDA error 700\)"):
        executor.run()
    del executor
    await_live(fake, before, "after a fault")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (":float32:", ":float64:", "has the precision 'float64'"),
        (":relu:", ":selu:", "has the activation 'selu'"),
        ("1x5x7x9", "1x5x7", "has the extents '1x5x7'"),
        ("1x5x7x9", "1x0x7x9", "has '0' as an extent"),
        ("1x5x7x9", "1x5x7x-9", "has '-9' as an extent"),
        ("1x5x7x9", "2000000000x2000000000x7x9", "is too large"),
        ("1x5x7x9", "1x5x7x8", "the left of the float32 product of .* expected float32 of 160"),
        (":ntss:", ":nt:", "has 'nt' as layouts"),
        (":ntss:", ":nxss:", "has the layout 'x'"),
        (":0,1,2,-:", ":0,1,2:", "has the operands '0,1,2'"),
        (":0,1,2,-:", ":0,-,2,-:", "has '-' as an operand"),
        (":0,1,2,-:", ":0,1,9,-:", "has argument 9 as its bias"),
        (":0,1,2,-:", ":0,1,3,-:", "has argument 3 as its bias"),
        (":0,1,2,-:", ":1,0,2,-:", "the left of the float32 product"),
        (":120903:", ":x:", "has 'x' as the version"),
        (":0:", ":-1:", "has '-1' as its scratch memory"),
    ],
)
def test_damaged_products_are_refused_by_the_program(old: str, new: str, message: str) -> None:
    symbol = algorithms(DENSE)[0]
    assert old in symbol
    program = ProductProgram(DENSE, [symbol])
    with pytest.raises(ArtifactError, match=rf"line \d+: .*{message}"):
        program.executor_of(program.text().replace(symbol, symbol.replace(old, new)))


def test_a_short_algorithm_is_refused_by_the_program() -> None:
    with pytest.raises(ArtifactError, match="the algorithm of a product has 126 digits"):
        ProductProgram(DENSE, [algorithms(DENSE)[0][:-2]]).executor()


def test_a_product_on_a_core_is_refused_by_the_program() -> None:
    program = ProductProgram(DENSE, algorithms(DENSE)[:1])
    text = program.text().replace("space 0 gpu 2 0 64", "space 0 ram 1 0 64")
    text = text.replace("queue 0 gpu cuda 2 0 0 -", "queue 0 core cpu 1 0 0 0")
    with pytest.raises(ArtifactError, match="is of no GPU, and kernel 0 is a product of cuBLASLt"):
        program.executor_of(text)
