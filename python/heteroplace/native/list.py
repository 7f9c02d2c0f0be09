"""List schedulers of the core, and the orders, ranks and means that they go by.

The paper, section and DOI of each stand in its header in `src/list`. All share one engine
(`src/list/engine/list_scheduler.h`): transfers take gaps of all that their route occupies and run
once for each (tensor, memory), tasks take gaps of their units, memory that lacks is freed by
readers (but in ETF and m-SCT), the tasks of a colocation group are charged and placed with the
first of them. They always return a plan; one that overflows a memory by lifetime has `violation`
> 0. Those that look at all devices for each task take a `time_limit_s`: past it they raise
SolverLimitError.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

import heteroplace._core as _core
from heteroplace.native.core_arrays import IntArray
from heteroplace.native.core_problem import NativePlan, NativeProblem

ListParts = tuple[str, str, str]
"""Which task is next, what its device is chosen by, where it starts there: one of each of
LIST_PARTS."""

LIST_PARTS: Mapping[str, tuple[str, ...]] = {
    "priority": (
        *("rank", "topological", "path", "lookahead"),
        *("min-min", "max-min", "sufferage"),
    ),
    "choice": ("finish", "start", "run", "latency", "lookahead", "path", "available"),
    "insertion": ("gaps", "end"),
}
"""The parts of list schedulers; see `src/list/engine/list_parts.h`. The first of each are HEFT."""

NAMED_PARTS: Mapping[str, ListParts] = {
    "heft": ("rank", "finish", "gaps"),
    "cpop": ("path", "path", "gaps"),
    "peft": ("lookahead", "lookahead", "gaps"),
    "met": ("rank", "run", "gaps"),
    "mct": ("topological", "finish", "end"),
    "olb": ("topological", "available", "end"),
    "min-min": ("min-min", "finish", "end"),
    "max-min": ("max-min", "finish", "end"),
    "sufferage": ("sufferage", "finish", "end"),
    "greedy": ("topological", "latency", "gaps"),
}
"""The list schedulers of the literature that are made of these parts."""


@dataclass(frozen=True)
class MeanGraph:
    """The tasks of a problem and the edges between them, with mean times in ns."""

    run_ns: IntArray
    """[num_tasks], over the devices that a task may be on."""
    src: IntArray
    """[num_edges], task ids, ascending."""
    dst: IntArray
    """[num_edges]; ascending for each `src`."""
    transfer_ns: IntArray
    """[num_edges], over the ordered pairs of distinct devices, summed over the tensors."""


plan_by = _core.plan_by
etf = _core.etf
m_etf = _core.m_etf
m_sct = _core.m_sct
m_topo = _core.m_topo
order_place = _core.order_place
adjusting_placement = _core.adjusting_placement
list_schedule = _core.list_schedule
evaluate_order = _core.evaluate_order
what_if = _core.what_if
mean_graph = _core.mean_graph
critical_path_order = _core.critical_path_order
upward_ranks = _core.upward_ranks
fastest_mapping = _core.fastest_mapping


def heft(
    native: NativeProblem, devices: Iterable[int], time_limit_s: float = math.inf
) -> NativePlan:
    """HEFT that prefers the given devices; a task that none of them can run goes elsewhere."""
    return plan_by(native, NAMED_PARTS["heft"], time_limit_s, devices)


def breadth_first_order(native: NativeProblem) -> tuple[int, ...]:
    """Return the tasks in breadth-first topological order; ties by id."""
    return tuple(_core.task_dag(native).breadth_first_order().tolist())


def rank_order(native: NativeProblem) -> tuple[int, ...]:
    """Return the tasks by descending upward rank (HEFT), which is a topological order."""
    return tuple(np.argsort(-upward_ranks(native), kind="stable").tolist())
