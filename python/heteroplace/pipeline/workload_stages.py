"""The modules of several entries of one model -> placements of all of them, made together.

The stages run for each entry up to its costs. Then all entries are placed at once, and the other
stages run for each entry with its plan. Where all devices share one memory, each entry is placed by
itself, as nothing but the size of the memory connects them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relay

from heteroplace.entries import load_entry
from heteroplace.errors import InfeasibleError, SolverError
from heteroplace.listed_sizes import ListedSizes
from heteroplace.lower.executable import Executable
from heteroplace.lower.program_entries import with_entries
from heteroplace.measure.cost_models import CostOptions
from heteroplace.model.cluster import Cluster
from heteroplace.model.memory_use.memory import plan_memory_use
from heteroplace.model.plan import Plan
from heteroplace.model.units import format_bytes
from heteroplace.model.workload_solution import WorkloadSolution
from heteroplace.pipeline.place_stages import (
    build_placed,
    outcome,
    place_stages,
    requested_keywords,
)
from heteroplace.pipeline.place_state import PlaceRequest, PlaceState
from heteroplace.pipeline.stage import Stage, run_stages
from heteroplace.pipeline.state_stages import states_of_tasks
from heteroplace.place_options import read_options
from heteroplace.registry import load_plugin
from heteroplace.relay.expr_map import ExprSet
from heteroplace.relay.expressions import post_order_of_function
from heteroplace.relay.opt_level import default_opt_level
from heteroplace.relay.tasks.network import Network
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.workload.solve_workload import SolvedWorkload, solve_workload
from heteroplace.solve.workload.workload import Entry, Weights, Workload
from heteroplace.stage_log import StageLog

_WITH_LENGTHS = "heteroplace.pipeline.padding_check:with_lengths"
"""Loaded for a file that takes calls of any length."""
_SOLVE = "solve"
"""The stage that is done for all entries at once."""
_MIN_SHARED_BYTES = 1024
"""Smaller constants count for each task that reads them."""


@dataclass(frozen=True)
class EntryModule:
    """A model at the sizes of one entry, in Relay."""

    mod: tvm.IRModule
    keywords: Mapping[str, Any]
    """Options of `HeteroPlace`, weights included."""
    calls: int
    """How often the workload calls it."""


@default_opt_level()
def place_workload(modules: Mapping[str, EntryModule], cluster: Cluster) -> WorkloadSolution:
    """Place all entries of a model together; only kernels are compiled, for their costs.

    Parameters
    ----------
    modules
        By the names of the entries. None carries a plan.

    Raises
    ------
    SolverError
        An entry has a plan already, is for throughput or several items, or the entries
        do not fit together.
    HeteroPlaceError
        See `pipeline.place`.
    """
    return _solved(modules, cluster)[1]


@default_opt_level()
def compile_workload(
    modules: Mapping[str, EntryModule],
    cluster: Cluster,
    log: StageLog | None = None,
    listed: ListedSizes | None = None,
) -> tuple[Executable, WorkloadSolution]:
    """Place all entries together, and compile them into one executable.

    Parameters
    ----------
    modules, cluster
        As of `place_workload`.
    log
        Notes the time of each stage that follows the plans.
    listed
        The size that each call may choose, whose values the entries are for; None: there is none.

    Raises
    ------
    PaddingError
        Results depend on padding, so no call may choose the size.
    """
    states, solution = _solved(modules, cluster)
    executables = {}
    for name, state in states.items():
        keywords = requested_keywords(modules[name].keywords)
        executables[name] = build_placed(modules[name].mod, state, keywords, log)
    joined = with_entries(executables)
    if listed is None:
        return joined, solution
    request = next(iter(states.values())).request
    with request.log.timed("padding", "Compare padded calls of all entries."):
        request.log.say("Checking that padding changes no output")
        max_error = request.options.max_error
        return load_entry(_WITH_LENGTHS)(joined, executables, listed, max_error), solution


@default_opt_level()
def costed_workload(modules: Mapping[str, EntryModule], cluster: Cluster) -> Workload:
    """Return what `place_workload` solves: the entries with their costs, weights and state."""
    return _workload(modules, _costed(modules, cluster))


def _costed(modules: Mapping[str, EntryModule], cluster: Cluster) -> dict[str, PlaceState]:
    """The state of each entry before it is placed."""
    stages, number = _stages()
    costed = {}
    for name, entry in modules.items():
        options, limits = read_options(requested_keywords(entry.keywords))
        log = StageLog.of(options.progress)
        costs = CostOptions(options.store, log, options.missing)
        state = PlaceState(PlaceRequest(options, limits, log, costs), entry.mod, cluster)
        costed[name] = run_stages(stages[:number], state, log)
        _check(name, costed[name], limits)
    return costed


def _solved(
    modules: Mapping[str, EntryModule], cluster: Cluster
) -> tuple[dict[str, PlaceState], WorkloadSolution]:
    """The last state of each entry, and the solution of all of them."""
    stages, number = _stages()
    costed = _costed(modules, cluster)
    first = next(iter(costed.values()))
    has_one_memory = len({device.memory for device in first.cluster.devices}) == 1
    solved = None if has_one_memory else _solve(modules, costed)
    states = {}
    for name, state in costed.items():
        if solved is not None:
            (plan,) = (each.plan for each in solved.result.entries if each.name == name)
            state = _with_plan(state, plan)
        states[name] = outcome(run_stages(stages[number:], state, state.request.log))
    if solved is not None:
        return states, _solution(states, solved)
    return states, _solution_in_one_memory(_workload(modules, costed), states)


def _solve(modules: Mapping[str, EntryModule], costed: Mapping[str, PlaceState]) -> SolvedWorkload:
    """Place all entries at once."""
    request = next(iter(costed.values())).request
    with (
        request.log.timed("workload", "Find where weights of all entries lie, and plans."),
        request.log.stage(_SOLVE, "Placing all entries", request.limits.time_limit_s) as figures,
    ):
        workload = _workload(modules, costed)
        result = solve_workload(workload, request.limits, solver=request.options.solver)
        figures |= {"predicted_ns": result.objective_ns, "bound_ns": result.bound_ns}
    return SolvedWorkload(workload, result, request.limits, request.options.solver)


def _stages() -> tuple[tuple[Stage[PlaceState], ...], int]:
    """The stages of placing, and how many of them come before a plan is made."""
    stages = place_stages()
    return stages, [stage.name for stage in stages].index(_SOLVE)


def _with_plan(state: PlaceState, plan: Plan) -> PlaceState:
    """The state with the plan of its entry, which has its guards if the network has routers."""
    costed = state.known_costed
    if costed.graph.routers:
        plan = load_plugin("routers", "guarded-plan")(costed.graph, costed.cluster, plan)
    return replace(state, entry_plan=plan)


def _check(name: str, state: PlaceState, limits: SolveOptions) -> None:
    """Raise SolverError for entries that are not placed together with others."""
    reason = ""
    if state.saved is not None:
        reason = "has a plan by plan_in; leave out plan_in, or the workload"
    elif limits.objective != "latency" or state.items > 1:
        reason = "is to be placed for throughput or several items; a workload is for latency"
    if reason:
        raise SolverError(f"entry {name!r} {reason}")


def _workload(modules: Mapping[str, EntryModule], states: Mapping[str, PlaceState]) -> Workload:
    entries: list[Entry] = []
    names: set[str] = set()
    for name, state in states.items():
        costed = state.known_costed
        graph, costs = costed.graph, costed.costs
        if graph.routers:
            view = load_plugin("routers", "expected-view")
            graph, costs = view(graph, costed.cluster, costs, costed.profile)
        problem = Problem(graph, costed.cluster, costs)
        weights = list(task_weights(state.known_network))
        for task, held in states_of_tasks(state).items():
            own = [(f"state {input_}", num_bytes) for input_, num_bytes in held]
            weights[task] = (*weights[task], *own)
            names |= {each for each, _ in own}
        entries.append(Entry(name, problem, modules[name].calls, tuple(weights)))
    return Workload(tuple(entries), frozenset(names))


def task_weights(network: Network) -> tuple[Weights, ...]:
    """Return for each task its constants by what they hold, with the bytes that its kernels hold.

    Raises
    ------
    SolverError
        The module was annotated by hand, so its tasks are not those of one fused function.
    """
    if network.extraction is None:
        raise SolverError(
            "the module of an entry is annotated by hand; a workload places entries itself, so "
            "leave out the annotations"
        )
    result: list[Weights] = []
    for task, call in zip(network.graph.tasks, network.extraction.calls, strict=True):
        nodes = [*call.args, *post_order_of_function(call.op)]
        constants = ExprSet(each for each in nodes if isinstance(each, relay.Constant))
        arrays = [constant.data.numpy() for constant in constants]
        total = max(1, sum(array.nbytes for array in arrays))
        # Kernels may hold weights in another type than the model has them in.
        held = {
            _content(array): array.nbytes * task.weight_bytes // total
            for array in arrays
            if array.nbytes >= _MIN_SHARED_BYTES
        }
        result.append(tuple((f"{name}:{size}", size) for name, size in held.items()))
    return tuple(result)


def _content(array: np.ndarray) -> str:
    """A digest of what an array holds."""
    digest = hashlib.blake2b(f"{array.dtype}{array.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(array).reshape(-1).view("uint8").data)
    return digest.hexdigest()


def _solution(states: Mapping[str, PlaceState], solved: SolvedWorkload) -> WorkloadSolution:
    workload, result = solved.workload, solved.result
    memories = [memory.name for memory in workload.cluster.memories]
    return WorkloadSolution(
        {name: state.known_solution for name, state in states.items()},
        {entry.name: entry.calls for entry in workload.entries},
        result.bound_ns,
        dict(zip(memories, result.weight_bytes, strict=True)),
        dict(zip(memories, result.value_bytes, strict=True)),
        solved,
    )


def _solution_in_one_memory(
    workload: Workload, states: Mapping[str, PlaceState]
) -> WorkloadSolution:
    """Of entries that were placed one by one: in one memory only its size connects them.

    Raises
    ------
    InfeasibleError
        The memory is too small for all of them together.
    """
    solutions = {name: state.known_solution for name, state in states.items()}
    calls = {entry.name: entry.calls for entry in workload.entries}
    memory = workload.cluster.devices[0].memory
    values = 0
    for each in solutions.values():
        use = plan_memory_use(each.graph, each.cluster, each.plan)[memory]
        values += use - sum(task.weight_bytes for task in each.graph.tasks)
    weights, room = workload.all_weight_bytes, workload.cluster.memories[memory]
    if weights + values > room.bytes:
        raise InfeasibleError(
            f"memory {room.name!r} has {format_bytes(room.bytes)}; all entries together take "
            f"{format_bytes(weights)} of weights and state, each once, and {format_bytes(values)} "
            f"of tensors. Give it more room, or place fewer entries"
        )
    return WorkloadSolution(
        solutions,
        calls,
        sum(calls[name] * each.bound_ns for name, each in solutions.items()),
        {room.name: weights},
        {room.name: values},
    )
