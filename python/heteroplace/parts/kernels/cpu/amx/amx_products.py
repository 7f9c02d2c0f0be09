"""Lowered sums of products in marked loops -> calls of functions that multiply by AMX.

A schedule marks the loops of a block (`mark_block`). What they compute is read from their indices,
so that products of matrices and convolutions are marked alike:

    pragma: for row, column, depth:                   multiply(&sums[..], &left[..], &right[..])
                sums[..] += left[..] * right[..]  ==>

A core makes its tiles once for all blocks of its part of a loop, and gives them back at the end:
threads that hold tiles take longer to switch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import tvm
from tvm import te, tir

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
from heteroplace.parts.kernels.cpu.filters_ahead import CACHED_BYTES, place_of, tiles_of
from heteroplace.tir.lowered_functions import with_functions, without_names

_PRAGMA = "heteroplace_amx"
_ITEM_BYTES = {"uint16": 2, "uint8": 1, "int8": 1}
_SUM_BYTES = 4
_TILE_COLUMNS = ROW_BYTES // _SUM_BYTES
_MAX_UNROLLED = 16
"""Steps without a loop."""


def mark_block(stage: te.Stage, axis: tir.IterVar) -> None:
    """Mark the loops of a stage from `axis` on, which sum up a block of products.

    They are those of rows, of columns and of depth, in any order; some columns are neighbours in
    memory, and so are the numbers of a group. None is unrolled or vectorised.
    """
    stage.pragma(axis, _PRAGMA)


def with_amx(functions: tvm.IRModule) -> tvm.IRModule:
    """Return the kernels with calls in place of marked loops.

    Raises
    ------
    LoweringError
        What marked loops compute is not such a block.
    """
    return with_functions(functions, lambda function: _Rewrite().rewritten(function))


class _Rewrite:
    """One function."""

    def __init__(self) -> None:
        self._blocks: dict[str, BlockProduct] = {}
        self._loops: list[tir.For] = []
        self._names: dict[tir.Var, tir.PrimExpr] = {}

    def rewritten(self, function: tir.PrimFunc) -> tir.PrimFunc:
        kinds = ["tir.AttrStmt", "tir.For", "tir.LetStmt"]
        body = tir.stmt_functor.ir_transform(function.body, self._enter, self._leave, kinds)
        if body.same_as(function.body):
            return function
        if self._blocks:
            body = self._with_tiles(body)
        return function.with_body(body)

    def _enter(self, node: tir.Stmt) -> None:
        if isinstance(node, tir.For):
            self._loops.append(node)
        elif isinstance(node, tir.LetStmt):
            self._names[node.var] = node.value

    def _leave(self, node: tir.Stmt) -> tir.Stmt | None:
        if isinstance(node, tir.AttrStmt):
            return self._called(node.body) if node.attr_key == f"pragma_{_PRAGMA}" else None
        if isinstance(node, tir.LetStmt):
            return None
        self._loops.pop()
        if not self._blocks or node.kind != tir.ForKind.PARALLEL:
            return None
        body = self._with_tiles(node.body)
        return tir.For(
            node.loop_var,
            node.min,
            node.extent,
            node.kind,
            body,
            node.thread_binding,
            node.annotations,
        )

    def _called(self, loops: tir.Stmt) -> tir.Stmt:
        """A call in place of marked loops; those that only set sums to 0 as they are."""
        marked = _Loops.of(loops)
        if marked is None:
            return loops
        block, places = marked.block()
        block, ahead = self._prefetching(block, places[-1])
        self._blocks[block.name] = block
        addresses = (tir.address_of(place) for place in (*places, ahead))
        return tir.Evaluate(tir.call_extern("int32", block.name, *addresses))

    def _prefetching(
        self, block: BlockProduct, right: tir.BufferLoad
    ) -> tuple[BlockProduct, tir.BufferLoad]:
        """A block that prefetches its share of what the next blocks read of the right matrix, and
        where that share begins. Blocks with the same right matrix have one share each."""
        first = without_names(right.indices[0], self._names)
        tiles = tiles_of(first, self._loops)
        shares = prod(axis.extent for axis in tiles)
        item_bytes = _ITEM_BYTES[right.buffer.dtype]
        size = prod(map(int, right.buffer.shape)) * item_bytes
        if shares < 2 or size <= CACHED_BYTES:
            return block, right
        lines = -(-block.right_bytes // (ROW_BYTES * shares))
        ahead = block.right_bytes + ROW_BYTES * lines * place_of(tiles)
        place = first + tir.indexdiv(ahead, item_bytes)
        return block._replace(prefetched=lines), tir.BufferLoad(right.buffer, [place])

    def _with_tiles(self, body: tir.Stmt) -> tir.Stmt:
        """Statements between what makes the tiles and what gives them back."""
        blocks = list(self._blocks.values())
        self._blocks = {}
        first, *others = dict.fromkeys(each.configure_name for each in blocks)
        if others:
            raise LoweringError(
                f"blocks of one kernel need tiles of several shapes, {first} and {others}; report "
                f"this as a bug"
            )
        ib = tir.ir_builder.create()
        for block in blocks:
            ib.scope_attr(tir.const(0, "int32"), "pragma_import_llvm", tir.StringImm(block.text()))
        ib.emit(tir.call_extern("int32", first))
        ib.emit(body)
        ib.emit(tir.call_extern("int32", blocks[0].release_name))
        return ib.get()


class _Access(NamedTuple):
    """What an element of a matrix is in memory, by the variables of the loops."""

    buffer: tir.Buffer
    index: tir.PrimExpr


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


class _Loops:
    """Marked loops, and what they multiply."""

    def __init__(
        self, extents: dict[tir.Var, int], accesses: Sequence[_Access], *, adds: bool
    ) -> None:
        self._extents = extents
        self._sums, self._left, self._right = accesses
        self._adds = adds
        self._item_bytes = _ITEM_BYTES[self._left.buffer.dtype]
        self._analyzer = tvm.arith.Analyzer()

    @classmethod
    def of(cls, body: tir.Stmt) -> _Loops | None:
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
        return cls(extents, accesses, adds=len(stores) == 1)

    def block(self) -> tuple[BlockProduct, list[tir.BufferLoad]]:
        """Return what the loops compute, and the first elements: of the sums, left and right."""
        in_rows, in_columns, in_depth = self._by_kind()
        rows, lefts, pitch, sums_pitch = self._rows(in_rows)
        depth = self._depth(in_depth)
        size = self._item_bytes
        block = BlockProduct(
            self._left.buffer.dtype,
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
        firsts = [
            tir.BufferLoad(each.buffer, [self._at(each, {})])
            for each in (self._sums, self._left, self._right)
        ]
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
