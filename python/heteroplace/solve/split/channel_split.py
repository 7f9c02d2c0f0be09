"""Modules joined by several channels: each solved exactly, joined behind barriers, then let loose.

DiviML, sections IV-D and IV-E. The bound is the recursion of `bounds/modules.py` over proven bounds
of parts; here the parts are solved several at once. For the plan each module has a few patterns, of
the best plan so far and of exact solves; a dynamic programme over patterns finds the best chain if
each module waits for the whole of the one before it and for the copies between the two. The
barriers then fall: placement and order are scheduled again, never later, and the search goes on
from there.

Unlike DiviML, whose states are the devices of all ends of a module (as many as their product), the
states are the patterns themselves.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from heteroplace.decompose.narrow_cuts import ModulePath, prefix_modules
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Run, Step
from heteroplace.native.list import evaluate_order, heft
from heteroplace.native.problem import NativePlan
from heteroplace.solve.bounds.module_path import ModuleRecursion, find_modules
from heteroplace.solve.bounds.parts import Part
from heteroplace.solve.bounds.subproblem import subproblem
from heteroplace.solve.problem import Problem
from heteroplace.solve.split.exact import Proof, search_and_prove
from heteroplace.solve.split.pool import Pool

_MAX_PART_TASKS = 100
"""Larger parts are not solved."""
_OTHER_TARGETS = (24, 48, 64)
"""Sizes of modules on the other paths, for the bound alone."""


@dataclass(frozen=True)
class Pattern:
    """A module on its own: where its tasks run, in which order, and how long that takes."""

    order: tuple[int, ...]
    device: tuple[int, ...]
    """For each task of `order`."""
    time_ns: int


def find_paths(graph: TaskGraph) -> list[ModulePath]:
    """Return paths of modules, none if there are no narrow cuts.

    The first is the one for plans. Which cuts prove most is not known before: others follow, of
    smaller modules and of larger ones, over as many channels.
    """
    first = find_modules(graph)
    if first is None or len(first.modules) < 2:
        return []
    channels = max(len(boundary.channels) for boundary in first.boundaries)
    others = [prefix_modules(graph, channels, target) for target in _OTHER_TARGETS]
    found = {path.modules: path for path in (first, *others) if len(path.modules) > 1}
    return list(found.values())


class ChannelSplit:
    """One problem and its path of modules; what is found stays. Not thread-safe."""

    def __init__(self, problem: Problem, path: ModulePath, pool: Pool) -> None:
        self._problem = problem
        self._path = path
        self._pool = pool
        self._recursion = ModuleRecursion(problem, path)
        self._parts: dict[Part, Problem] = {}
        self.patterns: list[list[Pattern]] = [[] for _ in path.modules]

    def bound_ns(self) -> int:
        """Return what is proven about the whole."""
        return self._recursion.bound()[0]

    def improve(self, *, is_thorough: bool = False) -> bool:
        """Solve the parts that the bound is a sum of, one round; False: there is none, or no
        budget. `is_thorough`: all parts, one of which may be in a larger sum."""
        critical = None if is_thorough else self._recursion.bound()[1]
        waiting = self._recursion.parts.waiting(critical, _MAX_PART_TASKS)
        if not waiting or self._pool.is_over():
            return False
        jobs = []
        for tasks in waiting:
            part = self._part(tasks)
            native = part.native
            start = heft(native, range(len(native.cluster.devices)))
            bound = self._recursion.parts.bound_ns(tasks)
            jobs.append(partial(search_and_prove, part, [start], bound))
        for tasks, proof in zip(waiting, self._pool.run(jobs), strict=True):
            # Of a part without a plan nothing more is found.
            is_final = proof.is_final or proof.steps is None
            self._recursion.parts.learn(tasks, proof.bound_ns, is_final)
            if tasks in self._path.modules:
                self._offer(self._path.modules.index(tasks), proof)
        return True

    def add_plan(self, steps: Sequence[Step]) -> None:
        """Take the patterns of a plan of the whole."""
        for index, tasks in enumerate(self._path.modules):
            inside = set(tasks)
            runs = [s for s in steps if isinstance(s, Run) and s.task in inside]
            self.add_pattern(index, [s.task for s in runs], [s.device for s in runs])

    def barrier_plan(self) -> tuple[int, list[Pattern]] | None:
        """Return the best chain of patterns and its time; None: a module has no pattern."""
        if not all(self.patterns):
            return None
        # The best chain that ends in each pattern, by (time, choices so far).
        chains: list[tuple[int, tuple[int, ...]]] = [
            (pattern.time_ns, (i,)) for i, pattern in enumerate(self.patterns[0])
        ]
        for index in range(1, len(self.patterns)):
            longer = []
            for i, pattern in enumerate(self.patterns[index]):
                candidates = []
                for time_ns, choices in chains:
                    before = self.patterns[index - 1][choices[-1]]
                    copies = self._copies_ns(index, before, pattern)
                    if copies is not None:
                        candidates.append((time_ns + copies + pattern.time_ns, (*choices, i)))
                if candidates:
                    longer.append(min(candidates))
            chains = longer
        if not chains:
            return None
        time_ns, choices = min(chains)
        return time_ns, [self.patterns[i][choice] for i, choice in enumerate(choices)]

    def without_barriers(self, chain: Sequence[Pattern]) -> NativePlan:
        """Schedule the placement and the order of a chain of patterns, nothing waiting."""
        device: list[int] = [0] * len(self._problem.graph.tasks)
        order: list[int] = []
        for pattern in chain:
            order.extend(pattern.order)
            for task, place in zip(pattern.order, pattern.device, strict=True):
                device[task] = place
        return evaluate_order(self._problem.native, device, _topological(self._problem, order))

    def _offer(self, index: int, proof: Proof) -> None:
        if proof.steps is None:
            return
        tasks = self._path.modules[index]
        runs = [step for step in proof.steps if isinstance(step, Run)]
        self.add_pattern(index, [tasks[step.task] for step in runs], [step.device for step in runs])

    def add_pattern(self, index: int, order: Sequence[int], devices: Sequence[int]) -> None:
        """Take a pattern of a module: its tasks in an order, and the device of each of those."""
        tasks = self._path.modules[index]
        local = {task: position for position, task in enumerate(tasks)}
        placement = [0] * len(tasks)
        for task, device in zip(order, devices, strict=True):
            placement[local[task]] = device
        native_plan = evaluate_order(
            self._part(tasks).native, placement, [local[task] for task in order]
        )
        pattern = Pattern(tuple(order), tuple(devices), native_plan.makespan_ns)
        if native_plan.violation == 0 and pattern not in self.patterns[index]:
            self.patterns[index].append(pattern)

    def _part(self, tasks: Part) -> Problem:
        if tasks not in self._parts:
            self._parts[tasks] = subproblem(self._problem, tasks)
        return self._parts[tasks]

    def _copies_ns(self, index: int, before: Pattern, after: Pattern) -> int | None:
        """Time of the copies between two modules, one after the other where they exclude each
        other; None: one is impossible."""
        graph, cluster = self._problem.graph, self._problem.cluster
        home = self._memories(before)
        reader = self._memories(after)
        wanted = {
            (tensor, home[src], reader[dst])
            for src, dst in self._path.boundaries[index - 1].channels
            if src in home and dst in reader and src is not None and dst is not None
            for tensor in graph.task_outputs[src]
            if dst in graph.tensors[tensor].consumers and home[src] != reader[dst]
        }
        busy: dict[int, int] = {}
        longest = 0
        for tensor, src, dst in sorted(wanted):
            if not cluster.is_reachable(src, dst):
                return None
            route = cluster.route(src, dst)
            time_ns = cluster.transfer_ns(route, graph.tensors[tensor].bytes)
            used = cluster.route_resources(route)
            start = max((busy.get(resource, 0) for resource in used), default=0)
            busy.update(dict.fromkeys(used, start + time_ns))
            longest = max(longest, start + time_ns)
        return longest

    def _memories(self, pattern: Pattern) -> dict[int, int]:
        devices = self._problem.cluster.devices
        pairs = zip(pattern.order, pattern.device, strict=True)
        return {task: devices[device].memory for task, device in pairs}


def _topological(problem: Problem, order: Sequence[int]) -> list[int]:
    """Return the topological order nearest to `order`: of what is ready, what is first there."""
    position = {task: index for index, task in enumerate(order)}
    waiting = [len(before) for before in problem.graph.predecessors]
    ready = [(position[task], task) for task, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    found = []
    while ready:
        _, task = heapq.heappop(ready)
        found.append(task)
        for after in problem.graph.successors[task]:
            waiting[after] -= 1
            if waiting[after] == 0:
                heapq.heappush(ready, (position[after], after))
    return found
