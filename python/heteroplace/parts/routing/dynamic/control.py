"""Route decisions as they come -> an end to predictions where they have drifted from the profile.

Joins the monitors of `drift.py` to whatever takes predictions: an executor's `predict`. Results
never depend on it. Predictions that are too seldom right are ended by the executor itself.

    routers = {router.name: router.capacities for router in executor.solution.graph.routers}
    control = RouteControl(profile, routers, executor.predict)
    recording = executor.record("routes.jsonl", observe=control.observe)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from heteroplace.model.routed.route_profile import Profile, RouteRecord
from heteroplace.parts.routing.dynamic.drift import WINDOW_RUNS, Drift, RouteMonitor

Predict = Callable[[Mapping[str, Collection[int]]], None]
"""Takes the branches that are predicted of each router, by its name; none: it is not predicted."""


class RouteControl:
    """Watches what routers decide, and takes predictions back where that no longer fits.

    Not thread-safe: `observe` is called from one thread.

    Parameters
    ----------
    profile
        What the network is specialised to; or the path of one, or of a recording.
    capacities
        Of each branch of each router that is watched, by its name.
    predict
        Called for each router that drifts, with nothing predicted of it.
    overflows, window_runs
        As of `RouteMonitor`.

    Raises
    ------
    RoutingError
        As `RouteMonitor`.
    """

    def __init__(
        self,
        profile: Profile,
        capacities: Mapping[str, Sequence[Sequence[int]]],
        predict: Predict,
        *,
        overflows: Mapping[str, str] | None = None,
        window_runs: int = WINDOW_RUNS,
    ) -> None:
        self._predict = predict
        self._monitor = RouteMonitor(
            profile, capacities, self._fall_back, overflows=overflows, window_runs=window_runs
        )

    @property
    def drifted(self) -> tuple[Drift, ...]:
        """Routers that have drifted, as found first."""
        return self._monitor.drifted

    def observe(self, record: RouteRecord) -> None:
        """Add what a router has decided in a run."""
        self._monitor.observe(record)

    def _fall_back(self, drift: Drift) -> None:
        self._predict({drift.router: ()})
