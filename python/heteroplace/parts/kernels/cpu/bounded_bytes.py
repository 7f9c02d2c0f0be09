"""Numbers that are known to be small, rounded to bytes: an op, and its vectors packed by fours.

QuantizeLinear clips numbers before it rounds them, because a sum with M = 3 * 2^22 holds the whole
number in its last bits only if the number is small. Where all are small, no clip is needed: of

    bits(-(M + z) - x) = 0xCB400000 + round(x) + z            for an even z

the upper 16 bits are negative, and the lower 16 bits are round(x) + z. The instruction that packs
words into bytes (`vpackuswb`) makes 0 of the former, and clips the latter to 0 .. 255. Three
instructions and a shuffle pack four vectors, where one conversion for each takes two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relay, te, tir
from tvm.topi import tag

from heteroplace.relay.expressions import static_shape
from heteroplace.relay.tasks.folded_steps import ROUNDING_SHIFT
from heteroplace.tir.keep_nan import hidden, hidden_number
from heteroplace.tir.lowered_functions import with_functions, without_names
from heteroplace.tvm_bridge import add_relay_op

BYTE_OP = "heteroplace_bounded_byte"
"""Clips round(x) + zero to 0 .. 255; x is known to be within +-`LARGEST`, and zero is even."""
LARGEST = 2**15 - 2**8 - 2
_MAX_BYTE = 255
_LANES, _TOGETHER = 16, 4
_PACKED = "heteroplace_packed_bytes"
_ORDER = [lane % _TOGETHER * _TOGETHER + lane // _TOGETHER for lane in range(_LANES)]
_TEXT = f"""
declare <64 x i8> @llvm.x86.avx512.packuswb.512(<32 x i16>, <32 x i16>)
define linkonce_odr <64 x i8> @{_PACKED}
    (<16 x float> %a, <16 x float> %b, <16 x float> %c, <16 x float> %d)
    alwaysinline nounwind readnone {{
  %a16 = bitcast <16 x float> %a to <32 x i16>
  %b16 = bitcast <16 x float> %b to <32 x i16>
  %c16 = bitcast <16 x float> %c to <32 x i16>
  %d16 = bitcast <16 x float> %d to <32 x i16>
  %ab = call <64 x i8> @llvm.x86.avx512.packuswb.512(<32 x i16> %a16, <32 x i16> %b16)
  %cd = call <64 x i8> @llvm.x86.avx512.packuswb.512(<32 x i16> %c16, <32 x i16> %d16)
  %ab16 = bitcast <64 x i8> %ab to <32 x i16>
  %cd16 = bitcast <64 x i8> %cd to <32 x i16>
  %abcd = call <64 x i8> @llvm.x86.avx512.packuswb.512(<32 x i16> %ab16, <32 x i16> %cd16)
  %fours = bitcast <64 x i8> %abcd to <16 x i32>
  %rows = shufflevector <16 x i32> %fours, <16 x i32> undef,
    <16 x i32> <{", ".join(f"i32 {place}" for place in _ORDER)}>
  %bytes = bitcast <16 x i32> %rows to <64 x i8>
  ret <64 x i8> %bytes
}}
"""


def bounded_bytes(value: relay.Expr, zero: int, span: relay.Span | None) -> relay.Call:
    """Return a call of the op BYTE_OP."""
    add_relay_op(
        BYTE_OP,
        "Float32 numbers that are known to be small, rounded to bytes.",
        {"value": ("Tensor", "of float32")},
        _type_of,
        _compute,
        is_elementwise=True,
    )
    attrs = tvm.ir.make_node("DictAttrs", zero=zero)
    return relay.Call(tvm.ir.Op.get(BYTE_OP), [value], attrs, None, span)


def _type_of(arguments: Any, attrs: Any) -> tvm.ir.Type | None:
    (value,) = arguments
    if not isinstance(value, relay.TensorType):
        return None
    return relay.TensorType(static_shape(value), "uint8")


def _compute(attrs: Any, tensors: Any, _type: Any) -> list[te.Tensor]:
    (value,) = tensors

    def byte(*at: tir.Var) -> tir.PrimExpr:
        shift, most, least = (
            tir.FloatImm("float32", -(ROUNDING_SHIFT + each))
            for each in (int(attrs["zero"]), 0, _MAX_BYTE)
        )
        # Hidden from `keep_nan`: sums of products of whole numbers are never NaN.
        within = tir.Min(tir.Max(shift - value(*at), hidden(least)), hidden(most))
        return tir.Cast("uint8", tir.reinterpret("int32", within))

    return [te.compute(value.shape, byte, "byte", tag=tag.ELEMWISE)]


def packed_bytes(functions: tvm.IRModule) -> tvm.IRModule:
    """Return kernels of the op in which four neighbouring vectors are packed and stored at once.

    Parameters
    ----------
    functions
        Lowered functions of one kernel that has the op; they are not changed.
    """
    return with_functions(functions, _with_packed)


def _with_packed(function: tir.PrimFunc) -> tir.PrimFunc:
    """A function whose stores are packed; the same one if none can be."""
    names: dict[tir.Var, tir.PrimExpr] = {}

    def enter(node: tir.Stmt) -> None:
        if isinstance(node, tir.LetStmt):
            names[node.var] = node.value

    def leave(node: tir.Stmt) -> tir.Stmt | None:
        return _packed_sequence(node, names) if isinstance(node, tir.SeqStmt) else None

    body = tir.stmt_functor.ir_transform(
        function.body, enter, leave, ["tir.LetStmt", "tir.SeqStmt"]
    )
    return function if body.same_as(function.body) else function.with_body(body)


def _packed_sequence(
    sequence: tir.SeqStmt, names: Mapping[tir.Var, tir.PrimExpr]
) -> tir.Stmt | None:
    """A sequence of statements with packed stores; None: none can be packed."""
    statements: list[tir.Stmt] = []
    row: list[tir.BufferStore] = []
    is_changed = False
    for statement in [*sequence, None]:
        if row and not (_is_of_bytes(statement) and _follows(row[-1], statement, names)):
            is_changed |= len(row) >= _TOGETHER
            statements += _stores(row)
            row = []
        if _is_of_bytes(statement):
            row.append(statement)
        elif statement is not None:
            statements.append(statement)
    return tir.stmt_seq(*statements) if is_changed else None


def _stores(row: Sequence[tir.BufferStore]) -> list[tir.Stmt]:
    """Store neighbouring vectors by fours. The last four may hold some of those before."""
    if len(row) < _TOGETHER:
        return list(row)
    last = len(row) - _TOGETHER
    firsts = sorted({*range(0, last + 1, _TOGETHER), last})
    return [_packed(row[first : first + _TOGETHER]) for first in firsts]


def _packed(four: Sequence[tir.BufferStore]) -> tir.Stmt:
    vectors = [store.value.value.args[0].a.a for store in four]
    value = tir.call_pure_extern(f"uint8x{_LANES * _TOGETHER}", _PACKED, *vectors)
    first = four[0].indices[-1].base
    place = tir.Ramp(first, tir.const(1, first.dtype), _LANES * _TOGETHER)
    store = tir.BufferStore(four[0].buffer, value, [place])
    text = tir.StringImm(_TEXT)
    return tir.AttrStmt(tir.const(0, "int32"), "pragma_import_llvm", text, store)


def _is_of_bytes(statement: tir.Stmt | None) -> bool:
    """Tell whether a statement stores a vector of the op's results."""
    if not isinstance(statement, tir.BufferStore) or len(statement.indices) != 1:
        return False
    (place,), value = statement.indices, statement.value
    if not isinstance(place, tir.Ramp) or str(value.dtype) != f"uint8x{_LANES}":
        return False
    bits = value.value if isinstance(value, tir.Cast) else None
    if not isinstance(bits, tir.Call) or bits.op.name != "tir.reinterpret":
        return False
    # `rounded_bytes` clips to positive numbers, of which nothing says that they are small.
    within = bits.args[0]
    return isinstance(within, tir.Min) and hidden_number(within.b) == -ROUNDING_SHIFT


def _follows(
    store: tir.BufferStore, other: tir.BufferStore, names: Mapping[tir.Var, tir.PrimExpr]
) -> bool:
    """Tell whether one vector is stored right behind another."""
    distance = other.indices[0].base - store.indices[0].base
    is_next = tvm.arith.Analyzer().can_prove_equal(without_names(distance, names), _LANES)
    return other.buffer.data.same_as(store.buffer.data) and bool(is_next)
