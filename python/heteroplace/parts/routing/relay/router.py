"""What a router op says of itself: its branches' capacities and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heteroplace.errors import RoutingError
from heteroplace.model.routed.capacities import capacity_faults
from heteroplace.parts.routing.relay.rows import buffer_rows


@dataclass(frozen=True)
class RouterOptions:
    """The attributes of a router op. `checked()` says whether they fit together."""

    name: str
    """Unique in its module."""
    capacities: tuple[tuple[int, ...], ...]
    """For each branch the rows that it is compiled for, ascending."""
    top_k: int
    """Branches that a cell takes at most."""
    overflow: str = "rounds"
    """What becomes of a load above the largest capacity (`heteroplace.model.routed.capacities`)."""
    quantum: int = 1
    """Branches begin at multiples of so many rows of a routed buffer."""
    memories: str = ""
    """For each branch the memory that it is to be in, comma between them; "": free."""
    predict: str = ""
    """Branches that are run before the router has decided, comma between them, and the share of the
    runs in which that is right, where it is known: "0,2@0.93"; "": none."""
    preload: str = ""
    """Which weights of branches stay under a budget, and which are loaded ahead
    (`heteroplace.parts.routing.relay.branches.branch_weights`); "": all stay."""

    @property
    def num_branches(self) -> int:
        """How many branches it has."""
        return len(self.capacities)

    def rows(self, num_cells: int) -> int:
        """Return how many rows a buffer of its cells has: enough for any mask."""
        return buffer_rows(num_cells, self.top_k, self.capacities, self.overflow, self.quantum)

    def checked(self, num_branches: int) -> RouterOptions:
        """Return itself.

        Raises
        ------
        RoutingError
            Capacities of another number of branches or in disorder, an unknown policy, a quantum
            or `top_k` below 1, a name that cannot be printed.
        """
        faults = capacity_faults(self.capacities, num_branches, self.overflow)
        if not self.name.isprintable():
            faults.append("a name is one line of text; choose another one")
        if self.quantum < 1:
            faults.append(f"quantum is {self.quantum}, expected at least 1")
        if not 1 <= self.top_k <= num_branches:
            faults.append(f"top_k is {self.top_k}, expected 1 to {num_branches}")
        if faults:
            raise RoutingError(f"router {self.name!r}: {'; '.join(faults)}")
        return self

    def attributes(self) -> dict[str, Any]:
        """Return them as attributes of the op."""
        return {
            "name": self.name,
            "capacities": [size for sizes in self.capacities for size in sizes],
            "counts": [len(sizes) for sizes in self.capacities],
            "top_k": self.top_k,
            "overflow": self.overflow,
            "quantum": self.quantum,
            "memories": self.memories,
            "predict": self.predict,
            "preload": self.preload,
        }


def router_options(attrs: Any) -> RouterOptions:
    """Return the options that the attributes of a router op say."""
    flat = [int(size) for size in attrs["capacities"][:]]
    capacities, begin = [], 0
    for count in attrs["counts"][:]:
        capacities.append(tuple(flat[begin : begin + int(count)]))
        begin += int(count)
    return RouterOptions(
        str(attrs["name"]),
        tuple(capacities),
        int(attrs["top_k"]),
        str(attrs["overflow"]),
        int(attrs["quantum"]),
        str(attrs["memories"]),
        str(attrs["predict"]),
        str(attrs["preload"]),
    )
