"""The route decisions of late, beside those that a network was specialised to -> do they still fit?

Cui et al., Optimizing Dynamic Neural Networks with Brainstorm (OSDI 2023): the share of branches
whose load is no tuned size (drift rate) is what tuned kernels lose by; where it is high, the
network runs without them until it is specialised again. Unlike the paper, distributions are
compared too: sizes may still fit where other branches are hot, and a placement or a prediction does
not then.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from heteroplace.errors import RoutingError
from heteroplace.model.routed.capacities import padded_load
from heteroplace.model.routed.route_profile import Histogram, Profile, RouteRecord, RouterProfile
from heteroplace.parts.routing.dynamic.recorded_routes import as_profile
from heteroplace.parts.routing.dynamic.sizes import MIN_RUNS

WINDOW_RUNS = 200
"""Runs that are compared with the profile."""
MAX_DISTANCE = 0.2
"""Total-variation distance of two distributions of loads that is no drift yet."""
MAX_DRIFT_RATE = 0.25
"""Drift rate above that of the profiled runs that is no drift yet."""
_LOG = logging.getLogger("heteroplace")


def drift_rate(loads: Sequence[int], sizes: Sequence[int]) -> float:
    """Return the share of active branches whose load is no size; 0.0 if none is active.

    >>> drift_rate((4, 4, 8, 27), (4, 27))
    0.25
    """
    active = [load for load in loads if load]
    return sum(load not in sizes for load in active) / len(active) if active else 0.0


@dataclass(frozen=True)
class Drift:
    """How far the latest runs of a router are from its profile."""

    router: str
    num_runs: int
    """In the window; below `MIN_RUNS` nothing is said of them."""
    distance: float
    """Total variation between the distributions of padded loads, the mean over branches by their
    rows; 0..1."""
    drift_rate: float
    """Of the runs in the window."""
    profiled_drift_rate: float
    """Of the profiled runs, by the same sizes."""

    @property
    def is_drifting(self) -> bool:
        """Whether the router is no longer used as it was profiled."""
        return self.num_runs >= MIN_RUNS and (
            self.distance > MAX_DISTANCE
            or self.drift_rate - self.profiled_drift_rate > MAX_DRIFT_RATE
        )

    def text(self) -> str:
        """Return it as a line."""
        return (
            f"router {self.router!r}: in the last {self.num_runs} runs loads are "
            f"{self.distance:.2f} from the profile (limit {MAX_DISTANCE}), "
            f"{100 * self.drift_rate:.0f} % of them no compiled size (profiled "
            f"{100 * self.profiled_drift_rate:.0f} %, limit +{100 * MAX_DRIFT_RATE:.0f} %)"
        )


class DriftMonitor:
    """Compares the latest runs of one router with its profile; not thread-safe.

    Loads are compared as they are padded: what costs the same is the same, and a window of a few
    hundred runs is enough to tell distributions of a few sizes apart.

    Parameters
    ----------
    capacities
        Of each branch. [num_branches][]
    window_runs
        How many of the latest runs count, at least `MIN_RUNS`.
    """

    def __init__(
        self,
        profile: RouterProfile,
        capacities: Sequence[Sequence[int]],
        overflow: str = "rounds",
        window_runs: int = WINDOW_RUNS,
    ) -> None:
        if len(capacities) != profile.num_branches or window_runs < MIN_RUNS:
            raise RoutingError(
                f"router {profile.name!r}: expected capacities of {profile.num_branches} branches "
                f"and a window of at least {MIN_RUNS} runs, got {len(capacities)} and {window_runs}"
            )
        self._profile, self._overflow = profile, overflow
        self._capacities = [tuple(sizes) for sizes in capacities]
        self._window: deque[tuple[int, ...]] = deque(maxlen=window_runs)
        self._profiled = [
            self._padded(branch, histogram) for branch, histogram in enumerate(profile.loads)
        ]
        self._profiled_rate = self._rate(profile.loads)

    def observe(self, loads: Sequence[int]) -> None:
        """Add the loads of a run. [num_branches]"""
        self._window.append(tuple(loads))

    def drift(self) -> Drift:
        """Return how far the window is from the profile."""
        histograms = [
            tuple(Counter(run[branch] for run in self._window).items())
            for branch in range(self._profile.num_branches)
        ]
        return Drift(
            self._profile.name,
            len(self._window),
            self._distance(histograms),
            self._rate(histograms),
            self._profiled_rate,
        )

    def _distance(self, histograms: Sequence[Histogram]) -> float:
        """Mean over branches, each by its share of the rows that are computed."""
        total = weights = 0.0
        for branch, histogram in enumerate(histograms):
            before, now = self._profiled[branch], self._padded(branch, histogram)
            sizes = sorted({*before, *now})
            apart = sum(abs(before.get(size, 0.0) - now.get(size, 0.0)) for size in sizes) / 2
            weight = sum(size * (before.get(size, 0.0) + now.get(size, 0.0)) for size in sizes)
            total, weights = total + weight * apart, weights + weight
        return total / weights if weights else 0.0

    def _padded(self, branch: int, histogram: Histogram) -> dict[int, float]:
        """The probability of each padded load of a branch."""
        sizes, total = self._capacities[branch], sum(count for _, count in histogram)
        rows_by_size: dict[int, float] = {}
        for load, count in histogram:
            size = padded_load(load, sizes, self._overflow)
            rows_by_size[size] = rows_by_size.get(size, 0.0) + count / total
        return rows_by_size

    def _rate(self, histograms: Sequence[Histogram]) -> float:
        """The drift rate of loads that are counted by branch."""
        active = drifted = 0
        for branch, histogram in enumerate(histograms):
            for load, count in histogram:
                active += count if load else 0
                drifted += count if load and load not in self._capacities[branch] else 0
        return drifted / active if active else 0.0


class RouteMonitor:
    """Watches all routers of a network, and falls back where decisions have drifted.

    Parameters
    ----------
    profile
        Or the path of one, or of a recording.
    capacities
        Of each branch of each router, by its name; routers that are not named are not watched.
    fall_back
        Called once for each router that drifts, with how far: it takes back what was specialised,
        such as the router's prediction. A warning of the logger `heteroplace` says so too.
    overflows
        By the name of a router; "rounds" where none is given.

    Raises
    ------
    RoutingError
        A router is not in the profile, or has other branches; the file of a profile is wrong.
    """

    def __init__(
        self,
        profile: Profile,
        capacities: Mapping[str, Sequence[Sequence[int]]],
        fall_back: Callable[[Drift], None],
        *,
        overflows: Mapping[str, str] | None = None,
        window_runs: int = WINDOW_RUNS,
    ) -> None:
        overflows, seen = overflows or {}, as_profile(profile)
        self._monitors = {
            name: DriftMonitor(seen.router(name), sizes, overflows.get(name, "rounds"), window_runs)
            for name, sizes in capacities.items()
        }
        self._every = max(1, window_runs // 4)
        self._seen = dict.fromkeys(self._monitors, 0)
        self._fall_back = fall_back
        self._drifted: dict[str, Drift] = {}

    @property
    def drifted(self) -> tuple[Drift, ...]:
        """What was found when each router was first seen to drift, in that order."""
        return tuple(self._drifted.values())

    def observe(self, record: RouteRecord) -> None:
        """Add a decision; a quarter of a window apart it is asked whether the router drifts."""
        monitor = self._monitors.get(record.router)
        if monitor is None or record.router in self._drifted:
            return
        monitor.observe(record.loads)
        self._seen[record.router] += 1
        if self._seen[record.router] % self._every:
            return
        drift = monitor.drift()
        if drift.is_drifting:
            self._drifted[record.router] = drift
            _LOG.warning(
                "%s: it runs without what was specialised for it; record runs and specialise again",
                drift.text(),
            )
            self._fall_back(drift)
