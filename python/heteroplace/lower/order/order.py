"""KernelCalls + plan -> instructions: calls, copies and messages, in one global order.

The plan says where each task runs and in which order; the calls say what really depends on what
once layouts are chosen. The order is topological for the calls and otherwise follows the plan, so
each queue of the program, which is a part of it, can never wait for itself. A copy from one host to
another becomes messages, and copies within hosts; a message is received next to where it is sent,
so that the order stays topological whenever a send has to wait for its receiver.
"""

from __future__ import annotations

from dataclasses import replace

from heteroplace.errors import LoweringError
from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.order.call_places import CallPlace, CallPlaces
from heteroplace.lower.order.calls_in_place import CallsInPlace
from heteroplace.lower.order.copy_hops import Legs
from heteroplace.lower.order.gather_batches import Joins
from heteroplace.lower.order.global_order import in_order, with_messages
from heteroplace.lower.order.grouped import with_groups
from heteroplace.lower.order.instructions import (
    Instance,
    Instruction,
    Ordered,
    output_places,
    root,
)
from heteroplace.lower.routed_lowering import guards_of, routed_lowering
from heteroplace.lower.value_tensors import tensors_of_values
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.graphs.groups import groups_of
from heteroplace.model.hosts import are_of_one_cpu
from heteroplace.model.plan import Copy, Guard, Plan
from heteroplace.model.timeline import Timeline
from heteroplace.relay.annotate.writer import home_device


def order_instructions(
    calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan, predicted: Timeline | None
) -> Ordered:
    """List kernel calls and copies in an order that respects dependencies and follows the plan.

    Raises
    ------
    LoweringError
        A call belongs to a task that the plan does not know.
    """
    return _Orderer(calls, graph, cluster, plan, predicted).run()


class _Orderer:
    def __init__(
        self,
        calls: KernelCalls,
        graph: TaskGraph,
        cluster: Cluster,
        plan: Plan,
        predicted: Timeline | None,
    ) -> None:
        self._kernel_calls = calls
        self._graph = graph
        self._cluster = cluster
        self._plan = plan
        self._span = dict.fromkeys(range(len(plan.steps)), (0, 0))
        if predicted is not None:
            self._span = {s.step: (s.start_ns, s.finish_ns) for s in predicted.spans}
        self._copy_step = {
            (step.tensor, step.dst, item): index
            for index, step in enumerate(plan.steps)
            if isinstance(step, Copy)
            for item in step.items
        }
        self._guards = guards_of(calls, graph, cluster, plan)
        self._tensor = tensors_of_values(calls, graph, self._guards)
        places = CallPlaces(graph, cluster, plan)
        self._by = [places.of(call) for call in calls.calls]
        self._made = {
            value: instances
            for call, instances in zip(calls.calls, self._by, strict=True)
            for value in self._guards.written(call)
        }
        for each in calls.loads:
            self._made[each.value] = CallPlace(-1, each.memory, each.step)
        self._legs = Legs(cluster)
        self._copies: dict[Instance, Instruction] = {}
        self._needed: dict[Instance, int | None] = {}
        """Joined values by memory, each with the first call that reads it; None: an output."""

    def run(self) -> Ordered:
        calls = self._kernel_calls
        for output in output_places(calls, self._host):
            self._need(*output, None)
        for router in calls.routers:  # who records decisions reads them there
            self._need_decision(Guard(calls.routers.index(router), 0), self._home(router.loads))
        reads = [self._roots_read(index) for index in range(len(calls.calls))]
        for index, instances in enumerate(reads):
            for value, memory in instances:
                self._need(value, memory, index)
        loads: list[Instruction] = []
        if calls.loads:
            copies = routed_lowering().load_copies(calls, self._plan, self._span)
            loads = [leg for load in copies for leg in self._cut(load)]
        joins = self._joins()
        called = [
            instruction
            for index, instances in enumerate(reads)
            for instruction in self._carried_out(
                index, [r for read in instances for r in joins.reads.get(read, (read,))]
            )
        ]
        copies = [*loads, *self._read_copies([*called, *joins.copies], joins)]
        copies += joins.copies
        calls_in_place = CallsInPlace(
            calls, [*called, *copies], self._copies.keys(), joins.stored, self._read_at_end(joins)
        )
        called = calls_in_place.found(called)
        instructions = in_order([*called, *copies])
        planned = groups_of(self._graph, self._cluster, self._plan.steps)
        instructions = with_groups(instructions, calls, planned)
        return Ordered(with_messages(instructions), tuple(joins.values), joins.stored)

    def _read_at_end(self, joins: Joins) -> set[Instance]:
        """What outputs are read from when a run is over, by no instruction."""
        outputs = output_places(self._kernel_calls, self._host)
        return {each for output in outputs for each in (output, *joins.reads.get(output, ()))}

    def _read_copies(self, others: list[Instruction], joins: Joins) -> list[Instruction]:
        """The copies of whole values but those that nobody reads: routes may have shorter ways."""
        copies = self._copies
        late_reads = self._read_at_end(joins)
        while len(self._cluster.hosts) > 1:
            read = {each for by in (*others, *copies.values()) for each in by.reads} | late_reads
            left = {at: copy for at, copy in copies.items() if at in read}
            if len(left) == len(copies):
                break
            copies = left
        return list(copies.values())

    def _joins(self) -> Joins:
        """Place the joined values: outputs, then those of many items, which others lie in."""
        values = list(self._kernel_calls.values)
        home = {value: self._home(value) for value in range(len(values))}
        joins = Joins(values, home, self._copies.keys(), self, self._taken_over())
        outputs = [instance for instance, reader in self._needed.items() if reader is None]
        others = [instance for instance, reader in self._needed.items() if reader is not None]
        for instance in outputs:
            joins.add(instance, None)
        joins.join_wholes(others)
        for instance in sorted(others, key=lambda each: -len(values[each[0]].items)):
            joins.add(instance, self._needed[instance])
        return joins

    def _taken_over(self) -> dict[Instance, tuple[Instance, int]]:
        """Values that lie in the bytes of those that they replace, or in a routed buffer."""
        memory_of = {value: instance.memory for value, instance in self._made.items()}
        return self._guards.places(memory_of)

    def _need_decision(self, guard: Guard | None, memory: int) -> tuple[Instance, ...]:
        """Make sure that what a guard hangs on is where it is read; return it."""
        instances = self._guards.decision(guard, memory)
        for value, there in instances:
            self._need(value, there, None)
        return instances

    @property
    def _host(self) -> int:
        if self._cluster.host is None:
            raise LoweringError(
                f"cluster {self._cluster.name!r} names no host memory, so nothing can be run on "
                f'it; add "host" to the cluster file'
            )
        return self._cluster.host

    def _roots_read(self, index: int) -> list[Instance]:
        """What a call reads, in the memory of its device, or where it copies from; not weights."""
        calls, memory = self._kernel_calls, self._by[index].memory
        roots = dict.fromkeys(
            part
            for value in calls.calls[index].reads
            for part in self._guards.spread(root(calls, value))
        )
        if not calls.calls[index].kernel:
            memory = self._origin(next(iter(roots)), memory)
        read = [
            (value, self._read_in(index, value, memory))
            for value in roots
            if calls.values[value].constant is None
        ]
        return [*read, *self._guards.decision(self._guard(index), memory)]

    def _read_in(self, index: int, value: int, memory: int) -> int:
        """Where a call reads a value: of a collective it may be where another member made it."""
        call, value_read = self._kernel_calls.calls[index], self._kernel_calls.values[value]
        if call.exchange is None or not call.kernel or value_read.joined is not None:
            return memory
        home = self._home(value)
        return home if are_of_one_cpu(self._cluster, home, memory) else memory

    def _guard(self, index: int) -> Guard | None:
        return self._guards.of_call(self._kernel_calls.calls[index], self._by[index].step)

    def _carried_out(self, index: int, reads: list[Instance]) -> list[Instruction]:
        """The instruction of a call; of one that copies to another memory, those on the way."""
        call, written_by = self._kernel_calls.calls[index], self._by[index]
        values = self._kernel_calls.values
        start, finish = self._span[written_by.step]
        writes = tuple((value, written_by.memory) for value in self._guards.written(call))
        before = [values[value].in_place_of for value in call.writes]
        replaces = tuple(
            (root(self._kernel_calls, value), written_by.memory)
            for value in before
            if value is not None
        )
        if call.kernel:
            read = tuple(dict.fromkeys(reads))
            times = (written_by.step, start, finish)
            call_of = Instruction(
                index, written_by.device, (), *times, read, writes, replaces=replaces
            )
            lingers = call.exchange is not None and call.exchange != written_by.step
            linger_ns = finish - start if lingers else 0
            return [replace(call_of, linger_ns=linger_ns, guard=self._guard(index))]
        value = root(self._kernel_calls, call.reads[0])
        source = (value, self._origin(value, written_by.memory))
        route = (
            self._cluster.route(source[1], written_by.memory)
            if source[1] != written_by.memory
            else ()
        )
        device = None if route else written_by.device
        read = tuple(dict.fromkeys(reads))
        copy = Instruction(
            None, device, route, written_by.step, start, finish, read, writes, source
        )
        legs = self._cut(copy) if route else [copy]
        return [*legs[:-1], replace(legs[-1], replaces=replaces)]

    def _origin(self, value: int, memory: int) -> int:
        """The memory that a value is copied from, as another value, to a memory."""
        value_read = self._kernel_calls.values[value]
        if value_read.constant is not None:
            return memory
        return self._home(value if value_read.joined is None else value_read.joined.parts[0])

    def _need(self, value: int, memory: int, reader: int | None) -> None:
        """Make sure that there is a copy of `value` in `memory`, if it is not made there."""
        if self._kernel_calls.values[value].joined is not None:
            self._needed.setdefault((value, memory), reader)
            return
        is_known = (value, memory) in self._copies and len(self._cluster.hosts) == 1
        if self._home(value) == memory or is_known:
            return
        item = self._kernel_calls.values[value].items[0]
        source = self._source(value, memory, item)
        self._need(value, source, reader)
        copy = self._over_links(value, source, memory, item, reader)
        if (value, memory) not in self._copies:
            self._copies |= {each.writes[0]: each for each in self._cut(copy)}
        self._hasten(copy)

    def _source(self, value: int, memory: int, item: int) -> int:
        """The memory that a value is taken from to another one.

        Over several hosts it is the plan's, which does not send twice what is near already.
        """
        home, step = self._home(value), self.transfer(value, memory, item)
        if step is None or len(self._cluster.hosts) == 1:
            return home
        copy = self._plan.steps[step]
        assert isinstance(copy, Copy)
        before = self.transfer(value, copy.src, item)
        return copy.src if before is not None and before < step else home

    def _cut(self, copy: Instruction) -> list[Instruction]:
        """The copies within hosts, and the messages, that a copy over links becomes.

        Where the whole value is on the way already it is taken from there.
        """
        value = copy.writes[0][0]
        legs = self._legs.of(copy.route)
        first = 0
        for index, leg in enumerate(legs[1:], 1):
            if copy.source is None and self._is_brought(value, leg.src):
                first = index
        return [
            replace(
                copy,
                route=leg.route,
                reads=(
                    *(((value, leg.src),) if index else copy.reads),
                    *self._need_decision(copy.guard, leg.src),
                ),
                writes=((value, leg.dst),),
                source=None if index else copy.source,
                message=0 if leg.is_message else None,
            )
            for index, leg in enumerate(legs[first:], first)
        ]

    def _is_brought(self, value: int, memory: int) -> bool:
        return self._home(value) == memory or (value, memory) in self._copies

    def _hasten(self, copy: Instruction) -> None:
        """Bring what a copy needs on its way no later than the plan wants the copy itself."""
        instance: Instance | None = copy.writes[0]
        while instance in self._copies:
            leg = self._copies[instance]
            if copy.step < leg.step:
                start, finish = copy.start_ns, copy.finish_ns
                self._copies[instance] = replace(
                    leg, step=copy.step, start_ns=start, finish_ns=finish
                )
            instance = leg.reads[0]

    def _home(self, value: int) -> int:
        if value in self._made:
            return self._made[value].memory
        memory = self._kernel_calls.values[value].memory
        return self._host if memory is None else memory

    def transfer(self, value: int, memory: int, item: int) -> int | None:
        """Return the plan's step that copies an item of a value to a memory, if it has one."""
        return self._copy_step.get((self._tensor.get(value, -1), memory, item))

    def _over_links(
        self, value: int, source: int, memory: int, item: int, reader: int | None = None
    ) -> Instruction:
        """The copy of a whole value from one memory to another, for a call (None: an output)."""
        route = self._cluster.route(source, memory)
        duration = self._cluster.transfer_ns(route, self._kernel_calls.values[value].bytes)
        step = self.transfer(value, memory, item)
        exchange = None if reader is None else self._kernel_calls.calls[reader].exchange
        if step is not None:
            start, finish = self._span[step]
        elif exchange is not None:
            # The transfers of a collective are a part of it.
            step, (start, finish) = exchange, self._span[exchange]
        else:
            # A value that the neutral graph does not have (a changed layout); it goes as soon as
            # its producer is done.
            step = self._made[value].step if value in self._made else 0
            start = self._span[step][1] if value in self._made else 0
            finish = start + duration
        guard = self._guards.of_copy(value, self.transfer(value, memory, item))
        ends = ((value, source),), ((value, memory),)
        return Instruction(None, None, route, step, start, finish, *ends, guard=guard)

    def over_links(
        self, source: Instance, part: Instance, written: Instance, item: int
    ) -> list[Instruction]:
        """Copy a part of what a value holds, of an item, to another memory."""
        whole = self._over_links(source[0], source[1], written[1], item)
        return self._cut(replace(whole, writes=(written,), source=part))

    def within(
        self, source: Instance, part: Instance, written: Instance, reader: int | None
    ) -> Instruction:
        """Copy a part within its memory: by the device that made it, else by the one that reads it.

        An output is read by nobody; what comes from elsewhere is put there by the home device.
        """
        instance = self._made.get(source[0])
        if instance is not None and instance.memory == source[1]:
            device, step, time = instance.device, instance.step, self._span[instance.step][1]
        elif reader is not None:
            by = self._by[reader]
            device, step, time = by.device, by.step, self._span[by.step][0]
        else:
            device, step, time = home_device(self._cluster), 0, 0
        return Instruction(None, device, (), step, time, time, (source,), (written,), part)
