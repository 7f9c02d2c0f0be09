"""Routers: which branches of a network run for which cells, decided in each run.

A router sends each cell of a tensor (a token, a patch, an image) to at most `top_k` of its branches
(Brainstorm, OSDI 2023, sections 3 and 4). Its kernel makes the loads, int32[branches]: how many
cells each branch has in this run. Tasks of a branch are compiled for a few numbers of rows, its
capacities, and run at the smallest that holds the load; where the load is 0 they are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Router:
    """What decides how many cells each of several branches has in a run."""

    name: str
    """Unique in its graph and stable from run to run."""
    task: int
    """Id of the task that makes `loads`."""
    loads: int
    """Id of the tensor int32[num_branches]: the cells of each branch."""
    num_cells: int
    """1: a cell is a whole tensor, and no rows are moved."""
    top_k: int
    """Most branches that a cell goes to."""
    capacities: tuple[tuple[int, ...], ...]
    """For each branch the numbers of rows that its tasks are compiled for, ascending."""
    overflow: str = "rounds"
    """What becomes of cells beyond the largest capacity: one of `model.capacities.OVERFLOWS`."""
    quantum: int = 1
    """Rows of a branch begin at multiples of it in a routed buffer."""
    parent: tuple[str, int] | None = None
    """(router's name, branch) of the branch that it is in; None: it is in none."""

    @property
    def num_branches(self) -> int:
        """Number of branches; at least one."""
        return len(self.capacities)

    def capacity_of(self, branch: int, size: int) -> int:
        """Return the capacity at which a branch is costed for a batch of `size` cells: its smallest
        that holds them, else its largest."""
        own = self.capacities[branch]
        return next((each for each in own if each >= size), own[-1])


@dataclass(frozen=True)
class RouterFigures:
    """What a router's branches do in a run of a plan, on average."""

    router: Router
    cells: tuple[float, ...]
    """Of each branch; those that are dropped are none."""
    rows: tuple[float, ...]
    """That each branch executes."""
    memories: tuple[tuple[str, ...], ...]
    """In which the tasks of each branch run."""

    @property
    def padding_share(self) -> float:
        """The part of the executed rows that holds no cell; 0.0 of none."""
        total = sum(self.rows)
        return 1 - sum(self.cells) / total if total else 0.0


def branches_around(
    routers: Sequence[Router], router_ids: Mapping[str, int], branch: tuple[str, int] | None
) -> tuple[tuple[int, int], ...]:
    """Return the (router id, branch) that a branch is or is in, the innermost first.

    Ends at a router that does not exist, or that is its own parent.
    """
    around: dict[tuple[int, int], None] = {}
    while branch is not None and branch[0] in router_ids:
        router = router_ids[branch[0]]
        if (router, branch[1]) in around:
            break
        around[router, branch[1]] = None
        branch = routers[router].parent
    return tuple(around)
