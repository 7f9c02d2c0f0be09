"""Memories of a cluster -> programs of copies only, for the executor that runs plans.

What is costed is what is run: the copies go through the executor's own copy queues, between its
own arenas, and are awaited as in a plan. Between hosts messages take their place (`parts/hosts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heteroplace.lower.program import Program, ProgramTensor, Queue, Space
from heteroplace.measure.transfers.copy_writer import REST_BYTES, CopyWriter, Wait
from heteroplace.model.cluster import Cluster
from heteroplace.native.compiled_file import DL_DEVICE_TYPES
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.run.tvm_library import library_if_needed

NUM_WARM_TRIPS = 4
"""Trips of each pair that do not count: the first ones wake workers that have slept for long, maybe
on a core that another program has had meanwhile."""
_CPU = DL_DEVICE_TYPES["cpu"]


@dataclass(frozen=True)
class Trip:
    """The steps of one trip there and back: `low` hands over to `high`, and it back to `low`."""

    low: int
    high: int
    bytes: int
    low_done: int
    """Step after which `low` has the data to give."""
    there: int
    """The copy to `high`."""
    high_begin: int
    """First and last step of `high` between the copies."""
    high_done: int
    back: int
    low_begin: int
    """First step of `low` that needs the copy back."""


@dataclass(frozen=True)
class Phase:
    """Copies over one link, or over two at once."""

    links: tuple[int, ...]
    first: tuple[int, ...]
    """For each of `links` the step of its first copy."""
    last: tuple[int, ...]


def load_program(program: Program) -> NativeExecutor:
    """Return an executor of a program without kernels."""
    text = program.to_text()
    return NativeExecutor(library_if_needed("", text), "", text)


def round_trips(cluster: Cluster, sizes: Sequence[int]) -> tuple[Program, tuple[Trip, ...]]:
    """Return one chain of trips between all pairs of memories, with all sizes.

    Each pair starts with some short trips that are not returned.
    """
    largest = page_aligned(max(sizes))
    writer = CopyWriter(cluster, [2 * largest + 2 * REST_BYTES] * len(cluster.memories))
    trips = []
    for low in range(len(cluster.memories)):
        for high in range(low + 1, len(cluster.memories)):
            steps = []
            for size in (*([sizes[0]] * NUM_WARM_TRIPS), *sizes):
                low_begin, low_done = writer.produce(low, size, largest)
                there = writer.carry(low, high, (largest, 0), size)
                high_begin, high_done = writer.produce(high, size, largest)
                back = writer.carry(high, low, (largest, 0), size)
                steps.append((low_begin, low_done, there, high_begin, high_done, back))
            end, _ = writer.produce(low, sizes[0], largest)
            begins = [*(low_begin for low_begin, *_ in steps[1:]), end]
            counted = list(zip(steps, begins, strict=True))[NUM_WARM_TRIPS:]
            for size, ((_, done, there, first, last, back), begin) in zip(
                sizes, counted, strict=True
            ):
                trips.append(Trip(low, high, size, done, there, first, last, back, begin))
    return writer.finish(), tuple(trips)


def contention(
    cluster: Cluster,
    links: Sequence[tuple[int, int]],
    counts: Sequence[Sequence[int]],
    groups: Sequence[Sequence[int]],
    num_bytes: int,
) -> tuple[Program, tuple[Phase, ...]]:
    """Return a program of phases; in each the links of one group copy at once.

    Parameters
    ----------
    links : sequence of (int, int)
        Memories from and to.
    counts : sequence of sequence of int
        For each group and each of its links how many copies it makes, one after the other.
    groups : sequence of sequence of int
        Positions in `links`.
    num_bytes : int
        Size of each copy. Every link has bytes of its own in both of its memories.
    """
    stride = page_aligned(num_bytes)
    users = [[i for i, ends in enumerate(links) if m in ends] for m in range(len(cluster.memories))]
    writer = CopyWriter(cluster, [stride * len(copies) for copies in users])
    phases = []
    awaited: tuple[Wait, ...] = ()
    for group, times in zip(groups, counts, strict=True):
        first, last, ends = [], [], []
        for link, count in zip(group, times, strict=True):
            src, dst = links[link]
            places = (users[src].index(link) * stride, users[dst].index(link) * stride)
            queue = writer.copy_queue(src, dst)
            tensors = (
                writer.tensor(src, places[0], num_bytes),
                writer.tensor(dst, places[1], num_bytes),
            )
            steps = [
                writer.copy(queue, tensors, awaited if index == 0 else ()) for index in range(count)
            ]
            first.append(steps[0])
            last.append(steps[-1])
            ends.append(writer.finished(queue))
        awaited = tuple(ends)
        phases.append(Phase(tuple(group), tuple(first), tuple(last)))
    return writer.finish(), tuple(phases)


def ports(cluster: Cluster, memory: int, sizes: Sequence[int]) -> Program:
    """Return a program that does nothing, with inputs "in<bytes>" and outputs "out<bytes>"."""
    writer = CopyWriter(cluster, [max(sizes) if m == memory else 0 for m in range(memory + 1)])
    writer.produce_nothing(memory)
    program = writer.finish()
    first = len(program.tensors)
    tensors = tuple(ProgramTensor(memory, "arena", 0, "uint8", (size,)) for size in sizes)
    return replace(
        program,
        tensors=(*program.tensors, *tensors),
        inputs=tuple((f"in{size}", first + index) for index, size in enumerate(sizes)),
        outputs=tuple((f"out{size}", first + index) for index, size in enumerate(sizes)),
    )


def two_cores(cores: tuple[int, int]) -> Program:
    """Return a program of two idle workers, on two cores."""
    spaces = (Space("ram", (_CPU, 0), 0),)
    queues = tuple(Queue(f"core{core}", "cpu", (_CPU, 0), 0, core) for core in cores)
    return Program(spaces, queues, (), (), (), (), ())


def page_aligned(num_bytes: int) -> int:
    """Return what `num_bytes` take of an arena, on pages of their own."""
    return -(-num_bytes // 4096) * 4096
