"""Run TVM's Legalize with the spans kept: what stands for an op belongs to the task of the op.

    nn.conv2d(%x, %w) /* task:conv2d.1 */  ==>  nn.conv2d(cast(add(cast(%x), 128)), %w') - ...
                                                /* task:conv2d.1 on every call of it */

TVM's own pass returns what the target's function makes of an op as it is, without a span; kernels
could then not be traced to their tasks, or would be counted as those of a neighbour.

Source: TVM, `src/relay/transforms/legalize.cc`.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relay

from heteroplace.relay.expressions import post_order, rebuild
from heteroplace.relay.tasks.fold import children

_ATTRIBUTE = "FTVMLegalize"
_OPT_LEVEL = 1


def Legalize() -> tvm.transform.Pass:  # noqa: N802  (stands for the pass of TVM of that name)
    """Return the pass that makes of every op what the current target knows.

    Its name and level are those of TVM's, so `disabled_pass` means both. The types of the result
    are not inferred.
    """

    def run(
        function: relay.Function, _mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> relay.Function:
        return _legalize(function)

    return relay.transform.function_pass(
        run, opt_level=_OPT_LEVEL, name="Legalize", required=["InferType"]
    )


def _legalize(function: relay.Function) -> relay.Function:
    mapped: dict[relay.Expr, relay.Expr] = {}
    made: set[relay.Expr] = set(function.params)

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        value = _legal_form(old, new) if isinstance(new, relay.Call) else None
        if value is not None:
            new = with_span(value, made, old.span)
        made.add(new)
        return new

    rebuild(post_order(function.body), mapped, rewrite)
    return relay.Function(function.params, mapped[function.body], None, [], function.attrs)


def _legal_form(old: relay.Call, new: relay.Call) -> relay.Expr | None:
    """What the target's function makes of a call; None: it stays as it is."""
    if not isinstance(new.op, tvm.ir.Op):
        return None
    legal_form: Any = new.op.get_attr(_ATTRIBUTE)
    if legal_form is None:
        return None
    types = [*(argument.checked_type for argument in old.args), old.checked_type]
    return legal_form(new.attrs, new.args, types)


def with_span(value: relay.Expr, made: set[relay.Expr], span: relay.Span) -> relay.Expr:
    """Return a copy of `value` whose expressions, but for those in `made`, have the span."""
    mapped: dict[relay.Expr, relay.Expr] = {}
    fresh: list[relay.Expr] = []
    stack = [(value, False)]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            fresh.append(node)
        elif node in made:
            mapped[node] = node
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in children(node))
    rebuild(fresh, mapped, span=span)
    return mapped[value]
