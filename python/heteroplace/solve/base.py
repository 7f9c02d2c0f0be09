"""What a solver takes and gives, and the list of solvers.

Objective, bound and gap follow DiviML: `objective_ns` is what our own simulator finds for the plan,
`bound_ns` is proven, gap = (objective - bound) / objective.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from heteroplace.errors import SolverError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.native.schedule import Draft, NativeProblem

OBJECTIVES = ("latency", "throughput")
"""What can be asked for: a short run, or many runs per second. Every solver offers the first."""

MAX_CPSAT_TASKS = 150
"""Above this CP-SAT's model takes longer to load and to repeat its hint than the search to do
better."""

STATUSES = ("optimal", "feasible", "interrupted")
"""Proven to equal the bound; valid; valid, and ended by Ctrl-C."""


@dataclass(frozen=True)
class ProgressReport:
    """How far a solver is."""

    stage: str
    """What it does, e.g. "heft" or "search"."""
    elapsed_s: float
    """Seconds since the stage began."""
    best_ns: int | None
    """Objective of the best valid plan so far; None: there is none yet."""
    bound_ns: int
    """No plan is better; 0: nothing is proven yet."""
    plan: Callable[[], Plan] | None = None
    """Returns that plan, so that it is not lost if the solver is interrupted; None: the solver
    itself returns it then."""

    @property
    def gap(self) -> float | None:
        """(best - bound) / best; None without a plan."""
        if self.best_ns is None:
            return None
        return (self.best_ns - self.bound_ns) / self.best_ns if self.best_ns else 0.0


Progress = Callable[[ProgressReport], None]


@dataclass(frozen=True)
class Problem:
    """What is to be placed, on what, and what it costs."""

    graph: TaskGraph
    cluster: Cluster
    costs: CostTable

    @cached_property
    def native(self) -> NativeProblem:
        """The same as flat arrays, made on first use."""
        return NativeProblem(self.graph, self.cluster, self.costs)


@dataclass(frozen=True)
class SolveOptions:
    """How long to try and what for. Checked on construction: SolverError names the field."""

    objective: str = "latency"
    """What is minimised: "latency", the makespan of one run; or "throughput", the time from one
    item to the next when items follow each other without a pause."""
    time_limit_s: float = 10.0
    """Wall time for the whole solve, in seconds. A run that ends by it is not reproducible."""
    iterations: int | None = None
    """Deterministic budget: schedules that a search tries; CP-SAT gets
    iterations / ITERATIONS_PER_DETERMINISTIC_SECOND of its deterministic seconds. With it, equal
    seeds and thread counts give equal results. None: only the time limits."""
    items: int = 1
    """Model inputs that the plan serves together; the makespan is that of all of them, the
    throughput items / makespan. Only the batched solvers make plans for more than one."""
    seed: int = 0
    """Seed of every random choice; >= 0."""
    threads: int = 2
    """Threads of `search`, `lns`, `throughput`, `auto` and CP-SAT; the other solvers use one."""
    min_gain_ratio: float = 0.02
    """`auto` uses several devices only if that is shorter than the best single device by more than
    this part; a smaller predicted gain is within what measured costs can be wrong by."""
    progress: Progress | None = None
    """Called now and then while a solver works; None: silence."""

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise SolverError(
                f"objective {self.objective!r} is not offered; supported: {', '.join(OBJECTIVES)}"
            )
        limits = (
            ("time_limit_s", self.time_limit_s > 0, "> 0"),
            ("iterations", self.iterations is None or self.iterations >= 0, ">= 0 or None"),
            ("items", self.items >= 1, ">= 1"),
            ("seed", 0 <= self.seed < 2**31, "in 0..2**31-1"),
            ("threads", self.threads >= 1, ">= 1"),
            ("min_gain_ratio", 0 <= self.min_gain_ratio < 1, "in [0, 1)"),
        )
        for name, is_right, expected in limits:
            if not is_right:
                raise SolverError(f"{name} must be {expected}, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class SolveResult:
    """A valid plan and how good it is known to be."""

    plan: Plan
    objective_ns: int
    """Makespan of the plan by `heteroplace.simulate`."""
    bound_ns: int
    """No plan is shorter (for CP-SAT: none whose copies leave their tensor's home)."""
    status: str
    """One of STATUSES."""
    solver: str
    wall_s: float
    candidates: tuple[tuple[str, int | None, str], ...] = ()
    """(name, makespan in ns or None, note) of everything that was tried."""

    @property
    def gap(self) -> float:
        """(objective - bound) / objective; 0 is proven optimal."""
        if self.objective_ns == 0:
            return 0.0
        return (self.objective_ns - self.bound_ns) / self.objective_ns


class Solver(Protocol):
    """Finds a plan. A class that offers more than "latency" lists it in `objectives`; one that
    makes plans for several items says `takes_items = True`."""

    @property
    def name(self) -> str:
        """Its key in `SOLVERS`."""

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """Return the best plan found.

        Raises
        ------
        InfeasibleError
            No placement satisfies the memory, link and pinning constraints.
        SolverLimitError
            No plan was found within the budget.
        SolverError
            The solver cannot handle this problem.
        """


class RegisteredSolver:
    """A solver under its name. Its module is loaded when it first solves.

    So the names are known, and one solver runs, without the libraries of all the others.
    """

    def __init__(self, name: str, make: Callable[[], Solver]) -> None:
        self.name = name
        self._make = make

    @cached_property
    def _solver(self) -> Solver:
        return self._make()

    @property
    def objectives(self) -> tuple[str, ...]:
        """Those of OBJECTIVES that it offers."""
        offered: tuple[str, ...] = getattr(self._solver, "objectives", OBJECTIVES[:1])
        return offered

    @property
    def takes_items(self) -> bool:
        """Whether it makes plans for several items."""
        return bool(getattr(self._solver, "takes_items", False))

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`; SolverError for an objective or items that it does not offer."""
        if options.objective not in self.objectives:
            others = [name for name in SOLVERS if options.objective in SOLVERS[name].objectives]
            raise SolverError(
                f"solver {self.name!r} does not offer objective {options.objective!r}; offered by: "
                f"{', '.join(others) or 'no solver'}"
            )
        if options.items > 1 and not self.takes_items:
            others = [name for name in SOLVERS if SOLVERS[name].takes_items]
            raise SolverError(
                f"solver {self.name!r} makes plans for one item, not for {options.items}; for "
                f"several there are: {', '.join(others) or 'no solver'}"
            )
        return self._solver.solve(problem, options)


class SolverRegistry(MutableMapping[str, Solver]):
    """All solvers by name, in the order they were added; gives a RegisteredSolver for each."""

    def __init__(self) -> None:
        self._solvers: dict[str, RegisteredSolver] = {}

    def add(self, name: str, module: str, class_name: str) -> None:
        """Add the solver that `class_name()` of `module` makes; nothing is loaded."""

        def make() -> Solver:
            solver: Solver = getattr(importlib.import_module(module), class_name)()
            return solver

        self._solvers[name] = RegisteredSolver(name, make)

    def __setitem__(self, name: str, solver: Solver) -> None:
        self._solvers[name] = RegisteredSolver(name, lambda: solver)

    def __delitem__(self, name: str) -> None:
        del self._solvers[name]

    def __getitem__(self, name: str) -> RegisteredSolver:
        return self._solvers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._solvers)

    def __len__(self) -> int:
        return len(self._solvers)


SOLVERS = SolverRegistry()
"""Filled by `heteroplace.solve`."""


def get_solver(name: str) -> RegisteredSolver:
    """Return the solver called `name`.

    Raises
    ------
    SolverError
        There is none; the message lists the names.
    """
    if name not in SOLVERS:
        raise SolverError(f"no solver is called {name!r}; there are: {', '.join(SOLVERS)}")
    return SOLVERS[name]


def report(
    options: SolveOptions,
    stage: str,
    begin: float,
    best_ns: int | None,
    bound_ns: int = 0,
    plan: Callable[[], Plan] | None = None,
) -> None:
    """Call `options.progress`, if there is one; `begin` is when the stage began."""
    if options.progress is not None:
        elapsed = time.perf_counter() - begin
        options.progress(ProgressReport(stage, elapsed, best_ns, bound_ns, plan))


def make_result(
    problem: Problem,
    plan: Plan,
    bound_ns: int,
    solver: str,
    wall_s: float,
    *,
    was_interrupted: bool = False,
    candidates: tuple[tuple[str, int | None, str], ...] = (),
    draft: Draft | None = None,
) -> SolveResult:
    """Simulate `plan` and wrap it; the status follows from objective and bound.

    `draft` is what the plan's steps are made of, if there is one: the simulator then reads its rows
    and the steps are not turned back into numbers.
    """
    native = problem.native
    if draft is None:
        objective = native.simulate(plan.steps, plan.items).makespan_ns
    else:
        objective = native.makespan_ns(draft)
    status = "interrupted" if was_interrupted else "feasible"
    if objective == bound_ns:
        status = "optimal"
    return SolveResult(plan, objective, bound_ns, status, solver, wall_s, candidates)
