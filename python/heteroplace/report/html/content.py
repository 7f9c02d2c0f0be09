"""What a page shows, as values: made by those who know it, written by `page.py`."""

from __future__ import annotations

from collections.abc import Mapping
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
    speedup: float | None = None
    """Of a peer: how often as fast the plan was, the median over the rounds; None: unknown."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """The prediction for the network on a cluster with one device fewer, or one more."""

    label: str
    """What the button says, e.g. "without cpu.1"."""
    changes: tuple[str, ...]
    """The changes of the cluster, as sentences."""
    objective_ns: int | None
    """Of the best plan for the changed cluster, simulated; None: there is no plan."""
    devices: tuple[str, ...] = ()
    """Devices that this plan uses."""
    reason: str = ""
    """Why there is no plan."""


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
    in_turns: MeasuredTime | None = None
    """Time of the plan in the turns with its peers; None: `time` is from these turns."""
    others_cores: float | None = None
    """Cores that other programs used during the measured runs; None: nobody watched."""
    peak_flops: Mapping[str, int] = field(default_factory=dict)
    """Measured peak operations per second, by name of device."""


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
    title: str = ""
    """The model, and the machine: its processor with the cores, its GPUs."""
    peak_flops: tuple[int | None, ...] = ()
    """Peak operations per second of each device; None: unknown."""
    alternatives: tuple[Alternative, ...] = ()
    """One device fewer and one more."""
    about: tuple[tuple[str, str], ...] = ()
    """(name, value) of the lines under the verdict: date, version, processor, load."""
    properties: tuple[tuple[str, str], ...] = ()
    """(name, value) of versions, digests and the compiled file."""
    command: str = ""
    """What makes this page again."""
    missing: dict[str, str] = field(default_factory=dict)
    """For each panel that lacks something, what, and how to get it."""
