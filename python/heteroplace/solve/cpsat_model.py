"""The exact model in OR-Tools CP-SAT: optional intervals instead of big-M rows (Moirai III-D).

Per task one optional interval for each device it may run on; NoOverlap for each unit and
whatever copies exclude each other on. Unlike Moirai (one transfer per edge) there is one optional
copy per tensor and destination memory, shared by all readers there; it leaves the tensor's home
over `Cluster.route`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from heteroplace.model.plan import Copy, Run, Step
from heteroplace.solve.base import Problem
from heteroplace.solve.load_rows import load_rows

Term = cp_model.LinearExpr | int
"""What a linear constraint is made of."""


class ScheduleModel:
    """The model and its variables, with the hint."""

    def __init__(self, problem: Problem, incumbent: Sequence[Step] | None, bound_ns: int) -> None:
        self._problem = problem
        self._native = problem.native
        self._graph = problem.graph
        self._cluster = problem.cluster
        self.model = cp_model.CpModel()
        self._horizon = self._find_horizon(incumbent)
        self._on_unit: list[list[cp_model.IntervalVar]] = [[] for _ in self._cluster.units]
        self._on_link: dict[int, list[cp_model.IntervalVar]] = {}
        self._on_device: list[dict[int, cp_model.IntVar]] = []
        self._in_memory: list[list[Term]] = []
        self._start: list[cp_model.IntVar] = []
        self._finish: list[cp_model.IntVar] = []
        self._copy: dict[tuple[int, int], _CopyVars] = {}
        self._workspace: list[cp_model.IntVar] = []
        # Where no plan fits the memories the bound may lie beyond the horizon.
        least = min(bound_ns, self._horizon)
        self._makespan = self.model.new_int_var(least, self._horizon, "makespan")
        self._add_tasks()
        self._add_copies()
        self._add_memory()
        self._add_load_rows()
        for intervals in (*self._on_unit, *self._on_link.values()):
            self.model.add_no_overlap(intervals)
        self.model.minimize(self._makespan)
        if incumbent is not None:
            self._add_hint(incumbent)

    def _find_horizon(self, incumbent: Sequence[Step] | None) -> int:
        """The incumbent's makespan, or one that every plan stays within."""
        if incumbent is not None:
            return self._native.simulate(incumbent).makespan_ns
        total = int(self._native.run_ns.max(axis=1).sum())
        memories = range(len(self._cluster.memories))
        for tensor in range(len(self._graph.tensors)):
            for dst in memories:
                times = [self._transfer_ns(tensor, src, dst) for src in memories]
                total += max((time for time in times if time is not None), default=0)
        return total

    def _transfer_ns(self, tensor: int, src: int, dst: int) -> int | None:
        if not self._cluster.is_reachable(src, dst):
            return None
        route = self._cluster.route(src, dst)
        return self._cluster.transfer_ns(route, self._graph.tensors[tensor].bytes)

    def _add_tasks(self) -> None:
        model = self.model
        group_first: dict[str, int] = {}
        for task_id, task in enumerate(self._graph.tasks):
            start = model.new_int_var(0, self._horizon, f"start{task_id}")
            finish = model.new_int_var(0, self._horizon, f"finish{task_id}")
            self._start.append(start)
            self._finish.append(finish)
            choice: dict[int, cp_model.IntVar] = {}
            run_terms: list[Term] = []
            for device, run_ns in enumerate(self._native.run_ns[task_id].tolist()):
                if run_ns < 0:
                    continue
                choice[device] = model.new_bool_var(f"on{task_id}_{device}")
                interval = model.new_optional_fixed_size_interval_var(
                    start, run_ns, choice[device], f"run{task_id}_{device}"
                )
                run_terms.append(run_ns * choice[device])
                for unit in self._cluster.unit_ids[device]:
                    self._on_unit[unit].append(interval)
            model.add_exactly_one(choice.values())
            model.add(finish == start + cp_model.LinearExpr.sum(run_terms))
            model.add(self._makespan >= finish)
            for other in self._graph.predecessors[task_id]:
                model.add(start >= self._finish[other])
            if task.together is not None:
                first = group_first.setdefault(task.together, task_id)
                if first != task_id:
                    for device, literal in choice.items():
                        model.add(literal == self._on_device[first][device])
            self._on_device.append(choice)
            self._in_memory.append(self._memory_terms(choice))

    def _memory_terms(self, choice: dict[int, cp_model.IntVar]) -> list[Term]:
        """For each memory an expression that is 1 if the task is on one of its devices."""
        terms: list[Term] = []
        for memory in range(len(self._cluster.memories)):
            literals = [
                literal
                for device, literal in choice.items()
                if self._cluster.devices[device].memory == memory
            ]
            terms.append(cp_model.LinearExpr.sum(literals) if literals else 0)
        return terms

    def _add_copies(self) -> None:
        """A copy is present exactly if a reader is in a memory that is not the tensor's home."""
        outputs = set(self._graph.outputs)
        for tensor_id, tensor in enumerate(self._graph.tensors):
            if tensor.producer is None and self._cluster.host is None:
                continue
            for dst in range(len(self._cluster.memories)):
                readers = [self._in_memory[task][dst] for task in tensor.consumers]
                if tensor_id in outputs and dst == self._cluster.host:
                    readers.append(1)
                readers = [reader for reader in readers if not _is_zero(reader)]
                if readers:
                    self._add_copy(tensor_id, dst, readers)

    def _home(self, tensor: int, memory: int) -> Term:
        """1 if the tensor is made in (or, a model input, arrives in) the memory."""
        producer = self._graph.tensors[tensor].producer
        if producer is None:
            return int(memory == self._cluster.host)
        return self._in_memory[producer][memory]

    def _add_copy(self, tensor: int, dst: int, readers: Sequence[Term]) -> None:
        model = self.model
        sources: dict[int, int] = {}
        for src in range(len(self._cluster.memories)):
            home = self._home(tensor, src)
            if src == dst or _is_zero(home):
                continue
            time_ns = self._transfer_ns(tensor, src, dst)
            if time_ns is not None:
                sources[src] = time_ns
                continue
            for reader in readers:
                model.add(home + reader <= 1)
        if not sources:
            return
        name = f"copy{tensor}_{dst}"
        copy = _CopyVars(
            model.new_bool_var(name),
            model.new_int_var(0, self._horizon, f"{name}start"),
            model.new_int_var(0, self._horizon, f"{name}finish"),
            {src: model.new_bool_var(f"{name}from{src}") for src in sources},
        )
        self._copy[tensor, dst] = copy
        for src, time_ns in sources.items():
            literal, home = copy.source[src], self._home(tensor, src)
            model.add(literal <= home)
            model.add(literal <= cp_model.LinearExpr.sum(readers))
            for reader in readers:
                model.add(literal >= home + reader - 1)
            interval = model.new_optional_fixed_size_interval_var(
                copy.start, time_ns, literal, f"{name}from{src}run"
            )
            route = self._cluster.route(src, dst)
            for resource in sorted(self._cluster.route_resources(route)):
                if resource < len(self._on_unit):
                    self._on_unit[resource].append(interval)
                else:
                    self._on_link.setdefault(resource, []).append(interval)
        model.add(copy.is_made == cp_model.LinearExpr.sum(list(copy.source.values())))
        terms = [time_ns * copy.source[src] for src, time_ns in sources.items()]
        model.add(copy.finish == copy.start + cp_model.LinearExpr.sum(terms))
        self._order_copy(tensor, dst, copy)

    def _order_copy(self, tensor: int, dst: int, copy: _CopyVars) -> None:
        """After its producer, before its readers and the end."""
        model = self.model
        producer = self._graph.tensors[tensor].producer
        if producer is not None:
            model.add(copy.start >= self._finish[producer]).only_enforce_if(copy.is_made)
        model.add(self._makespan >= copy.finish)
        for task in self._graph.tensors[tensor].consumers:
            for device, literal in self._on_device[task].items():
                if self._cluster.devices[device].memory == dst:
                    model.add(self._start[task] >= copy.finish).only_enforce_if(
                        [copy.is_made, literal]
                    )

    def _add_memory(self) -> None:
        """The rule of `heteroplace.model.memory`."""
        host = self._cluster.host
        kept = set() if host is None else {*self._graph.inputs, *self._graph.outputs}
        for device in range(len(self._cluster.devices)):
            sizes = [task.workspace_bytes for task in self._graph.tasks]
            largest = self.model.new_int_var(0, max(sizes), f"workspace{device}")
            for task_id, choice in enumerate(self._on_device):
                if device in choice and sizes[task_id]:
                    self.model.add(largest >= sizes[task_id] * choice[device])
            self._workspace.append(largest)
        for memory_id, memory in enumerate(self._cluster.memories):
            terms: list[Term] = []
            if memory_id == host:
                terms.append(sum(self._graph.tensors[tensor].bytes for tensor in kept))
            for task_id, task in enumerate(self._graph.tasks):
                num_bytes = task.weight_bytes
                for tensor in self._graph.task_outputs[task_id]:
                    if memory_id != host or tensor not in kept:
                        num_bytes += self._graph.tensors[tensor].bytes
                terms.append(num_bytes * self._in_memory[task_id][memory_id])
            for (tensor, dst), copy in self._copy.items():
                if dst == memory_id and (memory_id != host or tensor not in kept):
                    terms.append(self._graph.tensors[tensor].bytes * copy.is_made)
            for device_id, place in enumerate(self._cluster.devices):
                if place.memory == memory_id:
                    terms.append(self._workspace[device_id])
            self.model.add(cp_model.LinearExpr.sum(terms) <= memory.bytes)

    def _add_load_rows(self) -> None:
        """Redundant, but without them little is proven; see `load_rows`."""
        run_ns = self._native.run_ns.tolist()
        for row in load_rows(self._graph):
            begin = 0 if row.before is None else self._finish[row.before]
            end = self._makespan if row.after is None else self._start[row.after]
            terms: dict[int, list[Term]] = {}
            for task in row.tasks:
                for device, literal in self._on_device[task].items():
                    for unit in self._cluster.unit_ids[device]:
                        terms.setdefault(unit, []).append(run_ns[task][device] * literal)
            for load in terms.values():
                self.model.add(end >= begin + cp_model.LinearExpr.sum(load))

    def _add_hint(self, steps: Sequence[Step]) -> None:
        """A complete hint: CP-SAT silently drops one that leaves out a variable."""
        times = self._native.simulate(steps)
        model = self.model
        placement = self._native.placement(steps)
        made: dict[tuple[int, int], tuple[int, int, int]] = {}
        for index, step in enumerate(steps):
            start, finish = int(times.start_ns[index]), int(times.finish_ns[index])
            if isinstance(step, Run):
                model.add_hint(self._start[step.task], start)
                model.add_hint(self._finish[step.task], finish)
            else:
                made[step.tensor, step.dst] = (step.src, start, finish)
        for task, choice in enumerate(self._on_device):
            for device, literal in choice.items():
                model.add_hint(literal, int(placement[task] == device))
        for key, copy in self._copy.items():
            src, start, finish = made.get(key, (-1, 0, 0))
            model.add_hint(copy.is_made, int(src >= 0))
            model.add_hint(copy.start, start)
            model.add_hint(copy.finish, finish)
            for memory, literal in copy.source.items():
                model.add_hint(literal, int(memory == src))
        for device, largest in enumerate(self._workspace):
            sizes = [
                task.workspace_bytes
                for task, place in zip(self._graph.tasks, placement, strict=True)
                if place == device
            ]
            model.add_hint(largest, max(sizes, default=0))
        model.add_hint(self._makespan, times.makespan_ns)

    def read_steps(self, solver: cp_model.CpSolver) -> tuple[Step, ...]:
        """The solution in order of start; ties as in `src/sched/schedule.h`."""
        found: list[tuple[tuple[int, ...], Step]] = []
        for task, choice in enumerate(self._on_device):
            for device, literal in choice.items():
                if solver.boolean_value(literal):
                    start, finish = (
                        solver.value(self._start[task]),
                        solver.value(self._finish[task]),
                    )
                    found.append(((start, finish, 2 * task, task, 0), Run(task, device)))
        for (tensor, dst), copy in self._copy.items():
            for src, literal in copy.source.items():
                if solver.boolean_value(literal):
                    producer = self._graph.tensors[tensor].producer
                    rank = -1 if producer is None else 2 * producer + 1
                    start, finish = solver.value(copy.start), solver.value(copy.finish)
                    step = Copy(tensor, src, dst, self._cluster.route(src, dst))
                    found.append(((start, finish, rank, tensor, dst), step))
        return tuple(step for _, step in sorted(found, key=lambda entry: entry[0]))


@dataclass(frozen=True)
class _CopyVars:
    """Variables of the copy of one tensor to one memory."""

    is_made: cp_model.IntVar
    start: cp_model.IntVar
    finish: cp_model.IntVar
    source: dict[int, cp_model.IntVar]
    """For each possible home: the copy is made from there."""


def _is_zero(term: Term) -> bool:
    """Whether an expression is the constant 0 (a sum over no literals)."""
    return isinstance(term, int) and term == 0
