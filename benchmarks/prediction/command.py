"""`benchmarks prediction`: what was promised for a plan, beside what its run takes.

A network is compiled once. Random plans, the plans of all solvers and those of one device are
written over the same kernels and weights, loaded into this process, and run in turns. What a row
has, `prediction_rows` says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.differences import largest_difference
from benchmarks.peers.stock import in_pass_context
from benchmarks.peers.turns import (
    balanced_rounds,
)
from benchmarks.place.command import PlaceOptions, default_solvers
from benchmarks.plots import check_can_plot, plot_predictions
from benchmarks.prediction.options import DEFAULT_MODELS, PredictionOptions
from benchmarks.prediction.random_plans import random_plans
from benchmarks.prediction.rows import PlannedRun, Row, RowMaker
from benchmarks.prediction.table import prediction_table, scatter_groups
from benchmarks.run.comparison import Prepared, core_to_core_probe, prepare_model
from heteroplace.errors import HeteroPlaceError
from heteroplace.lower.executable import write_programs
from heteroplace.machine.local import local_cluster
from heteroplace.measure.measured_interference import measure_interference
from heteroplace.measure.timed_runs import (
    TimedRuns,
    time_in_turns,
)
from heteroplace.model.cluster import Cluster
from heteroplace.model.hosts import with_devices
from heteroplace.model.plan import Plan, Step
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.progress import prefixed
from heteroplace.report.accuracy import error_ratios
from heteroplace.report.divergence import divergence_table, divergences
from heteroplace.run.executor import Executor
from heteroplace.simulate.expect import Expectation, expect
from heteroplace.simulate.interference import Interference
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.list.single import single_plan
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.solvers import get_solver
from heteroplace.stats import median
from zoo.models.catalogue import Model, load_model, matching_names

Say = Callable[[str], None]

_WORST = 3
"""So many plans are explained."""
_MIN_RUNS = 1
"""Of a turn, beside the one that warms up: a transformer takes half a second."""
_TIMELINE_NS = 200_000_000
_MIN_TIMELINES, _MAX_TIMELINES = 3, 15
"""A plan is run with clocks about so long, within these limits."""


def run(options: PredictionOptions, say: Say) -> Iterator[Row]:
    """Measure the networks that are asked for; yield the rows.

    Raises
    ------
    HeteroPlaceError
        A network cannot be compiled or run, or the plot cannot be written.
    """
    if options.plot is not None:
        check_can_plot(options.plot)
    names = matching_names(options.only)
    cluster = prediction_cluster(local_cluster(has_gpus=False), options.devices == "all")
    rows: list[Row] = []
    for name in names if options.only else DEFAULT_MODELS:
        model = load_model(name, options.seed)
        rows += (found := predict_model(model, cluster, options, prefixed(say, name)))
        yield from found
    if options.plot is not None and rows:
        plot_predictions(options.plot, scatter_groups(rows), "ms")
        say(f"plot: {options.plot}")


table = prediction_table


def prediction_cluster(cluster: Cluster, all_devices: bool) -> Cluster:
    """Return the cluster without the device of all cores, if it has parts and that is asked."""
    most = max(len(device.cores) for device in cluster.devices)
    parts = [index for index, device in enumerate(cluster.devices) if len(device.cores) < most]
    return with_devices(cluster, parts) if parts and not all_devices else cluster


def predict_model(
    model: Model, cluster: Cluster, options: PredictionOptions, say: Say = lambda line: None
) -> list[Row]:
    """Predict and measure the plans of one network; return a row for each.

    Raises
    ------
    HeteroPlaceError
        The network cannot be compiled or run.
    """
    prepared = prepare_model(model, cluster, say)
    problem = Problem(prepared.graph, cluster, prepared.costed.costs)
    runs = load_plans(prepared, collect_plans(problem, options, say), say)
    differences = _output_differences(runs, model)
    say(f"measuring {len(runs)} plans in {options.rounds} rounds")
    timed = time_in_turns(
        {item.name: item.executor.benchmark for item in runs},
        num_rounds=options.rounds,
        turn_ns=options.turn_ns,
        min_runs=_MIN_RUNS,
        core_to_core_ns=core_to_core_probe({item.name: item.executor for item in runs}),
        on_round=_remaining_time(options.rounds, say),
    )
    say("running every plan with clocks")
    timelines = {item.name: _timeline(item, timed) for item in runs}
    runs = predict_by_state(prepared, runs, timed, say)
    rounds_ns = balanced_rounds(timed)
    measured_ns = {name: round(median(values)) for name, values in rounds_ns.items()}
    pace = pace_of(runs, measured_ns)
    if options.explain:
        print(_explanation(model.name, runs, measured_ns, timelines))
    of_runs = RowMaker(model.name, timed, rounds_ns, pace)
    return [of_runs.row(item, timelines[item.name], differences[item.name]) for item in runs]


def predict_by_state(
    prepared: Prepared, runs: Sequence[PlannedRun], timed: TimedRuns, say: Say
) -> list[PlannedRun]:
    """Return the runs, each with the prediction for the distance that the cores had in its turns.

    Cores of a shared machine can move apart while plans take their turns. So interference is
    measured once more after them, and a plan is predicted by the measurement whose core-to-core
    latency was the more like that of its turns.
    """
    costed = prepared.costed
    before = interference_of(prepared)
    with in_pass_context():
        after = measure_interference(costed.compiled, costed.cluster, say)
    found = []
    for item in runs:
        found_ns = [turn.core_to_core_ns for turn in timed.counted_turns(item.name)]
        latencies = [ns for ns in found_ns if ns]
        core_to_core_ns = median(latencies) if latencies else before.core_to_core_ns
        nearest = min((before, after), key=lambda at: abs(at.core_to_core_ns - core_to_core_ns))
        plan = item.executable.solution.plan
        again = item.predicted if nearest is before else prediction(prepared, plan, nearest)
        found.append(replace(item, predicted=again))
    return found


def pace_of(runs: Sequence[PlannedRun], measured_ns: Mapping[str, int]) -> float:
    """Return what the plans of one device took in their turns over what was expected; else 1.

    Costs and interference are measured before the turns, which may go on for minutes. So the runs
    of one device, in the same rounds as all others, say how fast the machine is by then.
    """
    ratios = [
        measured_ns[item.name] / item.predicted.makespan_ns
        for item in runs
        if item.kind == "single"
    ]
    return median(ratios) if ratios else 1.0


def collect_plans(problem: Problem, options: PredictionOptions, say: Say) -> list[tuple[str, Plan]]:
    """Return (kind, plan) of single devices and of solvers, equal ones once, and random ones."""
    singles = [single_plan(problem, device) for device in range(len(problem.cluster.devices))]
    found = [("single", plan) for plan in singles if isinstance(plan, Plan)]
    if options.budget_s:
        found += [("solver", plan) for plan in _solver_plans(problem, options, say)]
    distinct: dict[tuple[Step, ...], tuple[str, Plan]] = {}
    for kind, plan in found:
        first_kind, first = distinct.setdefault(plan.steps, (kind, plan))
        if first is not plan:
            joined = replace(first, origin=f"{first.origin} = {plan.origin}")
            distinct[plan.steps] = first_kind, joined
    drawn = random_plans(problem, options.plans, options.seed)
    return [*distinct.values(), *(("random", plan) for plan in drawn)]


def _solver_plans(problem: Problem, options: PredictionOptions, say: Say) -> list[Plan]:
    names = default_solvers(PlaceOptions())
    say(f"asking {len(names)} solvers, {options.budget_s:g} s each")
    limits = SolveOptions(time_limit_s=options.budget_s, seed=options.seed)
    plans = []
    for name in names:
        try:
            plan = get_solver(name).solve(problem, limits).plan
        except HeteroPlaceError as refusal:
            say(f"no plan by {name}: {str(refusal).splitlines()[0]}")
        else:
            plans.append(replace(plan, origin=name))
    return plans


def load_plans(
    prepared: Prepared, plans: Sequence[tuple[str, Plan]], say: Say = lambda line: None
) -> list[PlannedRun]:
    """Write the programs of plans over one library and one copy of the weights, and load them.

    Raises
    ------
    LoweringError, InfeasibleError
        As `write_programs`.
    """
    say(f"writing and loading {len(plans)} programs")
    costed, graph = prepared.costed, prepared.graph
    cluster, costs = costed.cluster, costed.costs
    # All parts of one CPU have one target, so a placement changes no kernel.
    with in_pass_context():
        kernels = costed.compiled.kernels(cluster, [0] * len(graph.tasks))
    simulated = [simulate(graph, cluster, costs, plan) for _, plan in plans]
    solutions = [
        Solution(graph, cluster, costs, plan, timeline.makespan_ns, 0)
        for (_, plan), timeline in zip(plans, simulated, strict=True)
    ]
    runs = []
    executables = write_programs(kernels, solutions, simulated)
    for (kind, plan), executable in zip(plans, executables, strict=True):
        # Costs are those of cores that do what is planned for them, and nothing else.
        executor = Executor(executable, helping=False)
        for name, array in prepared.model.inputs.items():
            executor.set_input(name, array)
        promised = prediction(prepared, plan, interference_of(prepared))
        runs.append(PlannedRun(kind, executable, executor, promised))
    return runs


def interference_of(prepared: Prepared) -> Interference:
    """Return what was measured before the turns."""
    found = prepared.costed.interference
    assert found is not None  # `prepare_model` measures
    return found


def prediction(prepared: Prepared, plan: Plan, interference: Interference) -> Expectation:
    """Return what is promised for a plan before it has ever run."""
    costed = prepared.costed
    return expect(costed.graph, costed.cluster, costed.costs, plan, interference)


def _output_differences(runs: Sequence[PlannedRun], model: Model) -> dict[str, float]:
    """Run each plan once; return the largest difference of its outputs to those of the first."""
    outputs = {item.name: item.executor.run(model.inputs) for item in runs}
    first = outputs[runs[0].name]
    return {name: largest_difference(arrays, first) for name, arrays in outputs.items()}


def _remaining_time(num_rounds: int, say: Say) -> Callable[[int], None]:
    begin = time.perf_counter()

    def on_round(done: int) -> None:
        passed = time.perf_counter() - begin
        say(f"round {done} of {num_rounds}, {passed * (num_rounds - done) / done:.0f} s remain")

    return on_round


def _timeline(item: PlannedRun, timed: TimedRuns) -> Timeline:
    num_runs = _TIMELINE_NS // timed.median_ns(item.name)
    return item.executor.timeline(min(_MAX_TIMELINES, max(_MIN_TIMELINES, num_runs)))


def _explanation(
    model: str,
    runs: Sequence[PlannedRun],
    measured_ns: Mapping[str, int],
    timelines: Mapping[str, Timeline],
) -> str:
    """The plans with the largest errors, each with what makes the difference."""
    errors = error_ratios(
        [item.predicted.makespan_ns for item in runs],
        [measured_ns[item.name] for item in runs],
    )
    worst = sorted(range(len(runs)), key=lambda index: (-abs(errors[index]), index))[:_WORST]
    parts = []
    for index in worst:
        item = runs[index]
        solution = item.executable.solution
        parts.append(
            f"{model}, {item.name}: error {100 * errors[index]:+.1f} % of "
            f"{measured_ns[item.name] / 1e6:.3f} ms; in one run with clocks\n"
            + divergence_table(
                solution.cluster,
                divergences(
                    solution.graph,
                    solution.cluster,
                    solution.plan,
                    item.predicted.timeline,
                    timelines[item.name],
                ),
            )
        )
    return "\n\n".join(parts) + "\n"
