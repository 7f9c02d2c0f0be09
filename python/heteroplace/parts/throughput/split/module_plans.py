"""What is known about a module: plans and bounds for each pair of ends, and how to learn more."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from heteroplace.native.core_problem import NativePlan
from heteroplace.native.core_search import search_plans
from heteroplace.native.list import critical_path_order, evaluate_order, heft, order_place
from heteroplace.native.simulate import native_plan_of, simulate_plan, simulate_steps
from heteroplace.parts.throughput.split.exact import Proof, search_and_prove
from heteroplace.parts.throughput.split.module_problem import (
    LocalModule,
    LocalStep,
    ModuleProblem,
    Pair,
)
from heteroplace.solve.exact.one_thread import Effort, Stopper

_FIRST_EVALUATIONS_PER_TASK = 300
"""Schedules that are tried for each pair of ends at first."""
_FIRST_TRY_S = 1.0


@dataclass
class ModulePlans:
    """What is known about a module and all that equal it."""

    module: LocalModule
    lower_ns: dict[Pair, int] = field(default_factory=dict)
    """A bound for each pair of ends."""
    upper: dict[Pair, tuple[int, tuple[LocalStep, ...]]] = field(default_factory=dict)
    """The best plan for a pair, and its time."""
    kept: dict[Pair, dict[tuple[LocalStep, ...], int]] = field(default_factory=dict)
    """All plans that were kept, with their times: slower ones may need less memory."""
    num_solves: int = 0
    """By the exact solver."""
    is_too_large: bool = False
    """For the exact solver."""
    is_exhausted: bool = False
    """It was solved to the end, and nothing was learnt."""

    def times(self) -> dict[Pair, int]:
        """Time of the best plan for each pair, or its bound where there is no plan."""
        return {
            pair: self.upper[pair][0] if pair in self.upper else bound
            for pair, bound in self.lower_ns.items()
        }

    def offer(self, pair: Pair, local: tuple[LocalStep, ...], time_ns: int) -> bool:
        """Keep a plan; tell whether it is the best for its pair."""
        self.kept.setdefault(pair, {})[local] = time_ns
        if pair in self.upper and self.upper[pair][0] <= time_ns:
            return False
        self.upper[pair] = (time_ns, local)
        return True

    def prove(self, pair: Pair, bound_ns: int) -> None:
        """Keep a bound if it is the best for its pair."""
        if pair in self.upper:
            bound_ns = min(bound_ns, self.upper[pair][0])
        self.lower_ns[pair] = max(self.lower_ns[pair], bound_ns)

    def try_all_pairs(self, effort: Effort) -> None:
        """Find first plans for all pairs that the time allows, from a known one if there is one."""
        module = self.module
        free = module.free()
        native = free.problem.native
        initial = [heft(native, range(len(native.cluster.devices)))]
        if self.upper:
            best_pair = min(self.upper, key=lambda pair: (self.upper[pair][0], pair))
            initial.append(
                native_plan_of(native, free.with_ends(best_pair, self.upper[best_pair][1]))
            )
        self.spread(free, self._search(free, initial, effort))
        for pair in self.lower_ns:
            if effort.deadline.is_over():
                return
            pinned = module.pinned(pair)
            if pair in self.upper:
                steps = pinned.with_ends(pair, self.upper[pair][1])
                initial = [native_plan_of(pinned.problem.native, steps)]
            else:
                initial = [heft(pinned.problem.native, range(len(native.cluster.devices)))]
            self.spread(pinned, self._search(pinned, initial, effort))

    def _search(
        self, priced: ModuleProblem, initial: list[NativePlan], effort: Effort
    ) -> NativePlan:
        until = effort.deadline
        if effort.deterministic_s is None:
            until = until.within(_FIRST_TRY_S)
        end = search_plans(
            priced.problem.native,
            initial,
            max_evaluations=_FIRST_EVALUATIONS_PER_TASK * len(self.module.extent.tasks),
            time_limit_s=until.left_s(),
            seed=effort.seed,
            finds_bound=False,
        )
        if end.was_interrupted:
            raise KeyboardInterrupt
        return end.native_plan

    def spread(self, priced: ModuleProblem, native_plan: NativePlan) -> None:
        """Keep a plan of the module, and what it becomes if only its ends are moved."""
        if native_plan.violation:
            return
        native = priced.problem.native
        pair, local = priced.without_ends(native_plan.steps)
        self.offer(pair, local, simulate_plan(native, native_plan).makespan_ns - priced.price(pair))
        devices = native_plan.devices(len(priced.problem.graph.tasks)).tolist()
        for other in priced.pairs():
            moved = evaluate_order(native, priced.move_ends(devices, other), native_plan.order)
            time_ns = moved.makespan_ns - priced.price(other)
            if moved.violation == 0 and time_ns < self.upper.get(other, (time_ns + 1,))[0]:
                time_ns = simulate_plan(native, moved).makespan_ns - priced.price(other)
                self.offer(other, priced.without_ends(moved.steps)[1], time_ns)


@dataclass(frozen=True)
class ModuleSolve:
    """One solve of a module over all pairs of ends, with prices at its ends."""

    plans: ModulePlans
    priced: ModuleProblem

    def run(self, effort: Effort, stopper: Stopper) -> Proof:
        """Search, then prove. Any thread."""
        priced = self.priced
        native = priced.problem.native
        best_pair = min(
            (ns + priced.price(pair), pair)
            for pair, (ns, _) in self.plans.upper.items()
            if priced.has(pair)
        )[1]
        steps = priced.with_ends(best_pair, self.plans.upper[best_pair][1])
        bound = max(0, min(self._priced_bounds()))
        return search_and_prove(
            priced.problem, [native_plan_of(native, steps)], bound, effort, stopper
        )

    def learn(self, proof: Proof) -> None:
        """Keep what a solve found. Not thread-safe."""
        self.plans.num_solves += 1
        if proof.steps is None:
            return
        self.plans.spread(self.priced, native_plan_of(self.priced.problem.native, proof.steps))
        before = dict(self.plans.lower_ns)
        for pair in self.plans.lower_ns:
            if self.priced.has(pair):
                self.plans.prove(pair, proof.bound_ns - self.priced.price(pair))
        # By lifetime of tensors less may be provable than the best plan takes.
        self.plans.is_exhausted |= proof.is_final and self.plans.lower_ns == before

    def _priced_bounds(self) -> list[int]:
        bounds = self.plans.lower_ns.items()
        return [bound + self.priced.price(pair) for pair, bound in bounds if self.priced.has(pair)]


@dataclass(frozen=True)
class ConstrainedSolve:
    """One solve of a module for one pair of ends within less memory than there is."""

    plans: ModulePlans
    pair: Pair
    memory_bytes: tuple[int, ...]
    """What the module may use in each memory."""

    def run(self, effort: Effort, stopper: Stopper) -> Proof:
        """Search, then prove. Any thread."""
        return search_and_prove(
            self.priced.problem, self._initial(), self.plans.lower_ns[self.pair], effort, stopper
        )

    def learn(self, proof: Proof) -> None:
        """Keep the plan; the bound is none without the limit. Not thread-safe."""
        if proof.steps is not None:
            local = self.priced.without_ends(proof.steps)[1]
            time_ns = simulate_steps(self.priced.problem.native, proof.steps).makespan_ns
            self.plans.offer(self.pair, local, time_ns)

    @cached_property
    def priced(self) -> ModuleProblem:
        """The problem with smaller memories."""
        entry_ns, exit_ns = {self.pair[0]: 0}, {self.pair[1]: 0}
        return ModuleProblem(self.plans.module, entry_ns, exit_ns, self.memory_bytes)

    def _initial(self) -> list[NativePlan]:
        native = self.priced.problem.native
        order = critical_path_order(native)
        return [
            heft(native, range(len(native.cluster.devices))),
            order_place(native, order),
        ]
