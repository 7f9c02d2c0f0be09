"""Equal seeds and budgets give equal plans, whatever the hash seed and the run."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import given

from heteroplace.model.check import check_plan
from heteroplace.model.text import print_plan
from heteroplace.native.core_problem import NativeProblem
from heteroplace.native.core_search import search_plans
from heteroplace.native.list import evaluate_order, heft, list_schedule, what_if
from heteroplace.native.simulate import simulate_steps
from heteroplace.parts.throughput.batched import divi
from heteroplace.parts.throughput.split import chain_split, module_plans
from heteroplace.parts.throughput.split import exact as split_exact
from heteroplace.parts.throughput.split import split_solver as split_solver
from heteroplace.solve import Problem, SolveOptions, get_solver, portfolio
from heteroplace.solve.exact import incumbent
from heteroplace.solve.lns import lns_solver as lns_solver
from heteroplace.solve.search import initial_solutions
from heteroplace.solve.search import search_solver as search_solver
from tests.instances import cpu, instance, problem_of
from tests.interrupts import ctrl_c_after
from tests.programs import run_python
from tests.strategies import Instance, exact_cases, instances, num_cases
from tests.unit.solve.batched.test_divi import nodes
from zoo.graphs.catalogue import rwnn
from zoo.graphs.rwnn import RwnnStack


def layered(num_layers: int = 8, width: int = 4) -> Instance:
    """A random-looking layered graph on two cores."""
    run_ns: dict[str, tuple[int | None, ...]] = {}
    edges = []
    for layer in range(num_layers):
        for index in range(width):
            time = 20 + (7 * layer + 13 * index) % 30
            run_ns[f"t{layer}_{index}"] = (time, time, time * 2 // 3)
            if layer:
                for step in (0, 1):
                    source = (index * 3 + step + layer) % width
                    edges.append((f"t{layer - 1}_{source}", f"t{layer}_{index}"))
    return instance(edges, run_ns, cpu())


def plan_text(name: str, seed: int) -> str:
    case = layered()
    # The exact solvers inside `auto` take an iteration for more work than the others.
    iterations = 1000 if name == "auto" else 4000
    options = SolveOptions(iterations=iterations, seed=seed, threads=2, time_limit_s=60)
    result = get_solver(name).solve(problem_of(case), options)
    check_plan(case.graph, case.cluster, case.costs, result.plan)
    return print_plan(case.graph, case.cluster, result.plan)


@pytest.mark.costly(5)
def test_result_does_not_depend_on_the_hash_seed_or_the_run() -> None:
    names = ("auto", "search", "metis", "sa", "ea")
    program = (
        "from tests.unit.solve.test_determinism import plan_text\n"
        f"print(''.join(plan_text(name, 3) for name in {names!r}), end='')"
    )
    texts = [run_python(program, PYTHONHASHSEED=hash_seed) for hash_seed in ("1", "2")]
    assert texts[0] == texts[1] == "".join(plan_text(name, 3) for name in names)


SHARES = {
    chain_split: ("_FIRST_SHARE", "_BOUND_SHARE"),
    divi: ("_BOUND_SHARE", "_HEURISTIC_SHARE", "_BLOCK_SHARE", "_MILP_SHARE"),
    incumbent: ("_SHARE",),
    initial_solutions: ("INITIAL_SHARE",),
    module_plans: ("_FIRST_TRY_S",),
    portfolio: ("_MIN_TURN_SHARE",),
    search_solver: ("INITIAL_SHARE",),
    split_exact: ("_SEARCH_SHARE",),
    split_solver: ("_CHAIN_SEARCH_SHARE", "_CHANNEL_SEARCH_SHARE"),
}
"""Parts of the time that phases of solvers have; where a budget in iterations ends them, none."""


@pytest.mark.costly(6)
@pytest.mark.parametrize(
    ("name", "items"),
    [("auto", 1), ("cpsat", 1), ("lns", 1), ("moirai", 1), ("split", 1), ("divi", 4)],
)
def test_a_budget_in_iterations_is_not_cut_by_parts_of_the_time(
    name: str, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = [problem_of(layered(3)), rwnn(RwnnStack("er", 3, 3))]
    if items > 1:
        problems = [nodes((3, 5, 4, 2))]
    options = SolveOptions(iterations=1000, threads=1, items=items, time_limit_s=60)

    def found() -> list[tuple[object, ...]]:
        results = [get_solver(name).solve(problem, options) for problem in problems]
        return [(one.plan.steps, one.bound_ns, one.candidates) for one in results]

    each = replace(options, iterations=500)
    monkeypatch.setattr(lns_solver, "_with_iterations", lambda *_: each)
    expected = found()
    for module, shares in SHARES.items():
        for share in shares:
            monkeypatch.setattr(module, share, 1e-6)
    monkeypatch.setattr(lns_solver, "_search_share", lambda _: 1e-6)
    assert found() == expected


def test_search_uses_its_whole_budget_and_no_more() -> None:
    case = layered()
    native = NativeProblem(case.graph, case.cluster, case.costs)
    start = heft(native, range(3)).steps
    report = search_plans(native, [start], max_evaluations=1234, time_limit_s=60, seed=0)
    assert report.num_evaluations == 1234


def test_search_of_no_evaluations_returns_the_best_start() -> None:
    case = layered()
    native = NativeProblem(case.graph, case.cluster, case.costs)
    initial = [heft(native, [device]).steps for device in range(3)]
    report = search_plans(native, initial, max_evaluations=0, time_limit_s=60, seed=0)
    least = min(simulate_steps(native, steps).makespan_ns for steps in initial)
    assert simulate_steps(native, report.native_plan.steps).makespan_ns == least


def test_search_beats_every_start_where_cores_and_threads_must_mix() -> None:
    case = layered()
    problem = problem_of(case)
    heuristics = [
        simulate_steps(problem.native, heft(problem.native, devices).steps).makespan_ns
        for devices in ([0], [1], [2], [0, 1], [0, 1, 2])
    ]
    result = get_solver("search").solve(problem, SolveOptions(iterations=50_000))
    assert result.objective_ns < min(heuristics)


@given(instances(max_tasks=8))
@num_cases(80)
def test_simulated_makespan_is_never_later_than_the_scheduler_had_it(case: Instance) -> None:
    problem = problem_of(case)
    native = problem.native
    native_plans = [heft(native, range(len(case.cluster.devices)))]
    if native_plans[0].violation == 0:
        placement = native.placement(native_plans[0].steps)
        native_plans.append(evaluate_order(native, placement, range(len(case.graph.tasks))))
        native_plans.append(
            list_schedule(native, placement, [-t for t in range(len(case.graph.tasks))])
        )
    for native_plan in native_plans:
        if native_plan.violation == 0:
            assert simulate_steps(native, native_plan.steps).makespan_ns <= native_plan.makespan_ns
            plan = native.plan(native_plan.steps, "test")
            check_plan(case.graph, case.cluster, case.costs, plan)


@given(instances(max_tasks=8))
@exact_cases(40)
def test_what_if_of_the_plan_itself_is_its_evaluation(case: Instance) -> None:
    problem = problem_of(case)
    result = get_solver("heft").solve(problem, SolveOptions())
    native = problem.native
    placement = native.placement(result.plan.steps)
    order = list(range(len(case.graph.tasks)))
    moved = what_if(native, placement, order)
    expected = evaluate_order(native, placement, order).makespan_ns
    assert [int(moved[t, d]) for t, d in enumerate(placement)] == [expected] * len(order)


def test_interrupt_ends_the_search_with_its_best_plan() -> None:
    case = layered()
    native = NativeProblem(case.graph, case.cluster, case.costs)
    with ctrl_c_after(0.2):
        report = search_plans(
            native,
            [heft(native, range(3)).steps],
            max_evaluations=None,
            time_limit_s=60,
            seed=0,
            finds_bound=False,
        )
    assert report.was_interrupted
    check_plan(case.graph, case.cluster, case.costs, native.plan(report.native_plan.steps, "test"))


def test_cpsat_leaves_the_interrupt_handler_in_place(diamond: Instance) -> None:
    problem = Problem(diamond.graph, diamond.cluster, diamond.costs)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        get_solver("cpsat").solve(problem, SolveOptions(iterations=1000))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_error_in_the_progress_function_reaches_the_caller() -> None:
    case = layered()
    native = NativeProblem(case.graph, case.cluster, case.costs)

    def fail(_evaluations: int, _best_ns: int, _bound_ns: int) -> None:
        raise ValueError("no screen")

    with pytest.raises(ValueError, match="no screen"):
        search_plans(
            native,
            [heft(native, range(3)).steps],
            max_evaluations=None,
            time_limit_s=60,
            seed=0,
            finds_bound=False,
            progress=fail,
        )
