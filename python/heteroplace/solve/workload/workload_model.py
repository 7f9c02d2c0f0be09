"""Formulations of all entries of a workload -> one CP-SAT model that places them together.

Each entry has the model of its graph with a horizon of its own (`solve/exact/graph_model.py`): its
calls never overlap those of others. What they share is memory. A weight is there once in each
memory where a task of any entry reads it, state is in one memory, and each entry must fit alone,
with the weights of each task counted for itself. The objective is the sum of calls times makespan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortools.sat.python import cp_model

from heteroplace.errors import SolverError
from heteroplace.model.plan import Step
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.exact.cpsat_model import Term, total
from heteroplace.solve.exact.formulation import Formulation
from heteroplace.solve.exact.graph_model import GraphModel
from heteroplace.solve.exact.schedule import Schedule, schedule_of_steps
from heteroplace.solve.workload.live_tensors import LiveTensors
from heteroplace.solve.workload.workload import Workload

_User = tuple[int, tuple[int, ...]]
"""An entry, and the choices of one of its tasks that read a weight in a memory."""

_MAX_NS = 2**61
"""CP-SAT's sums are numbers of 64 bits with a sign."""


class WorkloadModel:
    """The model of all entries in CP-SAT, with the hint."""

    def __init__(
        self,
        workload: Workload,
        formulations: Sequence[Formulation],
        best: Sequence[Sequence[Step]] | None,
        bound_ns: int,
        deadline: Deadline,
    ) -> None:
        """Build it.

        Parameters
        ----------
        formulations
            One of each entry, with its bound.
        best
            Steps of a plan of each entry: no solution takes longer. None: there are none.
        bound_ns
            No solution takes less: the solver need not prove it again.

        Raises
        ------
        SolverError
            All calls may take too long for CP-SAT.
        TimeUpError
            The deadline came first.
        """
        self.model = cp_model.CpModel()
        self.formulations = tuple(formulations)
        self._workload = workload
        self._calls = [entry.calls for entry in workload.entries]
        schedules = None
        if best is not None:
            pairs = zip(formulations, best, strict=True)
            schedules = [schedule_of_steps(formulation, steps) for formulation, steps in pairs]
        horizons = self._horizons(schedules)
        self.horizon_ns = self._sum(horizons)
        """No objective is longer."""
        if self.horizon_ns > _MAX_NS:
            raise SolverError(
                f"cpsat cannot hold the workload: all calls may take {self.horizon_ns} ns, and at "
                f"most {_MAX_NS} are possible; give fewer calls in proportion"
            )
        self._graphs = [
            GraphModel(formulation, horizon, deadline, self.model)
            for formulation, horizon in zip(formulations, horizons, strict=True)
        ]
        self._read_there: list[tuple[cp_model.IntVar, list[_User]]] = []
        """Of each weight and memory whether it is there, and whoever reads it there."""
        self._live: list[tuple[int, LiveTensors]] = []
        """Of each memory and entry, if formulations charge no tensors."""
        self._add_memory()
        for graph in self._graphs:
            deadline.check()
            graph.add_load_rows()
        objective = total(
            calls * graph.makespan for calls, graph in zip(self._calls, self._graphs, strict=True)
        )
        self.model.add(objective >= bound_ns)
        self.model.minimize(objective)
        if schedules is not None:
            self.horizon_ns = self._sum(schedule.makespan_ns for schedule in schedules)
            self.model.add(objective <= self.horizon_ns)
            self._add_hint(schedules)

    def _sum(self, times_ns: Iterable[int]) -> int:
        """What all calls take if each entry takes so long."""
        return sum(calls * own for calls, own in zip(self._calls, times_ns, strict=True))

    def _horizons(self, schedules: Sequence[Schedule] | None) -> list[int]:
        """For each entry the time that a better solution leaves it, if the others take no more
        than their bounds."""
        longest = [formulation.longest_ns for formulation in self.formulations]
        if schedules is None:
            return longest
        bounds = [formulation.bound_ns for formulation in self.formulations]
        spare = self._sum(schedule.makespan_ns for schedule in schedules) - self._sum(bounds)
        return [
            min(most, least + spare // calls)
            for most, least, calls in zip(longest, bounds, self._calls, strict=True)
        ]

    def _add_memory(self) -> None:
        """For each memory a row of each entry alone, and one of all of them."""
        there: dict[str, list[cp_model.IntVar]] = {name: [] for name in self._workload.names}
        for memory, space in enumerate(self._workload.cluster.memories):
            room, terms = space.bytes, list[Term]()
            for index, (entry, formulation, graph) in enumerate(
                zip(self._workload.entries, self.formulations, self._graphs, strict=True)
            ):
                row = formulation.memory_rows[memory]
                charged, left = graph.charged(row), row.room_bytes
                if not formulation.charges_tensors:
                    live = LiveTensors(graph, formulation, memory)
                    charged, left = charged + live.bytes, left + live.kept_bytes
                    self._live.append((index, live))
                self.model.add(charged <= left)
                terms.append(charged)
                room -= space.bytes - left
                for choice, _ in row.runs:
                    weights = entry.weights[formulation.choices[choice].activity]
                    shared = sum(num_bytes for _, num_bytes in weights)
                    terms.append(-shared * graph.literals[choice])
            for name, num_bytes in zip(
                self._workload.names, self._workload.sizes.tolist(), strict=True
            ):
                users = self._users(name, memory)
                if users and num_bytes:
                    literal = self._there(f"{name} in {memory}", users)
                    there[name].append(literal)
                    terms.append(num_bytes * literal)
            self.model.add(total(terms) <= room)
        for name in self._workload.names:
            if name in self._workload.states:
                self.model.add(total(there[name]) <= 1)

    def _users(self, name: str, memory: int) -> list[_User]:
        """Whoever may read a weight in a memory."""
        users = []
        for index, (entry, formulation) in enumerate(
            zip(self._workload.entries, self.formulations, strict=True)
        ):
            for task, weights in enumerate(entry.weights):
                choices = formulation.homes.runs.get((task, memory), ())
                if choices and any(name == own for own, _ in weights):
                    users.append((index, choices))
        return users

    def _there(self, name: str, users: list[_User]) -> cp_model.IntVar:
        """A literal that is true if anybody reads."""
        literal = self.model.new_bool_var(name)
        for index, choices in users:
            self.model.add(literal >= total(self._graphs[index].literals[c] for c in choices))
        self._read_there.append((literal, users))
        return literal

    def _add_hint(self, schedules: Sequence[Schedule]) -> None:
        for graph, schedule in zip(self._graphs, schedules, strict=True):
            graph.add_hint(schedule)
        taken = [set(schedule.chosen) for schedule in schedules]
        for literal, users in self._read_there:
            is_there = any(not taken[index].isdisjoint(choices) for index, choices in users)
            self.model.add_hint(literal, int(is_there))
        for index, live in self._live:
            live.add_hint(taken[index])

    def read(self, solver: cp_model.CpSolver) -> list[Schedule]:
        """Return the solution: the schedule of each entry."""
        return [graph.read(solver) for graph in self._graphs]
