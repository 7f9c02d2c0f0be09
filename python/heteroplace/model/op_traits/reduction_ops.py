"""Records of the ops that work along axes: reductions, running sums, softmax and norms."""

from __future__ import annotations

from heteroplace.model.op_traits.op_record import OpTraits

_OP = OpTraits()
_REDUCTION = OpTraits(parts="shape", cells="reduce")
_COSTED = _REDUCTION.of("", cost="compute")
_EXTREME = _COSTED.of("", bounds="elements", needs="same", support="sum")
_PLACE = _REDUCTION.of("", kind="index", bounds="index")
_ALONG_AXIS = OpTraits(cost="compute", parts="axis", cells="axis")
_NORM = OpTraits(cost="compute", parts="items", cells="items")

RECORDS = (
    _COSTED.of(
        "sum",
        bounds="sum",
        support="sum",
        positive="reduction",
        nonnegative="all",
        labels="sum",
        empty=0,
        linear_operands=1,
    ),
    _COSTED.of("mean", bounds="mean", needs="same", nonnegative="all"),
    _EXTREME.of("max", fold="max", positive="reduction", nonnegative="all"),
    _EXTREME.of("min", fold="min"),
    _COSTED.of("prod", empty=1),
    _COSTED.of("variance", labels="variance"),
    _REDUCTION.of("all any"),
    _PLACE.of("argmax", fold="max"),
    _PLACE.of("argmin", fold="min"),
    _OP.of("collapse_sum_like", cost="compute", linear_operands=1),
    _OP.of("collapse_sum_to", cost="compute"),
    _ALONG_AXIS.of("cumsum", bounds="sum", cells="accumulate"),
    _ALONG_AXIS.of("cumprod", cost=None, cells="accumulate"),
    _ALONG_AXIS.of("nn.softmax", bounds="unit", nonnegative="always"),
    _ALONG_AXIS.of("nn.fast_softmax nn.log_softmax"),
    _ALONG_AXIS.of("nn.l2_normalize", cost=None),
    _ALONG_AXIS.of("nn.lrn", cost=None, cells=None),
    _ALONG_AXIS.of("nn.layer_norm", cells="layer_norm"),
    _NORM.of("nn.instance_norm"),
    _NORM.of("nn.group_norm", divisors=("num_groups",)),
    _NORM.of("nn.batch_norm", cells="channels"),
)
