"""The one judge of plans: every rule of the execution model, each fault with its step.

The rules are those of `heteroplace.model.plan`. A copy may leave from any memory that holds the
tensor, over any path of links; solvers in this package use the tensor's home and `Cluster.route`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from heteroplace.errors import PlanError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.digests import digest_mismatches
from heteroplace.model.graph import TaskGraph
from heteroplace.model.live_memory import LivePeak, held_bytes, live_peaks
from heteroplace.model.memory import plan_memory_use
from heteroplace.model.plan import Copy, Plan, Run, Step
from heteroplace.model.text.plan import quote_step
from heteroplace.model.units import format_bytes

_MAX_ITEMS_SHOWN = 8


def check_plan(graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan) -> None:
    """Raise unless `plan` runs `graph` on `cluster`.

    Raises
    ------
    PlanError
        The plan breaks a rule; the message lists every fault. If the plan belongs to another graph
        or cluster, only that is said.
    CostMismatchError
        `costs` belongs to another graph or cluster.
    """
    costs.check(graph, cluster)
    checker = _Checker(graph, cluster, costs, plan)
    faults = checker.digest_faults() or checker.faults()
    if faults:
        lines = "".join(f"\n  - {fault}" for fault in faults)
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
        self._present: set[tuple[int, int, int]] = set()
        """(tensor, memory, item) that hold so far."""
        self._device: dict[tuple[int, int], int] = {}
        """Device of each (task, item) run so far."""
        self._charged: list[Step] = []
        """Steps that name what exists, for the memory rule."""
        self._known_items: set[tuple[int, ...]] = set()
        """Items of steps that are in order."""

    def digest_faults(self) -> list[str]:
        plan = self._plan
        mismatches = digest_mismatches(
            self._graph, self._cluster, plan.graph_digest, plan.cluster_digest
        )
        return [f"it was {mismatch}" for mismatch in mismatches]

    def faults(self) -> list[str]:
        if self._plan.items < 1:
            return [f"it is for {self._plan.items} items; expected at least 1"]
        memories = range(len(self._cluster.memories))
        homes = memories if self._cluster.host is None else (self._cluster.host,)
        for tensor in self._graph.inputs:
            for memory in homes:
                self._present.update(self._each(tensor, memory, self._all_items))
        for index, step in enumerate(self._plan.steps):
            if isinstance(step, Run):
                self._check_run(index, step)
            else:
                self._check_copy(index, step)
        for task_id, task in enumerate(self._graph.tasks):
            missing = [item for item in self._all_items if (task_id, item) not in self._device]
            if missing:
                self._faults.append(f"task {task.name!r} is never run{self._for(missing)}")
        self._check_needs()
        self._check_groups()
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

    @staticmethod
    def _each(tensor: int, memory: int, items: Iterable[int]) -> list[tuple[int, int, int]]:
        return [(tensor, memory, item) for item in items]

    def _absent(self, tensor: int, memory: int, items: Iterable[int]) -> list[int]:
        """The items whose `tensor` is not in `memory` so far."""
        return [item for item in items if (tensor, memory, item) not in self._present]

    def _quote(self, index: int) -> str:
        return quote_step(self._plan, index, self._graph, self._cluster)

    def _note(self, index: int, fault: str) -> None:
        """Note a fault of a step. Only then is the step put in words, which takes longer than all
        its checks."""
        self._faults.append(f"{self._quote(index)}: {fault}")

    def _has_unknown_ids(self, index: int, *ids: tuple[str, int, Sequence[object]]) -> bool:
        """Note each (kind, id, what there is) whose id does not exist."""
        unknown = [one for one in ids if one[1] not in range(len(one[2]))]
        for kind, number, known in unknown:
            self._note(index, f"no {kind} has id {number}; ids are below {len(known)}")
        return bool(unknown)

    def _has_item_faults(self, index: int, items: tuple[int, ...]) -> bool:
        if items in self._known_items:
            return False
        known = items and items[0] >= 0 and items[-1] < self._plan.items
        if known and list(items) == sorted(set(items)):
            self._known_items.add(items)
            return False
        last = self._plan.items - 1
        self._note(index, f"its items are {items}; expected some of 0 to {last}, ascending")
        return True

    def _check_run(self, index: int, step: Run) -> None:
        graph, cluster = self._graph, self._cluster
        ids = (("task", step.task, graph.tasks), ("device", step.device, cluster.devices))
        if self._has_unknown_ids(index, *ids) or self._has_item_faults(index, step.items):
            return
        task, device = graph.tasks[step.task], cluster.devices[step.device]
        repeated = [item for item in step.items if (step.task, item) in self._device]
        if repeated:
            self._note(index, f"the task has run before{self._for(repeated)}")
            return
        if task.devices is not None and device.name not in task.devices:
            allowed = ", ".join(task.devices) or "no device"
            self._note(index, f"the task is allowed on {allowed} only")
        self._check_cost(index, step)
        for tensor in graph.task_inputs[step.task]:
            absent = self._absent(tensor, device.memory, step.items)
            if absent:
                self._note(
                    index,
                    f"tensor {graph.tensors[tensor].name!r} is not in memory "
                    f"{cluster.memories[device.memory].name!r} by then{self._for(absent)}",
                )
        self._charged.append(step)
        self._device.update(((step.task, item), step.device) for item in step.items)
        for tensor in graph.task_outputs[step.task]:
            self._present.update(self._each(tensor, device.memory, step.items))

    def _check_cost(self, index: int, step: Run) -> None:
        """The device takes batches of that size, and their cost is known."""
        size = len(step.items)
        sizes = self._cluster.devices[step.device].batch_sizes
        if size not in sizes:
            takes = ", ".join(map(str, sizes))
            self._note(index, f"a batch of {size}; the device takes batches of {takes}")
        elif size not in self._costs.batches:
            known = ", ".join(map(str, self._costs.batches))
            self._note(index, f"a batch of {size}; the costs are for batches of {known}")
        else:
            cost = self._costs.cost(step.task, step.device, size)
            if cost.ns is None:
                self._note(index, f"its cost there is {cost.source} ({cost.reason})")

    def _check_copy(self, index: int, step: Copy) -> None:
        graph, cluster = self._graph, self._cluster
        ids = (
            ("tensor", step.tensor, graph.tensors),
            ("memory", step.src, cluster.memories),
            ("memory", step.dst, cluster.memories),
        )
        if self._has_unknown_ids(index, *ids) or self._has_item_faults(index, step.items):
            return
        absent = self._absent(step.tensor, step.src, step.items)
        if absent:
            src = cluster.memories[step.src].name
            self._note(index, f"the tensor is not in memory {src!r} by then{self._for(absent)}")
        arrived = set(self._absent(step.tensor, step.dst, step.items))
        repeated = [item for item in step.items if item not in arrived]
        if repeated:
            dst = cluster.memories[step.dst].name
            self._note(index, f"the tensor is in memory {dst!r} already{self._for(repeated)}")
        for fault in self._route_faults(step):
            self._note(index, fault)
        self._charged.append(step)
        self._present.update(self._each(step.tensor, step.dst, step.items))

    def _route_faults(self, step: Copy) -> list[str]:
        links = self._cluster.links
        unknown = [link for link in step.route if link not in range(len(links))]
        if unknown:
            return [f"its route has link ids that do not exist: {unknown}"]
        memory = step.src
        for link in step.route:
            if links[link].src != memory:
                name = self._cluster.memories[memory].name
                return [f"its route breaks at link {links[link].name!r}, not from memory {name!r}"]
            memory = links[link].dst
        if memory != step.dst or not step.route:
            name = self._cluster.memories[memory].name
            return [f"its route ends in memory {name!r}"]
        return []

    def _check_needs(self) -> None:
        """Outputs are in the host memory, and every copy has a reader."""
        graph, cluster = self._graph, self._cluster
        needed: set[tuple[int, int, int]] = set()
        for copy in self._plan.copies:
            needed.update(self._each(copy.tensor, copy.src, copy.items))
        if cluster.host is not None:
            for tensor in dict.fromkeys(graph.outputs):
                needed.update(self._each(tensor, cluster.host, self._all_items))
                absent = self._absent(tensor, cluster.host, self._all_items)
                if absent:
                    self._faults.append(
                        f"output {graph.tensors[tensor].name!r} does not end in the host memory "
                        f"{cluster.memories[cluster.host].name!r}{self._for(absent)}"
                    )
        for (task, item), device in self._device.items():
            memory = cluster.devices[device].memory
            needed.update((tensor, memory, item) for tensor in graph.task_inputs[task])
        for index, step in enumerate(self._plan.steps):
            if not isinstance(step, Copy) or step.tensor not in range(len(graph.tensors)):
                continue
            unread = [i for i in step.items if (step.tensor, step.dst, i) not in needed]
            if unread:
                self._note(index, f"nobody reads the tensor there{self._for(unread)}")

    def _check_groups(self) -> None:
        """Tasks of one colocation group share a device, item by item."""
        groups: dict[tuple[str, int], dict[int, str]] = {}
        for (task_id, item), device in sorted(self._device.items()):
            task = self._graph.tasks[task_id]
            if task.together is not None:
                groups.setdefault((task.together, item), {}).setdefault(device, task.name)
        for (group, item), tasks in groups.items():
            if len(tasks) > 1:
                where = ", ".join(
                    f"{name!r} @{self._cluster.devices[device].name}"
                    for device, name in tasks.items()
                )
                self._faults.append(
                    f"tasks of colocation group {group!r} must share a device"
                    f"{self._for([item])}: {where}"
                )

    def _check_memory(self) -> None:
        """By the static rule; if that does not fit, by lifetime, which is for one item."""
        charged = replace(self._plan, steps=tuple(self._charged))
        graph, cluster, steps = self._graph, self._cluster, charged.steps
        needs = [LivePeak(size, None) for size in plan_memory_use(graph, cluster, charged)]
        fits = all(n.num_bytes <= m.bytes for n, m in zip(needs, cluster.memories, strict=True))
        if fits:
            return
        if self._plan.items == 1:
            if self._faults:
                # Its times are unknown; what is there all the time is not.
                needs = [LivePeak(size, None) for size in held_bytes(graph, cluster, steps)]
            else:
                needs = list(live_peaks(graph, cluster, self._costs, self._plan))
        for memory, need in zip(cluster.memories, needs, strict=True):
            if need.num_bytes > memory.bytes:
                when = "" if need.step is None else f" at {self._quote(need.step)}"
                self._faults.append(
                    f"memory {memory.name!r} needs {format_bytes(need.num_bytes)}{when} and has "
                    f"{format_bytes(memory.bytes)} ({need.num_bytes - memory.bytes} bytes too few)"
                )
