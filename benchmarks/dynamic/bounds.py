"""A network with one router of equal branches -> what its time is compared with beside its peers'.

No build can take less than reading the weights of its active branches once, and what a branch
computes takes its share of the dense network's time. On two cores two programs of half of the
branches each wait for nothing of each other: that is what sharing the branches could give at best.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from benchmarks.dynamic.builds import Builds
from benchmarks.dynamic.trace_runs import TraceRuns, timer_of
from benchmarks.peers.turns import (
    at_once,
)
from heteroplace.measure.bound_thread import BoundThread
from heteroplace.measure.timed_runs import (
    TimedRuns,
    Timer,
    cluster_cores,
    time_runs,
)
from heteroplace.model.cluster import Cluster
from heteroplace.model.hosts import with_devices
from heteroplace.model.routed.capacities import padded_load
from heteroplace.parts.routing.relay.passes import ChooseCapacities
from heteroplace.parts.routing.relay.rewrite import routers_of, update_routers
from heteroplace.parts.routing.relay.router import RouterOptions
from heteroplace.run.executor import Executor
from zoo.models.routed import RoutedNetwork
from zoo.models.routed_catalogue import HALVES

_READ_ITEM = np.dtype("int64")


def is_bounded(runs: TraceRuns) -> bool:
    """Say whether a network has one router, of rows, whose branches have equal weights: a row is
    then the same part of the dense network in each of them."""
    routers = runs.network.routers
    if len(routers) != 1 or routers[0].num_cells == 1:
        return False
    sizes = set(branch_bytes(runs.network))
    return len(sizes) == 1 and 0 not in sizes


def active_bytes(runs: TraceRuns) -> int:
    """Return the bytes of the weights of branches that are active in a run, on average."""
    sizes = branch_bytes(runs.network)
    total = sum(sizes[branch] for record in runs.records for branch in record.active)
    return round(total / len(runs.records))


def branch_bytes(network: RoutedNetwork) -> list[int]:
    """Return the bytes of the parameters of each branch of the only router, by their names."""
    (router,) = network.routers
    sizes: Counter[int] = Counter()
    for name, array in network.params.items():
        found = re.match(rf"{re.escape(router.name)}\.(\d+)\.", name)
        if found is not None:
            sizes[int(found[1])] += array.numpy().nbytes
    return [sizes[branch] for branch in range(router.num_branches)]


def bound_timers(
    stack: ExitStack, name: str, runs: TraceRuns, cluster: Cluster, say: Callable[[str], None]
) -> dict[str, Timer]:
    """Return what to time: "read", and "halves" where the network can be halved on two cores."""
    if not is_bounded(runs):
        return {}
    cores = cluster_cores(cluster)
    total_bytes = sum(branch_bytes(runs.network))
    timers = {"read": _reader(stack, active_bytes(runs), total_bytes, cores)}
    single = [number for number, device in enumerate(cluster.devices) if len(device.cores) == 1]
    if name in HALVES and len(cores) == 2 and len(single) == 2:
        timers["halves"] = _halves(
            *(stack, name, runs), [with_devices(cluster, [number]) for number in single], say
        )
    return timers


def bound_figures(
    runs: TraceRuns, variant: str, options: RouterOptions, timed: TimedRuns
) -> dict[str, object]:
    """Return the further figures of a row, of a network that `is_bounded`.

    Parameters
    ----------
    options
        Of the only router, as the variant has it.
    """
    (router,) = runs.network.routers
    sizes, num_runs = branch_bytes(runs.network), len(runs.records)
    row_ns = timed.median_ns("dense") / (router.num_cells * router.num_branches)
    read_ns = timed.median_ns("read")
    byte_ns = read_ns / active_bytes(runs)
    share_ns = branches_ns = 0.0
    for record in runs.records:
        for branch in record.active:
            capacities = options.capacities[branch]
            rows = padded_load(record.loads[branch], capacities, options.overflow)
            share_ns += row_ns * rows / num_runs
            branches_ns += max(row_ns * rows, byte_ns * sizes[branch]) / num_runs
    halves = timed.median_ns("halves") / 1e6 if "halves" in timed.turns else None
    return {
        "share_ms": share_ns / 1e6,
        "read_ms": read_ns / 1e6,
        "branches_ms": branches_ns / 1e6,
        "bound_ratio": timed.median_ns(variant) / max(share_ns, read_ns),
        "halves_ms": halves,
    }


def _reader(stack: ExitStack, num_bytes: int, total_bytes: int, cores: Sequence[int]) -> Timer:
    """Sums up as many bytes of so many, a part on each core: from several places in turn, as the
    caches of a machine may hold what a single run reads."""
    weights = np.ones(total_bytes // _READ_ITEM.itemsize, _READ_ITEM)
    length = num_bytes // _READ_ITEM.itemsize
    threads = [BoundThread("reader", [core]) for core in cores]
    for thread in threads:
        stack.callback(thread.close)
    starts = itertools.cycle(range(0, max(1, len(weights) - length), max(1, length // 3)))

    def read() -> None:
        start = next(starts)
        parts = np.array_split(weights[start : start + length], len(cores))
        sums = [thread.submit(part.sum) for thread, part in zip(threads, parts, strict=True)]
        for each in sums:
            each.result()

    return lambda num_runs: time_runs(read, num_runs)


def halves_of(runs: TraceRuns) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the branches of two halves: dealt out by their loads in the trace, heaviest first.

    The heavier one of each pair goes to the half that has less so far.
    """
    totals: Counter[int] = Counter()
    for record in runs.records:
        totals.update(dict(enumerate(record.loads)))
    ranked = sorted(totals, key=lambda branch: (-totals[branch], branch))
    halves: tuple[list[int], list[int]] = ([], [])
    for first in range(0, len(ranked), 2):
        order = sorted(halves, key=lambda half: sum(totals[branch] for branch in half))
        for half, branch in zip(order, ranked[first : first + 2], strict=False):
            half.append(branch)
    return tuple(sorted(halves[0])), tuple(sorted(halves[1]))


def _halves(
    stack: ExitStack,
    name: str,
    runs: TraceRuns,
    clusters: Sequence[Cluster],
    say: Callable[[str], None],
) -> Timer:
    (router,) = runs.network.routers
    (chosen,) = routers_of(ChooseCapacities(runs.profile)(runs.network.bound))
    timers = []
    for branches, cluster in zip(halves_of(runs), clusters, strict=True):
        half = HALVES[name](branches)
        sizes = tuple(chosen.options.capacities[branch] for branch in branches)
        mod = update_routers(half.mod, {router.name: {"capacities": sizes}})
        params = {each: runs.network.params[each] for each in half.params}
        executor = Executor(Builds(cluster, params).ours(mod, say))
        stack.callback(executor.close)
        timers.append(timer_of(executor, runs.inputs()))
    return together(timers)


def together(timers: Sequence[Timer]) -> Timer:
    """Runs of all at once, each of which takes the longest one's mean time."""

    def timer(num_runs: int) -> list[int]:
        times = at_once([partial(each, num_runs) for each in timers])
        return [max(map(sum, times)) // num_runs] * num_runs

    return timer
