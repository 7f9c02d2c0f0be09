"""Lowered kernels -> the same in which the larger or smaller of two floats is NaN if either is.

TVM lowers max(a, b) to "a if a > b else b", which is b where a is NaN: of `nn.relu` and `clip` a
NaN comes out as a number (ONNX and onnxruntime: NaN), and what went wrong before is hidden.

    max(x, 0)  ==>  max(zero, x)                       on a CPU: one instruction, as max(x, 0)
    max(x, y)  ==>  let a = y in select(isnan(a), a, max(a, x))        on a CPU
    max(x, 0)  ==>  let a = x in select(0 > a, 0, a)                   elsewhere
    max(x, y)  ==>  let a = x in let b = y in select(isnan(a), a, select(a > b, a, b))

`zero` is a constant that TVM's simplifier does not know for one, since it would put it last again.
On a CPU only one side gets a name, that which holds fewer names: the simplifier follows a name to
what it stands for, wherever it is read, and took 6 s for a maximum of six tensors and 73 s for one
of seven. Elsewhere `max` is the function of CUDA, of which no NaN comes out; there a max or min
that holds `_MAX_NAMES` names stays.

Maxima and minima over several elements (max pools, `max`, `min`) stay as they are: there the second
form takes up to eight times as long. Whether a NaN comes out of those depends on where it stands.

Of two zeros of different sign either may come out, as of `max` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tvm
from tvm import tir

from heteroplace.tir.lowered_functions import with_nodes

_MAX_NAMES = 4
_BITS = "tir.reinterpret"
_Extreme: TypeAlias = "tir.Max | tir.Min"


def keep_nan(functions: tvm.IRModule, *, is_cpu: bool) -> tvm.IRModule:
    """Return the kernels with max and min of floats replaced, as the module's text shows.

    Parameters
    ----------
    functions
        Lowered functions of one kernel; they are not changed.
    is_cpu
        They are compiled by LLVM, whose code of max(a, b) is that of "a if a > b else b".
    """
    form = _in_order if is_cpu else _by_names

    def in_store(store: tir.BufferStore) -> tir.Stmt:
        rewrite = _of_floats(form, is_folded=reads_buffer(store.value, store.buffer))
        return tir.stmt_functor.ir_transform(store, None, rewrite, ["tir.Max", "tir.Min"])

    return with_nodes(functions, in_store, "tir.BufferStore")


def reads_buffer(value: tir.PrimExpr, buffer: tir.Buffer) -> bool:
    """Tell whether `value` reads a buffer. If it is stored there, this is a fold."""
    hits: list[bool] = []

    def look(node: object) -> None:
        if isinstance(node, tir.BufferLoad) and node.buffer.data.same_as(buffer.data):
            hits.append(True)

    tir.stmt_functor.post_order_visit(value, look)
    return bool(hits)


def _of_floats(
    form: Callable[[_Extreme], tir.PrimExpr | None], is_folded: bool
) -> Callable[[_Extreme], tir.PrimExpr | None]:
    """Return what gives the replacement of a max or min; None: it stays."""

    def replacement(value: _Extreme) -> tir.PrimExpr | None:
        if "float" not in str(value.dtype):
            return None  # Whole numbers have no NaN.
        is_hidden = hidden_number(value.a) is not None or hidden_number(value.b) is not None
        if is_hidden or (is_folded and not _is_number(value.b)):
            return None
        return form(value)

    return replacement


def _in_order(value: _Extreme) -> tir.PrimExpr:
    """Of two numbers max(a, b) is b if either is NaN."""
    if _is_number(value.b):
        return type(value)(hidden(value.b), value.a)
    chain, other = value.a, value.b
    if _num_names(chain) < _num_names(other):
        chain, other = other, chain
    a = tir.Var("a", value.dtype)
    return tir.Let(a, other, tir.Select(tir.isnan(a), a, type(value)(a, chain)))


def _by_names(value: _Extreme) -> tir.PrimExpr | None:
    beats = tir.GT if isinstance(value, tir.Max) else tir.LT
    if max(_num_names(value.a), _num_names(value.b)) >= _MAX_NAMES:
        return None
    # Each side once: it may hold branches, which no compiler would join again.
    a, b = tir.Var("a", value.dtype), tir.Var("b", value.dtype)
    if _is_number(value.b):
        return tir.Let(a, value.a, tir.Select(beats(value.b, a), value.b, a))
    # Not "a != a", which TVM's simplifier takes for false.
    chosen = tir.Select(tir.isnan(a), a, tir.Select(beats(a, b), a, b))
    return tir.Let(a, value.a, tir.Let(b, value.b, chosen))


def _num_names(value: tir.PrimExpr) -> int:
    """How many names an expression gives to values."""
    names: list[object] = []

    def look(node: object) -> None:
        if isinstance(node, tir.Let):
            names.append(node)

    tir.stmt_functor.post_order_visit(value, look)
    return len(names)


def hidden(number: tir.PrimExpr) -> tir.PrimExpr:
    """Return a constant, one or several equal ones, as the bits of its bits: it stays where it is
    put."""
    if isinstance(number, tir.Broadcast):
        return tir.Broadcast(hidden(number.value), number.lanes)
    # Not of a whole number: TVM takes the bits 0 for a null pointer.
    whole = number.dtype.replace("float", "int")
    return tir.call_intrin(number.dtype, _BITS, tir.call_intrin(whole, _BITS, number))


def hidden_number(value: tir.PrimExpr) -> float | None:
    """Return the number that `hidden` hides; None: `hidden` did not make the value."""
    if isinstance(value, tir.Broadcast):
        value = value.value
    for _ in range(2):
        if not isinstance(value, tir.Call) or getattr(value.op, "name", "") != _BITS:
            return None
        value = value.args[0]
    return float(value.value) if isinstance(value, tir.FloatImm) else None


def _is_number(value: tir.PrimExpr) -> bool:
    """Tell whether a value is a constant that is not NaN, also one of several equal ones."""
    if isinstance(value, tir.Broadcast):
        value = value.value
    return isinstance(value, tir.FloatImm) and value.value == value.value
