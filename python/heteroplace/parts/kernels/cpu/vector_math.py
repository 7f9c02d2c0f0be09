"""Lowered kernels for CPUs -> the same with exp, tanh, erf and sigmoid of floats as polynomials.

TVM calls the C library for each element, though the loop around is one over vectors. Here they are
functions in LLVM's text that are put into their callers, without a branch and for as many lanes as
a vector has (`relay/llvm_text.py`):

    exp(x)      2^n * p(x - n ln 2), n = round(x / ln 2), in two factors so that neither overflows
    tanh(x)     x p(x^2) / q(x^2), of x within +-9
    erf(x)      x p(x^2) / q(x^2), of x within +-4
    sigmoid(x)  1 / (1 + e) or e / (1 + e), e = exp(-|x|)

Over all numbers of 32 bits exp is within 2 and sigmoid within 3 units in the last place, tanh
and erf within 1e-6 of the value. NaN stays NaN; infinities, zeros and denormals come out right.
A softmax has 0 instead of exp(x) where that is no normal number, from -87.3 on: of masks of -100,
as in windows that are shifted, it would have denormals, and products of these take a hundred times
as long.
Other types, and targets other than CPUs, stay as they are.

Not as expressions of TIR: of names for values TVM's simplifier makes the values again in many
places, and so much of each function inside of another one that compiling three takes minutes.

Source: Moshier, Cephes mathematical library, `expf`; the rational functions are those of Eigen
(`generic_fast_tanh_float`) and of its erf, minimax fits by sollya.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce

import numpy as np
import tvm
from tvm import tir

from heteroplace.relay.llvm_text import LlvmFunction, Name
from heteroplace.tir.lowered_functions import with_functions

VECTOR_ERF = "tir.heteroplace_erf"
"""Stands for `tir.erf` in schedules. TVM computes that one number at a time, also in vectorized
loops."""

_TYPE = "float32"
_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
"""Their sum is ln 2; products of the first with small whole numbers are exact."""
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_EXP_LEAST, _EXP_MOST = -104.0, 89.0
"""Beyond, exp is 0 and infinite in 32 bits."""
_EXP_OR_ZERO, _MIN_OF_SOFTMAX = "exp_or_zero", -87.33
"""Just above the logarithm of the least normal number. A quotient by the sum of a row of n numbers
is no normal one only within log(n) of it."""
_MANTISSA_BITS, _EXPONENT_BIAS = 23, 127
_SIGN_BIT = -(2**31)
_NO_FRACTION = 1.5 * 2**_MANTISSA_BITS
"""A sum with it is rounded to a whole number."""
_NO_FRACTION_BITS = 0x4B400000
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


def vector_math(functions: tvm.IRModule, *, is_softmax: bool = False) -> tvm.IRModule:
    """Return the kernels with these functions replaced.

    Parameters
    ----------
    functions
        Lowered functions of one kernel for a CPU; they are not changed.
    is_softmax
        Whether it is one: of differences from the largest, exp may be 0 where it is next to it.
    """
    return with_functions(functions, partial(_rewritten, is_softmax=is_softmax))


def _rewritten(function: tir.PrimFunc, *, is_softmax: bool) -> tir.PrimFunc:
    used: dict[str, str] = {}
    """Text of each function that is called, by name."""

    def replacement(call: tir.Call) -> tir.PrimExpr | None:
        called = str(getattr(call.op, "name", ""))
        op = "erf" if called == VECTOR_ERF else called.removeprefix("tir.")
        kind = tvm.DataType(str(call.dtype))
        if op not in _FUNCTIONS or str(call.dtype).partition("x")[0] != _TYPE:
            return None
        op = _EXP_OR_ZERO if is_softmax and op == "exp" else op
        name = f"heteroplace_{op}_{call.dtype}"
        used[name] = _text(op, name, kind.lanes)
        return tir.call_pure_extern(call.dtype, name, *call.args)

    body = tir.stmt_functor.ir_transform(function.body, None, replacement, ["tir.Call"])
    for text in used.values():
        body = tir.AttrStmt(tir.const(0, "int32"), "pragma_import_llvm", tir.StringImm(text), body)
    return function.with_body(body) if used else function


def _text(op: str, name: str, lanes: int) -> str:
    function = LlvmFunction(name, lanes)
    return function.returning(_FUNCTIONS[op](function, function.argument))


def _exp(f: LlvmFunction, x: Name) -> Name:
    return _exp_within(f, _within(f, x, _EXP_LEAST, _EXP_MOST))


def _exp_or_zero(f: LlvmFunction, x: Name) -> Name:
    """Of an x of at most 0, or NaN."""
    # TVM tells LLVM that there are no NaNs, so LLVM may turn a comparison of floats around: compare
    # bits. Those of negative numbers grow from -0 to -infinity, and those of NaNs are above.
    above_least = f.integers("sub", f.bits(x), _signed(_bits(_MIN_OF_SOFTMAX) + 1))
    num_below = _bits(-math.inf) - _bits(_MIN_OF_SOFTMAX)
    # 2^-127 has the bits of 0, so nothing slow is multiplied.
    value, exponent = _mantissa(f, _at_least(f, x, -_EXPONENT_BIAS * math.log(2)))
    value = f.product(value, _power(f, exponent))
    return f.select(f.integer_below(above_least, num_below), f.number(0), value)


def _bits(number: float) -> int:
    return int(np.float32(number).view(np.uint32))


def _signed(bits: int) -> int:
    return bits - 2**32 if bits >= 2**31 else bits


def _exp_within(f: LlvmFunction, x: Name) -> Name:
    """Of an x that is no number, or for which exp is neither 0 nor infinite, or just so."""
    value, exponent = _mantissa(f, x)
    # By a power of 2 that may not be a normal number: by two of about half.
    half = f.integers("ashr", exponent, 1)
    for each in (half, f.integers("sub", exponent, half)):
        value = f.product(value, _power(f, each))
    return value


def _mantissa(f: LlvmFunction, x: Name) -> tuple[Name, Name]:
    """Return exp(x) / 2^n, between 0.7 and 1.5, and n, a whole number of 32 bits."""
    # The nearest whole number of x / ln 2 is in the last bits of a sum that has no bits below 1.
    shifted = f.fma(x, f.number(_LOG2_E), f.number(_NO_FRACTION))
    minus = f.difference(f.number(_NO_FRACTION), shifted)
    rest = f.fma(minus, f.number(_LN2_LOW), f.fma(minus, f.number(_LN2_HIGH), x))
    value = f.fma(f.product(_polynomial(f, _EXP, rest), rest), rest, rest)
    value = f.sum(value, f.number(1))
    return value, f.integers("sub", f.bits(shifted), _NO_FRACTION_BITS)


def _power(f: LlvmFunction, exponent: Name) -> Name:
    """Return 2^n of a whole number n from -127, for which it is 0, to 127."""
    biased = f.integers("add", exponent, _EXPONENT_BIAS)
    return f.of_bits(f.integers("shl", biased, _MANTISSA_BITS))


def _sigmoid(f: LlvmFunction, x: Name) -> Name:
    below = f.of_bits(f.integers("or", f.bits(x), _SIGN_BIT))
    e = _exp_within(f, _at_least(f, below, _EXP_LEAST))
    # Of NaN neither side of a comparison holds, and the second one has it.
    above = f.select(f.compare("olt", x, f.number(0)), e, f.number(1))
    return f.quotient(above, f.sum(f.number(1), e))


def _tanh(f: LlvmFunction, x: Name) -> Name:
    return _rational(f, _within(f, x, -_TANH_MOST, _TANH_MOST), _TANH_P, _TANH_Q)


def _erf(f: LlvmFunction, x: Name) -> Name:
    return _rational(f, _within(f, x, -_ERF_MOST, _ERF_MOST), _ERF_P, _ERF_Q)


def _rational(f: LlvmFunction, x: Name, above: Sequence[float], below: Sequence[float]) -> Name:
    """x p(x^2) / q(x^2); the ratio first: of a denormal x nothing is lost then."""
    square = f.product(x, x)
    return f.product(x, f.quotient(_polynomial(f, above, square), _polynomial(f, below, square)))


def _polynomial(f: LlvmFunction, coefficients: Sequence[float], x: Name) -> Name:
    """By Horner's rule; the coefficient of the highest power comes first."""
    first, *others = map(f.number, coefficients)
    return reduce(lambda sum_, each: f.fma(sum_, x, each), others, first)


def _within(f: LlvmFunction, x: Name, least: float, most: float) -> Name:
    """Clip; a NaN is neither below nor above, and stays."""
    below = f.select(f.compare("ogt", x, f.number(most)), f.number(most), x)
    return _at_least(f, below, least)


def _at_least(f: LlvmFunction, x: Name, least: float) -> Name:
    return f.select(f.compare("olt", x, f.number(least)), f.number(least), x)


_FUNCTIONS: dict[str, Callable[[LlvmFunction, Name], Name]] = {
    "exp": _exp,
    _EXP_OR_ZERO: _exp_or_zero,
    "tanh": _tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
}
