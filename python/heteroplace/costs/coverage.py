"""What estimated times rest on: ops without a cost function, sizes far from measured ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from heteroplace.costs.prediction.op_regression import MAX_EXTRAPOLATION


class Beyond(NamedTuple):
    """Tasks of an op that are far outside the sizes that its line was fitted to."""

    op: str
    num_tasks: int
    most: float
    """How many times outside, for the task that is furthest."""


@dataclass(frozen=True)
class Coverage:
    """What the times of a graph rest on beside cost functions and measured sizes."""

    uncovered: Mapping[str, int] = field(default_factory=dict)
    """Ops without a cost function, with the number of tasks: they cost one launch."""
    beyond: tuple[Beyond, ...] = ()
    """More than MAX_EXTRAPOLATION times outside the measured sizes, by op."""

    def text(self) -> str:
        """Return it as lines; "": there is nothing to say."""
        lines = []
        if self.uncovered:
            listed = ", ".join(f"{op} ({count})" for op, count in self.uncovered.items())
            lines.append(f"without a cost function, counted as one launch: {listed}")
        for op, count, most in self.beyond:
            lines.append(
                f"{count} tasks of {op} are up to {most:.3g} times outside the measured sizes; "
                f"up to {MAX_EXTRAPOLATION:g} is sound"
            )
        return "\n".join(lines)
