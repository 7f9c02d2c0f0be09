"""A module as a problem of its own, with prices at its ends; plans in the terms of a module.

The module starts when its entry has finished in some memory, and ends when its exit has. Two tasks
stand for what lies around it: `entry`, which makes the tensors that are read from the entry, and
`exit`, on the device of the module's exit and after it. How long they take in each memory are the
prices (Lagrange multipliers) of the program that joins the modules, so that any exact solver,
search or bound for plain problems finds the best pair of ends; a memory without a price is not
allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Collective, Copy, Load, Run, Step, devices_of
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.parts.throughput.decompose.serial_modules import ChainModule
from heteroplace.solve.problem import Problem

Pair = tuple[int, int]
"""Memories of the entry and of the exit; NO_END where the chain ends."""
NO_END = -1
Prices = Mapping[int, int]
"""For each allowed memory a time in ns, >= 0; {NO_END: 0} where the chain ends."""
LocalStep = tuple[int, int, int, int]
"""(0, task, device, -1) or (1, tensor, destination, source); tasks and tensors by their positions
in the module, so that equal modules share plans."""
Key = tuple[object, ...]


@dataclass(frozen=True)
class LocalModule:
    """Where in its problem a module is: local positions to ids."""

    problem: Problem
    extent: ChainModule

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """Tensors that the module reads or makes: the entry's first, then by their makers."""
        graph = self.problem.graph
        reads = {tensor for task in self.extent.tasks for tensor in graph.task_inputs[task]}
        entry = () if self.extent.entry is None else graph.task_outputs[self.extent.entry]
        tensor_ids = [tensor for tensor in entry if tensor in reads]
        tensor_ids.extend(sorted(t for t in reads if graph.tensors[t].producer is None))
        for task in self.extent.tasks:
            tensor_ids.extend(graph.task_outputs[task])
        return tuple(tensor_ids)

    @cached_property
    def num_entry_tensors(self) -> int:
        """How many of `tensors` the entry makes."""
        makers = [self.problem.graph.tensors[tensor].producer for tensor in self.tensors]
        return 0 if self.extent.entry is None else makers.count(self.extent.entry)

    @cached_property
    def entries(self) -> tuple[int, ...]:
        """Memories where the entry may be, ascending."""
        return _memories(self.problem, self.extent.entry)

    @cached_property
    def exits(self) -> tuple[int, ...]:
        """Memories where the exit may be, ascending."""
        return _memories(self.problem, self.extent.exit)

    @cached_property
    def key(self) -> Key:
        """Equal for modules that are the same problem under other names."""
        graph, native = self.problem.graph, self.problem.native
        task_of, tensor_of = self._task_of, self._tensor_of
        outputs = set() if self.problem.cluster.host is None else set(graph.outputs)
        groups: dict[int, int] = {}
        tensors = tuple(
            (graph.tensors[t].bytes, t in outputs, graph.tensors[t].producer is None)
            for t in self.tensors
        )
        rows: list[object] = [tensors, self.num_entry_tensors, self.entries]
        rows.append(-1 if self.extent.exit is None else task_of[self.extent.exit])
        for task in self.extent.tasks:
            group = int(native.task_group[task])
            rows.append(
                (
                    tuple(native.run_ns[task].tolist()),
                    graph.tasks[task].weight_bytes,
                    graph.tasks[task].workspace_bytes,
                    groups.setdefault(group, len(groups)) if group >= 0 else -1,
                    tuple(tensor_of[tensor] for tensor in graph.task_inputs[task]),
                    tuple(tensor_of[tensor] for tensor in graph.task_outputs[task]),
                )
            )
        return tuple(rows)

    def free(self) -> ModuleProblem:
        """Return the module as a problem with both ends anywhere, at no price."""
        return ModuleProblem(self, dict.fromkeys(self.entries, 0), dict.fromkeys(self.exits, 0))

    def pinned(self, pair: Pair) -> ModuleProblem:
        """Return the module as a problem with its ends in the two memories."""
        return ModuleProblem(self, {pair[0]: 0}, {pair[1]: 0})

    def steps(self, local: Iterable[LocalStep]) -> list[Step]:
        """Return steps of the whole problem."""
        cluster = self.problem.cluster
        return [
            Run(self.extent.tasks[subject], where)
            if kind == 0
            else Copy(self.tensors[subject], src, where, cluster.route(src, where))
            for kind, subject, where, src in local
        ]

    def local_steps(self, steps: Iterable[Step]) -> tuple[LocalStep, ...]:
        """Return steps of this module in its own terms."""
        return tuple(map(self._local_step, steps))

    def _local_step(self, step: Step) -> LocalStep:
        if isinstance(step, Copy):
            return 1, self._tensor_of[step.tensor], step.dst, step.src
        assert not isinstance(step, Load)  # solvers load nothing
        return 0, self._task_of[step.task], _device(step), -1

    @cached_property
    def _task_of(self) -> dict[int, int]:
        return {task: index for index, task in enumerate(self.extent.tasks)}

    @cached_property
    def _tensor_of(self) -> dict[int, int]:
        return {tensor: index for index, tensor in enumerate(self.tensors)}


def split_steps(
    problem: Problem, modules: Sequence[ChainModule], steps: Iterable[Step]
) -> list[list[Step]]:
    """Return the steps of each module: its runs, and the copies of what it makes or reads first.

    What an exit makes is copied in the module behind it.
    """
    module_of = {task: index for index, module in enumerate(modules) for task in module.tasks}
    exits = {module.exit for module in modules}
    steps_of: list[list[Step]] = [[] for _ in modules]
    for step in steps:
        if isinstance(step, (Run, Collective)):
            index = module_of[step.task]
        else:
            assert isinstance(step, Copy)  # solvers load nothing
            maker = problem.graph.tensors[step.tensor].producer
            # Inputs are only copied where there is a host, and then all in the first module.
            index = 0 if maker is None else module_of[maker] + (maker in exits)
        steps_of[index].append(step)
    return steps_of


class ModuleProblem:
    """The problem of one module with prices at its ends."""

    def __init__(
        self,
        module: LocalModule,
        entry_ns: Prices,
        exit_ns: Prices,
        memory_bytes: Sequence[int] | None = None,
    ) -> None:
        """`memory_bytes`: what the module may use in each memory; None: as much as there is."""
        self.module = module
        self.entry_ns = entry_ns
        self.exit_ns = exit_ns
        self._has_entry = module.extent.entry is not None
        self._has_exit = module.extent.exit is not None
        graph = self._graph()
        whole = module.problem
        is_end = not (self._has_entry and self._has_exit)
        self._cluster = whole.cluster if is_end else replace(whole.cluster, host=None)
        if memory_bytes is not None:
            pairs = zip(self._cluster.memories, memory_bytes, strict=True)
            memories = tuple(replace(memory, bytes=max(1, size)) for memory, size in pairs)
            self._cluster = replace(self._cluster, memories=memories)
        self.problem = Problem(graph, self._cluster, self._costs(graph), whole.frees_tensors)
        self._first_device = {
            device.memory: index for index, device in reversed([*enumerate(whole.cluster.devices)])
        }

    def _graph(self) -> TaskGraph:
        module, graph = self.module, self.module.problem.graph
        builder = TaskGraphBuilder(f"{graph.name}, {len(module.extent.tasks)} tasks")
        names = {tensor: f"v{index}" for index, tensor in enumerate(module.tensors)}
        exit_label = self._exit_label()
        if self._has_entry:
            builder.add_task(Task("entry", "entry"), [])
        for index, tensor in enumerate(module.tensors):
            size = graph.tensors[tensor].bytes
            if index < module.num_entry_tensors:
                builder.add_tensor("entry", num_bytes=size, name=names[tensor])
            elif graph.tensors[tensor].producer is None:
                builder.add_input(names[tensor], num_bytes=size)
        for task in module.extent.tasks:
            original = graph.tasks[task]
            label = original.together
            if task == module.extent.exit:
                label = exit_label
            copy = Task(
                f"t{task}",
                original.op,
                weight_bytes=original.weight_bytes,
                workspace_bytes=original.workspace_bytes,
                together=label,
            )
            builder.add_task(copy, [names[t] for t in graph.task_inputs[task]])
            for tensor in graph.task_outputs[task]:
                size = graph.tensors[tensor].bytes
                builder.add_tensor(copy.name, num_bytes=size, name=names[tensor])
        if self._has_exit:
            assert module.extent.exit is not None
            reads = [names[tensor] for tensor in graph.task_outputs[module.extent.exit]]
            builder.add_task(Task("exit", "exit", together=exit_label), reads)
        outputs = [names[tensor] for tensor in graph.outputs if tensor in names]
        return builder.finalize(outputs)

    def _exit_label(self) -> str:
        """The label of the exit, or one that no task has."""
        module, tasks = self.module, self.module.problem.graph.tasks
        label = None if module.extent.exit is None else tasks[module.extent.exit].together
        if label is not None:
            return label
        others = {tasks[task].together for task in module.extent.tasks}
        label = "exit"
        while label in others:
            label += "'"
        return label

    def _costs(self, graph: TaskGraph) -> CostTable:
        whole = self.module.problem
        rows = whole.native.run_ns[list(self.module.extent.tasks)].tolist()
        if self._has_entry:
            rows.insert(0, self._end_row(self.entry_ns, is_entry=True))
        if self._has_exit:
            rows.append(self._end_row(self.exit_ns, is_entry=False))

        def cost(task: int, device: int) -> Cost:
            time_ns = rows[task][device]
            return Cost.unsupported("not allowed") if time_ns == IMPOSSIBLE else Cost.given(time_ns)

        return build_table(graph, self._cluster, cost)

    def _end_row(self, prices: Prices, *, is_entry: bool) -> list[int]:
        """The entry runs on the first device of a memory: only the memory matters."""
        seen: set[int] = set()
        row = []
        for device in self.module.problem.cluster.devices:
            is_left_out = is_entry and device.memory in seen
            seen.add(device.memory)
            row.append(IMPOSSIBLE if is_left_out else prices.get(device.memory, IMPOSSIBLE))
        return row

    def has(self, pair: Pair) -> bool:
        """Say whether both ends have a price."""
        return pair[0] in self.entry_ns and pair[1] in self.exit_ns

    def price(self, pair: Pair) -> int:
        """Return what the two ends add to the makespan."""
        return self.entry_ns[pair[0]] + self.exit_ns[pair[1]]

    def pairs(self) -> list[Pair]:
        """Return all pairs that have a price."""
        return [(a, b) for a in self.entry_ns for b in self.exit_ns]

    def move_ends(self, devices: Sequence[int], pair: Pair) -> list[int]:
        """Return a placement of this problem with its ends where the pair wants them."""
        moved = list(devices)
        if self._has_entry:
            moved[0] = self._first_device[pair[0]]
        if not self._has_exit or self._cluster.devices[moved[-1]].memory == pair[1]:
            return moved
        group = self.problem.native.task_group
        members = [task for task in range(len(moved)) if group[task] == group[-1]]
        run_ns = self.problem.native.run_ns[members]
        device = min(
            (int(run_ns[:, index].sum()), index)
            for index, where in enumerate(self._cluster.devices)
            if where.memory == pair[1] and (run_ns[:, index] != IMPOSSIBLE).all()
        )[1]
        for task in members:
            moved[task] = device
        return moved

    def with_ends(self, pair: Pair, local: Sequence[LocalStep]) -> tuple[Step, ...]:
        """Return local steps as a plan of this problem, with the two ends."""
        shift = int(self._has_entry)
        steps: list[Step] = []
        if self._has_entry:
            steps.append(Run(0, self._first_device[pair[0]]))
        exit_device = -1
        for kind, subject, where, src in local:
            if kind == 0:
                steps.append(Run(subject + shift, where))
                if self._has_exit and self.module.extent.tasks[subject] == self.module.extent.exit:
                    exit_device = where
            else:
                steps.append(Copy(subject, src, where, self._cluster.route(src, where)))
        if self._has_exit:
            steps.append(Run(len(self.module.extent.tasks) + shift, exit_device))
        return tuple(steps)

    def without_ends(self, steps: Sequence[Step]) -> tuple[Pair, tuple[LocalStep, ...]]:
        """Return the pair that a plan of this problem has, and its local steps."""
        shift = int(self._has_entry)
        count = len(self.module.extent.tasks)
        ends = [NO_END, NO_END]
        local: list[LocalStep] = []
        for step in steps:
            if isinstance(step, Copy):
                local.append((1, step.tensor, step.dst, step.src))
                continue
            assert not isinstance(step, Load)
            if self._has_entry and step.task == 0:
                ends[0] = self._cluster.devices[_device(step)].memory
            elif step.task - shift == count:
                ends[1] = self._cluster.devices[_device(step)].memory
            else:
                local.append((0, step.task - shift, _device(step), -1))
        return (ends[0], ends[1]), tuple(local)


def _device(step: Run | Collective) -> int:
    (device,) = devices_of(step)  # no solver sees a collective
    return device


def _memories(problem: Problem, task: int | None) -> tuple[int, ...]:
    if task is None:
        return (NO_END,)
    row = problem.native.run_ns[task].tolist()
    devices = problem.cluster.devices
    return tuple(sorted({devices[d].memory for d, ns in enumerate(row) if ns != IMPOSSIBLE}))
