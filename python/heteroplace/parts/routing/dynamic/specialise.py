"""How a routed network is used, and on what -> which optimisations pay, by rules that say why.

The rules are those of Cui et al., Optimizing Dynamic Neural Networks with Brainstorm (OSDI 2023):
branches side by side if one cannot fill the device; placement where several devices hold branches;
speculation where the router is waited for; preloading where memory is limited. The numbers at which
each fires are ours. A router of which too few runs are known keeps what it has without a profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heteroplace.errors import RoutingError
from heteroplace.model.routed.route_profile import RouterProfile
from heteroplace.model.units import format_bytes
from heteroplace.parts.routing.dynamic.sizes import MIN_RUNS
from heteroplace.parts.routing.dynamic.speculated_routes import SpeculationTimes, predict

CAPACITIES, GROUPING, PLACEMENT, SPECULATION, PRELOADING = (
    "capacities",
    "grouping",
    "placement",
    "speculation",
    "preloading",
)
RULES = (CAPACITIES, GROUPING, PLACEMENT, SPECULATION, PRELOADING)
MAX_BUSY_SHARE = 0.5
"""Of the device's units: a branch that keeps more busy gains little beside another one."""
MAX_ROOM_SHARE = 0.9
"""Of a memory's bytes that weights may take before some of them are loaded when they are used."""
MIN_SHARE = 0.5
"""Of runs in which a prediction must be right, where nothing is known of what a miss costs."""


@dataclass(frozen=True)
class RouterUse:
    """What is known of one router; None: it is not, and a rule that needs it does not fire."""

    profile: RouterProfile
    num_memories: int = 1
    """Memories whose devices may run its branches."""
    busy_share: float | None = None
    """Of the device's units that one branch keeps busy while it runs; 0..1."""
    times: SpeculationTimes | None = None
    weight_bytes: int | None = None
    """Of all branches together."""
    room_bytes: int | None = None
    """In the memory or memories for them."""


@dataclass(frozen=True)
class RuleChoice:
    """What one rule says of one router."""

    router: str
    rule: str
    inputs: str
    """The numbers that were looked at."""
    is_chosen: bool
    is_forced: bool = False
    """Somebody has said so; the rule was not asked."""

    def text(self) -> str:
        """Return rule, inputs and decision as a line."""
        verdict = "yes" if self.is_chosen else "no"
        reason = " (as asked)" if self.is_forced else ""
        return f"{self.router}: {self.rule}: {self.inputs}: {verdict}{reason}"


def specialise(
    uses: Sequence[RouterUse], forced: Mapping[str, bool] | None = None
) -> tuple[RuleChoice, ...]:
    """Return what each rule says of each router, in the order of the routers and of `RULES`.

    Parameters
    ----------
    forced
        Rules that are not asked, by name, and what counts in their place.

    Raises
    ------
    RoutingError
        There is no such rule.

    >>> router = RouterProfile("r", 4, 2, 0, ((), ()), ())
    >>> print(specialise([RouterUse(router)])[0].text())
    r: capacities: 0 of at least 30 runs: no
    """
    forced = forced or {}
    unknown = [name for name in forced if name not in RULES]
    if unknown:
        raise RoutingError(f"there is no rule {unknown[0]!r}; there are: {', '.join(RULES)}")
    rules = (_capacities, _grouping, _placement, _speculation, _preloading)
    choices = []
    for use in uses:
        for name, rule in zip(RULES, rules, strict=True):
            inputs, is_chosen = rule(use)
            if name != PRELOADING and use.profile.num_runs < MIN_RUNS:
                inputs, is_chosen = f"{use.profile.num_runs} of at least {MIN_RUNS} runs", False
            is_forced = name in forced
            choices.append(
                RuleChoice(use.profile.name, name, inputs, forced.get(name, is_chosen), is_forced)
            )
    return tuple(choices)


def mean_active(router: RouterProfile) -> float:
    """Return the mean number of active branches in a run; 0.0 of no runs."""
    total = sum(len(branches) * count for branches, count in router.active_sets)
    return total / router.num_runs if router.num_runs else 0.0


def _capacities(use: RouterUse) -> tuple[str, bool]:
    return f"{use.profile.num_runs} runs, at least {MIN_RUNS}", True


def _grouping(use: RouterUse) -> tuple[str, bool]:
    active = mean_active(use.profile)
    if use.busy_share is None:
        return f"{active:.1f} branches active, busy share unknown", False
    text = (
        f"{active:.1f} branches active (at least 2), one keeps {100 * use.busy_share:.0f} % of the "
        f"device busy (below {100 * MAX_BUSY_SHARE:.0f} %)"
    )
    return text, active >= 2 and use.busy_share < MAX_BUSY_SHARE


def _placement(use: RouterUse) -> tuple[str, bool]:
    return f"{use.num_memories} memories may hold branches (at least 2)", use.num_memories >= 2


def _speculation(use: RouterUse) -> tuple[str, bool]:
    prediction = predict(use.profile)
    if use.profile.num_cells > 1:
        return f"{use.profile.num_cells} cells, whose rows are known when it has decided", False
    if prediction is None:
        return "no prediction", False
    share = prediction.probability or 0.0
    text = f"branches {', '.join(map(str, prediction.branches))}"
    if use.times is None:
        rule = (
            f"right in {share:.3f} of the runs (above {MIN_SHARE}), asked again by what they take"
        )
        return f"{text}, {rule}", share > MIN_SHARE
    return f"{text}, {use.times.gain.text(share)}", use.times.gain.is_worth_it(share)


def _preloading(use: RouterUse) -> tuple[str, bool]:
    if use.weight_bytes is None or use.room_bytes is None:
        return "weights or room unknown", False
    text = (
        f"weights {format_bytes(use.weight_bytes)} of {format_bytes(use.room_bytes)} (above "
        f"{100 * MAX_ROOM_SHARE:.0f} %)"
    )
    return text, use.weight_bytes > MAX_ROOM_SHARE * use.room_bytes
