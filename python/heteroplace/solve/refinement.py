"""Sizes and structure of a problem -> the solver that refines the plan of the search in `auto`.

The seam `Refinement`: a part registers one more in the group `heteroplace.refinements`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from heteroplace.model.plan import Step
from heteroplace.registry import load_plugins
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.problem import MAX_CPSAT_TASKS, MAX_MODULE_TASKS, Problem, SolveOptions

if TYPE_CHECKING:
    from heteroplace.solve.bounds.bound import Bound

_SEAM = "refinements"

REFINEMENTS = {
    "cpsat": "heteroplace.solve.exact.cpsat",
    "lns": "heteroplace.solve.lns.engine",
}
"""Name of a refinement solver of the core -> its module. They load OR-Tools, which what is proven
by bounds never needs."""

_MAX_MEMORIES = 24
_MAX_CHOICES = 60_000
"""Of devices and of copies in one exact model: building it takes some seconds."""

EARLY, LATE = 0.6, 0.8
"""Patience with the search where what comes after it is exact in itself, and where it is not."""


@dataclass(frozen=True)
class Route:
    """How `auto` goes on where the search has stalled."""

    refinements: tuple[str, ...]
    """What takes turns with the search, each after the one before it gains nothing: of "cpsat",
    "lns" and what parts add; (): nothing does."""
    reason: str
    """Why, for people."""
    patience: float = LATE
    """Part of the time of the search without gain after which others have a turn."""


@dataclass(frozen=True)
class RefinementEnd:
    """What a refinement solver made of a plan."""

    steps: tuple[Step, ...]
    """The shorter of its plan and the one given."""
    bound_ns: int
    was_interrupted: bool
    notes: tuple[tuple[str, int | None, str], ...]
    """(name, makespan in ns or None, note) of what was done."""


Prover = Callable[[float, int, int], "Bound"]
"""(time limit in s, threads, a known makespan in ns or 0) -> a bound on the makespan."""


class Refinement(Protocol):
    """A refinement solver that a part adds. Loading it does not load what solves (`module`)."""

    module: str
    """Its solver, which loads OR-Tools and is imported at its first turn."""

    def route(self, problem: Problem) -> Route | None:
        """Return the route of `auto` that begins with this solver; None: it does not suit."""

    def improve(
        self,
        problem: Problem,
        incumbent: tuple[Step, ...],
        options: SolveOptions,
        deadline: Deadline,
        bound_ns: int,
    ) -> RefinementEnd:
        """Improve a plan that fits, and raise the bound where it can."""

    def prover(self, problem: Problem) -> Prover | None:
        """Return what proves a bound of the effort "thorough"; None: it has nothing to say.

        The prover raises KeyboardInterrupt where Ctrl-C comes meanwhile.
        """


def added_refinements() -> Mapping[str, Refinement]:
    """Return the refinement solvers of parts by name."""
    return load_plugins(_SEAM)


def load_refinement(name: str) -> ModuleType:
    """Return the module of a refinement solver."""
    return importlib.import_module(_module_of(name))


def is_loaded(name: str) -> bool:
    """Whether `load_refinement(name)` takes no time."""
    return _module_of(name) in sys.modules


def _module_of(name: str) -> str:
    return REFINEMENTS[name] if name in REFINEMENTS else added_refinements()[name].module


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
    added = added_refinements()
    for refinement in added.values():
        route = refinement.route(problem)
        if route is not None:
            return route
    if count <= MAX_CPSAT_TASKS:
        cuts = " without narrow cuts" if added else ""
        reason = f"{count} tasks{cuts}: neighbourhoods, then one exact model"
        return Route(("lns", "cpsat"), reason)
    return Route(("lns",), f"{count} tasks: search, then neighbourhoods of its plan exactly")
