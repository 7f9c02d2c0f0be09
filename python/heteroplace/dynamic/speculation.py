"""What a router is expected to decide, when that pays, and when it no longer does.

Cui et al., Optimizing Dynamic Neural Networks with Brainstorm (OSDI 2023), speculative routing: the
branches that were active most often are begun before the router has decided. With r the router's
time, b that of its branches and d what a miss costs beside both, a run takes r + b without a
prediction, max(r, b) if it is right and r + b + d if it is wrong. So a prediction that is right
with probability p pays where

    p min(r, b) > (1 - p) d.

The paper speaks of most frequent branches; where several are active the most frequent *set* is
predicted. Each router is judged by itself: right in a row is far rarer than right on average.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from heteroplace.dynamic.sizes import MIN_RUNS
from heteroplace.errors import RoutingError
from heteroplace.model.route_profile import RouterProfile
from heteroplace.model.units import format_ns

HIT, WASTED, PARTIAL, MISS = "hit", "hit with more", "partial", "miss"
"""What was predicted is just what was active; holds all of it, and more; holds some of it; holds
none of it."""
WINDOW_RUNS = 100
MAX_DEPTH = 4
"""Routers in a row, each behind branches that the one before it decides about, that are predicted
at once: behind these what is begun is seldom right."""


@dataclass(frozen=True)
class Prediction:
    """What a router is expected to decide."""

    router: str
    branches: tuple[int, ...]
    """Active ones, ascending."""
    probability: float
    """That all branches that are active are among them."""


def predict(router: RouterProfile) -> Prediction | None:
    """Return the set of branches that was active most often; None: there were too few runs.

    Of sets that were as frequent the first is taken, by size and then by branches. One in which
    nothing is active predicts nothing.
    """
    sets = [(count, branches) for branches, count in router.active_sets if branches]
    if router.num_runs < MIN_RUNS or not sets:
        return None
    _, branches = min(sets, key=lambda entry: (-entry[0], len(entry[1]), entry[1]))
    held = sum(count for active, count in router.active_sets if set(active) <= set(branches))
    return Prediction(router.name, branches, held / router.num_runs)


def classify(predicted: Iterable[int], active: Iterable[int]) -> str:
    """Return how right a prediction was.

    >>> classify((0, 1), (0, 1)), classify((0, 1), (1,)), classify((0,), (0, 1)), classify((0,), (2,))
    ('hit', 'hit with more', 'partial', 'miss')
    """  # noqa: E501  (one example each)
    guess, truth = set(predicted), set(active)
    if guess == truth:
        return HIT
    if truth <= guess:
        return WASTED
    return PARTIAL if guess & truth else MISS


@dataclass(frozen=True)
class SpeculationTimes:
    """What speculation about one router takes and saves."""

    router_ns: float
    branch_ns: float
    """Of the branches that are predicted."""
    miss_ns: float = 0.0
    """Beside router and branches, of a wrong prediction: what was begun in vain and stands in the
    way."""

    @property
    def default_ns(self) -> float:
        """Without a prediction."""
        return self.router_ns + self.branch_ns

    @property
    def hit_ns(self) -> float:
        """With a prediction that is right."""
        return max(self.router_ns, self.branch_ns)

    def expected_ns(self, probability: float) -> float:
        """Return the mean time with a prediction that is right so often.

        >>> times = SpeculationTimes(10, 20)
        >>> times.expected_ns(0.9), times.expected_ns(0.95)
        (21.0, 20.5)
        """
        missed = self.default_ns + self.miss_ns
        return probability * self.hit_ns + (1 - probability) * missed

    def is_worth_it(self, probability: float) -> bool:
        """Tell whether a prediction that is right so often saves time."""
        saved = min(self.router_ns, self.branch_ns)
        return probability * saved > (1 - probability) * self.miss_ns

    def text(self, probability: float) -> str:
        """Return the inequality with its numbers."""
        saved = min(self.router_ns, self.branch_ns)
        sign = ">" if self.is_worth_it(probability) else "<="
        return (
            f"{probability:.3f} x {format_ns(saved)} {sign} {1 - probability:.3f} x "
            f"{format_ns(self.miss_ns)}"
        )


def all_right(probabilities: Sequence[float]) -> float:
    """Return how likely independent predictions are all right.

    >>> round(all_right((0.97, 0.9, 0.6, 0.99)), 4)
    0.5186
    """
    return math.prod(probabilities)


def choose_predictions(
    routers: Sequence[RouterProfile],
    times: Mapping[str, SpeculationTimes],
    depth_of: Mapping[str, int] | None = None,
) -> tuple[Prediction, ...]:
    """Return the predictions that pay, each judged by itself, in the order of the routers.

    Parameters
    ----------
    times
        By the name of a router; one that is missing is not predicted.
    depth_of
        How many routers each is nested in; None: none is. From `MAX_DEPTH` on none is predicted.
    """
    found = []
    for router in routers:
        prediction = predict(router)
        if prediction is None or router.name not in times:
            continue
        if (depth_of or {}).get(router.name, 0) >= MAX_DEPTH:
            continue
        if times[router.name].is_worth_it(prediction.probability):
            found.append(prediction)
    return tuple(found)


class SpeculationGate:
    """Watches the predictions of one router, and ends them where they no longer pay.

    Not thread-safe. It never begins again by itself: hits are not seen where nothing is predicted,
    and a router that goes back and forth would pay for every turn.

    Parameters
    ----------
    times
        As expected; the cost of a miss is measured from then on.
    window_runs
        The latest runs by which it is judged, at least `MIN_RUNS`.
    """

    def __init__(
        self, prediction: Prediction, times: SpeculationTimes, window_runs: int = WINDOW_RUNS
    ) -> None:
        if window_runs < MIN_RUNS:
            raise RoutingError(
                f"router {prediction.router!r}: expected a window of at least {MIN_RUNS} runs, got "
                f"{window_runs}"
            )
        self.prediction = prediction
        self._times = times
        self._window: deque[bool] = deque(maxlen=window_runs)
        self._misses: deque[float] = deque(maxlen=window_runs)
        self._counts = dict.fromkeys((HIT, WASTED, PARTIAL, MISS), 0)
        self.is_on = True
        """Whether the router is predicted."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many runs were what, while the router was predicted."""
        return dict(self._counts)

    @property
    def hit_rate(self) -> float:
        """The share of runs, while it was predicted, in which nothing was missing; 0.0 of none."""
        total = sum(self._counts.values())
        return (self._counts[HIT] + self._counts[WASTED]) / total if total else 0.0

    @property
    def times(self) -> SpeculationTimes:
        """What was expected, with the mean measured cost of the misses in the window."""
        if not self._misses:
            return self._times
        mean = sum(self._misses) / len(self._misses)
        return SpeculationTimes(self._times.router_ns, self._times.branch_ns, mean)

    def close(self) -> None:
        """End the predictions, whatever they were worth."""
        self.is_on = False

    def observe(self, active: Iterable[int], miss_ns: float | None = None) -> bool:
        """Add what the router has decided; return whether it is predicted from now on.

        Parameters
        ----------
        active
            Branches with a cell.
        miss_ns
            What the miss was measured to cost; None: it was a hit, or was not measured.
        """
        if not self.is_on:
            return False
        found = classify(self.prediction.branches, active)
        self._counts[found] += 1
        is_hit = found in (HIT, WASTED)
        self._window.append(is_hit)
        if not is_hit and miss_ns is not None:
            self._misses.append(max(0.0, miss_ns))
        if len(self._window) >= MIN_RUNS:
            share = sum(self._window) / len(self._window)
            self.is_on = self.times.is_worth_it(share)
        return self.is_on
