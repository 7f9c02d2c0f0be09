"""Solves of several modules at once, within a budget that Ctrl-C ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from heteroplace.parts.throughput.split.exact import Proof
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.exact.one_thread import Effort, Stopper, stop_until_done

_MIN_S = 0.05
_MIN_DETERMINISTIC_S = 1e-3
"""What a solve counts at least, so that every budget ends."""
_SHARE = 0.5
"""Share of what is left of the budget that one round may use."""

Job = Callable[[Effort, Stopper], Proof]


@dataclass(frozen=True)
class Budget:
    """When to end; what of it a round may use is shared between its jobs."""

    deadline: Deadline
    deterministic_s: float | None
    """Of CP-SAT, for all jobs together; None: only the clock counts."""
    seed: int
    threads: int


class Pool:
    """Runs rounds of jobs, each on one thread. Not thread-safe."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.was_interrupted = False
        self._stopper = Stopper()
        self._used_s = 0.0

    def is_over(self) -> bool:
        """Say whether the budget is used up."""
        limit = self.budget.deterministic_s
        is_used = limit is not None and self._used_s >= limit
        return self.was_interrupted or is_used or self.left_s() <= _MIN_S

    def left_s(self) -> float:
        """Return the seconds until the deadline."""
        return self.budget.deadline.left_s()

    def rest(self, deadline: Deadline) -> Pool:
        """Return a pool of what is left of the budget, until an earlier deadline."""
        left = self.budget.deterministic_s
        if left is not None:
            left = max(0.0, left - self._used_s)
        return Pool(replace(self.budget, deadline=deadline, deterministic_s=left))

    def run(self, jobs: Sequence[Job]) -> list[Proof]:
        """Run the jobs; Ctrl-C ends them early and is noted.

        How many threads there are changes nothing unless the clock ends a job.
        """
        budget, deterministic = self.budget, None
        if budget.deterministic_s is not None:
            deterministic = (budget.deterministic_s - self._used_s) * _SHARE / len(jobs)

        def start(index: int) -> Proof:
            if self._stopper.is_set:
                return Proof(None, 0, False, 0.0)
            # What earlier jobs left over is shared by those to come.
            turns = -(-(len(jobs) - index) // budget.threads)
            share = _SHARE if len(jobs) > budget.threads else 1.0
            until = budget.deadline
            if deterministic is None:
                until = until.within(max(_MIN_S, self.left_s() / turns * share))
            return jobs[index](Effort(until, deterministic, budget.seed), self._stopper)

        with ThreadPoolExecutor(budget.threads) as executor:
            futures: list[Future[Proof]] = [
                executor.submit(start, index) for index in range(len(jobs))
            ]
            waiting = set(futures)
            try:
                while waiting:
                    waiting = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED).not_done
            except KeyboardInterrupt:
                self.was_interrupted = True
                stop_until_done(self._stopper.stop, futures)
        proofs = [future.result() for future in futures]
        self._used_s += sum(max(proof.deterministic_s, _MIN_DETERMINISTIC_S) for proof in proofs)
        return proofs
