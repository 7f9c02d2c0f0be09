"""Forms of which TVM's simplifier makes something else -> forms that it leaves alone.

Of a x^2 + b xy + c y^2 SimplifyExpr makes a (x + py)(x + qy), with p and q cut to the type of x, of
the first number of each constant, and taken for one where they are nearly so. Where all of an
operand are 0 or 1 it puts a scalar in its place, which `bias_add` and `prelu` do not take. Of
%a + %a, where %a is made by a product, it makes a function with free variables (InternalError).

    add(add(%a, %b), %c), of squares and a product  ==>  subtract(add(%a, %b), negative(%c))
    nn.bias_add(%x, zeros(shape=[4]))               ==>  nn.bias_add(%x, constant)
    add(%a, %a)                                     ==>  multiply(%a, 2)

TVM's kernel of a leaky relu whose slope is 0 has 0 in place of %x * 0, which loses NaN.

    nn.leaky_relu(%x, alpha=0)  ==>  where(greater(%x, 0), %x, multiply(%x, 0))
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relay

from heteroplace.relay.expressions import (
    function_pass,
    is_dataflow,
    is_op_call,
    op_name,
    rebuilt,
    static_shape,
)
from heteroplace.relay.tasks.spans import with_span

_OPS = ("add", "nn.bias_add", "nn.leaky_relu", "nn.prelu")
_FILLS = {"zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1}
_NUM_TERMS = 3
_Factors = frozenset[relay.Expr]


def KeptForms() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass, which goes before SimplifyExpr."""

    def run(function: relay.Function) -> relay.Function:
        return rebuilt(function, _kept, ops=_OPS) if is_dataflow(function) else function

    return function_pass("KeptForms", run, ops=_OPS)


def DoublesAsProducts() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass, which goes right before SimplifyExpr: EliminateCommonSubexpr makes one value
    of the two operands of a sum that are alike, as of the gradient of a square.

    2a is a + a to the bit: exact in floats, unless it is infinite in both; wrapped in integers.
    """

    def run(function: relay.Function) -> relay.Function:
        return rebuilt(function, _doubled, ops=("add",)) if is_dataflow(function) else function

    return function_pass("DoublesAsProducts", run, ops=("add",))


def _doubled(old: relay.Call, new: relay.Call) -> relay.Expr:
    first, second = new.args
    dtype = str(old.checked_type.dtype)
    if not first.same_as(second) or dtype == "bool":
        return new
    return with_span(relay.multiply(first, relay.const(2, dtype)), {first}, old.span)


def _kept(old: relay.Call, new: relay.Call) -> relay.Expr:
    if is_op_call(old, "add"):
        return _as_difference(old, new) if _is_binomial(old) else new
    if is_op_call(old, "nn.leaky_relu"):
        return new if old.attrs.alpha else _with_slope_zero(old, new)
    value = _FILLS.get(op_name(new.args[1]) or "")
    if value is None:
        return new
    type_ = old.args[1].checked_type
    filled = relay.const(np.full(static_shape(type_), value, type_.dtype))
    return relay.Call(new.op, [new.args[0], filled], new.attrs, new.type_args, new.span)


def _with_slope_zero(old: relay.Call, new: relay.Call) -> relay.Expr:
    value, zero = new.args[0], relay.const(0, str(old.checked_type.dtype))
    chosen = relay.where(relay.greater(value, zero), value, relay.multiply(value, zero))
    return with_span(chosen, {value}, old.span)


def _as_difference(old: relay.Call, new: relay.Call) -> relay.Expr:
    """The same number, of floats too: p - (-q)."""
    first, second = new.args
    dtype = str(old.checked_type.dtype)
    if dtype.startswith("uint"):
        less = relay.subtract(relay.const(0, dtype), second)
    else:
        less = relay.negative(second)
    return with_span(relay.subtract(first, less), {first, second}, old.span)


def _is_binomial(call: relay.Call) -> bool:
    """Whether three terms are the squares of two values, and their product, each times anything."""
    terms = _terms(call, _NUM_TERMS)
    if terms is None:
        return False
    factors = [_factors(term) for term in terms]
    squares = [each for each in factors if len(each) == 1]
    products = [each for each in factors if len(each) == 2]
    return len(squares) == 2 and products == [squares[0] | squares[1]]


def _terms(expr: relay.Expr, most: int) -> list[relay.Expr] | None:
    """The terms of a sum, if there are just so many."""
    left: list[relay.Expr] = [expr]
    terms: list[relay.Expr] = []
    while left:
        value = left.pop()
        if is_op_call(value, "add") and len(left) + len(terms) + 2 <= most:
            left.extend(value.args)
        else:
            terms.append(value)
    return terms if len(terms) == most else None


def _factors(term: relay.Expr) -> _Factors:
    """Which values a term multiplies, without constants; of a square one."""
    if is_op_call(term, "power"):
        return frozenset(term.args[:1])
    if not is_op_call(term, "multiply"):
        return frozenset()
    has_constant = any(isinstance(each, relay.Constant) for each in term.args)
    factors: set[relay.Expr] = set()
    for each in term.args:
        values = [each]
        if is_op_call(each, "power"):
            values = [each.args[0]]
        elif is_op_call(each, "multiply"):
            is_scaled = has_constant or any(isinstance(one, relay.Constant) for one in each.args)
            values = list(each.args) if is_scaled else values
        factors.update(value for value in values if not isinstance(value, relay.Constant))
    return frozenset(factors)
