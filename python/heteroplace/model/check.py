"""The one judge of plans: every rule of the execution model, each fault with its step.

The rules are those of `heteroplace.model.plan`, and DistIR's (section 2): values are made once and
before their use, and used where they are. A copy may leave from any memory that holds the tensor,
over any path of links; solvers in this package use the tensor's home and `Cluster.route`. A shared
tensor stands for the items whose parts it has: nobody may read it for others, add to it once it is
read, or add the same items up twice. An update needs all items of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from heteroplace.errors import PlanError
from heteroplace.model.checks.check_collective import collective_faults
from heteroplace.model.checks.check_guards import GuardCheck, unknown_guard
from heteroplace.model.checks.check_parts import group_faults, route_faults, unknown_ids
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.collector import paused_collector
from heteroplace.model.cost import CostTable
from heteroplace.model.digests import digest_mismatches
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.held_memory import held_bytes
from heteroplace.model.memory_use.live_memory import LivePeak, live_peaks
from heteroplace.model.memory_use.memory import plan_memory_use, short_memories
from heteroplace.model.memory_use.weight_room import room_faults
from heteroplace.model.plan import Collective, Copy, Load, Plan, Run, Step, devices_of
from heteroplace.model.routed.presence import Presence
from heteroplace.model.step_values import (
    Place,
    guard_reads,
    items_of,
    kind_of,
    makes,
    reads,
    table_sizes,
)
from heteroplace.model.text.plan_text import quote_step
from heteroplace.model.units import format_bytes
from heteroplace.terminal import listed

_MAX_ITEMS_SHOWN = 8


def check_plan(graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan) -> None:
    """Raise unless `plan` runs `graph` on `cluster`.

    Raises
    ------
    PlanError
        The plan breaks a rule; the message lists the first 20 faults, and counts all. If
        the plan belongs to another graph or cluster, only that is said.
    CostMismatchError
        `costs` belongs to another graph or cluster.
    """
    costs.check(graph, cluster)
    # The collector would look again and again at what is where, which only grows.
    with paused_collector():
        checker = _Checker(graph, cluster, costs, plan)
        faults = checker.digest_faults() or checker.faults()
    if faults:
        lines = listed((f"\n  - {fault}" for fault in faults), "", at_most=20)
        raise PlanError(
            f"the plan by {plan.origin!r} for graph {graph.name!r} on cluster {cluster.name!r} "
            f"has {len(faults)} fault{'s' if len(faults) > 1 else ''}:{lines}\n"
            f"Solve again, or mend the steps named."
        )


class _Checker:
    """Walks a plan once, remembering what is where."""

    def __init__(self, graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan) -> None:
        self._graph = graph
        self._cluster = cluster
        self._costs = costs
        self._plan = plan
        self._faults: list[str] = []
        self._shares = graph.has_shared_values
        self._device: dict[tuple[int, int], int] = {}
        """Device of each (task, item) run so far."""
        self._made: set[tuple[int, int, int]] = set()
        """(task, memory, item) run so far of tasks that make shared tensors only."""
        self._needed: set[tuple[int, int, int]] = set()
        """(tensor, memory, item) that is read, one item for a shared tensor."""
        self._charged: list[Step] = []
        """Steps that name what exists, for the memory rule."""
        self._known_items: set[tuple[int, ...]] = set()
        """Items of steps that are in order."""
        self._guards = GuardCheck(graph, cluster, plan)
        self._present = Presence(graph, cluster, plan, filter(self._is_whole, plan.steps))

    def digest_faults(self) -> list[str]:
        digests = self._plan.graph_digest, self._plan.cluster_digest
        mismatches = digest_mismatches(self._graph, self._cluster, *digests)
        return [f"it was {mismatch}" for mismatch in mismatches]

    def faults(self) -> list[str]:
        if self._plan.items < 1:
            return [f"it is for {self._plan.items} items; expected at least 1"]
        for index, step in enumerate(self._plan.steps):
            if self._has_unknown_ids(index, step) or self._has_item_faults(index, step.items):
                continue
            if isinstance(step, Run):
                self._check_run(index, step)
            elif isinstance(step, Copy):
                self._check_copy(index, step)
            elif isinstance(step, Load):
                self._check_load(index, step)
            else:
                self._check_collective(index, step)
        for task_id, task in enumerate(self._graph.tasks):
            missing = [item for item in self._all_items if (task_id, item) not in self._device]
            if missing:
                self._faults.append(f"task {task.name!r} is never run{self._for(missing)}")
        ends = [*self._guards.end_faults()]
        if not self._faults:
            ends += room_faults(self._graph, self._cluster, self._plan)
        for step_index, fault in ends:
            if step_index is None:
                self._faults.append(fault)
            else:
                self._note(step_index, fault)
        self._check_needs()
        self._faults += group_faults(self._graph, self._cluster, self._device, self._for)
        self._check_memory()
        return self._faults

    @property
    def _all_items(self) -> range:
        return range(self._plan.items)

    def _for(self, items: Sequence[int]) -> str:
        """Which items a fault is about; nothing for a plan of one item."""
        if self._plan.items == 1:
            return ""
        shown = ", ".join(map(str, items[:_MAX_ITEMS_SHOWN]))
        left_out = ", ..." if len(items) > _MAX_ITEMS_SHOWN else ""
        return f" for item{'s' if len(items) > 1 else ''} {shown}{left_out}"

    def _quote(self, index: int) -> str:
        return quote_step(self._plan, index, self._graph, self._cluster)

    def _note(self, index: int, fault: str) -> None:
        """Note a fault of a step. Only then is the step put in words, which takes longer than all
        its checks."""
        self._faults.append(f"{self._quote(index)}: {fault}")

    def _is_whole(self, step: Step) -> bool:
        """Say whether what a step makes can be told."""
        if self._unknown_ids(step):
            return False
        if not isinstance(step, Collective):
            return True
        return not collective_faults(self._graph, self._cluster, step)

    def _unknown_ids(self, step: Step) -> list[tuple[str, int, int]]:
        """(kind, id, how many there are) of each id in a step that does not exist."""
        unknown = unknown_ids(self._graph, self._cluster, step)
        if unknown or isinstance(step, Collective) or step.guard is None:
            return unknown
        return unknown_guard(self._graph, step)

    def _has_unknown_ids(self, index: int, step: Step) -> bool:
        unknown = self._unknown_ids(step)
        for kind, number, count in unknown:
            self._note(index, f"no {kind} has id {number}; ids are below {count}")
        return bool(unknown)

    def _has_item_faults(self, index: int, items: tuple[int, ...]) -> bool:
        if items in self._known_items:
            return False
        is_in_plan = items and items[0] >= 0 and items[-1] < self._plan.items
        if is_in_plan and list(items) == sorted(set(items)):
            self._known_items.add(items)
            return False
        last = self._plan.items - 1
        self._note(index, f"its items are {items}; expected some of 0 to {last}, ascending")
        return True

    def _check_run(self, index: int, step: Run) -> None:
        task, device = self._graph.tasks[step.task], self._cluster.devices[step.device]
        if step.guard is None and self._has_run_before(index, step):
            return
        if self._guards.concerns_plan:
            for fault in (*self._guards.guard_faults(step), *self._guards.run_faults(step)):
                self._note(index, fault)
        if collective_kind(task.op) is not None:
            self._note(index, "the task is a collective, of several devices at once")
            return
        if task.devices is not None and device.name not in task.devices:
            allowed = ", ".join(task.devices) or "no device"
            self._note(index, f"the task is allowed on {allowed} only")
        self._check_cost(index, step)
        for place in reads(self._graph, self._cluster, step):
            self._check_read(index, step, place)
        self._make(index, step)

    def _check_collective(self, index: int, step: Collective) -> None:
        faults = collective_faults(self._graph, self._cluster, step)
        for fault in faults:
            self._note(index, fault)
        if faults or self._has_run_before(index, step):
            return
        places = reads(self._graph, self._cluster, step)
        is_one_value_each = len(self._graph.task_inputs[step.task]) == 1 and len(places) > 1
        if is_one_value_each and kind_of(self._graph, step).sums:
            self._check_parts(index, step, places)
        else:
            for place in places:
                self._check_read(index, step, place)
        self._make(index, step)

    def _has_run_before(self, index: int, step: Run | Collective) -> bool:
        """Note items for which a task runs again; what makes shared tensors only, in a memory."""
        if self._shares and self._graph.is_made_once(step.task):
            memories = dict.fromkeys(m for _, m in makes(self._graph, self._cluster, step))
            keys = [(step.task, memory, item) for memory in memories for item in step.items]
            repeated = sorted({key[2] for key in keys if key in self._made})
            self._made.update(keys)
        else:
            repeated = [item for item in step.items if (step.task, item) in self._device]
        if repeated:
            self._note(index, f"the task has run before{self._for(repeated)}")
        return bool(repeated)

    def _check_read(self, index: int, step: Step, place: Place) -> None:
        """Whether a step may read a tensor in a memory."""
        items = step.items
        self._note_read(place, items)
        if self._present.has(place, items):
            fault = self._guards.concerns_plan and self._guards.read_fault(step, place)
            if fault:
                self._note(index, fault)
            return
        absent = self._present.absent(place, items)
        name, memory = self._names(place)
        if self._present.is_replaced(place):
            self._note(index, f"state {name!r} was updated in memory {memory!r} before")
        else:
            self._note(
                index,
                f"tensor {name!r} is not in memory {memory!r} by then{self._for(absent)}",
            )

    def _check_parts(self, index: int, step: Collective, places: Sequence[Place]) -> None:
        """What each device has of a shared tensor that is added up: every item once."""
        summed: set[int] = set()
        for place in places:
            self._note_read(place, step.items)
            items = self._present.items_at(place)
            name, memory = self._names(place)
            if not items:
                self._note(index, f"tensor {name!r} is not in memory {memory!r} by then")
            twice = sorted(summed & items)
            if twice:
                self._note(
                    index,
                    f"tensor {name!r} in memory {memory!r} is added up twice{self._for(twice)}",
                )
            summed |= items
        if summed != set(step.items):
            got = ", ".join(map(str, sorted(summed)))
            self._note(index, f"it adds up items {got or 'none'}; expected those of the step")

    def _names(self, place: Place) -> tuple[str, str]:
        tensor, memory = place
        return self._graph.tensors[tensor].name, self._cluster.memories[memory].name

    def _note_read(self, place: Place, items: Iterable[int]) -> None:
        tensor, memory = place
        if self._shares:
            self._present.read(place)
            items = items_of(self._graph, tensor, tuple(items))
        self._needed.update([(tensor, memory, item) for item in items])

    def _make(self, index: int, step: Run | Collective) -> None:
        """Note what a step makes."""
        if self._graph.updates and len(step.items) < self._plan.items:
            self._note_partial_updates(index, step)
        self._charged.append(step)
        if isinstance(step, Run):
            self._guards.make(step)
        self._device.update(((step.task, item), devices_of(step)[0]) for item in step.items)
        for fault in self._present.make(step):
            self._note(index, fault)

    def _note_partial_updates(self, index: int, step: Run | Collective) -> None:
        missing = [item for item in self._all_items if item not in step.items]
        for tensor in self._graph.task_outputs[step.task]:
            if tensor in self._graph.state_of:
                state = self._graph.tensors[self._graph.state_of[tensor]].name
                self._note(
                    index,
                    f"it updates state {state!r}, which needs all items of the plan, without "
                    f"{', '.join(map(str, missing[:_MAX_ITEMS_SHOWN]))}",
                )

    def _check_cost(self, index: int, step: Run) -> None:
        """The device takes batches of that size, and their cost is known."""
        sizes = self._cluster.devices[step.device].batch_sizes
        for size in table_sizes(self._graph, self._costs, step):
            if step.guard is None and size not in sizes:
                takes = ", ".join(map(str, sizes))
                self._note(index, f"a batch of {size}; the device takes batches of {takes}")
            elif size not in self._costs.batches:
                batches = ", ".join(map(str, self._costs.batches))
                self._note(index, f"a batch of {size}; the costs are for batches of {batches}")
            else:
                cost = self._costs.cost(step.task, step.device, size)
                if cost.ns is None:
                    self._note(index, f"its cost there is {cost.source} ({cost.reason})")

    def _check_copy(self, index: int, step: Copy) -> None:
        source, target = (step.tensor, step.src), (step.tensor, step.dst)
        self._note_read(source, step.items)
        if not self._present.has(source, step.items):
            absent = self._present.absent(source, step.items)
            _, src = self._names(source)
            self._note(index, f"the tensor is not in memory {src!r} by then{self._for(absent)}")
        there = self._present.items_at(target)
        repeated = [item for item in step.items if item in there] if there else []
        if repeated and self._guards.is_other_case(step, target):
            repeated = []
        if repeated:
            _, dst = self._names(target)
            self._note(index, f"the tensor is in memory {dst!r} already{self._for(repeated)}")
        for fault in route_faults(self._cluster, step):
            self._note(index, fault)
        if self._guards.concerns_plan:
            self._check_guard(index, step)
            fault = self._guards.read_fault(step, source)
            if fault:
                self._note(index, fault)
            self._guards.make(step)
        self._charged.append(step)
        fault = self._present.copy(target, step.items)
        if fault and not repeated:
            self._note(index, fault)

    def _check_load(self, index: int, step: Load) -> None:
        self._check_guard(index, step)
        for fault in (*route_faults(self._cluster, step), *self._guards.load_faults(index, step)):
            self._note(index, fault)
        self._charged.append(step)

    def _check_guard(self, index: int, step: Copy | Load) -> None:
        """The guard of a transfer, and that the router's loads are where it looks at them."""
        for fault in self._guards.guard_faults(step):
            self._note(index, fault)
        for place in guard_reads(self._graph, step):
            self._check_read(index, step, place)

    def _check_needs(self) -> None:
        """Outputs are in the host memory, and every copy has a reader."""
        graph, cluster = self._graph, self._cluster
        if cluster.host is not None:
            for tensor in dict.fromkeys(graph.outputs):
                place = tensor, cluster.host
                self._note_read(place, self._all_items)
                absent = self._present.absent(place, self._all_items)
                name, host = self._names(place)
                fault = self._guards.read_fault(None, place)
                if fault:
                    self._faults.append(f"output {name!r} in the host memory {host!r}: {fault}")
                if absent:
                    self._faults.append(
                        f"output {name!r} does not end in the host memory "
                        f"{host!r}{self._for(absent)}"
                    )
        for index, step in enumerate(self._plan.steps):
            if not isinstance(step, Copy) or step.tensor not in range(len(graph.tensors)):
                continue
            items = items_of(graph, step.tensor, step.items)
            unread = [i for i in items if (step.tensor, step.dst, i) not in self._needed]
            if unread:
                items_left_out = step.items if items != step.items else unread
                self._note(index, f"nobody reads the tensor there{self._for(items_left_out)}")

    def _check_memory(self) -> None:
        """By the static rule; if that does not fit, by lifetime."""
        charged = replace(self._plan, steps=tuple(self._charged))
        graph, cluster = self._graph, self._cluster
        sizes = plan_memory_use(graph, cluster, charged)
        if all(size <= memory.bytes for size, memory in zip(sizes, cluster.memories, strict=True)):
            return
        if self._faults:
            # Its times are unknown; what is there all the time is not.
            needs = [LivePeak(size, None) for size in held_bytes(graph, cluster, charged)]
        else:
            needs = list(live_peaks(graph, cluster, self._costs, self._plan))
        for memory, need in short_memories(cluster, needs):
            when = "" if need.step is None else f" at {self._quote(need.step)}"
            self._faults.append(
                f"memory {memory.name!r} needs {format_bytes(need.num_bytes)}{when} and has "
                f"{format_bytes(memory.bytes)} ({need.num_bytes - memory.bytes} bytes too few)"
            )
