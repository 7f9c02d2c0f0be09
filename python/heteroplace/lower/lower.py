"""Plan + calls -> program: queues, waits, memory.

One queue for each core, each GPU and each copy channel that the plan uses, and for messages from
one host to another one on either side. A kernel on a device of several cores is called by the queue
of its first core; the queues of the others join it. A wait is written only where the order within
queues does not imply it already (vector clocks). All waits are within a host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from heteroplace.errors import InfeasibleError, LoweringError
from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.lowered import Lowered, excess_of
from heteroplace.lower.order.clocks import Clocks
from heteroplace.lower.order.delay_for_memory import with_late_calls
from heteroplace.lower.order.duplicate_layouts import with_remade_layouts
from heteroplace.lower.order.instructions import Instance, Instruction, Ordered, output_places, root
from heteroplace.lower.order.lifetimes import find_conflicts, touched_owners, waited_for
from heteroplace.lower.order.memory_plan import Arena, SessionLayout, lay_out
from heteroplace.lower.order.order import order_instructions
from heteroplace.lower.order.queues import NO_SPACE, QueueTable
from heteroplace.lower.program import (
    Port,
    Program,
    ProgramTensor,
    QueueInstruction,
    Space,
    aligned,
    in_pages,
    packed,
)
from heteroplace.lower.routed_lowering import guarded_program, routed_lowering
from heteroplace.lower.weight_blob import WeightTable
from heteroplace.lower.workspace import Workspace
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.hosts import feeding_rank
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.model.plan import Plan
from heteroplace.model.timeline import Timeline
from heteroplace.native.compiled_file import DL_DEVICE_TYPES


def lower(
    calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan, predicted: Timeline | None
) -> Lowered:
    """Write the program of a plan.

    Parameters
    ----------
    predicted
        The simulated timeline of `plan`: it decides which memory is reused by whom. None: nothing
        is known but the order of its steps, and memory is reused wherever that allows it.

    Raises
    ------
    LoweringError
        The calls and the plan do not belong together; a routed network on several hosts.
    InfeasibleError
        Weights, values and workspace do not fit in some memory, even with all reuse that the
        order allows.
    """
    if calls.routers and len(cluster.hosts) > 1:
        raise LoweringError(
            f"router {calls.routers[0].router.name!r} decides in each run what is sent, and the "
            f"cluster has {len(cluster.hosts)} hosts, whose messages are sent in every run; place "
            f"a network with routers on the devices of one host"
        )
    if calls.routers:
        calls = routed_lowering().without_row_copies(calls, graph, cluster, plan)
    calls = with_remade_layouts(calls, graph, cluster, plan)
    if calls.routers or plan.loads:
        calls = routed_lowering().with_planned_steps(calls, graph, plan)
    ordered = order_instructions(calls, graph, cluster, plan, predicted)
    ordered = with_late_calls(ordered, calls, cluster)
    lowered = _Lowering(calls, cluster, ordered, is_tight=predicted is None).run()
    if predicted is not None and excess_of(lowered, cluster):
        lowered = _Lowering(calls, cluster, ordered, is_tight=True).run()
    if excess := excess_of(lowered, cluster):
        raise InfeasibleError("the compiled program does not fit: " + "; ".join(excess))
    return lowered


class _Lowering:
    """State of one walk over the instructions in global order."""

    def __init__(
        self, calls: KernelCalls, cluster: Cluster, ordered: Ordered, is_tight: bool
    ) -> None:
        assert cluster.host is not None
        self._calls = calls
        self._cluster = cluster
        self._host = cluster.host
        self._instructions = ordered.instructions
        self._values = ordered.values
        self._ordered = ordered
        self._table = QueueTable(cluster, ordered.instructions)
        self._queues = self._table.queues
        self._inputs = [
            (value, self._host if description.memory is None else description.memory)
            for value, description in enumerate(calls.values)
            if description.input_name is not None
        ]
        self._outputs = output_places(calls, self._host)
        outputs = [self._owner(output) for output in self._outputs]
        self._guarded = guarded_program(
            calls, cluster, self._instructions, self._tensor, self._kernel
        )
        read_late = dict.fromkeys(map(self._owner, self._guarded.read_late))
        self._early = [*self._inputs, *read_late]
        """What has its bytes for itself: threads look at decisions at any time of a request."""
        self._kept = frozenset([*self._early, *outputs])
        """Inputs are overwritten by what replaces them only: they may be set once for many runs."""
        self._session = SessionLayout(calls, self._inputs, len(cluster.memories))
        self._in_room = calls.weight_offsets
        self._offsets: dict[Instance, int] = {}
        self._arena_bytes = self._lay_out(is_tight)
        self._arenas = [Arena() for _ in cluster.memories]
        messages = [at for at, queue in enumerate(self._queues) if queue.peer is not None]
        self._clocks = Clocks(len(self._queues), messages)
        self._writer: dict[Instance, int] = {}
        self._readers: dict[Instance, list[int]] = defaultdict(list)
        self._freed_by: dict[Instance, tuple[int, ...]] = {}
        """Who had the bytes before: all who write a part have to wait for them."""
        self._users: dict[Instance, list[int]] = {}
        self._num_users: Counter[Instance] = Counter()
        self._tensors: dict[tuple[int, int], int] = {}
        self._tensor_list: list[ProgramTensor] = []
        self._helper_bytes: dict[int, int] = {}
        """Scratch memory that the calls of a queue need of each other core that helps with them."""
        self._weights = WeightTable()
        self._kernels: dict[str, int] = {}

    def run(self) -> Lowered:
        for instance in self._early:
            self._store(instance)
        for instruction in self._instructions:
            self._num_users.update(touched_owners(instruction, self._owner))
        for index, instruction in enumerate(self._instructions):
            self._emit(index, instruction)
        self._need_help()
        return self._finish()

    def _lay_out(self, is_tight: bool) -> tuple[int, ...]:
        """Choose the offsets of all values; return the size of each memory's arena."""
        lifetimes = find_conflicts(
            len(self._cluster.memories),
            self._instructions,
            self._table.of_item,
            self._early,
            self._kept,
            is_tight,
            self._owner,
        )
        arena_bytes = []
        for memory, conflicts in enumerate(lifetimes):
            others = self._in_room.keys() | self._session.offsets.keys()
            sizes = [0 if i in others else self._size(i) for i in conflicts.instances]
            layout = lay_out(sizes, conflicts.neighbours, conflicts.live_bytes(sizes))
            self._offsets.update(zip(conflicts.instances, layout.offsets, strict=True))
            arena_bytes.append(layout.size_bytes)
            # The room for weights is behind what comes and goes by itself.
            here = {each: place for each, place in self._in_room.items() if each[1] == memory}
            for instance, offset in here.items():
                self._offsets[instance] = layout.size_bytes + offset
                end = self._offsets[instance] + self._size(instance)
                arena_bytes[-1] = max(arena_bytes[-1], end)
        self._offsets |= self._session.offsets
        return tuple(arena_bytes)

    def _owner(self, instance: Instance) -> Instance:
        """The value in whose bytes another one lies."""
        return self._ordered.place(instance)[0]

    def _size(self, instance: Instance) -> int:
        num_bytes = self._values[instance[0]].bytes
        return packed(num_bytes) if instance in self._in_room else aligned(num_bytes)

    def _store(self, owner: Instance) -> tuple[int, ...]:
        """Begin to use the bytes of a value, if that is new; return who had them before."""
        if owner not in self._users:
            self._users[owner] = []
            if owner not in self._session.offsets:
                arena = self._arenas[owner[1]]
                freed = arena.write(owner[0], self._offsets[owner], self._size(owner))
                self._freed_by[owner] = freed
        return self._freed_by.get(owner, ())

    def _emit(self, index: int, instruction: Instruction) -> None:
        queue, helpers = self._table.of_item[index]
        needed = waited_for(instruction, self._writer, self._readers)
        for instance in instruction.reads:
            self._readers[instance].append(index)
        for instance in instruction.writes:
            needed += self._store(self._owner(instance))
            self._writer[instance] = index
        queued = self._queue_instruction(instruction, len(helpers) + 1)
        queued.waits = self._clocks.wait(queue, needed)
        for other, _ in queued.waits:
            assert self._queues[other].host == self._queues[queue].host, "a wait on another host"
        self._queues[queue].instructions.append(queued)
        sent = index - 1 if instruction.is_receive else None
        members = instruction.members
        self._queues[queue].instructions += [self._queue_instruction(each, 1) for each in members]
        position = self._clocks.add(index, queue, helpers, sent, len(members))
        for each in members or (instruction,):
            self._need_workspaces(each, queue, helpers, bool(members))
        join = QueueInstruction("join", instruction.step, (str(queue), str(position)))
        for helper in helpers:
            self._queues[helper].instructions.append(replace(join))
        self._retire(index, instruction)

    def _need_workspaces(
        self, call: Instruction, queue: int, helpers: Sequence[int], is_member: bool
    ) -> None:
        """Of a call in a group each core of its team is the one that makes it."""
        workspace = self._workspace(call)
        for caller in (queue, *(helpers if is_member else ())):
            self._need_workspace(caller, workspace.caller_bytes)
            if self._queues[caller].kind == "cpu":
                known_bytes = self._helper_bytes.get(caller, 0)
                self._helper_bytes[caller] = max(known_bytes, workspace.helper_bytes)
        for each in helpers:
            self._need_workspace(each, workspace.helper_bytes)

    def _workspace(self, instruction: Instruction) -> Workspace:
        call = instruction.call
        return Workspace() if call is None else self._calls.calls[call].workspace

    def _need_help(self) -> None:
        """While it waits a core may help any other, whose cache it may share."""
        for helper, worker in enumerate(self._queues):
            others = [
                need
                for queue, need in self._helper_bytes.items()
                if queue != helper and self._queues[queue].host == worker.host
            ]
            if worker.kind == "cpu":
                self._need_workspace(helper, max(others, default=0))

    def _need_workspace(self, queue: int, num_bytes: int) -> None:
        worker = self._queues[queue]
        worker.workspace_bytes = max(worker.workspace_bytes, num_bytes)

    def _retire(self, index: int, instruction: Instruction) -> None:
        for owner in touched_owners(instruction, self._owner):
            self._users[owner].append(index)
            self._num_users[owner] -= 1
            if self._num_users[owner] == 0 and owner not in self._kept:
                self._arenas[owner[1]].retire(owner[0], tuple(self._users[owner]))

    def _queue_instruction(self, instruction: Instruction, num_threads: int) -> QueueInstruction:
        if instruction.is_receive:
            message = (str(instruction.message), str(self._tensor(*instruction.writes[0])))
            return QueueInstruction("recv", instruction.step, message)
        if instruction.is_send:
            source = instruction.origin
            message = (str(instruction.message), str(self._tensor(*source)))
            return QueueInstruction("send", instruction.step, message)
        if instruction.members:
            sizes = (str(num_threads), str(len(instruction.members)))
            return QueueInstruction("group", instruction.step, sizes)
        if instruction.call is None:
            source, target = instruction.origin, instruction.writes[0]
            if instruction.guard is not None:
                return self._guarded.copy(instruction, source, target)
            tensors = (self._tensor(*source), self._tensor(*target))
            return QueueInstruction("copy", instruction.step, tuple(map(str, tensors)))
        call = self._calls.calls[instruction.call]
        assert instruction.device is not None
        memory = self._cluster.devices[instruction.device].memory
        if instruction.guard is not None:
            return self._guarded.call(instruction, memory, num_threads)
        # What members of a collective bring, cores of one host read where it was made.
        read_in = dict(instruction.reads)
        arguments = [
            self._tensor(value, read_in.get(root(self._calls, value), memory))
            for value in call.reads
        ]
        arguments += [self._tensor(value, memory) for value in call.writes]
        kernel = call.kernel_in_place if instruction.is_in_place else call.kernel
        fields = (str(self._kernel(kernel)), str(num_threads), ",".join(map(str, arguments)))
        return QueueInstruction("call", instruction.step, fields)

    def _kernel(self, symbol: str) -> int:
        return self._kernels.setdefault(symbol, len(self._kernels))

    def _finished(self, instance: Instance) -> tuple[tuple[int, int], ...]:
        """After which instruction of its queue a value is in its memory; (): it is an input."""
        writer = self._writer.get(instance)
        return () if writer is None else (self._clocks.done(writer),)

    def _tensor(self, value: int, memory: int) -> int:
        """The program's tensor for a value in a memory; made once."""
        if (value, memory) not in self._tensors:
            owner = value if value >= len(self._calls.values) else root(self._calls, value)
            shape, dtype = self._values[value].shape, self._values[value].dtype
            if self._values[owner].constant is not None:
                place, storage = self._weights.add(self._values[owner], memory), "constant"
            else:
                instance, offset = self._ordered.place((owner, memory))
                storage = "session" if instance in self._session.offsets else "arena"
                place = self._offsets[instance] + offset
            self._tensors[value, memory] = len(self._tensor_list)
            self._tensor_list.append(ProgramTensor(memory, storage, place, dtype, shape))
        return self._tensors[value, memory]

    def _finish(self) -> Lowered:
        routers = self._guarded.routers(self._finished)
        inputs, outputs, state = self._ports()
        initial = self._initial()
        # A machine needs only the memories that the plan uses.
        constants = self._weights.constants
        used = {queue.space for queue in self._queues} | {part.space for part in constants}
        used |= {tensor.space for tensor in self._tensor_list}
        memories = sorted(used - {NO_SPACE})
        uses = tuple(self._memory_use(m, m in used) for m in range(len(self._cluster.memories)))
        space_of = {memory: space for space, memory in enumerate(memories)} | {NO_SPACE: NO_SPACE}
        names = [memory.name for memory in self._cluster.memories]
        spaces = [Space(names[m], self._dl_device(m), self._arena_bytes[m]) for m in memories]
        for queue in self._queues:
            queue.space = space_of[queue.space]
        program = Program(
            tuple(spaces),
            tuple(self._queues),
            tuple(replace(constant, space=space_of[constant.space]) for constant in constants),
            tuple(replace(tensor, space=space_of[tensor.space]) for tensor in self._tensor_list),
            tuple(inputs),
            tuple(outputs),
            tuple(self._kernels),
            routers=routers,
            kept_states=self._session.states,
        )
        layout = self._weights.layout
        return Lowered(
            program,
            layout.weights,
            layout.blob_bytes,
            uses,
            self._cluster.hosts,
            feeding_rank(self._cluster),
            state,
            initial,
        )

    def _initial(self) -> dict[str, int]:
        """Where in the blob the first values of state are."""
        offsets = {}
        for value, _ in self._inputs:
            description = self._calls.values[value]
            if description.input_name is not None and description.initial is not None:
                content = replace(description, constant=description.initial)
                offsets[description.input_name] = self._weights.layout.offset(content)
        return offsets

    def _ports(self) -> tuple[list[Port], list[Port], dict[str, tuple[str, ...]]]:
        """Inputs, outputs, and the ports of each state: it is both, in each memory that has it."""
        inputs: list[Port] = []
        outputs = [
            (f"output{index}", self._tensor(self._calls.outputs[index], memory))
            for index, (_, memory) in enumerate(self._outputs)
        ]
        state: dict[str, tuple[str, ...]] = {}
        for value, memory in self._inputs:
            description = self._calls.values[value]
            assert description.input_name is not None
            port = description.input_name
            if description.memory is not None and not description.is_kept:
                port = f"{description.input_name}@{self._cluster.memories[memory].name}"
                state[description.input_name] = (*state.get(description.input_name, ()), port)
                outputs.append((port, self._tensor(value, memory)))
            inputs.append((port, self._tensor(value, memory)))
        return inputs, outputs, state

    def _memory_use(self, memory: int, is_used: bool) -> MemoryUse:
        """What the executor will hold in a memory (`Executor::MemoryBytes` of the core)."""
        if not is_used:
            return MemoryUse(0, 0, 0)
        workers = [queue for queue in self._queues if queue.space == memory]
        arena, session = max(1, self._arena_bytes[memory]), self._session.num_bytes[memory]
        workspaces = [worker.held_workspace_bytes for worker in workers]
        if self._dl_device(memory)[0] == DL_DEVICE_TYPES["cpu"]:
            arena, session = in_pages(arena), in_pages(session)
            workspaces = [in_pages(num_bytes) for num_bytes in workspaces]
        values = arena + self._calls.max_sessions * session
        return MemoryUse(self._weights.held_bytes(memory), values, sum(workspaces))

    def _dl_device(self, memory: int) -> tuple[int, int]:
        for device in self._cluster.devices:
            if device.memory == memory:
                return DL_DEVICE_TYPES[device.kind], 0 if device.kind == "cpu" else device.index
        return (DL_DEVICE_TYPES["cpu"], 0)
