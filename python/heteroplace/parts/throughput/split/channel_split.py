"""Modules joined by several channels: each solved exactly, joined behind barriers, then let loose.

DiviML, sections IV-D and IV-E. The bound is the recursion of `bounds/module_recursion.py` over
proven bounds of subsets of the modules' tasks; here these are solved several at once. For the plan
each module has a few patterns, of the best plan so far and of exact solves; a dynamic program
over patterns finds the best chain if each module waits for the whole of the one before it and for
the copies between the two. The barriers then fall: placement and order are scheduled again, never
later, and the search goes on from there.

Unlike DiviML, whose states are the devices of all ends of a module (as many as their product), the
states are the patterns themselves.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from heteroplace.model.plan import Run, Step
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import evaluate_order, heft
from heteroplace.parts.throughput.bounds.module_recursion import ModuleRecursion
from heteroplace.parts.throughput.bounds.subproblem import subproblem
from heteroplace.parts.throughput.bounds.subset_bounds import Subset
from heteroplace.parts.throughput.decompose.narrow_cuts import ModulePath
from heteroplace.parts.throughput.split.exact import Proof, search_and_prove
from heteroplace.parts.throughput.split.pool import Pool
from heteroplace.solve.bounds.quick import quick_bound
from heteroplace.solve.problem import Problem

_MAX_SOLVED_TASKS = 100
"""Larger subsets are not solved."""


@dataclass(frozen=True)
class Pattern:
    """A module on its own: where its tasks run, in which order, and how long that takes."""

    order: tuple[int, ...]
    device: tuple[int, ...]
    """For each task of `order`."""
    time_ns: int


class ChannelSplit:
    """One problem and its path of modules; what is found stays. Not thread-safe."""

    def __init__(self, problem: Problem, path: ModulePath, pool: Pool) -> None:
        self._problem = problem
        self._path = path
        self._pool = pool
        self._recursion = ModuleRecursion(problem, path)
        self._subproblems: dict[Subset, Problem] = {}
        self.patterns: list[list[Pattern]] = [[] for _ in path.modules]

    def bound_ns(self) -> int:
        """Return what is proven about the whole."""
        return self._recursion.bound()[0]

    def improve(self, *, is_thorough: bool = False) -> bool:
        """Solve the subsets that the bound is a sum of, one round; False: there is none, or no
        budget. `is_thorough`: all, one of which may be in a larger sum."""
        subsets = self._recursion.subsets
        critical = None if is_thorough else self._recursion.bound()[1]
        waiting = subsets.open_subsets(critical, _MAX_SOLVED_TASKS)
        if not waiting or self._pool.is_over():
            return False
        jobs = []
        for tasks in waiting:
            problem = self._subproblem(tasks)
            native = problem.native
            start = heft(native, range(len(native.cluster.devices)))
            bound = subsets.bound_ns(tasks)
            jobs.append(partial(search_and_prove, problem, [start], bound))
        for tasks, proof in zip(waiting, self._pool.run(jobs), strict=True):
            if proof.steps is None and self._pool.was_interrupted:
                continue  # It did not begin.
            bound, is_final = proof.bound_ns, proof.is_final
            if proof.steps is None:
                # The exact solver needs a plan to begin with, and none is found.
                bound, is_final = max(bound, self._quick_ns(tasks)), True
            subsets.learn(tasks, bound, is_final)
            if tasks in self._path.modules:
                self._offer(self._path.modules.index(tasks), proof)
        return True

    def _quick_ns(self, tasks: Subset) -> int:
        return quick_bound(self._subproblem(tasks), time_limit_s=self._pool.left_s()).ns

    def improve_any(self) -> bool:
        """Solve those subsets, or all if these are done, one round."""
        return self.improve() or self.improve(is_thorough=True)

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
            for task, chosen in zip(pattern.order, pattern.device, strict=True):
                device[task] = chosen
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
            self._subproblem(tasks).native, placement, [local[task] for task in order]
        )
        pattern = Pattern(tuple(order), tuple(devices), native_plan.makespan_ns)
        if native_plan.violation == 0 and pattern not in self.patterns[index]:
            self.patterns[index].append(pattern)

    def _subproblem(self, tasks: Subset) -> Problem:
        if tasks not in self._subproblems:
            self._subproblems[tasks] = subproblem(self._problem, tasks)
        return self._subproblems[tasks]

    def _copies_ns(self, index: int, before: Pattern, after: Pattern) -> int | None:
        """Time of the copies between two modules, one after the other where they exclude each
        other; None: one is impossible."""
        graph, cluster = self._problem.graph, self._problem.cluster
        home = self._memories(before)
        reader = self._memories(after)
        requested = {
            (tensor, home[src], reader[dst])
            for src, dst in self._path.boundaries[index - 1].channels
            if src in home and dst in reader and src is not None and dst is not None
            for tensor in graph.task_outputs[src]
            if dst in graph.tensors[tensor].consumers and home[src] != reader[dst]
        }
        busy: dict[int, int] = {}
        longest = 0
        for tensor, src, dst in sorted(requested):
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
    topological = []
    while ready:
        _, task = heapq.heappop(ready)
        topological.append(task)
        for after in problem.graph.successors[task]:
            waiting[after] -= 1
            if waiting[after] == 0:
                heapq.heappush(ready, (position[after], after))
    return topological
