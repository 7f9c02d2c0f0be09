"""Plan + what was asked for -> the one number that it is judged by; and that of single devices.

Latency is judged by the simulated makespan of all items, throughput by the time per item in a
steady state (`heteroplace.simulate.throughput`). A plan, a bound and a single device are compared
only by the number of the objective that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from heteroplace.entries import load_entry
from heteroplace.model.plan import Copy, Load, Plan, Run, Step
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve.feasibility import fits
from heteroplace.solve.list.single import (
    devices_to_compare,
    single_makespans,
    single_native_plan,
    single_plan,
)
from heteroplace.solve.problem import Problem, SolveOptions

if TYPE_CHECKING:
    from heteroplace.native.core_loads import PlacementLoads

THROUGHPUT = "throughput"
"""Of `OBJECTIVES`: the one that is no makespan."""
_THROUGHPUT_NS = "heteroplace.simulate.throughput:throughput_ns"
_PLACEMENT_LOADS = "heteroplace.native.core_loads:placement_loads"
"""Loaded for that objective."""


def objective_ns(problem: Problem, plan: Plan, objective: str) -> int:
    """Return what `objective` minimises: the makespan of all items, or the time per item, in ns."""
    if objective == THROUGHPUT:
        item_ns: int = load_entry(_THROUGHPUT_NS)(
            problem.graph, problem.cluster, problem.costs, plan
        )
        return item_ns
    return simulate_steps(problem.native, plan.steps, plan.items).makespan_ns


def single_objectives(
    problem: Problem, objective: str = "latency", items: int = 1
) -> dict[str, int]:
    """Return `objective_ns` of everything on one device, by its name, where that is possible.

    Parameters
    ----------
    items
        Model inputs that are served together: the device runs each task in the batches of least
        time. Copies of inputs and outputs between the host and the device are included. Of many
        devices those of `devices_to_compare`.
    """
    if items > 1:
        plans = single_plans_of_items(problem, items)
        return {name: objective_ns(problem, plan, objective) for name, plan in plans}
    if objective != THROUGHPUT:
        return single_makespans(problem)
    objectives = {}
    for device_id in sorted(devices_to_compare(problem)):
        device = problem.cluster.devices[device_id]
        # Without the steps, which large graphs have many of.
        native_plan = single_native_plan(problem, device_id)
        if native_plan is not None:
            devices = native_plan.devices(len(problem.graph.tasks))
            loads: PlacementLoads = load_entry(_PLACEMENT_LOADS)(problem.native, devices)
            # With many items at work nothing is freed in between, unlike in a plan for one.
            if loads.fits(problem.cluster):
                objectives[device.name] = loads.item_ns
    return objectives


def single_plans_of_items(problem: Problem, items: int) -> Iterator[tuple[str, Plan]]:
    """Yield (device, plan) with every task of every item on it, of `devices_to_compare`."""
    for device in sorted(devices_to_compare(problem)):
        plan = single_plan_of_items(problem, device, items)
        if plan is not None:
            yield problem.cluster.devices[device].name, plan


def single_plan_of_items(problem: Problem, device: int, items: int) -> Plan | None:
    """Return the plan with every task of every item on `device`; None: there is none that fits."""
    plan = single_plan(problem, device)
    if isinstance(plan, str) or items == 1:
        return None if isinstance(plan, str) else plan
    everything = tuple(range(items))
    batches = _all_batches(problem, device, items)
    steps: list[Step] = []
    for step in plan.steps:
        if isinstance(step, Copy):
            steps.append(replace(step, items=everything))
        elif isinstance(step, Load) or not batches[step.task]:
            return None
        else:
            steps += [Run(step.task, device, batch) for batch in batches[step.task]]
    if not fits(problem, simulate_steps(problem.native, steps, items)):
        return None
    return replace(plan, steps=tuple(steps), items=items)


def _all_batches(problem: Problem, device: int, items: int) -> list[list[tuple[int, ...]]]:
    """For each task the items in batches on the device, as `_batches` has them."""
    # Not by the costs: a batch may be refused for another task of the colocation group.
    run_ns = problem.native.batch_run_ns[:, :, device].T.tolist()
    batches_of: dict[tuple[tuple[int, int], ...], list[tuple[int, ...]]] = {}
    all_batches = []
    for row in run_ns:
        pairs = zip(problem.costs.batches, row, strict=True)
        times = tuple((size, ns) for size, ns in pairs if ns != IMPOSSIBLE)
        if times not in batches_of:
            batches_of[times] = _batches(times, items)
        all_batches.append(batches_of[times])
    return all_batches


def _batches(times: Sequence[tuple[int, int]], items: int) -> list[tuple[int, ...]]:
    """The items in batches that take least time in sum; ties: fewer; [] if no sizes add up.

    `times` are those of each size, (size, ns), ascending. O(items * sizes).
    """
    best: list[tuple[int, int, int] | None] = [(0, 0, 0)]
    """For so many items (ns, number of batches, size of the last one)."""
    for count in range(1, items + 1):
        choices = [
            (before[0] + ns, before[1] + 1, size)
            for size, ns in times
            if size <= count and (before := best[count - size]) is not None
        ]
        best.append(min(choices, default=None))
    batches: list[tuple[int, ...]] = []
    left = items
    while left and (chosen := best[left]) is not None:
        left -= chosen[2]
        batches.append(tuple(range(left, left + chosen[2])))
    return batches[::-1]


def least_gain_ratio(problem: Problem, options: SolveOptions) -> float:
    """Return `options.min_gain_ratio` for measured costs; 0 for others, which are taken as told."""
    is_measured = any(detail.source == "measured" for detail in problem.costs.details)
    return options.min_gain_ratio if is_measured else 0.0


def gains_enough(several_ns: int, single_ns: int, min_gain_ratio: float) -> bool:
    """Tell whether several devices are better than one by more than this part."""
    return single_ns > 0 and 1 - several_ns / single_ns > min_gain_ratio


def num_devices(problem: Problem, plan: Plan) -> int:
    """Return how many devices run a task of `plan`."""
    return len({step.device for step in plan.steps if isinstance(step, Run)})
