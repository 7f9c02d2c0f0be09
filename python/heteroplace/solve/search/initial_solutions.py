"""The plans that a search begins with: those of all list schedulers of the core that take no time.

Each knows something that the others do not: HEFT spreads, Order-Place copies little and fits,
ETF and Adjusting Placement lie between, MET and MinMin fill wide layers, CPoP keeps the longest
path on one device, single devices are the yardstick. METIS sees the whole graph at once, which pays
where it is wide (training steps); it is there if pymetis is installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np

from heteroplace.errors import SolverLimitError
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import (
    NAMED_PARTS,
    adjusting_placement,
    critical_path_order,
    etf,
    heft,
    m_etf,
    m_topo,
    order_place,
    plan_by,
)
from heteroplace.solve.baselines.metis import has_pymetis, partition_plan
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.list.heft import device_sets, repair
from heteroplace.solve.list.single import devices_to_compare, single_native_plan
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.terminal import listed

INITIAL_SHARE = 0.1
"""Part of the time of a solve that finding them may take, as may first bounds."""
_LARGE_SHARE = 0.35
"""Of graphs above _LARGE tasks: seconds of search gain less there."""
_LARGE = 10_000
_PAIRS_PER_S = 2_500_000
"""Pairs of task and device that HEFT looks at, for each second of the time limit: in a quarter of
it."""
_MIN_PAIRS = 100_000
"""Whatever the time limit: it takes 10 ms."""
_MAX_TASKS_TO_MEND = 1_000
"""Beyond, mending HEFT's plan takes the time of the search itself."""
_SLOW = frozenset({"etf", "m-etf"})
"""Made last: where many pairs wait for one link, they take a hundred times as long."""
_FEW_DEVICES = 8
"""MinMin takes long on more: it tries all ready tasks on all of them, each time."""
_PARTITION_NS_PER_READ = 12_000
"""What METIS and the trials of its parts take at most, in ns; they cannot be ended."""
_PARTITION_NS_PER_PAIR = 2_500
"""Of devices, whose mean transfer time METIS' edges have."""
_MAX_NAMES = 32
"""Of devices in the name of a plan."""


def initial_s(problem: Problem, options: SolveOptions) -> float:
    """Return the time that finding initial solutions may take, of that of a solve."""
    if len(problem.graph.tasks) > _LARGE:
        return _LARGE_SHARE * options.time_limit_s  # else there is none left for anything else
    return options.part_s(INITIAL_SHARE)


def _has_few_devices(problem: Problem) -> bool:
    return len(problem.cluster.devices) <= _FEW_DEVICES


class InitialSolutions:
    """The initial solutions of one problem; what several of its methods need is made once."""

    def __init__(self, problem: Problem, time_limit_s: float = math.inf) -> None:
        """Make no plan yet; `time_limit_s` is that of the whole solve."""
        self._problem = problem
        self._time_limit_s = time_limit_s

    @cached_property
    def heft(self) -> NativePlan:
        """HEFT on all devices, or on as many of the fastest as the time limit lets it look at."""
        return heft(self._problem.native, self._heft_devices())

    def _heft_devices(self) -> list[int]:
        run_ns = self._problem.native.run_ns
        num_tasks, num_devices = run_ns.shape
        pairs = max(_MIN_PAIRS, self._time_limit_s * _PAIRS_PER_S)
        count = pairs / max(1, num_tasks)
        if count >= num_devices:
            return list(range(num_devices))
        is_allowed = run_ns != IMPOSSIBLE
        total_ns = np.where(is_allowed, run_ns, 0).sum(axis=0)
        # Those that run most tasks first, of these the fastest; ties by id.
        order = np.lexsort((total_ns, -is_allowed.sum(axis=0)))
        devices: list[int] = sorted(order[: max(1, int(count))].tolist())
        return devices

    @cached_property
    def _order(self) -> IntArray:
        return critical_path_order(self._problem.native)

    @cached_property
    def _order_place(self) -> NativePlan:
        return order_place(self._problem.native, self._order)

    def first(self) -> tuple[str, NativePlan]:
        """Return a plan at once: HEFT's, or Order-Place's where HEFT overflows a memory more."""
        if self.heft.violation and self._order_place.violation < self.heft.violation:
            return "order-place", self._order_place
        return "heft", self.heft

    def native_plans(self, time_limit_s: float) -> list[tuple[str, NativePlan]]:
        """Return (name, plan) of all of them; a plan may overflow memories (`violation`).

        What the time does not reach is left out; the device on which all tasks take least, HEFT and
        Order-Place always run. Complexity: O((tasks * devices + reads) * device
        sets).
        """
        deadline = Deadline.after(time_limit_s)
        problem = self._problem
        cluster = problem.cluster
        plans = self._singles(deadline.earlier(time_limit_s / 2))
        if len(cluster.devices) == 1 or not problem.graph.tasks:
            return plans
        sets = device_sets(problem)[1:]  # behind the one of all devices
        looked_at = tuple(self._heft_devices())
        plans.append((_heft_name(problem, looked_at), self.heft))
        plans.append(("order-place", self._order_place))
        repaired = self._repaired(deadline)
        if repaired is not None:
            plans.append(("heft, repaired", repaired))
        others = self._others(sets, deadline)
        if self.partition_s <= time_limit_s:
            others.insert(0, ("metis", lambda: self.partition))
        native_plan_of: dict[str, NativePlan] = {}
        is_wide = not _has_few_devices(problem)
        slow = {*_SLOW, "min-min"} if is_wide else _SLOW
        # On many devices there may be time for one more, and PEFT's plan is then as good as HEFT's.
        first = {"peft"} if is_wide else set()
        for name, make in sorted(others, key=lambda one: (one[0] in slow, one[0] not in first)):
            if deadline.is_over():
                break
            with suppress(SolverLimitError):  # It is left out.
                native_plan_of[name] = make()
        return plans + [
            (name, native_plan_of[name]) for name, _ in others if name in native_plan_of
        ]

    def _repaired(self, deadline: Deadline) -> NativePlan | None:
        """HEFT's plan where it overflows a memory and a short search mends it; the search of all
        plans may prefer a long one that fits from the start, and stay near it."""
        is_small = len(self._problem.graph.tasks) <= _MAX_TASKS_TO_MEND
        if not self.heft.violation or not is_small or deadline.is_over():
            return None
        plan = repair(self._problem, self.heft, deadline.left_s() / 2)
        return None if plan.violation else plan

    def _others(
        self, sets: Sequence[tuple[int, ...]], deadline: Deadline
    ) -> list[tuple[str, Callable[[], NativePlan]]]:
        """What else there is, each within the deadline."""
        native, order, left_s = self._problem.native, self._order, deadline.left_s

        def by(name: str) -> Callable[[], NativePlan]:
            return lambda: plan_by(native, NAMED_PARTS[name], left_s())

        def heft_on(devices: tuple[int, ...]) -> Callable[[], NativePlan]:
            return lambda: heft(native, devices, left_s())

        return [
            ("met", by("met")),
            ("min-min", by("min-min")),
            ("etf", lambda: etf(native, None, left_s())),
            ("adjusting-placement", lambda: adjusting_placement(native, order, left_s())),
            ("greedy", by("greedy")),
            ("peft", by("peft")),
            ("cpop", by("cpop")),
            ("m-etf", lambda: m_etf(native, left_s())),
            ("m-topo-uniform", lambda: m_topo(native, is_uniform=True)),
            *((_heft_name(self._problem, devices), heft_on(devices)) for devices in sets),
        ]

    @cached_property
    def partition(self) -> NativePlan:
        """METIS' parts of least cut."""
        return partition_plan(self._problem)

    @cached_property
    def partition_s(self) -> float:
        """What `partition` takes at most; infinite if METIS is not installed."""
        if not has_pymetis():
            return math.inf
        reads = sum(map(len, self._problem.graph.task_inputs))
        pairs = len(self._problem.cluster.devices) ** 2
        return (reads * _PARTITION_NS_PER_READ + pairs * _PARTITION_NS_PER_PAIR) / 1e9

    def _singles(self, deadline: Deadline) -> list[tuple[str, NativePlan]]:
        """Everything on one device, where it fits, in the order of the devices."""
        plans: dict[int, NativePlan] = {}
        for turn, device in enumerate(devices_to_compare(self._problem)):
            if turn > 0 and deadline.is_over():
                break
            single = single_native_plan(self._problem, device)
            if single is not None:
                plans[device] = single
        devices = self._problem.cluster.devices
        return [(f"single {devices[device].name}", plans[device]) for device in sorted(plans)]


def _heft_name(problem: Problem, devices: tuple[int, ...]) -> str:
    names = (problem.cluster.devices[device].name for device in devices)
    return f"heft {listed(names, at_most=_MAX_NAMES)}"
