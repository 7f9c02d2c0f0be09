"""Formulation -> OR-Tools CP-SAT: optional intervals and no-overlap instead of big-M rows.

Each choice is a literal with an optional interval on its resources. A schedule that is known bounds
the horizon and is given as a complete hint; whoever calls keeps it, since CP-SAT may take long
before it repeats a hint.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor

from ortools.sat.python import cp_model

from heteroplace.errors import SolverError
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.exact.cpsat_model import ScheduleModel
from heteroplace.solve.exact.formulation import Formulation, Sum
from heteroplace.solve.exact.incumbent import EngineEnd
from heteroplace.solve.exact.load_rows import load_rows
from heteroplace.solve.exact.one_thread import stop_until_done
from heteroplace.solve.exact.schedule import NOT_TAKEN, Schedule
from heteroplace.solve.problem import ProgressReport, SolveOptions

_MIN_S = 0.01
ITERATIONS_PER_DETERMINISTIC_SECOND = 10_000
"""What one of CP-SAT's deterministic seconds is worth in `SolveOptions.iterations`."""


def solve_by_cpsat(
    formulation: Formulation,
    incumbent: Schedule | None,
    options: SolveOptions,
    deadline: Deadline,
) -> EngineEnd:
    """Solve by CP-SAT within the time, and within `options.iterations` if they are given.

    Raises
    ------
    SolverError
        Times or sizes are too large for CP-SAT.
    TimeUpError
        The deadline came before the model was built.
    """
    model = CpSatModel(formulation, incumbent, deadline)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(_MIN_S, deadline.left_s())
    solver.parameters.num_search_workers = options.threads
    solver.parameters.random_seed = options.seed
    if options.iterations is not None:
        solver.parameters.max_deterministic_time = (
            options.iterations / ITERATIONS_PER_DETERMINISTIC_SECOND
        )
        # Workers take turns in a fixed order; without it their exchange depends on the clock.
        solver.parameters.interleave_search = True
    begin = time.perf_counter()
    report = None if options.progress is None else _Report(options, begin)
    status, was_interrupted = _solve_on_thread(solver, model.model, report)
    if status == cp_model.MODEL_INVALID:
        raise SolverError(
            f"cpsat cannot hold graph {formulation.problem.graph.name!r}: "
            f"{model.model.validate()}; times or sizes are too large, use 'search'"
        )
    if status == cp_model.INFEASIBLE:
        return EngineEnd(None, formulation.bound_ns, True, was_interrupted)
    bound_ns = proven_ns(solver, formulation.bound_ns, model.horizon_ns)
    schedule = None if status == cp_model.UNKNOWN else model.read(solver)
    return EngineEnd(schedule, bound_ns, False, was_interrupted)


def proven_ns(solver: cp_model.CpSolver, bound_ns: int, horizon_ns: int) -> int:
    """Return the better one of a bound and of what a solve proved, also one without a solution."""
    # An integer in exact arithmetic; the solver reports it as a float, beyond the horizon if it
    # proved nothing.
    best_bound = solver.best_objective_bound
    is_proven = math.isfinite(best_bound) and best_bound <= horizon_ns
    return max(bound_ns, round(best_bound)) if is_proven else bound_ns


class CpSatModel(ScheduleModel):
    """The model of a whole graph and its variables, with the hint."""

    def __init__(
        self,
        formulation: Formulation,
        incumbent: Schedule | None,
        deadline: Deadline = NEVER,
    ) -> None:
        """Build it; raises TimeUpError at the deadline."""
        super().__init__()
        self._deadline = deadline
        self._formulation = formulation
        horizon = formulation.longest_ns if incumbent is None else incumbent.makespan_ns
        self.horizon_ns = horizon
        """No makespan is longer."""
        self._literals = [
            self.model.new_bool_var(f"choice{index}") for index in range(len(formulation.choices))
        ]
        self._taken: dict[int, cp_model.IntVar] = {}
        """For each transfer whether it is needed."""
        self._start: list[cp_model.IntVar] = []
        self._finish: list[cp_model.IntVar] = []
        self._largest: list[tuple[cp_model.IntVar, tuple[tuple[int, int], ...]]] = []
        """Workspaces: (variable, (choice, bytes) that it is no less than)."""
        self._charged: list[tuple[cp_model.IntVar, tuple[tuple[int, ...], ...]]] = []
        """Arrivals by several transfers: (variable, choices of each)."""
        # Where no plan fits the memories the bound may lie beyond the horizon.
        least = min(formulation.bound_ns, horizon)
        self._makespan = self.model.new_int_var(least, horizon, "makespan")
        self._add_activities()
        self._add_task_rules()
        self._add_transfer_rules()
        self._add_memory()
        self._add_load_rows()
        self.model.minimize(self._makespan)
        if incumbent is not None:
            self._add_hint(incumbent)

    def _value(self, terms: Sum) -> cp_model.LinearExpr | int:
        if not terms.choices:
            return terms.constant
        return cp_model.LinearExpr.sum([self._literals[c] for c in terms.choices]) + terms.constant

    def _add_activities(self) -> None:
        """Times, and an interval for each choice on all that it occupies."""
        model, formulation = self.model, self._formulation
        for activity, ids in enumerate(formulation.of_activity):
            self._deadline.check()
            start = model.new_int_var(0, self.horizon_ns, f"start{activity}")
            finish = model.new_int_var(0, self.horizon_ns, f"finish{activity}")
            self._start.append(start)
            self._finish.append(finish)
            durations = []
            for index in ids:
                choice, literal = formulation.choices[index], self._literals[index]
                self.occupy(
                    choice.resources, start, choice.duration_ns, literal, f"interval{index}"
                )
                durations.append(choice.duration_ns * literal)
            model.add(finish == start + cp_model.LinearExpr.sum(durations))
            model.add(self._makespan >= finish)
        self.forbid_overlaps(1)

    def _add_task_rules(self) -> None:
        """One device each, after all producers, with the rest of the colocation group."""
        model, formulation = self.model, self._formulation
        for task, before in enumerate(formulation.problem.graph.predecessors):
            model.add_exactly_one([self._literals[c] for c in formulation.of_activity[task]])
            for other in before:
                model.add(self._start[task] >= self._finish[other])
        for first, other in formulation.colocated:
            # Both may run on the same devices, in the same order of choices.
            pairs = zip(formulation.of_activity[first], formulation.of_activity[other], strict=True)
            for one, two in pairs:
                model.add(self._literals[one] == self._literals[two])
        for exclusion in formulation.exclusions:
            model.add(self._value(Sum(exclusion.choices)) <= exclusion.limit)

    def _add_transfer_rules(self) -> None:
        """Taken exactly if the tensor is made in the source and read in the destination."""
        formulation = self._formulation
        for activity, transfer in enumerate(formulation.transfers, start=formulation.num_tasks):
            self._deadline.check()
            for index in formulation.of_activity[activity]:
                choice, literal = formulation.choices[index], self._literals[index]
                home = self._value(formulation.homes.home(transfer, choice.src))
                reads = formulation.homes.reads(transfer, choice.where)
                values = [self._value(read) for read in reads]
                self.leave_home(literal, home)
                self.serve_readers(literal, values)
                self.bring(literal, home, values)
            self._order_transfer(activity)

    def _order_transfer(self, activity: int) -> None:
        """After its producer, before the readers that it serves."""
        model, formulation = self.model, self._formulation
        transfer = formulation.transfers[activity - formulation.num_tasks]
        ids = formulation.of_activity[activity]
        taken = model.new_bool_var(f"taken{activity}")
        model.add(taken == cp_model.LinearExpr.sum([self._literals[c] for c in ids]))
        self._taken[activity] = taken
        if transfer.producer is not None:
            self.wait(self._start[activity], self._finish[transfer.producer], taken)
        for dst in dict.fromkeys(formulation.choices[c].where for c in ids):
            for task in transfer.readers:
                for choice in formulation.homes.in_memory(task, dst).choices:
                    literals = [taken, self._literals[choice]]
                    self.wait(self._start[task], self._finish[activity], literals)

    def _add_memory(self) -> None:
        model = self.model
        for row in self._formulation.memory_rows:
            terms: list[cp_model.LinearExpr | int] = []
            for choice, num_bytes in row.runs:
                terms.append(num_bytes * self._literals[choice])
            for arrival in row.arrivals:
                sums = [self._value(Sum(ids)) for ids in arrival.transfers]
                charged: cp_model.LinearExpr | int = sums[0]
                if len(sums) > 1:
                    literal = model.new_bool_var(f"in{row.memory}_{len(self._charged)}")
                    for value in sums:
                        model.add(literal >= value)
                    self._charged.append((literal, arrival.transfers))
                    charged = literal
                terms.append(arrival.bytes * charged)
            for sizes in row.workspaces:
                literals = [(num_bytes, self._literals[choice]) for choice, num_bytes in sizes]
                largest = self.largest(0, literals, f"workspace{len(self._largest)}")
                self._largest.append((largest, sizes))
                terms.append(largest)
            model.add(cp_model.LinearExpr.sum(terms) <= row.room_bytes)

    def _add_load_rows(self) -> None:
        """Redundant, but without them little is proven; see `load_rows`."""
        formulation = self._formulation
        for row in load_rows(formulation.problem.graph):
            begin = 0 if row.before is None else self._finish[row.before]
            end = self._makespan if row.after is None else self._start[row.after]
            loads: dict[int, list[cp_model.LinearExpr]] = {}
            for task in row.tasks:
                for index in formulation.of_activity[task]:
                    choice = formulation.choices[index]
                    for unit in choice.resources:
                        loads.setdefault(unit, []).append(
                            choice.duration_ns * self._literals[index]
                        )
            for load in loads.values():
                self.model.add(end >= begin + cp_model.LinearExpr.sum(load))

    def _add_hint(self, schedule: Schedule) -> None:
        """A complete hint: CP-SAT silently drops one that leaves out a variable."""
        model = self.model
        taken = {choice for choice in schedule.chosen if choice != NOT_TAKEN}
        for index, literal in enumerate(self._literals):
            model.add_hint(literal, int(index in taken))
        for activity, choice in enumerate(schedule.chosen):
            model.add_hint(self._start[activity], schedule.start_ns[activity])
            model.add_hint(self._finish[activity], schedule.finish_ns[activity])
            if activity in self._taken:
                model.add_hint(self._taken[activity], int(choice != NOT_TAKEN))
        for literal, transfers in self._charged:
            model.add_hint(literal, int(any(not taken.isdisjoint(ids) for ids in transfers)))
        for largest, sizes in self._largest:
            used = [num_bytes for choice, num_bytes in sizes if choice in taken]
            model.add_hint(largest, max(used, default=0))
        model.add_hint(self._makespan, schedule.makespan_ns)

    def read(self, solver: cp_model.CpSolver) -> Schedule:
        """Return the solution; its times are those of the solver."""
        chosen = tuple(
            next((c for c in ids if solver.boolean_value(self._literals[c])), NOT_TAKEN)
            for ids in self._formulation.of_activity
        )
        starts, finishes = [], []
        for activity, choice in enumerate(chosen):
            is_taken = choice != NOT_TAKEN
            starts.append(solver.value(self._start[activity]) if is_taken else 0)
            finishes.append(solver.value(self._finish[activity]) if is_taken else 0)
        return Schedule(chosen, tuple(starts), tuple(finishes), max(finishes, default=0))


def _solve_on_thread(
    solver: cp_model.CpSolver, model: cp_model.CpModel, report: _Report | None
) -> tuple[cp_model.CpSolverStatus, bool]:
    """Solve; Ctrl-C ends it early with its best plan, and the second value says so.

    On a thread, since Python sees Ctrl-C only between steps of the main one. OR-Tools' own handler
    would tell nobody, and leave the system's default behind.
    """
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as executor:
        solve = executor.submit(solver.solve, model, report)
        try:
            return solve.result(), False
        except KeyboardInterrupt:
            stop_until_done(solver.stop_search, [solve])
            return solve.result(), True


class _Report(cp_model.CpSolverSolutionCallback):
    """Passes each better plan on to the caller's progress function."""

    def __init__(self, options: SolveOptions, begin: float) -> None:
        super().__init__()
        self._options = options
        self._begin = begin

    def on_solution_callback(self) -> None:
        if self._options.progress is not None:
            elapsed = time.perf_counter() - self._begin
            best, bound = round(self.objective_value), round(self.best_objective_bound)
            self._options.progress(ProgressReport("cpsat", elapsed, best, bound))
