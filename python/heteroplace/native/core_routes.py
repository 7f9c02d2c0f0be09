"""Route decisions of the requests of an executor: what is predicted, and what is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import heteroplace._core as _core
from heteroplace.model.routed.route_profile import RouterShape


class PredictionCounts(NamedTuple):
    """How the predictions of a router came out, in calls that succeeded."""

    num_calls: int
    """Calls in which branches were predicted and the router decided."""
    num_exact: int
    """Of these, the ones where just the predicted branches were active."""
    num_wider: int
    """Of these, the ones where all active branches were predicted, and more."""

    is_predicted: bool
    """Whether something is predicted of calls that begin now: not where nobody did, or where too
    few of the last 100 calls were right for that to pay."""

    @property
    def num_missed(self) -> int:
        """Those where an active branch was not predicted."""
        return self.num_calls - self.num_exact - self.num_wider

    @property
    def hit_rate(self) -> float | None:
        """The share of the calls in which no active branch was missing; None: there were none."""
        found = self.num_exact + self.num_wider
        return found / self.num_calls if self.num_calls else None


class RouteDecisions:
    """Those of one executor. Any thread may call any method."""

    def __init__(self, core: _core.Executor) -> None:
        self._core = core

    @property
    def routers(self) -> tuple[RouterShape, ...]:
        """The routers of the program; empty if it has none."""
        return tuple(RouterShape(*each) for each in _core.routers(self._core))

    def predict(self, routes: Mapping[str, Iterable[int]]) -> None:
        """Predict exactly these active branches of routers, from the next request on.

        Raises
        ------
        ExecutionError
            There is no such router or branch; nothing is changed.
        """
        _core.predict_routes(self._core, [(name, [*each]) for name, each in routes.items()])

    def prediction_counts(self) -> dict[str, PredictionCounts]:
        """Return how predictions of each router came out so far.

        Raises
        ------
        ExecutionError
            The program has no routers.
        """
        return {row[0]: PredictionCounts(*row[1:]) for row in _core.route_predictions(self._core)}

    def start(self, level: int) -> None:
        """Record the decisions of all requests that end from now on, in memory of 16 MiB.

        Parameters
        ----------
        level
            1: loads of branches; 2: also where each cell goes.

        Raises
        ------
        ExecutionError
            It records already, the program has no routers, or cells are not known.
        """
        _core.start_decisions(self._core, level > 1)

    def take(self, *, ends: bool) -> tuple[bytes, int]:
        """Return lines of JSON recorded since the last call, and how many requests had no room.

        Raises
        ------
        ExecutionError
            Nothing is recorded.
        """
        return _core.take_decisions(self._core, ends)
