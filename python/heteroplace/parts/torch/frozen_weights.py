"""Weights that are constants of compiled code -> whether the caller has changed them since.

PyTorch counts in-place changes in `_version`, but not those through `.data` or an array that shares
the memory. So some values of each weight are compared too.
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
    samples: np.ndarray
    """A view of some of its values. It keeps the memory, so no other tensor gets this address."""
    sampled_bytes: bytes

    def is_same(self, weight: torch.Tensor) -> bool:
        """Return whether this tensor is the one that was compiled, with the same values."""
        return (
            weight._version == self.version
            and weight.data_ptr() == self.address
            and self.samples.tobytes() == self.sampled_bytes
        )


class FrozenWeights:
    """The weights of a graph as they were compiled.

    Raises
    ------
    FrontendError
        A weight was created in inference mode: PyTorch does not count its changes.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        if any(weight.is_inference() for weight in weights):
            raise FrontendError(
                "a weight was created in torch.inference_mode, and PyTorch counts no changes of "
                "such tensors; create the model outside of it"
            )
        self._weights = [_frozen(weight) for weight in weights]

    def are_same(self, weights: Sequence[torch.Tensor]) -> bool:
        """Return whether the weights have the values that were compiled."""
        return all(
            frozen.is_same(weight) for frozen, weight in zip(self._weights, weights, strict=True)
        )


def _frozen(weight: torch.Tensor) -> _FrozenWeight:
    values = array_of(weight).reshape(-1)
    samples = values[:: max(1, len(values) // _NUM_SAMPLES)]
    return _FrozenWeight(weight.data_ptr(), weight._version, samples, samples.tobytes())
