"""Attention of many queries over a cache by AMX: its numbers, and when it is used."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from test_amx import AMX, amx_kernel, on_amx, run_kernel
from test_cache_ops import CAPACITY, PLAIN, attended, floats
from test_quantised_pairs import BFLOAT16, INT8
from tvm import te

from heteroplace.parts.kernels.cpu.vector_math import vector_math
from heteroplace.pipeline.error_budget import largest_error
from heteroplace.relay.cache.attention_kernel import AttentionOptions
from heteroplace.relay.cache.op import _attention_kernel

pytestmark = pytest.mark.relay

ATTENTIONS = [
    ((1, 9, 3, 64, 64), [0], PLAIN),
    ((1, 9, 3, 60, 64), [CAPACITY - 60], PLAIN),
    ((2, 9, 3, 33, 64), [50, 117], AttentionOptions(0.2, window=40)),
    ((1, 3, 3, 100, 128), [20], AttentionOptions(0.2, softcap=3.0)),
    ((1, 2, 1, 70, 96), [-2], PLAIN),
    ((1, 2, 1, 70, 160), [CAPACITY + 9], PLAIN),
    ((1, 1, 1, 48, 32), [3], PLAIN),
]
"""Batch, heads, groups, length and size; tokens of the past."""


def operands(sizes: tuple[int, ...], past: list[int]) -> dict[str, np.ndarray]:
    batch, heads, groups, length, size = sizes
    cache = (batch, groups, CAPACITY, size)
    inputs = {"q": floats(batch, heads, length, size), "k": floats(*cache), "v": floats(*cache)}
    inputs["v"] = inputs["v"][..., ::-1].copy()
    return {**inputs, "p": np.array(past, "int32")}


def lowered(
    inputs: dict[str, np.ndarray], options: AttentionOptions, target: str = INT8
) -> tuple[tvm.IRModule, int]:
    """The kernel, and its calls of AMX."""
    with tvm.target.Target(target):
        tensors = [te.placeholder(a.shape, str(a.dtype), name) for name, a in inputs.items()]
        result = _attention_kernel(tensors, options)
        return amx_kernel([*tensors, result], te.create_schedule(result.op))


def result_of(inputs: dict[str, np.ndarray], options: AttentionOptions = PLAIN) -> np.ndarray:
    functions, calls = lowered(inputs, options)
    assert calls == 2
    return run_kernel(vector_math(functions, is_softmax=True), list(inputs.values()))


@on_amx
@pytest.mark.parametrize(("sizes", "past", "options"), ATTENTIONS, ids=str)
def test_numbers_are_those_of_numpy(
    sizes: tuple[int, ...], past: list[int], options: AttentionOptions
) -> None:
    inputs = operands(sizes, past)
    expected = attended(inputs, options).astype("float32")
    assert 1e-5 < largest_error([result_of(inputs, options)], [expected]) < 0.01


@on_amx
def test_numbers_that_bfloat16_holds_are_exact() -> None:
    # Scores are 0: shares are equal, and totals are sums of whole numbers.
    inputs = operands((1, 3, 1, 64, 64), [0])
    inputs["q"][:] = 0
    inputs["v"] = np.round(8 * inputs["v"])
    expected = attended(inputs, PLAIN).astype("float32")
    assert largest_error([result_of(inputs)], [expected]) < 1e-5


@on_amx
def test_keys_that_no_query_sees_are_not_read() -> None:
    inputs = operands((1, 3, 1, 50, 64), [20])
    expected = result_of(inputs)
    inputs["k"][:, :, 70:], inputs["v"][:, :, 70:] = np.nan, np.inf
    np.testing.assert_array_equal(result_of(inputs), expected)


@on_amx
def test_a_query_that_is_no_number_makes_its_own_result_nan() -> None:
    inputs = operands((1, 3, 1, 64, 64), [0])
    inputs["q"][0, 1, 5, 7] = np.nan
    is_nan = np.isnan(result_of(inputs)).all(axis=-1)
    assert np.argwhere(is_nan).tolist() == [[0, 1, 5]]


@pytest.mark.parametrize(
    ("sizes", "target", "is_by_amx"),
    [
        ((1, 9, 3, 64, 64), INT8, True),
        ((1, 9, 3, 64, 64), BFLOAT16, True),
        ((1, 9, 3, 64, 64), AMX, False),  # in float32
        ((1, 9, 3, 1, 64), INT8, False),  # of one token
        ((1, 9, 3, 64, 80), INT8, False),  # words would be no whole vectors
    ],
)
def test_which_attentions_are_computed_so(
    sizes: tuple[int, ...], target: str, is_by_amx: bool
) -> None:
    _, calls = lowered(operands(sizes, [0]), PLAIN, target)
    assert (calls > 0) == is_by_amx
