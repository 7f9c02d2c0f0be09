"""The bytes of a GGUF file -> its metadata, and its weights in float32 or in blocks of a few bits.

GGUF is the format of llama.cpp. The package `gguf` of its authors reads it.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heteroplace.errors import HeteroPlaceError, MissingPackageError

BLOCK = 32
"""Weights that share a scale, in the types that are read as blocks."""


class GgufError(HeteroPlaceError):
    """A GGUF file is none, or it holds another network than the one that is expected."""

    remedy = "take a file of a Llama that llama.cpp reads"


@dataclass(frozen=True)
class BlockedWeights:
    """A matrix [rows, depth] as (numbers - zeros) * scales, in blocks of 32 along the depth."""

    bits: int
    """Of a number: 4 or 8."""
    numbers: npt.NDArray[np.uint8]
    """[rows, depth]."""
    scales: npt.NDArray[np.float32]
    """[rows, blocks]."""
    zeros: npt.NDArray[np.float32] | None = None
    """[rows, blocks]; None: all are half of the range of the numbers."""

    def reordered(self, rows: npt.NDArray[np.int64]) -> BlockedWeights:
        """Return these rows."""
        zeros = None if self.zeros is None else self.zeros[rows]
        return BlockedWeights(self.bits, self.numbers[rows], self.scales[rows], zeros)

    def packed(self) -> npt.NDArray[np.uint8]:
        """Return the numbers as MatMulNBits holds them: [rows, blocks, bytes of a block]."""
        rows, depth = self.numbers.shape
        blocks = self.numbers.reshape(rows, depth // BLOCK, BLOCK)
        if self.bits == 4:
            blocks = blocks[..., 0::2] | blocks[..., 1::2] << np.uint8(4)
        return np.ascontiguousarray(blocks, np.uint8)


class GgufFile:
    """A GGUF file that is open.

    Raises
    ------
    MissingPackageError
        The package `gguf` is not installed.
    GgufError
        The bytes are no GGUF file; in methods: the file lacks what is read.
    """

    def __init__(self, content: bytes) -> None:
        try:
            import gguf
        except ImportError as err:
            raise MissingPackageError(
                "the package gguf, which reads GGUF files, is not installed; run: pip install gguf"
            ) from err
        self._gguf: Any = gguf
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            path.write_bytes(content)
            try:
                self._reader = self._gguf.GGUFReader(path)  # a map, which outlives the file's name
            except (ValueError, IndexError) as err:
                raise GgufError(f"the file is no GGUF file: {err}") from err
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def __contains__(self, tensor: str) -> bool:
        return tensor in self._tensors

    def tensors(self) -> tuple[str, ...]:
        """Return the names of all tensors."""
        return tuple(self._tensors)

    def rows(self, tensor: str) -> int:
        """Return the size of the first axis of a tensor."""
        return len(self._tensor(tensor).data)

    def value(self, key: str, default: Any = None) -> Any:
        """Return a number, a text or a list of the metadata; `default` None: it must be there."""
        entry = self._reader.fields.get(key)
        if entry is not None:
            return entry.contents()
        if default is None:
            raise GgufError(f"the GGUF file has no value of {key}")
        return default

    def array(self, tensor: str) -> npt.NDArray[np.float32]:
        """Return a tensor in float32; the last axis is the depth."""
        stored = self._tensor(tensor)
        result: npt.NDArray[np.float32] = self._gguf.dequantize(stored.data, stored.tensor_type)
        return np.ascontiguousarray(result, np.float32)

    def blocks(self, tensor: str) -> BlockedWeights | None:
        """Return the numbers of a tensor of type Q4_1 or Q8_0, and None for other types.

        A block of Q4_1 is a scale d, a minimum m and 32 numbers q: weights are d * q + m, so that
        the zero point is -m / d. A block of Q8_0 is a scale and 32 numbers from -127 to 127.
        """
        stored = self._tensor(tensor)
        types = self._gguf.GGMLQuantizationType
        if stored.tensor_type == types.Q4_1:
            return _of_4_bits(stored.data)
        if stored.tensor_type == types.Q8_0:
            return _of_8_bits(stored.data)
        return None

    def _tensor(self, name: str) -> Any:
        if name not in self._tensors:
            raise GgufError(f"the GGUF file has no tensor {name}")
        return self._tensors[name]


def _of_4_bits(data: npt.NDArray[np.uint8]) -> BlockedWeights:
    """Read blocks of Q4_1: d and m as float16, and bytes that hold the numbers i and i + 16."""
    rows = len(data)
    blocks = data.reshape(rows, -1, 4 + BLOCK // 2)
    ends = np.ascontiguousarray(blocks[..., :4]).view(np.float16).astype(np.float32)
    scales, lowest = ends[..., 0], ends[..., 1]
    numbers = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=-1)
    # All weights of a block with the scale 0 are its minimum.
    is_flat = scales == 0
    numbers[is_flat] = 0
    scales = np.where(is_flat, np.float32(1), scales)
    return BlockedWeights(4, numbers.reshape(rows, -1), scales, -lowest / scales)


def _of_8_bits(data: npt.NDArray[np.uint8]) -> BlockedWeights:
    """Read blocks of Q8_0: a scale as float16, and signed bytes."""
    rows = len(data)
    blocks = data.reshape(rows, -1, 2 + BLOCK)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
    numbers = blocks[..., 2:] ^ np.uint8(128)
    return BlockedWeights(8, numbers.reshape(rows, -1), scales[..., 0])
