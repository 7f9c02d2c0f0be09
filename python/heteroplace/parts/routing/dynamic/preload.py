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
from math import fsum

from heteroplace.errors import InfeasibleError
from heteroplace.model.units import format_bytes

MAX_EXACT_GROUPS = 64
"""Above this the knapsack is filled by value per byte."""
_MAX_STATES = 100_000
"""Of the exact knapsack: beyond it, which only adverse sizes reach, it is exact no more."""


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
        those of equal branches, take O(n^2). With more groups it is those of most value per byte;
        where more sums than 100,000 are in play these, or the best of the sums, whichever is
        better.
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
            states.append((0, sum(groups[index].value_ns for index in greedy), greedy))
            break
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

    Beside what stays there is room for the largest of the others; or for two of that size, where
    what is loaded ahead, beside the group before it, is worth more than what could stay in its
    place. Groups that are larger than a room stay: each size of a group is tried as the room.
    """
    likely = {
        index
        for index, group in enumerate(groups)
        if least_activation is not None and group.activation >= least_activation
    }
    best: tuple[float, frozenset[int]] | None = None
    rooms = sorted({0, *(group.weight_bytes for group in groups)}, reverse=True)
    for num_rooms in (1,) if least_activation is None else (1, 2):
        hidden = likely if num_rooms > 1 else set[int]()
        for room in rooms:
            stays = {index for index, group in enumerate(groups) if group.weight_bytes > room}
            left = budget_bytes - num_rooms * room
            left -= sum(groups[index].weight_bytes for index in stays)
            others = [index for index in range(len(groups)) if index not in stays]
            waited_for = [index for index in others if index not in hidden]
            most = fsum(groups[index].value_ns for index in stays | hidden)
            most += _most_ns([groups[index] for index in waited_for], left)
            if left < 0 or (best is not None and most <= best[0]):
                continue
            # What is loaded ahead is waited for by nobody: it stays where room is left.
            for kind in (waited_for, [index for index in others if index in hidden]):
                chosen = choose_residents([groups[index] for index in kind], left)
                stays |= {kind[index] for index in chosen}
                left -= sum(groups[kind[index]].weight_bytes for index in chosen)
            value = fsum(groups[index].value_ns for index in sorted(stays | hidden))
            if best is None or value > best[0]:
                best = value, frozenset(stays)
    assert best is not None  # the budget holds each of them
    return best[1], frozenset(likely) - best[1]


def _most_ns(groups: Sequence[WeightGroup], budget_bytes: int) -> float:
    """What no choice within a budget is worth more than: parts of groups may stay."""
    total_ns, left = 0.0, budget_bytes
    for group in sorted(groups, key=_density, reverse=True):
        share = min(1.0, max(0, left) / max(1, group.weight_bytes))
        total_ns, left = total_ns + share * group.value_ns, left - group.weight_bytes
    return total_ns


def _undominated(
    states: Iterable[tuple[int, float, tuple[int, ...]]],
) -> list[tuple[int, float, tuple[int, ...]]]:
    options: list[tuple[int, float, tuple[int, ...]]] = []
    for state in sorted(states, key=lambda state: (state[0], -state[1], state[2])):
        if not options or state[1] > options[-1][1]:
            options.append(state)
    return options


def _by_density(groups: Sequence[WeightGroup], budget_bytes: int) -> tuple[int, ...]:
    """Groups by value per byte, as long as they fit."""
    order = sorted(range(len(groups)), key=lambda index: (-_density(groups[index]), index))
    chosen, used = [], 0
    for index in order:
        if used + groups[index].weight_bytes <= budget_bytes:
            chosen.append(index)
            used += groups[index].weight_bytes
    return tuple(sorted(chosen))


def _density(group: WeightGroup) -> float:
    """Value per byte."""
    return group.value_ns / max(1, group.weight_bytes)
