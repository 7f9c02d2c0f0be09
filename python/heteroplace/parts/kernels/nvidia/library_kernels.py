"""Kernels that NVIDIA's libraries compute: symbols that say all of them, in place of code.

`src/parts/kernels/nvidia_kernel.h` reads the symbols. `products` and `convolutions` say
which functions are such kernels, `libraries` which library computes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import tvm

MAX_EXTENT = 2**31 - 1
"""Of a tensor, in all libraries."""
MAX_OPERANDS = 64
"""Arguments of such a kernel are fewer."""


class LibraryKernel(ABC):
    """A kernel of a library, without an algorithm."""

    library: ClassVar[str]
    """How its symbols begin: "cublaslt"."""
    no_algorithm: ClassVar[str]
    """What stands for the algorithm where none is chosen."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What equal kernels have in common; no blanks."""

    @property
    @abstractmethod
    def operand_sizes(self) -> Mapping[int, int]:
        """Numbers of each operand by its position among the function's parameters."""

    @property
    @abstractmethod
    def result_size(self) -> int:
        """Numbers of the result."""

    def key(self, precision: str, target: tvm.target.Target) -> str:
        """Return under what the symbol with an algorithm is kept among a network's tunings.

        Parameters
        ----------
        precision
            What it multiplies in: "float32", "tf32" or "half".
        target
            Of a GPU.
        """
        return f"{self.library}:{precision}:{target.attrs.get('arch', '')}:{self.name}"

    def head(self, precision: str, version: int) -> str:
        """Return how a symbol begins, before scratch memory and algorithm.

        Parameters
        ----------
        version
            Of the library, as 120903 for 12.9.3.
        """
        return f"{self.library}:{version}:{precision}:{self.name}:"

    def unchosen(self, precision: str) -> str:
        """Return a symbol without an algorithm: the library is asked by it for what it offers."""
        return f"{self.head(precision, 0)}0:{self.no_algorithm}"


def operands_text(*positions: int | None) -> str:
    """Return positions of operands as a symbol has them.

    >>> operands_text(0, 1, None, 2)
    '0,1,-,2'
    """
    return ",".join("-" if each is None else str(each) for each in positions)
