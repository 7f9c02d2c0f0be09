"""Lowered kernels for CPUs -> the same with exp, tanh, erf and sigmoid of floats as polynomials.

TVM calls the C library for each element, though the loop around is one over vectors. Here they are
sums and products without a branch, which run as fast as vectors do:

    exp(x)      2^n * p(x - n ln 2), n = round(x / ln 2), in two factors so that neither overflows
    tanh(x)     x p(x^2) / q(x^2), of x within +-9
    erf(x)      x p(x^2) / q(x^2), of x within +-4
    sigmoid(x)  1 / (1 + e) or e / (1 + e), e = exp(-|x|)

Over all numbers of 32 bits exp is within 2 and sigmoid within 3 units in the last place, tanh
and erf within 1e-6 of the value. NaN stays NaN; infinities, zeros and denormals come out right.
Other types, and targets other than CPUs, stay as they are.

Source: Moshier, Cephes mathematical library, `expf`; the rational functions are those of Eigen
(`generic_fast_tanh_float`) and of its erf, minimax fits by sollya.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import tvm
from tvm import tir

_TYPE = "float32"
_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
"""Their sum is ln 2; products of the first with small whole numbers are exact."""
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_EXP_LEAST, _EXP_MOST = -104.0, 89.0
"""Beyond, exp is 0 and infinite in 32 bits."""
_MANTISSA_BITS, _EXPONENT_BIAS = 23, 127
_TANH_MOST = 9.0
_TANH_P = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_Q = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
_ERF_MOST = 4.0
_ERF_P = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_Q = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip


def vector_math(functions: tvm.IRModule) -> tvm.IRModule:
    """Return the kernels with these functions replaced.

    Parameters
    ----------
    functions
        Lowered functions of one kernel for a CPU; they are not changed.
    """
    rewritten = {name: _rewritten(each) for name, each in functions.functions.items()}
    if all(rewritten[name].same_as(each) for name, each in functions.functions.items()):
        return functions
    return tvm.IRModule(rewritten, attrs=functions.attrs)


def _rewritten(function: tvm.ir.BaseFunc) -> tvm.ir.BaseFunc:
    if not isinstance(function, tir.PrimFunc):
        return function
    body = tir.stmt_functor.ir_transform(function.body, None, _replacement, ["tir.Call"])
    return function if body.same_as(function.body) else function.with_body(body)


def _replacement(call: tir.Call) -> tir.PrimExpr | None:
    """What stands for a call; None: it stays."""
    build = _FUNCTIONS.get(getattr(call.op, "name", ""))
    if build is None or str(call.dtype).partition("x")[0] != _TYPE:
        return None
    (argument,) = call.args
    return _let("x", argument, build)


def _exp(x: tir.PrimExpr) -> tir.PrimExpr:
    return _let("x", _within(x, _EXP_LEAST, _EXP_MOST), _exp_within)


def _exp_within(x: tir.PrimExpr) -> tir.PrimExpr:
    """Of numbers for which it is neither 0 nor infinite, or hardly so."""

    def scaled(whole: tir.PrimExpr) -> tir.PrimExpr:
        rest = x - whole * _constant(_LN2_HIGH, x) - whole * _constant(_LN2_LOW, x)
        return _let("rest", rest, lambda rest: _times_power(_exp_near_0(rest), whole))

    return _let("whole", tir.floor(x * _constant(_LOG2_E, x) + _constant(0.5, x)), scaled)


def _exp_near_0(x: tir.PrimExpr) -> tir.PrimExpr:
    return _polynomial(_EXP, x) * x * x + x + _constant(1, x)


def _times_power(value: tir.PrimExpr, exponent: tir.PrimExpr) -> tir.PrimExpr:
    """Multiply by a power of 2 that may not be a normal number: by two of about half."""
    kind = tvm.DataType(str(exponent.dtype))
    integers = "int32" if kind.lanes == 1 else f"int32x{kind.lanes}"

    def power(exponent: tir.PrimExpr) -> tir.PrimExpr:
        bits = (exponent + _integer(_EXPONENT_BIAS, integers)) << _integer(_MANTISSA_BITS, integers)
        return tir.reinterpret(str(value.dtype), bits)

    def product(whole: tir.PrimExpr) -> tir.PrimExpr:
        half = whole >> _integer(1, integers)
        return _let("half", half, lambda half: value * power(half) * power(whole - half))

    return _let("exponent", tir.Cast(integers, exponent), product)


def _sigmoid(x: tir.PrimExpr) -> tir.PrimExpr:
    zero, one = _constant(0, x), _constant(1, x)

    def build(e: tir.PrimExpr) -> tir.PrimExpr:
        return tir.Select(tir.LT(x, zero), e, one) / (one + e)

    # Not of -|x|: of NaN neither side of a comparison holds, and the second one has it.
    return _let("e", _exp(tir.Select(tir.LT(x, zero), x, -x)), build)


def _tanh(x: tir.PrimExpr) -> tir.PrimExpr:
    return _let("x", _within(x, -_TANH_MOST, _TANH_MOST), _rational(_TANH_P, _TANH_Q))


def _erf(x: tir.PrimExpr) -> tir.PrimExpr:
    return _let("x", _within(x, -_ERF_MOST, _ERF_MOST), _rational(_ERF_P, _ERF_Q))


def _rational(
    above: Sequence[float], below: Sequence[float]
) -> Callable[[tir.PrimExpr], tir.PrimExpr]:
    """x p(x^2) / q(x^2)."""

    def build(x: tir.PrimExpr) -> tir.PrimExpr:
        def quotient(square: tir.PrimExpr) -> tir.PrimExpr:
            # Their ratio first: of a denormal x nothing is lost then.
            return x * (_polynomial(above, square) / _polynomial(below, square))

        return _let("square", x * x, quotient)

    return build


def _polynomial(coefficients: Sequence[float], x: tir.PrimExpr) -> tir.PrimExpr:
    """By Horner's rule; the coefficient of the highest power comes first."""
    first, *others = coefficients
    return reduce(lambda sum_, each: sum_ * x + _constant(each, x), others, _constant(first, x))


def _within(x: tir.PrimExpr, least: float, most: float) -> tir.PrimExpr:
    """Clip; a NaN is neither below nor above, and stays."""
    low, high = _constant(least, x), _constant(most, x)
    below = tir.Select(tir.GT(x, high), high, x)
    return _let("below", below, lambda below: tir.Select(tir.LT(below, low), low, below))


def _let(
    name: str, value: tir.PrimExpr, build: Callable[[tir.PrimExpr], tir.PrimExpr]
) -> tir.PrimExpr:
    """Name what is read several times."""
    variable = tir.Var(name, value.dtype)
    return tir.Let(variable, value, build(variable))


def _constant(value: float, like: tir.PrimExpr) -> tir.PrimExpr:
    """A constant with as many lanes as an expression."""
    lanes = tvm.DataType(str(like.dtype)).lanes
    scalar = tir.const(value, _TYPE)
    return scalar if lanes == 1 else tir.Broadcast(scalar, lanes)


def _integer(value: int, dtype: str) -> tir.PrimExpr:
    lanes = tvm.DataType(dtype).lanes
    scalar = tir.const(value, "int32")
    return scalar if lanes == 1 else tir.Broadcast(scalar, lanes)


_FUNCTIONS: dict[str, Callable[[tir.PrimExpr], tir.PrimExpr]] = {
    "tir.exp": _exp,
    "tir.tanh": _tanh,
    "tir.erf": _erf,
    "tir.sigmoid": _sigmoid,
}
