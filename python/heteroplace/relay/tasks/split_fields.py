"""Fields of a split -> slices, where each slice is fused with what reads it.

    %f = split(%x);  transpose(%f.0);  transpose(%f.1)
        ==>  transpose(strided_slice(%x));  transpose(strided_slice(%x))

FuseOps fuses no op with a field of a tuple, so that a kernel would copy all fields. Attention
splits queries, keys and values from one product, and transposes each.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.expr_map import ExprMap, ExprSet
from heteroplace.relay.expressions import (
    function_pass,
    is_injective,
    is_op_call,
    op_name,
    read_by,
    readers_of,
    rebuilt,
    spanned,
    static_shape,
)

_SPLIT = "split"


def FieldsAsSlices() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass, which goes before FuseOps."""

    def run(function: relay.Function) -> relay.Function:
        splits = _needless_splits(function)
        mapped: ExprMap[relay.Expr] = ExprMap()

        def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
            if not isinstance(old, relay.TupleGetItem) or old.tuple_value not in splits:
                return new
            split = old.tuple_value
            return spanned(_slice(split, old.index, mapped[split.args[0]]), split.span)

        return rebuilt(function, rewrite, mapped) if splits else function

    return function_pass("FieldsAsSlices", run, ops=(_SPLIT,))


def _needless_splits(function: relay.Function) -> ExprSet:
    """Return the splits whose fields, as slices, would all be fused with what reads them."""
    readers = readers_of(function)
    return ExprSet(
        node
        for node, fields in readers.items()
        if is_op_call(node, _SPLIT)
        and all(isinstance(field, relay.TupleGetItem) for field in fields)
        and _are_fused(fields, readers)
    )


def _are_fused(values: Sequence[relay.Expr], readers: ExprMap[list[relay.Expr]]) -> bool:
    """Say whether everything that reads the values, directly or through views, copies or computes
    their numbers one by one. Ops that join tensors do not."""
    read = list(values)
    while read:
        for reader in readers[read.pop()]:
            is_joined = any(isinstance(each, relay.Tuple) for each in read_by(reader))
            if not is_injective(reader) or is_joined:
                return False
            if traits_of(op_name(reader)).kind == "view":
                read.append(reader)
    return True


def _slice(split: relay.Call, index: int, data: relay.Expr) -> relay.Call:
    """Return a field of a split as a slice of what is split."""
    axis = int(split.attrs.axis) % len(static_shape(split.args[0].checked_type))
    sizes = [static_shape(field)[axis] for field in split.checked_type.fields]
    begin = sum(sizes[:index])
    return relay.strided_slice(data, [begin], [begin + sizes[index]], axes=[axis])
