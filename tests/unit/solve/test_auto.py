"""auto: its routes, what it says of them, and that it is never behind its parts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import InfeasibleError, MissingPackageError, SolverLimitError
from heteroplace.model.plan import Step
from heteroplace.native.list import heft
from heteroplace.solve import SolveOptions, get_solver, objective_solver, refinement
from heteroplace.solve.bounds import Bound, lower_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.list.single import single_makespans
from heteroplace.solve.objective import gains_enough
from heteroplace.solve.problem import Problem
from heteroplace.solve.refinement import Prover, RefinementEnd, Route, choose_route
from tests.strategies import Instance, exact_cases, instances
from zoo.graphs.batches import with_batches
from zoo.graphs.catalogue import get_instance, layered
from zoo.graphs.layered import Layered


def wide(num_tasks: int) -> Problem:
    """A graph without narrow cuts, memories ample."""
    return layered(Layered(num_tasks), fill=0.2)


@pytest.mark.parametrize(
    ("name", "refinement", "reason"),
    [
        ("rwnn/er10x1", "cpsat", "one exact model"),
        ("rwnn/er10x10", "split", "a chain of"),
        ("rwnn/er10x5-sdep2", "split", "channels between them"),
    ],
)
def test_route_follows_the_structure(name: str, refinement: str, reason: str) -> None:
    route = choose_route(get_instance(name).build())
    assert route.refinements[0] == refinement
    assert reason in route.reason


@pytest.mark.parametrize(("num_tasks", "refinement"), [(120, "lns, cpsat"), (300, "lns")])
def test_route_of_graphs_without_cuts_follows_the_size(num_tasks: int, refinement: str) -> None:
    route = choose_route(wide(num_tasks))
    assert ", ".join(route.refinements) == refinement
    assert str(num_tasks) in route.reason


class Reversed:
    """A refinement solver of another package, for any graph; it finds nothing shorter."""

    module = __name__

    def route(self, problem: Problem) -> Route:
        return Route(("reversed",), "whatever the graph", patience=0.0)

    def improve(
        self,
        problem: Problem,
        incumbent: tuple[Step, ...],
        options: SolveOptions,
        deadline: Deadline,
        bound_ns: int,
    ) -> RefinementEnd:
        return RefinementEnd(incumbent, bound_ns, False, (("looked", None, "at all tasks"),))

    def prover(self, problem: Problem) -> Prover:
        return lambda time_limit_s, threads, target_ns: Bound(10**9, "toy")


def test_a_refinement_of_a_package_has_its_turn_and_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refinement, "load_plugins", lambda seam: {"reversed": Reversed()})
    problem = wide(120)
    result = get_solver("auto").solve(problem, SolveOptions(iterations=50, time_limit_s=60))
    tried = [name for name, _, _ in result.candidates]
    assert "route: reversed" in tried
    assert tried[tried.index("search") :][:3] == ["search", "reversed: looked", "reversed"]
    assert lower_bound(problem, "thorough", time_limit_s=1.0) == Bound(10**9, "toy")


def test_without_other_refinements_auto_takes_the_routes_of_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refinement, "load_plugins", lambda seam: {})
    assert choose_route(get_instance("rwnn/er10x5-sdep2").build()).refinements == ("lns", "cpsat")
    assert choose_route(get_instance("rwnn/er10x1").build()).refinements == ("cpsat", "lns")


@pytest.mark.parametrize("items", [1, 2])
def test_an_objective_that_no_package_solves_for_is_refused(
    items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objective_solver, "plugins", lambda seam: {})
    options = SolveOptions("throughput" if items == 1 else "latency", items=items)
    with pytest.raises(MissingPackageError, match="with its part `throughput`"):
        get_solver("auto").solve(wide(20), options)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["rwnn/er10x1", "rwnn/er10x5"])
def test_small_and_modular_graphs_are_proven_and_the_route_is_told(name: str) -> None:
    problem = get_instance(name).build()
    result = get_solver("auto").solve(problem, SolveOptions(time_limit_s=60))
    assert result.status == "optimal"
    assert any(name.startswith("route: ") and note for name, _, note in result.candidates)
    assert result.candidates[-1][0].startswith("chosen: ")


@pytest.mark.costly(6)
def test_neighbourhoods_follow_modules_that_are_not_proven() -> None:
    problem = get_instance("rwnn/er10x10-sdep3").build()
    result = get_solver("auto").solve(problem, SolveOptions(iterations=2000, time_limit_s=60))
    tried = [name for name, _, _ in result.candidates]
    assert "route: split, lns" in tried
    assert tried.index("search") < tried.index("split") < tried.index("lns")


@pytest.mark.costly
def test_graph_without_cuts_is_no_longer_than_by_the_search_it_began_with() -> None:
    options = SolveOptions(iterations=600, threads=1, time_limit_s=60)
    result = get_solver("auto").solve(wide(300), options)
    times = {name: makespan for name, makespan, _ in result.candidates}
    assert "lns" in times
    assert times["search"] is not None
    assert result.objective_ns <= times["search"]
    assert result.bound_ns <= result.objective_ns


def test_the_shortest_initial_plan_counts_where_the_time_is_up_at_once() -> None:
    problem = wide(300)
    result = get_solver("auto").solve(problem, SolveOptions(time_limit_s=1e-9))
    assert result.objective_ns <= heft(problem.native, range(4)).makespan_ns


_LISTS = (
    "order-place",
    "adjusting-placement",
    "search",
    "single",
    "heft",
    "cpop",
    "peft",
    "met",
    "greedy",
    "etf",
    "m-topo",
    "m-etf",
)
_OTHERS = ("m-sct", "getf", "metis", "sa", "ea", "cpsat", "lns", "split", "moirai")


def check_not_behind(case: Instance, names: Sequence[str], iterations: int, items: int = 1) -> None:
    """Solve by `auto` and by others, each with the same iterations and threads."""
    problem = Problem(case.graph, case.cluster, case.costs)
    options = SolveOptions(iterations=iterations, threads=1, time_limit_s=60, items=items)
    plans = {}
    for name in ("auto", *names):
        try:
            plans[name] = get_solver(name).solve(problem, options).objective_ns
        except (InfeasibleError, SolverLimitError):
            continue
    assert "auto" in plans or not plans
    assert not {name: ns for name, ns in plans.items() if ns < plans["auto"]}, plans


@pytest.mark.costly(12)
@pytest.mark.parametrize("name", ["rwnn/er10x5-wdep2", "rwnn/er10x10-sdep2", "rwnn/er10x10"])
def test_auto_is_never_behind_where_the_search_gains(name: str) -> None:
    problem = get_instance(name).build()
    check_not_behind(Instance(problem.graph, problem.cluster, problem.costs), ("search",), 3000)


@pytest.mark.costly
@given(instances())
@exact_cases(20)
def test_auto_is_never_behind_the_search(case: Instance) -> None:
    check_not_behind(case, ("heft", "etf", "search"), 300)


@pytest.mark.costly
@given(instances(max_tasks=3, max_batch=4), st.integers(2, 4))
@exact_cases(8)
def test_auto_is_never_behind_for_several_items(case: Instance, items: int) -> None:
    check_not_behind(case, ("bmet", "bgreedy", "bheft", "divi", "split"), 3000, items)


@pytest.mark.costly(7)
@given(instances(max_tasks=7, max_batch=4), st.integers(2, 4), st.sampled_from([100, 600, 2000]))
@exact_cases(30)
def test_auto_is_never_behind_the_programme_of_several_items(
    case: Instance, items: int, iterations: int
) -> None:
    check_not_behind(case, ("divi", "bheft"), iterations, items)


@pytest.mark.costly(14)
def test_a_list_schedule_of_one_module_is_left_behind() -> None:
    # Annealing with as little heat as behind modules stayed at 11.85 ms; divi finds 11.22 ms.
    problem = with_batches(get_instance("rwnn/er10x1").build(), 4)
    options = SolveOptions(items=4, iterations=3000, threads=1, time_limit_s=60)
    assert get_solver("auto").solve(problem, options).objective_ns < 11_500_000


@pytest.mark.slow
@given(instances(is_memory_tight=True))
@exact_cases(50)
def test_auto_is_never_behind_any_solver(case: Instance) -> None:
    check_not_behind(case, (*_LISTS, *_OTHERS), 3000)


def test_nothing_is_searched_where_several_devices_cannot_gain_enough() -> None:
    few = SolveOptions(iterations=20, threads=1, stop_gain_ratio=0.9)
    result = get_solver("auto").solve(wide(60), few)
    assert ("search", None, "left out: no plan is worth several devices") in result.candidates


@given(instances(), st.floats(0.01, 0.9))
@exact_cases(20)
def test_a_gain_above_the_least_one_is_found_as_before(case: Instance, ratio: float) -> None:
    problem = Problem(case.graph, case.cluster, case.costs)
    options = SolveOptions(iterations=50, threads=1)
    whole = get_solver("auto").solve(problem, options)
    stopped = get_solver("auto").solve(problem, replace(options, stop_gain_ratio=ratio))
    singles = single_makespans(problem).values()
    assert not singles or stopped.objective_ns <= min(singles)
    if singles and gains_enough(whole.objective_ns, min(singles), ratio):
        assert stopped.objective_ns == whole.objective_ns
