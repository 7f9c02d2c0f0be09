"""One solver on one instance, in a process of its own: build, solve, check, print a line of JSON.

    python -m benchmarks.place.worker INSTANCE SOLVER [--budget S] [--seed N] [...]
    python -m benchmarks.place.worker INSTANCE [...]     reference figures, no solver

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

from heteroplace.control_groups import usable_cores
from heteroplace.errors import HeteroPlaceError, PlanError
from heteroplace.model.check import check_plan
from heteroplace.model.plan import Plan
from heteroplace.native.core_loads import placement_loads
from heteroplace.native.simulate import simulate_steps
from heteroplace.parts.throughput.batched.list_solver import batch_bound
from heteroplace.parts.throughput.native.core_throughput import ideal_split
from heteroplace.parts.throughput.steady_state.prices import price_bound
from heteroplace.parts.throughput.steady_state.throughput_solver import MAX_IDEALS
from heteroplace.simulate.throughput import repeat_plan, throughput_ns
from heteroplace.solve import get_solver, lower_bound
from heteroplace.solve.list.single import single_plan
from heteroplace.solve.portfolio import AutoSolver
from heteroplace.solve.problem import OBJECTIVES, Problem, ProgressReport, SolveOptions
from heteroplace.solve.refinement import REFINEMENTS, added_refinements, load_refinement
from heteroplace.solve.search.search_solver import MAX_TASKS_TO_BOUND
from heteroplace.solve.solvers import RegisteredSolver
from zoo.graphs.batches import with_batches
from zoo.graphs.catalogue import get_instance

THROUGHPUT = OBJECTIVES[1]
_ONE_BATCH = ("divi", "split")
"""What these prove of several items holds for one batch of a task on each device, as in DiviML;
plans of one item, repeated, and `auto`'s have more."""
_NO_LIMIT_BYTES = 2**60
_PRICE_EVALUATIONS = 60
_PRICE_LIMIT_S = 10.0
_MAX_STAGES = 20_000_000
"""Of the dynamic programme: ten seconds or so."""

Row = dict[str, object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the result as one line of JSON; 0 also where the solver refuses."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.place.worker")
    parser.add_argument("instance")
    parser.add_argument("solver", nargs="?")
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--objective", choices=OBJECTIVES, default=OBJECTIVES[0])
    parser.add_argument("--items", type=int, default=1)
    parser.add_argument("--threads", type=int, default=usable_cores())
    given = parser.parse_args(arguments)
    begin = time.perf_counter()
    problem = get_instance(given.instance).build()
    if given.items > 1:
        problem = with_batches(problem, given.items)
    build_s = time.perf_counter() - begin
    options = SolveOptions(
        objective=given.objective,
        time_limit_s=given.budget,
        items=given.items,
        seed=given.seed,
        threads=given.threads,
    )
    if given.solver is None:
        result = reference_figures(problem, options)
    else:
        result = measure(problem, given.solver, options)
    print(json.dumps(result | {"build_seconds": round(build_s, 3)}))
    return 0


def reference_figures(problem: Problem, options: SolveOptions) -> Row:
    """Return sizes, cheap bounds, and the best device on which everything fits.

    "best_single" is the makespan of all items; for throughput there are "best_single_item",
    "ideal_split_item", of the best split into stages by dynamic programming over ideals, and
    "item_bound", times per item. In ns; None where nothing fits.
    """
    plans = [single_plan(problem, device) for device in range(len(problem.cluster.devices))]
    judged = [judge(problem, plan, options) for plan in plans if isinstance(plan, Plan)]
    fitting = [row for row in judged if row["makespan"] is not None and row["memory_ok"]]
    singles = [int(str(row["makespan"])) for row in fitting]
    is_many = options.items > 1
    row: Row = {
        "tasks": len(problem.graph.tasks),
        "cluster": problem.cluster.name,
        "congestion": problem.cluster.congestion,
        "bound": batch_bound(problem, options.items) if is_many else lower_bound(problem).ns,
        "best_single": min(singles, default=None),
    }
    if options.objective == THROUGHPUT:
        items = [int(str(row["item_ns"])) for row in fitting]
        best = min(items, default=None)
        reference = best or int(str(row["bound"]))
        prices = price_bound(problem, reference, _PRICE_EVALUATIONS, _PRICE_LIMIT_S)
        row |= {
            "best_single_item": best,
            "ideal_split_item": _ideal_split_item(problem),
            "item_bound": prices.bound_ns,
        }
    return row


def _ideal_split_item(problem: Problem) -> int | None:
    """Return its time per item in ns; None where there are too many ideals or no stages fit."""
    placement = ideal_split(problem.native, MAX_IDEALS, _MAX_STAGES).placement
    return None if placement is None else placement_loads(problem.native, placement).item_ns


def measure(problem: Problem, solver: str, options: SolveOptions) -> Row:
    """Solve and judge the plan.

    A solver that does not offer the objective of `options` is asked for low latency, one that makes
    plans for one item is asked for that.

    Returns
    -------
    dict
        What `judge` returns, "makespan" None if the solver gives no plan, with the reason in
        "note"; "bound", and for throughput "item_bound", as the solver has proven it, in ns, or
        None; "best_seconds", when it had its plan, None if that is invalid; "incumbents",
        [seconds, ns] of each better plan that it told of (none of one item where several are
        served, none by another objective); wall and processor seconds of the solve, which include
        turning the problem into the core's arrays; "peak_mb" of the process (MB, 10**6 bytes) at
        its end.
    """
    chosen = get_solver(solver)
    _load(chosen, len(problem.graph.tasks))
    wall, cpu = time.perf_counter(), time.process_time()
    outcome, note = None, ""
    latest = _Latest(wall)
    try:
        own = replace(options, progress=latest.note)
        if options.objective not in chosen.objectives:
            own = replace(own, objective=OBJECTIVES[0])
        if not chosen.takes_items:
            own = replace(own, items=1)
        if _is_too_large(chosen, problem) and own.items == 1 and own.objective != THROUGHPUT:
            own = replace(own, coarsening="auto")
        outcome = chosen.solve(problem, own)
    except HeteroPlaceError as refusal:
        note = f"{type(refusal).__name__}: {refusal}"
    row: Row = {
        "seconds": round(time.perf_counter() - wall, 4),
        "cpu_seconds": round(time.process_time() - cpu, 4),
        "best_seconds": None,
        "incumbents": [],
        # Before the plan is checked: the judge is not the solver.
        "peak_mb": round(peak_bytes() / 1e6, 1),
        "bound": None,
        "item_bound": None,
    }
    if outcome is None:
        return row | {"makespan": None, "item_ns": None, "memory_ok": None, "note": note}
    row["best_seconds"] = latest.seconds_to(outcome.objective_ns, float(str(row["seconds"])))
    # A plan for one item proves nothing about the batches of several.
    if outcome.plan.items == options.items and own.objective == options.objective:
        row["incumbents"] = latest.incumbents
    if outcome.plan.items == options.items and (options.items == 1 or solver not in _ONE_BATCH):
        is_item_bound = own.objective == THROUGHPUT
        row["item_bound" if is_item_bound else "bound"] = outcome.bound_ns
    judged = judge(problem, outcome.plan, options)
    if judged["makespan"] is None:
        row["best_seconds"] = None  # whenever it was there, it is no plan
    sizes = [size for name, _, size in outcome.candidates if name.startswith("coarsening")]
    return row | judged | {"note": judged["note"] or "; ".join(sizes)}


def _is_too_large(solver: RegisteredSolver, problem: Problem) -> bool:
    return solver.max_tasks is not None and len(problem.graph.tasks) > solver.max_tasks


def _load(solver: RegisteredSolver, num_tasks: int) -> None:
    """Load the solver, and what `auto` would load in its time: OR-Tools takes 0.25 s to load, which
    those that need it from the start have before their clock. Not beside graphs so large that it
    is not used: its memory would count."""
    solver.load()
    if solver.name == AutoSolver.name and num_tasks <= MAX_TASKS_TO_BOUND:
        for name in (*REFINEMENTS, *added_refinements()):
            load_refinement(name)


class _Latest:
    """The better plans that a solver told of, and when."""

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self.incumbents: list[tuple[float, int]] = []
        """Seconds and ns, each shorter than the one before."""

    def note(self, progress: ProgressReport) -> None:
        """Called by the solver."""
        best = progress.best_ns
        if best is not None and (not self.incumbents or best < self.incumbents[-1][1]):
            self.incumbents.append((round(time.perf_counter() - self._begin, 4), best))

    def seconds_to(self, objective_ns: int, all_s: float) -> float:
        """When the plan of the result was there; `all_s` if the solver never told of it."""
        is_told = bool(self.incumbents) and self.incumbents[-1][1] <= objective_ns
        return self.incumbents[-1][0] if is_told else all_s


def judge(problem: Problem, plan: Plan, options: SolveOptions) -> Row:
    """Return what the simulator and the rules say of a plan, repeated to serve all items.

    Returns
    -------
    dict
        "makespan" and, for throughput, "item_ns" in ns, both None for an invalid plan, with the
        reason in "note"; "memory_ok".
    """
    if plan.items < options.items:
        plan = repeat_plan(plan, options.items // plan.items)
    times = simulate_steps(problem.native, plan.steps, plan.items)
    memories = problem.cluster.memories
    # Where items follow each other, what one has freed may be the next one's: the static rule.
    is_alone = plan.items == 1 and options.objective != THROUGHPUT
    used_bytes = times.peak_bytes if is_alone else times.used_bytes
    is_memory_ok = all(u <= memory.bytes for u, memory in zip(used_bytes, memories, strict=True))
    note = _fault(problem, plan, is_memory_ok)
    row: Row = {"makespan": None, "item_ns": None, "memory_ok": is_memory_ok, "note": note}
    if not note:
        row["makespan"] = times.makespan_ns
        if options.objective == THROUGHPUT:
            row["item_ns"] = throughput_ns(problem.graph, problem.cluster, problem.costs, plan)
    return row


def peak_bytes() -> int:
    """Return the most memory that this process ever had resident, in bytes.

    Not `getrusage`: its figure survives exec, so it starts with the memory of the parent.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise HeteroPlaceError("/proc/self/status has no VmHWM; `benchmarks place` needs Linux")


def _fault(problem: Problem, plan: Plan, is_memory_ok: bool) -> str:
    """Return what is wrong with the plan but for memory; "" if nothing is."""
    graph, cluster, costs = problem.graph, problem.cluster, problem.costs
    if not is_memory_ok:
        # Only the sizes of the memories differ, so what the judge finds now is something else.
        memories = tuple(replace(memory, bytes=_NO_LIMIT_BYTES) for memory in cluster.memories)
        cluster = replace(cluster, memories=memories)
        costs = replace(costs, devices=cluster.identities)
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
