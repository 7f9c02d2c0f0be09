"""Weights of 4 and 8 bits: found by their values, read in registers, counted as they are held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_models as om
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from relay_models import TARGET, cpu_cluster, random_costs, run_by_tvm, var
from tvm import relay

import heteroplace as hp
from heteroplace.errors import InfeasibleError
from heteroplace.parts.kernels.cpu.quantised_matmul_op import quantised_matmul
from heteroplace.parts.kernels.cpu.quantised_panels import in_words
from heteroplace.parts.kernels.rewrites.held_weights import with_held_weights
from heteroplace.parts.kernels.rewrites.narrow_weights import MIN_NARROWED, MIN_QUANTISED
from heteroplace.parts.kernels.rewrites.quantised_weights import quantised
from heteroplace.parts.kernels.rewrites.unpacked import ReadWeightsInPlace
from heteroplace.relay.targets import multiplies_integers
from heteroplace.relay.tasks.network import cut_network
from heteroplace.tvm_bridge import llvm_cpu_target
from tests.strategies import exact_cases, num_cases

TARGETS = tuple(map(tvm.target.Target, (TARGET, "llvm -mcpu=haswell")))
DEPTH = 256


def weights_of(
    bits: int,
    block: int,
    *,
    has_zeros: bool,
    is_half: bool = True,
    columns: int = 512,
    seed: int = 0,
) -> np.ndarray:
    """Weights [columns, DEPTH] as a runtime dequantises them."""
    random = np.random.default_rng([seed, bits, block])
    shape = (columns, DEPTH // block, 1)
    scales = (random.random(shape) * 0.01 + 0.001).astype("float16" if is_half else "float32")
    steps = random.integers(0, 1 << bits, (columns, DEPTH // block, block)).astype("float32")
    zeros: Any = np.float32(1 << (bits - 1))
    if has_zeros:
        # As a quantiser chooses them: within the range of what they are subtracted from.
        zeros = random.integers(steps.min(2), steps.max(2) + 1)[..., None].astype("float32")
    return ((steps - zeros) * scales.astype("float32")).reshape(columns, DEPTH)


def dequantised(weights: np.ndarray) -> np.ndarray | None:
    """What is found, as it is computed of again."""
    few_bits = quantised(weights)
    if few_bits is None:
        return None
    blocks = few_bits.numbers.reshape(*few_bits.scales.shape, -1).astype("float32")
    scales, offsets = few_bits.scales[..., None], few_bits.offsets[..., None].astype("float32")
    if few_bits.offsets.dtype == "float32":
        return np.asarray(blocks * scales + offsets).reshape(weights.shape)
    return np.asarray((blocks - offsets) * scales).reshape(weights.shape)


def minimum_weights(block: int, *, is_half: bool, columns: int = 512, seed: int = 0) -> np.ndarray:
    """Weights [columns, DEPTH] of 4 bits with a minimum in each block, some of which are whole
    zero points, or of one value."""
    random = np.random.default_rng([seed, block])
    shape = (columns, DEPTH // block, 1)
    dtype = "float16" if is_half else "float32"
    scales = (random.random(shape) * 0.01 + 0.001).astype(dtype).astype("float32")
    minimums = (random.random(shape) * 0.1 - 0.08).astype(dtype).astype("float32")
    minimums[::3] = -8 * scales[::3]
    scales[5] = 0
    numbers = random.integers(0, 16, (columns, DEPTH // block, block)).astype("float32")
    return (numbers * scales + minimums).reshape(columns, DEPTH)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [16, 32, 128, DEPTH])
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("is_half", [False, True])
def test_weights_are_found_in_the_bits_they_came_from(
    bits: int, block: int, has_zeros: bool, is_half: bool
) -> None:
    if (bits, block, has_zeros) == (8, 16, True):
        pytest.skip("16 of 256 steps may have no two that are near")
    weights = weights_of(bits, block, has_zeros=has_zeros, is_half=is_half)
    few_bits = quantised(weights)
    assert few_bits is not None
    assert (few_bits.bits, few_bits.scales.shape) == (bits, (len(weights), DEPTH // block))
    scale_bytes = 2 if is_half and few_bits.scales.size >= MIN_NARROWED else 4
    held_bytes = weights.size * bits // 8 + few_bits.scales.size * (scale_bytes + has_zeros)
    assert few_bits.held_bytes(TARGETS[0]) == held_bytes + (not has_zeros)
    np.testing.assert_array_equal(dequantised(weights), weights)


@pytest.mark.costly(3)
@given(
    bits=st.sampled_from([4, 8]),
    place=st.integers(0, 2**40),
    odd=st.sampled_from([0.0, -0.0, 1e5, 1e-9, np.inf, -np.inf, np.nan, "next", "twice", "other"]),
)
@num_cases(80)
def test_weights_of_which_one_is_no_multiple_stay(bits: int, place: int, odd: float | str) -> None:
    weights = weights_of(bits, 32, has_zeros=False)
    at = place % weights.shape[0], place // weights.shape[0] % DEPTH
    value = weights[at]
    changed = {"next": np.nextafter(value, np.float32(1)), "twice": 2 * value, "other": -value}
    weights[at] = changed[odd] if isinstance(odd, str) else odd
    again = dequantised(weights)
    if again is not None:
        np.testing.assert_array_equal(again, weights)
    else:
        assert odd not in (0.0, "other"), "a sign or a zero is still a multiple"


@pytest.mark.parametrize("block", [16, 32, 64, 128, DEPTH])
@pytest.mark.parametrize("is_half", [False, True])
def test_weights_with_a_minimum_are_found_in_4_bits(block: int, is_half: bool) -> None:
    weights = minimum_weights(block, is_half=is_half)
    few_bits = quantised(weights)
    assert few_bits is not None
    assert (few_bits.bits, few_bits.scales.shape) == (4, (len(weights), DEPTH // block))
    float_bytes = 2 if is_half and few_bits.scales.size >= MIN_NARROWED else 4
    held_bytes = weights.size // 2 + 2 * few_bits.scales.size * float_bytes
    assert few_bits.held_bytes(TARGETS[0]) == held_bytes
    np.testing.assert_array_equal(dequantised(weights), weights)


@pytest.mark.parametrize("odd", ["next", "between", np.inf, np.nan])
def test_weights_of_which_one_is_off_its_minimum_stay(odd: float | str) -> None:
    weights = minimum_weights(32, is_half=True)
    value, step = weights[7, 3], weights[7, :32].max() - weights[7, :32].min()
    changed = {"next": np.nextafter(value, np.float32(1)), "between": value + step / 40}
    weights[7, 3] = changed[odd] if isinstance(odd, str) else odd
    assert quantised(weights) is None


def test_no_other_weights_are_quantised() -> None:
    random = np.random.default_rng(0)
    weights = random.standard_normal((256, 256)).astype("float32")
    few = weights_of(4, 32, has_zeros=False)
    assert quantised(weights) is None
    assert quantised(weights.astype("float16").astype("float32")) is None
    assert quantised(few.astype("float64")) is None
    assert quantised(few[: MIN_QUANTISED // DEPTH - 1]) is None
    assert quantised(np.ascontiguousarray(few[:, :-1])) is None
    assert quantised(np.zeros((0, 256), "float32")) is None


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5])
def test_weights_that_are_all_the_same(value: float) -> None:
    weights = np.full((256, 256), value, "float32")
    np.testing.assert_array_equal(dequantised(weights), weights)


@pytest.mark.costly(12)
@given(
    rows=st.sampled_from([1, 2, 4, 5, 8, 9, 17, 40]),
    columns=st.sampled_from([256, 300, 1000]),
    bits=st.sampled_from([4, 8]),
    block=st.sampled_from([32, DEPTH]),
    has_zeros=st.booleans(),
    target=st.sampled_from(TARGETS),
    is_fused=st.booleans(),
)
@exact_cases(10)
def test_products_are_those_of_dequantised_weights(
    rows: int,
    columns: int,
    bits: int,
    block: int,
    has_zeros: bool,
    target: tvm.target.Target,
    is_fused: bool,
) -> None:
    weights = weights_of(bits, block, has_zeros=has_zeros, columns=columns, seed=rows)
    check_products(weights, rows, target, is_fused=is_fused)


@pytest.mark.costly(12)
@pytest.mark.parametrize("rows", [1, 3, 16, 64])
@pytest.mark.parametrize(("block", "columns", "is_half"), [(32, 1000, True), (16, 301, False)])
def test_products_with_minimums_are_those_of_dequantised_weights(
    rows: int, block: int, columns: int, is_half: bool
) -> None:
    weights = minimum_weights(block, is_half=is_half, columns=columns)
    check_products(weights, rows, TARGETS[rows % 2], is_fused=rows == 3)


def check_products(
    weights: np.ndarray, rows: int, target: tvm.target.Target, *, is_fused: bool
) -> None:
    columns = len(weights)
    x = np.random.default_rng(rows).standard_normal((rows, DEPTH)).astype("float32")
    few_bits = quantised(weights)
    assert few_bits is not None
    with target:
        words = [relay.const(each, str(each.dtype)) for each in in_words(few_bits, target)]
        body = quantised_matmul(var("x", x.shape), *words, columns)
        if is_fused:
            bias = relay.const(np.arange(columns, dtype="float32"))
            body = relay.nn.relu(relay.nn.bias_add(body, bias))
    expected = x.astype("float64") @ weights.T.astype("float64")
    size = np.abs(x).astype("float64") @ np.abs(weights).T
    if is_fused:
        expected = np.maximum(expected + np.arange(columns), 0)
        size += np.arange(columns)
    assert np.max(np.abs(run_by_tvm(body, target, x=x) - expected) / size) < 1e-6


def dense(weights: np.ndarray, rows: int) -> tvm.IRModule:
    body = relay.nn.dense(var("x", (rows, DEPTH)), relay.const(weights))
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))


@pytest.mark.parametrize("turns", [False, True])
def test_products_read_them_whatever_lies_first(turns: bool) -> None:
    weights = weights_of(4, 32, has_zeros=False)
    constant = relay.const(np.ascontiguousarray(weights.T) if turns else weights)
    x = var("x", (2, DEPTH))
    body = relay.nn.matmul(x, constant) if turns else relay.nn.dense(x, constant)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x], body)))
    with tvm.transform.PassContext(opt_level=3):
        read = ReadWeightsInPlace(TARGETS[0])(mod)["main"].body
    assert [str(each.data.dtype) for each in read.args[1:]] == ["uint32", "float16", "uint8"]


@pytest.mark.costly(8)
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("bits", [4, 8])
def test_an_embedding_that_is_the_head_is_stored_once(
    precision: str, bits: int, tmp_path: Path
) -> None:
    if precision == "int8" and not multiplies_integers(tvm.target.Target(llvm_cpu_target())):
        pytest.skip("this processor has no VNNI")
    rows = 2053
    weights = minimum_weights(32, is_half=True, columns=rows)
    if bits == 8:
        weights = weights_of(8, 32, has_zeros=False, columns=rows)
    indices = var("i", (3,), "int64")
    taken = relay.take(relay.const(weights), indices, axis=0)
    body = relay.nn.dense(relay.nn.relu(taken), relay.const(weights.copy()))
    outputs = relay.Tuple([taken, body])
    mod = tvm.IRModule.from_expr(relay.Function([indices], outputs))
    executable = hp.build(mod, cpu_cluster(), costs=random_costs, precision=precision)
    executable.export_library(tmp_path / "tied.so")
    panels = -(-rows // 48) * 48 * DEPTH
    assert (tmp_path / "tied.so").stat().st_size < 1.5 * panels * (bits + 1) // 8 + 300_000
    places = np.array([rows - 1, 0, 47])
    looked_up, scores = hp.Executor(executable).run(i=places)
    np.testing.assert_array_equal(looked_up, weights[places])
    expected = np.maximum(weights[places], 0) @ weights.T
    limit = 1e-5 if precision == "float32" else 0.03
    np.testing.assert_allclose(scores, expected, atol=limit * np.abs(expected).max())


def test_weights_are_counted_as_they_are_held() -> None:
    cluster = cpu_cluster()
    network = cut_network(dense(weights_of(4, 32, has_zeros=False), 1))
    wide = network.graph.tasks[0].weight_bytes
    with tvm.transform.PassContext(opt_level=3):
        held = with_held_weights(network, cluster).graph.tasks[0].weight_bytes
    numbers, scales, zero = 512 * DEPTH // 2, 512 * DEPTH // 32 * 2, 1
    assert (wide, held) == (4 * 512 * DEPTH, numbers + scales + zero)


def test_a_network_that_does_not_fit_in_float32_fits_in_4_bits(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    wide = random.standard_normal((512, DEPTH)).astype("float32")
    cluster = cpu_cluster(memory_bytes=2**18)
    executable = hp.build(dense(weights_of(4, 32, has_zeros=False), 1), cluster, costs=random_costs)
    executable.export_library(tmp_path / "few.so")
    assert (tmp_path / "few.so").stat().st_size < wide.nbytes
    with pytest.raises(InfeasibleError, match=r"weights 512\.0 KiB"):
        hp.build(dense(wide, 1), cluster, costs=random_costs)


def quantised_model(rows: int, bits: int, is_symmetric: bool) -> onnx.ModelProto:
    """Two layers as onnxruntime's tool writes them."""
    from onnxruntime.quantization import matmul_nbits_quantizer as tool

    random = np.random.default_rng(bits)
    weights = {
        name: random.standard_normal((DEPTH, 512)).astype("float32") / 16 for name in ("v", "w")
    }
    weights["w"] = np.ascontiguousarray(weights["w"].T)
    nodes = [
        om.node("MatMul", "x v", "h"),
        om.node("Relu", "h", "r"),
        om.node("MatMul", "r w", "y"),
    ]
    model = om.make_model(nodes, {"x": [rows, DEPTH]}, ["y"], weights)
    quantiser = tool.MatMulNBitsQuantizer(
        model, bits=bits, block_size=32, is_symmetric=is_symmetric, accuracy_level=1
    )
    quantiser.process()
    return quantiser.model.model


@pytest.mark.costly(10)
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize(("bits", "is_symmetric"), [(4, True), (4, False), (8, True)])
def test_models_of_onnxruntimes_tool_have_its_numbers(
    rows: int, bits: int, is_symmetric: bool
) -> None:
    model = quantised_model(rows, bits, is_symmetric)
    assert [node.op_type for node in model.graph.node] == ["MatMulNBits", "Relu", "MatMulNBits"]
    x = np.random.default_rng(0).standard_normal((rows, DEPTH)).astype("float32")
    executable = hp.compile(model, cpu_cluster(), costs="estimate")
    assert executable.memory[0].weights_bytes < 2 * 512 * DEPTH * (bits + 2) // 8
    (actual,) = hp.Executor(executable).run(x=x)
    (expected,) = om.run_onnxruntime(model, {"x": x})
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.costly(8)
@pytest.mark.parametrize(
    ("dtype", "block"), [("int4", 32), ("uint4", 32), ("int8", 64), ("int8", 0)]
)
def test_dequantised_weights_before_a_product_are_read_in_their_bits(
    dtype: str, block: int
) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    bits = 4 if "4" in dtype else 8
    random = np.random.default_rng(0)
    lowest = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    numbers = random.integers(lowest, lowest + (1 << bits), (DEPTH, 512))
    blocks = [DEPTH // block, 512] if block else [512]
    weights = {
        "w": numbers.astype(kind),
        "s": random.uniform(0.001, 0.01, blocks).astype("float32"),
    }
    attributes = {"axis": 0, "block_size": block} if block else {"axis": 1}
    names = "w s"
    if lowest == 0:
        weights["z"] = np.full(blocks, 7).astype(kind)
        names = "w s z"
    nodes = [
        om.node("DequantizeLinear", names, "d", **attributes),
        om.node("MatMul", "x d", "y"),
    ]
    x = random.standard_normal((2, DEPTH)).astype("float32")
    model = om.typed_model(nodes, {"x": x}, ["y"], weights, opset=21)
    executable = hp.compile(model, cpu_cluster(), costs="estimate")
    assert executable.memory[0].weights_bytes < 512 * DEPTH * (bits + 2) // 8
    (actual,) = hp.Executor(executable).run(x=x)
    # Not onnxruntime's numbers: it rounds x to 8 bits here.
    steps = numbers - (7 if lowest == 0 else 0)
    scales = np.repeat(weights["s"], block, 0) if block else weights["s"]
    expected = x.astype("float64") @ (steps * scales)
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())
