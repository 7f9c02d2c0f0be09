"""What a router is expected to decide, and when that pays.

Cui et al., Optimizing Dynamic Neural Networks with Brainstorm (OSDI 2023), speculative routing: the
branches that were active most often are begun before the router has decided. With r the router's
time, b that of its branches and d what a miss costs beside both, a run takes r + b without a
prediction, max(r, b) if it is right and r + b + d if it is wrong. So a prediction that is right
with probability p pays where

    p min(r, b) > (1 - p) d.

What a build knows of its plan it simulates (`parts/routing/solve/planned_predictions.py`), and the
executor ends what no longer pays (`src/exec/requests/decisions.h`).

The paper speaks of most frequent branches; where several are active the most frequent *set* is
predicted. Each router is judged by itself: right in a row is far rarer than right on average.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from heteroplace.model.routed.route_profile import RouterProfile
from heteroplace.model.routed.speculation import Prediction, SpeculationGain
from heteroplace.parts.routing.dynamic.sizes import MIN_RUNS

HIT, WASTED, PARTIAL, MISS = "hit", "hit with more", "partial", "miss"
"""What was predicted is just what was active; holds all of it, and more; holds some of it; holds
none of it."""
MAX_DEPTH = 4
"""Routers in a row, each behind branches that the one before it decides about, that are predicted
at once: behind these what is begun is seldom right."""


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

    @property
    def gain(self) -> SpeculationGain:
        """What a prediction saves, and what a miss costs."""
        return SpeculationGain(min(self.router_ns, self.branch_ns), self.miss_ns)


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
    predictions = []
    for router in routers:
        prediction = predict(router)
        if prediction is None or router.name not in times:
            continue
        share = prediction.probability or 0.0
        if (depth_of or {}).get(router.name, 0) >= MAX_DEPTH:
            continue
        if times[router.name].gain.is_worth_it(share):
            predictions.append(prediction)
    return tuple(predictions)
