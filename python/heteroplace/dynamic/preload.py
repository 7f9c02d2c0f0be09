"""Weights that do not all fit -> which stay, which are loaded ahead, and how long runs take.

Cui et al., Optimizing Dynamic Neural Networks with Brainstorm (OSDI 2023), speculative weight
preloading: a network is cut at its routers into groups. On demand the weights of a group are
loaded at its own head; those of a group that is likely to be active are loaded at the head of the
group before it, beside its kernels, and a wrong guess falls back to loading on demand.

Unlike the paper, which preloads what has a mean load above a threshold, what stays is chosen within
a budget of bytes by how likely a group is active and how long it takes to load (a knapsack), and
the time of wrong loads that are still under way when the right one is due is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heteroplace.errors import InfeasibleError, RoutingError
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


@dataclass(frozen=True, slots=True)
class Turn:
    """One group of a run, in order."""

    group: WeightGroup
    compute_ns: int
    predicted: WeightGroup | None = None
    """What is loaded ahead for it; None: nothing. Another group than its own is a wrong guess."""
    is_resident: bool = False
    """Its weights are there already."""


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


def run_ns(turns: Sequence[Turn]) -> int:
    """Return how long a run takes, with one copy engine beside the kernels.

    A predicted group is loaded from the head of the turn before it on (the first one: at the
    beginning); a group that is not there is loaded at its own head, behind a wrong load that is
    still under way.

    >>> group = WeightGroup("g", 1, 3)
    >>> run_ns([Turn(group, 4)] * 4), run_ns([Turn(group, 4, group)] * 4)
    (28, 19)
    """
    engine_free = clock = 0
    ahead: tuple[WeightGroup, int] | None = None
    """What is loaded for the next turn, and when it is there."""
    for index, turn in enumerate(turns):
        if index == 0:
            ahead = _load_ahead(turn, clock, engine_free)
            engine_free = max(engine_free, ahead[1] if ahead else 0)
        begin = clock
        if not turn.is_resident:
            if ahead is not None and ahead[0].name == turn.group.name:
                begin = max(clock, ahead[1])
            else:
                begin = max(clock, engine_free) + turn.group.load_ns
                engine_free = begin
        if index + 1 < len(turns):
            ahead = _load_ahead(turns[index + 1], begin, engine_free)
            engine_free = max(engine_free, ahead[1] if ahead else 0)
        clock = begin + turn.compute_ns
    return clock


def _load_ahead(turn: Turn, now: int, engine_free: int) -> tuple[WeightGroup, int] | None:
    """What is loaded for a turn from `now` on, and when it is there; None: nothing."""
    if turn.is_resident or turn.predicted is None:
        return None
    return turn.predicted, max(now, engine_free) + turn.predicted.load_ns


class Residency:
    """Which groups are in a memory of limited room: loads, evictions, the most bytes held.

    A group is there from `load` on. It is pinned while somebody uses it, as often as `pin` was
    called; what is pinned is never evicted. Room is made by evicting the least likely group first
    (ties: the one loaded first). Not thread-safe.

    Raises
    ------
    InfeasibleError
        A group is larger than the budget.
    """

    def __init__(self, groups: Sequence[WeightGroup], budget_bytes: int) -> None:
        check_budget(groups, budget_bytes)
        self._groups = {group.name: group for group in groups}
        if len(self._groups) < len(groups):
            raise RoutingError("groups of weights must have different names")
        self._budget = budget_bytes
        self._held: dict[str, int] = {}
        """How often each group that is there is pinned, in the order of their loads."""
        self.used_bytes = 0
        self.peak_bytes = 0
        """The most that was held at once."""
        self.num_loads = 0

    def is_there(self, name: str) -> bool:
        """Tell whether a group's weights are there."""
        return name in self._held

    def load(self, name: str) -> tuple[str, ...]:
        """Bring a group and return what was evicted for it; nothing happens where it is there.

        Raises
        ------
        InfeasibleError
            What is pinned leaves too little room.
        """
        if self.is_there(name):
            return ()
        need = self._groups[name].weight_bytes
        free = sorted(
            (held for held, pins in self._held.items() if not pins),
            key=lambda held: self._groups[held].activation,
        )
        evicted: list[str] = []
        room = self._budget - self.used_bytes
        while room < need:
            if len(evicted) == len(free):
                pinned = [held for held, pins in self._held.items() if pins]
                raise InfeasibleError(
                    f"no room to load {name!r}, {format_bytes(need)}: {', '.join(pinned)} are in "
                    f"use, and the budget is {format_bytes(self._budget)}; give it more, or load "
                    f"fewer groups ahead"
                )
            room += self._groups[free[len(evicted)]].weight_bytes
            evicted.append(free[len(evicted)])
        for victim in evicted:
            del self._held[victim]
            self.used_bytes -= self._groups[victim].weight_bytes
        self._held[name] = 0
        self.used_bytes += need
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self.num_loads += 1
        return tuple(evicted)

    def pin(self, name: str) -> None:
        """Use a group that is there; it stays until it is unpinned as often.

        Raises
        ------
        RoutingError
            Its weights are not there: they would be read before they are loaded.
        """
        if name not in self._held:
            raise RoutingError(f"the weights of {name!r} are used before they are loaded")
        self._held[name] += 1

    def unpin(self, name: str) -> None:
        """End one use of a group.

        Raises
        ------
        RoutingError
            It is not in use.
        """
        if not self._held.get(name, 0):
            raise RoutingError(f"the weights of {name!r} are not in use")
        self._held[name] -= 1
