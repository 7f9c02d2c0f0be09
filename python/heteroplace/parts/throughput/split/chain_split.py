"""The chain of modules solved one by one, until the shortest path by bounds is a plan.

DiviML (section IV-D) solves every module for every pair of its ends. Here the program over the
ends decides what is worth solving. For each module and pair of ends there are a plan and a bound.
The ends get prices (Lagrange multipliers of the condition that neighbours meet in one memory) at
which no module alone can shorten the best plan, unless its solver finds a better one: a solve of a
module over all pairs at once, at these prices, gives either that plan or bounds for all its pairs,
which together prove the whole. Equal modules share what is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from heteroplace.model.plan import Run, Step
from heteroplace.native.simulate import simulate_steps
from heteroplace.parts.throughput.decompose.serial_modules import ChainModule
from heteroplace.parts.throughput.split.chain_program import end_prices, shortest_path, value
from heteroplace.parts.throughput.split.module_memory import fitting_chain
from heteroplace.parts.throughput.split.module_plans import (
    ConstrainedSolve,
    ModulePlans,
    ModuleSolve,
)
from heteroplace.parts.throughput.split.module_problem import (
    NO_END,
    Key,
    LocalModule,
    ModuleProblem,
    Pair,
    split_steps,
)
from heteroplace.parts.throughput.split.pool import Pool
from heteroplace.solve.bounds.quick import quick_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.exact.one_thread import Effort
from heteroplace.solve.problem import MAX_CPSAT_TASKS, Problem

_FIRST_SHARE = 0.4
"""Part of the time for first plans and first bounds of all modules."""
_BOUND_SHARE = 0.5
"""Part of that of a module for its bounds."""
_MEMORY_SHARES = (0.75, 0.5, 0.25)
"""Of the bytes of the fastest plan of a module: what memory-constrained ones may use."""
_WORTH = 0.2
"""A round leaves out modules that lack less than this share of what the worst one lacks."""


class ChainSplit:
    """One problem and its modules; what is found stays. Not thread-safe."""

    def __init__(self, problem: Problem, chain: Sequence[ChainModule], pool: Pool) -> None:
        self._problem = problem
        self._pool = pool
        by_key: dict[Key, ModulePlans] = {}
        self.modules = [LocalModule(problem, extent) for extent in chain]
        self.plans = [by_key.setdefault(module.key, ModulePlans(module)) for module in self.modules]
        self.classes = list(by_key.values())
        """Distinct modules."""

    def start(self, plan: Sequence[Step]) -> None:
        """Find first bounds and plans for all pairs, beginning from a plan of the whole."""
        self._offer_shares(plan)
        budget = self._pool.budget
        deadline = budget.deadline.part(_FIRST_SHARE, budget.deterministic_s)
        for index, plans in enumerate(self.classes):
            until = deadline.part(1 / (len(self.classes) - index), budget.deterministic_s)
            self._bound(plans, until.part(_BOUND_SHARE, budget.deterministic_s).left_s())
            if not self._pool.is_over():
                plans.try_all_pairs(Effort(until, budget.deterministic_s, budget.seed))

    def bound_ns(self) -> int:
        """Return what is proven about the whole."""
        return value([plans.lower_ns for plans in self.plans]) or 0

    def best_ns(self) -> int | None:
        """Return the time of the best plan; None: there is none."""
        return value([{p: u[0] for p, u in plans.upper.items()} for plans in self.plans])

    def steps(self) -> tuple[Step, ...]:
        """Return the best plan of the whole: that of each module on the shortest path."""
        times = [{p: u[0] for p, u in plans.upper.items()} for plans in self.plans]
        steps: list[Step] = []
        for module, plans, pair in zip(self.modules, self.plans, shortest_path(times), strict=True):
            steps.extend(module.steps(plans.upper[pair][1]))
        return tuple(steps)

    def improve(self) -> bool:
        """Solve the modules that the bound depends on, one round; False: there is none, or no
        budget."""
        times = [plans.times() for plans in self.plans]
        prices = end_prices(times)
        open_modules = self._open_modules(prices)
        if not open_modules or self._pool.is_over():
            return False
        jobs = [self._solve_of(index, prices) for index in open_modules]
        proofs = self._pool.run([job.run for job in jobs])
        for job, proof in zip(jobs, proofs, strict=True):
            job.learn(proof)
        return True

    def constrain_memory(
        self, lacking: Sequence[int], pool: Pool, deadline: Deadline
    ) -> tuple[Step, ...] | None:
        """Look for plans of modules that use less of the memories that the best plan overflows;
        return the best chain that fits, None if none was found.

        Parameters
        ----------
        lacking
            For each memory the bytes that the best plan lacks there.
        pool, deadline
            Of the plans of modules, and of the chain.
        """
        jobs = []
        native = self._problem.native
        for plans in self.classes:
            pairs = sorted(plans.upper, key=lambda pair: (plans.upper[pair][0], pair))
            for pair in pairs:
                if pool.is_over():
                    break
                pinned = plans.module.pinned(pair)
                steps = pinned.with_ends(pair, plans.upper[pair][1])
                used = simulate_steps(pinned.problem.native, steps).used_bytes
                for share in _MEMORY_SHARES:
                    limits = [
                        int(num_bytes * share) if lacks else memory.bytes
                        for num_bytes, lacks, memory in zip(
                            used, lacking, native.cluster.memories, strict=True
                        )
                    ]
                    jobs.append(ConstrainedSolve(plans, pair, tuple(limits)))
        if not pool.is_over():
            for job, proof in zip(jobs, pool.run([job.run for job in jobs]), strict=True):
                job.learn(proof)
        return fitting_chain(self._problem, self.modules, self.plans, deadline)

    def _open_modules(self, prices: Sequence[dict[int, int]]) -> list[int]:
        """Modules with a pair not proven at these prices, one of equal ones; worst first."""
        lacking: dict[int, tuple[int, int]] = {}
        for index, plans in enumerate(self.plans):
            if plans.is_too_large or plans.is_exhausted:
                continue
            lacks = -min(
                prices[index][a] + bound - prices[index + 1][b]
                for (a, b), bound in plans.lower_ns.items()
                if a in prices[index] and b in prices[index + 1]
            )
            if lacks > 0 and lacks > lacking.get(id(plans), (0, 0))[0]:
                lacking[id(plans)] = (lacks, index)
        worst = max((lacks for lacks, _ in lacking.values()), default=0)
        ranked = sorted(lacking.values(), key=lambda one: (-one[0], one[1]))
        return [index for lacks, index in ranked if lacks >= _WORTH * worst]

    def _solve_of(self, index: int, prices: Sequence[dict[int, int]]) -> ModuleSolve:
        """The module over all pairs, with prices at its ends from 0."""
        before, after = prices[index], prices[index + 1]
        least, most = min(before.values()), max(after.values())
        entry_ns = {end: ns - least for end, ns in before.items()}
        exit_ns = {end: most - ns for end, ns in after.items()}
        plans = self.plans[index]
        return ModuleSolve(plans, ModuleProblem(plans.module, entry_ns, exit_ns))

    def _offer_shares(self, plan: Sequence[Step]) -> None:
        """Keep what a plan of the whole has for each module."""
        memory_of = [device.memory for device in self._problem.cluster.devices]
        home = {step.task: memory_of[step.device] for step in plan if isinstance(step, Run)}
        pinned: dict[tuple[int, Pair], ModuleProblem] = {}
        shares = split_steps(self._problem, [module.extent for module in self.modules], plan)
        for module, plans, steps in zip(self.modules, self.plans, shares, strict=True):
            extent = module.extent
            pair = (
                NO_END if extent.entry is None else home[extent.entry],
                NO_END if extent.exit is None else home[extent.exit],
            )
            key = (id(plans), pair)
            if key not in pinned:
                pinned[key] = plans.module.pinned(pair)
            local = module.local_steps(steps)
            times = simulate_steps(pinned[key].problem.native, pinned[key].with_ends(pair, local))
            plans.offer(pair, local, times.makespan_ns)

    def _bound(self, plans: ModulePlans, time_limit_s: float) -> None:
        """First bounds: one for all pairs."""
        module, bound = plans.module, 0
        plans.is_too_large = len(module.extent.tasks) + 2 > MAX_CPSAT_TASKS
        if not self._pool.is_over():
            bound = quick_bound(module.free().problem, time_limit_s=time_limit_s).ns
        plans.lower_ns = {(a, b): 0 for a in module.entries for b in module.exits}
        for pair in plans.lower_ns:
            plans.prove(pair, bound)
