"""Kernel calls of a network on one device -> what each task holds beside its tensors, call by call.

A task is several kernels where its values change their layout: it reads a tensor, makes a copy of
it in another layout, and only then computes. Such copies are there during the task alone, and what
they were made of may be gone by then. What another task's kernels make for one task only counts as
its own (`lower.order.delay_for_memory`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.kernels import KernelCall, KernelCalls
from heteroplace.lower.order.instructions import root
from heteroplace.lower.program import aligned
from heteroplace.measure.devices_under_test import find_devices_under_test
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.live_memory import InnerBytes, LiveValue
from heteroplace.model.plan import Plan, Run
from heteroplace.parts.parallel.transforms.recompute import plain_name


@dataclass(frozen=True)
class CallMemory:
    """What is needed while one kernel of a task runs, for one item."""

    inner_bytes: int
    """Values that no other task reads."""
    needed: frozenset[str]
    """Whose results, of those in `TaskMemory.reads`, are still read."""
    has_made: bool
    """Whether anything that other tasks read is there."""


@dataclass(frozen=True)
class ResultCopy:
    """What a task makes, in another layout, for several tasks."""

    num_bytes: int
    """For one item."""
    readers: frozenset[str]
    """Tasks."""
    only_readers: frozenset[str]
    """Those of them that read the result in no other layout."""


@dataclass(frozen=True)
class TaskMemory:
    """What a task needs beside its tensors."""

    scratch_bytes: int = 0
    """Of the largest of its kernels."""
    weights: tuple[tuple[str, int], ...] = ()
    """(content, bytes) of what its kernels read of the weights, in their layouts: columns that fill
    whole registers make a weight larger."""
    copies: tuple[ResultCopy, ...] = ()
    reads: frozenset[str] = frozenset()
    """Names of the tasks and the model inputs that its kernels read."""
    calls: tuple[CallMemory, ...] = ()

    def inner_bytes(self, items: int, num_made: int, dead: Sequence[tuple[str, int]]) -> int:
        """Return what it holds at most beyond all that it reads and makes.

        Parameters
        ----------
        num_made
            Bytes of what it makes.
        dead
            (maker, bytes) of what it is the last to read.
        """
        read_sizes = [(name, size) for name, size in dead if name in self.reads]
        return max(
            (
                call.inner_bytes * items
                - (0 if call.has_made else num_made)
                - sum(size for name, size in read_sizes if name not in call.needed)
                for call in self.calls
            ),
            default=0,
        )


def task_memories(compiled: CompiledNetwork, cluster: Cluster) -> dict[str, TaskMemory]:
    """Return what the tasks of a network hold, the most of all kinds of devices, by name.

    Parameters
    ----------
    compiled
        What `compiled_alone` makes of a network.
    """
    memories: dict[str, TaskMemory] = {}
    for under_test in find_devices_under_test(compiled.graph, cluster):
        calls = compiled.calls(cluster, under_test.placement)
        for name, memory in memories_of_calls(calls).items():
            own = memories.setdefault(name, memory)
            if _size(own) < _size(memory):
                memories[name] = memory
    return memories


def _size(memory: TaskMemory) -> int:
    weights = sum(num_bytes for _, num_bytes in memory.weights)
    inner = max((each.inner_bytes for each in memory.calls), default=0)
    return weights + memory.scratch_bytes + inner


def memories_of_calls(calls: KernelCalls) -> dict[str, TaskMemory]:
    """Return what each task holds while its kernels run one after the other."""
    return _Walk(calls).found()


class _Walk:
    """One look at all kernel calls of a network."""

    def __init__(self, calls: KernelCalls) -> None:
        self._calls = calls
        self._readers: dict[int, set[str]] = defaultdict(set)
        self._maker: dict[int, str] = {}
        made_by: dict[int, KernelCall] = {}
        for call in calls.calls:
            for value in self._reads(call):
                self._readers[value].add(call.task)
            for value in call.writes:
                self._maker[value] = call.task
                made_by[value] = call
        for value, description in enumerate(calls.values):
            if description.input_name is not None:
                self._maker[value] = description.input_name
        outputs = {root(calls, value) for value in calls.outputs}
        self._leaves = {
            value: value in outputs or self._readers[value] != {call.task}
            for value, call in made_by.items()
        }
        """Of what is made, whether anything but its task reads it."""
        self._is_copy = {
            value: value not in outputs and any(map(self._is_result_of(call), self._reads(call)))
            for value, call in made_by.items()
        }
        """Whether it is made of what its task makes for others."""

    def found(self) -> dict[str, TaskMemory]:
        """What each task holds."""
        calls_of: dict[str, list[KernelCall]] = defaultdict(list)
        scratch: Counter[str] = Counter()
        weights: dict[str, dict[str, int]] = defaultdict(dict)
        copies: dict[str, list[ResultCopy]] = defaultdict(list)
        for call in self._calls.calls:
            calls_of[self._place(call)].append(call)
            scratch[call.task] = max(scratch[call.task], call.workspace.caller_bytes)
            weights[call.task] |= self._weights(call)
            for value in call.writes:
                if self._is_copy[value] and self._leaves[value] and not self._inner_task(value):
                    copies[call.task].append(self._copy(value, call))
        return {
            task: replace(
                self._of_task(task, calls_of[task]),
                scratch_bytes=scratch[task],
                weights=tuple(weights[task].items()),
                copies=tuple(copies[task]),
            )
            for task in dict.fromkeys((*calls_of, *scratch))
        }

    def _copy(self, value: int, call: KernelCall) -> ResultCopy:
        readers = self._readers[value]
        others = {
            reader for other in self._reads(call) for reader in self._readers[other] - {call.task}
        }
        num_bytes = aligned(self._calls.values[value].bytes)
        return ResultCopy(num_bytes, frozenset(readers), frozenset(readers - others))

    def _reads(self, call: KernelCall) -> list[int]:
        """What has bytes of its own, each once; no weights."""
        values = self._calls.values
        roots = dict.fromkeys(root(self._calls, read) for read in call.reads)
        return [value for value in roots if values[value].constant is None]

    def _weights(self, call: KernelCall) -> dict[str, int]:
        """Bytes of the weights that a call reads, by content: a program has equal ones once."""
        read = [self._calls.values[root(self._calls, value)] for value in call.reads]
        constants = [(value, value.constant) for value in read]
        return {
            value.digest.hex(): aligned(constant.nbytes)
            for value, constant in constants
            if constant is not None
        }

    def _is_result_of(self, call: KernelCall) -> Callable[[int], bool]:
        return lambda value: self._maker.get(value) == call.task and self._leaves[value]

    def _inner_task(self, value: int) -> str | None:
        """The task in which a value comes and goes; None: it is a result, or several read it."""
        readers = self._readers[value]
        is_inner = value in self._leaves and len(readers) == 1
        is_inner &= not self._leaves.get(value, True) or self._is_copy.get(value, False)
        return next(iter(readers)) if is_inner else None

    def _place(self, call: KernelCall) -> str:
        """The task in whose step a call is made."""
        places = {self._inner_task(value) for value in call.writes}
        (place,) = places if len(places) == 1 else {None}
        return place or call.task

    def _of_task(self, task: str, calls: Sequence[KernelCall]) -> TaskMemory:
        order = self._late(calls)
        last = {value: at for at, call in enumerate(order) for value in self._reads(call)}
        outer = {
            value: self._maker[value]
            for value in last
            if value in self._maker and self._inner_task(value) != task
        }
        call_memories: list[CallMemory] = []
        inner: dict[int, int] = {}
        """Last call that reads what is there."""
        has_made = False
        for at, call in enumerate(order):
            for value in call.writes:
                if self._inner_task(value) == task:
                    inner[value] = last.get(value, at)
                else:
                    has_made = True
            num_bytes = sum(aligned(self._calls.values[value].bytes) for value in inner)
            needed = frozenset(name for value, name in outer.items() if last[value] >= at)
            call_memories.append(CallMemory(num_bytes, needed, has_made))
            inner = {value: end for value, end in inner.items() if end > at}
        return TaskMemory(reads=frozenset(outer.values()), calls=tuple(call_memories))

    def _late(self, calls: Sequence[KernelCall]) -> list[KernelCall]:
        """The calls, what only reads inputs of the model right before who reads what it makes."""
        order = list(calls)
        for call in calls:
            reads = self._reads(call)
            if any(self._calls.values[value].input_name is None for value in reads):
                continue
            at = order.index(call)
            written = set(call.writes)
            later = range(at + 1, len(order))
            first = next((n for n in later if written & set(self._reads(order[n]))), None)
            if first is not None:
                order.insert(first, call)
                del order[at]
        return order


def inner_bytes_of(graph: TaskGraph, plan: Plan, memories: Mapping[str, TaskMemory]) -> InnerBytes:
    """Return what runs hold beside their tensors, for `live_peaks`."""

    def maker(tensor: int) -> str:
        producer = graph.tensors[tensor].producer
        name = graph.tensors[tensor].name if producer is None else graph.tasks[producer].name
        return plain_name(name)

    def inner(index: int, begun: Sequence[LiveValue], done: Sequence[LiveValue]) -> int:
        step = plan.steps[index]
        assert isinstance(step, Run)
        memory = memories.get(plain_name(graph.tasks[step.task].name))
        if memory is None:
            return 0
        items = graph.batch_size(step.task, len(step.items))
        dead = [(maker(each.tensor), each.num_bytes) for each in done if each.tensor >= 0]
        return memory.inner_bytes(items, sum(each.num_bytes for each in begun), dead)

    return inner
