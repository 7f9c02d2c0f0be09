"""The one judge of plans: every rule of the execution model, each fault with its step.

The rules are those of `heteroplace.model.plan`. A copy may leave from any memory that holds the
tensor, over any path of links; solvers in this package use the tensor's home and `Cluster.route`.
"""

from __future__ import annotations

from heteroplace.errors import PlanError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory import memory_use
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.units import format_bytes


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
        self._present: set[tuple[int, int]] = set()
        """(tensor, memory) pairs that hold so far."""
        self._device: dict[int, int] = {}
        """Device of each task run so far."""

    def digest_faults(self) -> list[str]:
        faults = []
        pairs = (
            ("graph", self._plan.graph_digest, self._graph.digest()),
            ("cluster", self._plan.cluster_digest, self._cluster.digest()),
        )
        for kind, of_plan, given in pairs:
            if of_plan != given:
                faults.append(f"it was made for a {kind} with digest {of_plan}, not {given}")
        return faults

    def faults(self) -> list[str]:
        for tensor in self._graph.inputs:
            for memory in range(len(self._cluster.memories)):
                if self._cluster.host in (None, memory):
                    self._present.add((tensor, memory))
        for index, step in enumerate(self._plan.steps):
            if isinstance(step, Run):
                self._check_run(index, step)
            else:
                self._check_copy(index, step)
        for task_id, task in enumerate(self._graph.tasks):
            if task_id not in self._device:
                self._faults.append(f"task {task.name!r} is never run")
        self._check_needs()
        self._check_groups()
        self._check_memory()
        return self._faults

    def _check_run(self, index: int, step: Run) -> None:
        graph, cluster = self._graph, self._cluster
        if step.task not in range(len(graph.tasks)):
            self._faults.append(f"step {index} runs task {step.task}; there is no such id")
            return
        task = graph.tasks[step.task]
        if step.device not in range(len(cluster.devices)):
            self._faults.append(
                f"step {index} runs task {task.name!r} on device {step.device}; there is no such id"
            )
            return
        device = cluster.devices[step.device]
        where = f"step {index}, run {task.name!r} @{device.name}"
        if step.task in self._device:
            self._faults.append(f"{where}: the task has run before")
            return
        if task.devices is not None and device.name not in task.devices:
            allowed = ", ".join(task.devices) or "no device"
            self._faults.append(f"{where}: the task is allowed on {allowed} only")
        cost = self._costs.cost(step.task, step.device)
        if cost.ns is None:
            self._faults.append(f"{where}: its cost there is {cost.source} ({cost.reason})")
        for tensor in graph.task_inputs[step.task]:
            if (tensor, device.memory) not in self._present:
                self._faults.append(
                    f"{where}: tensor {graph.tensors[tensor].name!r} is not in memory "
                    f"{cluster.memories[device.memory].name!r} by then"
                )
        self._device[step.task] = step.device
        self._present.update((tensor, device.memory) for tensor in graph.task_outputs[step.task])

    def _check_copy(self, index: int, step: Copy) -> None:
        graph, cluster = self._graph, self._cluster
        memories = range(len(cluster.memories))
        if (
            step.tensor not in range(len(graph.tensors))
            or step.src not in memories
            or step.dst not in memories
        ):
            self._faults.append(f"step {index}: {step} holds an id that does not exist")
            return
        src, dst = cluster.memories[step.src].name, cluster.memories[step.dst].name
        where = f"step {index}, copy {graph.tensors[step.tensor].name!r} {src}->{dst}"
        if (step.tensor, step.src) not in self._present:
            self._faults.append(f"{where}: the tensor is not in memory {src!r} by then")
        if (step.tensor, step.dst) in self._present:
            self._faults.append(f"{where}: the tensor is in memory {dst!r} already")
        self._faults.extend(f"{where}: {fault}" for fault in self._route_faults(step))
        self._present.add((step.tensor, step.dst))

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
        needed = {(copy.tensor, copy.src) for copy in self._plan.copies}
        if cluster.host is not None:
            for tensor in dict.fromkeys(graph.outputs):
                needed.add((tensor, cluster.host))
                if (tensor, cluster.host) not in self._present:
                    self._faults.append(
                        f"output {graph.tensors[tensor].name!r} does not end in the host memory "
                        f"{cluster.memories[cluster.host].name!r}"
                    )
        for task, device in self._device.items():
            memory = cluster.devices[device].memory
            needed.update((tensor, memory) for tensor in graph.task_inputs[task])
        for index, step in enumerate(self._plan.steps):
            if not isinstance(step, Copy) or (step.tensor, step.dst) in needed:
                continue
            if step.tensor in range(len(graph.tensors)):
                name = graph.tensors[step.tensor].name
                self._faults.append(f"step {index} copies tensor {name!r} where nobody reads it")

    def _check_groups(self) -> None:
        groups: dict[str, dict[int, str]] = {}
        for task_id, device in sorted(self._device.items()):
            task = self._graph.tasks[task_id]
            if task.together is not None:
                groups.setdefault(task.together, {}).setdefault(device, task.name)
        for label, tasks in groups.items():
            if len(tasks) > 1:
                where = ", ".join(
                    f"{name!r} @{self._cluster.devices[device].name}"
                    for device, name in tasks.items()
                )
                self._faults.append(f"tasks labelled {label!r} must share a device: {where}")

    def _check_memory(self) -> None:
        placement = [self._device.get(task, -1) for task in range(len(self._graph.tasks))]
        copies = [
            (copy.tensor, copy.dst)
            for copy in self._plan.copies
            if copy.tensor in range(len(self._graph.tensors))
            and copy.dst in range(len(self._cluster.memories))
        ]
        used = memory_use(self._graph, self._cluster, placement, copies)
        for memory, need in zip(self._cluster.memories, used, strict=True):
            if need > memory.bytes:
                self._faults.append(
                    f"memory {memory.name!r} needs {format_bytes(need)} and has "
                    f"{format_bytes(memory.bytes)} ({need - memory.bytes} bytes too few)"
                )
