"""Formulation -> a mixed-integer linear program: Moirai's rows M0 to M10.

Section III-D, DOI 10.48550/arXiv.2312.04025.

Columns: a binary for each choice (Moirai's `x` of tasks and `u` of transfers), the start `S` of
each activity, the makespan `T`; a finish `C` is the start plus the durations of what is taken (M2,
M9), so it needs no column. Times are scaled to a horizon of 1000.

M5 and M10 let activities of one resource follow each other; with one order bit for each pair they
are most of the model, so they are added for the pairs that a solution overlaps (`add_pair`). For
activities i and j and what each of them takes on a resource r:

    S_i >= C_j - M d - M (2 - on_i,r - on_j,r),   S_j >= C_i - M (1 - d) - M (2 - on_i,r - on_j,r)

Unlike Moirai `M` differs from row to row: it is the latest finish of the one minus the earliest
start of the other, H - tail - head, where H is the makespan of a known plan. And `u` says what its
`z` says, in rows that are tighter in the relaxation than M6 and M8:

    sum over k of u[q,k,l] >= x[b,l] - x[a,l]   with   u[q,k,l] <= x[a,k]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from heteroplace.solve.exact.formulation import Formulation, MemoryRow, Mode, Sum, Transfer
from heteroplace.solve.exact.schedule import (
    NOT_TAKEN,
    Schedule,
    choices_of_devices,
    timed,
)
from heteroplace.solve.lp.linear_program import FloatArray, MixedProgram, Terms

HORIZON = 1000.0
"""Scaled makespan of the known plan. Rows hold to 1e-6, as the engines have it by default."""
_ERROR_RATIO = 1e-6
"""Share of the horizon that a bound or a time may be wrong by: integrality leaks through big-M."""


class MipRows:
    """The program of a formulation, with the rows of the pairs that were asked for."""

    def __init__(self, formulation: Formulation, horizon_ns: int) -> None:
        """Build all but M5 and M10.

        Parameters
        ----------
        horizon_ns
            A makespan that need not be exceeded: of a known schedule, or `longest_ns`.
        """
        self._formulation = formulation
        self._unit_ns = max(1, horizon_ns) / HORIZON
        self._horizon = horizon_ns / self._unit_ns
        self.program = MixedProgram()
        self._order: dict[tuple[int, int], int] = {}
        """Pairs that have rows -> column of the order bit."""
        self._workspaces: list[tuple[int, tuple[tuple[int, float], ...]]] = []
        self._arrivals: list[tuple[int, tuple[tuple[int, ...], ...]]] = []
        self._add_columns()
        self._add_task_rows()
        for activity in range(formulation.num_tasks, formulation.num_activities):
            self._add_transfer_rows(activity)
        self._add_makespan_rows()
        for row in formulation.memory_rows:
            self._add_memory_row(row)

    @property
    def num_pairs(self) -> int:
        """Pairs with rows M5 or M10."""
        return len(self._order)

    def _scaled(self, time_ns: float) -> float:
        return time_ns / self._unit_ns

    def _add_columns(self) -> None:
        formulation, program = self._formulation, self.program
        for _ in formulation.choices:
            program.add_column(0.0, 1.0, is_integer=True)
        self._first_start = program.num_columns
        for activity, ids in enumerate(formulation.of_activity):
            shortest = 0
            if activity < formulation.num_tasks:
                shortest = min(formulation.choices[choice].duration_ns for choice in ids)
            head, tail = formulation.head_ns[activity], formulation.tail_ns[activity]
            earliest, latest = self._scaled(head), self._horizon - self._scaled(tail + shortest)
            program.add_column(earliest, max(earliest, latest))
        least = min(self._horizon, self._scaled(formulation.bound_ns))
        self._makespan = program.add_column(least, self._horizon, cost=1.0)

    def _start(self, activity: int) -> int:
        return self._first_start + activity

    def _finish(self, activity: int, sign: float = 1.0) -> Terms:
        """The start and the duration of what is taken (M2, M9)."""
        terms = [(self._start(activity), sign)]
        for choice in self._formulation.of_activity[activity]:
            duration = self._scaled(self._formulation.choices[choice].duration_ns)
            terms.append((choice, sign * duration))
        return terms

    def _add_task_rows(self) -> None:
        """M1 from task to task, M3, colocation groups and memories without a link between them."""
        formulation, program = self._formulation, self.program
        for task, before in enumerate(formulation.problem.graph.predecessors):
            program.add_row([(c, 1.0) for c in formulation.of_activity[task]], 1.0, 1.0)
            for other in before:
                program.add_row([(self._start(task), 1.0), *self._finish(other, -1.0)])
        for first, other in formulation.colocated:
            pairs = zip(formulation.of_activity[first], formulation.of_activity[other], strict=True)
            for one, two in pairs:
                program.add_row([(one, 1.0), (two, -1.0)], 0.0, 0.0)
        for exclusion in formulation.exclusions:
            terms = [(choice, 1.0) for choice in exclusion.choices]
            program.add_row(terms, -np.inf, exclusion.limit)

    def _add_transfer_rows(self, activity: int) -> None:
        """M1 around a transfer, M6 to M8."""
        formulation, program = self._formulation, self.program
        transfer = formulation.transfers[activity - formulation.num_tasks]
        if transfer.producer is not None:
            program.add_row([(self._start(activity), 1.0), *self._finish(transfer.producer, -1.0)])
        for task in transfer.readers:
            self._add_reader_row(activity, transfer, task)
        homes = formulation.homes
        ways = [(c, formulation.choices[c]) for c in formulation.of_activity[activity]]
        for choice, way in ways:
            home, reads = homes.home(transfer, way.src), homes.reads(transfer, way.where)
            self._add_sums([(1.0, Sum((choice,))), (-1.0, home)], at_most=0)
            self._add_sums([(1.0, Sum((choice,))), *((-1.0, read) for read in reads)], at_most=0)
        for dst in dict.fromkeys(way.where for _, way in ways):
            arrives = Sum(tuple(choice for choice, way in ways if way.where == dst))
            is_there = homes.home(transfer, dst)
            for read in homes.reads(transfer, dst):
                self._add_sums([(1.0, read), (-1.0, is_there), (-1.0, arrives)], at_most=0)
        if transfer.dst is None:
            self._add_leaving_rows(transfer, ways)

    def _add_leaving_rows(self, transfer: Transfer, ways: Sequence[tuple[int, Mode]]) -> None:
        """M6 at the source: what is made in k and not read there leaves k."""
        homes = self._formulation.homes
        for src in dict.fromkeys(way.src for _, way in ways):
            leaves = Sum(tuple(choice for choice, way in ways if way.src == src))
            stays = homes.in_memory(transfer.readers[0], src)
            home = homes.home(transfer, src)
            self._add_sums([(1.0, home), (-1.0, stays), (-1.0, leaves)], at_most=0)

    def _add_sums(self, signed: Sequence[tuple[float, Sum]], at_most: float) -> None:
        terms = [(choice, sign) for sign, value in signed for choice in value.choices]
        constant = sum(sign * value.constant for sign, value in signed)
        self.program.add_row(terms, -np.inf, at_most - constant)

    def _add_reader_row(self, activity: int, transfer: Transfer, task: int) -> None:
        """M1 from a transfer to a reader that it serves; it need not wait in other memories."""
        terms = [(self._start(task), 1.0), *self._finish(activity, -1.0)]
        if transfer.dst is None:
            self.program.add_row(terms)
            return
        is_served = self._formulation.homes.in_memory(task, transfer.dst)
        slack = self._big_m(activity, task)
        terms += [(choice, -slack) for choice in is_served.choices]
        self.program.add_row(terms, -slack)

    def _big_m(self, before: int, after: int) -> float:
        """Latest finish of the one minus the earliest start of the other."""
        formulation = self._formulation
        taken = formulation.tail_ns[before] + formulation.head_ns[after]
        return max(0.0, self._horizon - self._scaled(taken))

    def _add_makespan_rows(self) -> None:
        """M0, with what always follows; and the load of each resource, which M5 and M10 imply."""
        formulation, program = self._formulation, self.program
        loads: dict[int, Terms] = {}
        users: dict[int, list[int]] = {}
        for activity, ids in enumerate(formulation.of_activity):
            tail = self._scaled(formulation.tail_ns[activity])
            program.add_row([(self._makespan, 1.0), *self._finish(activity, -1.0)], tail)
            for index in ids:
                choice = formulation.choices[index]
                for resource in choice.resources:
                    term = (index, -self._scaled(choice.duration_ns))
                    loads.setdefault(resource, []).append(term)
                    users.setdefault(resource, []).append(activity)
        for resource, terms in loads.items():
            head = min(formulation.head_ns[activity] for activity in users[resource])
            tail = min(formulation.tail_ns[activity] for activity in users[resource])
            program.add_row([(self._makespan, 1.0), *terms], self._scaled(head + tail))

    def _add_memory_row(self, row: MemoryRow) -> None:
        """M4. A run that is too large alone is ruled out first, so that the row is well scaled."""
        program, size = self.program, float(max(1, row.room_bytes))
        terms: Terms = []
        for choice, num_bytes in row.runs:
            if num_bytes > row.room_bytes:
                program.upper[choice] = 0.0
            else:
                terms.append((choice, num_bytes / size))
        for arrival in row.arrivals:
            if arrival.bytes > row.room_bytes:
                for choice in itertools.chain.from_iterable(arrival.transfers):
                    program.upper[choice] = 0.0
                continue
            terms += [(c, arrival.bytes / size) for c in self._arrival(arrival.transfers)]
        for sizes in row.workspaces:
            largest = program.add_column(0.0, np.inf)
            needs = tuple((choice, num_bytes / size) for choice, num_bytes in sizes)
            for choice, need in needs:
                program.add_row([(largest, 1.0), (choice, -need)])
            self._workspaces.append((largest, needs))
            terms.append((largest, 1.0))
        program.add_row(terms, -np.inf, row.room_bytes / size)

    def _arrival(self, transfers: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        """Columns whose sum is 1 if any of the transfers is made."""
        if len(transfers) == 1:
            return transfers[0]
        column = self.program.add_column(0.0, 1.0)
        for ids in transfers:
            self.program.add_row([(column, 1.0), *((choice, -1.0) for choice in ids)])
        self._arrivals.append((column, transfers))
        return (column,)

    def limit_makespan(self, makespan_ns: int) -> None:
        """A schedule of this makespan is known."""
        upper = self._scaled(makespan_ns) * (1 + _ERROR_RATIO)
        self.program.upper[self._makespan] = max(self.program.lower[self._makespan], upper)

    def forbid(self, chosen: Sequence[int]) -> None:
        """Rule out a placement: it fits only within the tolerance of M4."""
        tasks = chosen[: self._formulation.num_tasks]
        self.program.add_row([(choice, 1.0) for choice in tasks], -np.inf, len(tasks) - 1)

    def add_pair(self, one: int, two: int) -> None:
        """Add M5 or M10 for two activities, on each resource that both may take."""
        order = self.program.add_column(0.0, 1.0, is_integer=True)
        self._order[one, two] = order
        forward, backward = self._big_m(two, one), self._big_m(one, two)
        takes = [self._takes(activity) for activity in (one, two)]
        for resource in sorted(takes[0].keys() & takes[1].keys()):
            both = [*takes[0][resource], *takes[1][resource]]
            for first, second, slack, side in (
                (one, two, forward, 1.0),
                (two, one, backward, -1.0),
            ):
                terms = [(self._start(first), 1.0), *self._finish(second, -1.0)]
                terms += [(choice, -slack) for choice in both]
                terms.append((order, side * slack))
                constant = 2.0 if side > 0 else 3.0
                self.program.add_row(terms, -constant * slack)

    def _takes(self, activity: int) -> dict[int, list[int]]:
        """For each resource the choices of an activity that occupy it."""
        takers: dict[int, list[int]] = {}
        for index in self._formulation.of_activity[activity]:
            for resource in self._formulation.choices[index].resources:
                takers.setdefault(resource, []).append(index)
        return takers

    def overlaps(self, values: FloatArray) -> list[tuple[int, int]]:
        """Return the pairs without rows that a solution runs at once on one resource."""
        by_resource: dict[int, list[tuple[float, float, int]]] = {}
        for activity, index in enumerate(self._taken(values)):
            if index == NOT_TAKEN:
                continue
            choice = self._formulation.choices[index]
            start = float(values[self._start(activity)])
            span = (start, start + self._scaled(choice.duration_ns), activity)
            for resource in choice.resources:
                by_resource.setdefault(resource, []).append(span)
        slack = _ERROR_RATIO * HORIZON
        pairs: set[tuple[int, int]] = set()
        for spans in by_resource.values():
            spans.sort()
            for index, (start, finish, one) in enumerate(spans):
                for later, end, two in spans[index + 1 :]:
                    if later >= finish - slack:
                        break
                    if end > start + slack:
                        pairs.add((min(one, two), max(one, two)))
        return sorted(pair for pair in pairs if pair not in self._order)

    def _taken(self, values: FloatArray) -> tuple[int, ...]:
        """The choices of a solution; transfers follow from the devices."""
        formulation = self._formulation
        devices = []
        for ids in formulation.of_activity[: formulation.num_tasks]:
            best = max(ids, key=lambda choice: float(values[choice]))
            devices.append(formulation.choices[best].where)
        return choices_of_devices(formulation, devices)

    def read(self, values: FloatArray) -> Schedule:
        """Return the schedule of the solution's devices and order of starts, in integers."""
        chosen = self._taken(values)
        priority = []
        for activity, choice in enumerate(chosen):
            start = round(float(values[self._start(activity)]) * self._unit_ns)
            taken = choice != NOT_TAKEN
            lasts = self._formulation.choices[choice].duration_ns if taken else 0
            # Of those that start together the one without duration goes first, as in a plan.
            priority.append((start, start + lasts))
        return timed(self._formulation, chosen, priority)

    def bound_ns(self, bound: float) -> int:
        """Return the makespan that a bound of the program proves; 0: none."""
        if not math.isfinite(bound):
            return 0
        return max(0, math.ceil((bound - _ERROR_RATIO * HORIZON) * self._unit_ns))

    def values_of(self, schedule: Schedule) -> FloatArray:
        """Return a schedule as a solution."""
        formulation = self._formulation
        values: FloatArray = np.zeros(self.program.num_columns)
        starts, finishes = list(schedule.start_ns), list(schedule.finish_ns)
        for activity, choice in enumerate(schedule.chosen):
            if choice != NOT_TAKEN:
                values[choice] = 1.0
                continue
            # What is not taken happens at once, when its tensor is made.
            producer = formulation.transfers[activity - formulation.num_tasks].producer
            starts[activity] = 0 if producer is None else finishes[producer]
            finishes[activity] = starts[activity]
        for activity, start in enumerate(starts):
            values[self._start(activity)] = self._scaled(start)
        values[self._makespan] = self._scaled(schedule.makespan_ns)
        for column, needs in self._workspaces:
            values[column] = max(values[choice] * need for choice, need in needs)
        for column, transfers in self._arrivals:
            values[column] = max(values[list(ids)].sum() for ids in transfers)
        for (one, two), column in self._order.items():
            values[column] = float(starts[one] < starts[two] or finishes[one] <= starts[two])
        return values
