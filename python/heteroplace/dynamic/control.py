"""Route decisions as they come -> predictions that still pay, and an end to what no longer fits.

Joins the gates of `speculation.py` and the monitors of `drift.py` to whatever takes predictions:
an executor's `predict`. Results never depend on it; a prediction that is taken back costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from heteroplace.dynamic.drift import WINDOW_RUNS, Drift, RouteMonitor
from heteroplace.dynamic.speculation import SpeculationGate
from heteroplace.errors import RoutingError
from heteroplace.model.route_profile import RouteProfile, RouteRecord

_LOG = logging.getLogger("heteroplace")

Predict = Callable[[Mapping[str, Collection[int]]], None]
"""Takes the branches that are predicted of each router, by its name; none: it is not predicted."""


class RouteControl:
    """Predicts routers, watches what they decide, and takes back what no longer pays or fits.

    Not thread-safe: `observe` is called from one thread.

    Parameters
    ----------
    profile
        What the network is specialised to.
    capacities
        Of each branch of each router that is watched, by its name.
    predict
        Called at once with all predictions, and later for each router that is no longer predicted.
    gates
        Of the routers that are predicted.
    overflows, window_runs
        As of `RouteMonitor`.

    Raises
    ------
    RoutingError
        As `RouteMonitor`; or two gates are of one router.
    """

    def __init__(
        self,
        profile: RouteProfile,
        capacities: Mapping[str, Sequence[Sequence[int]]],
        predict: Predict,
        gates: Sequence[SpeculationGate] = (),
        *,
        overflows: Mapping[str, str] | None = None,
        window_runs: int = WINDOW_RUNS,
    ) -> None:
        self._gates = {gate.prediction.router: gate for gate in gates}
        if len(self._gates) < len(gates):
            raise RoutingError("two gates are of one router; give one for each")
        self._predict = predict
        self._monitor = RouteMonitor(
            profile, capacities, self._fall_back, overflows=overflows, window_runs=window_runs
        )
        if gates:
            predict({gate.prediction.router: gate.prediction.branches for gate in gates})

    @property
    def drifted(self) -> tuple[Drift, ...]:
        """Routers that have drifted, as found first."""
        return self._monitor.drifted

    def observe(self, record: RouteRecord) -> None:
        """Add what a router has decided in a run."""
        gate = self._gates.get(record.router)
        if gate is not None and gate.is_on and not gate.observe(record.active):
            self._predict({record.router: ()})
            _LOG.warning(
                "router %r is no longer predicted: of its last runs too few were right (%.0f %% "
                "of all)",
                record.router,
                100 * gate.hit_rate,
            )
        self._monitor.observe(record)

    def _fall_back(self, drift: Drift) -> None:
        gate = self._gates.get(drift.router)
        if gate is not None and gate.is_on:
            gate.close()
            self._predict({drift.router: ()})
