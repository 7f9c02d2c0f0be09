"""Loads of a router's branches -> rows that are computed for them, and where they begin.

A branch runs on rows of cells, in one of a few sizes that it is compiled for: its capacities. Its
load is padded to the smallest capacity that holds it, and a branch without cells has no rows. The
branches lie one after another in a routed buffer. What becomes of a load above the largest
capacity is the router's overflow policy:

    rounds    the branch runs several times; nothing is lost
    drop      cells behind the largest capacity are dropped, which only some models mean
    error     the run fails

Source: Cui et al., "Optimizing Dynamic Neural Networks with Brainstorm" (OSDI 2023), 3 and 4.1.
Unlike it, nothing is dropped unless the model says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

OVERFLOWS = ("rounds", "drop", "error")
"""What becomes of a load above the largest capacity."""


def padded_load(load: int, capacities: Sequence[int], overflow: str = "rounds") -> int:
    """Return how many rows are computed for a load.

    Parameters
    ----------
    load
        Cells that chose the branch.
    capacities
        Rows that the branch is compiled for, ascending.
    overflow
        One of `OVERFLOWS`. An "error" is padded as in rounds; who runs the program raises it.

    >>> [padded_load(load, (1, 2, 4)) for load in (0, 1, 3, 4, 6)]
    [0, 1, 4, 4, 6]
    >>> padded_load(6, (1, 2, 4), "drop")
    4
    """
    largest = capacities[-1]
    if overflow == "drop":
        load = min(load, largest)
    rounds, rest = divmod(load, largest)
    last = 0 if rest == 0 else next(size for size in capacities if size >= rest)
    return rounds * largest + last


def dropped_cells(load: int, capacities: Sequence[int], overflow: str) -> int:
    """Return how many cells of a load are dropped.

    >>> dropped_cells(6, (1, 2, 4), "drop"), dropped_cells(6, (1, 2, 4), "rounds")
    (2, 0)
    """
    return max(0, load - capacities[-1]) if overflow == "drop" else 0


def branch_rows(load: int, capacities: Sequence[int], overflow: str, quantum: int) -> int:
    """Return how many rows of a routed buffer a branch takes.

    Parameters
    ----------
    quantum
        Branches begin at multiples of so many rows, as kernels need aligned memory.
    """
    return -(-padded_load(load, capacities, overflow) // quantum) * quantum


def offsets_of(
    loads: Sequence[int],
    capacities: Sequence[Sequence[int]],
    overflow: str = "rounds",
    quantum: int = 1,
) -> tuple[int, ...]:
    """Return the first row of each branch in a routed buffer.

    >>> offsets_of((3, 4, 0), [(1, 2, 4, 8)] * 3)
    (0, 4, 8)
    """
    offsets, end = [], 0
    for load, sizes in zip(loads, capacities, strict=True):
        offsets.append(end)
        end += branch_rows(load, sizes, overflow, quantum)
    return tuple(offsets)


def default_capacities(num_cells: int) -> tuple[int, ...]:
    """Return the capacities of a branch of which no loads are known: doubling, up to all cells.

    >>> default_capacities(6)
    (1, 2, 4, 6)
    """
    sizes = [1]
    while sizes[-1] * 2 < num_cells:
        sizes.append(sizes[-1] * 2)
    return tuple(dict.fromkeys((*sizes, num_cells)))


def capacity_faults(
    capacities: Sequence[Sequence[int]], num_branches: int, overflow: str
) -> list[str]:
    """Return what is wrong with the capacities of a router's branches; empty if nothing is."""
    faults = []
    if overflow not in OVERFLOWS:
        faults.append(f"overflow is {overflow!r}, expected one of {', '.join(OVERFLOWS)}")
    if len(capacities) != num_branches:
        faults.append(f"it has capacities of {len(capacities)} branches, expected {num_branches}")
    for branch, sizes in enumerate(capacities):
        is_ascending = all(a < b for a, b in pairwise(sizes))
        if not sizes or sizes[0] < 1 or not is_ascending:
            faults.append(
                f"branch {branch} has capacities {tuple(sizes)}, expected at least one, "
                f"positive and ascending"
            )
    return faults
