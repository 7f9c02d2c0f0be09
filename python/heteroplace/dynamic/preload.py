"""Weights that do not all fit -> which stay, and which are loaded ahead.

Cui et al., Optimizing Dynamic Neural Networks with Brainstorm (OSDI 2023), speculative weight
preloading: a network is cut at its routers into groups. On demand the weights of a group are
loaded at its own head; those of a group that is likely to be active are loaded at the head of the
group before it, beside its kernels, and a wrong guess falls back to loading on demand.

Unlike the paper, which preloads what has a mean load above a threshold, what stays is chosen within
a budget of bytes by how likely a group is active and how long it takes to load (a knapsack). What
that makes of a run's time is simulated of the plan, with wrong loads that are still under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heteroplace.errors import InfeasibleError
from heteroplace.model.units import format_bytes

MAX_EXACT_GROUPS = 64
"""Above this the knapsack is filled by value per byte."""
_MAX_STATES = 100_000
"""Of the exact knapsack: beyond it, which only adverse sizes reach, it ends by value per byte."""


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """What is loaded as one: the weights of one branch, or of what is between routers."""

    name: str
    weight_bytes: int
    load_ns: int
    activation: float = 1.0
    """Probability that it is needed in a run."""

    @property
    def value_ns(self) -> float:
        """Mean time per run that its loads take."""
        return self.activation * self.load_ns


def check_budget(groups: Sequence[WeightGroup], budget_bytes: int) -> None:
    """Raise InfeasibleError if a group is larger than the budget."""
    largest = max(groups, key=lambda group: group.weight_bytes, default=None)
    if largest is not None and largest.weight_bytes > budget_bytes:
        raise InfeasibleError(
            f"a budget of {format_bytes(budget_bytes)} does not hold the weights of "
            f"{largest.name!r}, {format_bytes(largest.weight_bytes)}: give it at least those"
        )


def choose_residents(groups: Sequence[WeightGroup], budget_bytes: int) -> tuple[int, ...]:
    """Return which groups stay within a budget, so that the mean time of loads is least.

    Parameters
    ----------
    groups
        With different names.
    budget_bytes
        For those that stay; what others need while they are used is not in it.

    Returns
    -------
    chosen
        Positions in `groups`, ascending. Optimal up to `MAX_EXACT_GROUPS` groups: of the sums of
        the first i groups only those stay in play that no other sum beats in bytes and value
        (Nemhauser and Ullmann, Management Science 15(9), 1969), so that groups of one size, as
        those of equal branches, take O(n^2).
    """
    greedy = _by_density(groups, budget_bytes)
    if len(groups) > MAX_EXACT_GROUPS:
        return greedy
    states: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]
    for index, group in enumerate(groups):
        added = [
            (used + group.weight_bytes, value + group.value_ns, (*chosen, index))
            for used, value, chosen in states
            if used + group.weight_bytes <= budget_bytes
        ]
        states = _undominated([*states, *added])
        if len(states) > _MAX_STATES:
            return greedy
    return max(states, key=lambda state: (state[1], -state[0]))[2]


def split_weights(
    groups: Sequence[WeightGroup], budget_bytes: int, least_activation: float | None
) -> tuple[frozenset[int], frozenset[int]]:
    """Return which groups stay, and which of the others are loaded ahead, by position.

    Parameters
    ----------
    budget_bytes
        For all that are held at any time; holds each of them.
    least_activation
        From this share of the runs on a group is loaded ahead; None: none is.

    Beside what stays there is room for the largest group; or for two of that size, where what is
    loaded ahead, beside the group before it, is worth more than what could stay in its place.
    """
    largest = max((group.weight_bytes for group in groups), default=0)
    best: tuple[float, frozenset[int], frozenset[int]] | None = None
    for num_rooms in (1,) if least_activation is None else (1, 2):
        if num_rooms * largest > budget_bytes:
            break
        stays = frozenset(choose_residents(groups, budget_bytes - num_rooms * largest))
        ahead = frozenset(
            index
            for index, group in enumerate(groups)
            if least_activation is not None
            and index not in stays
            and group.activation >= least_activation
        )
        hidden = ahead if num_rooms > 1 else frozenset[int]()
        value = sum(groups[index].value_ns for index in stays | hidden)
        if best is None or value > best[0]:
            best = value, stays, ahead
    assert best is not None  # the budget holds each of them
    return best[1], best[2]


def _undominated(
    states: Iterable[tuple[int, float, tuple[int, ...]]],
) -> list[tuple[int, float, tuple[int, ...]]]:
    found: list[tuple[int, float, tuple[int, ...]]] = []
    for state in sorted(states, key=lambda state: (state[0], -state[1], state[2])):
        if not found or state[1] > found[-1][1]:
            found.append(state)
    return found


def _by_density(groups: Sequence[WeightGroup], budget_bytes: int) -> tuple[int, ...]:
    """Groups by value per byte, as long as they fit."""
    order = sorted(
        range(len(groups)),
        key=lambda index: (-groups[index].value_ns / max(1, groups[index].weight_bytes), index),
    )
    chosen, used = [], 0
    for index in order:
        if used + groups[index].weight_bytes <= budget_bytes:
            chosen.append(index)
            used += groups[index].weight_bytes
    return tuple(sorted(chosen))
