"""Ops that keep the layout of the model, where TVM's own rule gives them another and wrong one.

In blocks of channels, TVM's rule takes `topk` for an op of single elements, whatever its axis, lets
`argmax` and `argmin` over several axes count in the order of the blocks, halves blocks by a `split`
in equal parts, takes the mean of a `variance` for one of all lanes where it is of the first, and
sizes of a `strided_slice` for ends; and of axes that are left of a map, such as NCH of NCHW, a pool
behind them cannot make the NCW that it knows, and nothing can be made of HW: wrong numbers, or the
end of the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm.ir import Op
from tvm.relay.transform.infer_layout_utils import InferCorrectLayoutOutput

_ATTRIBUTE = "FInferCorrectLayout"
_KEY = "heteroplace_layout_rules"
_LEVEL = 11
"""Above that of TVM's own."""
_MAP_RANK = 3
"""Of the smallest map, NCW."""
_CHANNELS = 1
"""Their axis, where they come in blocks."""


def _sorts(attrs: Any, rank: int) -> bool:
    return True


def _leaves_a_map(attrs: Any, rank: int) -> bool:
    """Tell whether so many axes are left that the result could be a map again."""
    if attrs.exclude:
        return True
    return not attrs.keepdims and attrs.axis is not None and rank - len(attrs.axis) >= _MAP_RANK


def _counts(attrs: Any, rank: int) -> bool:
    is_of_one_axis = attrs.axis is not None and len(attrs.axis) == 1
    return not is_of_one_axis or _leaves_a_map(attrs, rank)


def _squeezes_a_map(attrs: Any, rank: int) -> bool:
    if attrs.axis is None or rank - len(attrs.axis) >= _MAP_RANK:
        return True
    return _CHANNELS in {int(axis) % rank for axis in attrs.axis}


def _is_of_means(attrs: Any, rank: int) -> bool:
    return True


def _has_sizes(attrs: Any, rank: int) -> bool:
    return str(attrs.slice_mode) == "size"


def _cuts_in_equal_parts(attrs: Any, rank: int) -> bool:
    return isinstance(attrs.indices_or_sections, tvm.tir.IntImm)


_KEEPING: dict[str, Callable[[Any, int], bool]] = {
    "topk": _sorts,
    "argmax": _counts,
    "argmin": _counts,
    "split": _cuts_in_equal_parts,
    "squeeze": _squeezes_a_map,
    "variance": _is_of_means,
    "strided_slice": _has_sizes,
    **dict.fromkeys(("sum", "mean", "max", "min", "prod", "all", "any"), _leaves_a_map),
}
"""Op -> whether one of these attributes, of an operand of so many axes, keeps the layout."""


def register_layout_rules() -> None:
    """Put them before TVM's; doing it again changes nothing."""
    # TVM refuses a second rule of one level, and does not say what it has.
    if tvm.get_global_func(_KEY, allow_missing=True) is not None:
        return
    for name, keeps in _KEEPING.items():
        rule = _rule(keeps, Op.get(name).get_attr(_ATTRIBUTE))
        tvm.ir.register_op_attr(name, _ATTRIBUTE, rule, _LEVEL)
    tvm.register_func(_KEY, register_layout_rules)


def _rule(
    keeps: Callable[[Any, int], bool], stock: Callable[..., Any] | None
) -> Callable[..., Any]:
    """Return a rule by which an op has no layout but its own where `keeps` says so, or where TVM
    has no rule (`any`)."""

    def infer(attrs: Any, new_layouts: Any, old_layouts: Any, old_types: Any) -> Any:
        if stock is not None and not keeps(attrs, len(old_types[0].shape)):
            return stock(attrs, new_layouts, old_layouts, old_types)
        unknown = tvm.tir.layout("__undef__")
        return InferCorrectLayoutOutput([unknown], [unknown], attrs)

    return infer
