"""`exact --orders`: which assumption turns the order of methods of Celeritas' table of step times.

A row for each network, setting and method: simulated step time, what the plan copies, how long its
links are busy, and the memory of each device. "Celeritas: Fast Optimizer for Large Dataflow
Graphs", section 6, DOI 10.48550/arXiv.2208.00184. docs/design/celeritas.md has the conclusion.

    graph, setting, solver
    makespan_ms      simulated, as if the memories were large enough
    excess_gib       memory that the fullest device lacks; above 0: out of memory
    paper_ms         step time in the paper; null: it ran out of memory
    copied_gb        bytes of all copies; a tensor goes to a device once, however many readers
    copies           number of copies
    ccr              time of all copies over time of all tasks
    busiest_link_ms  copies over the busiest pair of devices
    run_ms           tasks of each device, summed
    peak_gib         memory of each device, by the rule of the setting
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.exact.paper import CELERITAS_STEPS
from benchmarks.plots import BarPanel, plot_bars
from benchmarks.row_table import row_table
from heteroplace.errors import SolverError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.native.core_arrays import COPY, RUN
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.simulate import simulate_plan
from heteroplace.solve.baselines.m_sct import MSctSolver
from heteroplace.solve.baselines.metis import has_pymetis, partition_plan
from heteroplace.solve.list.celeritas import CeleritasSolver
from heteroplace.solve.list.earliest import MEtfSolver
from heteroplace.solve.list.m_topo import MTopoSolver
from heteroplace.solve.list.order_place import OrderPlaceSolver
from heteroplace.solve.problem import Problem
from zoo.graphs.clusters import celeritas_node, fill_memories, memory_need
from zoo.graphs.training import training_costs
from zoo.graphs.training_networks import TRAINED, holography

Row = dict[str, object]
SMALLEST = "smallest"
DEFAULT = "^holography/"
_GIB = 2**30
_DEVICES_PER_NEED = 10
"""The smallest network needs so many devices by the sum of its tensors, as Holography does."""


def _metis(problem: Problem) -> NativePlan:
    return partition_plan(problem, balances_memory=False)


METHODS: Mapping[str, Callable[[Problem], NativePlan]] = {
    "metis": _metis,
    "m-topo": MTopoSolver().native_plan,
    "m-etf": MEtfSolver().native_plan,
    "m-sct": MSctSolver().native_plan,
    "order-place": OrderPlaceSolver().native_plan,
    "celeritas": CeleritasSolver().native_plan,
}
"""By name what places a problem; a plan may overflow memories. METIS balances run time alone, as
published."""


@dataclass(frozen=True)
class Setting:
    """Assumptions under which all methods run."""

    what: str
    colocates_gradients: bool = True
    fill: float | None = None
    """All tensors count until the end of the step, as the paper adds up the memory of nodes, and
    fill this part of the memories; None: V100 of 32 GiB, and tensors count while they live."""
    plans_by_sums: bool = False
    """Methods add up all tensors, and plans are judged by lifetime."""
    change: Callable[[Cluster], Cluster] | None = None
    """Another node; None: that of the table `celeritas-steps`."""


def _with_links(latency_ns: int | None = None, slowdown: int = 1) -> Callable[[Cluster], Cluster]:
    def change(cluster: Cluster) -> Cluster:
        links = (
            replace(
                link,
                latency_ns=link.latency_ns if latency_ns is None else latency_ns,
                bytes_per_second=link.bytes_per_second // slowdown,
            )
            for link in cluster.links
        )
        return replace(cluster, links=tuple(links))

    return change


def _with_launches(cluster: Cluster) -> Cluster:
    devices = (replace(device, launch_ns=50_000) for device in cluster.devices)
    return replace(cluster, devices=tuple(devices))


def _without_congestion(cluster: Cluster) -> Cluster:
    return replace(cluster, congestion="none")


SETTINGS: Mapping[str, Setting] = {
    "sums": Setting("gradients free, fill by sums, judged by lifetime", False, None, True),
    "free": Setting("gradients free, memory by lifetime", False),
    "colocated": Setting("gradients with their ops, memory by lifetime"),
    "summed-75": Setting("gradients with their ops, memory by sums, 75 % full", fill=0.75),
    "summed-90": Setting("the same, 90 % full", fill=0.9),
    "no-congestion": Setting("colocated, copies do not contend", change=_without_congestion),
    "latency-1ms": Setting("colocated, 1 ms for each copy", change=_with_links(1_000_000)),
    "quarter-speed": Setting("colocated, links of 25 Gbit/s", change=_with_links(slowdown=4)),
    "launch-50us": Setting("colocated, 50 us for each op", change=_with_launches),
}
"""By name; the first is how `celeritas-steps` was placed before Order-Place knew lifetimes."""
_DRAWN = ("free", "colocated", "summed-75")


def order_rows(say: Callable[[str], None], only: str | None = None) -> Iterator[Row]:
    """Yield the rows of each NETWORK/SETTING in which the regular expression `only` is found.

    Raises
    ------
    SolverError
        There is none.
    """
    pattern = re.compile(only or DEFAULT)
    names = [(network, name) for network in (*TRAINED, SMALLEST) for name in SETTINGS]
    chosen = [pair for pair in names if pattern.search("/".join(pair))]
    if not chosen:
        raise SolverError(
            f"--only {only!r} matches no NETWORK/SETTING; networks: {', '.join(TRAINED)}, "
            f"{SMALLEST}; settings: {', '.join(SETTINGS)}"
        )
    methods = [name for name in METHODS if name != "metis" or has_pymetis()]
    if len(methods) < len(METHODS):
        say("pymetis is not installed: the rows of metis are left out")
    return _rows_of(chosen, methods, say)


def _rows_of(
    chosen: Sequence[tuple[str, str]], methods: Sequence[str], say: Callable[[str], None]
) -> Iterator[Row]:
    for network, name in chosen:
        say(f"{network}/{name}: {SETTINGS[name].what}")
        problem = setting_problem(network, SETTINGS[name])
        for method in methods:
            placed = problem
            if SETTINGS[name].plans_by_sums:
                placed = replace(problem, frees_tensors=False)
            row: Row = {"graph": network, "setting": name, "solver": method}
            row |= plan_figures(problem, METHODS[method](placed))
            step_s, _ = CELERITAS_STEPS.get(network, {}).get(method, (None, None))
            yield row | {"paper_ms": None if step_s is None else 1e3 * step_s}


def setting_problem(network: str, setting: Setting) -> Problem:
    """Return the training step of a network on the node of a setting."""
    build = TRAINED.get(network, _smallest)
    graph = build(colocates_gradients=setting.colocates_gradients)
    cluster = celeritas_node()
    if network == SMALLEST:
        num_bytes = memory_need(graph) // _DEVICES_PER_NEED
        memories = tuple(replace(memory, bytes=num_bytes) for memory in cluster.memories)
        cluster = replace(cluster, memories=memories)
    if setting.change is not None:
        cluster = setting.change(cluster)
    if setting.fill is not None:
        cluster = fill_memories(cluster, graph, setting.fill)
    costs = training_costs(graph, cluster)
    return Problem(graph, cluster, costs, frees_tensors=setting.fill is None)


def _smallest(*, colocates_gradients: bool) -> TaskGraph:
    return holography(2, 8, colocates_gradients=colocates_gradients)


def plan_figures(problem: Problem, plan: NativePlan) -> Row:
    """Return what a plan copies, runs and holds; the keys are those of the module."""
    times = simulate_plan(problem.native, plan)
    taken_ns = times.finish_ns - times.start_ns
    kinds = plan.rows[:, 0]
    is_copy = kinds == COPY
    count = len(problem.cluster.memories)
    pairs = plan.rows[is_copy, 3] * count + plan.rows[is_copy, 2]
    link_ns = np.bincount(pairs, taken_ns[is_copy], minlength=1)
    run_ns = np.bincount(
        plan.rows[kinds == RUN, 2],
        taken_ns[kinds == RUN],
        minlength=len(problem.cluster.devices),
    )
    need = times.peak_bytes if problem.frees_tensors else times.used_bytes
    lacks = [
        used - memory.bytes for used, memory in zip(need, problem.cluster.memories, strict=True)
    ]
    excess = max(0, *lacks)
    return {
        "makespan_ms": round(times.makespan_ns / 1e6, 3),
        "excess_gib": round(excess / _GIB, 2),
        "copied_gb": round(int(problem.native.tensor_bytes[plan.rows[is_copy, 1]].sum()) / 1e9, 3),
        "copies": int(is_copy.sum()),
        "ccr": round(float(taken_ns[is_copy].sum() / max(1.0, run_ns.sum())), 3),
        "busiest_link_ms": round(float(link_ns.max()) / 1e6, 3),
        "run_ms": [round(value / 1e6) for value in run_ns.tolist()],
        "peak_gib": [round(value / _GIB, 1) for value in need],
    }


def order_table(rows: Sequence[Row]) -> str:
    """Return the rows as text."""
    return row_table(rows, num_names=3)


def draw_orders(path: Path, rows: Sequence[Row]) -> None:
    """Write the paper's step times, and ours by setting, also of plans that lack memory."""
    panels = []
    for graph in dict.fromkeys(str(row["graph"]) for row in rows):
        own = {
            (str(row["setting"]), str(row["solver"])): row for row in rows if row["graph"] == graph
        }
        settings = [name for name in _DRAWN if any(setting == name for setting, _ in own)]
        bars: dict[str, tuple[float | None, ...]] = {}
        for method in METHODS:
            drawn = [own.get((setting, method), {}) for setting in settings]
            paper, _ = CELERITAS_STEPS.get(graph, {}).get(method, (None, None))
            bars[method] = (paper, *(_seconds(row.get("makespan_ms")) for row in drawn))
        panels.append(BarPanel(graph, ("paper", *settings), bars))
    plot_bars(path, panels, "step time (s)")


def _seconds(value_ms: object) -> float | None:
    return value_ms / 1e3 if isinstance(value_ms, int | float) else None
