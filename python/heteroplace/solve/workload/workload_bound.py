"""A workload -> a time that no placement of it beats, and placements that come near it.

Each byte of each memory gets a price (a Lagrange multiplier). At given prices the entries are
independent: a weight that several tasks share is split among them, and each pays its part wherever
it is. Whoever shares a weight in one memory pays no more than the weight, so the sum of calls times
the Lagrangian bound of each entry holds for all placements together. The parts follow what each
task loses on its slowest device, so that tasks of one weight agree where it should lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_bounds import lagrangian_bound
from heteroplace.native.core_problem import NativeProblem
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.workload.workload import resized
from heteroplace.solve.workload.workload_search import Sites, whole_placements
from heteroplace.solve.workload.workload_state import WorkloadTimes

_ITERATIONS = 120
"""Subgradient steps for each module of an entry."""
_STEPS, _ROUNDS = 32, 3
_CLOSE = 1.001
"""Prices that differ by less than this factor are alike."""
_MAX_PRICE = 1e6
"""ns per byte: beyond it nothing is placed by price."""


@dataclass(frozen=True)
class WorkloadBound:
    """A proven bound, and what the search for it has seen."""

    bound_ns: int
    prices: tuple[float, ...]
    """For each memory what a byte costs, in ns."""
    samples: tuple[Sites, ...]
    """Placements at all prices that were tried; they may lack memory."""


class WorkloadPrices:
    """The bound of a workload at any prices."""

    def __init__(self, times: WorkloadTimes) -> None:
        self._times = times
        self._workload = times.workload
        self.samples: dict[bytes, Sites] = {}

    @cached_property
    def _natives(self) -> tuple[NativeProblem, ...]:
        """Each entry with its parts of weights, and its part of each memory."""
        count = len(self._workload.entries)
        natives = []
        for entry, weights in zip(self._workload.entries, self._weights(), strict=True):
            problem = entry.problem
            parts = [-(-memory.bytes // count) for memory in problem.cluster.memories]
            cluster = resized(problem.cluster, parts)
            natives.append(
                NativeProblem(problem.graph, cluster, problem.costs, weight_bytes=weights)
            )
        return tuple(natives)

    def _weights(self) -> list[IntArray]:
        """For each entry and task its own weights and its parts of those that it shares."""
        workload = self._workload
        losses = []
        for times, (tasks, _) in zip(self._times.entries, workload.users, strict=True):
            run_ns = times.entry.roomy.run_ns.astype(float)
            run_ns[run_ns == IMPOSSIBLE] = np.nan
            loss = np.nanmax(run_ns, axis=1) - np.nanmin(run_ns, axis=1)
            losses.append((times.entry.calls * loss + 1e-3)[tasks])
        total = np.zeros(len(workload.names))
        for (_, weights), loss in zip(workload.users, losses, strict=True):
            np.add.at(total, weights, loss)
        result = []
        for entry, (tasks, weights), loss in zip(
            workload.entries, workload.users, losses, strict=True
        ):
            parts = np.floor(workload.sizes[weights] * (loss / total[weights]) * (1 - 1e-12))
            own = entry.own_bytes.copy()
            np.add.at(own, tasks, parts.astype(np.int64))
            result.append(own)
        return result

    def bound(self, prices: np.ndarray) -> tuple[float, Sites | None]:
        """Return the bound in ns at some prices, and a placement that comes near it.

        None: nothing is proven, and the bound is 0.
        """
        total, sites = 0.0, []
        for times, native in zip(self._times.entries, self._natives, strict=True):
            calls = times.entry.calls
            outcome = lagrangian_bound(
                native,
                (prices / calls).tolist(),
                iterations=_ITERATIONS,
                num_samples=1,
                fixed_prices=True,
            )
            if not outcome.samples:
                return 0.0, None
            # The bound is rounded up, which holds for a whole plan and not for a term of a sum.
            total += calls * (outcome.bound_ns - 1)
            placement = np.array(outcome.samples[0], dtype=np.int64)
            sites.append(times.entry.device_memory[placement])
        self.samples.setdefault(b"".join(own.tobytes() for own in sites), tuple(sites))
        return total, tuple(sites)


@dataclass
class _Price:
    value: float
    """ns per byte."""
    is_low: bool = False
    """Whether more would lie in the memory at this price than it has."""


class _Bisection:
    """Prices that come ever closer to the one at which a memory is just full."""

    def __init__(self, usual: float) -> None:
        self._usual = usual

    def prices(self) -> Iterator[_Price]:
        """Yield prices, beginning with none; the caller says of each whether it is too low."""
        low, high = 0.0, math.inf
        value = 0.0
        for _ in range(_STEPS):
            price = _Price(value)
            yield price
            if price.is_low:
                low = value
            elif value == 0:
                return
            else:
                high = value
            if math.isinf(high):
                value = max(self._usual, 2 * low)
            else:
                value = math.sqrt(low * high) if low else high / 4
            if high < _CLOSE * low or value > _MAX_PRICE:
                return


def _usual_price(times: WorkloadTimes) -> float:
    """What a byte gains on average between the slowest memory and the fastest."""
    whole = [times.value(sites).objective_ns for sites in whole_placements(times)]
    gain = max(whole, default=0) - min(whole, default=0)
    return max(gain, 1) / max(1, times.workload.all_weight_bytes)


def workload_bound(times: WorkloadTimes, deadline: Deadline) -> WorkloadBound:
    """Return the best bound for prices of one memory after the other.

    A memory's price is halved and doubled until what would lie there just fits. Any prices prove
    a bound, so the search may end at any time.
    """
    search = WorkloadPrices(times)
    prices = np.zeros(len(times.workload.memory_bytes))
    best, best_prices = 0.0, prices.copy()
    for _ in range(_ROUNDS):
        before = best_prices.copy()
        for memory in range(len(prices)):
            prices = best_prices.copy()
            for price in _Bisection(_usual_price(times)).prices():
                prices[memory] = price.value
                bound, sites = search.bound(prices)
                if bound > best:
                    best, best_prices = bound, prices.copy()
                if sites is None or deadline.is_over():
                    break
                use, _ = times.weights(_possible(times, sites))
                price.is_low = bool(use[memory] > times.workload.memory_bytes[memory])
        if np.allclose(before, best_prices, rtol=1e-2):
            break
    bound_ns = max(0, math.floor(best * (1 - 1e-9)))
    samples = tuple(_possible(times, sites) for sites in search.samples.values())
    return WorkloadBound(bound_ns, tuple(best_prices.tolist()), samples)


def _possible(times: WorkloadTimes, sites: Sites) -> Sites:
    return tuple(times.possible(entry, own) for entry, own in enumerate(sites))
