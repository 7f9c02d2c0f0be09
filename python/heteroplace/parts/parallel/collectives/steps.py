"""Lowered parts + plan -> kernel calls: each step by its task's part, with the values it reads.

Beside batches (`combine`) there are tasks apart, whose calls are made anew for each step and each
memory in which it makes something, and tensors with several values, of which the plan says who
reads which. A call that takes over the bytes of a value says so in the value that it makes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from heteroplace.errors import LoweringError
from heteroplace.lower.items.combine import Combiner, Items, ItemTensor, ValuePlace
from heteroplace.lower.kernels import KernelCall, KernelCalls, Value
from heteroplace.lower.order.instructions import root
from heteroplace.lower.segment_calls import NetworkPart
from heteroplace.lower.segments import ValueName
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import CollectiveKind, collective_kind
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Plan, Run
from heteroplace.model.step_values import makes
from heteroplace.parts.parallel.collectives.cut_module import Import
from heteroplace.parts.parallel.collectives.versions import START, Version, Versions, runs_apart

IsSafe = Callable[[str, int, int], bool]
"""Of (kernel, position of an input, of an output): whether both may be in the same bytes."""
ApartKey = tuple[int, int, bool]
"""Number of items, target, and whether the tasks add to what is there."""


@dataclass(frozen=True)
class StepPart:
    """A lowered part of a cut module."""

    lowered: NetworkPart
    imports: Mapping[ValueName, Import]
    """Of its imports those that are no inputs of the model."""
    made: Mapping[int, ValueName]
    """By tensor, under which name it exports it."""


@dataclass(frozen=True)
class NetworkSteps:
    """A plan and the parts that its steps run."""

    graph: TaskGraph
    cluster: Cluster
    plan: Plan
    versions: Versions
    batches: Mapping[Items, StepPart]
    apart: Mapping[ApartKey, StepPart]
    target_of_device: Sequence[int]
    sums_in_updates: Mapping[int, int]
    """Collectives that have no kernels, and their steps."""


class StepCombiner(Combiner):
    """One walk over the batches, then over the steps apart."""

    def __init__(
        self, steps: NetworkSteps, tensors: Mapping[ValueName, ItemTensor], is_safe: IsSafe
    ) -> None:
        graph, plan = steps.graph, steps.plan
        tasks: dict[Items, list[str]] = defaultdict(list)
        self._run_step: dict[tuple[str, Items], int] = {}
        for index, step in enumerate(plan.steps):
            if isinstance(step, Run) and not runs_apart(graph, step.task):
                tasks[step.items].append(graph.tasks[step.task].name)
                self._run_step[graph.tasks[step.task].name, step.items] = index
        lowered = {items: part.lowered for items, part in steps.batches.items()}
        super().__init__(lowered, tasks, tensors)
        self._all = tuple(range(plan.items))
        self._steps = steps
        self._graph = graph
        self._versions = steps.versions
        self._is_safe = is_safe
        self._replaced = frozenset(steps.versions.before.values())
        self._described = {
            id(part.lowered): part for part in (*steps.batches.values(), *steps.apart.values())
        }
        self._makers: dict[int, dict[int, KernelCall]] = {}
        self._exported_as: dict[int, dict[int, list[int]]] = {}
        self._version_ids: dict[Version, int] = {}
        self._gathered: dict[tuple[int, Items, tuple[int, ...]], int] = {}
        self._written: dict[tuple[Hashable, int], int] = {}
        """By key of the place and value: what a call writes in place of it, to be copied there."""
        self._segment = 0

    def combined(self) -> KernelCalls:
        """Return the calls of all steps, and the values that they exchange."""
        graph, versions = self._graph, self._versions
        inputs = [tensor for tensor in graph.inputs if tensor not in versions.tensors]
        self._add_inputs([ValueName(graph.tensors[tensor].name) for tensor in inputs])
        self._add_batches()
        self._segment = 1 + max((call.segment for call in self._calls), default=0)
        for index, step in enumerate(self._steps.plan.steps):
            if isinstance(step, (Run, Collective)) and runs_apart(graph, step.task):
                self._add_apart(index, step)
        for version in versions.before:
            self._version(version)
        host, end = self._steps.cluster.host, len(self._steps.plan.steps)
        assert host is not None
        outputs = [tensor for tensor in graph.outputs if tensor not in graph.state_of]
        return self._finish(tuple(self._output(tensor, host, end) for tensor in outputs))

    def _output(self, tensor: int, host: int, end: int) -> int:
        """The value of an output for all items, in the shape of all items."""
        index = self._tensor(tensor, self._all, host, end)
        item_tensor = self._tensors.get(ValueName(self._graph.tensors[tensor].name))
        if item_tensor is None or self._graph.tensors[tensor].shared:
            return index
        value, shape = self._values[index], item_tensor.shape_of(len(self._all))
        if value.shape == shape:
            return index
        return self._add(Value(shape, value.dtype, alias_of=index, items=self._all))

    def _parts(self) -> list[NetworkPart]:
        parts = (*self._steps.batches.values(), *self._steps.apart.values())
        return [part.lowered for part in parts]

    def _place(self, items: Items, task: str) -> ValuePlace:
        if (task, items) not in self._run_step:
            raise LoweringError(
                f"a kernel belongs to task {task!r}, which the plan does not run for items "
                f"{items}; the module and its plan do not belong together"
            )
        step = self._run_step[task, items]
        run = self._steps.plan.steps[step]
        assert isinstance(run, Run)
        memory = self._steps.cluster.devices[run.device].memory
        return ValuePlace(items, self._part_of[items], items, step, run.device, memory)

    def _add_apart(self, index: int, step: Run | Collective) -> None:
        """The calls of a step apart, in each memory those that make what it keeps."""
        kind = collective_kind(self._graph.tasks[step.task].op)
        if kind is not None and kind.name == "broadcast":
            return  # copies, made where somebody reads what they bring
        if step.task in self._steps.sums_in_updates:
            return  # computed by who reads what it makes
        by_place: dict[Hashable, tuple[ValuePlace, list[int]]] = {}
        for tensor, memory in makes(self._graph, self._steps.cluster, step):
            place = self._place_of(self._versions.made[index, tensor, memory])
            by_place.setdefault(place.key, (place, []))[1].append(tensor)
        name = self._graph.tasks[step.task].name
        for place, tensors in by_place.values():
            for call in self._calls_for(place.part, name, tensors):
                # What a member got for its sum alone may become the sum.
                pairs = self._pairs_in_place(call) if kind is not None and kind.sums else ()
                self._add_call(replace(call, in_place=pairs), place, self._segment)
            self._segment += 1

    def _pairs_in_place(self, call: KernelCall) -> tuple[tuple[int, int], ...]:
        return tuple(
            (read, write)
            for read in range(len(call.reads))
            for write in range(len(call.writes))
            if self._is_safe(call.kernel, read, write)
        )

    def _calls_for(
        self, part: NetworkPart, task: str, tensors: Collection[int]
    ) -> list[KernelCall]:
        """The calls of a task that some of what it makes depends on, in their order."""
        values_of = self._described[id(part)].made
        exports = self._exports_of(part)
        needed = {exports[values_of[tensor]] for tensor in tensors if tensor in values_of}
        calls = []
        for call in reversed(part.calls.calls):
            needed.update(
                alias
                for value in list(needed)
                if (alias := part.calls.values[value].alias_of) is not None
            )
            if call.task == task and needed.intersection(call.writes):
                needed.update(call.reads)
                calls.append(call)
        return calls[::-1]

    def _add_call(self, call: KernelCall, place: ValuePlace, first_segment: int) -> None:
        reads = tuple(self._value(place, value) for value in call.reads)
        tensors_written = [self._value(place, value) for value in call.writes]
        writes = tuple(
            self._written.get((place.key, value), own)
            for value, own in zip(call.writes, tensors_written, strict=True)
        )
        added = replace(
            call,
            segment=first_segment + call.segment,
            reads=reads,
            writes=writes,
            items=place.items,
            at=(place.step, place.device),
            exchange=self._exchange(place, call),
        )
        self._calls.append(added)

    def _exchange(self, place: ValuePlace, call: KernelCall) -> int | None:
        """The step of the collective whose members' values a call reads."""
        described, imports = self._described[id(place.part)].imports, self._imports_of(place.part)
        for value in call.reads:
            name = imports.get(root(place.part.calls, value))
            what = None if name is None else described.get(name)
            if what is not None and what.member is not None:
                return self._collective_step(what.member[0], place)
        return None

    def _collective_step(self, task: int, place: ValuePlace) -> int:
        """The step of a collective: its member's place, or that of the update that computes it."""
        return self._steps.sums_in_updates.get(task, place.step)

    def _copy(self, source: int, target: int, place: ValuePlace) -> None:
        task = self._steps.plan.steps[place.step]
        assert isinstance(task, (Run, Collective))
        name, at = self._graph.tasks[task.task].name, (place.step, place.device)
        copy = KernelCall("", 0, name, (source,), (target,), items=place.items, at=at)
        self._calls.append(copy)

    def _value(self, place: ValuePlace, value: int) -> int:
        if place.key == place.items and self._depends_on_step(place.part, value):
            place = replace(place, key=(place.items, place.step))
        elif place.part.calls.values[value].constant is not None:
            place = replace(place, key=id(place.part))  # weights are the same for all items
        return super()._value(place, value)

    def _depends_on_step(self, part: NetworkPart, value: int) -> bool:
        """Whether a value is one, or a part, of which a reader has a choice."""
        owner = root(part.calls, value)
        return self._imports_of(part).get(owner) in self._described[id(part)].imports

    def _imported(self, name: ValueName, place: ValuePlace) -> int:
        what = self._described[id(place.part)].imports.get(name)
        if what is None:
            return self._read(name, place.items)
        if what.is_before:
            version = self._versions.made[place.step, what.tensor, place.memory]
            return self._version(self._versions.before[version])
        memory, index = place.memory, place.step
        if what.member is not None:
            task, position = what.member
            index = self._collective_step(task, place)
            step = self._steps.plan.steps[index]
            assert isinstance(step, Collective)
            member = step.root if self._kind(step).reads == "root" else position
            memory = self._steps.cluster.devices[step.devices[member]].memory
        return self._tensor(what.tensor, place.items, memory, index)

    def _tensor(self, tensor: int, items: Items, memory: int, step: int) -> int:
        """A value that holds a tensor for some items, as a step reads it in a memory."""
        description, versions = self._graph.tensors[tensor], self._versions
        if tensor in versions.tensors:
            if description.shared:
                return self._version(versions.read(tensor, 0, memory, step))
            parts = [self._version(versions.read(tensor, item, memory, step)) for item in items]
        elif description.producer is None:
            return self._read(ValueName(description.name), items)
        else:
            parts = [self._made_tensor(tensor, item) for item in items]
        key = (tensor, items, tuple(parts))
        if key not in self._gathered:
            item_tensor = self._tensors.get(ValueName(description.name))
            self._gathered[key] = self._together(parts, items, item_tensor)
        return self._gathered[key]

    def _made_tensor(self, tensor: int, item: int) -> int:
        producer = self._graph.tensors[tensor].producer
        assert producer is not None
        name = self._graph.tasks[producer].name
        place = self._place(self._batch_of[name, item], name)
        return self._value(place, self._exported(place.part, tensor))

    def _exported(self, part: NetworkPart, tensor: int) -> int:
        values_of = self._described[id(part)].made
        return self._exports_of(part)[values_of[tensor]]

    def _version(self, version: Version) -> int:
        """The value that a version is."""
        if version not in self._version_ids:
            self._version_ids[version] = self._new_version(version)
        return self._version_ids[version]

    def _new_version(self, version: Version) -> int:
        description = self._graph.tensors[version.tensor]
        if version.step == START:
            shape, dtype = description.shape, description.dtype
            return self._add(Value(shape, dtype, description.name, memory=version.memory))
        place = self._place_of(version)
        step = self._steps.plan.steps[version.step]
        if isinstance(step, Collective) and self._kind(step).name == "broadcast":
            (read,) = self._graph.task_inputs[step.task]
            memory = self._steps.cluster.devices[step.devices[step.root]].memory
            source = self._tensor(read, place.items, memory, version.step)
            is_made, is_own = False, memory != version.memory
        else:
            value = self._exported(place.part, version.tensor)
            source = self._value(place, value)
            is_made, is_own = value in self._makers_of(place.part), False
        if not is_made and (version in self._versions.before or version in self._replaced):
            is_own = True  # what somebody else made stays as it is
        return self._copied(version, source, place) if is_own else source

    def _copied(self, version: Version, source: int, place: ValuePlace) -> int:
        """A value of its own for a version that is somewhere already."""
        of = self._values[source]
        value = self._add(
            Value(of.shape, of.dtype, items=place.items, in_place_of=self._prior(version))
        )
        self._copy(source, value, place)
        return value

    def _prior(self, version: Version) -> int | None:
        """The value whose bytes a version takes over."""
        before = self._versions.before.get(version)
        if before is None or before.memory != version.memory:
            return None
        return self._root(self._version(before))

    def _own(self, place: ValuePlace, value: int) -> int:
        version = self._version_made(place, value)
        prior = None if version is None else self._prior(version)
        if prior is None:
            return super()._own(place, value)
        own = replace(place.part.calls.values[value], items=place.items)
        target = self._add(replace(own, in_place_of=prior))
        if not self._may_take_over(place, value, prior):
            self._written[place.key, value] = self._add(own)
            self._copy(self._written[place.key, value], target, place)
        return target

    def _version_made(self, place: ValuePlace, value: int) -> Version | None:
        """The version that a call makes as `value`."""
        if value not in self._makers_of(place.part):
            return None
        for tensor in self._tensors_of(place.part).get(value, ()):
            version = self._versions.made.get((place.step, tensor, place.memory))
            if version is not None:
                return version
        return None

    def _makers_of(self, part: NetworkPart) -> dict[int, KernelCall]:
        """By value of a part, the call that makes it."""
        if id(part) not in self._makers:
            self._makers[id(part)] = {
                value: call for call in part.calls.calls for value in call.writes
            }
        return self._makers[id(part)]

    def _tensors_of(self, part: NetworkPart) -> dict[int, list[int]]:
        """By value of a part, the tensors that it exports as."""
        if id(part) not in self._exported_as:
            tensors: dict[int, list[int]] = defaultdict(list)
            exports = self._exports_of(part)
            for tensor, name in self._described[id(part)].made.items():
                if name in exports:
                    tensors[exports[name]].append(tensor)
            self._exported_as[id(part)] = tensors
        return self._exported_as[id(part)]

    def _may_take_over(self, place: ValuePlace, value: int, prior: int) -> bool:
        """Whether the call that makes `value` may write where `prior` is, also if it reads that."""
        call = self._makers_of(place.part)[value]
        write = call.writes.index(value)
        return all(
            self._is_safe(call.kernel, position, write)
            for position, read in enumerate(call.reads)
            if self._root(self._value(place, read)) == prior
        )

    def _root(self, value: int) -> int:
        while (alias := self._values[value].alias_of) is not None:
            value = alias
        return value

    def _place_of(self, version: Version) -> ValuePlace:
        """Where a version is made: parts that a root gives away are cut there."""
        step = self._steps.plan.steps[version.step]
        assert isinstance(step, (Run, Collective))
        cluster = self._steps.cluster
        if not runs_apart(self._graph, step.task):
            return self._place(step.items, self._graph.tasks[step.task].name)
        device = step.device if isinstance(step, Run) else self._member_at(step, version.memory)
        memory = cluster.devices[device].memory
        adds = version in self._versions.before and self._graph.tasks[step.task].adds
        size = self._versions.size_apart(step)
        part = self._steps.apart[size, self._steps.target_of_device[device], adds]
        key = (version.step, memory)
        return ValuePlace(key, part.lowered, step.items, version.step, device, memory)

    def _member_at(self, step: Collective, memory: int) -> int:
        if self._kind(step).name == "scatter":
            return step.devices[step.root]
        devices = self._steps.cluster.devices
        return next(device for device in step.devices if devices[device].memory == memory)

    def _kind(self, step: Collective) -> CollectiveKind:
        kind = collective_kind(self._graph.tasks[step.task].op)
        assert kind is not None
        return kind
