"""A plan of one item ==> the same placement for several, each step as soon as its devices are free.

Repeated one after the other, the items of a plan wait in the order of service of the first: a
device that is first and last in the plan waits for everything between. Here steps of all items are
dispatched like requests: whoever is free takes, of what is ready, the step with the longest way to
the end, where each batch stands back behind the one before by a `stagger`. With a long one the
earliest item goes first; with a short one late items overtake where that keeps all devices busy to
the end. So the makespan comes near the items times the time per item in a steady state.

The batches are of equal sizes, and of one task there may be several on a device, which DiviML's
programme does not have (section III, DOI 10.48550/arXiv.2308.00127).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from heteroplace.errors import PlanError
from heteroplace.model.plan import Copy, Run, Step
from heteroplace.model.step_values import makers, occupied, step_ns
from heteroplace.solve.deadline import NEVER, Deadline, TimeUpError
from heteroplace.solve.problem import Problem

_Entry = tuple[int, int, int]
"""When it is its turn, the batch, the step."""
STAGGERS = (0.25, 0.5, 0.125, 0.375, 1.0)
"""Parts of the time that the busiest resource takes for a batch; the best ones first."""
_EVENTS_PER_ASK = 64
"""Moments at which steps end, from one look at the clock to the next."""


def dispatched(
    problem: Problem,
    steps: Sequence[Step],
    items: int,
    batch: int = 1,
    deadline: Deadline = NEVER,
) -> tuple[Step, ...]:
    """Return the steps that serve all items, with the best of STAGGERS.

    O(n (log n + r + w)) for n steps of all batches, r resources and w steps that are ready and
    occupy several of them.

    Parameters
    ----------
    steps
        Of a plan of one item, runs and copies.
    batch
        Items of each batch, a divisor of `items`; every task can run so many on its device.
    deadline
        Past it no further stagger is tried, and one that is under way is given up.

    Raises
    ------
    PlanError
        `batch` does not divide `items`, or there are other steps than runs and copies.
    TimeUpError
        Past the deadline, before the first stagger has ended.
    """
    if items % batch:
        raise PlanError(f"batches of {batch} do not make up {items} items")
    return _Dispatch(problem, steps, items // batch, batch).best_steps(deadline)


class _Dispatch:
    """Steps by number: that of the batch times the steps of one batch, plus the step's own."""

    def __init__(
        self, problem: Problem, steps: Sequence[Step], num_batches: int, batch: int
    ) -> None:
        graph, cluster, costs = problem.graph, problem.cluster, problem.costs
        self._batch, self._num_batches = batch, num_batches
        self._steps = [self._of_batch(step, 0) for step in steps]
        self._duration_ns = [step_ns(graph, cluster, costs, step) or 0 for step in self._steps]
        self._resources = [occupied(graph, cluster, step) for step in self._steps]
        self._makers = list(makers(graph, cluster, self._steps))
        self._readers: list[list[int]] = [[] for _ in steps]
        for step, before in enumerate(self._makers):
            for maker in before:
                self._readers[maker].append(step)
        self._turn = self._turns()
        self._is_free = [True] * len(cluster.resources)

    def best_steps(self, deadline: Deadline) -> tuple[Step, ...]:
        """See `dispatched`."""
        busy_ns = [0] * len(self._is_free)
        for duration_ns, resources in zip(self._duration_ns, self._resources, strict=True):
            for resource in resources:
                busy_ns[resource] += duration_ns
        tried = [round(share * max(busy_ns, default=0)) for share in STAGGERS]
        best_ns, best = self._order(tried[0], deadline)
        for stagger_ns in tried[1:]:
            try:
                makespan_ns, order = self._order(stagger_ns, deadline)
            except TimeUpError:
                break
            if makespan_ns < best_ns:
                best_ns, best = makespan_ns, order
        return tuple(self._of_batch(self._steps[step], batch) for batch, step in best)

    def _order(self, stagger_ns: int, deadline: Deadline) -> tuple[int, list[tuple[int, int]]]:
        """Return the makespan in ns, and (batch, step) in the order of their starts; TimeUpError:
        it has not ended."""
        size, turn, ready = len(self._steps), self._turn, _Ready(self._resources)
        waits = [len(before) for before in self._makers] * self._num_batches
        for batch in range(self._num_batches):
            for step, before in enumerate(self._makers):
                if not before:
                    ready.add((batch * stagger_ns + turn[step], batch, step))
        self._is_free = [True] * len(self._is_free)
        running: list[tuple[int, int, int]] = []
        order: list[tuple[int, int]] = []
        now = 0
        for turn_of_clock in count():
            if len(order) == size * self._num_batches and not running:
                break
            if turn_of_clock % _EVENTS_PER_ASK == 0:
                deadline.check()
            for one in ready.candidates(self._is_free):
                _, batch, step = one
                if all(self._is_free[resource] for resource in self._resources[step]):
                    for resource in self._resources[step]:
                        self._is_free[resource] = False
                    ready.remove(one)
                    heapq.heappush(running, (now + self._duration_ns[step], batch, step))
                    order.append((batch, step))
            now = running[0][0]
            while running and running[0][0] == now:
                _, batch, step = heapq.heappop(running)
                for resource in self._resources[step]:
                    self._is_free[resource] = True
                for reader in self._readers[step]:
                    waits[batch * size + reader] -= 1
                    if not waits[batch * size + reader]:
                        ready.add((batch * stagger_ns + turn[reader], batch, reader))
        return now, order

    def _turns(self) -> list[int]:
        """Return for each step minus its longest way to the end, in ns."""
        way = list(self._duration_ns)
        for step in reversed(range(len(way))):
            way[step] += max((way[reader] for reader in self._readers[step]), default=0)
        return [-ns for ns in way]

    def _of_batch(self, step: Step, batch: int) -> Step:
        if not isinstance(step, (Run, Copy)):
            raise PlanError(f"several items are served by runs and copies, not by {step}")
        first = batch * self._batch
        return replace(step, items=tuple(range(first, first + self._batch)))


class _Ready:
    """What is ready and waits: steps of one resource in its queue, all others side by side."""

    def __init__(self, resources: Sequence[tuple[int, ...]]) -> None:
        self._resources = resources
        self._queues: dict[int, list[_Entry]] = {}
        self._others: set[_Entry] = set()

    def add(self, one: _Entry) -> None:
        """Let it wait."""
        resources = self._resources[one[2]]
        if len(resources) == 1:
            heapq.heappush(self._queues.setdefault(resources[0], []), one)
        else:
            self._others.add(one)

    def candidates(self, is_free: Sequence[bool]) -> list[_Entry]:
        """Return what may start, in turn: of each free resource the first, and all others."""
        heads = [queue[0] for key, queue in self._queues.items() if queue and is_free[key]]
        return sorted([*heads, *self._others])

    def remove(self, one: _Entry) -> None:
        """It has started: a candidate."""
        resources = self._resources[one[2]]
        if len(resources) == 1:
            heapq.heappop(self._queues[resources[0]])
        else:
            self._others.remove(one)
