"""The option `coarsening`: groups are placed, and every number is of the tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import InfeasibleError, SolverError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.simulate.simulator import simulate
from heteroplace.simulate.throughput import throughput_ns
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.coarsened import solve_coarsened
from heteroplace.solve.problem import COARSENINGS, ProgressReport, SolveResult
from tests.instances import cpu, given_costs, gpus, instance, problem_of
from tests.reference.brute_force import optimal_makespan
from tests.strategies import Instance, exact_cases, instances
from zoo.graphs.catalogue import layered
from zoo.graphs.layered import Layered


def options(**given: object) -> SolveOptions:
    return SolveOptions(**{"time_limit_s": 5.0, "iterations": 200, "threads": 1} | given)


@exact_cases(30)
@given(instances(max_tasks=6), st.sampled_from(COARSENINGS), st.sampled_from(("heft", "cpsat")))
def test_every_number_is_of_the_tasks(case: Instance, coarsening: str, solver: str) -> None:
    best = optimal_makespan(case.graph, case.cluster, case.costs)
    try:
        found = get_solver(solver).solve(problem_of(case), options(coarsening=coarsening))
    except InfeasibleError:
        assert best is None
        return
    check_plan(case.graph, case.cluster, case.costs, found.plan)
    timeline = simulate(case.graph, case.cluster, case.costs, found.plan)
    assert timeline.makespan_ns == found.objective_ns
    assert best is not None
    assert found.bound_ns <= best


def conv_chain(*ops: str) -> Problem:
    """A chain of ops of 1000 ns on either core, and beside each a side chain of its own."""
    builder = TaskGraphBuilder("chain")
    reads = [builder.add_input("x", num_bytes=4)]
    for index, op in enumerate(ops):
        builder.add_task(Task(f"{op}.{index}", op), reads)
        reads = [builder.add_tensor(f"{op}.{index}", num_bytes=4)]
    graph = builder.finalize(reads)
    return Problem(graph, cpu(), build_table(graph, cpu(), lambda *_: Cost.given(1000)))


@pytest.mark.parametrize(
    ("ops", "groups"),
    [
        (("conv", "bn", "relu", "pool"), 2),
        (("Conv", "BatchNormalization", "Add", "Relu", "pool"), 2),
        (("nn.conv2d", "nn.batch_norm", "softmax"), 2),
        (("nn.conv2d+nn.batch_norm", "nn.relu", "softmax"), 2),
        (("bn", "conv"), 2),
    ],
)
def test_moirais_table_holds_for_the_names_of_onnx_and_relay(
    ops: tuple[str, ...], groups: int
) -> None:
    found = get_solver("heft").solve(conv_chain(*ops), options(coarsening="moirai"))
    size = f"{groups} groups of {len(ops)} tasks (moirai)"
    assert found.plan.origin == ("heft" if groups == len(ops) else f"heft, {size}")


def test_segments_of_a_pipeline_take_no_longer_per_item_than_their_parts() -> None:
    problem = layered(Layered(60), fill=0.2)
    asked = options(objective="throughput", coarsening="breakpoints")
    found = get_solver("throughput").solve(problem, asked)
    time = throughput_ns(problem.graph, problem.cluster, problem.costs, found.plan)
    assert found.bound_ns <= found.objective_ns == time
    assert "groups of 60 tasks (breakpoints)" in found.plan.origin


def test_auto_is_never_longer_than_its_half_of_the_budget_without_groups() -> None:
    problem = layered(Layered(80), fill=0.3)
    half = get_solver("search").solve(problem, options(iterations=100))
    found = get_solver("search").solve(problem, options(coarsening="auto"))
    assert found.objective_ns <= half.objective_ns
    assert any(name.startswith("groups: ") for name, _, _ in found.candidates) or (
        "coarsening: auto" in dict((name, note) for name, _, note in found.candidates)
    )


def test_auto_that_was_interrupted_with_groups_says_so() -> None:
    problem = layered(Layered(80), fill=0.3)
    found = get_solver("heft").solve(problem, options())
    statuses = iter(("feasible", "interrupted"))

    class Interrupted:
        max_tasks = None

        def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
            result = get_solver("heft").solve(problem, options)
            return replace(result, status=next(statuses))

    both = solve_coarsened(problem, options(coarsening="auto"), Interrupted())
    assert both.objective_ns <= found.objective_ns
    assert both.status == "interrupted"


def test_auto_makes_a_graph_small_enough_for_the_solver() -> None:
    problem = layered(Layered(170), fill=0.2)
    with pytest.raises(SolverError, match="cpsat takes at most 150 tasks"):
        get_solver("cpsat").solve(problem, options())
    found = get_solver("cpsat").solve(problem, options(coarsening="auto"))
    check_plan(problem.graph, problem.cluster, problem.costs, found.plan)
    assert found.solver == "cpsat"


@pytest.mark.parametrize("solver", ["cpsat", "moirai"])
def test_a_graph_too_large_for_a_solver_has_no_worse_plan_than_heuristics(solver: str) -> None:
    problem = layered(Layered(600), fill=0.3)
    others = ["heft", "etf", "m-sct"]
    best = min(get_solver(each).solve(problem, options()).objective_ns for each in others)
    search = get_solver("search").solve(problem, options(iterations=100))
    result = get_solver(solver).solve(problem, options(coarsening="auto"))
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    assert result.objective_ns <= min(best, search.objective_ns)
    assert ("search", search.objective_ns, "all 600 tasks") in result.candidates
    assert any("groups of 600 tasks" in note for _, _, note in result.candidates)


def test_several_items_stay_several_in_the_expanded_plan() -> None:
    problem = conv_chain("conv", "bn", "relu", "pool")
    found = get_solver("bheft").solve(problem, options(items=2, coarsening="moirai"))
    check_plan(problem.graph, problem.cluster, problem.costs, found.plan)
    assert (found.plan.items, found.objective_ns) == (2, 4000)


def test_progress_reports_plans_of_tasks() -> None:
    problem, seen = conv_chain("conv", "bn", "relu", "pool"), list[ProgressReport]()
    get_solver("heft").solve(problem, options(coarsening="moirai", progress=seen.append))
    plans = [report.plan() for report in seen if report.plan is not None]
    assert plans
    for plan in plans:
        check_plan(problem.graph, problem.cluster, problem.costs, plan)


def test_groups_that_do_not_fit_prove_nothing_of_the_tasks() -> None:
    """Each task fits in a memory of 60 B, both of them do not."""
    case = instance(
        [("a", "b")], {"a": (5, 5), "b": (5, 5)}, gpus({(0, 1): 1, (1, 0): 1}, 2, 60), 10, 40
    )
    renamed = TaskGraphBuilder("pair")
    renamed.add_task(Task("a", "conv", weight_bytes=40), [])
    renamed.add_task(Task("b", "bn", weight_bytes=40), [renamed.add_tensor("a", num_bytes=10)])
    graph = renamed.finalize([renamed.add_tensor("b", num_bytes=10)])
    costs = build_table(graph, case.cluster, lambda *_: Cost.given(5))
    problem = Problem(graph, case.cluster, costs)
    assert get_solver("heft").solve(problem, options()).objective_ns == 20
    with pytest.raises(SolverLimitError, match="'fuse-ops' there may be one"):
        get_solver("heft").solve(problem, options(coarsening="moirai"))


def test_a_group_that_no_device_can_run_whole_proves_nothing_of_the_tasks() -> None:
    builder = TaskGraphBuilder("pair")
    builder.add_task(Task("a", "conv"), [])
    builder.add_task(Task("b", "bn"), [builder.add_tensor("a", num_bytes=4)])
    graph = builder.finalize([builder.add_tensor("b", num_bytes=4)])
    cluster = gpus({(0, 1): 1, (1, 0): 1}, 2)
    costs = given_costs(graph, cluster, {"a": (5, None), "b": (None, 5)})
    problem = Problem(graph, cluster, costs)
    assert get_solver("heft").solve(problem, options()).objective_ns == 14
    with pytest.raises(SolverLimitError, match="no device of cluster 'gpus' can run all tasks"):
        get_solver("heft").solve(problem, options(coarsening="moirai"))


def early_and_large() -> Problem:
    """A chain of 26 tasks on "a"; "X" on "b" reads 95 of its 110 B. Its first tensor comes there
    before X has ended, unless the chain is one group."""
    builder = TaskGraphBuilder("early")
    last, large = builder.add_input("u", num_bytes=1), builder.add_input("x", num_bytes=95)
    firsts = []
    for index in range(26):
        builder.add_task(Task(f"m{index:02}", "op", devices=("a",)), [last])
        last = builder.add_tensor(f"m{index:02}", num_bytes=1 if index else 20)
        firsts.append(last)
    builder.add_task(Task("X", "op"), [large])
    reads = [firsts[0], builder.add_tensor("X", num_bytes=1), last]
    builder.add_task(Task("Z", "op", devices=("b",)), reads)
    graph = builder.finalize([last, builder.add_tensor("Z", num_bytes=1)])
    devices = (Device("a", "cpu", "llvm", 0, 0, (0,)), Device("b", "cuda", "cuda", 0, 1))
    links = (Link("up", 0, 1, 10**9, 0, "up"), Link("down", 1, 0, 10**9, 0, "down"))
    cluster = Cluster("box", (Memory("ram", 10**6), Memory("g", 110)), devices, links, host=0)
    times_ns = {"m00": (100, 100), "m01": (1000, 1000), "X": (5000, 500)}

    def cost(task: int, device: int) -> Cost:
        return Cost.given(times_ns.get(graph.tasks[task].name, (1, 1))[device])

    return Problem(graph, cluster, build_table(graph, cluster, cost))


def test_auto_keeps_the_plan_of_tasks_where_that_of_groups_does_not_fit_expanded() -> None:
    problem = early_and_large()
    fine = get_solver("heft").solve(problem, options())
    check_plan(problem.graph, problem.cluster, problem.costs, fine.plan)
    with pytest.raises(SolverLimitError, match="their tasks, which start earlier, do not fit"):
        get_solver("heft").solve(problem, options(coarsening="breakpoints"))
    found = get_solver("heft").solve(problem, options(coarsening="auto"))
    assert found.objective_ns == fine.objective_ns


@pytest.mark.parametrize("coarsening", COARSENINGS)
@pytest.mark.parametrize(("solver", "objective"), [("auto", "latency"), ("auto", "throughput")])
def test_a_graph_without_tasks_has_a_plan(coarsening: str, solver: str, objective: str) -> None:
    builder = TaskGraphBuilder("empty")
    graph = builder.finalize([builder.add_input("x", num_bytes=4)])
    problem = Problem(graph, cpu(), given_costs(graph, cpu(), {}))
    asked = options(coarsening=coarsening, objective=objective)
    assert get_solver(solver).solve(problem, asked).objective_ns == 0
    assert get_solver("celeritas").solve(problem, options()).objective_ns == 0


def test_a_wrong_coarsening_is_refused() -> None:
    with pytest.raises(SolverError, match="coarsening 'all' is not offered; supported: fuse-ops"):
        options(coarsening="all")
