"""Tensors of PyTorch <-> numpy arrays of the same memory."""

from __future__ import annotations

import numpy as np
import torch

from heteroplace.errors import FrontendError


def dtype_of(tensor: torch.Tensor) -> str:
    """Return the type of a tensor as Relay names it."""
    return str(tensor.dtype).removeprefix("torch.")


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the memory of a tensor as an array; bfloat16 is uint16, as the executor takes it.

    Raises
    ------
    FrontendError
        The tensor is on another device, sparse, or of a type that numpy does not have.
    """
    if tensor.requires_grad:
        tensor = tensor.detach()
    try:
        exchanged = tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor
        array: np.ndarray = exchanged.numpy()
    except (TypeError, RuntimeError) as err:
        raise FrontendError(
            f"a tensor of type {dtype_of(tensor)} on {tensor.device} is no array in host memory: "
            f"{str(err).splitlines()[0]}"
        ) from err
    return array


def tensor_of(array: np.ndarray, dtype: str) -> torch.Tensor:
    """Return an array of the executor as a tensor of the same memory."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
