"""What a solver takes and gives.

Objective, bound and gap follow DiviML: `objective_ns` is what our own simulator finds for the plan,
`bound_ns` is proven, gap = (objective - bound) / objective.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from heteroplace.control_groups import usable_cores
from heteroplace.errors import SolverError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import SOURCES_WITH_TIME, CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.shared_values import first_shared
from heteroplace.model.plan import Plan
from heteroplace.native.core_problem import NativePlan, NativeProblem
from heteroplace.native.list import LIST_PARTS, NAMED_PARTS, ListParts
from heteroplace.native.simulate import simulate_plan, simulate_steps
from heteroplace.options import duration, option

T = TypeVar("T")

OBJECTIVES = ("latency", "throughput")
"""What can be asked for: a short run, or many runs per second. Every solver offers the first."""

ITEMS = "items"
"""Key of what solves for several items in one run: of engines, and of `ObjectiveSolver`."""

COARSENINGS = ("fuse-ops", "moirai", "breakpoints", "auto")
"""Which tasks are placed as one; see `heteroplace.solve.coarsened`."""

ENGINES = ("auto", "gurobi", "highs", "cpsat")
"""What solves exact programmes; see `heteroplace.solve.lp.engines`."""

MAX_MODULE_TASKS = 40
"""CP-SAT proves little about larger graphs in seconds: modules of them are cut further."""

MAX_CPSAT_TASKS = 150
"""Above this CP-SAT's model takes longer to load and to repeat its hint than the search to do
better."""

MAX_ITEMS = 1_000_000
MAX_THREADS = 4_096
MAX_ITERATIONS = 10**15
"""What an option may be: more would be no use in any solver, and no number in some."""

STATUSES = ("optimal", "feasible", "interrupted")
"""Proven to equal the bound; valid; valid, and ended by Ctrl-C."""


@dataclass(frozen=True)
class ProgressReport:
    """How far a solver is."""

    phase: str
    """What it does, e.g. "heft" or "search"."""
    elapsed_s: float
    """Seconds since the phase began."""
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
    """What is to be placed, on what, and what it costs.

    Raises
    ------
    SolverError
        The graph has collectives, shared tensors, shared weights or routers, of which solvers know
        nothing.
    """

    graph: TaskGraph
    cluster: Cluster
    costs: CostTable
    frees_tensors: bool = True
    """Memory counts by lifetime; False: by the static rule alone, to compare with."""

    def __post_init__(self) -> None:
        shared = first_shared(self.graph)
        if shared:
            raise SolverError(
                f"graph {self.graph.name!r} has the {shared}: solvers place graphs in which each "
                f"task runs on one device and tensors belong to one item; an explicit schedule "
                f"of this graph is simulated and compiled as it is, without a solver"
            )
        if self.graph.routers:
            raise SolverError(
                f"graph {self.graph.name!r} has the router {self.graph.routers[0].name!r}: solve "
                f"its expected view, and guard the plan that is found"
            )

    @cached_property
    def native(self) -> NativeProblem:
        """The same as flat arrays, made on first use."""
        return NativeProblem(self.graph, self.cluster, self.costs, frees_tensors=self.frees_tensors)

    @cached_property
    def _derived(self) -> dict[Callable[[Problem], Any], Any]:
        return {}

    def derived(self, make: Callable[[Problem], T]) -> T:
        """Return what `make` makes of this problem, once for all callers with the same `make`."""
        if make not in self._derived:
            self._derived[make] = make(self)
        value: T = self._derived[make]
        return value


@dataclass(frozen=True)
class SolveOptions:
    """How long to try and what for. Checked on construction: SolverError names the field."""

    objective: str = option(
        "latency",
        "latency: a short run of one item; throughput: little time from one item to the next when "
        "they follow each other without a pause",
        choices=lambda: OBJECTIVES,
    )
    time_limit_s: float = option(
        10.0,
        "most wall time for the whole solve, in seconds or as 30s, 10m, 1h; with measured costs "
        "auto ends sooner if it stops gaining; a run that ends by time is not reproducible",
        name="time_limit",
        metavar="TIME",
        parse=duration,
    )
    iterations: int | None = option(
        None,
        "schedules that a search tries, and in proportion the work of exact solvers: with it, "
        "equal seeds and threads give equal plans, unlike with a time limit",
        metavar="N",
        parse=int,
    )
    """CP-SAT gets iterations / ITERATIONS_PER_DETERMINISTIC_SECOND of its deterministic seconds."""
    items: int = option(
        1,
        "model inputs that the plan serves together, in batches that its devices run; auto is then "
        "split, and of the other solvers the batched ones take more than one",
        metavar="N",
        parse=int,
    )
    seed: int = option(0, "seed of every random choice, >= 0", metavar="N", parse=int)
    threads: int = option(
        usable_cores,
        "threads of a solver that uses several; left out, as many as this process has cores",
        metavar="N",
        parse=int,
    )
    coarsening: str = option(
        COARSENINGS[0],
        "what is placed as one: fuse-ops: the tasks as they are, after TVM's fusion; moirai: conv, "
        "bn, add and relu by the rules of Moirai's Table I; breakpoints: segments by Celeritas' "
        "optimal fusion; auto: the tasks, then segments in half of the time, and the better plan",
        choices=lambda: COARSENINGS,
    )
    engine: str = option(
        ENGINES[0],
        "what solves the programmes of exact solvers; auto: Gurobi where a licence takes the "
        "programme, else CP-SAT if whole numbers suffice, else HiGHS",
        choices=lambda: ENGINES,
    )
    list_parts: str = option(
        ",".join(NAMED_PARTS["heft"]),
        "priority, choice and insertion of solver list: which task is next ("
        f"{', '.join(LIST_PARTS['priority'])}), the least of what its device is chosen by ("
        f"{', '.join(LIST_PARTS['choice'])}), and where it starts there "
        f"({', '.join(LIST_PARTS['insertion'])})",
        metavar="PRIORITY,CHOICE,INSERTION",
    )
    min_gain_ratio: float = option(
        0.02,
        "where costs are measured (else refused), several devices are used only if that is shorter "
        "than the best single device by more than this part; a smaller gain is within what costs "
        "can be wrong by",
        metavar="RATIO",
        parse=float,
    )
    stop_gain_ratio: float = 0.0
    """`auto` looks no further once a bound proves that no plan for one item is shorter than the
    best single device by more than this part. With `ends_stalled` it hardly looks further once none
    is so much shorter than its own plan."""
    ends_stalled: bool = False
    """`auto` ends when it has gained nothing for as long as its last gain took, or for a small part
    of the time limit, whichever is longer."""
    progress: Progress | None = None
    """Called now and then while a solver works; None: silence."""

    def __post_init__(self) -> None:
        list_parts_of(self.list_parts)
        for name, choices in (
            ("objective", OBJECTIVES),
            ("coarsening", COARSENINGS),
            ("engine", ENGINES),
        ):
            if getattr(self, name) not in choices:
                raise SolverError(
                    f"{name} {getattr(self, name)!r} is not offered; supported: "
                    f"{', '.join(choices)}"
                )
        limits = (
            ("time_limit_s", self.time_limit_s > 0, "> 0"),
            (
                "iterations",
                self.iterations is None or 0 <= self.iterations <= MAX_ITERATIONS,
                f"in 0..{MAX_ITERATIONS}, or None",
            ),
            ("items", 1 <= self.items <= MAX_ITEMS, f"in 1..{MAX_ITEMS}"),
            ("seed", 0 <= self.seed < 2**31, "in 0..2**31-1"),
            ("threads", 1 <= self.threads <= MAX_THREADS, f"in 1..{MAX_THREADS}"),
            ("min_gain_ratio", 0 <= self.min_gain_ratio < 1, "in [0, 1)"),
        )
        for name, is_right, expected in limits:
            if not is_right:
                raise SolverError(f"{name} must be {expected}, got {getattr(self, name)!r}")

    def part_s(self, share: float) -> float:
        """Return this share of the time; all of it where `iterations` end what it is for, as in
        `Deadline.part`."""
        return self.time_limit_s * (share if self.iterations is None else 1.0)

    def leaving(self, after_s: float) -> SolveOptions:
        """Return them for a solver that leaves `after_s` of the time, or half of it, to what comes
        behind it."""
        return replace(self, time_limit_s=self.time_limit_s - min(after_s, self.time_limit_s / 2))


def list_parts_of(text: str) -> ListParts:
    """Return the parts of a list scheduler that are named, with commas between them.

    Raises
    ------
    SolverError
        There are not three, or one is unknown.
    """
    given = text.split(",")
    kinds = tuple(LIST_PARTS.items())
    if len(given) == len(kinds):
        wrong = [
            f"{kind} {name!r} is none of {', '.join(allowed)}"
            for name, (kind, allowed) in zip(given, kinds, strict=True)
            if name not in allowed
        ]
        if not wrong:
            return given[0], given[1], given[2]
    else:
        wrong = [f"expected {len(kinds)} names with commas between them, got {len(given)}"]
    raise SolverError(f"list_parts {text!r}: {'; '.join(wrong)}")


def check_items_of(objective: str, items: int) -> None:
    """Raise SolverError for several items in a steady state: neither number nor bound is known.

    A steady state is that of a plan of one item, repeated. With batches the time per item hangs on
    their sizes, which no solver for throughput chooses, and prices bound times without them.
    """
    if objective != "latency" and items > 1:
        raise SolverError(
            f"objective {objective!r} is the time per item of a plan of one item that is repeated "
            f"without a pause, and the plan is for {items} items: no solver chooses batches for a "
            "steady state, or bounds its time; ask for the latency of all items, whose makespan "
            "over their number is a time per item too, or for the throughput of one"
        )


@dataclass(frozen=True)
class SolveResult:
    """A valid plan and how good it is known to be."""

    plan: Plan
    objective_ns: int
    """Makespan of the plan by `heteroplace.simulate`."""
    bound_ns: int
    """No plan is shorter (for CP-SAT: none whose copies leave their tensor's home; for throughput:
    none for which memories hold all tensors of an item at once; for `divi` and `split` of several
    items: none with one batch of a task on each device)."""
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


def report(
    options: SolveOptions,
    phase: str,
    begin: float,
    best_ns: int | None,
    bound_ns: int = 0,
    plan: Callable[[], Plan] | None = None,
) -> None:
    """Call `options.progress`, if there is one; `begin` is when the phase began."""
    if options.progress is not None:
        elapsed = time.perf_counter() - begin
        options.progress(ProgressReport(phase, elapsed, best_ns, bound_ns, plan))


def status_of(objective_ns: int, bound_ns: int, was_interrupted: bool) -> str:
    """Return the one of STATUSES that a plan has whose solve ended so."""
    if objective_ns == bound_ns:
        return "optimal"
    return "interrupted" if was_interrupted else "feasible"


def make_result(
    problem: Problem,
    plan: Plan,
    bound_ns: int,
    solver: str,
    wall_s: float,
    *,
    was_interrupted: bool = False,
    candidates: tuple[tuple[str, int | None, str], ...] = (),
    native_plan: NativePlan | None = None,
) -> SolveResult:
    """Simulate `plan` and wrap it; the status follows from objective and bound.

    `native_plan` is what the steps of `plan` are made of, if there is one: the simulator then reads
    its rows and the steps are not turned back into numbers.
    """
    native = problem.native
    if native_plan is None:
        objective = simulate_steps(native, plan.steps, plan.items).makespan_ns
    else:
        objective = simulate_plan(native, native_plan).makespan_ns
    status = status_of(objective, bound_ns, was_interrupted)
    return SolveResult(plan, objective, bound_ns, status, solver, wall_s, candidates)


def check_gain(costs: CostTable, limits: SolveOptions) -> None:
    """Raise SolverError if a least gain is asked of costs of which none is measured: it would have
    no effect, as such costs are taken as told."""
    ratio = limits.min_gain_ratio
    sources = sorted({each.source for each in costs.details} & set(SOURCES_WITH_TIME))
    if ratio not in (0, SolveOptions().min_gain_ratio) and "measured" not in sources:
        raise SolverError(
            f"min_gain_ratio={ratio} is what measured costs may be wrong by, and none of these is "
            f"measured (they are {', '.join(sources) or 'unknown'}); leave it out, or measure costs"
        )
