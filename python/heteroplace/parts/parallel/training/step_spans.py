"""Which part of a training step a call belongs to, as the name in its span.

    conv.3            a call of the model
    gradient:conv.3   computes the gradients of what that call reads
    loss              the loss; gradient:loss is where the backward pass begins
    update:w1         the optimiser's step for the weight `w1`

So the backward pass of a layer can be put on the device that has its forward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import tvm
from tvm import relay

from heteroplace.relay.expressions import rebuild
from heteroplace.relay.tasks.fold import children

LOSS = "loss"
_GRADIENT = "gradient:"
_UPDATE = "update:"


def named_span(name: str) -> relay.Span:
    """Return a span of this name."""
    return relay.Span(relay.SourceName(name), 0, 0, 0, 0)


def span_name(expr: relay.Expr) -> str:
    """Return the name in the span of a call; "" if it has none, or is no call."""
    if not isinstance(expr, relay.Call) or not isinstance(expr.span, relay.Span):
        return ""
    return str(expr.span.source_name.name)


def gradient_name(forward: str) -> str:
    """Return the name of the calls that compute gradients for the calls named `forward`."""
    return _GRADIENT + forward


def update_name(weight: str) -> str:
    """Return the name of the calls that compute the new value of a weight."""
    return _UPDATE + weight


def forward_name(name: str) -> str | None:
    """Return the name of the calls that these are the gradient of; None: they are none.

    >>> forward_name("gradient:conv.3"), forward_name("conv.3")
    ('conv.3', None)
    """
    return name[len(_GRADIENT) :] if name.startswith(_GRADIENT) else None


def updated_weight(name: str) -> str | None:
    """Return the weight that these calls update; None: they do not.

    >>> updated_weight("update:w1"), updated_weight("conv.3")
    ('w1', None)
    """
    return name[len(_UPDATE) :] if name.startswith(_UPDATE) else None


def name_calls(nodes: Sequence[relay.Expr], mapped: dict[relay.Expr, relay.Expr]) -> None:
    """Copy `nodes`, operands first, with a name for each call that has none: "dense.2".

    `mapped` is extended by old -> new, as of `rebuild`. A name that a call of the model has
    already is not given to another.
    """
    taken = {span_name(node) for node in nodes}
    counts: Counter[str] = Counter()

    def name(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if not isinstance(new, relay.Call) or not isinstance(new.op, tvm.ir.Op) or span_name(old):
            return new
        kind = new.op.name.rpartition(".")[2]
        span = ""
        while not span or span in taken:
            span = f"{kind}.{counts[kind]}"
            counts[kind] += 1
        return relay.Call(new.op, new.args, new.attrs, new.type_args, named_span(span))

    rebuild(nodes, mapped, name)


def name_new(expr: relay.Expr, known_exprs: dict[relay.Expr, relay.Expr], name: str) -> relay.Expr:
    """Return `expr` with a name for the calls in it that are not known; they are then.

    `known` maps old expressions to what stands for them, and each of those to itself.
    """
    new = new_nodes(expr, known_exprs)
    rebuild(new, known_exprs, None, named_span(name))
    for node in new:
        new_node = known_exprs[node]
        known_exprs[new_node] = new_node
    return known_exprs[expr]


def new_nodes(expr: relay.Expr, known_exprs: Mapping[relay.Expr, relay.Expr]) -> list[relay.Expr]:
    """Return what `expr` is made of that is not known yet, operands first.

    Unlike `post_order` it does not walk over all that lies below, however large that is.
    """
    nodes: dict[relay.Expr, None] = {}
    stack = [(expr, False)]
    while stack:
        node, is_ready = stack.pop()
        if node in known_exprs or node in nodes:
            continue
        if is_ready:
            nodes[node] = None
            continue
        stack.append((node, True))
        stack.extend((child, False) for child in reversed(children(node)))
    return list(nodes)
