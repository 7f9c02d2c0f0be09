"""Cells, a decision and branches -> a routed part of a network, in Relay.

    cells = annotate_cell(x, dims=(0,), shape=(1, 768))
    y = route(cells, top_k(scores, k=1), branches=experts, gate="combine")

A branch is a function of rows of cells, [rows, cell..]; it must treat each row alone, as how many
there are is known in the run only. `route` refuses what mixes them, by the rules by which a network
is given a batch (`relay.tasks.rebatch`).

Source: Cui et al., "Optimizing Dynamic Neural Networks with Brainstorm" (OSDI 2023), 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import tvm
from tvm import relay

from heteroplace.errors import RoutingError
from heteroplace.model.routed.capacities import default_capacities
from heteroplace.parts.routing.relay.cells import Cells, name_of, shape_of, type_of
from heteroplace.parts.routing.relay.decision_ops import Decision, times_gate
from heteroplace.parts.routing.relay.host import is_host_decision
from heteroplace.parts.routing.relay.ops import (
    BranchRows,
    branch_rows_of,
    combine,
    dispatch,
    enter_branch,
    join_branches,
    router,
    select,
    take_branch,
)
from heteroplace.parts.routing.relay.regions import Branches, branches_around, routing_call
from heteroplace.parts.routing.relay.results import checked_results
from heteroplace.parts.routing.relay.router import RouterOptions, router_options

Branch: TypeAlias = "Callable[..., relay.Expr | Sequence[relay.Expr]] | relay.Function"
"""Rows of each flow -> the result's rows, or several results."""
GATES = (None, "dispatch", "combine")
"""Where cells are multiplied by the decision's gates."""
_ALIKE = ("zeros", "ones", "zeros_like", "ones_like")
"""Ops that make all elements alike."""


def route(
    cells: Cells | Sequence[Cells],
    decision: Decision,
    branches: Sequence[Branch],
    gate: str | None = None,
    residual: relay.Expr | None = None,
    capacities: Sequence[int] | Sequence[Sequence[int]] | None = None,
    overflow: str | None = None,
    name: str = "",
) -> relay.Expr | list[relay.Expr]:
    """Return what the branches make of the cells that the decision gives them, as a tensor.

    Parameters
    ----------
    cells
        Of one tensor, or of several that go the same ways; a branch then reads rows of each.
    decision
        Which cells take which branches (`heteroplace.parts.routing.relay.protocols`).
    branches
        A function of Relay expressions, or a `relay.Function`, for each branch. They may return
        several results, all branches the same ones.
    gate
        One of `GATES`: cells are multiplied before the branch, or its results after it.
    residual
        What a cell gets that no branch takes, of the result's shape; None: 0.
    capacities
        Rows that the branches are compiled for, or those of each branch; None: doubling.
    overflow
        What becomes of a load above the largest capacity (`heteroplace.model.routed.capacities`);
        None: "drop" where the decision brings a capacity, which must then be "drop", else "rounds".
    name
        Of the router, unique in its module; "": it is numbered when the module is compiled.

    Returns
    -------
    A tensor that lies as that of the (first) cells does, for each result: the sum over a cell's
    branches, in their order. One result is returned alone.

    Raises
    ------
    RoutingError
        Cells, decision and branches that do not fit together, or a branch that mixes cells.

    Notes
    -----
    One cell (a whole tensor) is not moved: branches read the tensor itself.
    """
    flows = [cells] if isinstance(cells, Cells) else list(cells)
    _check(flows, decision, branches, gate, name)
    num_cells = flows[0].num_cells
    sizes, policy = _capacities(num_cells, decision, capacities, overflow, len(branches), name)
    options = RouterOptions(name, sizes, decision.top_k, policy).checked(len(branches))
    of_cells = {
        "mask": decision.mask,
        "priority": decision.priority,
        "gates": None if gate is None else decision.gates,
        "residual": residual,
    }
    given = {what: each for what, each in of_cells.items() if each is not None}
    around = _around(flows, given, name)
    taken = router(decision.mask, options, decision.priority, around)
    make = _whole if num_cells == 1 else _by_rows
    results = make(_Routed(flows, decision, options, gate, tuple(taken)), branches, residual)
    return results[0] if len(results) == 1 else results


class _Routed:
    """One routed part while it is made."""

    def __init__(
        self,
        flows: list[Cells],
        decision: Decision,
        options: RouterOptions,
        gate: str | None,
        taken: tuple[relay.Expr, ...],
    ) -> None:
        self.flows, self.options = flows, options
        self.seats, self.loads, self.offsets = taken
        self.before = decision.gates if gate == "dispatch" else None
        self.after = decision.gates if gate == "combine" else None

    @property
    def num_cells(self) -> int:
        return self.flows[0].num_cells

    def rows_of(self, branch: int) -> BranchRows:
        return branch_rows_of(self.options, branch, self.num_cells)


def _by_rows(
    routed: _Routed, branches: Sequence[Branch], residual: relay.Expr | None
) -> list[relay.Expr]:
    """Rows of cells are moved to the branches and back."""
    num_rows = routed.options.rows(routed.num_cells)
    seats, loads, offsets = routed.seats, routed.loads, routed.offsets
    buffers = [
        dispatch(flow.rows, seats, offsets, num_rows, routed.before, flow.is_by_branch)
        for flow in routed.flows
    ]
    branch_results = []
    for index, branch in enumerate(branches):
        of = routed.rows_of(index)
        rows = [take_branch(buffer, loads, offsets, of) for buffer in buffers]
        branch_results.append(_made_by(branch, rows, of, loads))
    results = []
    for values in _alike(branch_results, routed.options.name):
        joined = join_branches(values, loads, offsets, routed.options.name, num_rows)
        out = shape_of(joined)[1:]
        left = None if residual is None else routed.flows[0].rows_of(residual, out)
        y = combine(joined, seats, offsets, routed.after, left)
        results.append(routed.flows[0].restored(y))
    return results


def _whole(
    routed: _Routed, branches: Sequence[Branch], residual: relay.Expr | None
) -> list[relay.Expr]:
    """A single cell stays where it is."""
    branch_results = []
    for index, branch in enumerate(branches):
        rows = []
        for flow in routed.flows:
            x = _part(flow.rows, index) if flow.is_by_branch else flow.rows
            x = x if routed.before is None else _times(x, routed.before, index)
            rows.append(enter_branch(x, routed.loads, routed.options.name, index))
        values = _made_by(branch, rows, routed.rows_of(index), routed.loads)
        if routed.after is not None:
            values = [_times(value, routed.after, index) for value in values]
        branch_results.append(values)
    results = []
    for values in _alike(branch_results, routed.options.name):
        out = shape_of(values[0])[1:]
        left = None if residual is None else routed.flows[0].rows_of(residual, out)
        y = select(values, routed.loads, routed.options.name, left)
        results.append(routed.flows[0].restored(y))
    return results


def _part(x: relay.Expr, branch: int) -> relay.Expr:
    """The part for a branch of x[1, B, ..]."""
    return relay.squeeze(relay.strided_slice(x, [branch], [branch + 1], axes=[1]), [1])


def _times(x: relay.Expr, gates: relay.Expr, branch: int) -> relay.Expr:
    """x[1, ..] times its gate for a branch."""
    type_ = type_of(x)
    if not type_.dtype.startswith(("float", "bfloat")):  # a gate would be cut to a whole number
        raise RoutingError(f"cells of {type_.dtype} cannot be multiplied by gates")
    return times_gate(x, gates, branch, type_)


def _made_by(
    branch: Branch, rows: Sequence[relay.Expr], of: BranchRows, loads: relay.Expr
) -> list[relay.Expr]:
    """What a branch makes of its rows, checked, each result by an op of its own."""
    if isinstance(branch, relay.Function):
        if len(branch.params) != len(rows):
            raise RoutingError(
                f"branch {of.branch} of router {of.router!r} takes {len(branch.params)} tensors; "
                f"it gets rows of {len(rows)}"
            )
        result: Any = relay.bind(branch.body, dict(zip(branch.params, rows, strict=True)))
    else:
        result = branch(*rows)
    if isinstance(result, relay.expr.TupleWrapper):
        result = list(result)
    elif isinstance(result, relay.Tuple):
        result = list(result.fields)
    elif isinstance(result, relay.Expr):
        result = [result]
    return checked_results(rows, list(result), of, loads)


def _alike(results: Sequence[Sequence[relay.Expr]], name: str) -> list[list[relay.Expr]]:
    """For each result the branches' values, all of one type."""
    types = [
        [(shape_of(value)[1:], type_of(value).dtype) for value in values] for values in results
    ]
    for branch, types_of in enumerate(types):
        if types_of != types[0] or not types_of:
            raise RoutingError(
                f"router {name!r}: branch {branch} makes {types_of}, branch 0 makes {types[0]}; "
                f"all "
                f"branches must make the same results"
            )
    return [list(values) for values in zip(*results, strict=True)]


def _check(
    flows: list[Cells],
    decision: Decision,
    branches: Sequence[Branch],
    gate: str | None,
    name: str,
) -> None:
    who = f"router {name!r}"
    if not flows:
        raise RoutingError(f"{who} has no cells")
    faults = []
    layouts = [flow.layout for flow in flows]
    if len(set(layouts)) > 1:
        faults.append(f"its flows have cells in unlike layouts: {layouts}")
    mask = type_of(decision.mask)
    expected = (flows[0].num_cells, len(branches))
    if shape_of(decision.mask) != expected or mask.dtype != "int32":
        faults.append(
            f"its mask is {mask.dtype}{shape_of(decision.mask)}, expected int32{expected}: cells "
            f"and branches"
        )
    if gate not in GATES:
        faults.append(f"gate is {gate!r}, expected one of {GATES}")
    if gate is not None and decision.gates is None:
        faults.append(f"gate is {gate!r}, and its decision has no gates")
    for flow in flows:
        parts = shape_of(flow.rows)[1:2]
        if flow.is_by_branch and parts != (len(branches),):
            faults.append(f"{parts} parts of a cell for {len(branches)} branches")
    if faults:
        raise RoutingError(f"{who}: {'; '.join(faults)}")


def _capacities(
    num_cells: int,
    decision: Decision,
    given: Sequence[int] | Sequence[Sequence[int]] | None,
    overflow: str | None,
    num_branches: int,
    name: str,
) -> tuple[tuple[tuple[int, ...], ...], str]:
    """Capacities of each branch, and the overflow policy, which a decision may bring."""
    most, usual = num_cells, "rounds"
    if decision.capacity is not None:
        most, usual = min(num_cells, decision.capacity), "drop"
    policy = usual if overflow is None else overflow
    if decision.capacity is not None and policy != "drop":
        raise RoutingError(
            f"router {name!r}: its decision drops cells behind a capacity of {most}, and overflow "
            f"is {overflow!r}; leave overflow out, or take a decision without a capacity"
        )
    each: list[Any] = list(default_capacities(most) if given is None else given)
    of_all = [isinstance(one, Integral) for one in each]
    if all(of_all) and each:
        sizes = (tuple(map(int, each)),) * num_branches
    elif not any(of_all):
        sizes = tuple(tuple(map(int, one)) for one in each)
    else:
        raise RoutingError(f"router {name!r}: capacities {each} are neither of all nor of each")
    faults = [size for size in sizes if size and size[-1] != most]
    if decision.capacity is not None and faults:
        raise RoutingError(
            f"router {name!r}: its decision drops cells behind {most}, which must be the largest "
            f"capacity; got {faults[0]}"
        )
    return sizes, policy


def _around(
    flows: list[Cells], of_cells: Mapping[str, relay.Expr], name: str
) -> tuple[relay.Expr, BranchRows] | None:
    """The branch that the router is in, behind its router's loads.

    Parameters
    ----------
    of_cells
        What else has a part for each cell, the mask first, by what it is.
    """
    branches = branches_around([*(flow.rows for flow in flows), *of_cells.values()])
    if not branches:
        return None
    parent = routing_call(branches[-1].router)
    assert parent is not None  # `branches_around` names calls of routers
    options, branch = router_options(parent.op.attrs), branches[-1].branch
    loads = relay.TupleGetItem(branches[-1].router, 1)
    num_rows = shape_of(parent.reads[0])[0]
    if num_rows > 1:
        if is_host_decision(of_cells["mask"]):
            raise RoutingError(
                f"a function on the host decides about rows of branch {branch} of router "
                f"{options.name!r}, of which it would also see those that hold no cell; decide by "
                f"ops of Relay, or about all cells before that router"
            )
        for flow in flows:
            _check_rows(flow, branches, num_rows, options.name)
        outside = [
            what
            for what, each in of_cells.items()
            if len(branches_around([each])) < len(branches) and not _is_alike(each)
        ]
        if outside:
            raise RoutingError(
                f"router {name!r} is in branch {branch} of router {options.name!r}, and its "
                f"{', '.join(outside)}: not in that branch, whose rows are not all cells; make "
                f"them of the branch's rows, or hand them to it as cells of their own"
            )
    return loads, branch_rows_of(options, branch, num_rows)


def _is_alike(value: relay.Expr) -> bool:
    """Say whether a value is seen to be the same for all cells."""
    if isinstance(value, relay.Constant):
        rows = value.data.numpy()
        return bool((rows == rows[:1]).all())
    return isinstance(value, relay.Call) and value.op in map(tvm.ir.Op.get, _ALIKE)


def _check_rows(flow: Cells, branches: Branches, num_rows: int, router: str) -> None:
    """Raise RoutingError if cells are not those of the rows of the branch that a router is in."""
    branch = branches[-1].branch
    if len(branches_around([flow.rows])) < len(branches):
        raise RoutingError(
            f"rows of branch {branch} of router {router!r} decide about cells of "
            f"{name_of(flow.tensor)}, which is not in that branch; hand it to the branch as cells "
            f"of their own"
        )
    if flow.dims[0] != 0 or flow.shape[0] != 1 or flow.num_cells % num_rows:
        raise RoutingError(
            f"cells of {name_of(flow.tensor)} are in branch {branch} of router {router!r}, so they "
            f"lie along axis 0 first, each 1 wide; got axes {flow.dims}, cells of {flow.shape}"
        )
