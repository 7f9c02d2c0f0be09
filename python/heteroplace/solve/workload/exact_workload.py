"""A small workload -> plans of all its entries that are proven to be the best, or a better bound.

CP-SAT solves all entries at once (`workload_model.py`). As for one graph (`solve/exact/cpsat.py`),
first memory holds only what every plan needs, which proves bounds; plans that it gives count if
they fit. Then memory counts by the static rule, whose plans always fit.
"""

from __future__ import annotations

from dataclasses import replace

from ortools.sat.python import cp_model

from heteroplace.errors import SolverError
from heteroplace.model.plan import Step
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve.bounds.quick import any_plan_bound
from heteroplace.solve.deadline import Deadline, TimeUpError
from heteroplace.solve.exact.cpsat_engine import proven_ns, solve_model
from heteroplace.solve.exact.formulate import formulate
from heteroplace.solve.exact.schedule import steps_of_schedule
from heteroplace.solve.problem import SolveOptions
from heteroplace.solve.workload.placed_entry import (
    PlacedEntry,
    WorkloadEnd,
    fit_together,
    total_ns,
)
from heteroplace.solve.workload.workload import Entry, Workload
from heteroplace.solve.workload.workload_model import WorkloadModel
from heteroplace.solve.workload.workload_state import WorkloadTimes

_FIRST_SHARE = 0.75
"""Of the time, for what proves bounds: its plans seldom lack memory."""


def prove_workload(
    times: WorkloadTimes,
    best: tuple[PlacedEntry, ...] | None,
    bound_ns: int,
    options: SolveOptions,
    deadline: Deadline,
) -> WorkloadEnd:
    """Solve the exact model of a workload within the time, or within `options.iterations`.

    Parameters
    ----------
    best
        Plans that fit: the horizon and the hint. None: there are none so far.
    bound_ns
        What is proven already.
    """
    rules = _memory_rules(times.workload)
    if options.iterations is not None:
        options = replace(options, iterations=options.iterations // len(rules))
    for index, charges_tensors in enumerate(rules):
        share = 1.0 if index == len(rules) - 1 else _FIRST_SHARE
        until = deadline.part(share, options.iterations)
        try:
            model = _model(times.workload, best, bound_ns, charges_tensors, until)
            solver, status, was_interrupted = solve_model(model.model, options, until)
        except TimeUpError:
            continue
        except SolverError as err:
            return WorkloadEnd(best, bound_ns, note=str(err))
        except KeyboardInterrupt:  # While the model was made.
            break
        if status == cp_model.MODEL_INVALID:
            why = f"cpsat cannot hold the workload: {model.model.validate()}"
            return WorkloadEnd(best, bound_ns, note=why)
        if status == cp_model.INFEASIBLE:
            if index == 0 and best is None:
                return WorkloadEnd(None, bound_ns, is_infeasible=True)
            continue
        if index == 0:
            bound_ns = proven_ns(solver, bound_ns, model.horizon_ns)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            entries = _placed(times.workload, model, solver)
            if fit_together(times, entries):
                is_better = best is None or total_ns(entries) < total_ns(best)
                best = entries if is_better else best
                break
        if was_interrupted or (best is not None and total_ns(best) <= bound_ns):
            break
    return WorkloadEnd(best, bound_ns)


def _memory_rules(workload: Workload) -> tuple[bool, ...]:
    """The values of `charges_tensors` to solve by, one after the other: see `memory_rules`.

    Where each memory holds all that there is, what is charged makes no difference.
    """
    every_byte = workload.all_weight_bytes
    for entry in workload.entries:
        graph = entry.problem.graph
        every_byte += sum(tensor.bytes for tensor in graph.tensors)
        every_byte += sum(task.workspace_bytes for task in graph.tasks)
    alone = any(entry.problem.native.counts_lifetimes for entry in workload.entries)
    is_ample = not alone and every_byte <= workload.memory_bytes.min()
    return (False,) if is_ample else (False, True)


def _model(
    workload: Workload,
    best: tuple[PlacedEntry, ...] | None,
    bound_ns: int,
    charges_tensors: bool,
    deadline: Deadline,
) -> WorkloadModel:
    formulations = [
        formulate(
            entry.problem,
            any_plan_bound(entry.problem).ns,
            charges_tensors=charges_tensors,
            deadline=deadline,
        )
        for entry in workload.entries
    ]
    steps = None if best is None else [each.plan.steps for each in best]
    return WorkloadModel(workload, formulations, steps, bound_ns, deadline)


def _placed(
    workload: Workload, model: WorkloadModel, solver: cp_model.CpSolver
) -> tuple[PlacedEntry, ...]:
    """The plans of a solution."""
    schedules = model.read(solver)
    return tuple(
        _placed_entry(entry, steps_of_schedule(formulation, schedule))
        for entry, formulation, schedule in zip(
            workload.entries, model.formulations, schedules, strict=True
        )
    )


def _placed_entry(entry: Entry, steps: tuple[Step, ...]) -> PlacedEntry:
    plan = entry.problem.native.plan(steps, "workload cpsat")
    makespan = simulate_steps(entry.roomy, steps).makespan_ns
    return PlacedEntry(entry.name, entry.calls, plan, makespan)
