"""One solver on one instance, in a process of its own: build, solve, check, print a line of JSON.

    python -m heteroplace.bench.place_worker INSTANCE SOLVER BUDGET_S SEED
    python -m heteroplace.bench.place_worker INSTANCE                        facts without a solver

A process of its own, so that peak memory is that of one solver, and nothing that one solver keeps
helps the next. Every plan is judged by `check_plan` and timed by the package's one simulator, under
the congestion rules of the cluster, whatever the solver says about it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from heteroplace.bench.suites.catalogue import get_instance
from heteroplace.errors import HeteroPlaceError, PlanError
from heteroplace.model.check import check_plan
from heteroplace.model.plan import Plan
from heteroplace.solve import get_solver, lower_bound
from heteroplace.solve.base import Problem, SolveOptions
from heteroplace.solve.single import single_makespans

_NO_LIMIT_BYTES = 2**60


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the result as one line of JSON; 0 also where the solver refuses."""
    parser = argparse.ArgumentParser(prog="python -m heteroplace.bench.place_worker")
    parser.add_argument("instance")
    parser.add_argument("solver", nargs="?")
    parser.add_argument("budget_s", nargs="?", type=float, default=10.0)
    parser.add_argument("seed", nargs="?", type=int, default=0)
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    problem = get_instance(options.instance).build()
    build_s = time.perf_counter() - begin
    if options.solver is None:
        result = facts(problem)
    else:
        limits = SolveOptions(time_limit_s=options.budget_s, seed=options.seed)
        result = measure(problem, options.solver, limits)
    print(json.dumps(result | {"build_seconds": round(build_s, 3)}))
    return 0


def facts(problem: Problem) -> dict[str, object]:
    """Return sizes, the cheap lower bound and the best device on which everything fits."""
    singles = single_makespans(problem)
    return {
        "tasks": len(problem.graph.tasks),
        "cluster": problem.cluster.name,
        "congestion": problem.cluster.congestion,
        "bound": lower_bound(problem).ns,
        "best_single": min(singles.values(), default=None),
    }


def measure(problem: Problem, solver: str, options: SolveOptions) -> dict[str, object]:
    """Solve and judge the plan.

    Returns
    -------
    dict
        "makespan" in ns, or None with the reason in "note"; "bound" in ns, None if the solver gives
        no plan; "memory_ok"; wall and processor seconds of the solve, which include turning the
        problem into the core's arrays; "peak_mb" of the process (MB, 10**6 bytes) at its end.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    found, note = None, ""
    try:
        found = get_solver(solver).solve(problem, options)
    except HeteroPlaceError as refusal:
        note = f"{type(refusal).__name__}: {refusal}"
    row: dict[str, object] = {
        "seconds": round(time.perf_counter() - wall, 4),
        "cpu_seconds": round(time.process_time() - cpu, 4),
        # Before the plan is checked: the judge is not the solver.
        "peak_mb": round(peak_bytes() / 1e6, 1),
    }
    if found is None:
        return row | {"makespan": None, "bound": None, "memory_ok": None, "note": note}
    times = problem.native.simulate(found.plan.steps)
    memories = problem.cluster.memories
    is_memory_ok = all(
        used <= memory.bytes for used, memory in zip(times.used_bytes, memories, strict=True)
    )
    fault = _fault(problem, found.plan, is_memory_ok)
    return row | {
        "makespan": None if fault else times.makespan_ns,
        "bound": found.bound_ns,
        "memory_ok": is_memory_ok,
        "note": fault,
    }


def peak_bytes() -> int:
    """Return the most memory that this process ever had resident, in bytes.

    Not `getrusage`: its figure survives exec, so it starts with the memory of the parent.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise HeteroPlaceError("/proc/self/status has no VmHWM; `bench place` needs Linux")


def _fault(problem: Problem, plan: Plan, is_memory_ok: bool) -> str:
    """Return what is wrong with the plan but for memory; "" if nothing is."""
    graph, cluster, costs = problem.graph, problem.cluster, problem.costs
    if not is_memory_ok:
        # Only the sizes of the memories differ, so what the judge finds now is something else.
        memories = tuple(replace(memory, bytes=_NO_LIMIT_BYTES) for memory in cluster.memories)
        cluster = replace(cluster, memories=memories)
        costs = replace(costs, cluster_digest=cluster.digest())
        plan = replace(plan, cluster_digest=cluster.digest())
    try:
        check_plan(graph, cluster, costs, plan)
    except PlanError as error:
        return f"invalid plan: {error}"
    return ""


if __name__ == "__main__":
    try:
        code = main()
    except HeteroPlaceError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    sys.exit(code)
