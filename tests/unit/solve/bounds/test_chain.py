"""The bound over a chain of modules: exact on chains, never above the optimum."""

from __future__ import annotations

from hypothesis import given

from heteroplace.bench.suites.catalogue import get_instance
from heteroplace.decompose.narrow_cuts import Boundary, ModulePath, single_channel_modules
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.bounds.chain import ChainBound, is_chain
from heteroplace.solve.bounds.subproblem import spine
from tests.instances import problem_of
from tests.strategies import Instance, num_cases
from tests.unit.solve.bounds.chains import chains, optimum_of
from tests.unit.solve.bounds.test_modules import two_channels, two_diamonds

DIAMONDS = ModulePath(((0, 1, 2, 3), (4, 5, 6, 7)), (Boundary(((3, 4),)),), 0, 7)


def test_two_diamonds_are_proven_optimal() -> None:
    """Instance E of DiviML: 6, then 0 to stay on the device, then 11."""
    case = two_diamonds()
    assert is_chain(case.graph, DIAMONDS)
    chain = ChainBound(problem_of(case), DIAMONDS)
    assert chain.shortest()[0] <= 17
    assert chain.improve(30.0) == 17 == optimum_of(case)


def test_a_known_makespan_or_no_time_ends_the_work() -> None:
    chain = ChainBound(problem_of(two_diamonds()), DIAMONDS)
    first = chain.improve(0.0)
    assert 0 < first <= 17
    assert chain.improve(30.0, target_ns=first) == first


def test_two_channels_or_a_task_beside_the_way_are_no_chain() -> None:
    case = two_channels()
    path = ModulePath(((0, 1, 2), (3, 4, 5)), (Boundary(((1, 3), (2, 4))),), 0, 5)
    assert not is_chain(case.graph, path)
    # o2 does not come before o1.
    assert not is_chain(
        case.graph, ModulePath(((0, 1, 2), (3, 4, 5)), (Boundary(((1, 3),)),), 0, 5)
    )
    assert not is_chain(case.graph, ModulePath(((0, 1, 2, 3, 4, 5),), (), 0, 5))


@given(chains(max_tasks=6))
@num_cases(60)
def test_bound_is_at_most_the_optimum(case: Instance) -> None:
    optimum = optimum_of(case)
    if optimum is None:
        return
    inner = spine(problem_of(case))
    path = single_channel_modules(inner.graph, min_tasks=1)
    if is_chain(inner.graph, path):
        assert ChainBound(inner, path).improve(30.0) <= optimum


def test_a_stack_of_modules_is_proven_by_its_chain() -> None:
    problem = get_instance("rwnn/er10x5").build()
    assert lower_bound(problem, "thorough", time_limit_s=5.0).source == "chain of modules"
