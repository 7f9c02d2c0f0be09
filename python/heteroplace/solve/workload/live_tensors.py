"""Rows of lifetimes (`live_rows.py`) -> a variable of CP-SAT: what tensors take in a memory."""

from __future__ import annotations

from collections.abc import Set

from ortools.sat.python import cp_model

from heteroplace.solve.exact.cpsat_model import Term, total
from heteroplace.solve.exact.formulation import Formulation
from heteroplace.solve.exact.graph_model import GraphModel
from heteroplace.solve.workload.live_rows import Passing, kept_bytes, live_rows


class LiveTensors:
    """The least that the tensors of an entry take in a memory, whatever the order of the plan."""

    def __init__(self, graph: GraphModel, formulation: Formulation, memory: int) -> None:
        """Add the variables and the rows to the model of an entry."""
        self._graph = graph
        self._runs = {
            task: choices
            for (task, where), choices in formulation.homes.runs.items()
            if where == memory
        }
        model, problem = graph.model, formulation.problem
        self.kept_bytes = kept_bytes(problem.graph, problem.cluster, memory)
        """The part of `bytes` that is there at the end whatever the placement: model outputs."""
        most = sum(tensor.bytes for tensor in problem.graph.tensors)
        self.bytes = model.new_int_var(self.kept_bytes, most, f"live{memory}")
        self._passing: dict[Passing, cp_model.IntVar] = {}
        """For each tensor that may be there whether it is."""
        self._rows: list[tuple[int, int, list[Passing]]] = []
        """(choice of a run, bytes of its tensors, what else is there if it is taken)."""
        for row in live_rows(problem.graph, problem.cluster, memory):
            if row.task not in self._runs:
                continue
            passing = [each for each in row.passing if self._may_be_there(each)]
            held = total([row.bytes, *(each.bytes * self._is_there(each) for each in passing)])
            for choice in self._runs[row.task]:
                model.add(self.bytes >= held).only_enforce_if(graph.literals[choice])
                self._rows.append((choice, row.bytes, passing))

    def _may_be_there(self, passing: Passing) -> bool:
        is_read = not passing.readers or any(task in self._runs for task in passing.readers)
        return passing.producer in self._runs and is_read

    def _is_there(self, passing: Passing) -> cp_model.IntVar:
        """A literal that is true if the producer and a reader are in the memory."""
        if passing not in self._passing:
            model = self._graph.model
            literal = model.new_bool_var(f"passing{len(self._passing)}")
            is_made = self._runs_here(passing.producer)
            if not passing.readers:
                model.add(literal >= is_made)
            for task in passing.readers:
                model.add(literal >= is_made + self._runs_here(task) - 1)
            self._passing[passing] = literal
        return self._passing[passing]

    def _runs_here(self, task: int) -> Term:
        return total(self._graph.literals[choice] for choice in self._runs.get(task, ()))

    def add_hint(self, taken: Set[int]) -> None:
        """Give the variables their least values if so many choices are taken."""
        model = self._graph.model
        here = {task for task, choices in self._runs.items() if not taken.isdisjoint(choices)}
        there = {
            passing
            for passing in self._passing
            if passing.producer in here
            and (not passing.readers or not here.isdisjoint(passing.readers))
        }
        for passing, literal in self._passing.items():
            model.add_hint(literal, int(passing in there))
        held = [
            num_bytes + sum(each.bytes for each in passing if each in there)
            for choice, num_bytes, passing in self._rows
            if choice in taken
        ]
        model.add_hint(self.bytes, max([self.kept_bytes, *held]))
