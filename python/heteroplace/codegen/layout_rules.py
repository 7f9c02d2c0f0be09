"""Ops that keep the layout of the model, where TVM's own rule gives them another and wrong one.

In blocks of channels, TVM's rule takes `topk` for an op of single elements, whatever its axis, lets
`argmax` and `argmin` over several axes count in the order of the blocks, and halves blocks by a
`split` in equal parts: wrong numbers, or the end of the compiler.
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


def _sorts(attrs: Any) -> bool:
    return True


def _counts_over_axes(attrs: Any) -> bool:
    return attrs.axis is None or len(attrs.axis) != 1 or bool(attrs.exclude)


def _cuts_in_equal_parts(attrs: Any) -> bool:
    return isinstance(attrs.indices_or_sections, tvm.tir.IntImm)


_KEEPING: dict[str, Callable[[Any], bool]] = {
    "topk": _sorts,
    "argmax": _counts_over_axes,
    "argmin": _counts_over_axes,
    "split": _cuts_in_equal_parts,
}
"""Op -> whether one of these attributes keeps the layout."""


def register_layout_rules() -> None:
    """Put them before TVM's; doing it again changes nothing."""
    # TVM refuses a second rule of one level, and does not say what it has.
    if tvm.get_global_func(_KEY, allow_missing=True) is not None:
        return
    for name, keeps in _KEEPING.items():
        rule = _rule(keeps, Op.get(name).get_attr(_ATTRIBUTE))
        tvm.ir.register_op_attr(name, _ATTRIBUTE, rule, _LEVEL)
    tvm.register_func(_KEY, register_layout_rules)


def _rule(keeps: Callable[[Any], bool], stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule by which an op has no layout but its own where `keeps` says so."""

    def infer(attrs: Any, new_layouts: Any, old_layouts: Any, old_types: Any) -> Any:
        if not keeps(attrs):
            return stock(attrs, new_layouts, old_layouts, old_types)
        unknown = tvm.tir.layout("__undef__")
        return InferCorrectLayoutOutput([unknown], [unknown], attrs)

    return infer
