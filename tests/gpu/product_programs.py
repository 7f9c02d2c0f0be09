"""Programs of products by cuBLASLt, and their numbers by numpy."""

from __future__ import annotations

import numpy as np
from library_programs import LibraryProgram, Operands, Shape

from heteroplace.parts.kernels.nvidia.cublas_products import Product

SQRT_2_OVER_PI = np.sqrt(2 / np.pi)


def random_product(seed: int) -> Product:
    """Any shape, layouts and epilogue, its operands in any order."""
    random = np.random.default_rng(seed)
    batch = int(random.choice([1, 1, 2, 5]))
    rows, columns, depth = (int(extent) for extent in random.integers(1, 20, 3))
    batched = [bool(batch > 1 and random.integers(2)) for _ in range(2)]
    has_bias, has_sum = bool(random.integers(2)), bool(random.integers(2))
    order = iter(random.permutation(2 + has_bias + has_sum).tolist())
    return Product(
        batch,
        rows,
        columns,
        depth,
        bool(random.integers(2)),
        bool(random.integers(2)),
        *batched,
        next(order),
        next(order),
        next(order) if has_bias else None,
        next(order) if has_sum else None,
        str(random.choice(["none", "relu", "gelu"])),
    )


class ProductProgram(LibraryProgram[Product]):
    """One product on one GPU, called with each of some symbols."""

    @property
    def shapes(self) -> dict[int, Shape]:
        """Shapes of the operands by position."""
        product = self.kernel
        left = (product.rows, product.depth)
        right = (product.depth, product.columns)
        left = left[::-1] if product.is_left_transposed else left
        right = right[::-1] if product.is_right_transposed else right
        shapes: dict[int, Shape] = {
            product.left: (product.batch if product.is_left_batched else 1, *left),
            product.right: (product.batch if product.is_right_batched else 1, *right),
        }
        if product.bias is not None:
            shapes[product.bias] = (product.columns,)
        if product.sum is not None:
            shapes[product.sum] = self.result_shape
        return shapes

    @property
    def result_shape(self) -> Shape:
        """Shape of each result."""
        return (self.kernel.batch, self.kernel.rows, self.kernel.columns)

    def expected(self, operands: Operands) -> np.ndarray:
        """The result, in float64."""
        product = self.kernel
        wide = {at: array.astype("float64") for at, array in operands.items()}
        left, right = wide[product.left], wide[product.right]
        left = left.transpose(0, 2, 1) if product.is_left_transposed else left
        right = right.transpose(0, 2, 1) if product.is_right_transposed else right
        result = np.broadcast_to(left @ right, self.result_shape)
        result = result + (0 if product.bias is None else wide[product.bias])
        result = result + (0 if product.sum is None else wide[product.sum])
        if product.activation == "relu":
            return np.maximum(result, 0)
        if product.activation == "gelu":
            inner = SQRT_2_OVER_PI * (result + 0.044715 * result**3)
            return np.asarray(0.5 * result * (1 + np.tanh(inner)))
        return result
