"""Tensors in JSON and raw bytes: every type there and back, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from heteroplace.errors import ExecutionError
from heteroplace.parts.serving.tensor_codec import DATATYPES, TensorCodec


def codec(dtype: str, shape: tuple[int, ...] = (2, 2)) -> TensorCodec:
    return TensorCodec("input 'x'", "x", shape, dtype)


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(value if isinstance(value, bytes) else json.dumps(value).encode())


@pytest.mark.parametrize("dtype", DATATYPES)
@pytest.mark.parametrize("shape", [(2, 2), (4,), (), (2, 0), (0,), (1, 2, 1, 2)], ids=str)
def test_values_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    one = codec(dtype, shape)
    numbers = np.arange(one.num_elements) % (2 if dtype == "bool" else 3)
    if dtype == "bfloat16":
        array = (numbers.astype("float32").view("uint32") >> 16).astype("uint16").reshape(shape)
    else:
        array = numbers.astype(dtype).reshape(shape)
    assert one.num_bytes == array.nbytes
    for again in (
        one.from_bytes(memoryview(array.tobytes())),
        one.from_json(raw(one.to_json(array))),
    ):
        assert again.shape == shape
        assert again.dtype == array.dtype
        assert again.tobytes() == array.tobytes()


def test_lists_may_be_nested_as_the_shape_says() -> None:
    assert codec("int32", (2, 3)).from_json(raw([[1, 2, 3], [4, 5, 6]])).tolist() == [
        [1, 2, 3],
        [4, 5, 6],
    ]
    assert codec("int32", (2, 0)).from_json(raw([[], []])).shape == (2, 0)
    assert codec("int32", (1, 1, 1)).from_json(raw(b" [ [\n[7]]]")).tolist() == [[[7]]]


@pytest.mark.parametrize(
    ("dtype", "data", "words"),
    [
        ("float32", b"[1, 2, 3, NaN]", "malformed"),
        ("float32", b"[1, 2, 3, Infinity]", "malformed"),
        ("float32", [1, 2, 3, None], "got `null`"),
        ("float32", [1, 2, 3, "4"], "got `str`"),
        ("float32", [1, 2, 3, True], "got `bool`"),
        ("float32", [1, 2, 3, 1e39], "FP32 does not hold it"),
        ("float16", [1, 2, 3, 70000], "FP16 does not hold it"),
        ("bfloat16", [1, 2, 3, 3.4e38], "BF16 does not hold it"),
        ("float64", b"[1, 2, 3, 1e999]", "out of range"),
        ("float32", [1, 2, 3], "expected 4 numbers .*, got 3"),
        ("float32", [], "expected 4 numbers .*, got 0"),
        ("float32", [[1, 2, 3, 4]], r"lists of shape \(1, 4\)"),
        ("float32", [[1, 2], [3]], "different lengths"),
        ("float32", [[1, 2], 3], "got `int`"),
        ("float32", [[[1, 2], [3, 4]]], "got `array`"),
        ("float32", 7, "Expected `array`"),
        ("float32", {"a": 1}, "Expected `array`"),
        ("float32", b"[" * 100_000, "malformed|recursion|truncated|Expected"),
        ("bool", [0, 1, 0, 1], "got `int`"),
        ("int8", [1, 2, 3, 128], "INT8 holds -128 to 127"),
        ("int32", [1, 2, 3, 1.5], "got `float`"),
        ("int64", [1, 2, 3, 2**63], "out of range"),
        ("uint8", [1, 2, 3, -1], ">= 0"),
        ("uint8", [1, 2, 3, 256], "UINT8 holds 0 to 255"),
        ("uint64", [1, 2, 3, 2**64], "out of range"),
        ("uint64", [1, 2, 3, 10**40], "out of range"),
    ],
    ids=str,
)
def test_wrong_data_is_refused(dtype: str, data: Any, words: str) -> None:
    with pytest.raises(ExecutionError, match=rf"input 'x': .*({words})"):
        codec(dtype).from_json(raw(data))


def test_wide_integers_keep_every_bit() -> None:
    for dtype, numbers in (("int64", [-(2**63), 2**63 - 1]), ("uint64", [0, 2**64 - 1])):
        assert codec(dtype, (2,)).from_json(raw(numbers)).tolist() == numbers


def test_brain_floats_are_rounded_to_the_nearest() -> None:
    one = codec("bfloat16", (4,))
    bits = one.from_json(raw([1.0, 1.00390625, 1.01171875, -1.005]))
    assert bits.tolist() == [0x3F80, 0x3F80, 0x3F82, 0xBF81]
    assert one.to_json(bits) == [1.0, 1.0, 1.015625, -1.0078125]


@pytest.mark.parametrize("size", [0, 15, 17])
def test_raw_bytes_of_another_size_are_refused(size: int) -> None:
    with pytest.raises(ExecutionError, match=rf"expected 16 bytes .*, got {size}"):
        codec("float32").from_bytes(memoryview(bytes(size)))


def test_a_raw_bool_is_0_or_1() -> None:
    with pytest.raises(ExecutionError, match="0 or 1"):
        codec("bool").from_bytes(memoryview(b"\0\1\2\0"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_json_has_no_nan_and_no_infinity(value: float) -> None:
    with pytest.raises(ExecutionError, match=r"NaN or infinite.*binary_data"):
        codec("float32", (1,)).to_json(np.array([value], "float32"))


def test_types_that_the_protocol_lacks_are_refused() -> None:
    with pytest.raises(ExecutionError, match="complex64, which the Open Inference Protocol"):
        codec("complex64")
