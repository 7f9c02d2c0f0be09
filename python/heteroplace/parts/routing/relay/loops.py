"""A loop over cells that end it one by one -> its turns, unrolled: a router for each.

    y = loop(cells, goes_on, body, max_turns=2)
    ==>  y1 = route(cells of x, mask = goes_on(x), [body], residual=x)
         y2 = route(cells of y1, mask = goes_on(x) and goes_on(y1), [body], residual=y1)

Source: Cui et al., "Optimizing Dynamic Neural Networks with Brainstorm" (OSDI 2023), 3.2: cells go
back to the loop's head, or out. Unlike it, the turns are counted: a Relay module is static.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relay

from heteroplace.errors import RoutingError
from heteroplace.parts.routing.relay.api import Branch, route
from heteroplace.parts.routing.relay.cells import Cells, annotate_cell, shape_of
from heteroplace.parts.routing.relay.decision_ops import Decision


def loop(
    cells: Cells,
    goes_on: Callable[[relay.Expr], relay.Expr],
    body: Branch,
    max_turns: int,
    capacities: Sequence[int] | None = None,
    name: str = "",
) -> relay.Expr:
    """Return the cells' tensor after at most so many turns; each cell leaves when it is done.

    Parameters
    ----------
    goes_on
        Rows of all cells, [C, cell..] -> bool or integer [C]: whether a cell takes a turn. Of a
        cell that has left the loop the answer does not count.
    body
        Rows of cells -> their rows after a turn, of the same shape.
    capacities
        As for `route`, of all turns.
    name
        Of the routers: "NAME.1" for the first turn and so on; "": numbered with all others.

    Raises
    ------
    RoutingError
        Fewer than one turn, or a body whose rows have another shape; else as `route`.
    """
    if max_turns < 1:
        raise RoutingError(f"a loop of {max_turns} turns; expected 1 or more")
    shape = shape_of(cells.tensor)
    stays: relay.Expr = relay.const(np.ones(cells.num_cells, dtype="int32"))
    y = cells.tensor
    for turn in range(max_turns):
        current = annotate_cell(y, cells.dims, cells.shape)
        flag = relay.cast(goes_on(current.rows), "bool")
        stays = relay.multiply(stays, relay.cast(flag, "int32"))
        decision = Decision(relay.expand_dims(stays, 1), 1)
        turn_name = f"{name}.{turn + 1}" if name else ""
        y = route(current, decision, [body], None, y, capacities, name=turn_name)
        if isinstance(y, list) or shape_of(y) != shape:
            raise RoutingError(
                f"a loop's body makes of {shape} something of another shape; what a turn reads is "
                f"what the one before has made"
            )
    return y
