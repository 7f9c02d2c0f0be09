"""Seeded random plans of a problem: good and bad ones, so that predictions are tested on both.

DistIR compares simulator and machine on random configurations (section 5); a placement of single
ops has other dimensions. Half of the plans are blind, of five kinds: devices drawn uniformly;
mostly one device; long runs of neighbours on one device; uniform devices in a random order; long
runs, ordered by random priorities with insertion into gaps. Blind placements hardly ever use two
devices well, so the other half are HEFT's plan with a random part of its tasks moved, from none to
all: what a search meets on its way.
"""

from __future__ import annotations

import heapq
import random

import numpy as np

from heteroplace.errors import InfeasibleError
from heteroplace.model.check import check_plan
from heteroplace.model.plan import Plan
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import breadth_first_order, evaluate_order, list_schedule
from heteroplace.solve.feasibility import no_placement_error
from heteroplace.solve.list.heft import heft_native_plan
from heteroplace.solve.problem import Problem

BLIND = ("uniform", "biased", "runs", "shuffled", "priorities")
"""Kinds in the order in which they take turns."""
KINDS = tuple(kind for blind in BLIND for kind in (blind, "moved"))
"""Of as many plans, one after the other."""

_MAX_BIAS = 0.5
_MAX_SWITCHES = 0.3
"""Upper limits of what is drawn per plan: the part of tasks away from the main device, and the
probability that a run of neighbours ends."""
_MAX_TRIES = 20
"""For one plan that fits in the memories."""
_HEFT_LIMIT_S = 5.0
"""For mending HEFT's plan where it does not fit."""


def random_plans(problem: Problem, count: int, seed: int) -> list[Plan]:
    """Return `count` valid plans; the origin of each is "KIND NUMBER".

    Raises
    ------
    InfeasibleError
        A task is allowed nowhere, or no placement fits in the memories within some tries (of type
        SolverLimitError if HEFT finds none in that time, though there may be one).
    """
    maker = _Maker(problem, random.Random(seed))
    return [maker.plan(KINDS[index % len(KINDS)], index) for index in range(count)]


class _Maker:
    """Draws one plan after the other."""

    def __init__(self, problem: Problem, generator: random.Random) -> None:
        self._problem = problem
        self._random = generator
        native = problem.native
        self._group = native.task_group
        self._allowed: list[list[int]] = [
            np.flatnonzero(row != IMPOSSIBLE).tolist() for row in native.run_ns
        ]
        for task, ids in enumerate(self._allowed):
            if not ids:
                name = problem.graph.tasks[task].name
                raise InfeasibleError(f"task {name!r} is allowed on no device; allow one")
        self._order = breadth_first_order(native)
        self._readers = problem.graph.successors
        self._heft: NativePlan | None = None

    def plan(self, kind: str, number: int) -> Plan:
        """Return a valid plan."""
        problem = self._problem
        for _ in range(_MAX_TRIES):
            native_plan = self._native_plan(kind)
            if not native_plan.violation:
                plan = problem.native.plan(native_plan.steps, f"{kind} {number}")
                check_plan(problem.graph, problem.cluster, problem.costs, plan)
                return plan
        raise InfeasibleError(
            f"none of {_MAX_TRIES} random placements ({kind}) of graph {problem.graph.name!r} fits "
            f"on cluster {problem.cluster.name!r}; give its memories more bytes"
        )

    def _native_plan(self, kind: str) -> NativePlan:
        native = self._problem.native
        if kind == "moved":
            heft = self._heft_native_plan()
            return evaluate_order(native, self._moved(heft), heft.order.tolist())
        if kind == "biased":
            return evaluate_order(native, self._biased(), self._order)
        if kind == "runs":
            return evaluate_order(native, self._runs(), self._order)
        if kind == "shuffled":
            return evaluate_order(native, self._uniform(), self._random_order())
        if kind == "priorities":
            return list_schedule(native, self._runs(), [self._random.random() for _ in self._order])
        return evaluate_order(native, self._uniform(), self._order)

    def _uniform(self) -> list[int]:
        return self._colocated([self._random.choice(ids) for ids in self._allowed])

    def _biased(self) -> list[int]:
        main = self._random.randrange(len(self._problem.cluster.devices))
        part = self._random.random() * _MAX_BIAS
        placement = []
        for ids in self._allowed:
            is_away = main not in ids or self._random.random() < part
            placement.append(self._random.choice(ids) if is_away else main)
        return self._colocated(placement)

    def _heft_native_plan(self) -> NativePlan:
        """HEFT's plan; made on first use."""
        if self._heft is None:
            devices = range(len(self._problem.cluster.devices))
            self._heft = heft_native_plan(self._problem, devices, _HEFT_LIMIT_S)
            if self._heft is None:
                raise no_placement_error(self._problem)
        return self._heft

    def _moved(self, heft: NativePlan) -> list[int]:
        part = self._random.random()
        kept = heft.devices(len(self._allowed)).tolist()
        return self._colocated(
            [
                self._random.choice(ids) if self._random.random() < part else device
                for ids, device in zip(self._allowed, kept, strict=True)
            ]
        )

    def _runs(self) -> list[int]:
        switch = self._random.random() * _MAX_SWITCHES
        placement = [0] * len(self._order)
        device = self._random.choice(self._allowed[self._order[0]]) if self._order else 0
        for task in self._order:
            ids = self._allowed[task]
            if device not in ids or self._random.random() < switch:
                device = self._random.choice(ids)
            placement[task] = device
        return self._colocated(placement)

    def _colocated(self, placement: list[int]) -> list[int]:
        """Tasks of one colocation group where the first of them is."""
        first: dict[int, int] = {}
        return [
            first.setdefault(group, device) if group >= 0 else device
            for group, device in zip(self._group, placement, strict=True)
        ]

    def _random_order(self) -> list[int]:
        """A topological order: the next task is any that is ready."""
        waits = [len(before) for before in self._problem.graph.predecessors]
        ready = [(self._random.random(), task) for task, count in enumerate(waits) if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            _, task = heapq.heappop(ready)
            order.append(task)
            for reader in self._readers[task]:
                waits[reader] -= 1
                if not waits[reader]:
                    heapq.heappush(ready, (self._random.random(), reader))
        return order
