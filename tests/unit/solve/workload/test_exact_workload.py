"""The exact solver of workloads against brute force, and against optima by hand.

Brute force (`tests/reference/workload_brute_force.py`) tries every placement of every entry and
every order of runs and copies. It times each by the simulator, takes memory by lifetime from it,
and adds up shared weights anew. The exact model has no rule of lifetimes, but only what every plan
needs, and the static rule. So its bound may stay below the optimum, and its plans above. In nearly
all cases both meet there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.graph import Task
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.workload import solve_workload as solving
from heteroplace.solve.workload.exact_workload import prove_workload
from heteroplace.solve.workload.placed_entry import PlacedEntry, total_ns
from heteroplace.solve.workload.solve_workload import solve_workload
from heteroplace.solve.workload.workload import Entry, Workload
from heteroplace.solve.workload.workload_state import WorkloadTimes
from tests.dags import PAIR, chain_of
from tests.instances import given_costs
from tests.reference.workload_brute_force import optimal_workload
from tests.strategies import exact_cases
from tests.workloads import workloads

_OPTIONS = SolveOptions(iterations=4000, time_limit_s=60, threads=1)
_LEAST_SHARE = 0.85
"""Of the cases, those that are proven: far below what long runs have, as each commit draws few."""
_with_and_without_host = pytest.mark.parametrize("has_host", [False, True])


def _check(workload: Workload, entries: tuple[PlacedEntry, ...]) -> None:
    """The plans are valid and as long as they say."""
    for entry, placed in zip(workload.entries, entries, strict=True):
        problem = entry.problem
        check_plan(problem.graph, problem.cluster, problem.costs, placed.plan)
        timeline = simulate(problem.graph, problem.cluster, problem.costs, placed.plan)
        assert timeline.makespan_ns == placed.objective_ns


@pytest.mark.costly
@_with_and_without_host
def test_proves_the_optimum_of_brute_force(has_host: bool) -> None:
    proven: list[bool] = []

    @given(workloads(max_tasks=3, has_host=has_host))
    @exact_cases(60)
    def check(workload: Workload) -> None:
        optimum = optimal_workload(workload)
        try:
            result = solve_workload(workload, _OPTIONS)
        except SolverLimitError:
            proven.append(False)
            return
        except InfeasibleError:
            assert optimum is None
            proven.append(True)
            return
        _check(workload, result.entries)
        assert optimum is not None
        assert result.objective_ns == total_ns(result.entries)
        assert result.bound_ns <= optimum <= result.objective_ns
        assert not result.note
        proven.append(result.gap == 0)

    check()
    assert sum(proven) >= _LEAST_SHARE * len(proven), sum(proven) / len(proven)


@pytest.mark.costly
@_with_and_without_host
def test_proves_it_without_any_help(has_host: bool) -> None:
    met: list[bool] = []

    @given(workloads(max_tasks=3, has_host=has_host))
    @exact_cases(60)
    def check(workload: Workload) -> None:
        optimum = optimal_workload(workload)
        end = prove_workload(WorkloadTimes(workload), None, 0, _OPTIONS, Deadline.after(60))
        if optimum is None:
            assert end.entries is None
            met.append(end.is_infeasible)
            return
        assert not end.is_infeasible
        assert end.bound_ns <= optimum
        if end.entries is not None:
            _check(workload, end.entries)
            assert total_ns(end.entries) >= optimum
        met.append(end.entries is not None and total_ns(end.entries) == end.bound_ns)

    check()
    assert sum(met) >= _LEAST_SHARE * len(met), sum(met) / len(met)


def _two_readers(
    room: int, *, names: tuple[str, str] = ("w", "w"), states: frozenset[str] = frozenset()
) -> Workload:
    """A token, called 3 times, and a prompt: one task each, which makes 1 byte and reads 10.

    The second device takes 10 ns in place of 100 for the token, and 400 in place of 500 for the
    prompt.
    """
    graph = chain_of(Task("a", "op", weight_bytes=10))
    memories = (replace(PAIR.memories[0], bytes=1000), replace(PAIR.memories[1], bytes=room))
    cluster = replace(PAIR, memories=memories)
    entries = []
    for name, weight, times, calls in (
        ("token", names[0], (100, 10), 3),
        ("prompt", names[1], (500, 400), 1),
    ):
        problem = Problem(graph, cluster, given_costs(graph, cluster, {"a": times}))
        entries.append(Entry(name, problem, calls, (((weight, 10),),)))
    return Workload(tuple(entries), states)


@pytest.mark.parametrize(
    ("workload", "optimum"),
    [
        # The weight once, and a byte of each entry, are in the quick memory: 3 * 10 + 400.
        (_two_readers(12), 430),
        # Of two weights it holds one: 3 * 10 + 500 is less than 3 * 100 + 400.
        (_two_readers(12, names=("w", "v")), 530),
        (_two_readers(22, names=("w", "v")), 430),
        # A byte too few for the tensor of the second entry.
        (_two_readers(11), 530),
        # State is where both use it, so both are in the slow memory: 3 * 100 + 500.
        (_two_readers(11, states=frozenset({"w"})), 800),
        (_two_readers(12, states=frozenset({"w"})), 430),
    ],
)
def test_optima_by_hand(workload: Workload, optimum: int) -> None:
    result = solve_workload(workload, _OPTIONS)
    assert (result.bound_ns, result.objective_ns) == (optimum, optimum)
    end = prove_workload(WorkloadTimes(workload), None, 0, _OPTIONS, Deadline.after(60))
    assert end.entries is not None
    assert (end.bound_ns, total_ns(end.entries)) == (optimum, optimum)


def test_proves_that_nothing_fits() -> None:
    """Each weight fits somewhere, and all memories have as many bytes as all weights."""
    workload = _two_readers(14, names=("w", "v"))
    memories = tuple(replace(memory, bytes=10) for memory in workload.cluster.memories)
    cluster = replace(workload.cluster, memories=memories)
    graph = chain_of(*(Task(name, "op", weight_bytes=5) for name in "abc"))
    costs = given_costs(graph, cluster, {name: (1, 1) for name in "abc"})
    weights = tuple(((name, 5),) for name in "abc")
    entries = tuple(
        Entry(name, Problem(graph, cluster, costs), 1, weights) for name in ("one", "two")
    )
    with pytest.raises(InfeasibleError, match="no placement of all of them that fits was possible"):
        solve_workload(Workload(entries, frozenset("abc")), _OPTIONS)


def test_equal_seeds_give_equal_plans() -> None:
    workload = _two_readers(11)
    first, second = (solve_workload(workload, _OPTIONS) for _ in range(2))
    assert [each.plan for each in first.entries] == [each.plan for each in second.entries]


def test_nothing_is_lost_when_the_time_is_over() -> None:
    workload = _two_readers(12)
    entries = solve_workload(workload, _OPTIONS).entries
    end = prove_workload(WorkloadTimes(workload), entries, 7, _OPTIONS, Deadline.after(0))
    assert (end.entries, end.bound_ns, end.is_infeasible) == (entries, 7, False)


def test_too_long_times_are_left_to_the_search() -> None:
    """Sums of times beyond 64 bits are no model of CP-SAT, and the result says so."""
    workload = _two_readers(12, names=("w", "v"))
    entries = tuple(replace(entry, calls=2**61) for entry in workload.entries)
    result = solve_workload(Workload(entries), _OPTIONS)
    assert result.objective_ns == 2**61 * 500
    assert "cpsat cannot hold the workload" in result.note


@pytest.mark.parametrize(("solver", "most"), [("auto", 1), ("heft", 150)])
def test_large_workloads_and_solvers_that_are_named_do_without(
    solver: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OR-Tools is not even loaded."""

    def fail(entry: str) -> object:
        raise AssertionError(f"{entry} was loaded")

    monkeypatch.setattr(solving, "MAX_CPSAT_TASKS", most)
    monkeypatch.setattr(solving, "load_entry", fail)
    result = solve_workload(_two_readers(11), _OPTIONS, solver=solver)
    assert result.bound_ns < result.objective_ns == 530
