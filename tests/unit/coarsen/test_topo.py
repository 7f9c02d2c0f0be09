"""M-TOPO, DFS-TOPO and CPD-TOPO."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from heteroplace.coarsen.topo import ORDERS, cpd_topo, dfs_topo, m_topo, order_tasks
from heteroplace.errors import GraphError, SolverError
from tests.dags import WeightedDag, weighted_dags
from tests.reference.graphs import is_topological
from tests.strategies import num_cases
from tests.unit.coarsen.celeritas import example_graph, example_weights


def _letters(order: np.ndarray) -> str:
    tasks = example_graph().tasks
    return "".join(tasks[task].name for task in order)


def test_orders_of_the_worked_example() -> None:
    weights = example_weights()
    assert _letters(cpd_topo(weights)) == "abdgcef"
    assert _letters(m_topo(weights)) == "abcdgef"
    assert _letters(dfs_topo(weights)) == "abdgcef"


def test_breadth_first_fill_cuts_all_of_four_chains_and_depth_first_none() -> None:
    chains = WeightedDag((1,) * 8, {(head, head + 4): 1 for head in range(4)}).weights()
    for rule, expected in (("m", 4), ("dfs", 0), ("cpd", 0)):
        order = order_tasks(chains, rule).tolist()
        device = {task: index // 4 for index, task in enumerate(order)}
        assert sum(device[head] != device[head + 4] for head in range(4)) == expected


@given(weighted_dags())
@num_cases(200)
def test_every_order_is_topological(case: WeightedDag) -> None:
    weights = case.weights()
    for rule in ORDERS:
        assert is_topological(case.num_nodes, case.edges, order_tasks(weights, rule).tolist())


@given(weighted_dags(max_weight=3))
@num_cases(200)
def test_every_order_equals_its_definition(case: WeightedDag) -> None:
    weights = case.weights()
    through = weights.levels().through_ns.tolist()
    no_rank = [0] * case.num_nodes
    expected = {
        "m": _by_definition(case, no_rank, is_head=False),
        "dfs": _by_definition(case, no_rank, is_head=True),
        "cpd": _by_definition(case, through, is_head=True),
    }
    for rule in ORDERS:
        assert order_tasks(weights, rule).tolist() == expected[rule], rule


def _by_definition(case: WeightedDag, rank: list[int], is_head: bool) -> list[int]:
    """A list of free nodes, its head taken; freed nodes by falling rank, then lower id."""
    left = set(case.edges)
    free = [node for node in range(case.num_nodes) if not any(dst == node for _, dst in left)]
    free.sort(key=lambda node: (-rank[node], node))
    order = []
    while free:
        node = free.pop(0)
        order.append(node)
        children = sorted(dst for src, dst in left if src == node)
        left -= {(node, child) for child in children}
        freed = [child for child in children if not any(dst == child for _, dst in left)]
        freed.sort(key=lambda child: (-rank[child], child))
        free = [*freed, *free] if is_head else [*free, *freed]
    return order


def test_unknown_order_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SolverError, match=r"'best'; expected one of \['m', 'dfs', 'cpd'\]"):
        order_tasks(example_weights(), "best")


def test_path_lengths_of_another_size_are_refused() -> None:
    with pytest.raises(GraphError, match="given for 2 nodes; expected 3"):
        WeightedDag((1, 1, 1), {}).dag().critical_path_order([1, 2])
