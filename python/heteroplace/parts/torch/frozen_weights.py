"""Weights that are constants of compiled code -> whether the caller has changed them since.

PyTorch counts in-place changes in `_version`, but not those through `.data` or an array that shares
the memory. So values are compared too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from heteroplace.errors import FrontendError
from heteroplace.parts.torch.tensor_arrays import array_of

_NUM_SAMPLES = 16


@dataclass(frozen=True)
class _FrozenWeight:
    """One weight as it was compiled."""

    address: int
    version: int
    bits: np.ndarray
    """A view of its values, as integers. It keeps the memory, so no other tensor gets this
    address."""
    compiled_bits: np.ndarray

    def is_same(self, weight: torch.Tensor) -> bool:
        """Return whether this tensor is the one that was compiled, with the same values."""
        return (
            weight._version == self.version
            and weight.data_ptr() == self.address
            and np.array_equal(self.bits, self.compiled_bits)
        )


class FrozenWeights:
    """The weights of a graph as they were compiled.

    Parameters
    ----------
    has_all_values
        Compare all values of each weight, and not 16.

    Raises
    ------
    FrontendError
        A weight was created in inference mode: PyTorch does not count its changes.
    """

    def __init__(self, weights: Sequence[torch.Tensor], has_all_values: bool) -> None:
        if any(weight.is_inference() for weight in weights):
            raise FrontendError(
                "a weight was created in torch.inference_mode, and PyTorch counts no changes of "
                "such tensors; create the model outside of it"
            )
        self._weights = [_frozen(weight, has_all_values) for weight in weights]

    def are_same(self, weights: Sequence[torch.Tensor]) -> bool:
        """Return whether the weights have the values that were compiled."""
        return all(map(_FrozenWeight.is_same, self._weights, weights))

    def changed(self, weights: Sequence[torch.Tensor]) -> list[int]:
        """Return the indices of the weights that have other values than those compiled."""
        return [
            index
            for index, (frozen, weight) in enumerate(zip(self._weights, weights, strict=True))
            if not frozen.is_same(weight)
        ]


def _frozen(weight: torch.Tensor, has_all_values: bool) -> _FrozenWeight:
    values = np.atleast_1d(array_of(weight))
    # In the order of memory, such as channels_last: a reshape of another order would be a copy,
    # which shows no changes.
    values = values.transpose(np.argsort(values.strides, kind="stable")[::-1])
    values = values.reshape(-1) if values.flags.c_contiguous else values
    samples = values if has_all_values else values[:: max(1, len(values) // _NUM_SAMPLES)]
    bits = samples.view(f"u{samples.itemsize}")
    return _FrozenWeight(weight.data_ptr(), weight._version, bits, bits.copy())
