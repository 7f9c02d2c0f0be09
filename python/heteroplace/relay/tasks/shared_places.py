"""Places that come from look-ups and are read more than once -> places of a task of their own.

    %i = take(%next, %h); take(%a, %i), take(%b, %i)
        ==>  take(%a, annotation.stop_fusion(%i)), take(%b, annotation.stop_fusion(%i))

FuseOps would compute %i anew in the kernel for each look-up, and for each element that a look-up
takes at one place. Where look-ups follow each other, as the levels of a decision tree do, that
doubles from level to level. FuseOps takes the `stop_fusion` out again.

`SplitRepeated` does not replace this pass. It bounds the size of a kernel's expression, and so its
compile time; it does not see that one expression runs for each element taken at a place.
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.relay.expr_map import ExprMap, ExprSet
from heteroplace.relay.expressions import (
    function_pass,
    is_dataflow,
    known_shape,
    op_name,
    post_order,
    rebuilt,
)
from heteroplace.relay.limits import num_elements
from heteroplace.relay.tasks.own_places import fused_into

_LOOK_UPS = ("take", "gather")
"""Ops that read their first operand at the places of the second."""


def SharedPlacesApart() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass, which goes before FuseOps."""

    def run(function: relay.Function) -> relay.Function:
        if not is_dataflow(function):
            return function
        shared = _shared_places(function)

        def apart(old: relay.Call, new: relay.Call) -> relay.Call:
            if old.args[1] not in shared:
                return new
            places = relay.annotation.stop_fusion(new.args[1])
            return relay.Call(new.op, [new.args[0], places], new.attrs, new.type_args, new.span)

        return rebuilt(function, apart, ops=_LOOK_UPS) if shared else function

    return function_pass("SharedPlacesApart", run, ops=_LOOK_UPS)


def _shared_places(function: relay.Function) -> ExprSet:
    """The places that more than one element of the results of look-ups depends on."""
    reads: ExprMap[int] = ExprMap()
    for node in post_order(function.body):
        if op_name(node) in _LOOK_UPS:
            places = node.args[1]
            reads[places] = reads.get(places, 0) + _reads(node, places)
    return ExprSet(
        places
        for places, count in reads.items()
        if count > 1 and any(op_name(call) in _LOOK_UPS for call in fused_into([places]))
    )


def _reads(look_up: relay.Call, places: relay.Expr) -> int:
    """How many elements a look-up takes at one place; 2 stands for more, and for unknown."""
    shapes = known_shape(look_up.checked_type), known_shape(places.checked_type)
    sizes = [None if shape is None else num_elements(shape) for shape in shapes]
    return 1 if None not in sizes and sizes[0] == sizes[1] else 2
