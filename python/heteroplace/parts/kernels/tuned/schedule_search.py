"""A network on a device and some time -> better schedules of its kernels, in the store.

Time goes where most is left: a round of trials is of the kernel whose calls are furthest, in sum,
above what the roofline allows, divided by the rounds that it has had already. What a round finds is
stored at its end, so whoever is interrupted loses one, and another search goes on from there: its
draws have other seeds, and change the best schedule so far.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from heteroplace.costs.store import CostStore
from heteroplace.costs.tunings import TunedPlace, Tuning, add_trials, find_tunings
from heteroplace.files.measurements import date_text
from heteroplace.lower.kernels import Kernel, KernelCall
from heteroplace.measure.kernels.kernel_times import KernelTimes
from heteroplace.measure.machine_peaks import Peaks
from heteroplace.parts.kernels.tuned.trials import Trial, TrialBench
from heteroplace.parts.kernels.tuned.tuned_kernels import tuning_digest
from heteroplace.parts.kernels.tuned.tuned_schedules import Schedules

TRIALS_OF_ROUND = 8
_SEED_DIGITS = 7
_MIN_SHARE = 0.05
"""Of a kernel's time, that may be left to gain even on the roofline."""


@dataclass(frozen=True)
class TuneStep:
    """How far a search is: told before each round."""

    op: str
    """Of the kernel whose round begins."""
    trials: int
    """Schedules that were measured so far, of all kernels."""
    elapsed_s: float
    num_faster: int
    """Kernels of which a schedule was faster alone than ours."""


@dataclass
class Searched:
    """A kernel that is searched."""

    times: KernelTimes
    own: Kernel
    call: KernelCall
    """The first one of it."""
    min_ns: float
    """Of all calls, by the roofline."""
    known: Tuning | None
    """What the store had."""
    best: str = ""
    """The trace that is fastest alone; "": none yet."""
    ratio: float = 1.0
    """Its time over ours, alone, when both were last measured; 1 without any."""
    trials: int = 0
    """Of this search."""
    rounds: int = 0
    why_not: str = ""
    """Why there is nothing to search; "": there is, as far as is known."""
    schedules: Schedules | None = None
    seen: set[str] = field(default_factory=set)

    @property
    def digest(self) -> str:
        """Of its function."""
        assert self.own.function is not None
        return tuning_digest(self.own.function)

    @property
    def priority(self) -> float:
        """What is left to gain, in ns, per round; a roofline is never known to the last."""
        now_ns = self.times.total_ns * min(1.0, self.ratio)
        return max(_MIN_SHARE * now_ns, now_ns - self.min_ns) / (1 + self.rounds)


NO_SPACE = "TVM's rules have no schedule for it"
EXHAUSTED = "all schedules that were drawn are measured"


def searched_kernels(
    bench: TrialBench,
    times: Sequence[KernelTimes],
    peaks: Peaks,
    store: CostStore,
    place: TunedPlace,
) -> list[Searched]:
    """Return what there is to search, the costliest first; nothing is drawn yet."""
    calls = bench.compiled.calls(bench.cluster, bench.placement)
    stored = find_tunings(store, place)
    first: dict[str, KernelCall] = {}
    for call in calls.calls:
        first.setdefault(call.kernel, call)
    searches = []
    for each in times:
        kernel = calls.kernels[each.symbol]
        assert kernel.function is not None  # it was lowered here
        tuning = stored.get(tuning_digest(kernel.function))
        best = tuning.found if tuning is not None else ""
        min_ns = each.min_ns(peaks)
        searches.append(Searched(each, kernel, first[each.symbol], min_ns, tuning, best))
    return searches


def search(
    bench: TrialBench,
    kernels: Sequence[Searched],
    budget_s: float,
    store: CostStore,
    place: TunedPlace,
    on_step: Callable[[TuneStep], None] | None = None,
    num_cores: int = 1,
) -> None:
    """Measure schedules until the time is over, or no kernel has any that were not measured.

    At least one round is made. Each is stored at its end.

    Raises
    ------
    CostStoreError, ExecutionError
        The store cannot be written, or a kernel of ours fails.
    """
    begin = time.perf_counter()
    while True:
        left = [each for each in kernels if not each.why_not]
        if not left:
            return
        chosen = max(left, key=lambda each: each.priority)
        elapsed_s = time.perf_counter() - begin
        if on_step is not None:
            num_faster = sum(each.ratio < 1 for each in kernels)
            trials = sum(each.trials for each in kernels)
            on_step(TuneStep(chosen.times.op, trials, elapsed_s, num_faster))
        _round(bench, chosen, store, place, num_cores)
        if time.perf_counter() - begin >= budget_s:
            return


def _round(
    bench: TrialBench, chosen: Searched, store: CostStore, place: TunedPlace, num_cores: int
) -> None:
    """Measure some schedules of a kernel beside ours and the best so far."""
    if chosen.schedules is None:
        assert chosen.own.function is not None
        schedules = Schedules.of(chosen.own.function, chosen.own.target, num_cores)
        if schedules is None:
            chosen.why_not = NO_SPACE
            return
        chosen.schedules = schedules
    trials = _drawn(bench, chosen)
    chosen.rounds += 1
    if not trials:
        chosen.why_not = EXHAUSTED
        return
    best = bench.trial_of(chosen.own, chosen.best, "trial_best") if chosen.best else None
    measured = [*trials, *([best] if best is not None else [])]
    own_ns, *others = bench.times(chosen.call, [chosen.own, *(each.kernel for each in measured)])
    assert own_ns is not None
    chosen.trials += len(trials)
    pairs = [(ns, each) for ns, each in zip(others, measured, strict=True) if ns is not None]
    found_ns, trace, before = 0, "", chosen.best
    if pairs:
        found_ns, winner = min(pairs, key=lambda pair: pair[0])
        trace = chosen.best = winner.trace
        chosen.ratio = found_ns / own_ns
    add_trials(
        store,
        place,
        Tuning(
            *(chosen.digest, chosen.times.op, chosen.times.shapes, len(trials), trace, found_ns),
            *("", 0, 0, date_text(time.time())),
        ),
        before,
    )


def _drawn(bench: TrialBench, chosen: Searched) -> list[Trial]:
    """Schedules that were not measured in this search."""
    assert chosen.schedules is not None
    before = chosen.known.trials if chosen.known is not None else 0
    seed = int(chosen.digest[:_SEED_DIGITS], 16) + before + chosen.trials + chosen.rounds
    trials: list[Trial] = []
    draws = itertools.islice(chosen.schedules.draw(seed, chosen.best), 2 * TRIALS_OF_ROUND)
    for schedule in draws:
        trial = bench.trial(chosen.own, schedule, f"trial_{len(trials)}")
        if trial is not None and trial.trace not in chosen.seen:
            chosen.seen.add(trial.trace)
            trials.append(trial)
        if len(trials) == TRIALS_OF_ROUND:
            break
    return trials
