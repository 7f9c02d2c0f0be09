"""Ops and the values they are given -> the most precise of their implementations.

DistIR (arXiv 2111.05426, section 3.3): an op has several implementations, for concrete values and
for abstract ones, and the one is taken whose signature abstracts the arguments most closely. A
concrete argument may be abstracted for a less precise signature, never the reverse. So shapes are
computed where a network computes them, though the tensors that have them stay unknown.

    add       (concrete, concrete)  numpy's sum
              (typed, typed)        the type of the sum
    shape     (typed)               a concrete list, of an abstract tensor
    reshape   (concrete, concrete)  numpy's
              (typed, concrete)     a type, -1 resolved
              (any, any)            a tensor of unknown shape
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Any

import numpy as np

from heteroplace.errors import GraphError
from heteroplace.model.graph import Task, Tensor

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class TensorType:
    """What is known of a tensor that has no value yet."""

    shape: tuple[int | None, ...] | None
    """None: nothing; an extent that is None: any."""
    dtype: str

    @property
    def is_static(self) -> bool:
        """Whether all extents are known."""
        return self.shape is not None and None not in self.shape

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape, which must be static."""
        return tuple(extent for extent in self.shape or () if extent is not None)

    @property
    def size(self) -> int:
        """Number of elements of a static shape."""
        return prod(self.static_shape)

    def contains(self, array: Array) -> bool:
        """Say whether an array is of this type.

        >>> TensorType((None, 3), "float32").contains(np.zeros((2, 3), "float32"))
        True
        """
        if array.dtype != np.dtype(self.dtype):
            return False
        if self.shape is None:
            return True
        return len(self.shape) == array.ndim and all(
            extent in (None, found) for extent, found in zip(self.shape, array.shape, strict=True)
        )

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[??]"
        extents = ", ".join("?" if extent is None else str(extent) for extent in self.shape)
        return f"{self.dtype}[{extents}]"


AnyValue = Array | TensorType


class Level(IntEnum):
    """How much an argument says, the most first."""

    CONCRETE = 0
    """An array."""
    TYPED = 1
    """A static shape and a type."""
    ANY = 2
    """A type, and of the shape perhaps nothing."""


@dataclass(frozen=True, slots=True)
class OpCall:
    """An op that is being run for one item."""

    task: Task
    name: str
    """Of the op, without attributes."""
    attributes: tuple[str, ...]
    """What stands in brackets behind the op's name: "sgd[0.1,0.9]" has "0.1" and "0.9"."""
    outputs: tuple[Tensor, ...]
    """What it is to make."""


Function = Callable[..., Sequence[Any]]
"""(call, *arguments) -> outputs"""


@dataclass(frozen=True, slots=True)
class Implementation:
    """What an op does for arguments that are at least so precise."""

    signature: tuple[Level, ...]
    """For each argument; a variadic one has a single entry, for all of them."""
    function: Function
    is_variadic: bool = False

    def levels(self, num_arguments: int) -> tuple[Level, ...] | None:
        """Return the level of each of so many arguments; None: it does not take so many."""
        if self.is_variadic:
            return self.signature * num_arguments
        return self.signature if len(self.signature) == num_arguments else None


def split_op(op: str) -> tuple[str, tuple[str, ...]]:
    """Return name and attributes of an op.

    >>> split_op("sgd[0.1,0.9]"), split_op("relu")
    (('sgd', ('0.1', '0.9')), ('relu', ()))
    """
    name, bracket, rest = op.partition("[")
    if not bracket:
        return op, ()
    return name, tuple(part.strip() for part in rest.removesuffix("]").split(","))


def level_of(value: AnyValue) -> Level:
    """Return how much a value says."""
    if not isinstance(value, TensorType):
        return Level.CONCRETE
    return Level.TYPED if value.is_static else Level.ANY


def type_of(value: AnyValue) -> TensorType:
    """Return the type of a value, which is the value itself if it is one."""
    if isinstance(value, TensorType):
        return value
    return TensorType(tuple(value.shape), value.dtype.name)


class Operations:
    """Implementations by op."""

    def __init__(self) -> None:
        self._of: dict[str, list[Implementation]] = {}

    def register(
        self, op: str, signature: Sequence[Level], function: Function, is_variadic: bool = False
    ) -> None:
        """Add an implementation, or replace the one of that signature.

        Parameters
        ----------
        signature
            The least precise arguments that it takes.
        function
            Called with an `OpCall` and the arguments, abstracted where they are concrete and the
            signature is not; returns the outputs.
        is_variadic
            It takes any number of arguments, all of the one level in `signature`.
        """
        key = tuple(signature)
        others = [
            found
            for found in self._of.get(op, ())
            if (found.signature, found.is_variadic) != (key, is_variadic)
        ]
        self._of[op] = [*others, Implementation(key, function, is_variadic)]

    def __contains__(self, op: str) -> bool:
        return op in self._of

    def call(self, call: OpCall, arguments: Sequence[AnyValue]) -> Sequence[AnyValue]:
        """Run the most precise implementation that takes the arguments; the first argument decides
        before the second, and so on.

        Raises
        ------
        GraphError
            There is none; both signatures are told.
        """
        given = [level_of(argument) for argument in arguments]
        fitting = []
        for found in self._of.get(call.name, ()):
            levels = found.levels(len(arguments))
            if levels is not None and all(a >= b for a, b in zip(levels, given, strict=True)):
                fitting.append((levels, found.is_variadic, found))
        if not fitting:
            known = "; ".join(self._quote(found) for found in self._of.get(call.name, ()))
            raise GraphError(
                f"task {call.task.name!r}: op {call.name!r} is given "
                f"({', '.join(level.name.lower() for level in given)}), and takes "
                f"{known or 'nothing: it is not registered'}; register an implementation"
            )
        levels, _, best = min(fitting, key=lambda entry: entry[:2])
        abstracted = [
            argument if level == Level.CONCRETE else type_of(argument)
            for level, argument in zip(levels, arguments, strict=True)
        ]
        return best.function(call, *abstracted)

    @staticmethod
    def _quote(found: Implementation) -> str:
        names = [level.name.lower() for level in found.signature]
        return f"({', '.join(names)}{', ...' if found.is_variadic else ''})"
