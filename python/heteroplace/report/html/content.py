"""What a page shows, as values: made by those who know it, written by `page.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.model.trace import QueueUse


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """What was timed beside the plan, or the plan itself."""

    name: str
    """E.g. "stock TVM, all cores"."""
    median_ns: int
    low_ns: int
    """Of the quickest round or run."""
    high_ns: int
    """Of the slowest."""
    of: str = "rounds"
    """What the low and the high one are of: "rounds", each a median of several runs, or "runs"."""


@dataclass(frozen=True, slots=True)
class SolverPoint:
    """What a solver had at a time."""

    elapsed_ns: int
    phase: str
    best_ns: int | None
    """Objective of the best plan so far; None: it had none."""
    bound_ns: int
    """0: it had none."""


@dataclass(frozen=True)
class Measured:
    """What a machine said of a plan."""

    timeline: Timeline | None = None
    """Of one run; None: only times are known."""
    time: MeasuredTime | None = None
    """Of many runs; None: only the timeline is known."""
    peers: tuple[MeasuredTime, ...] = ()
    """Timed in turns with the plan."""
    queues: tuple[QueueUse, ...] = ()
    """How queues spent a time with requests in flight; empty: it was not recorded."""
    requests_in_flight: int = 1
    """Most requests that were at work at once then."""


@dataclass(frozen=True)
class PageContent:
    """Everything on one page. What is None or empty was not known: `missing` says how to get it."""

    solution: Solution
    predicted: Timeline
    """Of the solution's plan."""
    memory: tuple[tuple[tuple[int, int], ...], ...]
    """For each memory the (time_ns, bytes live from then on)."""
    move_tasks: tuple[int, ...] = ()
    """Tasks of which is known what moving them costs."""
    move_ns: tuple[tuple[int | None, ...], ...] = ()
    """[move_tasks][devices]: the objective then; None: it cannot be there."""
    move_baseline_ns: int = 0
    """The objective with nothing moved, found as `move_ns`."""
    loads_ns: tuple[int, ...] = ()
    """Of a plan for throughput, for each of `Cluster.resources` what one item takes of it."""
    measured: Measured | None = None
    progress: tuple[SolverPoint, ...] = ()
    program_memory: tuple[MemoryUse, ...] = ()
    """For each memory what the compiled program holds."""
    texts: tuple[tuple[str, str], ...] = ()
    """(title, text) of what has a text only, such as what is executed of routed branches."""
    properties: tuple[tuple[str, str], ...] = ()
    """(name, value) of machine, versions, digests."""
    command: str = ""
    """What makes this page again."""
    missing: dict[str, str] = field(default_factory=dict)
    """For each panel that lacks something, what, and how to get it."""
