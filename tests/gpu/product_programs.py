"""Programs of products by cuBLASLt, and their numbers by numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from executor_programs import libtvm_path

from heteroplace.codegen.library_kernels import library_workspace_bytes
from heteroplace.codegen.products import Product
from heteroplace.native.execute import Executor
from heteroplace.native.libraries import library_algorithms

MAX_WORKSPACE = 1 << 20
SQRT_2_OVER_PI = np.sqrt(2 / np.pi)


def algorithms(product: Product, precision: str = "float32", device: int = 0) -> list[str]:
    """The symbols of a product with each algorithm."""
    asked = product.unchosen(precision)
    return library_algorithms(libtvm_path(), device, asked, MAX_WORKSPACE, 8)


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


def operand_shapes(product: Product) -> dict[int, tuple[int, ...]]:
    """Shapes by position."""
    left = (product.rows, product.depth)
    right = (product.depth, product.columns)
    left = left[::-1] if product.is_left_transposed else left
    right = right[::-1] if product.is_right_transposed else right
    shapes: dict[int, tuple[int, ...]] = {
        product.left: (product.batch if product.is_left_batched else 1, *left),
        product.right: (product.batch if product.is_right_batched else 1, *right),
    }
    if product.bias is not None:
        shapes[product.bias] = (product.columns,)
    if product.sum is not None:
        shapes[product.sum] = (product.batch, product.rows, product.columns)
    return shapes


def expected(product: Product, operands: dict[int, np.ndarray]) -> np.ndarray:
    """The result, in float64."""
    wide = {at: array.astype("float64") for at, array in operands.items()}
    left, right = wide[product.left], wide[product.right]
    left = left.transpose(0, 2, 1) if product.is_left_transposed else left
    right = right.transpose(0, 2, 1) if product.is_right_transposed else right
    result = left @ right
    result = np.broadcast_to(result, (product.batch, *result.shape[1:]))
    result = result + (0 if product.bias is None else wide[product.bias])
    result = result + (0 if product.sum is None else wide[product.sum])
    if product.activation == "relu":
        return np.maximum(result, 0)
    if product.activation == "gelu":
        inner = SQRT_2_OVER_PI * (result + 0.044715 * result**3)
        return np.asarray(0.5 * result * (1 + np.tanh(inner)))
    return result


@dataclass
class ProductProgram:
    """One product on one GPU, called with each of some symbols, each into an output of its own."""

    product: Product
    symbols: Sequence[str]
    device: int = 0

    def shapes(self) -> dict[int, tuple[int, ...]]:
        """Shapes of the operands by position."""
        return operand_shapes(self.product)

    def result_shape(self) -> tuple[int, ...]:
        """Shape of each result."""
        return (self.product.batch, self.product.rows, self.product.columns)

    def text(self) -> str:
        """The program."""
        shapes, whole = self.shapes(), self.result_shape()
        lines = ["heteroplace-program 1", f"space 0 gpu 2 {self.device} 64"]
        lines += [f"queue 0 gpu cuda 2 {self.device} 0 -"]
        workspace = max(map(library_workspace_bytes, self.symbols))
        lines += [f"workspace 0 {workspace}"] if workspace else []
        for at in sorted(shapes):
            lines.append(f"tensor {at} 0 external - 2 32 {','.join(map(str, shapes[at]))}")
        first = len(shapes)
        for at in range(len(self.symbols)):
            lines.append(f"tensor {first + at} 0 external - 2 32 {','.join(map(str, whole))}")
        lines += [f"input x{at} {at}" for at in sorted(shapes)]
        lines += [f"output y{at} {first + at}" for at in range(len(self.symbols))]
        kernels = list(dict.fromkeys(self.symbols))
        lines += [f"kernel {at} {symbol}" for at, symbol in enumerate(kernels)]
        operands = ",".join(map(str, sorted(shapes)))
        for at, symbol in enumerate(self.symbols):
            lines.append(f"call 0 {at} {kernels.index(symbol)} 1 {operands},{first + at} -")
        return "\n".join([*lines, "end", ""])

    def executor_of(self, text: str) -> Executor:
        """Load another text."""
        return Executor(libtvm_path(), "", text)

    def executor(self, **options: bool) -> Executor:
        """Load it; it has no kernels of its own."""
        return Executor(libtvm_path(), "", self.text(), **options)

    def operands(self, seed: int) -> dict[int, np.ndarray]:
        """Random operands by position."""
        random = np.random.default_rng(seed)
        shapes = self.shapes()
        return {at: random.standard_normal(shapes[at]).astype("float32") for at in sorted(shapes)}

    def outputs(self, executor: Executor) -> list[np.ndarray]:
        """All results."""
        return [executor.get_output(f"y{at}") for at in range(len(self.symbols))]


def set_operands(executor: Executor, operands: dict[int, np.ndarray]) -> None:
    """Set all inputs."""
    for at, array in operands.items():
        executor.set_input(f"x{at}", array)
