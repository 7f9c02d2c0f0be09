"""The chain of stages solved stage by stage, until the shortest path by bounds is a plan.

DiviML (section IV-D) solves every module for every pair of its ends. Here the programme over the
ends decides what is worth solving. For each stage and pair of ends there are a plan and a bound.
The ends get prices at which no stage alone can shorten the best plan, unless its solver finds a
better one: a solve of a stage over all pairs at once, at these prices, gives either that plan or
bounds for all its pairs, which together prove the whole. Equal stages share what is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from heteroplace.model.plan import Run, Step
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.problem import MAX_CPSAT_TASKS, Problem
from heteroplace.solve.split.facts import LeanJob, StageFacts, StageJob
from heteroplace.solve.split.memory import fitting_chain
from heteroplace.solve.split.module_chain import Stage
from heteroplace.solve.split.pool import Pool
from heteroplace.solve.split.programme import end_prices, shortest_path, value
from heteroplace.solve.split.stage import NO_END, Key, Pair, Place, StageProblem, split_steps

_LEAN_SHARES = (0.75, 0.5, 0.25)
"""Parts of what the fastest plan of a stage uses that leaner ones may use."""
_WORTH = 0.2
"""A round leaves out stages that lack less than this part of what the worst one lacks."""


class ChainSplit:
    """One problem and its stages; what is found stays. Not thread-safe."""

    def __init__(self, problem: Problem, stages: Sequence[Stage], pool: Pool) -> None:
        self._problem = problem
        self._pool = pool
        by_key: dict[Key, StageFacts] = {}
        self.places = [Place(problem, stage) for stage in stages]
        self.facts = [by_key.setdefault(place.key, StageFacts(place)) for place in self.places]
        self.classes = list(by_key.values())
        """Distinct stages."""

    def start(self, plan: Sequence[Step]) -> None:
        """Find first bounds and plans for all pairs, beginning from a plan of the whole."""
        self._offer_parts(plan)
        for facts in self.classes:
            self._bound(facts)
            if not self._pool.is_over():
                facts.try_all_pairs(self._pool.budget.seed)

    def bound_ns(self) -> int:
        """Return what is proven about the whole."""
        return value([facts.lower_ns for facts in self.facts]) or 0

    def best_ns(self) -> int | None:
        """Return the time of the best plan; None: there is none."""
        return value([{p: u[0] for p, u in facts.upper.items()} for facts in self.facts])

    def steps(self) -> tuple[Step, ...]:
        """Return the best plan of the whole: that of each stage on the shortest path."""
        times = [{p: u[0] for p, u in facts.upper.items()} for facts in self.facts]
        steps: list[Step] = []
        for place, facts, pair in zip(self.places, self.facts, shortest_path(times), strict=True):
            steps.extend(place.steps(facts.upper[pair][1]))
        return tuple(steps)

    def improve(self) -> bool:
        """Solve the stages that the bound depends on, one round; False: there is none, or no
        budget."""
        times = [facts.times() for facts in self.facts]
        prices = end_prices(times)
        open_stages = self._open_stages(prices)
        if not open_stages or self._pool.is_over():
            return False
        jobs = [self._stage_job(index, prices) for index in open_stages]
        proofs = self._pool.run([job.run for job in jobs])
        for job, proof in zip(jobs, proofs, strict=True):
            job.learn(proof)
        return True

    def make_lean(self, lacking: Sequence[int]) -> tuple[Step, ...] | None:
        """Look for plans of stages that use less of the memories that the best plan overflows;
        return the best chain that fits, None if none was found.

        Parameters
        ----------
        lacking
            For each memory the bytes that the best plan lacks there.
        """
        jobs = []
        native = self._problem.native
        for facts in self.classes:
            pairs = sorted(facts.upper, key=lambda pair: (facts.upper[pair][0], pair))
            for pair in pairs:
                stage = StageProblem(facts.place, {pair[0]: 0}, {pair[1]: 0})
                steps = stage.with_ends(pair, facts.upper[pair][1])
                used = simulate_steps(stage.problem.native, steps).used_bytes
                for share in _LEAN_SHARES:
                    limits = [
                        int(num_bytes * share) if lacks else memory.bytes
                        for num_bytes, lacks, memory in zip(
                            used, lacking, native.cluster.memories, strict=True
                        )
                    ]
                    jobs.append(LeanJob(facts, pair, tuple(limits)))
        if not self._pool.is_over():
            for job, proof in zip(jobs, self._pool.run([job.run for job in jobs]), strict=True):
                job.learn(proof)
        return fitting_chain(self._problem, self.places, self.facts)

    def _open_stages(self, prices: Sequence[dict[int, int]]) -> list[int]:
        """Stages with a pair that is not proven at these prices, one of equal ones; worst first."""
        lacking: dict[int, tuple[int, int]] = {}
        for index, facts in enumerate(self.facts):
            if facts.is_too_large:
                continue
            lacks = -min(
                prices[index][a] + bound - prices[index + 1][b]
                for (a, b), bound in facts.lower_ns.items()
                if a in prices[index] and b in prices[index + 1]
            )
            if lacks > 0 and lacks > lacking.get(id(facts), (0, 0))[0]:
                lacking[id(facts)] = (lacks, index)
        worst = max((lacks for lacks, _ in lacking.values()), default=0)
        ranked = sorted(lacking.values(), key=lambda one: (-one[0], one[1]))
        return [index for lacks, index in ranked if lacks >= _WORTH * worst]

    def _stage_job(self, index: int, prices: Sequence[dict[int, int]]) -> StageJob:
        """The stage over all pairs, with prices at its ends from 0."""
        before, after = prices[index], prices[index + 1]
        least, most = min(before.values()), max(after.values())
        entry_ns = {end: ns - least for end, ns in before.items()}
        exit_ns = {end: most - ns for end, ns in after.items()}
        facts = self.facts[index]
        return StageJob(facts, StageProblem(facts.place, entry_ns, exit_ns))

    def _offer_parts(self, plan: Sequence[Step]) -> None:
        """Keep what a plan of the whole has for each stage."""
        memory_of = [device.memory for device in self._problem.cluster.devices]
        home = {step.task: memory_of[step.device] for step in plan if isinstance(step, Run)}
        parts: dict[tuple[int, Pair], StageProblem] = {}
        shares = split_steps(self._problem, [place.stage for place in self.places], plan)
        for place, facts, steps in zip(self.places, self.facts, shares, strict=True):
            stage = place.stage
            pair = (
                NO_END if stage.entry is None else home[stage.entry],
                NO_END if stage.exit is None else home[stage.exit],
            )
            key = (id(facts), pair)
            if key not in parts:
                parts[key] = StageProblem(facts.place, {pair[0]: 0}, {pair[1]: 0})
            local = place.local_steps(steps)
            times = simulate_steps(parts[key].problem.native, parts[key].with_ends(pair, local))
            facts.offer(pair, local, times.makespan_ns)

    def _bound(self, facts: StageFacts) -> None:
        """First bounds: one for all pairs."""
        place, bound = facts.place, 0
        facts.is_too_large = len(place.stage.tasks) + 2 > MAX_CPSAT_TASKS
        if not self._pool.is_over():
            entry_ns, exit_ns = dict.fromkeys(place.entries, 0), dict.fromkeys(place.exits, 0)
            bound = lower_bound(StageProblem(place, entry_ns, exit_ns).problem).ns
        facts.lower_ns = {(a, b): 0 for a in place.entries for b in place.exits}
        for pair in facts.lower_ns:
            facts.prove(pair, bound)
