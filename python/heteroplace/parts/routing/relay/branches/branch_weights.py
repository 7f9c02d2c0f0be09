"""What a router says of the weights of its branches under a budget, and its text in an attribute.

    budget 400; keep 0:1000,2:520; ahead 3:900

Behind each branch stands in how many of 1000 runs it is active. All others are loaded on demand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from heteroplace.errors import RoutingError

Likely = tuple[tuple[int, int], ...]
"""((branch, in how many of 1000 runs it is active), ..)"""
_LIST = r"(-|\d+:\d+(?:,\d+:\d+)*)"
_TEXT = re.compile(rf"budget (\d+); keep {_LIST}; ahead {_LIST}")


@dataclass(frozen=True)
class BranchWeights:
    """Of one router."""

    budget_bytes: int
    """For the weights of all branches of all routers, in each memory where branches run."""
    kept: Likely
    """Branches whose weights stay."""
    ahead: Likely
    """Branches whose weights are loaded before the router has decided."""

    def text(self) -> str:
        """Return the text that `read_branch_weights` reads."""
        return f"budget {self.budget_bytes}; keep {_list(self.kept)}; ahead {_list(self.ahead)}"


def read_branch_weights(router: str, text: str, num_branches: int) -> BranchWeights | None:
    """Return what the attribute `preload` of a router says; "": nothing, None.

    Raises
    ------
    RoutingError
        It is no such text, or names branches that there are not, or one both ways.
    """
    if not text:
        return None
    match = _TEXT.fullmatch(text)
    if match is None:
        raise RoutingError(
            f"router {router!r}: preload is {text!r}, expected a text such as "
            f"'budget 400; keep 0:1000; ahead 3:900', as PreloadWeights makes it"
        )
    read = BranchWeights(int(match[1]), _read(match[2]), _read(match[3]))
    branches = [branch for branch, _ in (*read.kept, *read.ahead)]
    if len(set(branches)) < len(branches) or max(branches, default=0) >= num_branches:
        raise RoutingError(
            f"router {router!r}: preload is {text!r}, expected branches from 0 to "
            f"{num_branches - 1}, each once"
        )
    return read


def _list(branches: Likely) -> str:
    return ",".join(f"{branch}:{share}" for branch, share in branches) or "-"


def _read(text: str) -> Likely:
    pairs = [] if text == "-" else [entry.split(":") for entry in text.split(",")]
    return tuple((int(branch), int(share)) for branch, share in pairs)
