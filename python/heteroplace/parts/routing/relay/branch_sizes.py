"""A cut routed module -> the same module with branches of other numbers of rows.

A branch runs at one of its capacities, so its tasks are compiled for each of them. Rows of cells
are followed through its ops as the items of a batch are (`tasks.rebatch`), which proves on the way
that no row depends on another one; rows between a load and its capacity hold anything. The rows of
a nested router are those of the branch around it; its own buffers stay as they are.

before ==> after, for a branch of 64 rows at a capacity of 4

    nn.dense(%rows: float32[64, 8], %w)  ==>  nn.dense(%rows: float32[4, 8], %w)
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import tvm
from tvm import relay

from heteroplace.parts.routing.relay.ops import with_reads
from heteroplace.relay.expressions import static_shape
from heteroplace.relay.local_types import write_types
from heteroplace.relay.router_ops import routing_kind
from heteroplace.relay.tasks.rebatch import Growth, Rebatched, Rebatcher

Branch = tuple[str, int]
"""(router's name, branch)"""


def resize_branches(
    mod: tvm.IRModule, branch_of: Mapping[str, Branch], rows: Mapping[Branch, int]
) -> tvm.IRModule:
    """Return the module with other numbers of rows in its branches.

    Parameters
    ----------
    mod
        Module of one function of plain dataflow, with a parameter where a branch takes its rows.
    branch_of
        The branch of each such parameter, by name; rows lie along its leading dimension.
    rows
        Of branches, how many they get; the others stay as they are.

    Raises
    ------
    UnsupportedRelayError
        An op of a branch could mix rows; the message names op and branch.
    """
    mod = relay.transform.InferType()(mod)
    main = mod["main"]
    of_parameter = {}
    for parameter in main.params:
        branch = branch_of.get(parameter.name_hint)
        if branch is None or branch not in rows:
            continue
        before = static_shape(parameter.checked_type)[0]
        if rows[branch] != before:  # what does not grow cannot be followed
            of_parameter[parameter.name_hint] = Growth(Fraction(rows[branch], before), before)
    return _Resizer(of_parameter).run(main) if of_parameter else mod


class _Resizer(Rebatcher):
    """One walk; what a router and its moves of rows do is known here."""

    def __init__(self, growths: Mapping[str, Growth]) -> None:
        super().__init__(growths, "fewer rows of a branch than cells")

    def run(self, main: relay.Function) -> tvm.IRModule:
        """Return the typed module; most of what it makes is not of one branch."""
        return self._module(main, self._rebatched(main))

    def _call(self, call: relay.Call) -> Rebatched:
        kind = routing_kind(call)
        read = [self._done[argument] for argument in call.args]
        if kind is None or {axis for each in read for axis in each.axes} == {None}:
            return super()._call(call)
        growth = self._growth(call, read)
        rows = {"rows": int(growth.scale * int(call.attrs["rows"]))} if kind == "router" else {}
        new = with_reads(call, list(read[0].expr.fields), **rows)
        write_types(new)
        self._check_rows(call, read[0])
        if kind == "router":
            return Rebatched(new, (0, None, None), (growth,) * 3)
        return Rebatched(new, (None if kind == "dispatch" else 0,), (growth,))

    def _check_rows(self, call: relay.Call, read: Rebatched) -> None:
        """A nested router has the rows around it as its cells: each first axis but the buffer's."""
        kind = routing_kind(call)
        last = len(read.axes) - 1  # a router reads the loads of the branch around it there
        whole = {"router": (last,), "dispatch": (2,), "combine": (0, 2)}.get(str(kind))
        expected = tuple(None if place in (whole or ()) else 0 for place in range(last + 1))
        if whole is None or read.axes != expected:
            raise self._fault(call, "a router in a branch has the branch's rows as its cells")
