"""The plans that a search begins with: of all list schedulers of the core that take no time.

Each knows something that the others do not: HEFT spreads, Order-Place copies little and fits,
ETF and Adjusting Placement lie between, single devices are the yardstick.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from heteroplace.native import baselines
from heteroplace.native.schedule import Draft
from heteroplace.solve.base import Problem
from heteroplace.solve.heft import device_sets
from heteroplace.solve.single import single_draft


def first_draft(problem: Problem) -> tuple[str, Draft]:
    """Return a plan at once: HEFT's, or Order-Place's where HEFT overflows a memory more."""
    native = problem.native
    draft = native.heft(range(len(problem.cluster.devices)))
    if draft.violation == 0:
        return "heft", draft
    placed = baselines.order_place(native, baselines.critical_path_order(native))
    return ("order-place", placed) if placed.violation < draft.violation else ("heft", draft)


def start_drafts(problem: Problem, time_limit_s: float) -> list[tuple[str, Draft]]:
    """Return (name, plan) of all starts; a plan may overflow memories (`violation`).

    What the time does not reach is left out; singles, HEFT on all devices and Order-Place always
    run. Complexity: O((tasks * devices + reads) * device sets).
    """
    begin = time.perf_counter()
    cluster, native = problem.cluster, problem.native
    drafts = []
    for device_id, device in enumerate(cluster.devices):
        single = single_draft(problem, device_id)
        if single is not None:
            drafts.append((f"single {device.name}", single))
    if len(cluster.devices) == 1 or not problem.graph.tasks:
        return drafts
    order = baselines.critical_path_order(native)
    everything, *sets = device_sets(problem)
    drafts.append((_heft_name(problem, everything), native.heft(everything)))
    drafts.append(("order-place", baselines.order_place(native, order)))
    others: list[tuple[str, Callable[[], Draft]]] = [
        ("etf", lambda: baselines.etf(native)),
        ("adjusting-placement", lambda: baselines.adjusting_placement(native, order)),
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
