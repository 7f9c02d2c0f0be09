"""The stage of `precision="auto"`: which tasks may multiply in bfloat16.

It starts with all tasks whose bfloat16 kernels the solver chose. A group of tasks that moves the
outputs too far is halved, and a single task that does stays in float32. A network with switches
(`rounded_network`) tells how far each choice moves them. The network is placed again with what
remains, and that plan is run as well.

A kernel is measured with float32 around it, but next to others in bfloat16 it reads and writes half
the bytes. Where costs were measured, the plan with all bfloat16 kernels that stay within the error
is therefore timed in turns with the solver's plan, and the faster one is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import tvm

from heteroplace.lower.executable import Executable
from heteroplace.measure.timed_runs import time_in_turns, time_runs
from heteroplace.model.cost import Cost, allowed_devices, table_from_rows
from heteroplace.model.hosts import with_devices
from heteroplace.model.implementations import BFLOAT16, base_names, base_of, maker_of
from heteroplace.model.plan import Run, Step
from heteroplace.model.solution import Solution
from heteroplace.pipeline import core_stages
from heteroplace.pipeline.build_stages import build
from heteroplace.pipeline.place_stages import place
from heteroplace.pipeline.place_state import PlaceState
from heteroplace.pipeline.rounded_network import switched, with_switches
from heteroplace.place_options import PlaceOptions
from heteroplace.relay.ranges.array_intervals import legal_arrays
from heteroplace.run.executor import Executor
from heteroplace.run.missing_devices import missing_devices
from heteroplace.simulate.interference import Interference
from heteroplace.solve.problem import SolveOptions

_NUM_INPUTS, _NUM_TRIED = 4, 2
"""Seeded inputs by which a plan is judged, and by which each choice is."""
_SHARES = (0.6, 0.4, 0.2)
"""Of the allowed error that a choice may use up, one after the other until the plan itself does."""
_MAX_SHARE = 0.75
"""Of the allowed error that a plan may use up on these inputs: others may be worse."""
_MAX_TRIALS = 40
"""Choices, each of which runs the network with switches; what is not tried by then stays in
float32."""


def keep_within_error(state: PlaceState) -> PlaceState:
    """Return the state with a plan whose outputs are near enough to those of float32.

    Where the devices of the plan are not in this machine, nothing can be run, and all tasks stay
    in float32.
    """
    solution = state.known_solution
    twins, low = _possible_twins(solution), _low_tasks(solution)
    is_measured = any(each.source == "measured" for each in solution.costs.details)
    tasks = list(twins) if is_measured else low
    if not tasks:
        return state
    with state.request.log.stage("precision", "Comparing bfloat16 with float32") as figures:
        if missing_devices(solution.cluster, solution.devices_used):
            solution = _solved_with(state, frozenset())
        else:
            solution = _Trial(state, tasks).best(low, twins)
        remaining = len(_low_tasks(solution))
        figures |= {"bfloat16": remaining, "float32": len(tasks) - remaining}
    return replace(state, solution=solution)


def _possible_twins(solution: Solution) -> dict[int, int]:
    """The tasks that have bfloat16 kernels where they run, and the twin with these; those first
    that gain most."""
    cluster, rows = solution.cluster, solution.costs.rows
    allowed = allowed_devices(solution.graph, cluster)
    twin_of = {
        base_of(cluster, index): index
        for index, device in enumerate(cluster.devices)
        if maker_of(device.name) == BFLOAT16
    }
    gains: dict[int, tuple[int, int]] = {}
    for step in solution.plan.steps:
        if isinstance(step, Run):
            base = base_of(cluster, step.device)
            base = step.device if base is None else base
            twin = twin_of.get(base)
            if twin is not None and twin in allowed[step.task]:
                gain = (rows[step.task][base].ns or 0) - (rows[step.task][twin].ns or 0)
                gains[step.task] = gain, twin
    return {task: gains[task][1] for task in sorted(gains, key=lambda task: -gains[task][0])}


def _low_tasks(solution: Solution) -> list[int]:
    """The tasks that run on twins with bfloat16 kernels, those first that gain most by it."""
    placement = solution.plan.placement(len(solution.graph.tasks))
    return [task for task, twin in _possible_twins(solution).items() if placement[task] == twin]


def _solved_with(state: PlaceState, allowed: frozenset[int]) -> Solution:
    """The plan where only tasks that are allowed may be in bfloat16."""
    if set(_low_tasks(state.known_solution)) == allowed:
        return state.known_solution
    costed, request = state.known_costed, state.request
    devices = costed.cluster.devices
    twins = {index for index, device in enumerate(devices) if maker_of(device.name) == BFLOAT16}
    in_float32 = tuple(device.name for index, device in enumerate(devices) if index not in twins)
    tasks, rows = list(costed.graph.tasks), [list(row) for row in costed.costs.rows]
    for task in set(range(len(tasks))) - allowed:
        names = tasks[task].devices or in_float32
        remaining = tuple(name for name in names if name in in_float32)
        tasks[task] = replace(tasks[task], devices=remaining)
        for twin in twins:
            rows[task][twin] = Cost.excluded("in bfloat16 the outputs are too far off")
    graph = replace(costed.graph, tasks=tuple(tasks))
    costs = table_from_rows(graph, costed.cluster, tuple(map(tuple, rows)))

    def interference() -> Interference:
        return replace(costed.interference_known(), graph_digest=graph.digest())

    restricted = replace(
        costed,
        compiled=costed.compiled.with_graph(graph),
        costs=costs,
        measure_interference=None if costed.measure_interference is None else interference,
    )
    return core_stages.solve(restricted, request.limits, request.options.solver, request.log)


class _Trial:
    """A network with switches for some tasks, and how far they move the outputs."""

    def __init__(self, state: PlaceState, tasks: Sequence[int]) -> None:
        compiled = state.known_compiled
        mod, names = compiled.network.mod, [compiled.graph.tasks[task].name for task in tasks]
        self._state, self._tasks = state, tasks
        self._inputs = [legal_arrays(mod["main"], seed) for seed in range(_NUM_INPUTS)]
        self._switched = _in_float32(with_switches(mod, names), state.known_solution)

    def best(self, low: Sequence[int], twins: Mapping[int, int]) -> Solution:
        """Return the solver's plan with what of `low` is near enough, or the plan with all of
        `twins` that are, if that one is faster."""
        state = self._state
        with Executor(self._switched) as executor:
            plain = self._outputs_with(executor, frozenset(), _NUM_INPUTS)
            trial = partial(self._near, executor, plain)
            solved = trial(low, partial(_solved_with, state))
            if solved is None:
                plain_plan = _solved_with(state, frozenset())
                solved = plain_plan, self._built(plain_plan)
            if len(self._tasks) == len(low):
                return solved[0]
            widest = trial(self._tasks, partial(_on_twins, state, twins))
        if widest is None:
            return solved[0]
        with Executor(solved[1]) as one, Executor(widest[1]) as other:
            runs = {"solved": one, "widest": other}
            timed = time_in_turns(
                {
                    name: partial(time_runs, partial(running.run, self._inputs[0]))
                    for name, running in runs.items()
                }
            )
        is_faster = timed.median_ns("widest") < timed.median_ns("solved")
        return widest[0] if is_faster else solved[0]

    def _built(self, solution: Solution) -> Executable:
        return build(self._state.known_compiled.with_graph(solution.graph), solution)

    def _near(
        self,
        executor: Executor,
        plain: Sequence[np.ndarray],
        tasks: Sequence[int],
        solved: Callable[[frozenset[int]], Solution],
    ) -> tuple[Solution, Executable] | None:
        """The first plan whose outputs are near enough, built; None: there is none."""
        allowed = self._state.options.max_error
        tried = plain[: len(plain) * _NUM_TRIED // _NUM_INPUTS]

        def fits(limit: float, chosen: frozenset[int]) -> bool:
            outputs = self._outputs_with(executor, chosen, _NUM_TRIED)
            return largest_error(outputs, tried) <= limit

        for share in _SHARES:
            chosen = largest_fitting(tasks, partial(fits, share * allowed), _MAX_TRIALS)
            if not chosen:
                return None
            solution = solved(chosen)
            executable = self._built(solution)
            with Executor(executable) as running:
                error = largest_error(_outputs(running, self._inputs), plain)
            if error <= _MAX_SHARE * allowed:
                return solution, executable
        return None

    def _outputs_with(
        self, executor: Executor, chosen: frozenset[int], num_inputs: int
    ) -> list[np.ndarray]:
        on = [task in chosen for task in self._tasks]
        return _outputs(executor, [switched(each, on) for each in self._inputs[:num_inputs]])


def _on_twins(state: PlaceState, twins: Mapping[int, int], chosen: frozenset[int]) -> Solution:
    """The plan of the solver with tasks on their twins, and all others in float32."""
    costed, request, cluster = state.known_costed, state.request, state.known_costed.cluster
    steps: list[Step] = []
    for step in state.known_solution.plan.steps:
        if isinstance(step, Run):
            base = base_of(cluster, step.device)
            if step.task in chosen:
                step = replace(step, device=twins[step.task])
            elif base is not None and maker_of(cluster.devices[step.device].name) == BFLOAT16:
                step = replace(step, device=base)
        steps.append(step)
    plan = replace(state.known_solution.plan, steps=tuple(steps))
    return core_stages.solve(costed, request.limits, request.options.solver, request.log, plan)


def _in_float32(mod: tvm.IRModule, solution: Solution) -> Executable:
    """A network compiled for the CPU with most cores among those that the plan uses."""
    cluster = solution.cluster
    used = map(cluster.device_id, solution.devices_used)
    names = base_names(cluster)
    bases = {cluster.device_id(names[index]) for index in used}
    cpus = [index for index in bases if cluster.devices[index].cores]
    part = with_devices(cluster, [max(cpus, key=lambda index: len(cluster.devices[index].cores))])
    options = PlaceOptions(solver="heft", costs="estimate", verify="off")
    compiled, plain = place(mod, part, options, SolveOptions())
    return build(compiled, plain)


def _outputs(executor: Executor, inputs: Sequence[Mapping[str, np.ndarray]]) -> list[np.ndarray]:
    return [output.copy() for each in inputs for output in executor.run(each)]


def largest_fitting(
    tasks: Sequence[int], fits: Callable[[frozenset[int]], bool], max_trials: int
) -> frozenset[int]:
    """Return tasks that fit together; groups of those that do not are halved and tried again.

    Examples
    --------
    >>> sorted(largest_fitting(range(8), lambda tried: 5 not in tried, 16))
    [0, 1, 2, 3, 4, 6, 7]
    """
    fitting: frozenset[int] = frozenset()
    groups = [tuple(tasks)]
    for _ in range(max_trials):
        if not groups:
            break
        group = groups.pop(0)
        if fits(fitting.union(group)):
            fitting = fitting.union(group)
        elif len(group) > 1:
            middle = len(group) // 2
            groups[:0] = [group[:middle], group[middle:]]
    return fitting


def largest_error(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """Return the largest difference of an output, by its largest absolute value; infinite where
    one of both is no number, or an integer differs.

    Examples
    --------
    >>> round(largest_error([np.float32([1, 2.02])], [np.float32([1, 2])]), 4)
    0.01
    """
    worst = 0.0
    for output, expected in zip(outputs, reference, strict=True):
        if np.array_equal(output, expected, equal_nan=expected.dtype.kind == "f"):
            continue
        gap = np.abs(output.astype(np.float64) - expected.astype(np.float64)).max()
        scale = np.abs(expected.astype(np.float64)).max()
        is_known = expected.dtype.kind == "f" and np.isfinite(gap) and scale > 0
        worst = max(worst, float(gap / scale) if is_known else np.inf)
    return worst
