"""A name -> the solver: one of ours, or one that a package registers as `heteroplace.solvers`.

One more solver of ours is one more line of SOLVERS. Each is loaded when it first solves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Protocol

from heteroplace.entries import load_entry
from heteroplace.errors import PluginError, SolverError
from heteroplace.native.core_limits import check_items
from heteroplace.registry import added_plugins, load_plugin
from heteroplace.solve.problem import (
    COARSENINGS,
    ENGINES,
    ITEMS,
    OBJECTIVES,
    Problem,
    ProgressReport,
    SolveOptions,
    SolveResult,
    check_items_of,
    make_result,
    status_of,
)

_SEAM = "solvers"
_COARSENED = "heteroplace.solve.coarsened:solve_coarsened"


class Solver(Protocol):
    """Finds a plan. A class that offers more than "latency" lists it in `objectives`; one that
    makes plans for several items says `takes_items = True`; one that solves programmes names their
    `engines` for each objective, and for ITEMS where those differ; one for small graphs has
    `max_tasks`."""

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


class _Reports:
    """A progress function that keeps the latest report with a plan, and passes all of them on."""

    def __init__(self, options: SolveOptions) -> None:
        self._options = options
        self._begin = time.perf_counter()
        self._latest: ProgressReport | None = None

    def __call__(self, report: ProgressReport) -> None:
        if report.plan is not None:
            self._latest = report
        if self._options.progress is not None:
            self._options.progress(report)

    def result(self, problem: Problem, solver: str) -> SolveResult:
        """Return the plan as the result of a solve that Ctrl-C ended; call it where that is caught.

        Raises
        ------
        KeyboardInterrupt
            No plan was reported.
        """
        latest = self._latest
        if latest is None or latest.plan is None:
            raise
        plan, wall_s = latest.plan(), time.perf_counter() - self._begin
        if self._options.objective == OBJECTIVES[0]:
            return make_result(problem, plan, latest.bound_ns, solver, wall_s, was_interrupted=True)
        objective_ns = latest.best_ns or 0
        status = status_of(objective_ns, latest.bound_ns, was_interrupted=True)
        return SolveResult(plan, objective_ns, latest.bound_ns, status, solver, wall_s)


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

    def load(self) -> None:
        """Load its module, which otherwise the first solve does."""
        _ = self._solver

    @property
    def objectives(self) -> tuple[str, ...]:
        """Those of OBJECTIVES that it offers."""
        offered: tuple[str, ...] = getattr(self._solver, "objectives", OBJECTIVES[:1])
        return offered

    @property
    def description(self) -> str:
        """The docstring of its class; "": it has none."""
        return type(self._solver).__doc__ or ""

    @property
    def takes_items(self) -> bool:
        """Whether it makes plans for several items."""
        return bool(getattr(self._solver, "takes_items", False))

    @property
    def takes_list_parts(self) -> bool:
        """Whether it is made of the parts that `list_parts` names."""
        return bool(getattr(self._solver, "takes_list_parts", False))

    @property
    def max_tasks(self) -> int | None:
        """Tasks of the largest graph that it takes; None: any number."""
        limit: int | None = getattr(self._solver, "max_tasks", None)
        return limit

    def engines(self, objective: str, items: int = 1) -> tuple[str, ...]:
        """Return those of ENGINES that its programmes may be solved by; none: it has none."""
        named: Mapping[str, tuple[str, ...]] = getattr(self._solver, "engines", {})
        return named.get(ITEMS if items > 1 and ITEMS in named else objective, ())

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`. What `options.coarsening` groups is placed as one, and told apart.

        Ctrl-C ends it with the best plan that the solver returned or reported until then.

        Raises
        ------
        SolverError
            Also: an objective, items or an engine that it does not offer.
        CostMismatchError
            So many items that sums of their times or sizes are too large.
        KeyboardInterrupt
            Ctrl-C came before there was a plan, or again.
        """
        self.check(options)
        if options.items > 1:
            check_items(options.items, problem.native.longest_ns, problem.native.max_bytes)
        reports = _Reports(options)
        watched = replace(options, progress=reports)
        try:
            if options.coarsening != COARSENINGS[0]:
                result: SolveResult = load_entry(_COARSENED)(problem, watched, self)
                return result
            return self._solver.solve(problem, watched)
        except KeyboardInterrupt:
            return reports.result(problem, self.name)

    def check(self, options: SolveOptions) -> None:
        """Raise SolverError for an objective, items or an engine that it does not offer."""
        if options.objective not in self.objectives:
            others = [name for name in SOLVERS if options.objective in SOLVERS[name].objectives]
            raise SolverError(
                f"solver {self.name!r} does not offer objective {options.objective!r}; offered by: "
                f"{', '.join(others) or 'no solver'}"
            )
        check_items_of(options.objective, options.items)
        if options.items > 1 and not self.takes_items:
            others = [name for name in SOLVERS if SOLVERS[name].takes_items]
            raise SolverError(
                f"solver {self.name!r} makes plans for one item, not for {options.items}; for "
                f"several there are: {', '.join(others) or 'no solver'}"
            )
        default = SolveOptions.list_parts
        if options.list_parts != default and not self.takes_list_parts:
            others = [name for name in SOLVERS if SOLVERS[name].takes_list_parts]
            raise SolverError(
                f"solver {self.name!r} is not made of parts, list_parts {options.list_parts!r} are "
                f"for: {', '.join(others)}"
            )
        engines = self.engines(options.objective, options.items)
        if options.engine not in (ENGINES[0], *engines):
            others = [name for name in SOLVERS if options.engine in _engines_of(name, options)]
            raise SolverError(
                f"solver {self.name!r} solves no programme by engine {options.engine!r} for "
                f"{options.objective} (it takes: {', '.join(engines) or 'none'}); solvers that do: "
                f"{', '.join(others) or 'none'}"
            )


def _engines_of(name: str, options: SolveOptions) -> tuple[str, ...]:
    return SOLVERS[name].engines(options.objective, options.items)


class SolverRegistry(MutableMapping[str, Solver]):
    """All solvers by name: ours, those of other packages, and those that the program adds."""

    def __init__(self, sources: Sequence[tuple[str, str]]) -> None:
        self._solvers = {name: RegisteredSolver(name, partial(_load, src)) for name, src in sources}
        self._own = frozenset(self._solvers)

    def _with_plugins(self) -> dict[str, RegisteredSolver]:
        """All solvers; those of packages are looked up here, as `import heteroplace` needs none."""
        for name in added_plugins(_SEAM, self._own, is_ranked=True):
            if name not in self._solvers:
                self._solvers[name] = RegisteredSolver(name, partial(_load_added, name))
        return self._solvers

    def __setitem__(self, name: str, solver: Solver) -> None:
        self._solvers[name] = RegisteredSolver(name, lambda: solver)

    def __delitem__(self, name: str) -> None:
        del self._solvers[name]

    def __getitem__(self, name: str) -> RegisteredSolver:
        return self._with_plugins()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._with_plugins())

    def __len__(self) -> int:
        return len(self._with_plugins())


def _load(source: str) -> Solver:
    """Make the solver of a "module:class"."""
    solver: Solver = load_entry(source)()
    return solver


def _load_added(name: str) -> Solver:
    """Make the solver that a package registers."""
    solver: Solver = load_plugin(_SEAM, name)()
    if not callable(getattr(solver, "solve", None)):
        raise PluginError(
            f"the plugin {name!r} of the group 'heteroplace.{_SEAM}' makes a "
            f"{type(solver).__name__}, which has no method solve(problem, options)"
        )
    return solver


SOLVERS = SolverRegistry(
    (
        ("auto", "heteroplace.solve.portfolio:AutoSolver"),
        ("single", "heteroplace.solve.list.single:SingleSolver"),
        ("heft", "heteroplace.solve.list.heft:HeftSolver"),
        ("cpop", "heteroplace.solve.list.parts:CpopSolver"),
        ("peft", "heteroplace.solve.list.parts:PeftSolver"),
        ("met", "heteroplace.solve.list.parts:MetSolver"),
        ("greedy", "heteroplace.solve.list.parts:GreedySolver"),
        ("mct", "heteroplace.solve.list.parts:MctSolver"),
        ("olb", "heteroplace.solve.list.parts:OlbSolver"),
        ("min-min", "heteroplace.solve.list.parts:MinMinSolver"),
        ("max-min", "heteroplace.solve.list.parts:MaxMinSolver"),
        ("sufferage", "heteroplace.solve.list.parts:SufferageSolver"),
        ("list", "heteroplace.solve.list.parts:PartsSolver"),
        ("etf", "heteroplace.solve.list.earliest:EtfSolver"),
        ("m-topo", "heteroplace.solve.list.m_topo:MTopoSolver"),
        ("m-topo-uniform", "heteroplace.solve.list.m_topo:UniformMTopoSolver"),
        ("m-etf", "heteroplace.solve.list.earliest:MEtfSolver"),
        ("m-sct", "heteroplace.solve.baselines.m_sct:MSctSolver"),
        ("getf", "heteroplace.solve.baselines.getf:GetfSolver"),
        ("order-place", "heteroplace.solve.list.order_place:OrderPlaceSolver"),
        (
            "adjusting-placement",
            "heteroplace.solve.list.adjusting_placement:AdjustingPlacementSolver",
        ),
        ("celeritas", "heteroplace.solve.list.celeritas:CeleritasSolver"),
        ("metis", "heteroplace.solve.baselines.metis:MetisSolver"),
        ("sa", "heteroplace.solve.baselines.mapping_walk:SaSolver"),
        ("ea", "heteroplace.solve.baselines.mapping_walk:EaSolver"),
        ("search", "heteroplace.solve.search.search_solver:SearchSolver"),
        ("cpsat", "heteroplace.solve.exact.cpsat:CpSatSolver"),
        ("moirai", "heteroplace.solve.exact.moirai:MoiraiSolver"),
        ("lns", "heteroplace.solve.lns.lns_solver:LnsSolver"),
    )
)
"""`auto` is the default of the command line and of the pass."""


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
