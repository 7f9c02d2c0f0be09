"""What is known about a stage: plans and bounds for each pair of its ends, and how to learn more."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from heteroplace.native.arrays import IMPOSSIBLE
from heteroplace.native.schedule import Draft
from heteroplace.solve.split.exact import Effort, Proof, Stopper, prove
from heteroplace.solve.split.stage import LocalStep, Pair, Place, StageProblem

_FIRST_EVALUATIONS_PER_TASK = 300
"""Schedules that are tried for each pair of ends at first."""
_EVALUATIONS_PER_TASK = 5000
"""Schedules that are tried before a stage is solved exactly."""
_FIRST_TRY_S = 1.0


@dataclass
class StageFacts:
    """What is known about a stage and all that equal it."""

    place: Place
    lower_ns: dict[Pair, int] = field(default_factory=dict)
    """A bound for each pair of ends."""
    upper: dict[Pair, tuple[int, tuple[LocalStep, ...]]] = field(default_factory=dict)
    """The best plan for a pair, and its time."""
    num_solves: int = 0
    """By the exact solver."""
    is_too_large: bool = False
    """For the exact solver."""

    def times(self) -> dict[Pair, int]:
        """Time of the best plan for each pair, or its bound where there is no plan."""
        return {
            pair: self.upper[pair][0] if pair in self.upper else bound
            for pair, bound in self.lower_ns.items()
        }

    def offer(self, pair: Pair, local: tuple[LocalStep, ...], time_ns: int) -> bool:
        """Keep a plan if it is the best for its pair."""
        if pair in self.upper and self.upper[pair][0] <= time_ns:
            return False
        self.upper[pair] = (time_ns, local)
        return True

    def prove(self, pair: Pair, bound_ns: int) -> None:
        """Keep a bound if it is the best for its pair."""
        if pair in self.upper:
            bound_ns = min(bound_ns, self.upper[pair][0])
        self.lower_ns[pair] = max(self.lower_ns[pair], bound_ns)

    def try_pair(self, pair: Pair, seed: int) -> None:
        """Find a first plan for a pair: a known one with its exit moved, and a short search."""
        stage = StageProblem(self.place, {pair[0]: 0}, {pair[1]: 0})
        native = stage.problem.native
        starts = [native.heft(range(len(native.cluster.devices)))]
        if self.upper:
            starts.append(self._moved(stage, pair))
        found = native.search(
            starts,
            max_evaluations=_FIRST_EVALUATIONS_PER_TASK * len(self.place.stage.tasks),
            time_limit_s=_FIRST_TRY_S,
            seed=seed,
            bound_ns=self.lower_ns[pair],
            finds_bound=False,
        )
        if found.draft.violation == 0:
            _, local = stage.without_ends(found.draft.steps)
            self.offer(pair, local, native.makespan_ns(found.draft))

    def _moved(self, stage: StageProblem, pair: Pair) -> Draft:
        """The shortest known plan of any pair, with its ends where the pair wants them."""
        source = min(self.upper, key=lambda known: (self.upper[known][0], known))
        local = self.upper[source][1]
        native = stage.problem.native
        steps = stage.with_ends((pair[0], source[1]), local)
        devices = list(native.placement(steps))
        for task, row in enumerate(native.run_ns.tolist()):
            if row[devices[task]] == IMPOSSIBLE:
                allowed = [(ns, device) for device, ns in enumerate(row) if ns != IMPOSSIBLE]
                devices[task] = min(allowed)[1]
        # All of a label go where its first task goes.
        first: dict[int, int] = {}
        for task, group in enumerate(native.task_group):
            if group >= 0:
                devices[task] = first.setdefault(int(group), devices[task])
        return native.evaluate(devices, list(range(len(devices))))


@dataclass(frozen=True)
class StageJob:
    """One solve of a stage over all pairs of ends, with prices at its ends."""

    facts: StageFacts
    stage: StageProblem

    def run(self, effort: Effort, stopper: Stopper) -> Proof:
        """Search, then prove. Any thread."""
        stage = self.stage
        native = stage.problem.native
        known = min(
            (ns + self._price(pair), pair)
            for pair, (ns, _) in self.facts.upper.items()
            if self._has(pair)
        )[1]
        steps = stage.with_ends(known, self.facts.upper[known][1])
        bound = max(0, min(self._priced_bounds()))
        found = native.search(
            [native.draft_of(steps)],
            max_evaluations=_EVALUATIONS_PER_TASK * len(self.facts.place.stage.tasks),
            time_limit_s=effort.time_limit_s / 4,
            seed=effort.seed,
            bound_ns=bound,
            finds_bound=False,
        )
        best = steps
        if found.draft.violation == 0:
            best = min(steps, found.draft.steps, key=lambda plan: native.simulate(plan).makespan_ns)
        proof = prove(stage.problem, best, bound, effort, stopper)
        shorter = best if proof.steps is None else proof.steps
        return replace(proof, steps=shorter)

    def learn(self, proof: Proof) -> None:
        """Keep what a solve found. Not thread-safe."""
        self.facts.num_solves += 1
        assert proof.steps is not None
        pair, local = self.stage.without_ends(proof.steps)
        total = self.stage.problem.native.simulate(proof.steps).makespan_ns
        self.facts.offer(pair, local, total - self._price(pair))
        for known in self.facts.lower_ns:
            if self._has(known):
                self.facts.prove(known, proof.bound_ns - self._price(known))

    def _has(self, pair: Pair) -> bool:
        return pair[0] in self.stage.entry_ns and pair[1] in self.stage.exit_ns

    def _price(self, pair: Pair) -> int:
        return self.stage.entry_ns[pair[0]] + self.stage.exit_ns[pair[1]]

    def _priced_bounds(self) -> list[int]:
        bounds = self.facts.lower_ns.items()
        return [bound + self._price(pair) for pair, bound in bounds if self._has(pair)]
