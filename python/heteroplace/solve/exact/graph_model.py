"""Formulation -> variables and rules of a whole graph in CP-SAT, to be solved alone or with others.

Each choice is a literal with an optional interval on its resources. Memory rows and the objective
are left to whoever makes the model, so that several graphs may share both.
"""

from __future__ import annotations

from ortools.sat.python import cp_model

from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.exact.cpsat_model import ScheduleModel, Term, total
from heteroplace.solve.exact.formulation import Formulation, MemoryRow, Sum
from heteroplace.solve.exact.load_rows import load_rows
from heteroplace.solve.exact.schedule import NOT_TAKEN, Schedule


class GraphModel(ScheduleModel):
    """The activities of a graph in CP-SAT, with all rules but those of memory and load."""

    def __init__(
        self,
        formulation: Formulation,
        horizon_ns: int,
        deadline: Deadline = NEVER,
        model: cp_model.CpModel | None = None,
    ) -> None:
        """Add the variables and the rules.

        Parameters
        ----------
        horizon_ns
            No makespan is longer.
        model
            What they are added to; None: a model of its own.

        Raises
        ------
        TimeUpError
            The deadline came first.
        """
        super().__init__(model)
        self._deadline = deadline
        self._formulation = formulation
        self.horizon_ns = horizon_ns
        """No makespan is longer."""
        self.literals = [
            self.model.new_bool_var(f"choice{index}") for index in range(len(formulation.choices))
        ]
        """Whether each choice is taken."""
        self._taken: dict[int, cp_model.IntVar] = {}
        """For each transfer whether it is needed."""
        self._start: list[cp_model.IntVar] = []
        self._finish: list[cp_model.IntVar] = []
        self._largest: list[tuple[cp_model.IntVar, tuple[tuple[int, int], ...]]] = []
        """Workspaces: (variable, (choice, bytes) that it is no less than)."""
        self._charged: list[tuple[cp_model.IntVar, tuple[tuple[int, ...], ...]]] = []
        """Arrivals by several transfers: (variable, choices of each)."""
        # Where no plan fits the memories the bound may lie beyond the horizon.
        least = min(formulation.bound_ns, horizon_ns)
        self.makespan = self.model.new_int_var(least, horizon_ns, "makespan")
        self._add_activities()
        self._add_task_rules()
        self._add_transfer_rules()

    def value(self, terms: Sum) -> Term:
        """Return whether one of the choices is taken, as 0 or 1."""
        if not terms.choices:
            return terms.constant
        return cp_model.LinearExpr.sum([self.literals[c] for c in terms.choices]) + terms.constant

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
                choice, literal = formulation.choices[index], self.literals[index]
                self.occupy(
                    choice.resources, start, choice.duration_ns, literal, f"interval{index}"
                )
                durations.append(choice.duration_ns * literal)
            model.add(finish == start + cp_model.LinearExpr.sum(durations))
            model.add(self.makespan >= finish)
        self.forbid_overlaps(1)

    def _add_task_rules(self) -> None:
        """One device each, after all producers, with the rest of the colocation group."""
        model, formulation = self.model, self._formulation
        for task, before in enumerate(formulation.problem.graph.predecessors):
            model.add_exactly_one([self.literals[c] for c in formulation.of_activity[task]])
            for other in before:
                model.add(self._start[task] >= self._finish[other])
        for first, other in formulation.colocated:
            # Both may run on the same devices, in the same order of choices.
            pairs = zip(formulation.of_activity[first], formulation.of_activity[other], strict=True)
            for one, two in pairs:
                model.add(self.literals[one] == self.literals[two])
        for exclusion in formulation.exclusions:
            model.add(self.value(Sum(exclusion.choices)) <= exclusion.limit)

    def _add_transfer_rules(self) -> None:
        """Taken exactly if the tensor is made in the source and read in the destination."""
        formulation = self._formulation
        for activity, transfer in enumerate(formulation.transfers, start=formulation.num_tasks):
            self._deadline.check()
            for index in formulation.of_activity[activity]:
                choice, literal = formulation.choices[index], self.literals[index]
                home = self.value(formulation.homes.home(transfer, choice.src))
                reads = formulation.homes.reads(transfer, choice.where)
                values = [self.value(read) for read in reads]
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
        model.add(taken == cp_model.LinearExpr.sum([self.literals[c] for c in ids]))
        self._taken[activity] = taken
        if transfer.producer is not None:
            self.wait(self._start[activity], self._finish[transfer.producer], taken)
        for dst in dict.fromkeys(formulation.choices[c].where for c in ids):
            for task in transfer.readers:
                for choice in formulation.homes.in_memory(task, dst).choices:
                    literals = [taken, self.literals[choice]]
                    self.wait(self._start[task], self._finish[activity], literals)

    def charged(self, row: MemoryRow) -> Term:
        """Return the bytes of a row that are taken. It adds variables, so call it once a row."""
        model = self.model
        terms: list[Term] = []
        for choice, num_bytes in row.runs:
            terms.append(num_bytes * self.literals[choice])
        for arrival in row.arrivals:
            sums = [self.value(Sum(ids)) for ids in arrival.transfers]
            charged = sums[0]
            if len(sums) > 1:
                literal = model.new_bool_var(f"in{row.memory}_{len(self._charged)}")
                for value in sums:
                    model.add(literal >= value)
                self._charged.append((literal, arrival.transfers))
                charged = literal
            terms.append(arrival.bytes * charged)
        for sizes in row.workspaces:
            literals = [(num_bytes, self.literals[choice]) for choice, num_bytes in sizes]
            largest = self.largest(0, literals, f"workspace{len(self._largest)}")
            self._largest.append((largest, sizes))
            terms.append(largest)
        return total(terms)

    def add_load_rows(self) -> None:
        """Redundant, but without them little is proven; see `load_rows`."""
        formulation = self._formulation
        for row in load_rows(formulation.problem.graph):
            begin = 0 if row.before is None else self._finish[row.before]
            end = self.makespan if row.after is None else self._start[row.after]
            loads: dict[int, list[cp_model.LinearExpr]] = {}
            for task in row.tasks:
                for index in formulation.of_activity[task]:
                    choice = formulation.choices[index]
                    for unit in choice.resources:
                        loads.setdefault(unit, []).append(choice.duration_ns * self.literals[index])
            for load in loads.values():
                self.model.add(end >= begin + cp_model.LinearExpr.sum(load))

    def add_hint(self, schedule: Schedule) -> None:
        """A complete hint: CP-SAT silently drops one that leaves out a variable."""
        model = self.model
        taken = {choice for choice in schedule.chosen if choice != NOT_TAKEN}
        for index, literal in enumerate(self.literals):
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
        model.add_hint(self.makespan, schedule.makespan_ns)

    def read(self, solver: cp_model.CpSolver) -> Schedule:
        """Return the solution; its times are those of the solver."""
        chosen = tuple(
            next((c for c in ids if solver.boolean_value(self.literals[c])), NOT_TAKEN)
            for ids in self._formulation.of_activity
        )
        starts, finishes = [], []
        for activity, choice in enumerate(chosen):
            is_taken = choice != NOT_TAKEN
            starts.append(solver.value(self._start[activity]) if is_taken else 0)
            finishes.append(solver.value(self._finish[activity]) if is_taken else 0)
        return Schedule(chosen, tuple(starts), tuple(finishes), max(finishes, default=0))
