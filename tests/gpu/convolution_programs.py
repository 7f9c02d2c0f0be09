"""Programs of convolutions by cuDNN, and their numbers by numpy."""

from __future__ import annotations

import numpy as np
from library_programs import LibraryProgram, Operands, Shape

from heteroplace.parts.kernels.nvidia.cudnn_convolutions import Convolution


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


class ConvolutionProgram(LibraryProgram[Convolution]):
    """One convolution on one GPU, called with each of some symbols."""

    @property
    def shapes(self) -> dict[int, Shape]:
        """Shapes of the operands by position."""
        kernel = self.kernel
        filters = (kernel.filters, kernel.shape[1] // kernel.groups, *kernel.window)
        shapes: dict[int, Shape] = {kernel.data: kernel.shape, kernel.filter: filters}
        if kernel.bias is not None:
            shapes[kernel.bias] = (kernel.filters,)
        if kernel.sum is not None:
            shapes[kernel.sum] = kernel.result_shape
        return shapes

    @property
    def result_shape(self) -> Shape:
        """Shape of each result."""
        return self.kernel.result_shape

    def expected(self, operands: Operands) -> np.ndarray:
        """The result, in float64."""
        kernel = self.kernel
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
                    result[:, outputs] += np.einsum(
                        "nchw,kc->nkhw", seen, filters[outputs, :, r, s]
                    )
        if kernel.bias is not None:
            result += wide[kernel.bias].reshape(1, -1, 1, 1)
        if kernel.sum is not None:
            result += wide[kernel.sum]
        return np.maximum(result, 0) if kernel.activation == "relu" else result
