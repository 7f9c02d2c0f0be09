"""Extents of 64 bits -> of 32 bits, in the types of inputs and in attributes that say sizes.

    broadcast_to(%x, shape=[2i64, 3i64])  ==>  broadcast_to(%x, shape=[2, 3])

Importers make such ones of tensors of int64. TVM computes with extents in the kernels, and what is
of both kinds has 64 bits: a mean of int32 becomes one of int64, and its reader refuses it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relay

from heteroplace.relay.axes.shapes import with_attributes
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import function_pass, is_dataflow, post_order, rebuild

_WIDE, _NARROW = "int64", "int32"
_LARGEST = 2**31 - 1
_TAKEN_AS_NUMBERS = frozenset({"strided_slice", "nn.pad"})
"""Ops from whose attributes TVM makes no extents; as they are they keep the digests of tasks."""
_PLAIN = ("bool", "int", "double", "DataType", "str", "runtime.String")
"""Types of attributes that hold no extent."""


def NarrowExtents() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass; what does not fit in 32 bits stays, and so does control flow."""

    def run(function: relay.Function) -> relay.Function:
        return _Narrowing().function(function) if is_dataflow(function) else function

    return function_pass("NarrowExtents", run)


class _Narrowing:
    """One walk over a function and those within it."""

    def __init__(self) -> None:
        self._mapped: ExprMap[relay.Expr] = ExprMap()
        self._names: dict[str, list[str]] = {}

    def function(self, old: relay.Function) -> relay.Function:
        """Return a function with narrow extents; itself if it has no others."""
        nodes = [*old.params, *post_order(old.body)]
        rebuild(nodes, self._mapped, self._rewritten, keeps_unchanged=True)
        params, body = [self._mapped[each] for each in old.params], self._mapped[old.body]
        if all(map(relay.Expr.same_as, [*old.params, old.body], [*params, body])):
            return old
        return relay.Function(params, body, None, old.type_params, old.attrs, old.span)

    def _rewritten(self, old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if isinstance(old, relay.Function):
            return self.function(old)
        if isinstance(old, relay.Var):
            type_ = old.checked_type
            return relay.Var(old.name_hint, _narrow(type_), old.span) if _is_wide(type_) else old
        if not isinstance(old, relay.Call):
            return new
        changed = self._changed(old) if isinstance(old.op, tvm.ir.Op) else {}
        if changed:
            return with_attributes(new, new.args, **changed)
        op = self._mapped[old.op]
        if new.same_as(old) and op.same_as(old.op):
            return old
        # Types with which it was called before are no longer its.
        return relay.Call(op, new.args, new.attrs, None, new.span)

    def _changed(self, call: relay.Call) -> dict[str, Any]:
        """Attributes of a call that have wide extents, as narrow ones."""
        name, attrs = call.op.name, call.attrs
        if attrs is None or name in _TAKEN_AS_NUMBERS or isinstance(attrs, tvm.ir.attrs.DictAttrs):
            return {}
        if name not in self._names:
            self._names[name] = _attributes_of_extents(attrs)
        values = {each: attrs[each] for each in self._names[name]}
        return {each: _narrow(value) for each, value in values.items() if _is_wide(value)}


def _attributes_of_extents(attrs: tvm.ir.Attrs) -> list[str]:
    """Names of attributes that can hold extents."""
    infos = attrs.list_field_info() if isinstance(attrs, tvm.ir.Attrs) else []
    kinds = {str(info.name): str(info.type_info).partition(",")[0] for info in infos}
    return [name for name, kind in kinds.items() if kind not in _PLAIN]


def _is_wide(value: Any) -> bool:
    """Say whether an attribute or a type has a wide extent that fits in a narrow one."""
    if isinstance(value, relay.TupleType):
        return any(map(_is_wide, value.fields))
    if isinstance(value, relay.TensorType):
        return _is_wide(value.shape)
    if isinstance(value, tvm.ir.Array):
        return any(map(_is_wide, value[:]))
    if not isinstance(value, tvm.tir.IntImm) or value.dtype != _WIDE:
        return False
    return bool(-_LARGEST <= value.value <= _LARGEST)


def _narrow(value: Any) -> Any:
    """The same attribute or type with narrow extents."""
    if isinstance(value, relay.TupleType):
        return relay.TupleType([_narrow(field) for field in value.fields])
    if isinstance(value, relay.TensorType):
        return relay.TensorType(_narrow(value.shape), value.dtype)
    if isinstance(value, tvm.ir.Array):
        return [_narrow(each) for each in value[:]]
    return tvm.tir.IntImm(_NARROW, value.value) if _is_wide(value) else value
