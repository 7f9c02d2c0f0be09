"""Sizes and structure of a problem -> the solver that refines the plan of the search in `auto`."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from types import ModuleType

from heteroplace.decompose import MAX_MODULE_TASKS
from heteroplace.solve.problem import MAX_CPSAT_TASKS, Problem

REFINEMENTS = {
    "cpsat": "heteroplace.solve.exact.cpsat",
    "split": "heteroplace.solve.split.split_solver",
    "lns": "heteroplace.solve.lns.engine",
}
"""Name of a refinement solver -> its module. They load OR-Tools, which what is proven by bounds
never needs."""

_MAX_SPLIT_TASKS = 2_000
"""Modules of larger graphs are too many, or too large, to be solved within seconds; equal ones are
solved once by the search as well."""

_MAX_MEMORIES = 24
_MAX_CHOICES = 60_000
"""Of devices and of copies in one exact model: building it takes some seconds."""

EARLY, LATE = 0.6, 0.8
"""Patience with the search where what comes after it is exact in itself, and where it is not."""


def load_refinement(name: str) -> ModuleType:
    """Return the module of a refinement solver."""
    return importlib.import_module(REFINEMENTS[name])


def is_loaded(name: str) -> bool:
    """Whether `load_refinement(name)` takes no time."""
    return REFINEMENTS[name] in sys.modules


@dataclass(frozen=True)
class Route:
    """How `auto` goes on where the search has stalled."""

    refinements: tuple[str, ...]
    """What takes turns with the search, each after the one before it gains nothing: of "cpsat",
    "split" and "lns"; (): nothing does."""
    reason: str
    """Why, for people."""
    patience: float = LATE
    """Part of the time of the search without gain after which others have a turn."""


def choose_route(problem: Problem) -> Route:
    """Return the route for a problem. O(n log n + m)."""
    count, num_memories = len(problem.graph.tasks), len(problem.cluster.memories)
    if num_memories > _MAX_MEMORIES:
        reason = f"{num_memories} memories: exact models would have all pairs of them"
        return Route((), reason)
    pairs = num_memories**2 * len(problem.graph.tensors)
    if count * len(problem.cluster.devices) + pairs > _MAX_CHOICES and count <= MAX_CPSAT_TASKS:
        reason = f"{pairs} copies between memories: neighbourhoods of the plan of the search"
        return Route(("lns",), reason)
    if count <= MAX_MODULE_TASKS:
        return Route(("cpsat", "lns"), f"{count} tasks: one exact model", EARLY)
    if count <= _MAX_SPLIT_TASKS:
        chain = problem.modules.chain
        largest = max(len(module.tasks) for module in chain)
        if len(chain) > 1 and largest <= MAX_CPSAT_TASKS:
            reason = f"a chain of {len(chain)} modules of up to {largest} tasks: each exactly"
            return Route(("split", "lns"), reason, EARLY)
        path = problem.modules.path
        if path is not None and len(path.modules) > 1:
            reason = f"{len(path.modules)} modules, up to {path.num_channels} channels between them"
            return Route(("split", "lns"), reason)
    if count <= MAX_CPSAT_TASKS:
        reason = f"{count} tasks without narrow cuts: neighbourhoods, then one exact model"
        return Route(("lns", "cpsat"), reason)
    return Route(("lns",), f"{count} tasks: search, then neighbourhoods of its plan exactly")
