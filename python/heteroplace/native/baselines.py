"""List schedulers of the literature in the C++ core; their sources are named in `src/sched/*.h`.

All share one engine: transfers take gaps of all that their route occupies and are made once for
each (tensor, memory), tasks take gaps of their units, memory follows the static rule, the tasks of
a `together` label are charged and placed with the first of them. They always return a draft; one
that overflows a memory has `violation` > 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import heteroplace._core as _core
from heteroplace.native.arrays import IMPOSSIBLE, IntArray
from heteroplace.native.schedule import Draft, NativeProblem


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


def mean_graph(native: NativeProblem) -> MeanGraph:
    """Return run and transfer times as HEFT averages them."""
    run_ns, offsets, dst, transfer_ns = _core.mean_graph(native.core)
    src = np.repeat(np.arange(len(run_ns), dtype=np.int64), np.diff(offsets))
    return MeanGraph(run_ns, src, dst, transfer_ns)


def critical_path_order(native: NativeProblem) -> IntArray:
    """Return the tasks in CPD-TOPO of Celeritas (section 5.1), by mean times."""
    order: IntArray = _core.task_critical_path_order(native.core)
    return order


def met(native: NativeProblem) -> Draft:
    """Put each task on the device with room that runs it fastest; see `src/sched/met.h`."""
    return native.draft(*_core.met(native.core))


def greedy(native: NativeProblem) -> Draft:
    """Put each task where the latency so far stays least; see `src/sched/greedy.h`."""
    return native.draft(*_core.greedy(native.core))


def etf(native: NativeProblem, devices: Sequence[Sequence[int]] | None = None) -> Draft:
    """Place the pair that finishes first, again and again; see `src/sched/etf.h`.

    Parameters
    ----------
    devices
        For each task the devices to choose from, at least one; None: all that it may be on.

    Raises
    ------
    GraphError
        A task has no device, or one that it may not be on.
    """
    if devices is None:
        is_allowed = native.run_ns != IMPOSSIBLE
        offsets = np.concatenate([[0], np.cumsum(is_allowed.sum(axis=1))]).astype(np.int64)
        values = np.nonzero(is_allowed)[1].astype(np.int64)
    else:
        sizes = [len(row) for row in devices]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        values = np.fromiter((device for row in devices for device in row), dtype=np.int64)
    return native.draft(*_core.etf(native.core, offsets, values))


def m_etf(native: NativeProblem) -> Draft:
    """Place the pair that starts first, again and again; see `src/sched/m_etf.h`."""
    return native.draft(*_core.m_etf(native.core))


def m_sct(native: NativeProblem, favourite: IntArray) -> Draft:
    """As m-ETF, with devices that wait for favourite children; see `src/sched/m_sct.h`.

    Parameters
    ----------
    favourite
        [num_tasks], the favourite child of each task; -1: none.
    """
    return native.draft(*_core.m_sct(native.core, favourite))


def m_topo(native: NativeProblem, *, is_uniform: bool) -> Draft:
    """Fill memories in breadth-first order; see `src/sched/m_topo.h`.

    Parameters
    ----------
    is_uniform
        Up to the mean load plus the largest task, not to the limit.
    """
    return native.draft(*_core.m_topo(native.core, is_uniform))


def order_place(native: NativeProblem, order: IntArray) -> Draft:
    """Fill memories in a topological order; see `src/sched/order_place.h`.

    Raises
    ------
    GraphError
        `order` is not a topological order of all tasks.
    """
    return native.draft(*_core.order_place(native.core, order))


def adjusting_placement(native: NativeProblem, order: IntArray) -> Draft:
    """Stay on one device unless leaving pays; see `src/sched/adjusting_placement.h`.

    Raises
    ------
    GraphError
        `order` is not a topological order of all tasks.
    """
    return native.draft(*_core.adjusting_placement(native.core, order))
