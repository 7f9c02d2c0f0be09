"""Worked instances with optima known from exhaustive search, and edge cases by list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from heteroplace.errors import InfeasibleError, MissingCostError, SolverError
from heteroplace.model.check import check_plan
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Plan
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import SOLVERS, Problem, SolveOptions, SolveResult, get_solver
from heteroplace.solve.plan_reasons import explain
from tests.instances import cpu, diamond, given_costs, gpus, instance
from tests.strategies import AMPLE, Instance

OPTIONS = SolveOptions(iterations=5000, threads=1, min_gain_ratio=0)


def solve(case: Instance, name: str, options: SolveOptions = OPTIONS) -> SolveResult:
    result = get_solver(name).solve(Problem(case.graph, case.cluster, case.costs), options)
    check_plan(case.graph, case.cluster, case.costs, result.plan)
    return result


@pytest.mark.parametrize(
    ("name", "expected"),
    [("single", 12), ("heft", 10), ("search", 10), ("cpsat", 10), ("moirai", 10), ("auto", 10)],
)
def test_diamond(name: str, expected: int) -> None:
    assert solve(diamond(), name).objective_ns == expected


@pytest.mark.parametrize("name", ["cpsat", "moirai", "auto", "search"])
def test_diamond_with_two_tasks_per_memory_takes_11(name: str) -> None:
    assert solve(diamond(2100, 1000), name).objective_ns == 11


def test_upward_bandwidth_is_not_the_downward_one() -> None:
    widths = {(0, 1): 10, (1, 0): 5}
    run_ns = {"a": (1, None), "b": (None, 1), "c": (1, None)}
    chain = instance([("a", "b"), ("b", "c")], run_ns, gpus(widths, 2))
    assert solve(chain, "auto").objective_ns == 6
    down = instance([("a", "b")], {"a": (1, None), "b": (None, 1)}, gpus(widths, 2))
    assert solve(down, "auto").objective_ns == 3
    up = instance([("a", "b")], {"a": (None, 1), "b": (1, None)}, gpus(widths, 2))
    assert solve(up, "auto").objective_ns == 4


def test_route_of_two_hops_has_the_smaller_bandwidth() -> None:
    widths = {(0, 1): 10, (1, 2): 5, (2, 1): 5, (1, 0): 10}
    run_ns = {"a": (0, None, None), "b": (None, None, 0)}
    case = instance([("a", "b")], run_ns, gpus(widths, 3), num_bytes=100)
    assert solve(case, "auto").objective_ns == 20


@pytest.mark.parametrize("name", ["heft", "search", "cpsat", "moirai", "auto"])
def test_transfers_on_two_channels_do_not_wait_for_each_other(name: str) -> None:
    run_ns = {"r": (1, None, None), "x": (None, 5, None), "y": (None, None, 5)}
    case = instance([("r", "x"), ("r", "y")], run_ns, gpus({(0, 1): 5, (0, 2): 5}, 3))
    assert solve(case, name).objective_ns == 8


@pytest.mark.parametrize("name", ["search", "cpsat", "moirai", "auto"])
def test_threads_are_chosen_per_task(name: str) -> None:
    # The wide middle runs on single cores, the ends on all: 6 + 10 + 6, against 6 + 4 * 6 + 6 on
    # all cores and 10 + 2 * 10 - 10 + 10 on single ones.
    run_ns = {"first": (10, 10, 6), "l": (10, 10, 6), "r": (10, 10, 6), "last": (10, 10, 6)}
    edges = [("first", "l"), ("first", "r"), ("l", "last"), ("r", "last")]
    case = instance(edges, run_ns, cpu())
    result = solve(case, name)
    assert result.objective_ns == 22
    names = [case.cluster.devices[device].name for device in result.plan.placement(4)]
    assert (names[0], names[3]) == ("cpu.all", "cpu.all")
    assert sorted(names[1:3]) == ["cpu.0", "cpu.1"]


def small_gain(cost: Callable[[int], Cost]) -> Instance:
    """Two devices halve the makespan."""
    run_ns = ((100, 99), (100, 200))
    case = instance([], {"a": run_ns[0], "b": run_ns[1]}, gpus({(0, 1): 1, (1, 0): 1}, 2))
    costs = build_table(case.graph, case.cluster, lambda task, device: cost(run_ns[task][device]))
    return replace(case, costs=costs)


def test_small_gain_of_measured_costs_is_left_for_the_simpler_plan() -> None:
    case = small_gain(Cost.measured)
    eager = solve(case, "auto", SolveOptions(iterations=1000, threads=1, min_gain_ratio=0.4))
    assert eager.objective_ns == 100
    careful = solve(case, "auto", SolveOptions(iterations=1000, threads=1, min_gain_ratio=0.6))
    assert careful.objective_ns == 200
    assert "min_gain_ratio" in careful.candidates[-1][2]


@pytest.mark.parametrize("cost", [Cost.given, Cost.roofline])
def test_costs_that_nobody_measured_are_taken_as_told(cost: Callable[[int], Cost]) -> None:
    case = small_gain(cost)
    options = SolveOptions(iterations=1000, threads=1, min_gain_ratio=0.6)
    assert solve(case, "auto", options).objective_ns == 100


def empty_graph() -> TaskGraph:
    builder = TaskGraphBuilder("empty")
    return builder.finalize([builder.add_input("x", (4,), "float32")])


def one_task() -> TaskGraph:
    builder = TaskGraphBuilder("one")
    builder.add_task(Task("t", "op"), [builder.add_input("x", (4,), "float32")])
    return builder.finalize([builder.add_tensor("t", (4,), "float32")])


def zero_sizes() -> TaskGraph:
    builder = TaskGraphBuilder("zero")
    read = builder.add_input("x", (0,), "int8")
    for index in range(4):
        builder.add_task(Task(f"t{index}", "op"), [read])
        read = builder.add_tensor(f"t{index}", (0,), "int8")
    return builder.finalize([read, read])


def disconnected() -> TaskGraph:
    builder = TaskGraphBuilder("apart")
    outputs = []
    for index in range(4):
        builder.add_task(Task(f"t{index}", "op"), [])
        outputs.append(builder.add_tensor(f"t{index}", (4,), "int8"))
    return builder.finalize(outputs)


def many_outputs() -> TaskGraph:
    builder = TaskGraphBuilder("many")
    builder.add_task(Task("t", "op"), [])
    made = [builder.add_tensor("t", (1,), "int8") for _ in range(1000)]
    builder.add_task(Task("u", "op"), made)
    builder.add_task(Task("v", "op"), made[:2])
    return builder.finalize([*made, builder.add_tensor("u", (1,), "int8")])


@pytest.mark.costly(5)
@pytest.mark.parametrize("make", [empty_graph, one_task, zero_sizes, disconnected, many_outputs])
@pytest.mark.parametrize("run_ns", [0, 7])
@pytest.mark.parametrize("name", sorted(["auto", "single", "heft", "search", "cpsat", "moirai"]))
def test_edge_cases(make, run_ns: int, name: str) -> None:  # type: ignore[no-untyped-def]
    graph = make()
    for cluster in (cpu(), gpus({(0, 1): 1, (1, 0): 1}, 2, host=0), gpus({}, 1)):
        costs = build_table(graph, cluster, lambda *_: Cost.given(run_ns))
        case = Instance(graph, cluster, costs)
        result = solve(case, name)
        assert result.bound_ns <= result.objective_ns
        assert simulate(graph, cluster, costs, result.plan).makespan_ns == result.objective_ns
        explained = explain(Problem(graph, cluster, costs), result.plan)
        assert len(explained.reasons) == len(graph.tasks)
        assert all(explained.reasons)


@pytest.mark.parametrize("name", ["heft", "search", "cpsat", "moirai", "auto"])
def test_devices_without_links_get_whole_components(name: str) -> None:
    run_ns = {"a": (5, 5), "b": (5, 5), "c": (5, 5), "d": (5, 5)}
    case = instance([("a", "b"), ("c", "d")], run_ns, gpus({}, 2))
    assert solve(case, name).objective_ns == 10


@pytest.mark.parametrize("name", ["auto", "heft", "search", "cpsat", "moirai"])
def test_task_allowed_nowhere_is_named_with_reasons(name: str) -> None:
    case = instance([], {"a": (5, 5), "b": (None, None)}, gpus({(0, 1): 1, (1, 0): 1}, 2))
    with pytest.raises(InfeasibleError, match="task 'b' can run on no device: gpu0: forced else"):
        solve(case, name)


def test_device_that_takes_larger_batches_only_is_told_from_one_out_of_reach() -> None:
    cluster = gpus({}, 1)
    devices = (replace(cluster.devices[0], batch_sizes=(2, 4)),)
    case = instance([], {"a": (1,)}, replace(cluster, devices=devices))
    with pytest.raises(InfeasibleError, match="gpu0: it takes batches of 2, 4 items only"):
        solve(case, "heft")


@pytest.mark.parametrize("name", ["auto", "heft", "search", "cpsat", "moirai"])
def test_task_too_large_for_every_memory_is_named_with_sizes(name: str) -> None:
    case = instance([], {"a": (5, 5)}, gpus({}, 2, 2048), weight_bytes=4096)
    message = r"'a' needs 4\.0 KiB \(weights 4\.0 KiB, inputs and outputs 10"
    with pytest.raises(InfeasibleError, match=message):
        solve(case, name)


@pytest.mark.parametrize("name", ["auto", "heft", "search", "cpsat", "moirai"])
def test_tasks_too_large_together_are_an_error_with_totals(name: str) -> None:
    case = instance([], {"a": (5, 5), "b": (5, 5), "c": (5, 5)}, gpus({}, 2, 150), weight_bytes=100)
    with pytest.raises(InfeasibleError, match="It needs 300 B of weights and 30 B of tensors"):
        solve(case, name)


def test_single_says_why_each_device_fails() -> None:
    case = instance([], {"a": (5, None), "b": (5, 5)}, gpus({}, 2, 150), weight_bytes=100)
    message = r"(?s)memory 'm0' has 150 B, 220 B needed.*gpu1 cannot run task 'a': forced"
    with pytest.raises(InfeasibleError, match=message):
        solve(case, "single")


def test_device_out_of_reach_of_the_host_is_left_out() -> None:
    case = instance([], {"a": (9, 1)}, gpus({(0, 1): 1}, 2, host=0))
    assert solve(case, "auto").objective_ns == 9


def test_unknown_cost_is_an_error(diamond: Instance) -> None:
    costs = build_table(diamond.graph, diamond.cluster, lambda *_: Cost.unknown())
    with pytest.raises(MissingCostError, match="the cost of task 'a' on device 'gpu0' is unknown"):
        solve(Instance(diamond.graph, diamond.cluster, costs), "auto")


@pytest.mark.costly
def test_cpsat_refuses_large_graphs_and_auto_leaves_it_out() -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {f"t{i}": (9, 10, 11) for i in range(151)}
    case = instance([], run_ns, cpu())
    with pytest.raises(SolverError, match="at most 150 tasks, graph 'worked' has 151"):
        solve(case, "cpsat")
    result = solve(case, "auto", SolveOptions(iterations=2000, seed=1))
    notes = {name: note for name, _, note in result.candidates}
    assert "cpsat" not in notes
    assert notes["route: lns"].startswith("151 tasks")
    assert result.objective_ns < 151 * 9


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("objective", "energy", "'energy' is not offered; supported: latency, throughput"),
        ("time_limit_s", 0.0, "time_limit_s must be > 0"),
        ("iterations", -1, "iterations must be in 0.."),
        ("seed", -1, "seed must be in"),
        ("threads", 0, "threads must be in 1..4096"),
        ("min_gain_ratio", 1.0, r"min_gain_ratio must be in \[0, 1\)"),
    ],
)
def test_option_out_of_range_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(SolverError, match=message):
        SolveOptions(**{field: value})  # type: ignore[arg-type]


def test_unknown_solver_error_lists_the_names() -> None:
    with pytest.raises(SolverError, match=f"there are: {', '.join(SOLVERS)}"):
        get_solver("gurobi")


def test_explanations_name_constraints_and_speeds() -> None:
    builder = TaskGraphBuilder("reasons")
    tasks = [
        Task("pinned", "op", devices=("gpu1",)),
        Task("only", "op"),
        Task("free", "op"),
    ]
    outputs = []
    for task in tasks:
        builder.add_task(task, [])
        outputs.append(builder.add_tensor(task.name, (1,), "int8"))
    graph = builder.finalize(outputs)
    cluster = gpus({}, 2, AMPLE)
    rows = {"pinned": (1, 1), "only": (None, 1000), "free": (3000, 4000)}
    case = Instance(graph, cluster, given_costs(graph, cluster, rows))
    result = solve(case, "auto")
    reasons = explain(Problem(graph, cluster, case.costs), result.plan).reasons
    assert reasons[0] == "pinned to gpu1"
    assert reasons[1] == "only device that can run it"
    assert reasons[2] == (
        "fastest (gpu1 takes 4.0 us); moving it to gpu1 would lengthen the run by 66.7%"
    )


def test_plan_is_a_value_of_the_model(diamond: Instance) -> None:
    result = solve(diamond, "auto")
    assert isinstance(result.plan, Plan)
    assert result.plan.graph_digest == diamond.graph.digest()
    assert result.gap == 0
    assert result.status == "optimal"
