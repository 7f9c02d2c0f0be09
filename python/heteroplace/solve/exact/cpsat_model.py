"""The rules of a placement with its schedule in CP-SAT, for a whole graph and for a neighbourhood.

Moirai (section III-D, DOI 10.48550/arXiv.2312.04025), with optional intervals and no-overlap in
place of big-M rows: a run or copy is an interval on all that it occupies, taken if its literal is.
A neighbourhood (`lns/neighbourhood_model.py`) adds when things are free at first, when they are
due, and tasks that keep device and order. For the whole graph (`graph_model.py`) all is free at 0
and nothing is due or kept; it has load rows in addition, since it is to be proven and not only
improved.

Each of the two adds variables and rules in an order of its own: what CP-SAT finds depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortools.sat.python import cp_model

Term = cp_model.LinearExpr | int
Literal = cp_model.IntVar | int
"""A variable of 0 or 1, or one of the two."""


class ScheduleModel:
    """A CP-SAT model with its intervals by resource."""

    def __init__(self, model: cp_model.CpModel | None = None) -> None:
        """Begin with a model that has rules of others; None: with an empty one."""
        self.model = cp_model.CpModel() if model is None else model
        self._intervals: dict[int, list[cp_model.IntervalVar]] = {}

    def occupy(
        self,
        resources: Iterable[int],
        start: cp_model.IntVar,
        duration_ns: int,
        taken: Literal | None,
        name: str = "",
    ) -> None:
        """Occupy resources from `start` on, if `taken`; None: in any case."""
        if taken is None:
            interval = self.model.new_fixed_size_interval_var(start, duration_ns, name)
        else:
            interval = self.model.new_optional_fixed_size_interval_var(
                start, duration_ns, taken, name
            )
        for resource in resources:
            self._intervals.setdefault(resource, []).append(interval)

    def forbid_overlaps(self, least: int) -> None:
        """Let each resource that may be occupied `least` times or more serve one at a time."""
        for resource in sorted(self._intervals):
            if len(self._intervals[resource]) >= least:
                self.model.add_no_overlap(self._intervals[resource])

    def leave_home(self, copy: Literal, home: Term) -> None:
        """A copy is made only from where its tensor is made (M6)."""
        self.model.add(copy <= home)

    def serve_readers(self, copy: Literal, reads: Sequence[Term]) -> None:
        """A copy is made only if somebody reads it (M7)."""
        self.model.add(copy <= total(reads))

    def bring(self, copy: Literal, home: Term, reads: Iterable[Term]) -> None:
        """A copy is made if its tensor is made there and anybody reads it (M8)."""
        for read in reads:
            self.model.add(copy >= home + read - 1)

    def wait(self, start: Term, finish: Term, taken: Literal | Sequence[Literal]) -> None:
        """What starts waits for what finishes, if all of `taken` are."""
        self.model.add(start >= finish).only_enforce_if(taken)

    def largest(
        self, least: int, sizes: Sequence[tuple[int, Literal]], name: str = ""
    ) -> cp_model.IntVar:
        """Return a variable that is no less than `least` and the size of each that is taken."""
        variable = self.model.new_int_var(least, max(size for size, _ in sizes), name)
        for size, taken in sizes:
            self.model.add(variable >= size * taken)
        return variable


def total(terms: Iterable[Term]) -> Term:
    """Return the sum."""
    return cp_model.LinearExpr.sum(list(terms))
