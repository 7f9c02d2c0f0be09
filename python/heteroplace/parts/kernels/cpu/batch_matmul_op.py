"""Products of many matrices, as in attention: an op of Relay for CPUs.

TVM's `nn.batch_matmul` for x86 sums up one vector at a time. Here each product is made by tiles
(`product_tiles`), of a right matrix that is brought into panels before, unless its rows are such:

    (a, b) -> a @ b      b read as it lies where panels divide its columns and it is small
    (a, b) -> a @ b.T    b transposed in registers, as many rows at a time as a vector has lanes

The left one is read as it lies, transposed or not. Right ones that are weights may be in half
precision (`narrow_weights`), not transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relay, te, tir

from heteroplace.parts.kernels.cpu.fused_schedules import schedule_by_tag
from heteroplace.parts.kernels.cpu.product_tiles import (
    TiledProduct,
    item_bytes_of,
    panel_width,
    shape_of,
    vector_bytes,
)
from heteroplace.parts.kernels.rewrites.narrow_weights import widened
from heteroplace.relay.llvm_text import transpose_text
from heteroplace.tvm_bridge import add_relay_op

BATCH_MATMUL_OP = "heteroplace_batch_matmul"
"""Of matrices [batch, rows, columns], or one for all; `transpose_a`, `transpose_b` as TVM's."""

_TAG = "heteroplace_batch_matmul"
_PANELS = "panels"
_CACHED_BYTES = 2**17
"""A matrix of no more is read as it lies."""
_LLVM_TYPES = {"float32": "float", "float64": "double"}


def batch_matmul(
    a: relay.Expr, b: relay.Expr, *, transpose_a: bool = False, transpose_b: bool = False
) -> relay.Call:
    """Return a call of the op: products of `a`, or its transposes, and `b`, or its transposes."""
    add_relay_op(
        BATCH_MATMUL_OP,
        "Products of pairs of matrices.",
        {"a": ("Tensor", "the left ones"), "b": ("Tensor", "the right ones")},
        _type_of,
        _compute,
        schedule_batch_matmul,
        is_fusable=True,
    )
    attrs = tvm.ir.make_node("DictAttrs", transpose_a=transpose_a, transpose_b=transpose_b)
    return relay.Call(tvm.ir.Op.get(BATCH_MATMUL_OP), [a, b], attrs)


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    if not all(isinstance(each, relay.TensorType) for each in arguments):
        return None
    a, b = (argument.shape for argument in arguments)
    rows = a[2 if attrs["transpose_a"] else 1]
    columns = b[1 if attrs["transpose_b"] else 2]
    return relay.TensorType((max(int(a[0]), int(b[0])), rows, columns), arguments[0].dtype)


def _compute(attrs: Any, tensors: Any, _: Any) -> list[te.Tensor]:
    a, b = tensors
    rows, depth = shape_of(a)[:0:-1] if attrs["transpose_a"] else shape_of(a)[1:]
    columns = shape_of(b)[1 if attrs["transpose_b"] else 2]
    batch = max(shape_of(a)[0], shape_of(b)[0])
    width = panel_width(columns, a.dtype)
    is_direct = not attrs["transpose_b"] and _is_read_as_it_lies(b, width)
    right_dtype = b.dtype if is_direct else a.dtype
    tiled = TiledProduct((batch,), rows, columns, depth, width, a.dtype, right_dtype)

    def left(n: Any, y: Any, at: Any) -> Any:
        n = n if shape_of(a)[0] > 1 else 0
        return a[n, at, y] if attrs["transpose_a"] else a[n, y, at]

    right = _right(tiled, b, is_direct, transposes=bool(attrs["transpose_b"]))
    is_transposed = bool(attrs["transpose_a"])
    return [tiled.compute(left, right, _TAG, is_left_transposed=is_transposed)]


def _is_read_as_it_lies(b: te.Tensor, width: int) -> bool:
    _, depth, columns = shape_of(b)
    return columns % width == 0 and depth * columns * item_bytes_of(b) <= _CACHED_BYTES


def _right(
    tiled: TiledProduct, b: te.Tensor, is_direct: bool, *, transposes: bool
) -> Callable[..., Any]:
    """By (number of the product, panel, place in depth, column of the panel)."""
    matrices, width = shape_of(b)[0], tiled.width

    def number(n: Any) -> Any:
        return n if matrices > 1 else 0

    if is_direct:
        return lambda n, panel, at, x: widened(b[number(n), at, panel * width + x], tiled.dtype)
    panels = _transposed_panels(tiled, b) if transposes else _panels(tiled, b)
    return lambda n, panel, at, x: panels[number(n), panel, at, x]


def _panels(tiled: TiledProduct, b: te.Tensor) -> te.Tensor:
    """Of matrices as they are; what is behind the last column is never stored."""
    shape = (shape_of(b)[0], tiled.panels, tiled.depth, tiled.width)

    def element(n: Any, panel: Any, at: Any, x: Any) -> Any:
        column = panel * tiled.width + x
        value = widened(b[n, at, column], tiled.dtype)
        if tiled.columns % tiled.width == 0:
            return value
        return tir.if_then_else(column < tiled.columns, value, tir.const(0, tiled.dtype))

    return te.compute(shape, element, _PANELS)


def _transposed_panels(tiled: TiledProduct, b: te.Tensor) -> te.Tensor:
    """Of transposed matrices; what is behind the last column is the last one again."""
    matrices, lanes = shape_of(b)[0], vector_bytes() // tiled.item_bytes
    blocks = -(-tiled.depth // lanes)
    shape = (matrices, tiled.panels, blocks * lanes, tiled.width)
    name = f"heteroplace_transpose_{b.dtype}x{lanes}"
    text = transpose_text(name, _LLVM_TYPES[b.dtype], lanes)

    def body(ins: Any, outs: Any) -> tir.Stmt:
        (source,), (target,) = ins, outs
        ib = tir.ir_builder.create()
        ib.scope_attr(tir.const(0, "int32"), "pragma_import_llvm", tir.StringImm(text))
        with ib.for_range(0, matrices * tiled.panels, "panel", kind="parallel") as chunk:
            n, panel = tir.indexdiv(chunk, tiled.panels), tir.indexmod(chunk, tiled.panels)
            with (
                ib.for_range(0, tiled.width // lanes, "vector") as vector,
                ib.for_range(0, blocks, "block") as block,
            ):
                column, at = panel * tiled.width + vector * lanes, block * lanes
                place = (chunk * blocks * lanes + at) * tiled.width + vector * lanes
                column = tir.min(column, tiled.columns - 1)
                from_ = (n * tiled.columns + column) * tiled.depth + at
                ib.emit(
                    tir.call_extern(
                        "int32",
                        name,
                        target.access_ptr("w", offset=place),
                        tir.const(tiled.width, "int64"),
                        source.access_ptr("r", offset=from_),
                        tir.const(tiled.depth, "int64"),
                        tir.min(tiled.columns - column, lanes),
                        tir.min(tiled.depth - at, lanes),
                    )
                )
        return ib.get()

    return te.extern([shape], [b], body, _PANELS, dtype=b.dtype)


def schedule_batch_matmul(_attrs: Any, outs: Any, _target: Any) -> te.Schedule:
    """Schedule the op and what is fused behind it."""
    return schedule_by_tag(outs, {_TAG: _schedule})


def _schedule(schedule: te.Schedule, product: te.Tensor, result: te.Tensor) -> None:
    _, b = product.op.input_tensors
    batch, rows, columns = shape_of(result)
    depth = int(product.op.reduce_axis[0].dom.extent)
    width = shape_of(product)[-1]
    right_dtype = product.dtype if b.op.name == _PANELS else b.dtype
    tiled = TiledProduct((batch,), rows, columns, depth, width, product.dtype, right_dtype)
    tiled.schedule(schedule, product, result)
    if b.op.name == _PANELS and isinstance(b.op, te.ComputeOp):
        stage = schedule[b]
        n, panel, _, x = stage.op.axis
        stage.parallel(stage.fuse(n, panel))
        if tiled.columns % width == 0:
            stage.vectorize(stage.split(x, vector_bytes() // tiled.item_bytes)[1])
