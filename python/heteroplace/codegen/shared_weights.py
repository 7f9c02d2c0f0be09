"""Programs of one network -> the same programs over one array of weights.

Each program lays its weights out in its own order. Many plans of one network in one process would
hold as many copies; and runs that are compared would each read other pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heteroplace.codegen.lower import Lowered
from heteroplace.codegen.program import ALIGNMENT_BYTES


def share_weights(programs: Sequence[Lowered]) -> list[Lowered]:
    """Return the programs with the weights of all of them, each once, at the same offsets.

    So one `weights_blob`, of any of them, serves all.
    """
    layout = _Layout()
    moved = [layout.place(lowered) for lowered in programs]
    return [
        replace(
            lowered,
            program=replace(
                lowered.program,
                constants=tuple(
                    replace(constant, blob_offset=offsets[constant.blob_offset])
                    for constant in lowered.program.constants
                ),
            ),
            weights=tuple(layout.weights),
            blob_bytes=layout.blob_bytes,
        )
        for lowered, offsets in zip(programs, moved, strict=True)
    ]


class _Layout:
    """Where each distinct content lies."""

    def __init__(self) -> None:
        self.weights: list[np.ndarray] = []
        self.blob_bytes = 0
        self._offsets: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}
        """By id of the array; the programs keep the arrays alive."""

    def place(self, lowered: Lowered) -> dict[int, int]:
        """Add the weights of a program; return its offsets -> those of the layout."""
        moved = {}
        offset = 0
        for array in lowered.weights:
            digest = self._digest(array)
            if digest not in self._offsets:
                self._offsets[digest] = self.blob_bytes
                self.weights.append(array)
                self.blob_bytes += aligned_bytes(array)
            moved[offset] = self._offsets[digest]
            offset += aligned_bytes(array)
        return moved

    def _digest(self, array: np.ndarray) -> bytes:
        if id(array) not in self._digests:
            data = array.reshape(-1).view(np.uint8).data
            self._digests[id(array)] = hashlib.blake2b(data, digest_size=16).digest()
        return self._digests[id(array)]


def aligned_bytes(array: np.ndarray) -> int:
    """Return the bytes from the start of an array to that of the next."""
    return -(-max(array.nbytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
