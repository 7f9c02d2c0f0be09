"""A network cut into lanes, as a task graph for one microbatch: what all transforms work on.

DistIR (arXiv 2111.05426), section 4.1, cuts a sequential program by data, tensor and pipeline
parallelism, in that order of nesting. Here tensor parallelism makes tasks: each lane's part of an
op is a task of its own, and so is what lanes exchange (a collective). Data parallelism and
microbatches are items of a plan, and stages are devices, so that neither is in the graph.

A `ShardedGraph` is made by `transforms.mlp` or from a Relay module, rewritten by
`transforms.replicas`, `transforms.zero` and `transforms.recompute`, and becomes a plan by
`transforms.assemble`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from heteroplace.errors import ShardingError
from heteroplace.model.collectives import collective_kind
from heteroplace.model.graph import TaskGraph
from heteroplace.terminal import listed


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """An input of the unsharded network, and the inputs that stand for it in the sharded one."""

    name: str
    tensors: tuple[int, ...]
    """One, which all lanes read, or one for each lane, in the order of the lanes."""
    axis: int | None = None
    """The axis that the lanes cut, in parts as long as the tensors are; None: each has the whole
    value."""
    blocks: int = 1
    """Equal blocks along the axis, of each of which every lane has its part: 3 where the weights of
    queries, keys and values are one tensor."""


@dataclass(frozen=True)
class ShardedGraph:
    """A task graph for one microbatch and some lanes, and where each task belongs.

    Invariants, checked on construction: a sequence has an entry for each task; a task without a
    lane is a collective over all lanes; forward tasks read neither from a later layer nor what is
    made backward. That backward tasks read from no earlier stage is checked by `stages`.

    Tasks all of whose outputs are shared, and which do not add to them, run once for all items
    (`once`): updates of weights, collectives over replicas. The others run for each item.
    """

    graph: TaskGraph
    num_lanes: int
    """T of DistIR."""
    num_layers: int
    """Layers that `cut_stages` cuts. A task of this layer or a later one (the loss) belongs to the
    last stage."""
    layer: tuple[int, ...]
    """For each task the layer it belongs to; backward tasks have that of their forward ones."""
    lane: tuple[int | None, ...]
    """For each task its lane; None: all lanes, which is a collective. A collective that has a lane
    is one over the replicas."""
    backward: tuple[bool, ...]
    """For each task whether it belongs to the backward pass of a microbatch."""
    replica: tuple[int | None, ...] = ()
    """For each task the only replica that runs it, of a collective over replicas its root; None:
    each replica, or the first as root. Empty: None for all."""
    whole: tuple[WholeTensor, ...] = ()
    """How the inputs of the unsharded network became those of the graph; empty: not known."""

    def __post_init__(self) -> None:
        if not self.replica:
            object.__setattr__(self, "replica", (None,) * len(self.graph.tasks))
        faults = list(_faults(self))
        if faults:
            raise ShardingError(f"sharded graph {self.graph.name!r}: {listed(faults, '; ')}")

    @cached_property
    def once(self) -> tuple[bool, ...]:
        """For each task whether one run of it stands for all items."""
        graph = self.graph
        return tuple(
            bool(outputs)
            and not task.adds
            and all(graph.tensors[tensor].shared for tensor in outputs)
            for task, outputs in zip(graph.tasks, graph.task_outputs, strict=True)
        )

    @cached_property
    def is_update(self) -> tuple[bool, ...]:
        """For each task whether it runs once, after what all items have added up."""
        flags: list[bool] = []
        for task in range(len(self.graph.tasks)):
            before = self.graph.predecessors[task]
            late = any(flags[other] or self.graph.tasks[other].adds for other in before)
            flags.append(self.once[task] and late)
        return tuple(flags)

    @cached_property
    def is_training(self) -> bool:
        """Whether it has a backward pass."""
        return any(self.backward)

    def is_over_lanes(self, task: int) -> bool:
        """Say whether a task is a collective over all lanes."""
        return self.lane[task] is None

    def is_over_replicas(self, task: int) -> bool:
        """Say whether a task is a collective over all replicas of its lane."""
        is_collective = collective_kind(self.graph.tasks[task].op) is not None
        return is_collective and self.lane[task] is not None

    def stages(self, cuts: int | Sequence[int]) -> tuple[int, ...]:
        """Return the stage of each task; `cuts` as in `cut_stages`.

        Raises
        ------
        ShardingError
            As `cut_stages`, or a backward task reads what another one makes at an earlier stage.
        """
        of_layer = cut_stages(self.num_layers, cuts)
        last = len(of_layer) - 1
        stages = tuple(of_layer[min(layer, last)] for layer in self.layer)
        tasks = self.graph.tasks
        for task in range(len(tasks)):
            for other in self.graph.predecessors[task]:
                is_back = self.backward[task] and self.backward[other]
                if is_back and not self.once[task] and stages[other] < stages[task]:
                    raise ShardingError(
                        f"sharded graph {self.graph.name!r}: backward task {tasks[task].name!r} at "
                        f"stage {stages[task]} reads from {tasks[other].name!r} at stage "
                        f"{stages[other]}, whose backward pass comes later; "
                        f"cut the stages elsewhere"
                    )
        return stages


def cut_stages(num_layers: int, cuts: int | Sequence[int]) -> tuple[int, ...]:
    """Return the stage of each layer.

    >>> cut_stages(6, 3), cut_stages(5, 2), cut_stages(5, (1, 4))
    ((0, 0, 1, 1, 2, 2), (0, 0, 1, 1, 1), (0, 1, 1, 1, 2))

    Parameters
    ----------
    cuts
        The number of stages, whose numbers of layers then differ by at most one, or the first
        layer of each stage but the first one.

    Raises
    ------
    ShardingError
        A stage would have no layer.
    """
    if isinstance(cuts, int):
        if not 1 <= cuts <= num_layers:
            raise ShardingError(
                f"{num_layers} layers cannot be cut into {cuts} stages; expected 1 to {num_layers}"
            )
        # Stage s begins with layer s * L // P, rounded down.
        cuts = [stage * num_layers // cuts for stage in range(1, cuts)]
    starts = [0, *cuts, num_layers]
    if any(first >= after for first, after in pairwise(starts)):
        raise ShardingError(
            f"stages that begin with layers {', '.join(map(str, cuts))}: expected ascending "
            f"numbers from 1 to {num_layers - 1}, for {num_layers} layers"
        )
    sizes = (after - first for first, after in pairwise(starts))
    return tuple(stage for stage, size in enumerate(sizes) for _ in range(size))


def _faults(sharded: ShardedGraph) -> Iterator[str]:
    graph = sharded.graph
    if sharded.num_lanes < 1 or sharded.num_layers < 1:
        yield f"{sharded.num_lanes} lanes and {sharded.num_layers} layers; expected at least 1"
    lengths = {
        name: len(getattr(sharded, name)) for name in ("layer", "lane", "backward", "replica")
    }
    wrong = [f"{name} has {length} entries" for name, length in lengths.items()
             if length != len(graph.tasks)]  # fmt: skip
    if wrong:
        yield f"{', '.join(wrong)}; expected {len(graph.tasks)}, one for each task"
        return
    for task in range(len(graph.tasks)):
        yield from _task_faults(sharded, task)
    for whole in sharded.whole:
        unknown = [tensor for tensor in whole.tensors if tensor not in graph.inputs]
        if unknown or len(whole.tensors) not in (1, sharded.num_lanes):
            yield (
                f"{whole.name!r} stands for tensors {whole.tensors}; expected ids of inputs, one "
                f"for all lanes or one for each of {sharded.num_lanes}"
            )
        elif whole.axis is not None:
            yield from _part_faults(sharded, whole, whole.axis)


def _part_faults(sharded: ShardedGraph, whole: WholeTensor, axis: int) -> Iterator[str]:
    for tensor in whole.tensors:
        part = sharded.graph.tensors[tensor]
        if axis not in range(len(part.shape)) or part.shape[axis] % whole.blocks:
            yield (
                f"part {part.name!r} of {whole.name!r} has shape "
                f"{list(part.shape)}; expected an axis {axis} of {whole.blocks} equal blocks"
            )


def _task_faults(sharded: ShardedGraph, task: int) -> Iterator[str]:
    graph, lane, layer = sharded.graph, sharded.lane[task], sharded.layer[task]
    name = graph.tasks[task].name
    if layer < 0:
        yield f"task {name!r} has layer {layer}; expected 0 or more"
    if lane is not None and lane not in range(sharded.num_lanes):
        yield f"task {name!r} has lane {lane}; there are {sharded.num_lanes}"
    if lane is None and collective_kind(graph.tasks[task].op) is None:
        yield f"task {name!r} of op {graph.tasks[task].op!r} has no lane, and is no collective"
    if sharded.once[task]:
        return
    for other in graph.predecessors[task]:
        if sharded.once[other]:
            continue
        before = graph.tasks[other].name
        if sharded.backward[other] and not sharded.backward[task]:
            yield f"forward task {name!r} reads from backward task {before!r}"
        elif not sharded.backward[task] and sharded.layer[other] > layer:
            yield f"forward task {name!r} reads from {before!r} of a later layer"
