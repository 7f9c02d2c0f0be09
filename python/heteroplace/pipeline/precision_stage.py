"""The stage of `precision="auto"`: which tasks may multiply in bfloat16.

A network with switches (`rounded_network`) tells how far any choice of tasks moves the outputs. Of
the tasks whose bfloat16 kernels the solver chose, those that gain most by the error that they add
remain (`error_budget`). The network is placed again with these, and that plan is run as well.

A kernel is measured with float32 around it, but next to others in bfloat16 it reads and writes half
the bytes. Where costs were measured, the plan with all bfloat16 kernels that stay within the error
is therefore timed in turns with the solver's plan, and the faster one is kept.

The solution records the choice and its errors for each task (`PrecisionChoice`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import tvm

from heteroplace.lower.executable import Executable
from heteroplace.measure.timed_runs import time_in_turns, time_runs
from heteroplace.model.cost import Cost, allowed_devices, table_from_rows
from heteroplace.model.hosts import with_devices
from heteroplace.model.implementations import BFLOAT16, base_names, base_of, maker_of
from heteroplace.model.plan import Run, Step
from heteroplace.model.solution import Solution
from heteroplace.model.verification import (
    NOT_FASTER,
    NOT_MEASURED,
    TOO_FAR_OFF,
    LayerPrecision,
    PrecisionChoice,
)
from heteroplace.pipeline import core_stages
from heteroplace.pipeline.build_stages import build
from heteroplace.pipeline.error_budget import largest_error, likely_error, most_gain_within
from heteroplace.pipeline.place_stages import place
from heteroplace.pipeline.place_state import PlaceState
from heteroplace.pipeline.rounded_network import switched, with_switches
from heteroplace.place_options import PlaceOptions
from heteroplace.relay.ranges.array_intervals import legal_arrays
from heteroplace.run.executor import Executor
from heteroplace.run.missing_devices import missing_devices
from heteroplace.simulate.interference import Interference
from heteroplace.solve.problem import SolveOptions

_NUM_INPUTS, _NUM_TRIED = 16, 3
"""Seeded inputs by which a plan is judged, and by which each choice is."""
_MAX_GIVEN_TRIED = 4
"""Inputs of the caller by which each choice is judged; a plan is judged by all of them."""
_MAX_PLANS = 4
"""Plans that are built, the last of which stays within the error; else all is in float32."""


def keep_within_error(state: PlaceState) -> PlaceState:
    """Return the state with a plan whose outputs are near enough to those of float32.

    Where the devices of the plan are not in this machine, nothing can be run, and all tasks stay
    in float32.
    """
    solution = state.known_solution
    twins, low = _possible_twins(solution), _low_tasks(solution)
    if not twins:
        return state
    is_measured = any(each.source == "measured" for each in solution.costs.details)
    tasks = list(twins) if is_measured else low
    trial: _Trial | None = None
    with state.request.log.stage("precision", "Comparing bfloat16 with float32") as figures:
        if missing_devices(solution.cluster, solution.devices_used):
            reasons = dict.fromkeys(low, NOT_MEASURED)
            choice = _Choice(_solved_with(state, frozenset()), None, reasons)
        elif tasks:
            trial = _Trial(state, tasks)
            choice = trial.best(low, twins)
        else:
            choice = _Choice(solution, 0.0)
        record = _record(choice, twins, state.options.max_error, trial)
        remaining = record.num_bf16
        figures |= {"bfloat16": remaining, "float32": len(twins) - remaining}
    return replace(state, solution=replace(choice.solution, precision_choice=record))


class _Twin(NamedTuple):
    """Where a task has kernels in bfloat16, and its costs."""

    device: int
    float32_ns: int | None
    bf16_ns: int | None

    @property
    def gain_ns(self) -> int:
        return (self.float32_ns or 0) - (self.bf16_ns or 0)


@dataclass(frozen=True)
class _Choice:
    """A plan, and why tasks are in float32."""

    solution: Solution
    error: float | None
    """See `PrecisionChoice`."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """By task; of others in float32: they are not faster in bfloat16."""
    executable: Executable | None = None


def _record(
    choice: _Choice, twins: Mapping[int, _Twin], max_error: float, trial: _Trial | None
) -> PrecisionChoice:
    """Say of each task that has kernels in bfloat16 what was chosen, and why."""
    low, tasks = set(_low_tasks(choice.solution)), choice.solution.graph.tasks
    layers = []
    for task in sorted(twins):
        error, together = (None, 0) if trial is None else trial.error_with(task)
        layers.append(
            LayerPrecision(
                tasks[task].name,
                "bf16" if task in low else "float32",
                "" if task in low else choice.reasons.get(task, NOT_FASTER),
                error if error is not None and np.isfinite(error) else None,
                together,
                twins[task].float32_ns,
                twins[task].bf16_ns,
            )
        )
    return PrecisionChoice(max_error, choice.error, tuple(layers))


def _possible_twins(solution: Solution) -> dict[int, _Twin]:
    """The tasks that have bfloat16 kernels where they run, and the twin with these."""
    cluster, rows = solution.cluster, solution.costs.rows
    allowed = allowed_devices(solution.graph, cluster)
    twin_of = {
        base_of(cluster, index): index
        for index, device in enumerate(cluster.devices)
        if maker_of(device.name) == BFLOAT16
    }
    twins: dict[int, _Twin] = {}
    for step in solution.plan.steps:
        if isinstance(step, Run):
            base = base_of(cluster, step.device)
            base = step.device if base is None else base
            twin = twin_of.get(base)
            if twin is not None and twin in allowed[step.task]:
                row = rows[step.task]
                twins[step.task] = _Twin(twin, row[base].ns, row[twin].ns)

    return twins


def _low_tasks(solution: Solution) -> list[int]:
    """The tasks that run on twins with bfloat16 kernels."""
    placement = solution.plan.placement(len(solution.graph.tasks))
    twins = _possible_twins(solution)
    return [task for task, twin in twins.items() if placement[task] == twin.device]


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
        seeded = [legal_arrays(mod["main"], seed) for seed in range(_NUM_INPUTS)]
        given = [each.arrays for each in state.input_sets]
        # Those by which each choice is judged come first.
        self._inputs = [*seeded[:_NUM_TRIED], *given, *seeded[_NUM_TRIED:]]
        self._num_tried = _NUM_TRIED + min(len(given), _MAX_GIVEN_TRIED)
        self._switched = _in_float32(with_switches(mod, names), state.known_solution)
        self._errors: dict[frozenset[int], list[float]] = {}
        """By choice, for each of the first inputs, as far as they were tried."""

    def best(self, low: Sequence[int], twins: Mapping[int, _Twin]) -> _Choice:
        """Return the solver's plan with what of `low` is near enough, or the plan with all of
        `twins` that are, if that one is faster."""
        state = self._state
        with Executor(self._switched) as executor:
            plain = [self._outputs_with(executor, frozenset(), each) for each in self._inputs]
            gains = {task: twin.gain_ns for task, twin in twins.items()}
            trial = partial(self._near, executor, plain)
            of_low = {task: gains[task] for task in low}
            solved, reasons = trial(of_low, partial(_solved_with, state))
            if solved is None:
                plain_plan = _solved_with(state, frozenset())
                solved = _Choice(plain_plan, 0.0, reasons, self._built(plain_plan))
            if len(self._tasks) == len(low):
                return solved
            widest, _ = trial(gains, partial(_on_twins, state, twins))
        if widest is None:
            return solved
        assert solved.executable is not None and widest.executable is not None
        with Executor(solved.executable) as one, Executor(widest.executable) as other:
            runs = {"solved": one, "widest": other}
            timed = time_in_turns(
                {
                    name: partial(time_runs, partial(running.run, self._inputs[0]))
                    for name, running in runs.items()
                }
            )
        is_faster = timed.median_ns("widest") < timed.median_ns("solved")
        return widest if is_faster else solved

    def error_with(self, task: int) -> tuple[float | None, int]:
        """Return the error of the smallest choice with a task, and how many tasks that has; None
        and 0: there was none."""
        tried = [
            (len(tasks), -max(errors)) for tasks, errors in self._errors.items() if task in tasks
        ]
        if not tried:
            return None, 0
        together, error = min(tried)
        return -error, together

    def _built(self, solution: Solution) -> Executable:
        return build(self._state.known_compiled.with_graph(solution.graph), solution)

    def _near(
        self,
        executor: Executor,
        plain: Sequence[Sequence[np.ndarray]],
        gains: Mapping[int, int],
        solved: Callable[[frozenset[int]], Solution],
    ) -> tuple[_Choice | None, dict[int, str]]:
        """The first plan whose outputs are near enough, built; None: there is none. And why tasks
        are not in it."""
        allowed = self._state.options.max_error

        def errors_of(chosen: frozenset[int], num_inputs: int) -> list[float]:
            errors = self._errors.setdefault(chosen, [])
            for number in range(len(errors), num_inputs):
                outputs = self._outputs_with(executor, chosen, self._inputs[number])
                errors.append(largest_error(outputs, plain[number]))
            return errors[:num_inputs]

        def error_of(chosen: frozenset[int]) -> float:
            return max(errors_of(chosen, self._num_tried))

        def fits(limit: float, chosen: frozenset[int]) -> bool:
            if error_of(chosen) > limit:
                return False
            return likely_error(errors_of(chosen, len(self._inputs))) <= limit

        everything, limit = frozenset(gains), allowed
        for _ in range(_MAX_PLANS):
            chosen = most_gain_within(gains, error_of, partial(fits, limit))
            if not chosen:
                break
            solution = solved(chosen)
            executable = self._built(solution)
            with Executor(executable) as running:
                errors = [
                    largest_error(running.run(each), expected)
                    for each, expected in zip(self._inputs, plain, strict=True)
                ]
            # The plan rounds elsewhere than the network with switches does: a second sample.
            likely = likely_error([*errors, *errors_of(chosen, len(self._inputs))])
            if likely <= allowed:
                reasons = dict.fromkeys(everything - chosen, TOO_FAR_OFF)
                return _Choice(solution, max(errors), reasons, executable), reasons
            limit *= min((allowed / likely) ** 0.5, 0.98)
        return None, dict.fromkeys(everything, TOO_FAR_OFF)

    def _outputs_with(
        self, executor: Executor, chosen: frozenset[int], inputs: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        return executor.run(switched(inputs, [task in chosen for task in self._tasks]))


def _on_twins(state: PlaceState, twins: Mapping[int, _Twin], chosen: frozenset[int]) -> Solution:
    """The plan of the solver with tasks on their twins, and all others in float32."""
    costed, request, cluster = state.known_costed, state.request, state.known_costed.cluster
    steps: list[Step] = []
    for step in state.known_solution.plan.steps:
        if isinstance(step, Run):
            base = base_of(cluster, step.device)
            if step.task in chosen:
                step = replace(step, device=twins[step.task].device)
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
