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

from heteroplace.relay.expressions import static_shape
from heteroplace.relay.frontend.incremental_types import write_types
from heteroplace.relay.routing.ops import reads_of, routing_kind, with_reads
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
    main = relay.transform.InferType()(mod)["main"]
    growths: dict[Branch, Growth] = {}
    of_parameter = {}
    for parameter in main.params:
        branch = branch_of.get(parameter.name_hint)
        if branch is None or branch not in rows:
            continue
        before = static_shape(parameter.checked_type)[0]
        growths[branch] = Growth(Fraction(rows[branch], before), before)
        if rows[branch] != before:  # what does not grow cannot be followed
            of_parameter[parameter.name_hint] = growths[branch]
    return _Resizer(of_parameter, growths).run(main)


class _Resizer(Rebatcher):
    """One walk; what a router and its moves of rows do is known here."""

    def __init__(self, growths: Mapping[str, Growth], of_branch: Mapping[Branch, Growth]) -> None:
        super().__init__(growths, "fewer rows of a branch than cells")
        self._of_branch = of_branch

    def run(self, main: relay.Function) -> tvm.IRModule:
        """Return the typed module; most of what it makes is not of one branch."""
        return self._module(main, self._rebatched(main))

    def _call(self, call: relay.Call) -> Rebatched:
        kind = routing_kind(call)
        if kind == "valid_rows":
            return self._valid_rows(call)
        read = [self._done[argument] for argument in call.args]
        if kind is None or {axis for each in read for axis in each.axes} == {None}:
            return super()._call(call)
        growth = self._growth(call, read)
        new = with_reads(call, list(read[0].expr.fields))
        write_types(new)
        self._check_rows(call, read[0])
        if kind == "router":
            return Rebatched(new, (0, None, None), (growth,) * 3)
        return Rebatched(new, (None if kind == "dispatch" else 0,), (growth,))

    def _valid_rows(self, call: relay.Call) -> Rebatched:
        read = [self._done[argument].expr for argument in reads_of(call)]
        growth = self._of_branch.get((str(call.attrs["router"]), int(call.attrs["branch"])))
        before = int(call.attrs["rows"])
        if growth is None or growth.scale == 1:
            new = with_reads(call, read)
            write_types(new)
            return Rebatched(new, (None,))
        new = with_reads(call, read, rows=int(growth.scale * before))
        write_types(new)
        return Rebatched(new, (0,), (growth,))

    def _check_rows(self, call: relay.Call, read: Rebatched) -> None:
        """A nested router has the rows around it as its cells: each first axis but the buffer's."""
        kind = routing_kind(call)
        whole = {"dispatch": (2,), "combine": (0, 2)}.get(str(kind), ())
        expected = tuple(None if place in whole else 0 for place in range(len(read.axes)))
        if kind not in ("router", "dispatch", "combine") or read.axes != expected:
            raise self._fault(call, "a router in a branch has the branch's rows as its cells")
