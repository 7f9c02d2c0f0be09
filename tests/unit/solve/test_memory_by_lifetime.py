"""Graphs that fit only because tensors are freed; and what is said of those that do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.cost import table_from_rows
from heteroplace.model.memory_use.memory import plan_memory_use
from heteroplace.model.plan import Run
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.moves import moved_steps, moves
from heteroplace.solve.objective import single_plan_of_items
from tests.instances import cpu, gpus, instance, problem_of

NUM_LAYERS = 12
QUICK = SolveOptions(iterations=2000, threads=1, time_limit_s=30, min_gain_ratio=0)


def deep(capacity: int) -> Problem:
    """Twelve layers of 100 bytes each with weights of 10, on two devices."""
    names = [f"layer{index}" for index in range(NUM_LAYERS)]
    times = {name: (10 + index % 3, 12) for index, name in enumerate(names)}
    cluster = gpus({(0, 1): 10, (1, 0): 10}, 2, capacity)
    return problem_of(
        instance(list(pairwise(names)), times, cluster, num_bytes=100, weight_bytes=10)
    )


@pytest.mark.parts
@pytest.mark.parametrize(
    "solver",
    ["single", "heft", "etf", "m-sct", "met", "search", "sa", "cpsat", "moirai", "lns", "split"],
)
def test_layers_that_do_not_fit_together_are_placed(solver: str) -> None:
    # All weights, and two layers at a time; with nothing freed it would be 1,320 in one memory.
    problem = deep(12 * 10 + 200)
    result = get_solver(solver).solve(problem, QUICK)
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    used = plan_memory_use(problem.graph, problem.cluster, result.plan)
    assert max(used) > 12 * 10 + 200
    assert result.bound_ns <= result.objective_ns


@pytest.mark.parts
@pytest.mark.parametrize("solver", ["heft", "etf", "celeritas", "search", "cpsat", "lns", "split"])
def test_a_problem_that_frees_nothing_is_solved_by_the_static_rule(solver: str) -> None:
    problem = replace(deep(12 * 10 + 680), frees_tensors=False)
    assert not problem.native.counts_lifetimes
    result = get_solver(solver).solve(problem, QUICK)
    used = plan_memory_use(problem.graph, problem.cluster, result.plan)
    assert max(used) <= 12 * 10 + 680
    with pytest.raises(InfeasibleError):
        get_solver(solver).solve(replace(deep(12 * 10 + 200), frees_tensors=False), QUICK)


@pytest.mark.parts
@pytest.mark.parametrize("solver", ["split", "auto", "divi"])
def test_a_problem_that_frees_nothing_holds_all_of_several_items(solver: str) -> None:
    # Two items have 24 tensors of 100 bytes, of which one device holds no more than 17.
    capacity = 12 * 10 + 1780
    plain = deep(capacity)
    devices = tuple(replace(one, batch_sizes=(1, 2)) for one in plain.cluster.devices)
    cluster = replace(plain.cluster, devices=devices)
    costs = table_from_rows(plain.graph, cluster, plain.costs.rows, {2: plain.costs.rows})
    by_lifetime = Problem(plain.graph, cluster, costs)
    problem = replace(by_lifetime, frees_tensors=False)
    result = get_solver(solver).solve(problem, replace(QUICK, items=2))
    check_plan(problem.graph, cluster, costs, result.plan)
    assert max(simulate_steps(problem.native, result.plan.steps, 2).used_bytes) <= capacity
    single = single_plan_of_items(by_lifetime, 0, 2)
    assert single is not None
    assert single_plan_of_items(problem, 0, 2) is None
    for task, row in enumerate(moves(problem, result.plan, range(NUM_LAYERS)).objective_ns):
        for device, moved_ns in enumerate(row):
            moved = moved_steps(problem, result.plan, task, device)
            used = simulate_steps(problem.native, tuple(moved), 2).used_bytes
            assert (moved_ns is None) == (max(used) > capacity)


def test_the_optimum_by_lifetime_is_proven_where_weights_alone_leave_no_choice() -> None:
    problem = deep(12 * 10 + 200)
    result = get_solver("cpsat").solve(problem, QUICK)
    assert (result.objective_ns, result.status) == (4 * 10 + 4 * 11 + 4 * 12, "optimal")


def test_a_byte_less_than_two_layers_needs_is_proven_to_be_too_little() -> None:
    with pytest.raises(InfeasibleError, match=r"'layer1' needs 210 B .* inputs and outputs 200 B"):
        get_solver("heft").solve(deep(209), QUICK)


def test_weights_that_exceed_all_memories_are_proven_to() -> None:
    problem = problem_of(
        instance(
            [("a", "b"), ("b", "c")],
            {name: (1, 1) for name in "abc"},
            gpus({(0, 1): 1, (1, 0): 1}, 2, 1100),
            num_bytes=10,
            weight_bytes=1000,
        )
    )
    for solver in ("heft", "search", "auto", "cpsat"):
        with pytest.raises(InfeasibleError, match=r"for weights.* together lack") as caught:
            get_solver(solver).solve(problem, QUICK)
        assert type(caught.value) is InfeasibleError


def test_a_lack_that_is_not_proven_names_what_came_closest() -> None:
    # Six tensors that three tasks read, whose results are all there when the last of them ends:
    # 900 bytes in every order, but no task alone has more than 700.
    names, readers = [f"t{index}" for index in range(6)], ["left", "middle", "right"]
    edges = [(name, reader) for name in names for reader in readers]
    edges += [(reader, "end") for reader in readers]
    times: dict[str, tuple[int | None, ...]] = {
        name: (1, None) for name in (*names, *readers, "end")
    }
    cluster = gpus({(0, 1): 1, (1, 0): 1}, 2, 800)
    problem = problem_of(instance(edges, times, cluster, num_bytes=100))
    for solver in ("heft", "search", "cpsat", "auto"):
        with pytest.raises(SolverLimitError, match=r"was found\b.*comes closest.*lacks 100 B"):
            get_solver(solver).solve(problem, QUICK)
    with pytest.raises(SolverLimitError, match=r"memory 'm0' has 800 B and lacks 100 B"):
        get_solver("etf").solve(problem, QUICK)


def test_a_later_step_on_another_device_may_not_take_what_is_being_read() -> None:
    """Two cores of one memory: c brings its tensor while b still reads that of a."""
    times = {"a": (1, 1, 1), "b": (9, 9, 9), "c": (1, 1, 1)}
    problem = problem_of(
        instance([("a", "b")], times, cpu(), tensor_bytes={"a": 100, "b": 10, "c": 50})
    )
    found = simulate_steps(problem.native, (Run(0, 0), Run(1, 0), Run(2, 1)))
    assert found.peak_bytes == (160,)
    one_by_one = simulate_steps(problem.native, (Run(0, 0), Run(1, 0), Run(2, 0)))
    assert one_by_one.peak_bytes == (110,)
