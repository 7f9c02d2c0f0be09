"""Bound how often a kernel repeats a computation: split the fused groups that repeat too much.

TVM inlines each elementwise value of a fused group into all of its consumers. A value with two
consumers is computed twice, and the repetitions multiply along a chain:

    y = sigmoid(x); z = y * x + x; y1 = sigmoid(z); z1 = y1 * z + z; ...

Each level makes the kernel's expression three times as long, and so the compile time. This pass
splits such a group: a long expression with several consumers gets a kernel of its own. Small
repetitions, as in x * sigmoid(x), stay in one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.expr_map import ExprMap, ExprSet
from heteroplace.relay.expressions import (
    function_pass,
    is_injective,
    is_primitive_call,
    post_order,
    post_order_of_function,
    rebuild,
)
from heteroplace.relay.tasks.fold import children

MAX_EXPANDED_CALLS = 256
"""A group whose expanded expression has no more calls is never split."""
MIN_EXPANSION_RATIO = 4
"""A group is split only if its expanded expression has over this many times its own calls."""
MAX_REPEATED_CALLS = 64
"""In a group that is split, no longer expression is repeated."""


def SplitRepeated() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass, which goes after FuseOps."""
    return function_pass("SplitRepeated", lambda function: split_groups(function, _cuts))


def num_expanded_calls(body: relay.Expr) -> int:
    """Return the number of calls in the expression of a fused function's body, once inlined."""
    return _Expansion(body).num_calls


@dataclass
class _Expansion:
    """The expression of a group after TVM has inlined it.

    Parameters
    ----------
    body
        Of a fused function, typed.
    max_repeated
        Longer expressions that are read several times are put into `cuts`, and not expanded.
    """

    body: relay.Expr
    max_repeated: int | None = None
    cuts: ExprSet = field(default_factory=ExprSet)
    num_own_calls: int = 0
    """Calls of the group, each counted once."""
    num_calls: int = 0
    """Calls of the expanded expression."""

    def __post_init__(self) -> None:
        nodes = post_order(self.body)
        num_reads = _num_reads(nodes)
        inlined: ExprMap[int] = ExprMap()
        for node in nodes:
            operands = children(node)
            size = sum(
                inlined.get(operand, 0) * count
                for operand, count in zip(operands, _reads_of(node), strict=True)
            )
            if isinstance(node, relay.Call):
                self.num_own_calls += 1
                size += 1
                self.num_calls = max(self.num_calls, size)
                if not is_injective(node) or self._is_cut(node, size, num_reads[node]):
                    size = 0
            inlined[node] = size
        self.num_calls = max(self.num_calls, inlined[self.body])

    def _is_cut(self, call: relay.Call, size: int, num_reads: int) -> bool:
        if self.max_repeated is None or size <= self.max_repeated or num_reads < 2:
            return False
        if call.same_as(self.body) or not _is_tensor(call):
            return False
        self.cuts.add(call)
        return True


def _num_reads(nodes: Sequence[relay.Expr]) -> ExprMap[int]:
    """How often the expressions of its consumers read each node."""
    num_reads: ExprMap[int] = ExprMap()
    for node in reversed(nodes):
        own = num_reads.setdefault(node, 1)
        is_tensor_call = isinstance(node, relay.Call) and _is_tensor(node)
        for operand, count in zip(children(node), _reads_of(node), strict=True):
            # Tuples cannot be cut, so what they are made of counts as read by their consumers.
            reads = count if is_tensor_call else count * own
            num_reads[operand] = num_reads.get(operand, 0) + reads
    return num_reads


def _reads_of(node: relay.Expr) -> Sequence[int]:
    operands = children(node)
    if isinstance(node, relay.Call) and isinstance(node.op, tvm.ir.Op):
        counts = traits_of(node.op.name).reads or ()
        return (*counts, *(1,) * (len(operands) - len(counts)))
    return (1,) * len(operands)


def _is_tensor(call: relay.Call) -> bool:
    return isinstance(call.checked_type, relay.TensorType)


def split_groups(
    function: relay.Function, cuts_of: Callable[[relay.Function], ExprSet]
) -> relay.Function:
    """Split fused groups at the values that `cuts_of` returns for each group; none: no split."""
    subgroups: ExprMap[relay.Function] = ExprMap()
    nodes = post_order(function.body)
    for node in nodes:
        if is_primitive_call(node) and node.op not in subgroups:
            cuts = cuts_of(node.op)
            if cuts:
                subgroups[node.op] = _fused_again(node.op, cuts)
    if not subgroups:
        return function

    def split(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if not isinstance(old, relay.Call) or old.op not in subgroups:
            return new
        subgroup = subgroups[old.op]
        inlined: ExprMap[relay.Expr] = ExprMap()
        inlined.update(zip(subgroup.params[:], new.args[:], strict=True))
        rebuild(post_order_of_function(subgroup), inlined)
        return inlined[subgroup.body]

    mapped: ExprMap[relay.Expr] = ExprMap()
    rebuild(nodes, mapped, split, keeps_unchanged=True)
    return relay.Function(function.params, mapped[function.body], None, [], function.attrs)


def parts_between(group: relay.Function, cuts: ExprSet) -> list[relay.Function]:
    """Return the fused functions into which a group is split at some values; none: it is whole."""
    if not cuts:
        return [group]
    nodes = post_order(_fused_again(group, cuts).body)
    return [node.op for node in nodes if is_primitive_call(node)]


def _cuts(group: relay.Function) -> ExprSet:
    """The values of a fused group that get kernels of their own; none if it repeats little."""
    whole = _Expansion(group.body)
    if whole.num_calls <= max(MAX_EXPANDED_CALLS, MIN_EXPANSION_RATIO * whole.num_own_calls):
        return ExprSet()
    return _Expansion(group.body, MAX_REPEATED_CALLS).cuts


def _fused_again(group: relay.Function, cuts: ExprSet) -> relay.Function:
    """A function that calls fused parts of a group, none of which goes past a cut."""
    mapped: ExprMap[relay.Expr] = ExprMap()

    def stopped(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if old not in cuts:
            return new
        stop = relay.annotation.stop_fusion(new)
        return relay.Call(stop.op, stop.args, stop.attrs, None, new.span)

    rebuild(post_order(group.body), mapped, stopped, keeps_unchanged=True)
    body = relay.Function(group.params, mapped[group.body])
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(body))
    return relay.transform.FuseOps()(mod)["main"]
