"""Records of the ops that compute each element of the result from those at its place."""

from __future__ import annotations

from heteroplace.model.op_traits.op_record import OpTraits

_OP = OpTraits()
_ELEMENTWISE = OpTraits(cost="compute")
_UNARY = _ELEMENTWISE.of("", kind="unary")
_ROUNDING = _ELEMENTWISE.of("", kind="rounding", needs="same")
_ARITHMETIC = _ELEMENTWISE.of("", kind="arithmetic")
_DIVISION = OpTraits(kind="division", bounds="quotient")
_REMAINDER = OpTraits(kind="division", bounds="remainder")
_VECTOR = _ELEMENTWISE.of("", parts="shape", cells="channels", labels="vector")

RECORDS = (
    # Of one operand.
    _UNARY.of(
        "nn.relu",
        bounds="relu",
        needs="same",
        support="zero_at_zero",
        nonnegative="always",
        passes_scale=True,
    ),
    _UNARY.of("abs", bounds="abs", needs="same", support="zero_at_zero", nonnegative="always"),
    _UNARY.of("clip", bounds="clip", needs="same", positive="clip"),
    _UNARY.of("sigmoid", bounds="unit", nonnegative="always"),
    _UNARY.of("tanh erf", bounds="signed_unit", support="zero_at_zero"),
    _UNARY.of("exp", nonnegative="always"),
    _UNARY.of("negative", bounds="negative", needs="negative", support="zero_at_zero"),
    _ELEMENTWISE.of("nn.leaky_relu", kind="leaky", passes_scale=True, reads=(6,)),
    _ELEMENTWISE.of("sqrt", support="zero_at_zero", positive="first", nonnegative="always"),
    _ELEMENTWISE.of("sign", support="zero_at_zero", reads=(9,)),
    _ELEMENTWISE.of("log logical_not rsqrt"),
    _ELEMENTWISE.of("fast_erf", reads=(21,)),
    _ELEMENTWISE.of("fast_exp", reads=(18,)),
    _ELEMENTWISE.of("fast_tanh", reads=(19,)),
    _ROUNDING.of("ceil", bounds="ceil"),
    _ROUNDING.of("floor", bounds="floor"),
    _ROUNDING.of("round", bounds="round"),
    _ROUNDING.of("trunc", cost=None, bounds="trunc"),
    _ELEMENTWISE.of(
        "cast",
        flops="none",
        bounds="cast",
        needs="same",
        support="cast",
        zero="any",
        nonnegative="cast",
    ),
    _OP.of("isfinite", reads=(3,)),
    _OP.of("isinf", reads=(2,)),
    _OP.of("trilu", parts="place", cells="broadcast", labels="trilu"),
    # Of two or three operands.
    _ARITHMETIC.of(
        "add", bounds="add", needs="sum", positive="add", nonnegative="all", linear_operands=2
    ),
    _ARITHMETIC.of("subtract", bounds="subtract", needs="difference"),
    _ARITHMETIC.of(
        "multiply",
        bounds="multiply",
        needs="factors",
        cells="multiply",
        support="multiply",
        positive="all",
        nonnegative="all",
        zero="any",
    ),
    _ARITHMETIC.of("maximum", bounds="maximum", needs="every", positive="any", nonnegative="all"),
    _ARITHMETIC.of("minimum", bounds="minimum", needs="every"),
    _DIVISION.of("divide", cost="compute", support="divide", positive="all"),
    _DIVISION.of("floor_divide trunc_divide"),
    _REMAINDER.of("mod"),
    _REMAINDER.of("floor_mod trunc_mod", reads=(2, 2)),
    _ELEMENTWISE.of("power", kind="power"),
    _ELEMENTWISE.of("less", bounds="less"),
    _ELEMENTWISE.of("greater", bounds="greater"),
    _ELEMENTWISE.of("equal greater_equal less_equal logical_and logical_or not_equal"),
    _ELEMENTWISE.of(
        "where",
        flops="none",
        bounds="where",
        needs="branches",
        cells="where",
        support="where",
        nonnegative="branches",
        reads=(10,),
    ),
    _OP.of("sequence_mask", reads=(1, 10)),
    # With a vector along an axis.
    _VECTOR.of("nn.bias_add"),
    _VECTOR.of("nn.prelu", reads=(6, 1)),
)
