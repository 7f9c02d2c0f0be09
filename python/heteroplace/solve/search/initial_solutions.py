"""The plans that a search begins with: those of all list schedulers of the core that take no time.

Each knows something that the others do not: HEFT spreads, Order-Place copies little and fits,
ETF and Adjusting Placement lie between, single devices are the yardstick.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property, partial

from heteroplace.native import baselines
from heteroplace.native.arrays import IntArray
from heteroplace.native.schedule import Draft
from heteroplace.solve.list.heft import device_sets
from heteroplace.solve.list.single import single_draft
from heteroplace.solve.problem import Problem

INITIAL_SHARE = 0.1
"""Part of the time of a solve that finding them may take."""


class InitialSolutions:
    """The initial solutions of one problem; what several of its methods need is made once."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    @cached_property
    def _heft(self) -> Draft:
        """HEFT on all devices."""
        return self._problem.native.heft(range(len(self._problem.cluster.devices)))

    @cached_property
    def _order(self) -> IntArray:
        return baselines.critical_path_order(self._problem.native)

    @cached_property
    def _order_place(self) -> Draft:
        return baselines.order_place(self._problem.native, self._order)

    def first(self) -> tuple[str, Draft]:
        """Return a plan at once: HEFT's, or Order-Place's where HEFT overflows a memory more."""
        if self._heft.violation and self._order_place.violation < self._heft.violation:
            return "order-place", self._order_place
        return "heft", self._heft

    def drafts(self, time_limit_s: float) -> list[tuple[str, Draft]]:
        """Return (name, plan) of all of them; a plan may overflow memories (`violation`).

        What the time does not reach is left out; singles, HEFT on all devices and Order-Place
        always run. Complexity: O((tasks * devices + reads) * device sets).
        """
        begin = time.perf_counter()
        problem = self._problem
        cluster, native = problem.cluster, problem.native
        drafts = []
        for device_id, device in enumerate(cluster.devices):
            single = single_draft(problem, device_id)
            if single is not None:
                drafts.append((f"single {device.name}", single))
        if len(cluster.devices) == 1 or not problem.graph.tasks:
            return drafts
        everything, *sets = device_sets(problem)
        drafts.append((_heft_name(problem, everything), self._heft))
        drafts.append(("order-place", self._order_place))
        others: list[tuple[str, Callable[[], Draft]]] = [
            ("etf", lambda: baselines.etf(native)),
            ("adjusting-placement", lambda: baselines.adjusting_placement(native, self._order)),
            ("greedy", lambda: baselines.greedy(native)),
            ("met", lambda: baselines.met(native)),
            ("m-etf", lambda: baselines.m_etf(native)),
            ("m-topo-uniform", lambda: baselines.m_topo(native, is_uniform=True)),
        ]
        for devices in sets:
            others.append((_heft_name(problem, devices), partial(native.heft, devices)))
        for name, make in others:
            if time.perf_counter() - begin >= time_limit_s:
                break
            drafts.append((name, make()))
        return drafts


def _heft_name(problem: Problem, devices: tuple[int, ...]) -> str:
    return f"heft {', '.join(problem.cluster.devices[device].name for device in devices)}"
