"""Sub-problem -> CP-SAT model -> a shorter neighbourhood, or the proof that there is none.

The model is that of `heteroplace.solve.exact.cpsat_model`, with times when things are free at the
begin and due times at the end. Its objective is by how much everything that is due comes too late;
below 0 the whole plan gets shorter by as much, unless what lies beside the neighbourhood is just as
long. At prices of memory (Lagrange multipliers) it is that time and the value of the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ortools.sat.python import cp_model

from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.exact.cpsat_model import Literal, ScheduleModel, Term, total
from heteroplace.solve.lns.fixed_schedule import ProblemLists
from heteroplace.solve.lns.neighbourhood import SubProblem, SubTask, SubTensor

FS_PER_NS = 1_000_000
_LOSS_PART = 8
"""Share of the time looked at that may be lost for memory."""


@dataclass(frozen=True)
class SubRun:
    """A run of a solution; times and task are local."""

    start_ns: int
    finish_ns: int
    task: int
    device: int


@dataclass(frozen=True)
class SubCopy:
    """A copy of a solution; times and tensor are local."""

    start_ns: int
    finish_ns: int
    tensor: int
    src: int
    dst: int


@dataclass(frozen=True)
class SubSolution:
    """A new schedule of a neighbourhood."""

    runs: tuple[SubRun, ...]
    copies: tuple[SubCopy, ...]
    gain_ns: int
    """By how much it lets the plan end earlier; negative where it only saves memory."""


@dataclass(frozen=True)
class _RunVars:
    start: cp_model.IntVar
    finish: Term
    on: dict[int, Literal]
    """By device."""


@dataclass(frozen=True)
class _CopyVars:
    start: cp_model.IntVar
    finish: Term
    source: dict[int, Literal]
    """By the memory it leaves."""
    made: Literal


class SubModel(ScheduleModel):
    """The model of one sub-problem."""

    def __init__(
        self,
        lists: ProblemLists,
        problem: SubProblem,
        least_gain_ns: int,
        deadline: Deadline = NEVER,
    ) -> None:
        """Build it; raises TimeUpError at the deadline."""
        self._lists = lists
        super().__init__()
        self._problem = problem
        self._kept: list[list[tuple[int, cp_model.IntVar, Term]]] = [[] for _ in problem.free_ns]
        """For each resource (position, start, finish) of what keeps its order there."""
        most_late_ns = problem.ceiling_ns // _LOSS_PART if problem.prices_fs else -least_gain_ns
        self._late = self.model.new_int_var(problem.floor_ns, most_late_ns, "late")
        self._runs = [self._add_task(index, task) for index, task in enumerate(problem.tasks)]
        self._in_memory = [
            [self._in(run, memory) for memory in range(lists.num_memories)] for run in self._runs
        ]
        self._copies: dict[tuple[int, int], _CopyVars] = {}
        self._bytes: list[list[Term]] = [[] for _ in range(lists.num_memories)]
        self._keep_groups()
        for index, tensor in enumerate(problem.tensors):
            deadline.check()
            self._add_tensor(index, tensor)
        deadline.check()
        self._add_memory()
        self.forbid_overlaps(2)
        for chain in self._kept:
            chain.sort(key=lambda step: step[0])
            for (_, _, finish), (_, start, _) in pairwise(chain):
                self.model.add(start >= finish)
        self._add_objective(least_gain_ns)

    def _add_objective(self, least_gain_ns: int) -> None:
        prices = self._problem.prices_fs
        if not prices:
            self.model.minimize(self._late)
            return
        cost = FS_PER_NS * self._late
        for price, terms in zip(prices, self._bytes, strict=True):
            cost += price * total(terms)
        old = sum(map(int.__mul__, prices, self._problem.old_bytes))
        self.model.add(cost <= old - FS_PER_NS * least_gain_ns)
        self.model.minimize(cost)

    def _time(self, name: str) -> cp_model.IntVar:
        return self.model.new_int_var(self._problem.floor_ns, self._problem.ceiling_ns, name)

    def _add_task(self, index: int, task: SubTask) -> _RunVars:
        model, problem = self.model, self._problem
        start = self._time(f"start{index}")
        free_ns, due_ns = {}, {}
        for device in task.devices:
            units = self._lists.units[device]
            free_ns[device] = max(problem.free_ns[unit] for unit in units)
            due_ns[device] = min(problem.due_ns[unit] for unit in units)
        if len(task.devices) == 1:
            on: dict[int, Literal] = {task.old_device: 1}
            finish = start + task.run_ns[0]
            units = self._lists.units[task.old_device]
            self.occupy(units, start, task.run_ns[0], None, f"run{index}")
        else:
            on = {}
            for device, run_ns in zip(task.devices, task.run_ns, strict=True):
                literal = model.new_bool_var(f"on{index}_{device}")
                model.add_hint(literal, device == task.old_device)
                on[device] = literal
                units = self._lists.units[device]
                self.occupy(units, start, run_ns, literal, f"run{index}_{device}")
            model.add_exactly_one(list(on.values()))
            finish = start + total(
                ns * on[device] for device, ns in zip(task.devices, task.run_ns, strict=True)
            )
        model.add_hint(start, task.old_start_ns)
        model.add(start >= total(free_ns[device] * literal for device, literal in on.items()))
        model.add(
            finish <= self._late + total(due_ns[device] * literal for device, literal in on.items())
        )
        if task.is_kept:
            for unit in self._lists.units[task.old_device]:
                self._kept[unit].append((task.old_position, start, finish))
        return _RunVars(start, finish, on)

    def _in(self, run: _RunVars, memory: int) -> Literal:
        """Whether a task is on a device of a memory."""
        literals = [on for device, on in run.on.items() if self._lists.memory_of[device] == memory]
        if len(literals) <= 1:
            return literals[0] if literals else 0
        if len(literals) == len(run.on):
            return 1
        either = self.model.new_bool_var("")
        self.model.add(either == total(literals))
        return either

    def _keep_groups(self) -> None:
        first: dict[int, _RunVars] = {}
        for task, run in zip(self._problem.tasks, self._runs, strict=True):
            if task.group < 0:
                continue
            other = first.setdefault(task.group, run)
            for device, literal in run.on.items():
                self.model.add(literal == other.on[device])

    def _homes(self, tensor: SubTensor) -> list[Literal]:
        """For each memory whether the tensor is made there."""
        if tensor.producer >= 0:
            return self._in_memory[tensor.producer]
        return [int(memory == tensor.home) for memory in range(self._lists.num_memories)]

    def _add_tensor(self, index: int, tensor: SubTensor) -> None:
        model = self.model
        homes = self._homes(tensor)
        made_at: Term = tensor.ready_ns
        if tensor.producer >= 0:
            made_at = self._runs[tensor.producer].finish
            if not self._problem.tasks[tensor.producer].is_kept:
                for memory, home in enumerate(homes):
                    self._bytes[memory].append(tensor.charged[memory] * home)
        for reader in tensor.readers:
            model.add(self._runs[reader].start >= made_at)
        due = dict(tensor.due)
        there = {dst: (arrival_ns, is_read) for dst, arrival_ns, is_read in tensor.there}
        for memory, home in enumerate(homes):
            readers = [
                (self._runs[reader], self._in_memory[reader][memory])
                for reader in tensor.readers
                if not _is(self._in_memory[reader][memory], 0)
            ]
            if memory in there:
                self._read_copy(tensor, memory, *there[memory], readers)
                continue
            if not readers and memory not in due:
                continue
            if memory in due and tensor.producer >= 0 and not _is(home, 0):
                model.add(made_at <= due[memory] + self._late).only_enforce_if(home)
            sources = self._sources(tensor, memory, homes, [literal for _, literal in readers])
            if sources:
                self._add_copy(index, memory, sources, readers)

    def _read_copy(
        self,
        tensor: SubTensor,
        memory: int,
        arrival_ns: int,
        is_read: bool,
        readers: list[tuple[_RunVars, Literal]],
    ) -> None:
        """Readers of a copy that was made before; it is dropped if nobody reads it any more."""
        literals = [literal for _, literal in readers]
        for run, literal in readers:
            self.wait(run.start, arrival_ns, literal)
        num_bytes = tensor.charged[memory]
        if not num_bytes:
            return
        is_read |= any(_is(literal, 1) for literal in literals) or memory in dict(tensor.due)
        if is_read or not literals:
            self._bytes[memory].append(num_bytes * is_read)
            return
        needed = self.model.new_bool_var("")
        for literal in literals:
            self.model.add_implication(literal, needed)
        self._bytes[memory].append(num_bytes * needed)

    def _sources(
        self, tensor: SubTensor, memory: int, homes: list[Literal], readers: list[Literal]
    ) -> dict[int, Literal]:
        """Where a copy to a memory may come from, and whether the tensor is made there."""
        sources = {}
        for src, home in enumerate(homes):
            if src == memory or _is(home, 0):
                continue
            if self._lists.ways[src][memory] is not None:
                sources[src] = home
                continue
            for reader in [*readers, *([1] if memory in dict(tensor.due) else [])]:
                self.model.add(home + reader <= 1)
        return sources

    def _add_copy(
        self,
        index: int,
        memory: int,
        sources: dict[int, Literal],
        readers: list[tuple[_RunVars, Literal]],
    ) -> None:
        model, tensor = self.model, self._problem.tensors[index]
        start = self._time(f"copy{index}_{memory}")
        chosen = self._choose_sources(tensor, memory, sources, [lit for _, lit in readers])
        is_copied = self._either(list(chosen.values()))
        times, free, due = [], [], []
        old = {dst: (start_ns, position) for dst, start_ns, position in tensor.copies}
        floor, ceiling = self._problem.floor_ns, self._problem.ceiling_ns
        for src, literal in chosen.items():
            way = self._lists.ways[src][memory] or ()
            ns = self._lists.bytes_ns(tensor.num_bytes, src, memory)
            times.append(ns * literal)
            free.append(max((self._problem.free_ns[r] for r in way), default=floor) * literal)
            # Relative to the ceiling, which a copy that is not made has to keep.
            due.append(
                (min((self._problem.due_ns[r] for r in way), default=ceiling) - ceiling) * literal
            )
            self.occupy(way, start, ns, literal)
        finish = start + total(times)
        model.add(start >= total(free) + floor * (1 - is_copied))
        model.add(finish <= self._late + ceiling + total(due))
        model.add_hint(start, old[memory][0] if memory in old else floor)
        made_at = self._made_at(tensor)
        self.wait(start, made_at, is_copied)
        dues = dict(tensor.due)
        if memory in dues:
            model.add(finish <= dues[memory] + self._late).only_enforce_if(is_copied)
        for run, literal in readers:
            self.wait(run.start, finish, [is_copied, literal])
        if _is(is_copied, 1) and memory in old and self._is_between_kept(tensor, memory):
            for resource in self._lists.ways[next(iter(chosen))][memory] or ():
                self._kept[resource].append((old[memory][1], start, finish))
        num_bytes = tensor.charged[memory]
        is_due = memory in dues
        self._bytes[memory].append(num_bytes * (total(sources.values()) if is_due else is_copied))
        self._copies[index, memory] = _CopyVars(start, finish, chosen, is_copied)

    def _is_between_kept(self, tensor: SubTensor, memory: int) -> bool:
        """Whether a tensor is certainly read in a memory, and who makes or reads it there keeps its
        order: where nobody does, as in a whole plan of pinned tasks, copies are free as well."""
        ends = [r for r in tensor.readers if _is(self._in_memory[r][memory], 1)]
        if ends and tensor.producer >= 0:
            ends.append(tensor.producer)
        return any(self._problem.tasks[end].is_kept for end in ends)

    def _made_at(self, tensor: SubTensor) -> Term:
        return self._runs[tensor.producer].finish if tensor.producer >= 0 else tensor.ready_ns

    def _choose_sources(
        self,
        tensor: SubTensor,
        memory: int,
        sources: dict[int, Literal],
        readers: list[Literal],
    ) -> dict[int, Literal]:
        """For each source whether a copy is made from there in the neighbourhood."""
        model = self.model
        later, is_due = dict(tensor.later), memory in dict(tensor.due)
        chosen: dict[int, Literal] = {}
        for src, home in sources.items():
            can_wait = is_due and memory in later and src == tensor.home
            is_needed = any(_is(reader, 1) for reader in readers) or (is_due and not can_wait)
            if is_needed:
                chosen[src] = home
                continue
            literal = model.new_bool_var(f"copied_from{src}_to{memory}")
            model.add_hint(
                literal, memory in {dst for dst, *_ in tensor.copies} and src == tensor.home
            )
            chosen[src] = literal
            self.leave_home(literal, home)
            self.bring(literal, home, readers)
            if not is_due:
                self.serve_readers(literal, readers)
            elif tensor.producer >= 0:
                waits = [literal.negated()] if _is(home, 1) else [literal.negated(), home]
                made_at = self._made_at(tensor)
                model.add(made_at <= later[memory] + self._late).only_enforce_if(waits)
        return chosen

    def _either(self, literals: list[Literal]) -> Literal:
        """The sum of literals of which at most one is 1."""
        if len(literals) == 1:
            return literals[0]
        if any(_is(literal, 1) for literal in literals):
            return 1
        variable = self.model.new_bool_var("")
        self.model.add(variable == total(literals))
        return variable

    def _add_memory(self) -> None:
        lists, problem = self._lists, self._problem
        for task, in_memory in zip(problem.tasks, self._in_memory, strict=True):
            if not task.is_kept:
                for memory, literal in enumerate(in_memory):
                    self._bytes[memory].append(task.weight_bytes * literal)
        for device, rest in enumerate(problem.workspace_bytes):
            users = [
                (task.workspace_bytes, run.on[device])
                for task, run in zip(problem.tasks, self._runs, strict=True)
                if not task.is_kept and device in run.on and task.workspace_bytes > rest
            ]
            largest: Term = rest
            if users:
                largest = self.largest(rest, users)
            self._bytes[lists.memory_of[device]].append(largest)
        for terms, left in zip(self._bytes, problem.left_bytes, strict=True):
            self.model.add(total(terms) <= left)

    def read(self, solver: cp_model.CpSolver) -> SubSolution:
        """Return the best solution that the solver found."""
        runs, copies = [], []
        for task, run in enumerate(self._runs):
            for device, literal in run.on.items():
                if solver.value(literal):
                    times = solver.value(run.start), solver.value(run.finish)
                    runs.append(SubRun(*times, task, device))
        for (tensor, memory), copy in self._copies.items():
            for src, literal in copy.source.items():
                if solver.value(literal):
                    times = solver.value(copy.start), solver.value(copy.finish)
                    copies.append(SubCopy(*times, tensor, src, memory))
        return SubSolution(tuple(runs), tuple(copies), -solver.value(self._late))


def _is(literal: Literal, value: int) -> bool:
    return isinstance(literal, int) and literal == value
