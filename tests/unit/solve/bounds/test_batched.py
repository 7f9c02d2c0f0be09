"""Bounds of several items: the worked instance, exhaustive search, modules."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heteroplace.errors import SolverError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.parts.throughput.batched.divi_milp import solve_batched_milp
from heteroplace.parts.throughput.batched.divi_rules import BatchRules
from heteroplace.parts.throughput.bounds.batched import (
    batched_lower_bound,
    batched_module_bounds,
)
from heteroplace.parts.throughput.bounds.subproblem import subproblem
from heteroplace.parts.throughput.decompose.decomposition import modules_of
from heteroplace.parts.throughput.decompose.narrow_cuts import Boundary, ModulePath, prefix_modules
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.solvers import get_solver
from tests.corpus import corpus
from tests.instances import instance
from tests.reference.batch_brute_force import optimal_batch_makespan
from tests.strategies import Instance, exact_cases, instances
from tests.unit.solve.batched.test_batched import batched
from tests.unit.solve.batched.test_divi import free, milp, nodes

TWO_ROUNDS = BatchRules(rounds=2)


def two_channels() -> Problem:
    """s -> o -> i and s -> q -> j; i and j have a device each, which two items share one by one."""
    run_ns: dict[str, tuple[int | None, ...]] = {
        "s": (1, 1, None, None),
        "o": (10, 10, None, None),
        "q": (10, 10, None, None),
        "i": (None, None, 30, None),
        "j": (None, None, None, 30),
    }
    edges = [("s", "o"), ("s", "q"), ("o", "i"), ("q", "j")]
    links = tuple(
        Link(f"{a}-{b}", a, b, 10**9, 100 if {a, b} == {0, 1} else 0, f"{a}-{b}")
        for a in range(4)
        for b in range(4)
        if a != b
    )
    cluster = Cluster(
        "four",
        tuple(Memory(f"m{i}", 10**6) for i in range(4)),
        tuple(Device(f"gpu{i}", "cuda", "", i, i) for i in range(4)),
        links,
    )
    return free(instance(edges, run_ns, cluster, num_bytes=0))


def two_modules(problem: Problem) -> ModulePath:
    names = {task.name: index for index, task in enumerate(problem.graph.tasks)}
    channels = ((names["o"], names["i"]), (names["q"], names["j"]))
    first = tuple(sorted(names[name] for name in "soq"))
    second = tuple(sorted(names[name] for name in "ij"))
    return ModulePath((first, second), (Boundary(channels),))


def test_published_bound_of_two_channels_is_above_the_optimum() -> None:
    """81 as published, where the optimum is 71 and the corrected bound 51."""
    problem = two_channels()
    path = two_modules(problem)
    assert milp(problem, 2, TWO_ROUNDS).value_ns == 71
    published, *_ = batched_module_bounds(
        problem, 2, path, rounds=2, time_limit_s=60, blocked="published"
    )
    corrected, mirrored, _ = batched_module_bounds(problem, 2, path, rounds=2, time_limit_s=60)
    assert (published, corrected) == (81, 51)
    # Two items on i and j, 60, behind one of them on s and o, 11: as good as the optimum.
    assert mirrored == 71
    whole = batched_lower_bound(problem, 2, rounds=2, time_limit_s=60, path=path)
    assert (whole.ns, whole.source) == (71, "modules, mirrored")


def test_the_parts_of_the_worked_instance() -> None:
    """OPT_1 of the first module is 21; two items on the device of i take 60, one 30."""
    problem = two_channels()
    names = [task.name for task in problem.graph.tasks]
    first = subproblem(problem, sorted(names.index(name) for name in "soq"))
    last = subproblem(problem, [names.index("i")])
    padded = BatchRules(rounds=2, is_padded=True)
    assert solve_batched_milp(first, 1, padded, time_limit_s=60).value_ns == 21
    assert [solve_batched_milp(last, n, padded, time_limit_s=60).value_ns for n in (1, 2)] == [
        30,
        60,
    ]


def test_modules_beat_path_and_load() -> None:
    """One module that only one of two devices can run, then one for the other: a pipeline."""
    run_ns: dict[str, tuple[dict[int, int], ...]] = {
        "a": ({1: 10, 2: 20}, {}),
        "b": ({1: 10, 2: 20}, {}),
        "c": ({}, {1: 10, 2: 20}),
        "d": ({}, {1: 10, 2: 20}),
    }
    case = batched([("a", "b"), ("b", "c"), ("c", "d")], run_ns, {(0, 1): 1}, (1, 2), 0)
    problem = free(case)
    path = ModulePath(((0, 1), (2, 3)), (Boundary(((1, 2),)),))
    bound = batched_lower_bound(problem, 2, time_limit_s=60, path=path)
    # One item through the first module, then two through the second.
    assert (bound.ns, bound.source) == (60, "modules")
    assert milp(problem, 2).value_ns == 80
    assert milp(problem, 2, TWO_ROUNDS).value_ns == 60


@pytest.mark.costly
@given(instances(max_tasks=3, max_batch=3), st.integers(1, 2))
@exact_cases(40)
def test_no_plan_is_below_the_bound(case: Instance, items: int) -> None:
    problem = free(case)
    optimum = optimal_batch_makespan(problem.graph, problem.cluster, problem.costs, items)
    assume(optimum is not None)
    assert optimum is not None
    for limit in (0.0, 20.0):
        assert batched_lower_bound(problem, items, time_limit_s=limit).ns <= optimum


@corpus
def layered(random: Random) -> Instance:
    """Layers of two tasks with random edges, on two devices, batches of one or two.

    Two layers, three now and then: a case of three takes ten times as long.
    """
    num_layers = random.choice([2, 2, 2, 3])
    names = [[f"t{layer}{i}" for i in range(2)] for layer in range(num_layers)]
    edges = []
    for before, after in pairwise(names):
        for index, name in enumerate(after):
            edges.append((before[index], name))
            if random.random() < 0.5:
                edges.append((before[1 - index], name))
    run_ns: dict[str, tuple[dict[int, int], ...]] = {}
    for name in (name for layer in names for name in layer):
        cells = []
        for _ in range(2):
            one = random.randint(1, 9)
            cells.append({1: one, 2: one + random.randint(1, 9)})
        run_ns[name] = tuple(cells)
    widths = {(0, 1): random.choice([1, 5]), (1, 0): 1}
    return batched(edges, run_ns, widths, (1, 2), random.randint(0, 5))


@pytest.mark.costly
@given(layered().map(free), st.integers(1, 2))
@exact_cases(10)
def test_bound_of_modules_is_below_the_optimum(problem: Problem, items: int) -> None:
    path = prefix_modules(problem.graph, 4, target_tasks=2, min_tasks=2)
    assume(len(path.modules) > 1)
    optimum = milp(problem, items).value_ns
    bound = batched_lower_bound(problem, items, time_limit_s=30, path=path)
    heft = get_solver("bheft").solve(problem, SolveOptions(items=items))
    assert optimum is not None
    assert bound.ns <= optimum <= heft.objective_ns
    assert bound.ns <= heft.objective_ns


def test_longer_time_never_lowers_the_bound() -> None:
    problem = nodes((3, 5, 4, 2))
    quick = batched_lower_bound(problem, 2)
    assert quick.ns <= batched_lower_bound(problem, 2, time_limit_s=20).ns


def test_wrong_form_is_named() -> None:
    with pytest.raises(SolverError, match="blocked is 'all'; there are: corrected, published"):
        batched_lower_bound(two_channels(), 2, blocked="all")  # type: ignore[arg-type]


def test_a_long_chain_of_modules_is_bounded() -> None:
    """Hundreds of modules, of which each waits for the one before."""
    names = [f"t{index}" for index in range(4000)]
    run_ns: dict[str, tuple[dict[int, int], ...]] = {name: ({1: 3, 2: 5},) for name in names}
    case = batched(list(pairwise(names)), run_ns, {}, (1, 2))
    problem = Problem(case.graph, case.cluster, case.costs)
    assert modules_of(problem).path is not None
    assert len(modules_of(problem).path.modules) > 400
    assert batched_lower_bound(problem, 2).ns == 5 * 4000


def test_modules_prove_nothing_once_the_time_is_up() -> None:
    path = two_modules(two_channels())
    late = batched_lower_bound(two_channels(), 2, path=path, deadline=Deadline.after(0.0))
    assert late.source in ("critical path", "load")
    assert late.ns <= batched_lower_bound(two_channels(), 2, path=path).ns
