"""The plans that a search begins with: those of all list schedulers of the core that take no time.

Each knows something that the others do not: HEFT spreads, Order-Place copies little and fits,
ETF and Adjusting Placement lie between, single devices are the yardstick.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

from heteroplace.native.arrays import IntArray
from heteroplace.native.list import (
    adjusting_placement,
    critical_path_order,
    etf,
    heft,
    m_topo,
    order_place,
    plan_by,
)
from heteroplace.native.problem import NativePlan
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.list.heft import device_sets
from heteroplace.solve.list.single import fastest_devices, single_native_plan
from heteroplace.solve.problem import Problem

INITIAL_SHARE = 0.1
"""Part of the time of a solve that finding them may take."""
_MAX_NAMES = 32
"""Of devices in the name of a plan."""


class InitialSolutions:
    """The initial solutions of one problem; what several of its methods need is made once."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    @cached_property
    def _heft(self) -> NativePlan:
        """HEFT on all devices."""
        return heft(self._problem.native, range(len(self._problem.cluster.devices)))

    @cached_property
    def _order(self) -> IntArray:
        return critical_path_order(self._problem.native)

    @cached_property
    def _order_place(self) -> NativePlan:
        return order_place(self._problem.native, self._order)

    def first(self) -> tuple[str, NativePlan]:
        """Return a plan at once: HEFT's, or Order-Place's where HEFT overflows a memory more."""
        if self._heft.violation and self._order_place.violation < self._heft.violation:
            return "order-place", self._order_place
        return "heft", self._heft

    def native_plans(self, time_limit_s: float) -> list[tuple[str, NativePlan]]:
        """Return (name, plan) of all of them; a plan may overflow memories (`violation`).

        What the time does not reach is left out; the device on which all tasks take least, HEFT on
        all devices and Order-Place always run. Complexity: O((tasks * devices + reads) * device
        sets).
        """
        deadline = Deadline.after(time_limit_s)
        problem = self._problem
        cluster, native = problem.cluster, problem.native
        plans = self._singles(deadline.earlier(time_limit_s / 2))
        if len(cluster.devices) == 1 or not problem.graph.tasks:
            return plans
        everything, *sets = device_sets(problem)
        plans.append((_heft_name(problem, everything), self._heft))
        plans.append(("order-place", self._order_place))
        others: list[tuple[str, Callable[[], NativePlan]]] = [
            ("etf", lambda: etf(native)),
            ("adjusting-placement", lambda: adjusting_placement(native, self._order)),
            ("greedy", lambda: plan_by(native, "greedy")),
            ("met", lambda: plan_by(native, "met")),
            ("m-etf", lambda: plan_by(native, "m_etf")),
            ("m-topo-uniform", lambda: m_topo(native, is_uniform=True)),
        ]
        for devices in sets:
            others.append((_heft_name(problem, devices), partial(heft, native, devices)))
        for name, make in others:
            if deadline.is_over():
                break
            plans.append((name, make()))
        return plans

    def _singles(self, deadline: Deadline) -> list[tuple[str, NativePlan]]:
        """Everything on one device, where it fits, in the order of the devices."""
        found: dict[int, NativePlan] = {}
        for turn, device in enumerate(fastest_devices(self._problem)):
            if turn > 0 and deadline.is_over():
                break
            single = single_native_plan(self._problem, device)
            if single is not None:
                found[device] = single
        devices = self._problem.cluster.devices
        return [(f"single {devices[device].name}", found[device]) for device in sorted(found)]


def _heft_name(problem: Problem, devices: tuple[int, ...]) -> str:
    names = [problem.cluster.devices[device].name for device in devices]
    if len(names) > _MAX_NAMES:
        return f"heft {', '.join(names[:_MAX_NAMES])} and {len(names) - _MAX_NAMES} more"
    return f"heft {', '.join(names)}"
