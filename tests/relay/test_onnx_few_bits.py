"""Weights of a few bits by com.microsoft's ops: the numbers of onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_onnx_microsoft import check, floats

pytestmark = pytest.mark.relay

_RNG = np.random.default_rng(0)
F = "float32"


@pytest.mark.parametrize(
    ("bits", "zero"), [(4, "none"), (4, "packed"), (4, "float"), (8, "none"), (8, "packed")]
)
@pytest.mark.parametrize("columns", [32, 40])
def test_products_with_weights_of_a_few_bits(bits: int, zero: str, columns: int) -> None:
    rows, block = 6, 16
    blocks = -(-columns // block)
    weights: dict[str, Any] = {
        "w": _RNG.integers(0, 256, (rows, blocks, block * bits // 8)).astype("uint8"),
        "s": _RNG.random(rows * blocks).astype(F),
    }
    if zero == "packed":
        size = rows * -(-blocks * bits // 8)
        weights["z"] = _RNG.integers(0, 256, size).astype("uint8")
    elif zero == "float":
        weights["z"] = _RNG.random(rows * blocks).astype(F)
    check("MatMulNBits", {"x": floats(2, 3, columns)}, weights, tolerance=1e-3,
          K=columns, N=rows, bits=bits, block_size=block)  # fmt: skip


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_slices_of_packed_tables_are_dequantised(bits: int, has_zeros: bool) -> None:
    indices = np.array([[3, 0, -7], [-1, 5, 6]])  # two are outside
    weights = {"w": _RNG.integers(0, 256, (6, 32 * bits // 8)).astype("uint8"), "s": floats(6, 2)}
    if has_zeros:
        weights["z"] = _RNG.integers(0, 256, (6, 2 * bits // 8)).astype("uint8")
    order = "w i s z" if has_zeros else "w i s"
    check("GatherBlockQuantized", {"i": indices}, weights, order=order, tolerance=0,
          bits=bits, block_size=16, quantize_axis=-1)  # fmt: skip


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize(("gathered", "quantised"), [(0, 1), (1, 0), (-1, 1)])
def test_slices_of_4_bit_tables_are_dequantised(
    kind: str, has_zeros: bool, gathered: int, quantised: int
) -> None:
    dtype = getattr(ml_dtypes, kind)
    limits = ml_dtypes.iinfo(dtype)
    shape = [20, 40]
    blocks = [2 if axis == quantised else size for axis, size in enumerate(shape)]
    if quantised == 1:
        blocks[1] = 3
    weights = {
        "w": _RNG.integers(limits.min, limits.max + 1, shape).astype(dtype),
        "s": floats(*blocks),
    }
    if has_zeros:
        weights["z"] = _RNG.integers(limits.min, limits.max + 1, blocks).astype(dtype)
    order = "w i s z" if has_zeros else "w i s"
    check("GatherBlockQuantized", {"i": np.array([7, -2, 0])}, weights, order=order, tolerance=0,
          block_size=16, gather_axis=gathered, quantize_axis=quantised)  # fmt: skip


def test_products_with_weights_of_a_few_bits_add_a_bias() -> None:
    weights = {"w": _RNG.integers(0, 256, (6, 2, 8)).astype("uint8"), "s": floats(12)}
    check("MatMulNBits", {"x": floats(3, 32)}, {**weights, "b": floats(6)}, order="x w s - - b",
          tolerance=1e-3, K=32, N=6, bits=4, block_size=16)  # fmt: skip
