"""Products of many rows with weights of 4 and 8 bits by AMX, beside numpy."""

from __future__ import annotations

import re

import numpy as np
import onnx_models as om
import pytest
import tvm
from relay_models import cpu_cluster, var
from test_amx import AMX, EXACT, amx_kernel, normal, on_amx, run_kernel
from test_quantised_weights import DEPTH, minimum_weights, quantised_model, weights_of
from tvm import relay, te

import heteroplace as hp
from heteroplace.bfloat16_bits import rounded_to_bfloat16
from heteroplace.parts.kernels.cpu import quantised_matmul_op
from heteroplace.parts.kernels.cpu.quantised_matmul_op import quantised_matmul
from heteroplace.parts.kernels.cpu.quantised_panels import in_words
from heteroplace.parts.kernels.rewrites.quantised_weights import quantised
from heteroplace.pipeline.error_budget import largest_error
from heteroplace.relay.targets import BFLOAT16_KERNELS, INT8_ACTIVATIONS

pytestmark = pytest.mark.relay

INT8 = AMX.replace("-keys=", f"-keys={INT8_ACTIVATIONS},")
BFLOAT16 = AMX.replace("-keys=", f"-keys={BFLOAT16_KERNELS},")


def lowered(
    rows: int, weights: np.ndarray, target: str = INT8
) -> tuple[tvm.IRModule, int, list[np.ndarray]]:
    """The kernel of a product, its calls of AMX, and what it reads beside the rows."""
    few_bits = quantised(weights)
    assert few_bits is not None
    columns, depth = weights.shape
    with tvm.target.Target(target) as current:
        words = in_words(few_bits, current)
        call = quantised_matmul(var("x", (rows, depth)), *map(relay.const, words), columns)
        tensors = [te.placeholder((rows, depth), "float32", "rows")]
        tensors += [te.placeholder(each.shape, str(each.dtype), "operand") for each in words]
        outs = quantised_matmul_op._compute(call.attrs, tensors, None)
        schedule = quantised_matmul_op.schedule_quantised_matmul(None, outs, current)
        functions, calls = amx_kernel([*tensors, *outs], schedule)
    return functions, calls, words


def away_from_zero(values: np.ndarray) -> np.ndarray:
    """The nearest numbers in bfloat16; of two as near, that which is further from 0."""
    bits = values.view(np.uint32).astype(np.uint64) + 0x8000
    return (bits & 0xFFFF0000).astype(np.uint32).view(np.float32)


def check_product(rows: int, weights: np.ndarray, target: str = INT8, limit: float = EXACT) -> None:
    x = normal(rows, weights.shape[1])
    functions, calls, words = lowered(rows, weights, target)
    assert calls > 0
    factors = rounded_to_bfloat16(x), away_from_zero(weights)
    left, right = (each.astype(np.float64) for each in factors)
    expected = (left @ right.T).astype(np.float32)
    assert largest_error([run_kernel(functions, [x, *words])], [expected]) < limit


@on_amx
@pytest.mark.costly(10)
@pytest.mark.parametrize(("rows", "columns"), [(48, 288), (61, 301), (130, 301)])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (4, 128), (8, 32), (8, DEPTH)])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_products_are_those_of_rounded_numbers(
    rows: int, columns: int, bits: int, block: int, has_zeros: bool
) -> None:
    if (bits, block, has_zeros) == (4, 128, True):
        block = DEPTH
    weights = weights_of(bits, block, has_zeros=has_zeros, columns=columns, seed=rows)
    check_product(rows, weights)


@on_amx
@pytest.mark.parametrize("target", [INT8, BFLOAT16])
def test_both_precisions_multiply_so(target: str) -> None:
    check_product(50, weights_of(4, 32, has_zeros=True, columns=301), target)


@on_amx
@pytest.mark.parametrize(("is_half", "limit"), [(True, EXACT), (False, 1e-4)])
def test_weights_with_minimums(is_half: bool, limit: float) -> None:
    # Those of float32 are rounded once, and not before the minimum is added: a few are others.
    check_product(64, minimum_weights(32, is_half=is_half, columns=300), limit=limit)


@on_amx
def test_parts_of_a_long_depth_are_summed_up() -> None:
    weights = weights_of(4, 32, has_zeros=True, columns=48 * 16)
    check_product(200, np.tile(weights, 8))


@on_amx
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_row_that_has_no_number_is_nan_or_infinite_alone(odd: float) -> None:
    functions, _, words = lowered(64, weights_of(4, 32, has_zeros=True))
    x = normal(64, DEPTH)
    x[5, 100] = odd
    is_number = np.isfinite(run_kernel(functions, [x, *words]))
    assert not is_number[5].all()
    assert is_number[np.arange(64) != 5].all()


@pytest.mark.parametrize(
    ("rows", "target", "is_by_amx"),
    [
        (64, INT8, True),
        (64, BFLOAT16, True),
        (64, AMX, False),  # in float32
        (9, INT8, False),  # by VNNI
        (9, BFLOAT16, True),
        (1, BFLOAT16, False),  # waits for the weights
        (64, re.sub("amx,", "", INT8), False),
    ],
)
def test_which_rows_are_multiplied_by_amx(rows: int, target: str, is_by_amx: bool) -> None:
    _, calls, _ = lowered(rows, weights_of(4, 32, has_zeros=True), target)
    assert (calls > 0) == is_by_amx


@on_amx
@pytest.mark.costly(8)
@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_a_model_is_as_exact_as_its_precision(precision: str) -> None:
    model = quantised_model(64, 4, True)
    options = {"costs": "estimate", "precision": precision, "max_error": 0.01}
    executor = hp.Executor(hp.compile(model, cpu_cluster(), **options))
    x = normal(64, DEPTH)
    expected = om.run_onnxruntime(model, {"x": x})
    assert 1e-5 < largest_error(executor.run(x=x), expected) < 0.005
