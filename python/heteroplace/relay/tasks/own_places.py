"""A tensor read at places that it decides itself -> the same, never within one kernel.

    take(%c, f(%c))  ==>  take(annotation.stop_fusion(%c), f(%c))

Where both are fused, the kernel reads %c at a place that it computes from %c, and TVM's inlining of
%c into itself reads memory that it has freed: the process ends, or the kernel reads somewhere else.
FuseOps takes the `stop_fusion` out again, so that a task of its own makes the tensor.
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import ops_where
from heteroplace.relay.expressions import function_pass, is_dataflow, is_injective, rebuilt
from heteroplace.relay.tasks.fold import children

_READERS = ops_where(lambda op: op.reads_places)


def OwnPlacesApart() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass, which goes before FuseOps."""

    def run(function: relay.Function) -> relay.Function:
        return rebuilt(function, _apart, ops=_READERS) if is_dataflow(function) else function

    return function_pass("OwnPlacesApart", run, ops=_READERS)


def _apart(old: relay.Call, new: relay.Call) -> relay.Call:
    is_tuple = isinstance(old.args[0], relay.Tuple)
    operands = list(old.args[0].fields if is_tuple else old.args)
    places = fused_into(operands[1:])
    if not places or not places & fused_into(operands[:1]):
        return new
    read = list(new.args[0].fields if is_tuple else new.args)
    read[0] = relay.annotation.stop_fusion(read[0])
    arguments = [relay.Tuple(read)] if is_tuple else read
    return relay.Call(new.op, arguments, new.attrs, new.type_args, new.span)


def fused_into(values: list[relay.Expr]) -> set[relay.Expr]:
    """The calls that may be computed within the kernel that reads these values."""
    nodes: set[relay.Expr] = set()
    left = list(values)
    while left:
        value = left.pop()
        if isinstance(value, relay.Call):
            if value in nodes or not is_injective(value):
                continue
            nodes.add(value)
        left += children(value)
    return nodes
