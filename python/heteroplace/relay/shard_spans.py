"""Which shard and which layer a call belongs to, as the name in its span.

    shard:1:4:forward:dense.3     a call of shard 1, in layer 4; "dense.3" in the module before
    shard:-:4:backward:dense.3    a collective over all shards

Names in spans go through TVM's passes and its fusion, so tasks know where they belong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvm import relay

_PREFIX = "shard:"
_FORM = re.compile(r"shard:(\d+|-):(\d+):(forward|backward):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tag:
    """Where a call belongs."""

    layer: int
    backward: bool
    name: str
    """In the span of the call that it was made of; "" if that has none."""
    shard: int | None = None
    """None: all of them."""

    def span(self, shard: int | None) -> relay.Span:
        """Return a span that says so, for a shard."""
        way = "backward" if self.backward else "forward"
        text = f"{_PREFIX}{'-' if shard is None else shard}:{self.layer}:{way}:{self.name}"
        return relay.Span(relay.SourceName(text), 0, 0, 0, 0)


def span_name(expr: relay.Expr) -> str:
    """Return the name in the span of `expr` as the model had it; "" if it has none."""
    tag = tag_of(expr)
    return _text(expr) if tag is None else tag.name


def tag_of(expr: relay.Expr) -> Tag | None:
    """Return what the span of `expr` says; None: it says nothing of shards."""
    match = _FORM.fullmatch(_text(expr))
    if match is None:
        return None
    shard = None if match[1] == "-" else int(match[1])
    return Tag(int(match[2]), match[3] == "backward", match[4], shard)


def _text(expr: relay.Expr) -> str:
    return str(expr.span.source_name.name) if isinstance(expr.span, relay.Span) else ""
