"""Programs of convolutions by cuDNN, and their numbers by numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from executor_programs import libtvm_path
from product_programs import ProductProgram

from heteroplace.codegen.convolutions import Convolution
from heteroplace.native.libraries import library_algorithms

MAX_WORKSPACE = 1 << 20


def algorithms(kernel: Convolution, precision: str = "float32", device: int = 0) -> list[str]:
    """The symbols of a convolution with each algorithm."""
    asked = kernel.unchosen(precision)
    return library_algorithms(libtvm_path(), device, asked, MAX_WORKSPACE, 16)


def random_convolution(seed: int) -> Convolution:
    """Any shape, steps, groups and epilogue, its operands in any order."""
    random = np.random.default_rng(seed)
    groups = int(random.choice([1, 1, 2, 3]))
    window = (int(random.integers(1, 4)), int(random.integers(1, 4)))
    has_bias, has_sum = bool(random.integers(2)), bool(random.integers(2))
    order = iter(random.permutation(2 + has_bias + has_sum).tolist())
    return Convolution(
        (
            int(random.integers(1, 3)),
            groups * int(random.integers(1, 4)),
            int(random.integers(7, 12)),
            int(random.integers(7, 12)),
        ),
        groups * int(random.integers(1, 4)),
        window,
        (int(random.integers(1, 3)), int(random.integers(1, 3))),
        (int(random.integers(0, 3)), int(random.integers(0, 3))),
        (int(random.integers(1, 3)), int(random.integers(1, 3))),
        groups,
        next(order),
        next(order),
        next(order) if has_bias else None,
        next(order) if has_sum else None,
        str(random.choice(["none", "relu"])),
    )


def expected(kernel: Convolution, operands: dict[int, np.ndarray]) -> np.ndarray:
    """The result, in float64."""
    wide = {at: array.astype("float64") for at, array in operands.items()}
    rows, columns = kernel.padding
    data = np.pad(wide[kernel.data], ((0, 0), (0, 0), (rows, rows), (columns, columns)))
    filters = wide[kernel.filter]
    channels = kernel.shape[1] // kernel.groups
    each = kernel.filters // kernel.groups
    result = np.zeros(kernel.result_shape)
    height, width = kernel.result_shape[2:]
    for group in range(kernel.groups):
        inputs = data[:, group * channels : (group + 1) * channels]
        outputs = slice(group * each, (group + 1) * each)
        for r in range(kernel.window[0]):
            for s in range(kernel.window[1]):
                top, left = r * kernel.dilation[0], s * kernel.dilation[1]
                seen = inputs[:, :, top :: kernel.strides[0], left :: kernel.strides[1]]
                seen = seen[:, :, :height, :width]
                result[:, outputs] += np.einsum("nchw,kc->nkhw", seen, filters[outputs, :, r, s])
    if kernel.bias is not None:
        result += wide[kernel.bias].reshape(1, -1, 1, 1)
    if kernel.sum is not None:
        result += wide[kernel.sum]
    return np.maximum(result, 0) if kernel.activation == "relu" else result


@dataclass
class ConvolutionProgram(ProductProgram):
    """One convolution on one GPU, with each of some symbols, each into an output of its own."""

    product: Convolution  # type: ignore[assignment]

    def shapes(self) -> dict[int, tuple[int, ...]]:
        """Shapes of the operands by position."""
        kernel = self.product
        filters = (kernel.filters, kernel.shape[1] // kernel.groups, *kernel.window)
        shapes: dict[int, tuple[int, ...]] = {kernel.data: kernel.shape, kernel.filter: filters}
        if kernel.bias is not None:
            shapes[kernel.bias] = (kernel.filters,)
        if kernel.sum is not None:
            shapes[kernel.sum] = kernel.result_shape
        return shapes

    def result_shape(self) -> tuple[int, ...]:
        """Shape of each result."""
        return self.product.result_shape
