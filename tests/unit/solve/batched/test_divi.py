"""DiviML's batched programme: worked instances, exhaustive search, both forms of condition 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heteroplace.errors import InfeasibleError, SolverError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, build_table, table_from_rows
from heteroplace.parts.throughput.batched.device_symmetry import device_symmetry
from heteroplace.parts.throughput.batched.divi import DiviSolver
from heteroplace.parts.throughput.batched.divi_limits import may_overflow
from heteroplace.parts.throughput.batched.divi_milp import MilpEnd, build_model, solve_batched_milp
from heteroplace.parts.throughput.batched.divi_rules import BatchRules, common_block
from heteroplace.parts.throughput.batched.list_solver import batch_bound
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import Problem, SolveOptions, SolveResult, get_solver
from heteroplace.solve.problem import ProgressReport
from tests.instances import gpus, instance
from tests.interrupts import ctrl_c_after_a_plan
from tests.reference.batch_brute_force import optimal_batch_makespan
from tests.strategies import Instance, exact_cases, instances
from tests.unit.solve.batched.test_batched import batched, chain, one_op
from tests.unit.solve.test_worked import empty_graph
from zoo.graphs.batches import with_batches
from zoo.graphs.catalogue import layered
from zoo.graphs.clusters import hub
from zoo.graphs.layered import Layered

CORRECTED, PUBLISHED = BatchRules(), BatchRules("published")


def free(case: Instance) -> Problem:
    """The instance where copies do not wait for each other."""
    devices = tuple(replace(device, copy_engines=None) for device in case.cluster.devices)
    cluster = replace(case.cluster, congestion="none", devices=devices)
    return Problem(case.graph, cluster, replace(case.costs, devices=cluster.identities))


def milp(problem: Problem, items: int, rules: BatchRules = CORRECTED) -> MilpEnd:
    end = solve_batched_milp(problem, items, rules, time_limit_s=60)
    assert end.value_ns is None or end.bound_ns == end.value_ns, end
    return end


def solve(problem: Problem, items: int, solver: DiviSolver | None = None) -> SolveResult:
    options = SolveOptions(items=items, time_limit_s=60)
    result = (solver or DiviSolver()).solve(problem, options)
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    timeline = simulate(problem.graph, problem.cluster, problem.costs, result.plan)
    assert timeline.makespan_ns == result.objective_ns >= result.bound_ns
    return result


def brute_force(problem: Problem, items: int, *, is_barrier: bool = False) -> int | None:
    return optimal_batch_makespan(
        problem.graph,
        problem.cluster,
        problem.costs,
        items,
        has_memory=True,
        is_barrier=is_barrier,
    )


def test_published_condition_3_keeps_the_halves_of_a_chain_together() -> None:
    """The counterexample: 8 as published, 5 where each item waits only for itself."""
    problem = free(chain())
    assert milp(problem, 2, PUBLISHED).value_ns == 8
    assert milp(problem, 2, CORRECTED).value_ns == 5
    result = solve(problem, 2, DiviSolver(condition3="published"))
    assert ("milp", 8) in [(name, value) for name, value, _ in result.candidates]
    # The order of service that was found is one of the better plan.
    assert result.objective_ns == 5


@pytest.mark.parametrize(
    ("batch_sizes", "items", "expected"),
    [((1, 2, 4), 4, 5), ((2,), 4, 5), ((4,), 4, 6), ((1,), 2, 3)],
)
def test_one_op_is_split_best(batch_sizes: tuple[int, ...], items: int, expected: int) -> None:
    problem = free(one_op(batch_sizes))
    assert milp(problem, items).value_ns == expected
    result = solve(problem, items)
    assert (result.objective_ns, result.status) == (expected, "optimal")


def test_two_rounds_run_two_batches_on_a_device() -> None:
    """Four items in batches of two take 3 + 3 on the first device or 5 beside it."""
    run_ns: dict[str, tuple[dict[int, int], ...]] = {"op": ({2: 3}, {2: 9})}
    problem = free(batched([], run_ns, {}, (2,)))
    assert milp(problem, 4).value_ns == 9
    assert milp(problem, 4, replace(CORRECTED, rounds=2)).value_ns == 6
    assert solve(problem, 4, DiviSolver(rounds=2)).objective_ns == 6


def test_memory_forces_the_slow_device() -> None:
    """a -> b of one byte each; the first memory holds one of them: 7, without memory 2."""
    run_ns: dict[str, tuple[int | None, ...]] = {"a": (1, 5), "b": (1, 5)}
    links = tuple(Link(f"{a}-{b}", a, b, 10**9, 1, f"{a}-{b}") for a, b in ((0, 1), (1, 0)))
    devices = tuple(Device(f"gpu{i}", "cuda", "", i, i) for i in range(2))

    def cluster(*sizes: int) -> Cluster:
        memories = tuple(Memory(f"m{i}", size) for i, size in enumerate(sizes))
        return Cluster("box", memories, devices, links)

    tight = free(instance([("a", "b")], run_ns, cluster(1, 2), 0, weight_bytes=1))
    assert milp(tight, 1).value_ns == brute_force(tight, 1) == 7
    assert solve(tight, 1).objective_ns == 7
    ample = free(instance([("a", "b")], run_ns, cluster(9, 9), 0, weight_bytes=1))
    assert milp(ample, 1).value_ns == 2


def test_published_memory_charges_what_is_read_again() -> None:
    """a -> b in one memory: 10 bytes by our rule for what a makes, 20 where b is charged too."""
    run_ns: dict[str, tuple[int | None, ...]] = {"a": (1,), "b": (1,)}
    problem = free(instance([("a", "b")], run_ns, gpus({}, 1, capacity=25), 10))
    assert solve(problem, 1).objective_ns == 2
    assert milp(problem, 1, replace(CORRECTED, memory="published")).is_infeasible
    with pytest.raises(InfeasibleError, match=r"no plan exists for 1 items .* m0 has 25 B"):
        solve(problem, 1, DiviSolver(memory="published"))


def test_items_that_do_not_fit_are_infeasible() -> None:
    problem = free(instance([], {"a": (5, 5)}, gpus({}, 2, capacity=25)))
    assert solve(problem, 2).objective_ns == 5
    devices = tuple(replace(d, batch_sizes=(1, 2, 3)) for d in problem.cluster.devices)
    cluster = replace(problem.cluster, devices=devices)
    one = problem.costs.rows
    costs = table_from_rows(problem.graph, cluster, one, {2: one, 3: one})
    assert solve(Problem(problem.graph, cluster, costs), 4).objective_ns == 5
    with pytest.raises(InfeasibleError, match="no plan exists for 5 items"):
        solve(Problem(problem.graph, cluster, costs), 5)


def test_blocks_of_items_give_a_plan_of_all_items() -> None:
    """Batches of two and four: items move in pairs, here as well as one by one."""
    run_ns: dict[str, tuple[dict[int, int], ...]] = {
        "a": ({2: 3, 4: 5}, {2: 4, 4: 7}),
        "b": ({2: 4, 4: 6}, {2: 3, 4: 5}),
    }
    problem = free(batched([("a", "b")], run_ns, {(0, 1): 10, (1, 0): 10}, (2, 4)))
    assert common_block(problem, 4) == 2
    blocks, whole = milp(problem, 4, replace(CORRECTED, block=2)), milp(problem, 4)
    assert blocks.num_columns < whole.num_columns
    assert blocks.value_ns == whole.value_ns == brute_force(problem, 4)
    assert {len(batch.items) for batch in blocks.batches} <= {2, 4}
    assert solve(problem, 4).objective_ns == whole.value_ns


@pytest.mark.costly
@given(instances(max_tasks=3, is_memory_tight=True))
@exact_cases(30)
def test_blocks_keep_the_memory(case: Instance) -> None:
    """All devices take two items only: one block of two is as two items."""
    devices = tuple(replace(device, batch_sizes=(2,)) for device in case.cluster.devices)
    cluster = replace(case.cluster, devices=devices)
    rows = case.costs.rows
    costs = table_from_rows(case.graph, cluster, rows, {2: rows})
    problem = free(Instance(case.graph, cluster, costs))
    whole = milp_or_none(problem, 2, CORRECTED)
    blocks = milp_or_none(problem, 2, replace(CORRECTED, block=2))
    found = [end and (end.value_ns, end.is_infeasible) for end in (whole, blocks)]
    assert found[0] == found[1]


def test_wrong_choices_are_named() -> None:
    with pytest.raises(SolverError, match="condition3 is 'both'; there are: corrected, published"):
        DiviSolver(condition3="both")  # type: ignore[arg-type]
    with pytest.raises(SolverError, match="rounds must be >= 1, got 0"):
        DiviSolver(rounds=0)


def test_empty_graph_takes_no_time() -> None:
    case = instance([], {"a": (1, 1)}, gpus({}, 2))
    graph = empty_graph()
    costs = build_table(graph, case.cluster, lambda *_: Cost.given(1))
    assert solve(Problem(graph, case.cluster, costs), 3).objective_ns == 0


@pytest.mark.costly
@given(instances(max_tasks=3, max_batch=3, is_memory_tight=True), st.integers(1, 2))
@exact_cases(50)
def test_programme_equals_exhaustive_search(case: Instance, items: int) -> None:
    problem = free(case)
    optimum = brute_force(problem, items)
    end = milp_or_none(problem, items, CORRECTED)
    assert (None if end is None else end.value_ns) == optimum
    if end is None or optimum is None:
        return
    assert batch_bound(problem, items) <= optimum
    found = solve(problem, items).objective_ns
    # A plan may also fit by lifetime, of which the search by the static rule knows nothing.
    least = optimal_batch_makespan(problem.graph, problem.cluster, problem.costs, items)
    assert least is not None and least <= found <= optimum
    assert found == optimum or may_overflow(problem, items)


@pytest.mark.costly
@given(instances(max_tasks=3, max_batch=2), st.integers(1, 2))
@exact_cases(50)
def test_published_form_equals_exhaustive_search_with_barriers(case: Instance, items: int) -> None:
    problem = free(case)
    optimum = brute_force(problem, items, is_barrier=True)
    end = milp_or_none(problem, items, PUBLISHED)
    assert (None if end is None else end.value_ns) == optimum
    corrected = milp_or_none(problem, items, CORRECTED)
    if end is not None and corrected is not None and corrected.value_ns is not None:
        assert end.value_ns is None or corrected.value_ns <= end.value_ns


def milp_or_none(problem: Problem, items: int, rules: BatchRules) -> MilpEnd | None:
    """None: a task has no device, so that there is no programme."""
    has_device = (problem.native.batch_run_ns >= 0).any(axis=(0, 2))
    return milp(problem, items, rules) if has_device.all() else None


@pytest.mark.costly
@given(instances(max_tasks=5, max_batch=2, has_modes=True), st.integers(1, 2))
@exact_cases(40)
def test_bound_holds_in_every_congestion_mode(case: Instance, items: int) -> None:
    problem = Problem(case.graph, case.cluster, case.costs)
    options = SolveOptions(items=items)
    try:
        result = solve(problem, items)
    except InfeasibleError:
        # Memory is ample, and every link is there.
        with pytest.raises(InfeasibleError, match="do not add up"):
            get_solver("bheft").solve(problem, options)
        return
    for name in ("bheft", "bgreedy", "bmet"):
        other = get_solver(name).solve(problem, options)
        assert result.bound_ns <= result.objective_ns <= other.objective_ns


def nodes(times: Sequence[int]) -> Problem:
    """Four tasks on two nodes of two equal devices each; links within a node are faster."""
    memories = tuple(Memory(f"m{i}", 10**6) for i in range(4))
    devices = tuple(
        Device(f"gpu{i}", "cuda", "", i % 2, i, host=f"node{i // 2}", batch_sizes=(1, 2))
        for i in range(4)
    )
    links = tuple(
        Link(f"{a}-{b}", a, b, 10**9 * (5 if a // 2 == b // 2 else 1), 1, f"{a}-{b}")
        for a in range(4)
        for b in range(4)
        if a != b
    )
    cluster = Cluster("nodes", memories, devices, links)
    run_ns = {f"t{i}": (time,) * 4 for i, time in enumerate(times)}
    edges = [("t0", "t1"), ("t0", "t2"), ("t1", "t3")]
    plain = instance(edges, run_ns, cluster, num_bytes=3)
    rows = plain.costs.rows
    costs = table_from_rows(plain.graph, cluster, rows, {2: rows})
    return free(Instance(plain.graph, cluster, costs))


def test_equal_devices_and_equal_nodes_are_found() -> None:
    problem = nodes((3, 5, 4, 2))
    assert list(device_symmetry(problem).exchanges) == [
        ((0,), (1,)),
        ((2,), (3,)),
        ((0, 1), (2, 3)),
    ]


def test_devices_that_differ_a_little_are_not_exchanged() -> None:
    case = instance([], {"a": (1000, 1001)}, gpus({(0, 1): 1, (1, 0): 1}, 2))
    problem = Problem(case.graph, case.cluster, case.costs)
    assert device_symmetry(problem).exchanges == ()


@pytest.mark.parametrize("symmetry", ["batch", "task", "time"])
@pytest.mark.parametrize("times", [(3, 5, 4, 2), (7, 1, 1, 6)])
def test_measures_keep_the_optimum(symmetry: str, times: tuple[int, ...]) -> None:
    problem = nodes(times)
    plain = milp(problem, 2, replace(CORRECTED, symmetry="none"))
    ordered = milp(problem, 2, replace(CORRECTED, symmetry=symmetry))
    assert ordered.value_ns == plain.value_ns
    # A row for each exchange of devices or nodes, one for the two items.
    assert ordered.num_rows == plain.num_rows + 4


@pytest.mark.costly
@given(instances(max_tasks=4, max_batch=2), st.integers(1, 2))
@exact_cases(40)
def test_pairs_that_edges_order_need_no_rows(case: Instance, items: int) -> None:
    problem = free(case)
    assume((problem.native.batch_run_ns >= 0).any(axis=(0, 2)).all())
    for rules in (CORRECTED, PUBLISHED):
        less = milp(problem, items, rules)
        more = milp(problem, items, replace(rules, reduces_pairs=False))
        assert less.value_ns == more.value_ns
        assert (less.num_rows, less.num_columns) <= (more.num_rows, more.num_columns)


@pytest.mark.parametrize("rules", [CORRECTED, PUBLISHED])
def test_a_chain_needs_no_order_of_one_item(rules: BatchRules) -> None:
    names = [f"t{i}" for i in range(5)]
    edges = list(pairwise(names))
    case = instance(edges, dict.fromkeys(names, (1, 2)), gpus({(0, 1): 1, (1, 0): 1}, 2))
    problem = free(case)
    less = build_model(problem, 1, rules, horizon_ns=20).program
    more = build_model(problem, 1, replace(rules, reduces_pairs=False), horizon_ns=20).program
    # Ten pairs of tasks on two devices, a row for each order.
    assert more.num_rows == less.num_rows + 40
    assert more.num_columns == less.num_columns + (10 if rules == CORRECTED else 20)


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_ctrl_c_keeps_the_best_plan(seconds: float) -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {
        f"t{i}": (20 + 7 * i % 13, 25 - i % 5, 22) for i in range(90)
    }
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    edges = [(f"t{i}", f"t{j}") for i in range(90) for j in (i + 3, i + 5) if j < 90]
    problem = free(instance(edges, run_ns, gpus(dict.fromkeys(pairs, 5), 3)))
    reported_ns: list[int | None] = []
    with ctrl_c_after_a_plan(seconds) as press:

        def progress(report: ProgressReport) -> None:
            reported_ns.append(report.best_ns)
            press(report)

        options = SolveOptions(items=3, time_limit_s=60, progress=progress)
        result = get_solver("divi").solve(problem, options)
    assert result.status == "interrupted"
    assert result.objective_ns == reported_ns[-1]


def test_a_programme_that_is_not_built_in_time_proves_what_was_known() -> None:
    end = solve_batched_milp(free(chain()), 2, CORRECTED, time_limit_s=0.0, bound_ns=3)
    assert (end.value_ns, end.bound_ns, end.is_infeasible) == (None, 3, False)
    assert "before the programme was built" in end.failure


def test_without_time_for_any_plan_none_is_found_and_nothing_proven() -> None:
    problem = with_batches(layered(Layered(100), 0.1, hub(40)), 3)
    with pytest.raises(SolverLimitError, match="no plan was found in time for 3 items"):
        get_solver("divi").solve(problem, SolveOptions(items=3, time_limit_s=1e-6))
