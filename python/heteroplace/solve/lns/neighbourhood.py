"""A plan + neighbourhood -> sub-problem: what is decided again, and what the rest asks of it.

What begins before the neighbourhood is done: it leaves times when units, links and tensors are
free. What begins behind it keeps devices and order: it leaves due times, by which the plan would
end as it does now. All times are relative to the begin of the neighbourhood and ids are local, so
neighbourhoods of equal layers give equal sub-problems.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

from heteroplace.solve.lns.fixed_schedule import SimulatedPlan


@dataclass(frozen=True)
class Neighbourhood:
    """Positions of a schedule from `first` to before `last`, and which of its tasks may move."""

    first: int
    last: int
    devices: tuple[int, ...]
    """Tasks on these may move, to these; the other tasks keep their device and their order."""
    is_greedy: bool = True
    """It may use all memory that is left; else only a part, as long as it is of the schedule."""
    prices_fs: tuple[int, ...] = ()
    """[num_memories], what a byte is worth in fs: it may use any memory, and lose time, at these
    prices. Empty: it has to fit and to gain."""


@dataclass(frozen=True, slots=True)
class SubTask:
    """A task of a neighbourhood."""

    devices: tuple[int, ...]
    """Where it may run; one, if it keeps its device."""
    run_ns: tuple[int, ...]
    """On each of `devices`."""
    old_device: int
    old_start_ns: int
    old_position: int
    """In the neighbourhood."""
    is_kept: bool
    """It keeps its device and its place in the order of all that do."""
    group: int
    """Number of its colocation group, -1: none."""
    weight_bytes: int
    workspace_bytes: int
    reads: tuple[int, ...]
    """Local tensors."""


@dataclass(frozen=True, slots=True)
class SubTensor:
    """A tensor that is made, read or copied in a neighbourhood."""

    producer: int
    """Local task; -1: it is there before."""
    home: int
    """Memory where it is, or was made so far."""
    ready_ns: int
    """Of one that is there before: since when."""
    num_bytes: int
    there: tuple[tuple[int, int, bool], ...]
    """(memory, ns, whether it is read before): copies that were made before."""
    readers: tuple[int, ...]
    """Local tasks."""
    due: tuple[tuple[int, int], ...]
    """(memory, ns): when it must be where it is read behind the neighbourhood."""
    later: tuple[tuple[int, int], ...]
    """(memory, ns): copies from its home behind it, and when it must be made for them."""
    copies: tuple[tuple[int, int, int], ...]
    """(memory, start in ns, position): copies in the neighbourhood so far."""
    charged: tuple[int, ...]
    """What it adds to each memory."""


@dataclass(frozen=True)
class SubProblem:
    """A neighbourhood to be scheduled again."""

    tasks: tuple[SubTask, ...]
    tensors: tuple[SubTensor, ...]
    free_ns: tuple[int, ...]
    """[num_resources], since when it is free."""
    due_ns: tuple[int, ...]
    """[num_resources], when it must be free again."""
    left_bytes: tuple[int, ...]
    """[num_memories], for the tasks that may move and the copies that may change."""
    old_bytes: tuple[int, ...]
    """[num_memories], what these take so far."""
    prices_fs: tuple[int, ...]
    """As in `Neighbourhood`."""
    workspace_bytes: tuple[int, ...]
    """[num_devices], largest of all other tasks."""
    floor_ns: int
    """Nothing is looked at that lies before."""
    ceiling_ns: int
    """Nor what lies behind."""


@dataclass(frozen=True)
class Subproblem:
    """A sub-problem with the ids that it stands for."""

    neighbourhood: Neighbourhood
    problem: SubProblem
    tasks: tuple[int, ...]
    tensors: tuple[int, ...]


def cut_out(schedule: SimulatedPlan, neighbourhood: Neighbourhood) -> Subproblem:
    """Return the sub-problem of a neighbourhood. Complexity: O(reads in it + tasks * log uses)."""
    return _Cutter(schedule, neighbourhood).cut()


class _Cutter:
    def __init__(self, schedule: SimulatedPlan, neighbourhood: Neighbourhood) -> None:
        self._schedule = schedule
        self._lists = schedule.lists
        self._neighbourhood = neighbourhood
        inside = range(neighbourhood.first, neighbourhood.last)
        self._tasks = [schedule.subject[p] for p in inside if schedule.is_run[p]]
        self._local = {task: index for index, task in enumerate(self._tasks)}
        self._begin_ns = schedule.start_ns[neighbourhood.first]
        end_ns = max(schedule.finish_ns[p] for p in inside)
        # Twice its length before and behind is as far as anything in it can move.
        self._span_ns = max(1, end_ns - self._begin_ns)
        self._ids: dict[int, int] = {}
        for position in inside:
            subject = schedule.subject[position]
            if not schedule.is_run[position]:
                self._note(subject)
                continue
            for tensor in (*self._lists.reads[subject], *self._lists.makes[subject]):
                self._note(tensor)

    def _note(self, tensor: int) -> None:
        if not self._lists.is_everywhere(tensor):
            self._ids.setdefault(tensor, len(self._ids))

    def cut(self) -> Subproblem:
        tasks = tuple(self._task(task) for task in self._tasks)
        tensors = tuple(self._tensor(tensor) for tensor in self._ids)
        resources = range(self._lists.num_resources)
        problem = SubProblem(
            tasks,
            tensors,
            tuple(self._free_ns(resource) for resource in resources),
            tuple(self._due_ns(resource) for resource in resources),
            self._left_bytes(tasks, tensors),
            self._old_bytes(tasks, tensors),
            self._neighbourhood.prices_fs,
            self._rest_workspaces,
            -self._span_ns,
            2 * self._span_ns,
        )
        return Subproblem(self._neighbourhood, problem, tuple(self._tasks), tuple(self._ids))

    def _after(self, time_ns: int) -> int:
        return max(-self._span_ns, time_ns - self._begin_ns)

    def _due_at(self, tail_ns: int) -> int:
        due_ns = self._schedule.makespan_ns - tail_ns - self._begin_ns
        return min(2 * self._span_ns, due_ns)

    def _free_ns(self, resource: int) -> int:
        uses = self._schedule.uses[resource]
        index = bisect_left(uses, self._neighbourhood.first)
        return self._after(self._schedule.finish_ns[uses[index - 1]] if index else 0)

    def _due_ns(self, resource: int) -> int:
        uses = self._schedule.uses[resource]
        index = bisect_left(uses, self._neighbourhood.last)
        return self._due_at(self._schedule.tail_ns[uses[index]] if index < len(uses) else 0)

    def _is_free(self, task: int) -> bool:
        return self._schedule.device[task] in self._neighbourhood.devices and (
            self._lists.group[task] < 0 or self._group_is_inside(self._lists.group[task])
        )

    def _group_is_inside(self, group: int) -> bool:
        """Whether all of a colocation group is in the neighbourhood; else it stays where it is."""
        members = self._lists.members[group]
        return all(task in self._local for task in members)

    def _task(self, task: int) -> SubTask:
        lists, device = self._lists, self._schedule.device[task]
        devices = [device]
        if self._is_free(task):
            devices = [d for d in lists.allowed(task) if d in self._neighbourhood.devices]
        position = self._schedule.run_at[task]
        return SubTask(
            tuple(devices),
            tuple(lists.run_ns[task][device] for device in devices),
            device,
            self._schedule.start_ns[position] - self._begin_ns,
            position - self._neighbourhood.first,
            not self._is_free(task),
            self._groups.setdefault(lists.group[task], len(self._groups)) - 1,
            lists.weight_bytes[task],
            lists.workspace_bytes[task],
            tuple(self._ids[tensor] for tensor in lists.reads[task] if tensor in self._ids),
        )

    @cached_property
    def _groups(self) -> dict[int, int]:
        return {-1: 0}

    def _tensor(self, tensor: int) -> SubTensor:
        lists, schedule, neighbourhood = self._lists, self._schedule, self._neighbourhood
        home = schedule.home(tensor)
        assert home is not None  # Else it was not noted.
        producer = lists.producer[tensor]
        ready_ns = 0
        if producer not in self._local:
            ready_ns = self._after(
                0 if producer < 0 else schedule.finish_ns[schedule.run_at[producer]]
            )
        there, later, copies = [], [], []
        for memory in range(lists.num_memories):
            position = schedule.copy_at.get((tensor, memory), -1)
            if position < 0:
                continue
            if position < neighbourhood.first:
                arrival_ns = self._after(schedule.finish_ns[position])
                there.append((memory, arrival_ns, self._is_read_before(tensor, memory)))
            elif position >= neighbourhood.last:
                later.append((memory, self._due_at(schedule.tail_ns[position])))
            else:
                start_ns = schedule.start_ns[position] - self._begin_ns
                copies.append((memory, start_ns, position - neighbourhood.first))
        return SubTensor(
            self._local.get(producer, -1),
            home,
            ready_ns,
            lists.tensor_bytes[tensor],
            tuple(there),
            tuple(self._local[task] for task in lists.readers[tensor] if task in self._local),
            self._dues(tensor),
            tuple(later),
            tuple(copies),
            tuple(lists.charged_bytes(tensor, m) for m in range(lists.num_memories)),
        )

    def _is_read_before(self, tensor: int, memory: int) -> bool:
        schedule = self._schedule
        return any(
            schedule.run_at[task] < self._neighbourhood.first
            and self._lists.memory_of[schedule.device[task]] == memory
            for task in self._lists.readers[tensor]
        )

    def _dues(self, tensor: int) -> tuple[tuple[int, int], ...]:
        lists, schedule = self._lists, self._schedule
        tails: dict[int, int] = {}
        for task in lists.readers[tensor]:
            position = schedule.run_at[task]
            if position >= self._neighbourhood.last:
                memory = lists.memory_of[schedule.device[task]]
                tails[memory] = max(tails.get(memory, 0), schedule.tail_ns[position])
        if tensor in lists.outputs and lists.host is not None:
            tails.setdefault(lists.host, 0)
        return tuple((memory, self._due_at(tails[memory])) for memory in sorted(tails))

    @cached_property
    def _rest_workspaces(self) -> tuple[int, ...]:
        largest = []
        for entries in self._schedule.workspaces:
            others = (
                size for size, task in entries if task not in self._local or not self._is_free(task)
            )
            largest.append(next(others, 0))
        return tuple(largest)

    def _old_bytes(
        self, tasks: tuple[SubTask, ...], tensors: tuple[SubTensor, ...]
    ) -> tuple[int, ...]:
        lists = self._lists
        old = [0] * lists.num_memories
        for task in tasks:
            if not task.is_kept:
                old[lists.memory_of[task.old_device]] += task.weight_bytes
        for tensor in tensors:
            if tensor.producer >= 0 and not tasks[tensor.producer].is_kept:
                old[tensor.home] += tensor.charged[tensor.home]
            for memory, *_ in (*tensor.there, *tensor.later, *tensor.copies):
                old[memory] += tensor.charged[memory]
        for device, entries in enumerate(self._schedule.workspaces):
            old[lists.memory_of[device]] += entries[0][0] if entries else 0
        return tuple(old)

    def _left_bytes(
        self, tasks: tuple[SubTask, ...], tensors: tuple[SubTensor, ...]
    ) -> tuple[int, ...]:
        """Capacity less what everything else takes."""
        lists = self._lists
        used = self._schedule.used_bytes
        left = [limit - taken for limit, taken in zip(lists.limits, used, strict=True)]
        if not self._neighbourhood.is_greedy:
            length = self._neighbourhood.last - self._neighbourhood.first
            left = [num_bytes * length // len(self._schedule) for num_bytes in left]
        if self._neighbourhood.prices_fs:
            left = list(lists.limits)
        old = self._old_bytes(tasks, tensors)
        left = [num_bytes + mine for num_bytes, mine in zip(left, old, strict=True)]
        # More than it could ever need is no limit: equal neighbourhoods remain equal.
        need = [0] * lists.num_memories
        for tensor in tensors:
            need = [
                total + num_bytes for total, num_bytes in zip(need, tensor.charged, strict=True)
            ]
        weights = sum(task.weight_bytes for task in tasks)
        for device, memory in enumerate(lists.memory_of):
            need[memory] += (
                max((task.workspace_bytes for task in tasks), default=0)
                + self._rest_workspaces[device]
            )
        return tuple(min(num, most + weights) for num, most in zip(left, need, strict=True))
