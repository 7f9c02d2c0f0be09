"""Times and sizes at the limits: every solver has the right numbers or says what is permitted."""

from __future__ import annotations

import pytest

from heteroplace.errors import CostMismatchError, GraphError, SolverError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import MAX_NS, Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.native.core_limits import MAX_PLAN_BYTES, MAX_PLAN_NS
from heteroplace.native.list import evaluate_order
from heteroplace.solve import SOLVERS, Problem, SolveOptions, get_solver
from tests.dags import lettered

MEMORIES = tuple(Memory(f"m{i}", 2**63 - 1) for i in range(3))
DEVICES = tuple(Device(f"gpu{i}", "cuda", "", i, i) for i in range(3))
PAIRS = [(src, dst) for src in range(3) for dst in range(3) if src != dst]
LINKS = tuple(Link(f"{a}-{b}", a, b, 10**9, 100, f"{a}-{b}") for a, b in PAIRS)
EDGES = "ab ac ad be ce cf df eg fg"
"""7 tasks, of which three may run at once."""
NUM_EDGES = len(EDGES.split())


def problem_of(run_ns: int, num_bytes: int = 4, links: tuple[Link, ...] = LINKS) -> Problem:
    """Tasks of equal time on each device, and tensors of equal size."""
    graph = lettered(EDGES, **dict.fromkeys(EDGES.split(), num_bytes))
    cluster = Cluster("box", MEMORIES, DEVICES, links)
    return Problem(graph, cluster, build_table(graph, cluster, lambda *_: Cost.given(run_ns)))


def options_for(name: str) -> SolveOptions:
    solver = SOLVERS[name]
    objective = "latency" if "latency" in solver.objectives else "throughput"
    items = 2 if solver.takes_items else 1
    return SolveOptions(objective, iterations=300, threads=1, items=items)


@pytest.mark.parametrize("name", list(SOLVERS))
@pytest.mark.parametrize("run_ns", [MAX_NS, 2**62, MAX_PLAN_NS // 7 + 1])
def test_times_whose_sums_do_not_fit_are_refused(name: str, run_ns: int) -> None:
    with pytest.raises(CostMismatchError, match=f"'a' alone {run_ns} ns.* at most {MAX_PLAN_NS}"):
        get_solver(name).solve(problem_of(run_ns), options_for(name))


@pytest.mark.costly
@pytest.mark.parametrize("name", list(SOLVERS))
def test_sums_at_the_limit_are_right(name: str) -> None:
    run_ns = MAX_PLAN_NS // 15
    try:
        result = get_solver(name).solve(problem_of(run_ns), options_for(name))
    except SolverError as err:
        assert "too large" in str(err)
        assert name in ("cpsat", "lns")
        return
    assert 0 <= result.bound_ns <= result.objective_ns
    # On one device; the least is the path over four tasks, or a third of all work for each item.
    items = options_for(name).items
    least = 2 * run_ns if "latency" not in SOLVERS[name].objectives else 4 * run_ns
    assert least <= result.objective_ns <= 7 * run_ns * items + 2**40


def test_copies_count_too() -> None:
    slow = tuple(Link(f"{a}-{b}", a, b, 1, 0, "") for a, b in PAIRS)
    num_bytes = MAX_PLAN_NS // 10**9 // NUM_EDGES
    with pytest.raises(CostMismatchError, match=r"copying tensor \d+ everywhere alone"):
        _ = problem_of(1, num_bytes, slow).native


def test_sizes_whose_sums_do_not_fit_are_refused() -> None:
    with pytest.raises(GraphError, match=f"tensor 0 alone .* at most {MAX_PLAN_BYTES}"):
        _ = problem_of(1, MAX_PLAN_BYTES // NUM_EDGES).native


@pytest.mark.parts
def test_items_multiply_times() -> None:
    problem = problem_of(MAX_PLAN_NS // 20)
    with pytest.raises(CostMismatchError, match=r"a plan of 3 items; .* at most 2"):
        get_solver("bheft").solve(problem, SolveOptions(items=3))


def test_numbers_beyond_64_bits_are_refused() -> None:
    wide = tuple(Link(f"{a}-{b}", a, b, 2**64, 0, "") for a, b in PAIRS)
    with pytest.raises(GraphError, match=f"got {2**64}"):
        _ = problem_of(1, links=wide).native


def test_many_unreachable_tensors_do_not_add_up_to_none() -> None:
    count = 2**14  # Times the penalty of one that is 2**64.
    builder = TaskGraphBuilder("split")
    builder.add_task(Task("a", "op", devices=("gpu0",)), [])
    made = [builder.add_tensor("a", num_bytes=1) for _ in range(count)]
    builder.add_task(Task("b", "op", devices=("gpu1",)), made)
    graph = builder.finalize([builder.add_tensor("b", num_bytes=1)])
    cluster = Cluster("apart", MEMORIES, DEVICES)
    costs = build_table(graph, cluster, lambda *_: Cost.given(1))
    native = Problem(graph, cluster, costs).native
    assert evaluate_order(native, [0, 1], [0, 1]).violation > 2**50
