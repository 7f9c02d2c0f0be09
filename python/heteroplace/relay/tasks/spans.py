"""Spans of what stands for an op: those of the op, so that both belong to one layer and task."""

from __future__ import annotations

from collections.abc import Collection

from tvm import relay

from heteroplace.relay.expressions import rebuild
from heteroplace.relay.tasks.fold import children


def with_span(value: relay.Expr, new_nodes: Collection[relay.Expr], span: relay.Span) -> relay.Expr:
    """Return a copy of `value` whose expressions, but for those in `new_nodes`, have the span."""
    mapped: dict[relay.Expr, relay.Expr] = {node: node for node in new_nodes}
    fresh: list[relay.Expr] = []
    seen: set[relay.Expr] = set(new_nodes)
    stack = [(value, False)]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            fresh.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((child, False) for child in children(node))
    rebuild(fresh, mapped, span=span)
    return mapped[value]
