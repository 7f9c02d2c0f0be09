"""Keep floating-point arithmetic as IEEE 754 has it through TVM's simplifier of lowered code.

The simplifier takes floats for real numbers. So NaN, infinity and rounding are lost:

    x * 0       ==>  0                    NaN where x is NaN or infinite
    0 / x       ==>  0                    NaN where x is NaN or 0
    x / c       ==>  x * (1 / c)          1 / c overflows or vanishes where c is extreme
    x - x       ==>  0                    NaN where x is NaN or infinite
    (x + y) - y ==>  x                    the sum is rounded
    not x < y   ==>  y <= x               false where one is NaN
    x < y or x >= y, and conditions within branches of others     likewise

`ExactFloats` runs before the first simplifier and writes them in a form that it does not look
through. LLVM and CUDA make the same instructions of both forms:

    x * 0       ==>  x * hidden(0)        `hidden` is the bits of the bits of a number
    x - y       ==>  x - y * hidden(1)    where both sides read something in common
    x < y       ==>  cast(x < y, "int8") != 0

TVM also tells LLVM that there are no NaNs, so some forms avoid LLVM's own rules:

    x - x       ==>  abs(x) * hidden(0)
    x != x      ==>  isnan(x)             and x == x, x <= x, x >= x  ==>  not isnan(x)
    x != y      ==>  x != y or isnan(x + y)
    not x < y   ==>  not (x < y and not isnan(x) and not isnan(y))

LLVM may also invert a comparison of single numbers and swap what depends on it. Then
where(x < y, p, q) is p if x is NaN. So `order_comparisons` gives all such comparisons on a CPU the
last two forms, once a kernel is lowered. Vector instructions compare NaN correctly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tvm
from tvm import tir

from heteroplace.relay.opt_level import inner_context
from heteroplace.tir.keep_nan import hidden, reads_buffer
from heteroplace.tir.lowered_functions import with_functions

_ADD_LOWER_PASS = "tir.add_lower_pass"
_BEFORE_ALL = 0
"""TVM's phase of lowering before which nothing is simplified."""
_COMPARISONS = (tir.LT, tir.LE, tir.GT, tir.GE, tir.EQ, tir.NE)
_COMPARISON_KINDS = [f"tir.{kind.__name__}" for kind in _COMPARISONS]
_ARITHMETIC = (tir.Mul, tir.Div, tir.Sub)
_ARITHMETIC_KINDS = ["tir.Mul", "tir.Div", "tir.Sub"]
_INFINITIES = {
    "float16": 0x7C00,
    "bfloat16": 0x7F80,
    "float32": 0x7F800000,
    "float64": 0x7FF0 << 48,
}
"""The bits of infinity; those of a NaN are larger."""
_LIMITS = {"float16": np.finfo(np.float16), "float64": np.finfo(np.float64)}


@contextmanager
def exact_floats() -> Iterator[None]:
    """Let TVM lower kernels with `ExactFloats` as the first pass."""
    others = dict(tvm.transform.PassContext.current().config.items()).get(_ADD_LOWER_PASS, [])
    with inner_context({_ADD_LOWER_PASS: [[_BEFORE_ALL, ExactFloats()], *others]}):
        yield


def ExactFloats() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass over lowered functions, which goes before the first simplifier."""

    def run(
        function: tir.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tir.PrimFunc:
        body = tir.stmt_functor.ir_transform(function.body, None, _in_store, ["tir.BufferStore"])
        return function if body.same_as(function.body) else function.with_body(body)

    return tir.transform.prim_func_pass(run, opt_level=0, name="ExactFloats")


def order_comparisons(functions: tvm.IRModule) -> tvm.IRModule:
    """Return CPU kernels in which `!=` alone holds for NaN, in comparisons of single numbers.

    A reduction such as `argmax` keeps its comparisons with the best value so far. Tests for NaN
    would make it 1.7x slower, and its result for NaN depends on where the NaN is.

    Parameters
    ----------
    functions
        Lowered functions of one kernel; they are not changed.
    """
    return with_functions(functions, _with_order)


def _with_order(function: tir.PrimFunc) -> tir.PrimFunc:
    comparisons: list[tir.PrimExpr] = []

    def note(node: tir.PrimExpr) -> None:
        if _compares_single_floats(node):
            comparisons.append(node)

    tir.stmt_functor.ir_transform(function.body, None, note, _COMPARISON_KINDS)
    if not comparisons:  # as in most kernels, and all else takes longer
        return function
    reduced: dict[tir.Var, tir.Buffer] = {}

    def is_reduction(store: tir.BufferStore) -> bool:
        return reads_buffer(store.value, store.buffer)

    def note_reduced(store: tir.BufferStore) -> None:
        if is_reduction(store):
            reduced[store.buffer.data] = store.buffer

    def in_reduction(node: tir.PrimExpr) -> tir.PrimExpr | None:
        reads_best = any(reads_buffer(node, buffer) for buffer in reduced.values())
        return None if reads_best else _ordered(node)

    def enter(node: tvm.Object) -> tvm.Object | None:
        if not isinstance(node, tir.BufferStore) or not is_reduction(node):
            return None
        return tir.stmt_functor.ir_transform(node, None, in_reduction, _COMPARISON_KINDS)

    def leave(node: tvm.Object) -> tvm.Object | None:
        return _ordered(node) if isinstance(node, _COMPARISONS) else None

    tir.stmt_functor.ir_transform(function.body, None, note_reduced, ["tir.BufferStore"])
    kinds = ["tir.BufferStore", *_COMPARISON_KINDS]
    return function.with_body(tir.stmt_functor.ir_transform(function.body, enter, leave, kinds))


def _compares_single_floats(node: tir.PrimExpr) -> bool:
    return _is_float(node.a) and "x" not in str(node.a.dtype)


def _ordered(node: tir.PrimExpr) -> tir.PrimExpr | None:
    """Return a comparison of single floats that tests for NaN; None: it compares others."""
    if not _compares_single_floats(node):
        return None
    names: list[tuple[tir.Var, tir.PrimExpr]] = []

    def named(value: tir.PrimExpr) -> tir.PrimExpr:
        """A computed value is written once."""
        if isinstance(value, (tir.FloatImm, tir.Var, tir.BufferLoad)):
            return value
        names.append((tir.Var("side", value.dtype), value))
        return names[-1][0]

    condition = _exact_comparison(type(node)(named(node.a), named(node.b)), is_negated=True)
    for name, value in reversed(names):
        condition = tir.Let(name, value, condition)
    return condition


def _in_store(store: tir.BufferStore) -> tir.Stmt | None:
    kinds = []
    nodes = _nodes(store.value)
    if any(isinstance(node, _ARITHMETIC) and _is_float(node) for node in nodes):
        kinds += _ARITHMETIC_KINDS
    # LLVM may compare by the opposite condition and swap the results, as for `not`.
    is_negated = any(isinstance(node, tir.Not) for node in nodes)
    is_negated |= str(store.value.dtype) == "bool"
    if _has_inexact_comparisons(nodes, is_negated):
        kinds += _COMPARISON_KINDS
    if not kinds:
        return None

    def exact(node: tir.PrimExpr) -> tir.PrimExpr | None:
        if not _is_float(node.a):
            return None
        if isinstance(node, _COMPARISONS):
            return _exact_comparison(node, is_negated)
        return _exact_arithmetic(node)

    return tir.stmt_functor.ir_transform(store, None, exact, kinds)


def _has_inexact_comparisons(nodes: Sequence[object], is_negated: bool) -> bool:
    """Whether comparisons of floats may be simplified: one alone is not, unless as below."""
    comparisons = [node for node in nodes if isinstance(node, _COMPARISONS) and _is_float(node.a)]
    if len(comparisons) > 1 or is_negated:
        return bool(comparisons)
    return any(isinstance(node, tir.NE) or _is_same(node.a, node.b) for node in comparisons)


def _exact_arithmetic(node: tir.Mul | tir.Div | tir.Sub) -> tir.PrimExpr | None:
    """Return the form that stays; None: the node itself does."""
    if isinstance(node, tir.Mul):
        if _is_zero(node.a) or _is_zero(node.b):
            return tir.Mul(_hidden_zero(node.a), _hidden_zero(node.b))
        return None
    if isinstance(node, tir.Div):
        divisor = hidden(node.b) if _is_extreme(node.b) else node.b
        dividend = _hidden_zero(node.a)
        is_same = dividend.same_as(node.a) and divisor.same_as(node.b)
        return None if is_same else tir.Div(dividend, divisor)
    if _is_same(node.a, node.b):
        return tir.Mul(tir.abs(node.a), hidden(tir.FloatImm(node.dtype, 0.0)))
    if _sources(node.a) & _sources(node.b):
        one = hidden(tir.FloatImm(node.dtype, 1.0))
        return tir.Sub(node.a, tir.Mul(node.b, one))
    return None


def _exact_comparison(node: tir.PrimExpr, is_negated: bool) -> tir.PrimExpr:
    if _is_same(node.a, node.b):
        if isinstance(node, tir.NE):
            return _is_nan(node.a)
        if not isinstance(node, (tir.LT, tir.GT)):
            return tir.Not(_is_nan(node.a))
    if isinstance(node, tir.NE):
        return tir.Or(node, _is_nan(node.a + node.b))  # inf - inf is NaN, and they do differ
    if not is_negated:
        return tir.NE(tir.Cast("int8", node), tir.IntImm("int8", 0))
    ordered = node
    for value in (node.a, node.b):
        if not isinstance(value, tir.FloatImm):
            ordered = tir.And(ordered, tir.Not(_is_nan(value)))
    return ordered


def _is_nan(value: tir.PrimExpr) -> tir.PrimExpr:
    """Return a test of the bits: LLVM joins `tir.isnan`, which is x != x, with comparisons."""
    dtype = str(value.dtype)
    infinity, whole = _INFINITIES[dtype], dtype.replace("bfloat", "int").replace("float", "int")
    bits = tir.call_intrin(whole, "tir.reinterpret", value)
    magnitude = tir.bitwise_and(bits, tir.max_value(whole))
    return magnitude > tir.IntImm(whole, infinity)


def _is_float(value: tir.PrimExpr) -> bool:
    return "float" in str(value.dtype)


def _is_zero(value: tir.PrimExpr) -> bool:
    return isinstance(value, tir.FloatImm) and value.value == 0


def _hidden_zero(value: tir.PrimExpr) -> tir.PrimExpr:
    return hidden(value) if _is_zero(value) else value


def _is_extreme(value: tir.PrimExpr) -> bool:
    """Whether the reciprocal of a constant is not a normal number of its type."""
    if not isinstance(value, tir.FloatImm):
        return False
    limits = _LIMITS.get(str(value.dtype), np.finfo(np.float32))
    size = abs(value.value)
    return not 1 / float(limits.max) <= size <= 1 / float(limits.tiny)


def _is_same(first: tir.PrimExpr, second: tir.PrimExpr) -> bool:
    """Whether two values are the same expression once their indices are simplified."""
    if not _sources(first) & _sources(second):
        return False
    simplify = tvm.arith.Analyzer().simplify
    return bool(tvm.ir.structural_equal(simplify(first), simplify(second)))


def _sources(value: tir.PrimExpr) -> set[int]:
    """Identify the buffers, variables and constants that a value is made of."""
    names = set()
    for node in _nodes(value):
        if isinstance(node, tir.BufferLoad):
            names.add(node.buffer.data.__hash__())
        elif isinstance(node, tir.FloatImm):
            names.add(hash((str(node.dtype), node.value)))
        elif isinstance(node, tir.Var) and _is_float(node):
            names.add(node.__hash__())
    return names


def _nodes(value: tir.PrimExpr) -> list[object]:
    nodes: list[object] = []
    tir.stmt_functor.post_order_visit(value, nodes.append)
    return nodes
