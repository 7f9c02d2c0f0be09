"""An expression -> its type, from the types of its arguments alone and written on it.

`InferType` types a whole module. What is made op by op (an import, a batch, shards) is typed here
as it is made: `InferTypeLocal`, arguments first, so that it never looks deeper than one call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.relay.limits import divisor_fault
from heteroplace.relay.tasks.fold import children

_RENDERER = "diagnostics.OverrideRenderer"


def write_types(node: Any) -> None:
    """Set the `checked_type` of `node` and of all it is made of, each from its arguments.

    Raises
    ------
    FrontendError
        If TVM would divide by an attribute that is 0.
    tvm.TVMError
        If an expression does not type-check.
    """
    stack = [node]
    while stack:
        current = stack[-1]
        if current._checked_type_ is not None:
            stack.pop()
            continue
        missing = [child for child in children(current) if child._checked_type_ is None]
        if missing:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        fault = divisor_fault(current) if isinstance(current, relay.Call) else None
        if fault is not None:
            raise FrontendError(fault)
        relay.transform.InferTypeLocal(current)


@contextlib.contextmanager
def collected_diagnostics(messages: list[str]) -> Iterator[None]:
    """Append the messages of TVM's type checker to `messages` instead of printing them."""
    previous = tvm.get_global_func(_RENDERER, allow_missing=True)

    def collect(context: Any) -> None:
        messages.extend(str(diagnostic.message) for diagnostic in context.diagnostics)

    tvm.ir.diagnostics.override_renderer(collect)
    try:
        yield
    finally:
        if previous is None:
            tvm.ir.diagnostics.override_renderer(None)
        else:
            tvm.register_func(_RENDERER, previous, override=True)
