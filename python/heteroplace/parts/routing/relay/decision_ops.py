"""What a router has decided, as expressions of Relay."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relay


@dataclass(frozen=True)
class Decision:
    """Which cells take which branches. Made by the protocols (`relay.routing.protocols`)."""

    mask: relay.Expr
    """int32[C, B]: not 0 where a cell takes a branch."""
    top_k: int
    """Branches that a cell takes at most; a mask that gives one more is refused in the run."""
    gates: relay.Expr | None = None
    """float32[C, B]: by what a cell, or what a branch makes of it, is multiplied; None: by none."""
    priority: relay.Expr | None = None
    """float32[C]: cells of higher priority get the first seats, so that overflow drops the others;
    None: in their order."""
    capacity: int | None = None
    """The model drops what of a branch's cells is behind so many; None: it drops none."""


def times_gate(
    x: relay.Expr, gates: relay.Expr, branch: int, type_: relay.TensorType
) -> relay.Expr:
    """Return what one cell has, of a type, times its gate for a branch: gates[1, B]."""
    gate = relay.strided_slice(gates, [branch], [branch + 1], axes=[1])
    gate = relay.reshape(gate, [1] * len(type_.shape))
    return relay.multiply(x, gate if type_.dtype == "float32" else relay.cast(gate, type_.dtype))
