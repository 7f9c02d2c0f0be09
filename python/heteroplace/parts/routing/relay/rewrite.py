"""Routers of a module: what they are, their names, and the same module with other options.

before ==> after, for `update_routers(mod, {"r": {"capacities": ((2, 6),) * 3}})`:

    router(%mask; name="r", capacities 1,2,4,6)  ==>  router(%mask; name="r", capacities 2,6)
    dispatch(%x; rows=8)                         ==>  dispatch(%x; rows=8), of the new capacities
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relay

from heteroplace.errors import RoutingError
from heteroplace.model.routed.capacities import default_capacities
from heteroplace.parts.routing.relay.ops import (
    BranchRows,
    branch_around,
    branch_rows_in,
    branch_rows_of,
    reads_of,
    with_reads,
)
from heteroplace.parts.routing.relay.regions import (
    InBranch,
    branches_of_values,
    of_router,
    router_of,
)
from heteroplace.parts.routing.relay.router import RouterOptions, router_options
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import post_order, rebuild, static_shape
from heteroplace.relay.router_ops import routing_kind

Renewed = Callable[[int, RouterOptions], RouterOptions]
"""(number of a router in post-order, its options) -> its new options."""


@dataclass(frozen=True)
class Router:
    """A router of a module."""

    options: RouterOptions
    """Its attributes."""
    num_cells: int
    """Cells of its mask."""
    parent: tuple[str, int] | None
    """(name, branch) of the router that it is nested in; None: it is in no branch."""


def routers_of(mod: tvm.IRModule) -> tuple[Router, ...]:
    """Return the routers of `main`, operands first; its types must be inferred."""
    body = mod["main"].body
    branches = branches_of_values(body)
    routers = []
    for node in _router_calls(body):
        outer = branches[node]
        parent = _parent(outer[-1]) if outer else None
        routers.append(Router(router_options(node.attrs), _num_cells(node), parent))
    return tuple(routers)


def _router_calls(body: relay.Expr) -> list[relay.Call]:
    """The routers under an expression, operands first."""
    return [node for node in post_order(body) if routing_kind(node) == "router"]


def named_routers(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module, its types inferred, with a name for each router: those without are
    numbered, "router.1".

    Raises
    ------
    RoutingError
        Two routers have one name.
    """
    typed = relay.transform.InferType()(mod)
    given = [str(node.attrs["name"]) for node in _router_calls(typed["main"].body)]
    names: list[str] = []
    for number, own in enumerate(given):
        name = own or f"router.{number + 1}"
        if name in names:
            raise RoutingError(f"two routers are called {name!r}; give each a name of its own")
        names.append(name)
    if names == given:
        return typed
    return _renewed(typed, lambda number, options: replace(options, name=names[number]))


def update_routers(mod: tvm.IRModule, changes: Mapping[str, Mapping[str, Any]]) -> tvm.IRModule:
    """Return the module with other options of some routers, and buffers that fit them.

    Parameters
    ----------
    changes
        By name of a router its new options, by field of `RouterOptions`.

    Raises
    ------
    RoutingError
        There is no such router or option, options that do not fit together, or another largest
        capacity where that says which cells the model drops.
    """
    typed = relay.transform.InferType()(mod)
    calls = _router_calls(typed["main"].body)
    names = [str(call.attrs["name"]) for call in calls]
    unknown = sorted(set(changes) - set(names))
    if unknown:
        raise RoutingError(
            f"the module has no router {', '.join(map(repr, unknown))}; it has "
            f"{', '.join(map(repr, names)) or 'none'}"
        )

    def updated(number: int, options: RouterOptions) -> RouterOptions:
        change = changes.get(options.name, {})
        try:
            new = replace(options, **change)
        except TypeError as err:
            raise RoutingError(f"router {options.name!r}: {err}") from err
        _check_kept(options, new, _num_cells(calls[number]))
        return new.checked(options.num_branches)

    return _renewed(typed, updated)


def model_digest(mod: tvm.IRModule) -> str:
    """Return what modules have in common that differ in nothing but their routers' options, in hex.

    Those of which the numbers depend (branches for a cell, a capacity behind which cells are
    dropped) count, and names of routers do.
    """

    def common(number: int, options: RouterOptions) -> RouterOptions:
        num_cells = _num_cells(calls[number])
        sizes = (default_capacities(num_cells),) * options.num_branches
        if options.overflow == "drop":
            sizes = tuple((most,) for most in _kept(options, num_cells))
        return RouterOptions(options.name, sizes, options.top_k, options.overflow)

    typed = relay.transform.InferType()(mod)
    calls = _router_calls(typed["main"].body)
    digest = hashlib.sha256()
    for call in calls:
        counts = call.attrs["counts"]
        digest.update(f"{call.attrs['name']} {_num_cells(call)} {len(counts)}\n".encode())
    same = tvm.IRModule(dict(_renewed(typed, common).functions.items()))
    digest.update(f"{int(tvm.ir.structural_hash(same, map_free_vars=True)) % 2**64:x}".encode())
    return digest.hexdigest()


def _kept(options: RouterOptions, num_cells: int) -> list[int]:
    """Cells that each branch keeps at most."""
    return [min(sizes[-1], num_cells) for sizes in options.capacities]


def _check_kept(old: RouterOptions, new: RouterOptions, num_cells: int) -> None:
    """Raise RoutingError if new capacities would drop other cells."""
    if "drop" not in (old.overflow, new.overflow):
        return
    rows_kept = _kept(old, num_cells)
    if new.overflow != old.overflow or _kept(new, num_cells) != rows_kept:
        raise RoutingError(
            f"router {old.name!r} drops the cells behind its largest capacity, which is what the "
            f"model computes: policy {old.overflow!r} and capacities {rows_kept} stay as they are"
        )


def _renewed(typed: tvm.IRModule, renew: Renewed) -> tvm.IRModule:
    """The typed module with new options for each router, and all that follows from them; itself if
    they are the same."""
    main = typed["main"]
    body = main.body
    options: ExprMap[RouterOptions] = ExprMap()

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        kind = routing_kind(old)
        if kind is None:
            return new
        attrs, following = old.attrs, dict[str, Any]()
        changed: dict[str, Any] = {}
        if kind == "router":
            before = router_options(attrs)
            options[old] = renew(len(options), before)
            changed = {} if options[old] == before else options[old].attributes()
            around = branch_around(attrs)
            if around is not None:
                parent = router_of(reads_of(old)[-1])
                following = _of_rows(around, options[parent], _num_cells(parent))
        elif kind != "combine":
            router = router_of(of_router(old, reads_of(old)))
            following = _following(old, kind, options[router], router)
        changed |= {
            key: value for key, value in following.items() if type(value)(attrs[key]) != value
        }
        return with_reads(new, reads_of(new), **changed) if changed else new

    mapped: ExprMap[relay.Expr] = ExprMap()
    rebuild(post_order(body), mapped, rewrite, keeps_unchanged=True)
    if mapped[body].same_as(body):
        return typed
    function = relay.Function(main.params, mapped[body], attrs=main.attrs)
    functions = dict(typed.functions.items())
    functions[typed.get_global_var("main")] = function
    return relay.transform.InferType()(tvm.IRModule(functions))


def _following(
    call: relay.Call, kind: str, options: RouterOptions, router: relay.Expr
) -> dict[str, Any]:
    """The attributes of a call that follow from its router's options."""
    num_cells = _num_cells(router)
    if kind == "dispatch":
        return {"rows": options.rows(num_cells)}
    if kind == "join_branches":
        return {"rows": options.rows(num_cells), "router": options.name}
    if kind == "take_branch":
        return _of_rows(branch_rows_in(call.attrs), options, num_cells)
    return {"router": options.name}


def _of_rows(old: BranchRows, options: RouterOptions, num_cells: int) -> dict[str, Any]:
    """The attributes of rows of a branch that follow from its router's options."""
    of = branch_rows_of(options, old.branch, num_cells)
    return {"router": options.name, "limit": min(of.limit, old.rows)}


def _num_cells(router: relay.Expr) -> int:
    return static_shape(router.checked_type.fields[0])[0]


def _parent(inside: InBranch) -> tuple[str, int]:
    return router_options(inside.router.attrs).name, inside.branch
