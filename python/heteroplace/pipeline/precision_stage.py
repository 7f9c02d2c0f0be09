"""The stage of `precision="auto"`: which tasks may multiply in bfloat16.

It starts with all tasks whose bfloat16 kernels the solver chose. A group of tasks that moves the
outputs too far is halved, and a single task that does stays in float32. A network with switches
(`rounded_network`) tells how far each choice moves them. The network is placed again with what
remains, and that plan is run as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import tvm

from heteroplace.lower.executable import Executable
from heteroplace.model.cost import Cost, table_from_rows
from heteroplace.model.hosts import with_devices
from heteroplace.model.implementations import BFLOAT16, base_of, maker_of
from heteroplace.model.plan import Run
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
    low = _low_tasks(solution)
    if not low:
        return state
    with state.request.log.stage("precision", "Comparing bfloat16 with float32") as figures:
        if missing_devices(solution.cluster, solution.devices_used):
            solution = _solved_with(state, low, frozenset())
        else:
            solution = _within(state, low)
        remaining = len(_low_tasks(solution))
        figures |= {"bfloat16": remaining, "float32": len(low) - remaining}
    return replace(state, solution=solution)


def _low_tasks(solution: Solution) -> list[int]:
    """The tasks that run on twins with bfloat16 kernels, those first that gain most by it."""
    cluster, rows = solution.cluster, solution.costs.rows
    gains: dict[int, int] = {}
    for step in solution.plan.steps:
        if isinstance(step, Run) and maker_of(cluster.devices[step.device].name) == BFLOAT16:
            base = base_of(cluster, step.device)
            assert base is not None  # a twin stands beside its device
            theirs, ours = rows[step.task][base].ns, rows[step.task][step.device].ns
            gains[step.task] = (theirs or 0) - (ours or 0)
    return sorted(gains, key=lambda task: -gains[task])


def _solved_with(state: PlaceState, low: Sequence[int], allowed: frozenset[int]) -> Solution:
    """The plan where of the tasks `low` only those that are allowed may be in bfloat16."""
    raised = frozenset(low) - allowed
    if not raised:
        return state.known_solution
    costed, request = state.known_costed, state.request
    devices = costed.cluster.devices
    twins = {index for index, device in enumerate(devices) if maker_of(device.name) == BFLOAT16}
    in_float32 = tuple(device.name for index, device in enumerate(devices) if index not in twins)
    tasks, rows = list(costed.graph.tasks), [list(row) for row in costed.costs.rows]
    for task in raised:
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


def _within(state: PlaceState, low: Sequence[int]) -> Solution:
    """The best plan, with tasks of `low` in bfloat16, whose outputs are near enough."""
    compiled, allowed = state.known_compiled, state.options.max_error
    mod, names = compiled.network.mod, [compiled.graph.tasks[task].name for task in low]
    inputs = [legal_arrays(mod["main"], seed) for seed in range(_NUM_INPUTS)]
    with Executor(_in_float32(with_switches(mod, names), state.known_solution)) as executor:
        reference = _outputs(executor, [switched(each, [False] * len(low)) for each in inputs])
        tried = inputs[:_NUM_TRIED]
        tried_reference = reference[: len(reference) * _NUM_TRIED // _NUM_INPUTS]

        def fits(limit: float, tasks: frozenset[int]) -> bool:
            on = [task in tasks for task in low]
            outputs = _outputs(executor, [switched(each, on) for each in tried])
            return largest_error(outputs, tried_reference) <= limit

        for share in _SHARES:
            chosen = largest_fitting(low, partial(fits, share * allowed), _MAX_TRIALS)
            if not chosen:
                break
            solution = _solved_with(state, low, chosen)
            with Executor(build(compiled.with_graph(solution.graph), solution)) as running:
                if largest_error(_outputs(running, inputs), reference) <= _MAX_SHARE * allowed:
                    return solution
    return _solved_with(state, low, frozenset())


def _in_float32(mod: tvm.IRModule, solution: Solution) -> Executable:
    """A network compiled for the CPU with most cores among those that the plan uses."""
    cluster = solution.cluster
    used = map(cluster.device_id, solution.devices_used)
    bases = (base_of(cluster, index) for index in used)
    cpus = [index for index in bases if index is not None and cluster.devices[index].cores]
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
