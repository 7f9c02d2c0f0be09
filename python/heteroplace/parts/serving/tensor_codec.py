"""Tensors of the Open Inference Protocol -> numpy arrays, and back: JSON numbers or raw bytes."""

from __future__ import annotations

import copy
import math
import re
from functools import reduce
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from heteroplace.bfloat16_bits import bfloat16_bits
from heteroplace.errors import ExecutionError

DATATYPES = {
    "bool": "BOOL",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}
"""The protocol's name of each type."""
_BFLOAT16 = "bfloat16"
_NESTED = re.compile(rb"\s*\[\s*\[")
_LARGEST_BFLOAT16_EXPONENT = 0x7F80
"""The bits of the exponent of infinity and NaN."""
_JSON_FAULTS = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class TensorCodec:
    """Reads and writes the values of one input or output.

    Parameters
    ----------
    what
        As messages call it: "input 'x'".
    shape, dtype
        As the executor describes the tensor.

    Raises
    ------
    ExecutionError
        The protocol has no such type.
    """

    def __init__(self, what: str, name: str, shape: tuple[int, ...], dtype: str) -> None:
        if dtype not in DATATYPES:
            raise ExecutionError(
                f"{what} is of type {dtype}, which the Open Inference Protocol does not have; it "
                f"has {', '.join(DATATYPES)}"
            )
        self.what = what
        self.name = name
        self.shape = shape
        self.datatype = DATATYPES[dtype]
        self.num_elements = math.prod(shape)
        self._is_bfloat16 = dtype == _BFLOAT16
        # Brain floats travel as their bits, as in TVM.
        self._dtype = np.dtype("uint16" if self._is_bfloat16 else dtype)
        self.num_bytes = self.num_elements * self._dtype.itemsize
        element = _element_type(dtype)
        self._flat = msgspec.json.Decoder(_nested_list(element, 1))
        self._nested = msgspec.json.Decoder(_nested_list(element, max(len(shape), 1)))

    def sized(self, shape: tuple[int, ...]) -> TensorCodec:
        """Return the same for values of another shape of as many axes."""
        codec = copy.copy(self)
        codec.shape = shape
        codec.num_elements = math.prod(shape)
        codec.num_bytes = codec.num_elements * self._dtype.itemsize
        return codec

    def from_bytes(self, data: memoryview) -> npt.NDArray[Any]:
        """Return the array in raw bytes: little-endian, in C order.

        It uses their memory, and is not aligned where they are not: an executor copies bytes.

        Raises
        ------
        ExecutionError
            It has another size, or a BOOL is neither 0 nor 1.
        """
        if len(data) != self.num_bytes:
            raise ExecutionError(
                f"{self.what}: expected {self.num_bytes} bytes for {self._described()}, got "
                f"{len(data)}"
            )
        if not self.num_elements:
            return np.empty(self.shape, self._dtype)
        array: npt.NDArray[Any] = np.frombuffer(data, self._dtype)
        if self._dtype == np.bool_ and array.view(np.uint8).max() > 1:
            raise ExecutionError(f"{self.what}: the bytes of a BOOL are 0 or 1")
        return array.reshape(self.shape)

    def from_json(self, data: msgspec.Raw) -> npt.NDArray[Any]:
        """Return the array in a JSON list: flat in C order, or nested as the shape says.

        Raises
        ------
        ExecutionError
            The list has another length or form, or a number that the type does not hold.
        """
        is_nested = _NESTED.match(data) is not None
        try:
            values = (self._nested if is_nested else self._flat).decode(data)
            array = self._from_values(values)
        except _JSON_FAULTS as err:
            raise ExecutionError(f"{self.what}: data: {err}") from err
        except OverflowError as err:
            raise ExecutionError(f"{self.what}: a number is out of range: {err}") from err
        except ValueError as err:  # of lists of unlike lengths
            raise ExecutionError(f"{self.what}: its lists have different lengths") from err
        if is_nested and array.shape != self.shape:
            raise ExecutionError(
                f"{self.what}: expected {self._described()}, got lists of shape {array.shape}"
            )
        if array.size != self.num_elements:
            raise ExecutionError(
                f"{self.what}: expected {self.num_elements} numbers for {self._described()}, got "
                f"{array.size}"
            )
        return array.reshape(self.shape)

    def to_json(self, array: npt.NDArray[Any]) -> list[Any]:
        """Return the numbers of an array, flat in C order.

        Raises
        ------
        ExecutionError
            One of them is NaN or infinite, which JSON does not have.
        """
        if self._is_bfloat16:
            array = (array.astype(np.uint32) << 16).view(np.float32)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ExecutionError(
                f"{self.what} has values that are NaN or infinite, which JSON does not have; "
                f"request it with the parameter binary_data"
            )
        values: list[Any] = array.ravel().tolist()
        return values

    def _from_values(self, values: list[Any]) -> npt.NDArray[Any]:
        kind = self._dtype.kind
        if self._is_bfloat16 or kind == "f":
            with np.errstate(over="ignore"):
                array = np.array(values, np.float32 if self._is_bfloat16 else self._dtype)
            bits = bfloat16_bits(array) if self._is_bfloat16 else array
            if not _are_finite(bits, self._is_bfloat16):
                raise OverflowError(f"{self.datatype} does not hold it")
            return bits
        if kind == "b":
            return np.array(values, np.bool_)
        wide = np.array(values, np.uint64 if kind == "u" else np.int64)
        limits = np.iinfo(self._dtype)
        if wide.size and not limits.min <= wide.min() <= wide.max() <= limits.max:
            raise OverflowError(f"{self.datatype} holds {limits.min} to {limits.max}")
        return wide.astype(self._dtype)

    def _described(self) -> str:
        return f"{self.datatype} of shape {list(self.shape)}"


def _element_type(dtype: str) -> Any:
    if dtype == "bool":
        return bool
    if "float" in dtype:
        return float
    return Annotated[int, msgspec.Meta(ge=0)] if dtype.startswith("u") else int


def _nested_list(element: Any, depth: int) -> Any:
    """Return the type of lists of lists ... of elements."""
    return reduce(lambda inner, _: list[inner], range(depth), element)  # type: ignore[valid-type]


def _are_finite(array: npt.NDArray[Any], is_bfloat16: bool) -> bool:
    if is_bfloat16:
        exponents = array & _LARGEST_BFLOAT16_EXPONENT
        return not bool((exponents == _LARGEST_BFLOAT16_EXPONENT).any())
    return bool(np.isfinite(array).all())
