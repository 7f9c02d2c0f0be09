"""Lowered convolutions -> the same, which ask memory for the filters that they read next.

The filters of some blocks of channels serve all tiles of a map. The first tile brings them from
memory or the third cache, the others find them in the second one, and memory would do nothing
meanwhile: so each tile asks for its part of those of the next blocks, which lie behind them, in
several pages at once:

    for tile in tiles:                            for tile in tiles:
        for block in data blocks:         ==>         for block in data blocks:
            for channel in 16:                            prefetch(&next[part of (tile, block)])
                sums += map[..] * filters[..]             for channel in 16: ...

Products of matrices ask in `register_tiles`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import tvm
from tvm import tir

from heteroplace.tir.lowered_functions import is_kernel_of, with_functions, without_names

_OPS = ("conv2d_NCHWc", "heteroplace_winograd")
_DTYPE, _ITEM_BYTES = "float32", 4
CACHED_BYTES = 2**18
"""Filters of no more are in the second cache before they would come by being asked for."""
_LINE_ITEMS = 64 // _ITEM_BYTES
_PAGES = 4
"""In how many memory is asked at once, each of which the processor goes on with by itself, as in
`register_tiles`: 4 to 8 % of kernels with filters of 4 MB and more for maps of 7 x 7 (Intel Xeon,
family 6, model 167)."""
_MIN_LINES = 0.5
"""That a part has: of fewer, tiles are so many that the first one is little of the time."""
_TO_READ, _SECOND_CACHE, _OF_DATA = 0, 2, 1
"""Arguments of LLVM's prefetch."""


def ask_for_filters(functions: tvm.IRModule) -> tvm.IRModule:
    """Return the kernels with prefetches; kernels of other ops as they are.

    Parameters
    ----------
    functions
        Lowered functions of one kernel for a CPU; they are not changed.
    """
    if not is_kernel_of(functions, _OPS):
        return functions
    return with_functions(functions, lambda function: _Asking(function).rewritten())


class _Filters(NamedTuple):
    """What a loop over channels reads of a parameter, vector by vector."""

    buffer: tir.Buffer
    first: tir.PrimExpr
    """Where the first vector begins, by the variables of loops alone."""
    vectors: int
    """In each step of the loop."""
    lanes: int


class TileAxis(NamedTuple):
    """A loop, or the part of a fused one that filters do not depend on."""

    place: tir.PrimExpr
    extent: int


class _Asking:
    """One function, on the way through its loops."""

    def __init__(self, function: tir.PrimFunc) -> None:
        self._function = function
        self._params = [buffer.data for buffer in function.buffer_map.values()]
        self._loops: list[tir.For] = []
        self._is_innermost = False  # what is left next
        self._lets: dict[tir.Var, tir.PrimExpr] = {}

    def rewritten(self) -> tir.PrimFunc:
        """The function; the same one if nothing is asked for."""
        kinds = ["tir.For", "tir.LetStmt"]
        body = tir.stmt_functor.ir_transform(self._function.body, self._enter, self._leave, kinds)
        is_same = body.same_as(self._function.body)
        return self._function if is_same else self._function.with_body(body)

    def _enter(self, node: tir.Stmt) -> None:
        if isinstance(node, tir.For):
            self._loops.append(node)
            self._is_innermost = True
        else:
            self._lets[node.var] = node.value

    def _leave(self, node: tir.Stmt) -> tir.Stmt | None:
        if not isinstance(node, tir.For):
            return None
        self._loops.pop()
        filters = self._read_by(node) if self._is_innermost else None
        self._is_innermost = False
        prefetches = [] if filters is None else self._prefetches(node, filters)
        return tir.SeqStmt([*prefetches, node]) if prefetches else None

    def _read_by(self, loop: tir.For) -> _Filters | None:
        """What an innermost loop of sums reads; None: it is of none, or reads several of them."""
        loads, sums = [], []

        def visit(node: tvm.Object) -> None:
            if isinstance(node, tir.BufferStore) and isinstance(node.value, tir.Add):
                sums.append(node)
            elif isinstance(node, tir.BufferLoad) and isinstance(node.indices[-1], tir.Ramp):
                loads.append(node)

        tir.stmt_functor.post_order_visit(loop.body, visit)
        loads = [each for each in loads if self._is_param(each.buffer)]
        if not sums or len({each.buffer.data.name for each in loads}) != 1:
            return None
        begins = [without_names(each.indices[-1].base, self._lets) for each in loads]
        analyzer = tvm.arith.Analyzer()
        offsets = [analyzer.simplify(each - begins[0]) for each in begins]
        if loads[0].buffer.dtype != _DTYPE or not all(isinstance(o, tir.IntImm) for o in offsets):
            return None
        distances = {int(each) for each in offsets}
        first = begins[0] + min(distances)
        return _Filters(loads[0].buffer, first, len(distances), int(loads[0].indices[-1].lanes))

    def _is_param(self, buffer: tir.Buffer) -> bool:
        return any(buffer.data.same_as(each) for each in self._params)

    def _prefetches(self, loop: tir.For, filters: _Filters) -> list[tir.Stmt]:
        """Before a loop over channels; none where memory is not waited for."""
        reads = _variables(filters.first)
        outer = list(self._loops)
        read: list[TileAxis] = []
        while outer and outer[-1].loop_var in reads and outer[-1].kind == tir.ForKind.SERIAL:
            inner = outer.pop()
            read.append(TileAxis(inner.loop_var, int(inner.extent)))
        tiles = tiles_of(filters.first, outer)
        steps, shares = (prod(axis.extent for axis in axes) for axes in (read, tiles))
        items = steps * int(loop.extent) * filters.vectors * filters.lanes
        lines = items / _LINE_ITEMS / (steps * shares)
        size = prod(int(extent) for extent in filters.buffer.shape) * _ITEM_BYTES
        if shares < 2 or size <= CACHED_BYTES or lines < _MIN_LINES:
            return []
        here = {loop.loop_var: loop.min, **{axis.place: 0 for axis in read}}
        begin = tir.stmt_functor.substitute(filters.first, here) + items
        count = -(-items // (_LINE_ITEMS * steps * shares))
        in_page = -(-count * steps * shares // _PAGES)
        first = (place_of(tiles) * steps + place_of(read)) * count

        def line(number: int) -> tir.PrimExpr:
            place = first + number
            return tir.indexmod(place, _PAGES) * in_page + tir.indexdiv(place, _PAGES)

        return [prefetch(filters.buffer, begin + line(n) * _LINE_ITEMS) for n in range(count)]


def tiles_of(first: tir.PrimExpr, loops: Sequence[tir.For]) -> list[TileAxis]:
    """Return the loops, the innermost first, whose turns all read weights from `first` on.

    `loops`: those around the read, the outermost first.
    """
    reads, outer = _variables(first), list(loops)
    tiles: list[TileAxis] = []
    while outer and outer[-1].loop_var not in reads:
        inner = outer.pop()
        tiles.append(TileAxis(inner.loop_var, int(inner.extent)))
    if outer and outer[-1].kind == tir.ForKind.PARALLEL:
        tiles.append(_fused_part(first, outer[-1].loop_var))
    return tiles


def _fused_part(expression: tir.PrimExpr, variable: tir.Var) -> TileAxis:
    """The part of the variable of a fused loop that an expression does not depend on."""
    divisors: set[int] = set()

    def visit(node: tvm.Object) -> None:
        if isinstance(node, tir.FloorDiv) and variable in _variables(node.a):
            divisors.add(int(node.b))

    tir.stmt_functor.post_order_visit(expression, visit)
    for divisor in sorted(divisors, reverse=True):
        quotient, part = (tir.Var(name, variable.dtype) for name in ("quotient", "part"))
        analyzer = tvm.arith.Analyzer()
        analyzer.bind(part, tvm.ir.Range(0, divisor))
        split = tir.stmt_functor.substitute(expression, {variable: quotient * divisor + part})
        if part not in _variables(analyzer.simplify(split)):
            return TileAxis(tir.indexmod(variable, divisor), divisor)
    return TileAxis(tir.const(0, "int32"), 1)


def place_of(axes: Sequence[TileAxis]) -> tir.PrimExpr:
    """In all of them together, the innermost first."""
    place: tir.PrimExpr = tir.const(0, "int32")
    for axis in reversed(axes):
        place = place * axis.extent + axis.place
    return place


def _variables(expression: tir.PrimExpr) -> list[tir.Var]:
    return list(tir.analysis.undefined_vars(expression))


def prefetch(buffer: tir.Buffer, place: tir.PrimExpr) -> tir.Stmt:
    """Return a statement that brings a line into the second cache. `place`: of one of its elements,
    which may lie beyond the end of the buffer."""
    address = tir.address_of(tir.BufferLoad(buffer, [place]))
    call = tir.call_intrin("int32", "tir.prefetch", address, _TO_READ, _SECOND_CACHE, _OF_DATA)
    return tir.Evaluate(call)
