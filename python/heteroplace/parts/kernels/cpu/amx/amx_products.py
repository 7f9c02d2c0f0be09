"""Lowered sums of products in marked loops -> calls of functions that multiply by AMX.

A schedule marks the loops of a block (`mark_block`). `amx_loops` reads what they compute, so that
products of matrices and convolutions are marked alike:

    pragma: for row, column, depth:                   multiply(&sums[..], &left[..], &right[..])
                sums[..] += left[..] * right[..]  ==>

A core makes its tiles once for all blocks of its part of a loop, and gives them back at the end:
threads that hold tiles take longer to switch.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm import te, tir

from heteroplace.errors import LoweringError
from heteroplace.parts.kernels.cpu.amx.amx_assembly import ROW_BYTES, BlockProduct
from heteroplace.parts.kernels.cpu.amx.amx_loops import ITEM_BYTES, MarkedLoops
from heteroplace.parts.kernels.cpu.filters_ahead import CACHED_BYTES, place_of, tiles_of
from heteroplace.relay.targets import AMX_LOOPS
from heteroplace.tir.lowered_functions import with_functions, without_names

_PRAGMA = AMX_LOOPS.removeprefix("pragma_")


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
            return self._called(node.body) if node.attr_key == AMX_LOOPS else None
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
        marked = MarkedLoops.of(loops)
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
        item_bytes = ITEM_BYTES[right.buffer.dtype]
        if prod(map(int, right.buffer.shape)) * item_bytes <= CACHED_BYTES:
            return block, right
        first = without_names(right.indices[0], self._names)
        tiles = tiles_of(first, self._loops)
        shares = prod(axis.extent for axis in tiles)
        if shares < 2:
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
