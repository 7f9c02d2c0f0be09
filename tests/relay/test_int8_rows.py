"""Rows rounded to 8 bits: numbers, steps, and products with weights of 4 and 8 bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_models as om
import pytest
import tvm
from relay_models import cpu_cluster, run_by_tvm, var
from test_quantised_weights import DEPTH, minimum_weights, quantised_model, weights_of
from tvm import relay, te

import heteroplace as hp
from heteroplace.errors import SolverError, VerificationError
from heteroplace.parts.kernels.cpu.int8_rows import rounded_rows, row_block
from heteroplace.parts.kernels.cpu.quantised_matmul_op import quantised_matmul
from heteroplace.parts.kernels.cpu.quantised_panels import in_words
from heteroplace.parts.kernels.rewrites.quantised_weights import quantised
from heteroplace.relay.targets import AMX, multiplies_integers, with_precision
from heteroplace.tvm_bridge import llvm_cpu_target

pytestmark = pytest.mark.relay

BEST = llvm_cpu_target()
needs_vnni = pytest.mark.skipif(
    not multiplies_integers(tvm.target.Target(BEST)), reason="this processor has no VNNI"
)


def rounding_target() -> tvm.target.Target:
    """The target of this processor, with rows of 8 bits, however many there are: without AMX."""
    target = tvm.target.Target(with_precision(cpu_cluster(), "int8").devices[0].target)
    exported = dict(target.export())
    exported["keys"] = [key for key in exported["keys"] if key != AMX]
    return tvm.target.Target(exported)


def rounded(x: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers [rows, blocks, block] and steps [rows, blocks, 1]."""
    blocks = x.reshape(len(x), -1, block)
    steps = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(127) / np.abs(blocks).max(axis=2, keepdims=True)
    return np.rint(blocks * np.where(steps > 0, inverse, 0)), steps


def rounding_kernel(rows: int, depth: int, block: int) -> tvm.runtime.Module:
    a = te.placeholder((rows, depth), "float32", "a")
    tensors = rounded_rows(a, block)
    return tvm.build(te.create_schedule([tensors[0].op]), [a, *tensors], BEST)


@needs_vnni
@pytest.mark.parametrize("block", [16, 32])
def test_rows_are_rounded_to_the_nearest_number(block: int) -> None:
    rows, depth = 3, 128
    x = np.random.default_rng(block).standard_normal((rows, depth)).astype("float32")
    x[0, :block], x[1, :block], x[2, 5] = 0, 1e-39, 3e38
    shape = (rows, depth // block)
    out = [np.zeros((rows, depth), "int8"), np.zeros(shape, "float32"), np.zeros(shape, "int32")]
    arrays = [tvm.nd.array(each) for each in (x, *out)]
    rounding_kernel(rows, depth, block)(*arrays)
    numbers, steps, sums = (each.numpy() for each in arrays[1:])
    blocks = numbers.reshape(rows, -1, block).astype("int32")
    expected, expected_steps = rounded(x, block)
    expected[1, 0] = 0  # of so small numbers nothing is left
    np.testing.assert_array_equal(blocks, expected)
    np.testing.assert_array_equal(steps, expected_steps[..., 0])
    np.testing.assert_array_equal(sums, blocks.sum(axis=2))


@needs_vnni
@pytest.mark.parametrize("odd", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_no_number_makes_its_block_nan(odd: float) -> None:
    x = np.ones((1, 64), "float32")
    x[0, 40] = odd
    out = [np.zeros((1, 64), "int8"), np.zeros((1, 2), "float32"), np.zeros((1, 2), "int32")]
    arrays = [tvm.nd.array(each) for each in (x, *out)]
    rounding_kernel(1, 64, 32)(*arrays)
    assert np.isnan(arrays[2].numpy()).tolist() == [[False, True]]


@needs_vnni
@pytest.mark.costly(12)
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 33])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (4, 128), (8, 32), (8, DEPTH)])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_products_are_those_of_rounded_rows(
    rows: int, bits: int, block: int, has_zeros: bool
) -> None:
    if (bits, block, has_zeros) == (4, 128, True):
        block = DEPTH
    check_rounded(weights_of(bits, block, has_zeros=has_zeros, columns=301, seed=rows), rows)


@needs_vnni
@pytest.mark.costly(12)
@pytest.mark.parametrize("rows", [1, 3, 16, 64])
@pytest.mark.parametrize(("block", "columns"), [(16, 301), (32, 288), (128, 300)])
def test_products_with_minimums_are_those_of_rounded_rows(
    rows: int, block: int, columns: int
) -> None:
    check_rounded(minimum_weights(block, is_half=block == 32, columns=columns), rows)


@needs_vnni
def test_a_row_with_an_infinity_is_nan_alone() -> None:
    x = np.ones((9, DEPTH), "float32")
    x[4, 100] = np.inf
    few_bits = quantised(weights_of(4, 32, has_zeros=True))
    assert few_bits is not None
    target = rounding_target()
    with target:
        words = [relay.const(each, str(each.dtype)) for each in in_words(few_bits, target)]
        actual = run_by_tvm(quantised_matmul(var("x", x.shape), *words, 512), target, x=x)
    assert np.isnan(actual).all(axis=1).tolist() == np.isnan(actual).any(axis=1).tolist()
    assert np.flatnonzero(np.isnan(actual[:, 0])).tolist() == [4]


@needs_vnni
@pytest.mark.parametrize(("columns", "depth"), [(10, 8192), (4096, 32)])
def test_many_rows_stay_in_float32_where_no_tile_fits(columns: int, depth: int) -> None:
    weights = weights_of(4, 32, has_zeros=False, columns=columns * depth // DEPTH)
    check_rounded(weights.reshape(columns, depth), 9, is_rounded=False)


def check_rounded(weights: np.ndarray, rows: int, *, is_rounded: bool = True) -> None:
    columns, depth = weights.shape
    few_bits = quantised(weights)
    assert few_bits is not None
    x = np.random.default_rng(rows).standard_normal((rows, depth)).astype("float32")
    target = rounding_target()
    with target:
        words = [relay.const(each, str(each.dtype)) for each in in_words(few_bits, target)]
        body = quantised_matmul(var("x", x.shape), *words, columns)
        bias = relay.const(np.arange(columns, dtype="float32"))
        actual = run_by_tvm(relay.nn.bias_add(body, bias), target, x=x)
    numbers, steps = rounded(x, row_block(few_bits.numbers.shape[1] // few_bits.scales.shape[1]))
    read = (numbers * steps).reshape(x.shape) if is_rounded else x
    expected = read.astype("float64") @ weights.T.astype("float64") + np.arange(columns)
    size = np.abs(x).astype("float64") @ np.abs(weights).T + np.arange(columns)
    assert np.max(np.abs(actual - expected) / size) < 1e-6
    is_far = np.max(np.abs(actual - (x @ weights.T + np.arange(columns))) / size) > 1e-5
    assert is_far == is_rounded


def int8_model() -> onnx.ModelProto:
    return quantised_model(1, 4, True)


@needs_vnni
@pytest.mark.costly(8)
@pytest.mark.parametrize("rows", [1, 9])
def test_a_model_is_compiled_with_rows_of_8_bits(rows: int) -> None:
    model = quantised_model(rows, 4, True)
    executable = hp.compile(model, cpu_cluster(), costs="estimate", precision="int8")
    verification = executable.verification
    assert verification is not None
    assert 1e-5 < verification.max_relative_difference < 0.01
    assert "activations of 8 bits by weights of 4 and 8 bits" in verification.text
    x = np.random.default_rng(0).standard_normal((rows, DEPTH)).astype("float32")
    (actual,) = hp.Executor(executable).run(x=x)
    (expected,) = om.run_onnxruntime(model, {"x": x})
    difference = np.abs(actual - expected).max() / np.abs(expected).max()
    assert 1e-5 < difference < 0.01


@needs_vnni
@pytest.mark.costly(8)
def test_an_output_that_is_too_far_off_is_refused() -> None:
    options = {"precision": "int8", "max_error": 1e-6, "solver": "single"}
    with pytest.raises(VerificationError, match=r"multiplies activations of 8 bits.*max_error"):
        hp.compile(int8_model(), cpu_cluster(), costs="estimate", **options)


def test_a_processor_without_the_instruction_is_refused() -> None:
    cluster = cpu_cluster()
    devices = [replace(device, target="llvm -mcpu=haswell") for device in cluster.devices]
    old = replace(cluster, devices=tuple(devices))
    with pytest.raises(SolverError, match=r"precision='int8'.*expected .* AVX512-VNNI.*haswell"):
        with_precision(old, "int8")


@pytest.mark.costly
def test_it_is_a_precision_of_a_whole_network() -> None:
    with pytest.raises(SolverError, match=r"'int8' for 'dense.*expected one of float32, bf16"):
        hp.compile(int8_model(), cpu_cluster(), precision={"dense.1": "int8"})
