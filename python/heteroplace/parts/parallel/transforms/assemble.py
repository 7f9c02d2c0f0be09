"""A sharded graph + degrees + schedule -> the plan of one step or inference of a whole batch.

DistIR (arXiv 2111.05426), section 4.1: data parallelism outside, then tensor and pipeline
parallelism. The plan has an item for each microbatch of each replica. In each time slot of the
schedule it has the computations of all stages, replicas in step, then the copies from stage to
stage, ascending by replica and stage; behind the slot of a stage's last backward pass its weights
are updated, unless that is asked for earlier. For degrees 1/1/1/1 it is the program as it stands in
the graph.

    slot 1    run forward of stage 0, microbatch 1 @ every lane; forward of stage 1, microbatch 0
              copy what stage 0 has made, lane by lane
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from heteroplace.errors import ShardingError
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.plan import Collective, Copy, Plan, Run, Step
from heteroplace.parts.parallel.transforms.degrees import Degrees, rank_devices
from heteroplace.parts.parallel.transforms.schedules import Work, schedule_slots
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.parts.parallel.transforms.update_order import with_updates


def assemble(
    sharded: ShardedGraph,
    cluster: Cluster,
    degrees: Degrees,
    schedule: str = "1f1b",
    devices: Sequence[int] | None = None,
    cuts: Sequence[int] | None = None,
    sums_at_end: Collection[str] = (),
    early_updates: Collection[int] = (),
    holds_updates: bool = False,
) -> Plan:
    """Return the plan of a sharded graph.

    Parameters
    ----------
    schedule
        A name in `SCHEDULES`; graphs without a backward pass run their forward passes in its order.
    devices
        The device of each rank; by default as `rank_devices` chooses.
    cuts
        The first layer of each stage but the first one; by default equal stages.
    sums_at_end
        Names of tasks that add up over microbatches, and run as one batch of all of them, behind
        the last backward pass, instead of once for each. The devices must take batches of that
        size.
    early_updates
        In these stages an update comes as soon as what it reads is complete, within the last
        backward pass, instead of behind the copies of that slot: gradients are not kept and are in
        caches still, but the stage before waits longer for the last one.
    holds_updates
        With several replicas, whether an update comes only when what the next one reads has been
        made: the others have theirs by then, so that nobody waits, but one more gradient is kept.

    Raises
    ------
    ShardingError
        Graph, degrees, devices and schedule do not belong together.
    ClusterError
        No link leads from where a value is made to where it is read.
    """
    stage = sharded.stages(degrees.pipeline if cuts is None else cuts)
    num_stages = 1 + (len(cuts) if cuts is not None else degrees.pipeline - 1)
    ranks = rank_devices(cluster, degrees, devices)
    _check(sharded, cluster, degrees, ranks, num_stages)
    slots = schedule_slots(schedule, num_stages, degrees.micro_batches, sharded.is_training)
    when = early_updates, holds_updates and degrees.data > 1
    assembler = _Assembler(sharded, cluster, degrees, ranks, stage, sums_at_end, *when)
    for slot in slots:
        assembler.run_slot(slot)
    assembler.send_sums()
    origin = f"degrees {degrees}, schedule {schedule}"
    graph_digest, cluster_digest = sharded.graph.digest(), cluster.digest()
    steps = tuple(assembler.steps)
    return Plan(graph_digest, cluster_digest, steps, origin, items=degrees.num_items)


def _check(
    sharded: ShardedGraph,
    cluster: Cluster,
    degrees: Degrees,
    ranks: Sequence[int],
    num_stages: int,
) -> None:
    """Raise ShardingError unless all these belong together."""
    graph = sharded.graph
    faults = []
    if num_stages != degrees.pipeline:
        faults.append(f"{num_stages} stages are cut for {degrees.pipeline}")
    if sharded.num_lanes != degrees.tensor:
        faults.append(f"the graph has {sharded.num_lanes} lanes for {degrees.tensor}")
    names = [cluster.devices[device].name for device in ranks]
    if len(set(ranks)) < len(ranks):
        faults.append(f"a device is given to two ranks: {', '.join(names)}")
    memories = {cluster.devices[device].memory for device in ranks}
    if degrees.data > 1 and sharded.is_training and len(memories) < len(ranks):
        faults.append(
            f"replicas add up gradients in memories of their own, and {', '.join(names)} have "
            f"{len(memories)} for {len(ranks)} ranks"
        )
    for task_id, task in enumerate(graph.tasks):
        is_exchange = sharded.is_over_replicas(task_id)
        if is_exchange and degrees.data == 1:
            faults.append(f"task {task.name!r} is a collective over one replica")
        elif degrees.data > 1 and sharded.is_update[task_id] and not is_exchange:
            own = [graph.tasks[p].name for p in graph.predecessors[task_id] if graph.tasks[p].adds]
            if own:
                faults.append(
                    f"task {task.name!r} reads what {', '.join(own)} of one replica add up to; "
                    f"`sum_over_replicas` or `shard_states` let it read the sum of all"
                )
    if faults:
        raise ShardingError(f"{graph.name!r} with degrees {degrees}: {'; '.join(faults)}")


class _Assembler:
    """Writes the steps, remembering what is where."""

    def __init__(
        self,
        sharded: ShardedGraph,
        cluster: Cluster,
        degrees: Degrees,
        ranks: Sequence[int],
        stage: Sequence[int],
        sums_at_end: Collection[str],
        early_updates: Collection[int],
        holds_updates: bool,
    ) -> None:
        self.steps: list[Step] = []
        self._sharded = sharded
        self._graph = sharded.graph
        self._cluster = cluster
        self._degrees = degrees
        self._ranks = ranks
        self._stage = stage
        self._early_updates = early_updates
        self._holds_updates = holds_updates
        self._memory = [cluster.devices[device].memory for device in ranks]
        self._homes: dict[tuple[int, int | None], list[int]] = {}
        """Memories where a tensor of an item (None: shared) is, in the order of coming there."""
        self._every = tuple(range(degrees.num_items))
        """What a step that runs once stands for: all items."""
        self._done: set[int] = set()
        """Tasks that ran once."""
        self._left = [2 * degrees.micro_batches if sharded.is_training else degrees.micro_batches]
        self._left *= degrees.pipeline
        self._per_item: dict[tuple[int, bool], list[int]] = {}
        """Tasks of a stage's forward and backward pass."""
        self._sums: list[list[int]] = [[] for _ in range(degrees.pipeline)]
        """Of each stage, what adds up at its end."""
        self._updates: list[list[int]] = [[] for _ in range(degrees.pipeline)]
        for task_id, task in enumerate(self._graph.tasks):
            if sharded.is_update[task_id]:
                self._updates[stage[task_id]].append(task_id)
            elif task.adds and task.name in sums_at_end:
                self._sums[stage[task_id]].append(task_id)
            elif not sharded.once[task_id]:
                key = (stage[task_id], sharded.backward[task_id])
                self._per_item.setdefault(key, []).append(task_id)
        self._place_state()

    def _place_state(self) -> None:
        """States are where their updates are made."""
        for state, update in self._graph.updates:
            producer = self._graph.tensors[update].producer
            if producer is not None:
                replicas = self._replicas(producer)
                if self._sharded.is_over_replicas(producer):
                    replicas = range(self._degrees.data)
                self._homes[state, None] = [
                    self._memory[rank]
                    for replica in replicas
                    for rank in self._ranks_with(update, replica)
                ]

    def _replicas(self, task: int) -> Sequence[int]:
        """The replicas that run a task which runs once."""
        owner = self._sharded.replica[task]
        return range(self._degrees.data) if owner is None else (owner,)

    def _lanes(self, task: int) -> Sequence[int]:
        lane = self._sharded.lane[task]
        return range(self._degrees.tensor) if lane is None else (lane,)

    def _ranks_of(self, task: int, replica: int) -> list[int]:
        """The ranks of a replica that run a task."""
        stage = self._stage[task]
        return [self._degrees.rank(replica, lane, stage) for lane in self._lanes(task)]

    def _ranks_with(self, tensor: int, replica: int) -> list[int]:
        """The ranks of a replica that have a tensor when the task that makes it has run."""
        tensor_record = self._graph.tensors[tensor]
        if tensor_record.producer is None:
            return []
        ranks = self._ranks_of(tensor_record.producer, replica)
        kind = collective_kind(self._graph.tasks[tensor_record.producer].op)
        if kind is None or len(ranks) == 1 or kind.makes == "all":
            return ranks
        return [ranks[tensor_record.index]] if kind.makes == "each" else ranks[:1]

    def run_slot(self, slot: Sequence[Work]) -> None:
        """Write one time slot: computations, copies, and updates of stages that are done."""
        for work in slot:
            tasks = self._per_item.get((work.stage, work.backward), ())
            run = partial(self._run_item, work)
            if self._left[work.stage] == 1 and work.stage in self._early_updates:
                self._run_with_updates(work.stage, tasks, run)
            else:
                for task in tasks:
                    run(task)
        for replica in range(self._degrees.data):
            for work in slot:
                self._send(work, replica, self._degrees.item(replica, work.micro_batch))
        for work in slot:
            self._left[work.stage] -= 1
            if not self._left[work.stage]:
                self._run_with_updates(work.stage, self._sums[work.stage], self._run_all_items)

    def _run_item(self, work: Work, task: int) -> None:
        """Write a task of a pass, for all replicas in step, as collectives between them want it."""
        for replica in range(self._degrees.data):
            self._run(task, replica, (self._degrees.item(replica, work.micro_batch),))

    def _run_with_updates(
        self, stage: int, tasks: Sequence[int], run: Callable[[int], None]
    ) -> None:
        """Write tasks, and each update of the stage behind all that it waits for."""
        updates = [update for update in self._updates[stage] if update not in self._done]
        late = self._sums[stage]
        for task in with_updates(self._sharded, tasks, updates, late, self._holds_updates):
            if self._sharded.is_update[task]:
                self._run_once(task)
            else:
                run(task)

    def _run_all_items(self, task: int) -> None:
        """Write a task as one batch of all microbatches, for each replica."""
        for replica in range(self._degrees.data):
            every = range(self._degrees.micro_batches)
            items = tuple(self._degrees.item(replica, micro_batch) for micro_batch in every)
            self._run(task, replica, items)

    def _run_once(self, task: int) -> None:
        """Write a task that runs once, on all its ranks."""
        self._done.add(task)
        if not self._sharded.is_over_replicas(task):
            for replica in self._replicas(task):
                self._run(task, replica, self._every)
            return
        everyone = range(self._degrees.data)
        (lane,) = self._lanes(task)
        ranks = [self._degrees.rank(replica, lane, self._stage[task]) for replica in everyone]
        self._exchange(task, ranks, self._every, self._sharded.replica[task] or 0)

    def _run(self, task: int, replica: int, items: tuple[int, ...]) -> None:
        """Write a task of a replica, and before it what it needs that is not there."""
        for tensor in self._graph.task_inputs[task]:
            maker = self._graph.tensors[tensor].producer
            # What is made once before any item, such as a copy of a weight: when first needed.
            if maker is not None and self._sharded.once[maker] and maker not in self._done:
                self._run_once(maker)
        ranks = self._ranks_of(task, replica)
        if self._sharded.is_over_lanes(task):
            self._exchange(task, ranks, items, 0)
            return
        (rank,) = ranks
        for tensor in self._graph.task_inputs[task]:
            self._bring(tensor, self._memory[rank], items)
        self.steps.append(Run(task, self._ranks[rank], items))
        for tensor in self._graph.task_outputs[task]:
            self._note(tensor, [self._memory[rank]], items)

    def _exchange(self, task: int, ranks: list[int], items: tuple[int, ...], root: int) -> None:
        """Write a collective, and before it what its members need that is not there."""
        kind = collective_kind(self._graph.tasks[task].op)
        reads, outputs = self._graph.task_inputs[task], self._graph.task_outputs[task]
        memories = [self._memory[rank] for rank in ranks]
        if kind is None:
            raise AssertionError(f"task {task} is no collective")
        for position, memory in enumerate(memories):
            if kind.reads == "root" and position != root:
                continue
            read = reads[position] if len(reads) == len(ranks) > 1 else reads[0]
            self._bring(read, memory, items)
        devices = tuple(self._ranks[rank] for rank in ranks)
        self.steps.append(Collective(task, devices, items, root))
        for position, tensor in enumerate(outputs):
            at = {"all": memories, "each": [memories[position]], "root": [memories[root]]}
            self._note(tensor, at[kind.makes], items)

    def _keys(self, tensor: int, items: Iterable[int]) -> list[tuple[int, int | None]]:
        if self._graph.tensors[tensor].shared:
            return [(tensor, None)]
        return [(tensor, item) for item in items]

    def _note(self, tensor: int, memories: Iterable[int], items: tuple[int, ...]) -> None:
        """Remember that a tensor is in memories."""
        for key in self._keys(tensor, items):
            homes = self._homes.setdefault(key, [])
            homes += [memory for memory in memories if memory not in homes]

    def _bring(self, tensor: int, memory: int, items: tuple[int, ...]) -> None:
        """Write the copy of a tensor to a memory, unless it is there."""
        tensor_record = self._graph.tensors[tensor]
        for key in self._keys(tensor, items):
            if key not in self._homes and tensor_record.producer is None:
                if self._cluster.host is None:
                    continue
                self._homes[key] = [self._cluster.host]
            homes = self._homes.get(key, [])
            if memory in homes:
                continue
            if not homes:
                raise ShardingError(
                    f"{self._graph.name!r}: tensor {tensor_record.name!r} "
                    f"is read before it is made; "
                    f"check layers and passes of the tasks that read it"
                )
            item = self._every if key[1] is None else (key[1],)
            self._copy(tensor, homes[0], memory, item)

    def _copy(self, tensor: int, src: int, dst: int, items: tuple[int, ...]) -> None:
        route = self._cluster.route(src, dst)
        self.steps.append(Copy(tensor, src, dst, route, items))
        self._note(tensor, [dst], items)

    def _send(self, work: Work, replica: int, item: int) -> None:
        """Write the copies of what a pass has made to where other stages and the host read it."""
        graph, host = self._graph, self._cluster.host
        for task in self._per_item.get((work.stage, work.backward), ()):
            for tensor in graph.task_outputs[task]:
                homes = self._homes.get((tensor, item), [])
                if not homes:
                    continue  # shared: what adds up stays
                for src, dst in self._targets(tensor, replica):
                    if dst not in homes:
                        self._copy(tensor, src, dst, (item,))
                if host is not None and tensor in graph.outputs and host not in homes:
                    self._copy(tensor, homes[0], host, (item,))

    def send_sums(self) -> None:
        """Write the copies of outputs that all items add up to, once they are complete."""
        for tensor in dict.fromkeys(self._graph.outputs):
            if self._graph.tensors[tensor].shared and self._cluster.host is not None:
                self._bring(tensor, self._cluster.host, self._every)

    def _targets(self, tensor: int, replica: int) -> list[tuple[int, int]]:
        """(memory that has it, memory of a reader at another stage), ascending by rank."""
        tensor_record = self._graph.tensors[tensor]
        sources = self._ranks_with(tensor, replica)
        ranks_by_memory: dict[int, int] = {}
        for reader in tensor_record.consumers:
            if self._stage[reader] == self._stage[tensor_record.producer or 0]:
                continue
            ranks = self._ranks_of(reader, replica)
            reads = self._graph.task_inputs[reader]
            if len(ranks) == len(reads) > 1:
                # Member i of a collective reads tensor i.
                ranks = [ranks[reads.index(tensor)]]
            for rank in ranks:
                lane = rank // self._degrees.pipeline
                same = [src for src in sources if src // self._degrees.pipeline == lane]
                ranks_by_memory[rank] = (same or sources)[0]
        return [
            (self._memory[ranks_by_memory[rank]], self._memory[rank])
            for rank in sorted(ranks_by_memory)
        ]
