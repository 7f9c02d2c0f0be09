"""All tasks on one device: the best one that fits. The yardstick of every comparison."""

from __future__ import annotations

import time

import numpy as np

from heteroplace.errors import InfeasibleError
from heteroplace.model.plan import Plan
from heteroplace.model.units import format_bytes
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import evaluate_order
from heteroplace.native.simulate import simulate_plan, simulate_steps
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.feasibility import excess_bytes, why_not
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result

MAX_SINGLES = 64
"""Devices that are compared with a plan, at most."""
_MAX_SINGLE_RUNS = 200_000
"""Runs of tasks that these comparisons schedule, at most, on large graphs."""


class SingleSolver:
    """Everything on the fastest single device; ties: the lower device id."""

    name = "single"

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`."""
        start = time.perf_counter()
        deadline = Deadline.after(options.time_limit_s, start)
        tried: dict[int, tuple[str, int | None, str]] = {}
        best: tuple[int, int, Plan] | None = None
        able = fastest_devices(problem)
        unable = [index for index in range(len(problem.cluster.devices)) if index not in able]
        for device_id in (*able, *unable):
            name = f"single {problem.cluster.devices[device_id].name}"
            if best is not None and deadline.is_over():
                tried[device_id] = (name, None, "left out: the time was up")
                continue
            plan = single_plan(problem, device_id)
            if isinstance(plan, str):
                tried[device_id] = (name, None, plan)
                continue
            makespan = simulate_steps(problem.native, plan.steps).makespan_ns
            tried[device_id] = (name, makespan, "")
            if best is None or (makespan, device_id) < best[:2]:
                best = (makespan, device_id, plan)
        candidates = [tried[device_id] for device_id in sorted(tried)]
        if best is None:
            reasons = "".join(f"\n  - {note}" for _, _, note in candidates)
            raise InfeasibleError(
                f"graph {problem.graph.name!r} does not fit on any single device:{reasons}\n"
                f"Use a solver for several devices, or give a device more memory."
            )
        bound = lower_bound(problem, time_limit_s=deadline.left_s()).ns
        wall = time.perf_counter() - start
        return make_result(problem, best[2], bound, self.name, wall, candidates=tuple(candidates))


def single_native_plan(problem: Problem, device: int) -> NativePlan | None:
    """Return everything on `device`, in topological order; None if it does not fit or run there."""
    if _blocked(problem, device):
        return None
    plan = _everything_on(problem, device)
    return None if plan.violation else plan


def single_makespans(problem: Problem) -> dict[str, int]:
    """Return the simulated makespan of everything on one device, by name, where that is possible.

    Copies of inputs and outputs between the host and the device are included. Of many devices
    those of `devices_to_compare`.
    """
    makespans = {}
    for device_id in sorted(devices_to_compare(problem)):
        plan = single_native_plan(problem, device_id)
        if plan is not None:
            name = problem.cluster.devices[device_id].name
            makespans[name] = simulate_plan(problem.native, plan).makespan_ns
    return makespans


def fastest_devices(problem: Problem) -> list[int]:
    """Return the devices that can run all tasks, the one where they take least first."""
    run_ns = problem.native.run_ns
    devices = np.flatnonzero((run_ns != IMPOSSIBLE).all(axis=0))
    order = np.argsort(run_ns[:, devices].sum(axis=0), kind="stable")
    order_of_devices: list[int] = devices[order].tolist()
    return order_of_devices


def devices_to_compare(problem: Problem) -> list[int]:
    """Return the devices whose single plans are worth making, the fastest first.

    Of more devices than MAX_SINGLES, or than the size of the graph lets be scheduled at once, those
    on which all tasks take least; last of them the fastest of those with most memory, which holds
    everything if any does.
    """
    fastest, count = fastest_devices(problem), max_singles(problem)
    if len(fastest) <= count:
        return fastest
    memories = problem.cluster.memories
    sizes = [memories[device.memory].bytes for device in problem.cluster.devices]
    roomiest = max(fastest, key=lambda device: sizes[device])
    return list(dict.fromkeys((*fastest[:count], roomiest)))


def max_singles(problem: Problem) -> int:
    """Return how many devices are compared with a plan, at least 1."""
    return min(MAX_SINGLES, max(1, _MAX_SINGLE_RUNS // max(1, len(problem.graph.tasks))))


def single_plan(problem: Problem, device: int) -> Plan | str:
    """Return the plan with every task on `device`, or the reason why there is none."""
    name = problem.cluster.devices[device].name
    blocked = _blocked(problem, device)
    if blocked:
        task = problem.graph.tasks[blocked[0]]
        more = f" and {len(blocked) - 1} more" if len(blocked) > 1 else ""
        return f"{name} cannot run task {task.name!r}{more}: {why_not(problem, blocked[0], device)}"
    plan = _everything_on(problem, device)
    if plan.violation:
        sizes = {memory.name: memory.bytes for memory in problem.cluster.memories}
        short = [
            f"memory {memory!r} has {format_bytes(sizes[memory])}, "
            f"{format_bytes(sizes[memory] + excess)} needed"
            for memory, excess in excess_bytes(problem, plan).items()
        ]
        return f"{name} cannot hold all tasks: " + "; ".join(short)
    return problem.native.plan(plan.steps, f"single {name}")


def _blocked(problem: Problem, device: int) -> list[int]:
    """The tasks that cannot be on `device`."""
    blocked: list[int] = np.flatnonzero(problem.native.run_ns[:, device] == IMPOSSIBLE).tolist()
    return blocked


def _everything_on(problem: Problem, device: int) -> NativePlan:
    """All tasks, in topological order, on a device that can run them."""
    num_tasks = len(problem.graph.tasks)
    return evaluate_order(problem.native, np.full(num_tasks, device), np.arange(num_tasks))
