"""MILP-SPLIT: worked instances, the optimum on chains, bounds and plans on other graphs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from ortools.sat.python import cp_model

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Memory
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.native.simulate import simulate_steps
from heteroplace.parts.throughput.decompose.decomposition import modules_of
from heteroplace.parts.throughput.decompose.narrow_cuts import (
    Boundary,
    ModulePath,
    single_channel_modules,
)
from heteroplace.parts.throughput.decompose.serial_modules import ChainModule, module_chain
from heteroplace.parts.throughput.split.chain_program import end_prices, shortest_path, value
from heteroplace.parts.throughput.split.chain_split import ChainSplit
from heteroplace.parts.throughput.split.channel_split import ChannelSplit
from heteroplace.parts.throughput.split.exact import Proof
from heteroplace.parts.throughput.split.module_memory import _choices, _held, _room, fitting_chain
from heteroplace.parts.throughput.split.module_plans import ModulePlans
from heteroplace.parts.throughput.split.module_problem import (
    NO_END,
    LocalModule,
    ModuleProblem,
    split_steps,
)
from heteroplace.parts.throughput.split.pool import Budget, Pool
from heteroplace.solve import Problem, SolveOptions, SolveResult, get_solver
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.exact.one_thread import Effort, Stopper
from heteroplace.solve.feasibility import overflow
from heteroplace.solve.problem import ProgressReport
from tests.instances import given_costs, gpus, instance, problem_of
from tests.interrupts import ctrl_c_after
from tests.reference.brute_force import optimal_makespan
from tests.strategies import Instance, exact_cases
from tests.unit.solve.bounds.chains import chains, optimum_of
from tests.unit.solve.bounds.test_modules import two_channels, two_diamonds
from zoo.graphs.catalogue import get_instance, rwnn
from zoo.graphs.rwnn import RwnnStack

QUICK = SolveOptions(iterations=20_000, threads=1, time_limit_s=20)


def solve(problem: Problem, options: SolveOptions = QUICK, name: str = "split") -> SolveResult:
    """Solve and judge the plan."""
    result = get_solver(name).solve(problem, options)
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    assert result.bound_ns <= result.objective_ns
    assert result.objective_ns == simulate_steps(problem.native, result.plan.steps).makespan_ns
    return result


def pool(threads: int = 1, deterministic_s: float | None = 5.0) -> Pool:
    return Pool(Budget(Deadline.after(20), deterministic_s, 0, threads))


def chain_of(problem: Problem, min_tasks: int) -> tuple[ChainModule, ...]:
    """The modules of at least so many tasks."""
    path = single_channel_modules(problem.graph, min_tasks)
    return module_chain(problem.graph, has_host=problem.cluster.host is not None, path=path)


def split_chain(problem: Problem, min_tasks: int = 1, threads: int = 1) -> ChainSplit:
    """A chain of the smallest modules, solved until nothing is left."""
    start = get_solver("heft").solve(problem, QUICK).plan.steps
    split = ChainSplit(problem, chain_of(problem, min_tasks), pool(threads))
    split.start(start)
    while split.improve():
        pass
    return split


def test_two_diamonds_take_17_the_sum_over_a_shared_end() -> None:
    problem = problem_of(two_diamonds())
    split = split_chain(problem, min_tasks=4)
    assert [module.extent.tasks for module in split.modules] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert split.best_ns() == split.bound_ns() == 17
    assert solve(problem).objective_ns == 17


def pinned_ns(problem: Problem, tasks: tuple[int, ...], entry: int, exit_: int) -> int:
    """Optimum of some tasks, the first on one device and the last on another."""
    names = [problem.cluster.devices[device].name for device in (entry, exit_)]
    builder = TaskGraphBuilder("pinned")
    for task in tasks:
        device = {tasks[0]: names[0], tasks[-1]: names[1]}.get(task)
        original = problem.graph.tasks[task]
        reads = [problem.graph.tensors[t].name for t in problem.graph.task_inputs[task]]
        inside = [read for read in reads if read.split(".")[0][1:] == original.name[1:]]
        devices = None if device is None else (device,)
        builder.add_task(Task(original.name, "op", devices=devices), inside)
        builder.add_tensor(original.name, num_bytes=10)
    graph = builder.finalize([])
    run_ns = problem.native.run_ns.tolist()
    rows = {problem.graph.tasks[task].name: run_ns[task] for task in tasks}
    costs = given_costs(graph, problem.cluster, rows)
    return solve(Problem(graph, problem.cluster, costs), name="cpsat").objective_ns


def test_modules_of_two_diamonds_have_the_published_times_for_each_pair_of_devices() -> None:
    problem = problem_of(two_diamonds())
    pairs = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [pinned_ns(problem, (0, 1, 2, 3), *pair) for pair in pairs] == [6, 7, 6, 8]
    assert [pinned_ns(problem, (4, 5, 6, 7), *pair) for pair in pairs] == [11, 11, 10, 10]


def test_programme_of_two_diamonds_joins_at_device_0() -> None:
    # The published times, with the bridge of 5 in the second module.
    first = {(NO_END, 0): 6, (NO_END, 1): 7}
    second = {(0, NO_END): min(11, 5 + 10), (1, NO_END): min(5 + 11, 10)}
    assert value([first, second]) == 17
    assert shortest_path([first, second]) in (
        [(NO_END, 0), (0, NO_END)],
        [(NO_END, 1), (1, NO_END)],
    )


def test_prices_of_ends_sum_to_the_shortest_path() -> None:
    times = [{(NO_END, 0): 6, (NO_END, 1): 7}, {(0, 0): 4, (0, 1): 9, (1, 1): 1}]
    times.append({(0, NO_END): 2, (1, NO_END): 8})
    prices = end_prices(times)
    total = sum(
        min(before[a] + ns - after[b] for (a, b), ns in module.items())
        for module, (before, after) in zip(times, pairwise(prices), strict=True)
    )
    assert total + prices[-1][NO_END] - prices[0][NO_END] == value(times) == 12


def test_chain_that_does_not_fit_one_device_takes_7() -> None:
    case = instance([("a", "b")], {"a": (1, 5), "b": (1, 5)}, gpus({(0, 1): 10, (1, 0): 10}, 2))
    memories = (Memory("m0", 1), Memory("m1", 2))
    builder = TaskGraphBuilder("pair")
    builder.add_task(Task("a", "op", weight_bytes=1), [])
    builder.add_task(Task("b", "op", weight_bytes=1), [builder.add_tensor("a", num_bytes=0)])
    graph = builder.finalize([])
    links = tuple(replace(link, latency_ns=1) for link in case.cluster.links)
    cluster = replace(case.cluster, memories=memories, links=links)
    rows = {"a": (1, 5), "b": (1, 5)}
    problem = Problem(graph, cluster, given_costs(graph, cluster, rows))
    split = split_chain(problem)
    assert split.best_ns() == split.bound_ns() == 2
    result = solve(problem)
    assert (result.objective_ns, result.status) == (7, "optimal")


def test_two_channels_take_14_behind_a_barrier_and_10_without() -> None:
    problem = problem_of(two_channels())
    path = ModulePath(((0, 1, 2), (3, 4, 5)), (Boundary(((1, 3), (2, 4))),))
    split = ChannelSplit(problem, path, pool())
    # Each module as short as it can be, and its channels on the same devices on both sides.
    for devices in ((0, 0, 1), (1, 1, 0)):
        split.add_pattern(0, (0, 2, 1), (devices[0], devices[2], devices[1]))
        split.add_pattern(1, (3, 4, 5), (devices[1], devices[2], devices[0]))
    while split.improve():
        pass
    assert split.bound_ns() == 9
    barrier = split.barrier_plan()
    assert barrier is not None
    assert barrier[0] == 14
    assert split.without_barriers(barrier[1]).makespan_ns == 10
    assert solve(problem).objective_ns == 10


@pytest.mark.costly
@given(chains(max_tasks=6, is_memory_ample=True))
@exact_cases(40)
def test_chain_of_modules_is_solved_to_the_optimum(case: Instance) -> None:
    problem = problem_of(case)
    if len(chain_of(problem, 1)) < 2:
        return
    split = split_chain(problem)
    optimum = optimum_of(case)
    assert split.bound_ns() == split.best_ns() == optimum


@pytest.mark.costly
@given(chains(max_tasks=5))
@exact_cases(40)
def test_plans_of_tight_chains_fit_and_the_bound_holds(case: Instance) -> None:
    problem = problem_of(case)
    optimum = optimum_of(case)
    if optimum is None:
        with pytest.raises(InfeasibleError):
            solve(problem)
        return
    try:
        result = solve(problem)
    except SolverLimitError:
        # Some plan fits by lifetime, but none by the static rule: those are all found.
        assert optimal_makespan(case.graph, case.cluster, case.costs, is_static=True) is None
        return
    assert result.bound_ns <= optimum <= result.objective_ns


@pytest.mark.costly(7)
def test_memory_that_joins_modules_is_kept_and_proven() -> None:
    problem = rwnn(RwnnStack("er", 6, 4))
    free = solve(problem, replace(QUICK, iterations=100_000))
    used = simulate_steps(problem.native, free.plan.steps).peak_bytes
    fullest = max(range(len(used)), key=used.__getitem__)
    memories = tuple(
        replace(memory, bytes=int(0.8 * used[fullest]) if index == fullest else memory.bytes)
        for index, memory in enumerate(problem.cluster.memories)
    )
    cluster = replace(problem.cluster, memories=memories)
    rows = problem.native.run_ns.tolist()
    names = {task.name: rows[index] for index, task in enumerate(problem.graph.tasks)}
    tight = Problem(problem.graph, cluster, given_costs(problem.graph, cluster, names))
    result = solve(tight, replace(QUICK, iterations=50_000))
    assert free.status == "optimal"
    assert free.objective_ns <= result.bound_ns <= result.objective_ns
    assert result.objective_ns <= solve(tight, QUICK, "search").objective_ns
    assert any(name == "memory-constrained modules" for name, _, _ in result.candidates)


@pytest.mark.costly
@given(chains(max_tasks=6))
@exact_cases(40)
def test_the_chain_that_fits_is_the_shortest_of_all_combinations(case: Instance) -> None:
    problem = problem_of(case)
    if len(chain_of(problem, 1)) < 2:
        return
    try:
        split = split_chain(problem)
    except InfeasibleError:
        return  # There is nothing to begin with.
    arguments = (problem, split.modules, split.plans)
    found = fitting_chain(*arguments, NEVER)
    shortest = shortest_by_all_combinations(*arguments)
    assert (found is None) == (shortest is None)
    if found is not None:
        simulated = simulate_steps(problem.native, found)
        assert not any(overflow(problem, found))
        assert shortest is not None and simulated.makespan_ns <= shortest
    assert fitting_chain(*arguments, Deadline.after(-1)) is None


def shortest_by_all_combinations(
    problem: Problem, modules: Sequence[LocalModule], plans: Sequence[ModulePlans]
) -> int | None:
    """Sum of the times of known plans whose ends meet and whose bytes fit; None: there are none.
    Bytes are set aside as in `memory`: those of each plan without workspaces, and the largest."""
    room, held = _room(problem), _held(problem)
    choices = [_choices(problem, one, held) for one in plans]
    times_ns = []
    for chosen in product(*choices):
        meets = all(a.pair[1] == b.pair[0] for a, b in pairwise(chosen))
        used = [sum(column) for column in zip(*(one.used for one in chosen), strict=True)]
        if meets and all(a <= b for a, b in zip(used, room, strict=True)):
            times_ns.append(sum(one.time_ns for one in chosen))
    return min(times_ns, default=None)


def test_a_budget_of_work_is_not_cut_by_the_clock() -> None:
    limits = []

    def job(effort: Effort, _stopper: Stopper) -> Proof:
        limits.append(effort.deadline)
        return Proof(None, 0, False, 1.0)

    counted, timed = pool(), pool(deterministic_s=None)
    for one in (counted, timed):
        one.run([job, job])
    assert limits[:2] == [counted.budget.deadline] * 2
    assert all(limit.at_s < timed.budget.deadline.at_s - 1 for limit in limits[2:])


def test_equal_modules_are_solved_once() -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {}
    edges = []
    for index in range(6):
        names = [f"{letter}{index}" for letter in "abcd"]
        run_ns |= dict(zip(names, [(2, 4), (4, 5), (4, 3), (2, 4)], strict=True))
        edges += [(names[0], n) for n in names[1:3]] + [(n, names[3]) for n in names[1:3]]
        if index:
            edges.append((f"d{index - 1}", names[0]))
    problem = problem_of(instance(edges, run_ns, gpus({(0, 1): 10, (1, 0): 5}, 2)))
    split = split_chain(problem, min_tasks=4)
    assert len(split.modules) == 6
    # The first has no entry and the last no exit; the four between are one.
    assert len(split.classes) == 3
    assert split.bound_ns() == split.best_ns() == 60
    assert sum(plans.num_solves for plans in split.classes) <= 2 * len(split.classes)


def test_module_plans_are_translated_there_and_back() -> None:
    problem = get_instance("rwnn/er10x5").build()
    steps = get_solver("heft").solve(problem, QUICK).plan.steps
    found = []
    chain = modules_of(problem).chain
    for extent, share in zip(chain, split_steps(problem, chain, steps), strict=True):
        module = LocalModule(problem, extent)
        local = module.local_steps(share)
        found.extend(module.steps(local))
        entry, exit_ = dict.fromkeys(module.entries, 3), dict.fromkeys(module.exits, 5)
        priced = ModuleProblem(module, entry, exit_)
        pair = (
            module.entries[0],
            priced.without_ends(priced.with_ends((module.entries[0], 0), local))[0][1],
        )
        assert priced.without_ends(priced.with_ends(pair, local)) == (pair, local)
    assert sorted(map(repr, found)) == sorted(map(repr, steps))


@pytest.mark.costly
@pytest.mark.parametrize("stack", [RwnnStack("er", 6, 3), RwnnStack("er", 6, 3, 2)])
def test_threads_do_not_change_the_result(stack: RwnnStack) -> None:
    results = [
        solve(rwnn(stack), SolveOptions(iterations=30_000, threads=threads, time_limit_s=60))
        for threads in (1, 3)
    ]
    assert results[0].plan == results[1].plan
    assert results[0].bound_ns == results[1].bound_ns


@pytest.mark.costly
def test_small_stack_is_proven_optimal() -> None:
    problem = rwnn(RwnnStack("er", 8, 5))
    result = solve(problem, SolveOptions(time_limit_s=30))
    assert result.status == "optimal"


@pytest.mark.parametrize("is_strong", [True, False])
def test_bound_of_channels_is_at_most_the_exact_optimum(is_strong: bool) -> None:
    problem = rwnn(RwnnStack("er", 4, 5, 2, is_strong))
    result = solve(problem, replace(QUICK, iterations=200_000))
    search = solve(problem, QUICK, "search")
    assert result.bound_ns <= result.objective_ns <= search.objective_ns


@pytest.mark.costly
def test_progress_has_bounds_and_a_plan() -> None:
    reports: list[ProgressReport] = []
    problem = get_instance("rwnn/er10x5").build()
    result = solve(problem, SolveOptions(time_limit_s=30, progress=reports.append))
    found = [one for one in reports if one.phase == "split"]
    assert found[-1].best_ns == result.objective_ns
    assert found[-1].bound_ns == result.bound_ns
    assert found[-1].plan is not None
    assert [one.bound_ns for one in found] == sorted(one.bound_ns for one in found)


def test_ctrl_c_ends_a_solve_that_has_not_begun_and_all_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = []

    class Slow(cp_model.CpSolver):
        """It begins late, and forgets that it was told to stop before."""

        is_told = False

        def solve(self, *_: object) -> cp_model.CpSolverStatus:
            time.sleep(0.6)
            self.is_told = False
            until = time.perf_counter() + 5
            while not self.is_told and time.perf_counter() < until:
                time.sleep(0.01)
            return cp_model.OPTIMAL if self.is_told else cp_model.UNKNOWN

        def stop_search(self) -> None:
            self.is_told = True

    def job(effort: Effort, stopper: Stopper) -> Proof:
        begun.append(effort)
        end = stopper.solve(cp_model.CpModel(), effort)
        assert end is not None
        return Proof(None, 0, end[1] == cp_model.OPTIMAL, 0.0)

    monkeypatch.setattr(cp_model, "CpSolver", Slow)
    one = pool()
    with ctrl_c_after(0.2):
        proofs = one.run([job, job, job])
    assert one.was_interrupted
    assert len(begun) == 1
    assert [proof.is_final for proof in proofs] == [True, False, False]


@pytest.mark.costly
def test_ctrl_c_keeps_the_best_plan() -> None:
    problem = get_instance("rwnn/er32x10").build()
    with ctrl_c_after(3.0):
        result = solve(problem, SolveOptions(time_limit_s=100))
    assert result.status == "interrupted"
