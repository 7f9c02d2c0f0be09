"""A chain of modules for several items: pairs of compositions by search, joined by shortest paths.

    best[t][c'] = min over c of best[t - 1][c] + time of module t from composition c to c'

(DiviML, section IV-C). Modules are barriers here, so that the joined plan is an upper bound; what
is returned is its layout, which runs without barriers, and never later.

Of the states of a boundary those are looked at that known plans have there, then those in which the
modules on both sides would be fastest with all tasks split alike. Equal pairs, of equal modules or
under exchanges of equal devices and nodes, are solved once. Pairs near the shortest path are
searched again, longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from threading import Event

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.parts.throughput.batched.device_symmetry import DeviceSymmetry
from heteroplace.parts.throughput.decompose.serial_modules import ChainModule
from heteroplace.parts.throughput.native.core_batches import (
    BatchLayout,
    Composition,
    batch_compositions,
)
from heteroplace.parts.throughput.split.batched_module import (
    BatchedModule,
    Pair,
    SearchEffort,
    State,
)
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.problem import Problem

MAX_STATES = 24
"""Compositions of a boundary that are looked at, those of known plans among them."""
_MAX_DEVICES = 8
"""With more devices only compositions of known plans are: there are too many of three parts."""
MAX_TRANSITIONS = 200
"""From one state through a module, to states behind it as they lie to it."""
_NEAR = 1.03
"""A pair is searched again if a path over it is at most that much longer than the best."""
_FACTORS = 8, 32
"""How much longer."""
_FAR = 1 << 62
COSTS_PER_S = 20_000
"""Of tasks on devices in batches, that become those of modules in a second."""
_MAKING_SHARE = 0.25


@dataclass(frozen=True)
class ChainBudget:
    """What all searches of a chain may take."""

    deadline: Deadline
    evaluations: int
    """Layouts that are tried for a pair at first, for each task."""
    seed: int
    threads: int
    stop: Event
    """Set by Ctrl-C; all searches end soon then."""


_Job = tuple[BatchedModule, Pair]


@dataclass(frozen=True)
class _Transition:
    """A way through a module."""

    before: State
    """In common order."""
    behind: State
    """As it lies to `before`."""
    state: State
    """`behind` in common order."""
    pair: Pair
    """What stands for both, and for all that are equal."""


@dataclass(frozen=True)
class _Arrival:
    """The best way to a state: both ends of the module before it, as they were looked at."""

    time_ns: int
    """Until the exit has ended."""
    before: State | None
    """In common order; None: the chain begins here."""
    behind: State
    """As it is next to `before`; in common order it is the key."""


class BatchedChain:
    """The modules of a problem and what is known of them. Not thread-safe."""

    def __init__(
        self,
        problem: Problem,
        chain: Sequence[ChainModule],
        items: int,
        block: int,
        symmetry: DeviceSymmetry,
    ) -> None:
        self._problem = problem
        self._items, self._block = items, block
        self._symmetry = symmetry
        self.modules = [BatchedModule(problem, extent, items, block, symmetry) for extent in chain]
        classes: dict[object, BatchedModule] = {}
        self._class_of = [classes.setdefault(module.key, module) for module in self.modules]
        self.num_searches = 0
        """How many searches of pairs there were."""
        self._deadline = NEVER
        self._states: list[tuple[State, ...]] = []
        """For each boundary, those at both ends of the chain among them."""
        self._known_transitions: dict[
            tuple[int, tuple[State, ...], tuple[State, ...]], tuple[_Transition, ...]
        ] = {}

    @property
    def num_classes(self) -> int:
        """How many modules differ."""
        return len({id(module) for module in self._class_of})

    @property
    def num_pairs(self) -> int:
        """How many pairs of states there are, equal ones once."""
        return len(self._pairs())

    def find_states(self, layouts_known: Iterable[BatchLayout], deadline: Deadline = NEVER) -> None:
        """Choose the states of all boundaries; those of known layouts come first.

        Raises
        ------
        TimeUpError
            Past the deadline, also later on, as long as nothing has been searched.
        """
        layouts = tuple(layouts_known)
        self._deadline = deadline
        self._known_transitions.clear()
        self._states = [((),)]
        for module, behind in zip(self.modules[:-1], self.modules[1:], strict=True):
            exit_ = module.extent.exit
            assert exit_ is not None
            deadline.check()
            states = [self._state(layout.device[exit_].tolist()) for layout in layouts]
            near = partial(_estimate, (module, behind))
            states += sorted(self._compositions(exit_), key=lambda state: (near(state), state))
            self._states.append(tuple(dict.fromkeys(states))[:MAX_STATES])
        self._states.append(((),))

    def improve(self, budget: ChainBudget) -> None:
        """Search all pairs, then those near the shortest path, longer each time."""
        self._search_all(self._pairs(), budget, 1)
        for factor in _FACTORS:
            if self.best_ns() is None:
                return
            self._search_all(self._near_pairs(), budget, factor)

    def best_ns(self) -> int | None:
        """Return the makespan with barriers between modules; None: no path is known."""
        last = self._arrivals()[-1].get(())
        return None if last is None else last.time_ns

    def layout(self) -> BatchLayout:
        """Return the layout of the shortest path; there is one."""
        num_devices = len(self._problem.cluster.devices)
        num_blocks = self._items // self._block
        device = np.zeros((len(self._problem.graph.tasks), num_blocks), dtype=np.int64)
        key = np.zeros((len(device), num_devices))
        actual = list(range(num_devices))
        """The device that each of the common order at the boundary stands for."""
        place: list[int] | None = None
        """Of each block at the boundary."""
        for index, (module, (before, behind)) in enumerate(
            zip(self.modules, self._path(), strict=True)
        ):
            plan = self._class_of[index].plan(before, behind)
            assert plan is not None
            layout = plan.found.layout
            own = np.array([actual[where] for where in plan.devices])
            local = own[layout.device]
            order = list(range(num_blocks))
            if place is not None:
                # Block i of the module is the one that is where its entry has it.
                order = _matching(local[module.entry].tolist(), place)
            ranks = _ranks(layout.key)
            for position, task in enumerate(module.tasks):
                if position != module.entry:
                    device[task, order] = local[position]
                    key[task, own] = index + ranks[position]
            if module.exit >= 0:
                place = device[module.tasks[module.exit]].tolist()
                shown = self._symmetry.canonical(behind)
                actual = [actual[where] for where in shown]
        return BatchLayout(device, key)

    def _state(self, devices: Sequence[int]) -> State:
        """In common order."""
        counts = [0] * len(self._problem.cluster.devices)
        for device in devices:
            counts[device] += 1
        return self._common(tuple(counts))

    def _common(self, state: State) -> State:
        if not state:
            return ()
        return tuple(state[device] for device in self._symmetry.canonical(state))

    def _compositions(self, task: int) -> list[State]:
        if len(self._problem.cluster.devices) > _MAX_DEVICES:
            return []
        compositions = list(batch_compositions(self._problem.native, task, self._items))
        compositions += self._even_compositions(task)
        common_states = set()
        for parts in compositions:
            if all(size % self._block == 0 for _, size in parts):
                counts = [0] * len(self._problem.cluster.devices)
                for device, size in parts:
                    counts[device] = size // self._block
                common_states.add(self._common(tuple(counts)))
        return sorted(common_states)

    def _even_compositions(self, task: int) -> list[Composition]:
        """Those of more than three parts in which all parts are of one size."""
        costs = self._problem.costs
        compositions: list[Composition] = []
        for count in range(4, len(self._problem.cluster.devices) + 1):
            size, rest = divmod(self._items, count)
            if rest or size not in costs.batches:
                continue
            row = self._problem.native.batch_run_ns[costs.batches.index(size), task]
            runs = np.flatnonzero(row != IMPOSSIBLE).tolist()
            compositions += [tuple((d, size) for d in some) for some in combinations(runs, count)]
        return compositions

    def _transitions(self, index: int) -> tuple[_Transition, ...]:
        """All ways through a module; equal modules between equal boundaries share them."""
        module = self._class_of[index]
        key = id(module), self._states[index], self._states[index + 1]
        if key not in self._known_transitions:
            self._deadline.check()
            # Behind the module all exchanges count, as they lie differently to its entry.
            images = [
                (image, state)
                for state in self._states[index + 1]
                for image in self._symmetry.images(state)
            ][:MAX_TRANSITIONS]
            self._known_transitions[key] = tuple(
                _Transition(before, behind, state, module.common(before, behind)[0])
                for before in self._states[index]
                for behind, state in images
            )
        return self._known_transitions[key]

    def _pairs(self) -> list[_Job]:
        """All that may be searched, those first that promise most; equal ones once."""
        jobs: dict[tuple[int, Pair], tuple[int, BatchedModule, Pair]] = {}
        for index, module in enumerate(self._class_of):
            for way in self._transitions(index):
                if (id(module), way.pair) not in jobs:
                    estimate = max(map(module.estimate_ns, way.pair))
                    jobs[id(module), way.pair] = estimate, module, way.pair
        ordered = sorted(jobs.values(), key=lambda entry: (entry[0], entry[2]))
        return [(module, pair) for _, module, pair in ordered]

    def _near_pairs(self) -> list[_Job]:
        """Those on paths that are hardly longer than the best, not yet proven; equal ones once."""
        arrivals, rests = self._arrivals(), self._rests()
        limit = arrivals[-1][()].time_ns * _NEAR
        jobs: dict[tuple[int, Pair], _Job] = {}
        for index, module in enumerate(self._class_of):
            for way in self._transitions(index):
                best, arrival = module.known.get(way.pair), arrivals[index].get(way.before)
                if best is None or arrival is None or best.makespan_ns <= module.bound_ns:
                    continue
                rest = rests[index + 1].get(way.state, _FAR)
                if arrival.time_ns + best.makespan_ns + rest <= limit:
                    jobs.setdefault((id(module), way.pair), (module, way.pair))
        return list(jobs.values())

    def _search_all(self, jobs: Sequence[_Job], budget: ChainBudget, factor: int) -> None:
        """Search pairs at once; what is found does not depend on the number of threads."""
        for module in {id(module): module for module, _ in jobs}.values():
            if budget.deadline.is_over():
                return
            _ = module.bound_ns  # made before several threads ask for it

        def run(job: _Job) -> bool:
            module, pair = job
            left = budget.deadline.left_s()
            if not left or budget.stop.is_set():
                return False
            count = budget.evaluations * factor * len(module.tasks)
            result = module.search(
                pair, SearchEffort(count, left, budget.seed + factor, budget.stop)
            )
            best = module.known.get(pair)
            if result is not None and (best is None or result.makespan_ns < best.makespan_ns):
                module.known[pair] = result
            return True

        with ThreadPoolExecutor(budget.threads) as executor:
            try:
                self.num_searches += sum(executor.map(run, jobs))
            except KeyboardInterrupt:
                budget.stop.set()

    def _arrivals(self) -> list[dict[State, _Arrival]]:
        """For each boundary the best ways to its states, in common order."""
        best_arrivals: list[dict[State, _Arrival]] = [{(): _Arrival(0, None, ())}]
        for index, module in enumerate(self._class_of):
            reached: dict[State, _Arrival] = {}
            for way in self._transitions(index):
                best, arrival = module.known.get(way.pair), best_arrivals[-1].get(way.before)
                if best is None or arrival is None:
                    continue
                time_ns = arrival.time_ns + best.makespan_ns
                if way.state not in reached or time_ns < reached[way.state].time_ns:
                    reached[way.state] = _Arrival(time_ns, way.before, way.behind)
            best_arrivals.append(reached)
        return best_arrivals

    def _rests(self) -> list[dict[State, int]]:
        """For each boundary the least time behind its states."""
        rests: list[dict[State, int]] = [{(): 0}]
        for index in reversed(range(len(self._class_of))):
            rest: dict[State, int] = {}
            for way in self._transitions(index):
                best, later = self._class_of[index].known.get(way.pair), rests[0].get(way.state)
                if best is not None and later is not None:
                    time_ns = best.makespan_ns + later
                    rest[way.before] = min(rest.get(way.before, _FAR), time_ns)
            rests.insert(0, rest)
        return rests

    def _path(self) -> list[Pair]:
        """The ends of each module on the shortest path: that of the entry in common order."""
        arrivals = self._arrivals()
        path: list[Pair] = []
        state: State = ()
        for reached in reversed(arrivals[1:]):
            arrival = reached[state]
            assert arrival.before is not None
            path.insert(0, (arrival.before, arrival.behind))
            state = arrival.before
        return path


def too_large(problem: Problem, deadline: Deadline) -> bool:
    """Say whether making the modules would take a large part of the time, so that hardly any pair
    were searched."""
    costs = problem.costs
    num_costs = len(problem.graph.tasks) * costs.num_devices * len(costs.batches)
    return num_costs > COSTS_PER_S * _MAKING_SHARE * deadline.left_s()


def _estimate(modules: Iterable[BatchedModule], state: State) -> int:
    return sum(module.estimate_ns(state) for module in modules)


def _matching(devices: Sequence[int], place: Sequence[int]) -> list[int]:
    """For each block a different one of those that are on its device."""
    there: dict[int, list[int]] = {}
    for block, device in enumerate(place):
        there.setdefault(device, []).append(block)
    return [there[device].pop(0) for device in devices]


def _ranks(keys: np.ndarray) -> np.ndarray:
    """Keys as numbers in [0, 1) in the same order."""
    return np.argsort(np.argsort(keys, axis=None, kind="stable")).reshape(keys.shape) / keys.size
