"""Programs of kernels by NVIDIA's libraries, and their numbers by numpy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from executor_programs import libtvm_path

from heteroplace.lower.library_symbols import library_workspace_bytes
from heteroplace.native.execute import Executor
from heteroplace.parts.kernels.native.core_libraries import library_algorithms
from heteroplace.parts.kernels.nvidia.library_kernels import LibraryKernel

MAX_WORKSPACE = 1 << 20
MAX_ALGORITHMS = 16
Kernel = TypeVar("Kernel", bound=LibraryKernel)
Shape = tuple[int, ...]
Operands = dict[int, np.ndarray]
"""By position."""


def algorithms(kernel: LibraryKernel, precision: str = "float32", device: int = 0) -> list[str]:
    """The symbols of a kernel with each algorithm."""
    asked = kernel.unchosen(precision)
    return library_algorithms(libtvm_path(), device, asked, MAX_WORKSPACE, MAX_ALGORITHMS)


@dataclass
class LibraryProgram(ABC, Generic[Kernel]):
    """One kernel on one GPU, called with each of some symbols, each into an output of its own."""

    kernel: Kernel
    symbols: Sequence[str]
    device: int = 0

    @property
    @abstractmethod
    def shapes(self) -> dict[int, Shape]:
        """Shapes of the operands by position."""

    @property
    @abstractmethod
    def result_shape(self) -> Shape:
        """Shape of each result."""

    @abstractmethod
    def expected(self, operands: Operands) -> np.ndarray:
        """The result, in float64."""

    def text(self) -> str:
        """The program."""
        shapes, whole = self.shapes, self.result_shape
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

    def executor(self, **options: object) -> Executor:
        """Load it; it has no kernels of its own."""
        return Executor(libtvm_path(), "", self.text(), **options)

    def operands(self, seed: int) -> Operands:
        """Random operands by position."""
        random = np.random.default_rng(seed)
        shapes = self.shapes
        return {at: random.standard_normal(shapes[at]).astype("float32") for at in sorted(shapes)}

    def outputs(self, executor: Executor) -> list[np.ndarray]:
        """All results."""
        return [executor.get_output(f"y{at}") for at in range(len(self.symbols))]


def set_operands(executor: Executor, operands: Operands) -> None:
    """Set all inputs."""
    for at, array in operands.items():
        executor.set_input(f"x{at}", array)
