"""Marked loops of a lowered kernel -> the block of products that they compute.

    for row, column, depth:
        sums[..] += left[..] * right[..]    ->    BlockProduct, &sums, &left, &right

The matrices, their tiles and the steps in depth are read from the indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import tvm
from tvm import tir

from heteroplace.errors import LoweringError
from heteroplace.parts.kernels.cpu.amx.amx_assembly import (
    GROUP_BYTES,
    MAX_ROWS,
    MAX_SUM_TILES,
    ROW_BYTES,
    BlockProduct,
    Part,
    can_block,
)
from heteroplace.relay.bfloat16_vectors import IN_WORD, WORD
from heteroplace.tir.lowered_functions import without_names

ITEM_BYTES = {"uint16": 2, "uint8": 1, "int8": 1, WORD: 4}
_SUM_BYTES = 4
_TILE_COLUMNS = ROW_BYTES // _SUM_BYTES
_MAX_UNROLLED = 16
"""Steps without a loop."""


class _Access(NamedTuple):
    """What an element of a matrix is in memory, by the variables of the loops."""

    buffer: tir.Buffer
    index: tir.PrimExpr
    """Of a number."""
    numbers: int = 1
    """Of an item of the buffer."""

    @property
    def dtype(self) -> str:
        """Of a number."""
        return "uint16" if self.numbers > 1 else str(self.buffer.dtype)

    def of_numbers(self, place: tir.Var) -> _Access:
        """Return the same of the numbers at a place in words, if the buffer has words."""
        if self.buffer.dtype != WORD:
            return self
        return _Access(self.buffer, self.index * IN_WORD + place, IN_WORD)

    def item(self, index: tir.PrimExpr) -> tir.BufferLoad:
        """Return the item that has a number."""
        return tir.BufferLoad(self.buffer, [tir.indexdiv(index, self.numbers)])


class _Axis(NamedTuple):
    """A loop over depth: how many numbers each step is from the first, left and right."""

    steps: tuple[tuple[int, int], ...]

    @classmethod
    def even(cls, extent: int, left: int, right: int) -> _Axis:
        """Return steps of one length."""
        return cls(tuple((left * step, right * step) for step in range(extent)))

    @property
    def length(self) -> tuple[int, int]:
        """Of each step, if it is even."""
        return self.steps[1]

    @property
    def is_even(self) -> bool:
        left, right = self.length
        return self == self.even(len(self.steps), left, right)


class _Depth(NamedTuple):
    """How the depth is divided, in numbers."""

    numbers: int
    """Of a row that a step multiplies."""
    pitch: int
    """From one group of rows of the right matrix to the next."""
    steps: tuple[tuple[int, int], ...]
    """Of a turn of the loop: where each begins, left and right."""
    turns: int
    turn: tuple[int, int]
    """From one turn to the next, left and right."""


class MarkedLoops:
    """Marked loops, and what they multiply."""

    def __init__(
        self, extents: dict[tir.Var, int], accesses: Sequence[_Access], *, adds: bool
    ) -> None:
        self._extents = extents
        self._sums, self._left, self._right = accesses
        self._adds = adds
        self._item_bytes = ITEM_BYTES[self._left.dtype]
        self._analyzer = tvm.arith.Analyzer()

    @classmethod
    def of(cls, body: tir.Stmt) -> MarkedLoops | None:
        """Return the loops in a statement; None: they only set sums to 0."""
        extents: dict[tir.Var, int] = {}
        names: dict[tir.Var, tir.PrimExpr] = {}
        stores: list[tir.BufferStore] = []

        def visit(node: tvm.Object) -> None:
            if isinstance(node, tir.For):
                extents[node.loop_var] = int(node.extent)
            elif isinstance(node, tir.LetStmt):
                names[node.var] = node.value
            elif isinstance(node, tir.BufferStore):
                stores.append(node)

        tir.stmt_functor.post_order_visit(body, visit)
        sums = [each for each in stores if isinstance(each.value, tir.Add)]
        if not sums and all(isinstance(each.value, (tir.FloatImm, tir.IntImm)) for each in stores):
            return None
        loads: list[tir.BufferLoad] = []

        def collect(node: tvm.Object) -> None:
            if isinstance(node, tir.BufferLoad):
                loads.append(node)

        for store in sums:
            tir.stmt_functor.post_order_visit(store.value, collect)
        if len(sums) != 1 or len(loads) != 3:
            raise LoweringError(
                f"loops marked for AMX have {len(sums)} sums that read {len(loads)} numbers, "
                f"expected one that reads itself and two factors; report this as a bug"
            )
        accesses = [_Access(each.buffer, without_names(each.indices[0], names)) for each in loads]
        is_sums = [each.buffer.data.same_as(sums[0].buffer.data) for each in accesses]
        accesses.insert(0, accesses.pop(is_sums.index(True)))
        if accesses[-1].buffer.dtype == WORD:
            in_sums, _, in_right = (_variables(each.index) for each in accesses)
            (place,) = set(extents) - in_sums - in_right
            accesses = [each.of_numbers(place) for each in accesses]
        return cls(extents, accesses, adds=len(stores) == 1)

    def block(self) -> tuple[BlockProduct, list[tir.BufferLoad]]:
        """Return what the loops compute, and the first elements: of the sums, left and right."""
        in_rows, in_columns, in_depth = self._by_kind()
        rows, lefts, pitch, sums_pitch = self._rows(in_rows)
        depth = self._depth(in_depth)
        size = self._item_bytes
        block = BlockProduct(
            self._left.dtype,
            rows,
            depth.numbers * size,
            lefts,
            self._columns(in_columns),
            tuple((left * size, right * size) for left, right in depth.steps),
            depth.turns,
            (depth.turn[0] * size, depth.turn[1] * size),
            pitch * size,
            depth.pitch * size,
            sums_pitch * _SUM_BYTES,
            self._adds,
        )
        if not can_block(len(block.lefts), len(block.rights)):
            raise LoweringError(
                f"a block marked for AMX has {len(block.lefts)} x {len(block.rights)} tiles of "
                f"sums, expected at most {MAX_SUM_TILES}; report this as a bug"
            )
        firsts = [each.item(self._at(each, {})) for each in (self._sums, self._left, self._right)]
        return block, firsts

    def _by_kind(self) -> tuple[list[tir.Var], list[tir.Var], list[tir.Var]]:
        """Variables of rows, of columns and of depth."""
        kinds: tuple[list[tir.Var], ...] = ([], [], [])
        for variable in self._extents:
            in_sums, in_left = (
                variable in tir.analysis.undefined_vars(self._simplified(each.index))
                for each in (self._sums, self._left)
            )
            kinds[0 if in_sums and in_left else 1 if in_sums else 2].append(variable)
        rows, columns, depth = kinds
        return rows, columns, depth

    def _rows(self, variables: Sequence[tir.Var]) -> tuple[int, tuple[Part, ...], int, int]:
        """Rows of a tile, the tiles, and from one row to the next: left and of the sums."""
        if not variables:
            return 1, (Part(0, 0),), 0, _TILE_COLUMNS
        (variable,) = variables
        extent = self._extents[variable]
        pitch, sums_pitch = (self._length(each, variable) for each in (self._left, self._sums))
        rows = even_size(extent, MAX_ROWS)
        firsts = [min(first, extent - rows) for first in range(0, extent, rows)]
        parts = (
            Part(first * pitch * self._item_bytes, first * sums_pitch * _SUM_BYTES)
            for first in firsts
        )
        return rows, tuple(parts), pitch, sums_pitch

    def _columns(self, variables: Sequence[tir.Var]) -> tuple[Part, ...]:
        """Tiles of columns."""
        axes = []
        for variable in variables:
            right, sums = (self._length(each, variable) for each in (self._right, self._sums))
            extent, width = self._extents[variable], _TILE_COLUMNS if sums == 1 else 1
            if extent % width:
                raise LoweringError(
                    f"a block marked for AMX has {extent} neighbouring columns, expected a "
                    f"multiple of {width}; report this as a bug"
                )
            axes.append([(right * at, sums * at) for at in range(0, extent, width)])
        return tuple(
            Part(
                sum(right for right, _ in each) * self._item_bytes,
                sum(sums for _, sums in each) * _SUM_BYTES,
            )
            for each in product(*axes)
        )

    def _depth(self, variables: Sequence[tir.Var]) -> _Depth:
        group = GROUP_BYTES // self._item_bytes
        axes = [self._axis(each) for each in variables]
        axes.remove(_Axis.even(group, 1, 1))
        groups, pitch = 1, _TILE_COLUMNS * group
        neighbours = [axis for axis in axes if axis.is_even and axis.length[0] == group]
        if neighbours:
            groups, pitch = len(neighbours[0].steps), neighbours[0].length[1]
            axes.remove(neighbours[0])
        for axis in reversed(axes):
            if axis.is_even and axis.length == (group * groups, pitch * groups):
                groups *= len(axis.steps)
                axes.remove(axis)
        depth = groups_of_step(groups)
        if groups > depth:
            axes.append(_Axis.even(groups // depth, group * depth, pitch * depth))
        turns, turn = 1, (0, 0)
        even = sorted((axis for axis in axes if axis.is_even), key=lambda axis: len(axis.steps))
        if even and prod(len(axis.steps) for axis in axes) > _MAX_UNROLLED:
            longest = even[-1]
            axes.remove(longest)
            together = 1
            if not axes:
                together = max(each for each in (1, 2, 4) if len(longest.steps) % each == 0)
                axes.append(_Axis.even(together, *longest.length))
            turns = len(longest.steps) // together
            turn = longest.length[0] * together, longest.length[1] * together
        steps = [
            (sum(left for left, _ in each), sum(right for _, right in each))
            for each in product(*(axis.steps for axis in axes))
        ]
        steps.sort(key=lambda step: step[1])
        return _Depth(depth * group, pitch, tuple(steps), turns, turn)

    def _axis(self, variable: tir.Var) -> _Axis:
        return _Axis(
            tuple(
                (
                    self._distance(self._left, variable, at),
                    self._distance(self._right, variable, at),
                )
                for at in range(self._extents[variable])
            )
        )

    def _length(self, access: _Access, variable: tir.Var) -> int:
        return self._distance(access, variable, 1)

    def _distance(self, access: _Access, variable: tir.Var, at: int) -> int:
        """Numbers from the first step of a loop to another one."""
        return int(self._simplified(self._at(access, {variable: at}) - self._at(access, {})))

    def _at(self, access: _Access, values: Mapping[tir.Var, int]) -> tir.PrimExpr:
        """The index with values of some variables, and 0 for the others."""
        by_variable = {each: tir.const(values.get(each, 0), "int32") for each in self._extents}
        return tir.stmt_functor.substitute(access.index, by_variable)

    def _simplified(self, expression: tir.PrimExpr) -> tir.PrimExpr:
        return self._analyzer.simplify(expression)


def _variables(expression: tir.PrimExpr) -> set[tir.Var]:
    return set(tir.analysis.undefined_vars(expression))


def even_size(count: int, most: int) -> int:
    """Return the size of parts of at most `most`, as few and as even as can be.

    >>> even_size(33, 16), even_size(16, 16)
    (11, 16)
    """
    return -(-count // -(-count // most))


def groups_of_step(groups: int) -> int:
    """Return how many of so many groups in depth a step multiplies: the most that divide them.

    >>> [groups_of_step(groups) for groups in (7, 16, 384, 28, 34)]
    [7, 16, 16, 14, 2]
    """
    return next(each for each in range(min(groups, MAX_ROWS), 0, -1) if groups % each == 0)
