"""A module with routers -> what each branch is: which are alike, their weights, rows that align.

Branches that are equal but for their weights are one kind: what is chosen for one of them holds for
all (Cui et al., "Optimizing Dynamic Neural Networks with Brainstorm", OSDI 2023, 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd, lcm
from typing import NamedTuple

import tvm
from tvm import relay

from heteroplace.parts.routing.relay.regions import branches_of_values, router_of, routing_call
from heteroplace.parts.routing.relay.router import router_options
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import static_shape, type_bytes
from heteroplace.relay.tasks.flops import call_flops

ALIGNMENT_BYTES = 64
"""Of the tensors that kernels take."""


@dataclass(frozen=True)
class BranchUse:
    """What one branch of a router is."""

    kind: int
    """Equal for branches of this router that differ in their weights alone."""
    weight_bytes: int
    """Of the constants and parameters of `main` that it reads, each once, where kernels take it."""
    row_multiple: int
    """Rows of all its tensors begin where kernels take tensors at multiples of so many rows."""
    holds_router: bool
    """Another router decides about its rows."""
    row_flops: int = 0
    """Floating point operations of a row; those of a nested router's branches are not counted."""
    row_bytes: int = 0
    """Of a row of each tensor that it is given."""
    result_bytes: int = 0
    """Of a row of each tensor that it makes."""


@dataclass
class _Found:
    """What was seen of one branch."""

    signature: list[tuple[str, ...]] = field(default_factory=list)
    weights: ExprMap[int] = field(default_factory=ExprMap)
    row_multiple: int = 1
    holds_router: bool = False
    flops: int = 0
    row_bytes: int = 0
    result_bytes: int = 0


class _FoundRouter(NamedTuple):
    """What was seen of a router."""

    name: str
    num_cells: int
    branches: list[_Found]


def aligned_bytes(num_bytes: int) -> int:
    """Return what a tensor of so many bytes takes where kernels can take it."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def branch_uses(mod: tvm.IRModule) -> dict[str, tuple[BranchUse, ...]]:
    """Return the branches of each router by its name; types must be inferred, routers have names.

    What is made in a nested router's branches counts for the branches around it too.
    """
    uses: ExprMap[_FoundRouter] = ExprMap()
    for node, inside in branches_of_values(mod["main"].body).items():
        if not isinstance(node, relay.Call):
            continue
        call = routing_call(node)
        if call is not None and call.kind == "router":
            options = router_options(call.op.attrs)
            num_cells = static_shape(node.checked_type.fields[0])[0]
            branches = [_Found() for _ in range(options.num_branches)]
            uses[node] = _FoundRouter(options.name, num_cells, branches)
        for router, branch in inside:
            around = uses[router]
            kind = None if call is None else call.kind
            _add(around.branches[branch], node, kind, around.num_cells)
        if call is not None and inside and call.kind == "take_branch":
            uses[inside[-1].router].branches[inside[-1].branch].row_bytes += _row_bytes(node)
        elif call is not None and call.kind == "join_branches":
            for branch, name in enumerate(uses[router_of(call.reads[-2])].branches):
                name.result_bytes += _row_bytes(call.reads[branch])
        elif call is None and inside and isinstance(node.op, tvm.ir.Op):
            uses[inside[-1].router].branches[inside[-1].branch].flops += call_flops(node)
    return {each.name: _numbered(each.branches, each.num_cells) for each in uses.values()}


def _row_bytes(rows: relay.Expr) -> int:
    return type_bytes(rows.checked_type) // max(1, static_shape(rows.checked_type)[0])


def _add(router: _Found, node: relay.Call, kind: str | None, num_rows: int) -> None:
    """Note a call in a branch of `num_rows` rows; `kind`: of an op of routing."""
    types = [str(argument.checked_type) for argument in node.args[:]]
    if kind is None:
        attrs = "" if node.attrs is None else str(tvm.ir.structural_hash(node.attrs))
        router.signature.append((str(node.op), attrs, *types))
    else:
        router.signature.append((kind, *types))
    router.holds_router |= kind == "router"
    # What enters a branch, such as an input of the model, is made outside of it.
    for argument in [] if kind == "enter_branch" else node.args[:]:
        fields = argument.fields if isinstance(argument, relay.Tuple) else [argument]
        for read in fields[:]:
            if isinstance(read, relay.Constant) and not read.checked_type.shape:
                continue  # a number that kernels have in their code
            if isinstance(read, (relay.Constant, relay.Var)):
                router.weights[read] = aligned_bytes(type_bytes(read.checked_type))
    if isinstance(node.checked_type, tvm.ir.TensorType):
        num_bytes = type_bytes(node.checked_type)
        if num_bytes and num_bytes % num_rows == 0:
            row_bytes = num_bytes // num_rows
            multiple = ALIGNMENT_BYTES // gcd(ALIGNMENT_BYTES, row_bytes)
            router.row_multiple = lcm(router.row_multiple, multiple)


def _numbered(branches: list[_Found], num_rows: int) -> tuple[BranchUse, ...]:
    kinds: dict[tuple[tuple[str, ...], ...], int] = {}
    return tuple(
        BranchUse(
            kinds.setdefault(tuple(each.signature), len(kinds)),
            sum(each.weights.values()),
            each.row_multiple,
            each.holds_router,
            each.flops // num_rows,
            each.row_bytes,
            each.result_bytes,
        )
        for each in branches
    )
