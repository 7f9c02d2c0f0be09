"""A sharded graph cut into stages -> what each stage does, as columns over its tasks.

The whole simulation of DistIR (arXiv 2111.05426, section 4) walks over every op of every
microbatch, lane and replica. What a stage does for a microbatch is the same each time, so the walk
is cut in two: `StageLayout` holds once, for each stage and pass, which tasks run, where lanes wait
for each other, what is copied to which stage, and when each value begins and ends. Sizes and times
are put in later as arrays (`stage_times.py`), since they change with the rows of a microbatch and
the layout does not.

What cannot be told in this way (what runs once per replica and is not an update, as with ZeRO) is
refused by name, and has to be simulated whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heteroplace.errors import ShardingError
from heteroplace.model.collectives import collective_kind
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph

IntArray = NDArray[np.int64]

FORWARD, BACKWARD, UPDATE = PASSES = range(3)
"""A pass of a stage: of one microbatch, or once at the end."""


class CopyGroup(NamedTuple):
    """Copies that a stage sends to one other, one after another in each lane, behind a pass."""

    src: int
    is_backward: bool
    number: int
    """Which of those that the stage sends behind the pass it is."""
    dst: int


class Event(NamedTuple):
    """A value that begins or ends in the memory of a lane of a stage."""

    stage: int
    lane: int
    phase: int
    """One of PASSES, or len(PASSES) + position of a `CopyGroup`."""
    position: int
    """Id of the task; 0 for a copy."""
    ends: int
    """0: it begins before the task, 1: it ends after it."""
    tensor: int
    is_first: int
    """1: only the first microbatch begins it; the others add to it."""


class _Use(NamedTuple):
    stage: int
    phase: int
    task: int


class StageLayout:
    """What the stages of a sharded graph do.

    Parameters
    ----------
    stages
        The stage of each task, ascending from 0 (`ShardedGraph.stages`).

    Raises
    ------
    ShardingError
        The stages are not the same for each microbatch and replica; the text says why.
    """

    def __init__(self, sharded: ShardedGraph, stages: Sequence[int]) -> None:
        self.sharded = sharded
        self.num_stages = max(stages, default=0) + 1
        self.num_lanes = sharded.num_lanes
        _check(sharded)
        graph = sharded.graph
        self.stage_of = np.array(stages, dtype=np.int64)
        self.lane_of = np.array([-1 if lane is None else lane for lane in sharded.lane])
        self.pass_of = np.array(
            [
                UPDATE if is_update else BACKWARD if is_backward else FORWARD
                for is_update, is_backward in zip(sharded.is_update, sharded.backward, strict=True)
            ]
        )
        self.is_collective = np.array(
            [collective_kind(task.op) is not None for task in graph.tasks], dtype=np.bool_
        )
        self._lay_out_time()
        self._lay_out_collectives()
        self.groups, self.copied = self._find_copies()
        self._lay_out_memory()

    def _lay_out_time(self) -> None:
        """Cut each block at collectives over lanes, where lanes wait for each other."""
        block = self.stage_of * len(PASSES) + self.pass_of
        tasks = np.arange(len(block))
        self.order = np.lexsort((tasks, block))
        """[num_tasks] of task ids, by block (stage, then pass), then id."""
        ordered = block[self.order]
        over_lanes = self.lane_of[self.order] < 0
        starts = np.ones(len(ordered), dtype=np.bool_)
        starts[1:] = (ordered[1:] != ordered[:-1]) | over_lanes[:-1]
        self.segment = np.cumsum(starts) - 1
        """[num_tasks] by position in `order`: tasks of one segment end with one collective, or with
        the block."""
        first = np.flatnonzero(starts)
        self.block_of_segment = ordered[first]
        ends = np.append(first[1:], len(ordered)) - 1
        is_tail = np.append(ordered[ends[:-1]] != ordered[ends[:-1] + 1], [True] * bool(len(ends)))
        self.is_tail = is_tail & ~over_lanes[ends]
        """[num_segments]: the last of its block, and no collective ends it."""

    def _lay_out_collectives(self) -> None:
        """List the collectives, their ops, and the tensors that they read and make."""
        graph = self.sharded.graph
        self.collectives = np.flatnonzero(self.is_collective)
        """Task ids."""
        ids = self.collectives.tolist()
        self.op_names = tuple(dict.fromkeys(graph.tasks[task].op for task in ids))
        numbers = {op: number for number, op in enumerate(self.op_names)}
        self.collective_ops = np.array([numbers[graph.tasks[task].op] for task in ids], dtype=int)
        """For each collective a position in `op_names`."""
        touched = [(*graph.task_inputs[task], *graph.task_outputs[task]) for task in ids]
        self.exchanged = np.array([tensor for each in touched for tensor in each], dtype=int)
        """Their tensors, those of collective c from `exchanged_starts[c]` on."""
        self.exchanged_starts = np.cumsum([0, *map(len, touched)])[:-1]

    def _find_copies(self) -> tuple[list[CopyGroup], list[list[tuple[int, int]]]]:
        """The groups in the order in which a stage has them, and (tensor, lane) of each."""
        graph = self.sharded.graph
        groups: list[CopyGroup] = []
        copied: list[list[tuple[int, int]]] = []
        for task in self.order.tolist():
            home, phase = int(self.stage_of[task]), int(self.pass_of[task])
            for tensor in graph.task_outputs[task]:
                readers: dict[int, set[int]] = {}
                for reader in graph.tensors[tensor].consumers:
                    lanes = self._reads_in(reader, tensor)
                    readers.setdefault(int(self.stage_of[reader]), set()).update(lanes)
                self._check_readers(tensor, readers, home, phase)
                for dst in sorted(readers.keys() - {home}):
                    of_pass = (home, phase == BACKWARD)
                    is_next = groups and groups[-1][:2] == of_pass
                    if not (is_next and groups[-1].dst == dst):
                        number = groups[-1].number + 1 if is_next else 0
                        groups.append(CopyGroup(*of_pass, number, dst))
                        copied.append([])
                    copied[-1] += [(tensor, lane) for lane in sorted(readers[dst])]
        return groups, copied

    def _check_readers(
        self, tensor: int, readers: Mapping[int, set[int]], home: int, phase: int
    ) -> None:
        """Refuse what goes to other lanes without a collective, or to other stages at the end."""
        tensor_record = self.sharded.graph.tensors[tensor]
        if any(not lanes <= set(self._made_in(tensor)) for lanes in readers.values()):
            raise ShardingError(f"tensor {tensor_record.name!r} is copied from one lane to another")
        if readers.keys() - {home} and (phase == UPDATE or tensor_record.shared):
            raise ShardingError(
                f"tensor {tensor_record.name!r} is shared, and goes to other stages"
            )

    def _lanes_of(self, task: int) -> Sequence[int]:
        lane = self.sharded.lane[task]
        return range(self.num_lanes) if lane is None else (lane,)

    def _reads_in(self, task: int, tensor: int) -> Sequence[int]:
        """The lanes in which a task reads a tensor."""
        lane = self.sharded.lane[task]
        if lane is not None:
            return (lane,)
        inputs = self.sharded.graph.task_inputs[task]
        if len(inputs) == 1:
            return range(self.num_lanes)
        return (inputs.index(tensor),)

    def _made_in(self, tensor: int) -> Sequence[int]:
        """The lanes in whose memories a tensor that a task makes begins."""
        tensor_record = self.sharded.graph.tensors[tensor]
        assert tensor_record.producer is not None
        lane = self.sharded.lane[tensor_record.producer]
        if lane is not None:
            return (lane,)
        kind = collective_kind(self.sharded.graph.tasks[tensor_record.producer].op)
        assert kind is not None
        return (tensor_record.index,) if kind.makes == "each" else range(self.num_lanes)

    def _lay_out_memory(self) -> None:
        """List where each value begins and ends."""
        graph = self.sharded.graph
        events: list[Event] = []
        far: dict[tuple[int, int], list[int]] = {}
        for number, copied in enumerate(self.copied):
            for tensor, lane in copied:
                far.setdefault((tensor, lane), []).append(number)
        for tensor_id, tensor_record in enumerate(graph.tensors):
            if tensor_record.producer is not None and tensor_id not in graph.state_of:
                for lane in self._made_in(tensor_id):
                    numbers = far.get((tensor_id, lane), [])
                    events.extend(self._events_of(tensor_id, lane, numbers))
        events.sort()
        self.events = np.array(events, dtype=np.int64).reshape(-1, len(Event._fields))
        self.states = self._states()
        self.named_weights = sorted(
            {
                (int(self.stage_of[task_id]), lane, *weight)
                for task_id, task in enumerate(graph.tasks)
                for weight in task.weights
                for lane in self._lanes_of(task_id)
            }
        )
        """(stage, lane, name, bytes), each once."""

    def _events_of(self, tensor: int, lane: int, copies: Sequence[int]) -> Iterator[Event]:
        """Where a tensor that is made in a lane begins and ends, there and where it is copied."""
        graph = self.sharded.graph
        tensor_record = graph.tensors[tensor]
        assert tensor_record.producer is not None
        home, phase = (
            int(self.stage_of[tensor_record.producer]),
            int(self.pass_of[tensor_record.producer]),
        )
        adds = graph.tasks[tensor_record.producer].adds and tensor_record.shared
        uses = self._uses(tensor, lane)
        yield Event(home, lane, phase, tensor_record.producer, 0, tensor, int(adds))
        if tensor not in graph.outputs:
            last = max((use for use in uses if use.stage == home),
                       default=_Use(home, phase, tensor_record.producer))  # fmt: skip
            if adds and last.phase != UPDATE:
                raise ShardingError(
                    f"what {tensor_record.name!r} adds up to is not read at the end"
                )
            if copies and last.phase <= phase:
                yield Event(home, lane, len(PASSES) + copies[-1], 0, 1, tensor, 0)
            else:
                yield Event(home, lane, last.phase, last.task, 1, tensor, 0)
        for number in copies:
            stage = self.groups[number].dst
            last = max(use for use in uses if use.stage == stage)
            yield Event(stage, lane, len(PASSES) + number, 0, 0, tensor, 0)
            yield Event(stage, lane, last.phase, last.task, 1, tensor, 0)

    def _uses(self, tensor: int, lane: int) -> list[_Use]:
        """The reads of a tensor in a lane."""
        readers = self.sharded.graph.tensors[tensor].consumers
        return [
            _Use(int(self.stage_of[reader]), int(self.pass_of[reader]), reader)
            for reader in readers
            if lane in self._reads_in(reader, tensor)
        ]

    def _states(self) -> IntArray:
        """(stage, lane, tensor) of each model input that an update replaces, [num_updates, 3].

        One that other stages read too is refused.
        """
        graph = self.sharded.graph
        rows = []
        for state, update in graph.updates:
            producer = graph.tensors[update].producer
            assert producer is not None
            home = int(self.stage_of[producer])
            far = {int(self.stage_of[reader]) for reader in graph.tensors[state].consumers} - {home}
            if far:  # it is copied there for each step, which no pass of a stage does
                raise ShardingError(
                    f"state {graph.tensors[state].name!r} is updated in stage {home} and read in "
                    f"stage {min(far)} too"
                )
            for lane in self._made_in(update):
                rows.append((int(self.stage_of[producer]), lane, state))
        return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _check(sharded: ShardedGraph) -> None:
    """Refuse what differs from replica to replica, or runs once and is no update."""
    graph = sharded.graph
    for task_id, task in enumerate(graph.tasks):
        kind = collective_kind(task.op)
        if sharded.replica[task_id] is not None:
            raise ShardingError(f"task {task.name!r} belongs to one replica")
        if sharded.once[task_id] and not sharded.is_update[task_id]:
            raise ShardingError(f"task {task.name!r} runs once, and is no update")
        if kind is None:
            continue
        if kind.reads == "root" or kind.makes == "root":
            raise ShardingError(f"collective {task.name!r} has a root")
        if sharded.is_over_replicas(task_id) and not sharded.is_update[task_id]:
            raise ShardingError(f"collective {task.name!r} over replicas is no update")
        if sharded.is_over_lanes(task_id) and sharded.is_update[task_id]:
            raise ShardingError(f"collective {task.name!r} over lanes is an update")
