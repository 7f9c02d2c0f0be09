"""Coarse graphs: nothing is lost, no cycle is made, and the way back leads to the same plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.coarsen.coarse import Coarsening, coarsen
from heteroplace.errors import (
    CostMismatchError,
    GraphError,
    InfeasibleError,
    MissingCostError,
    PlanError,
)
from heteroplace.model.check import check_plan
from heteroplace.model.cost import MAX_NS, Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.memory_use.memory import memory_use
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.routed.routers import Router
from heteroplace.native.core_problem import NativeProblem
from heteroplace.native.list import heft
from heteroplace.simulate.simulator import simulate
from tests.dags import (
    PAIR,
    WeightedDag,
    chain_of,
    lettered,
    random_task_graph,
    task_graphs,
    weighted_dags,
)
from tests.instances import given_costs, gpus
from tests.reference.graphs import is_acyclic
from tests.strategies import exact_cases, num_cases

HOSTED = gpus({(0, 1): 1, (1, 0): 2}, 2, host=0)


@st.composite
def coarsenings(draw: st.DrawFn) -> Coarsening:
    """A graph of free tasks, cut into random segments of a random topological order."""
    random = Random(draw(st.integers(0, 2**32)))
    graph = random_task_graph(random, draw(st.integers(1, 9)))
    order = _random_order(graph, random)
    cuts = [0, *(cut for cut in range(1, len(order)) if random.random() < 0.4), len(order)]
    return coarsen(graph, [order[begin:end] for begin, end in pairwise(cuts)])


def _random_order(graph: TaskGraph, random: Random) -> list[int]:
    order: list[int] = []
    while len(order) < len(graph.tasks):
        ready = [
            task
            for task, before in enumerate(graph.predecessors)
            if task not in order and set(before) <= set(order)
        ]
        order.append(random.choice(ready))
    return order


def _random_costs(graph: TaskGraph, seed: int) -> CostTable:
    random = Random(seed)
    return build_table(graph, HOSTED, lambda task, device: Cost.given(random.randint(0, 9)))


@given(coarsenings())
@num_cases(200)
def test_every_task_is_in_one_group_and_back(coarse: Coarsening) -> None:
    assert len(coarse.members) == len(coarse.graph.tasks)
    for group, members in enumerate(coarse.members):
        assert members == tuple(t for t, of in enumerate(coarse.group_of) if of == group)
    assert sum(len(members) for members in coarse.members) == len(coarse.fine.tasks)


@given(coarsenings())
@num_cases(200)
def test_no_op_and_no_weight_and_no_flop_is_lost(coarse: Coarsening) -> None:
    def ops(graph: TaskGraph) -> list[str]:
        return sorted(op for task in graph.tasks for op in task.members or (task.name,))

    fine, graph = coarse.fine, coarse.graph
    assert ops(fine) == ops(graph)
    for field in ("flops", "weight_bytes"):
        before = [getattr(task, field) for task in fine.tasks]
        after = [getattr(task, field) for task in graph.tasks]
        assert sum(before) == sum(after)
        for members, value in zip(coarse.members, after, strict=True):
            assert value == sum(before[task] for task in members)
    for members, task in zip(coarse.members, graph.tasks, strict=True):
        assert task.workspace_bytes == max(fine.tasks[t].workspace_bytes for t in members)
        assert task.op == "+".join(fine.tasks[t].op for t in members)


@given(coarsenings())
@num_cases(200)
def test_tensors_between_groups_are_kept_once_each_and_no_byte_is_lost(coarse: Coarsening) -> None:
    fine, graph, group_of = coarse.fine, coarse.graph, coarse.group_of
    expected = {}
    for tensor_id, tensor in enumerate(fine.tensors):
        home = None if tensor.producer is None else group_of[tensor.producer]
        readers = {group_of[task] for task in tensor.consumers} - {home}
        is_inside = home is not None and tensor.consumers and not readers
        if not is_inside or tensor_id in fine.outputs:
            expected[tensor_id] = (tensor.name, tensor.bytes, home, tuple(sorted(readers)))
    found = {
        fine_id: (tensor.name, tensor.bytes, tensor.producer, tensor.consumers)
        for fine_id, tensor in zip(coarse.fine_tensor, graph.tensors, strict=True)
        if fine_id is not None
    }
    assert found == expected
    assert sum(t.bytes for t in graph.tensors) == sum(t.bytes for t in fine.tensors)
    names = [fine.tensors[tensor].name for tensor in fine.outputs]
    assert [graph.tensors[tensor].name for tensor in graph.outputs] == names
    assert [graph.tensors[t].name for t in graph.inputs] == [
        fine.tensors[t].name for t in fine.inputs
    ]


@given(coarsenings(), st.integers(0, 999))
@exact_cases(200)
def test_expanded_plan_is_valid_needs_the_same_memory_and_is_not_slower(
    coarse: Coarsening, seed: int
) -> None:
    costs = _random_costs(coarse.fine, seed)
    sums = coarse.project_costs(costs, HOSTED)
    problem = NativeProblem(coarse.graph, HOSTED, sums)
    plan = problem.plan(heft(problem, [0, 1]).steps, "heft")
    fine_plan = coarse.expand_plan(plan)
    check_plan(coarse.graph, HOSTED, sums, plan)
    check_plan(coarse.fine, HOSTED, costs, fine_plan)
    placement = plan.placement(len(coarse.graph.tasks))
    fine_placement = fine_plan.placement(len(coarse.fine.tasks))
    assert coarse.expand_placement(placement) == fine_placement
    used = memory_use(
        coarse.graph, HOSTED, placement, [(copy.tensor, copy.dst) for copy in plan.copies]
    )
    fine_used = memory_use(
        coarse.fine, HOSTED, fine_placement, [(copy.tensor, copy.dst) for copy in fine_plan.copies]
    )
    assert used == fine_used
    fine_ns = simulate(coarse.fine, HOSTED, costs, fine_plan).makespan_ns
    assert fine_ns <= simulate(coarse.graph, HOSTED, sums, plan).makespan_ns


@given(task_graphs())
@num_cases(200)
def test_groups_of_one_change_nothing(graph: TaskGraph) -> None:
    coarse = coarsen(graph, [(task,) for task in range(len(graph.tasks))])
    assert coarse.graph.tasks == graph.tasks
    assert {t.name: t for t in coarse.graph.tensors} == {t.name: t for t in graph.tensors}
    assert coarse.group_of == tuple(range(len(graph.tasks)))


def test_cost_of_a_group_is_the_sum_and_unsupported_where_a_member_is() -> None:
    graph = lettered("ab bc")
    times = {"a": (2, 3), "b": (None, 4), "c": (5, 6)}
    coarse = coarsen(graph, [(0, 1), (2,)])
    table = coarse.project_costs(given_costs(graph, PAIR, times), PAIR)
    times_found = [[table.run_ns(group, device) for device in (0, 1)] for group in (0, 1)]
    assert times_found == [[None, 7], [5, 6]]
    assert table.rows[0][0].reason == "task 'b' is unsupported on device 0"


def test_cost_of_a_group_is_as_certain_as_its_least_certain_member() -> None:
    graph = lettered("ab bc")
    rows = (Cost.measured(300, 6), Cost.scaled(100, "", 0.3), Cost.roofline(50))
    costs = build_table(graph, PAIR, lambda task, device: rows[task] if device == 0 else rows[0])
    table = coarsen(graph, [(0, 1), (2,)]).project_costs(costs, PAIR)
    assert table.rows[0][1] == Cost.measured(600, 12, "sum over 2 tasks")
    # (300 * 2 % + 100 * 30 %) / 400
    assert table.rows[0][0] == Cost(400, "scaled", 0, "sum over 2 tasks", 0.09)
    assert table.rows[1][0].error is None
    assert table.rows[1][0].source == "roofline"


def test_cost_of_a_group_is_summed_for_each_batch_size() -> None:
    graph = lettered("ab bc")
    costs = build_table(
        graph, PAIR, lambda task, device, batch: Cost.given((task + 1) * batch + device), (1, 4)
    )
    table = coarsen(graph, [(0, 1), (2,)]).project_costs(costs, PAIR)
    assert table.batches == (1, 4)
    assert [table.run_ns(0, device, 1) for device in (0, 1)] == [3, 5]
    assert [table.run_ns(0, device, 4) for device in (0, 1)] == [12, 14]


def test_group_that_no_device_can_run_is_named() -> None:
    graph = lettered("ab")
    costs = build_table(
        graph, PAIR, lambda t, d: Cost.given(1) if t == d else Cost.unsupported("no kernel")
    )
    with pytest.raises(InfeasibleError, match=r"group 'a..b': task 'b' is unsupported on device 0"):
        coarsen(graph, [(0, 1)]).project_costs(costs, PAIR)


def test_unknown_cost_in_a_group_is_named_where_the_group_else_could_be() -> None:
    graph = lettered("ab bc")
    rows = {0: Cost.given(1), 1: Cost.unknown(), 2: Cost.unsupported("no kernel")}
    costs = build_table(graph, PAIR, lambda t, d: rows[0] if d else rows[t])
    with pytest.raises(MissingCostError, match="task 'b' on device 'gpu0' is unknown"):
        coarsen(graph, [(0, 1), (2,)]).project_costs(costs, PAIR)
    table = coarsen(graph, [(0, 1, 2)]).project_costs(costs, PAIR)
    assert [table.run_ns(0, device) for device in (0, 1)] == [None, 3]


def test_cost_of_a_group_that_no_table_can_hold_is_refused() -> None:
    graph = lettered("ab bc")
    costs = build_table(graph, PAIR, lambda task, device: Cost.given(MAX_NS // 2 + 1))
    with pytest.raises(CostMismatchError, match=f"a run time of {MAX_NS + 1} ns"):
        coarsen(graph, [(0, 1), (2,)]).project_costs(costs, PAIR)


def test_costs_of_another_graph_are_refused() -> None:
    graph = lettered("ab")
    other = lettered("ab bc")
    costs = build_table(other, PAIR, lambda task, device: Cost.given(1))
    with pytest.raises(CostMismatchError):
        coarsen(graph, [(0, 1)]).project_costs(costs, PAIR)


@given(weighted_dags(), st.integers(1, 4), st.integers(0, 2**32))
@num_cases(200)
def test_cycle_is_found_exactly_when_there_is_one(
    case: WeightedDag, num_groups: int, seed: int
) -> None:
    random = Random(seed)
    group_of = [random.randrange(num_groups) for _ in range(case.num_nodes)]
    quotient = case.dag().quotient(group_of, num_groups)
    edges = {(group_of[src], group_of[dst]) for src, dst in case.edges}
    edges = {edge for edge in edges if edge[0] != edge[1]}
    assert list(zip(quotient.src.tolist(), quotient.dst.tolist(), strict=True)) == sorted(edges)
    cycle = quotient.cycle()
    assert bool(cycle) == (not is_acyclic(num_groups, edges))
    assert set(pairwise([*cycle, *cycle[:1]])) <= edges
    assert len(set(cycle)) == len(cycle)


def test_quotient_by_something_else_than_a_partition_is_refused() -> None:
    dag = WeightedDag((1, 1), {(0, 1): 1}).dag()
    with pytest.raises(GraphError, match="1 entries; expected one for each of 2 nodes"):
        dag.quotient([0], 1)
    with pytest.raises(GraphError, match="node 1 is in group 2; expected 0 to 1"):
        dag.quotient([0, 2], 2)


def test_cycle_is_named() -> None:
    # Merging u with v over a second path u -> x -> v: what fusing multi-outputs would do.
    graph = lettered("ux uv xv", {"u": 1, "x": 1, "v": 1})
    with pytest.raises(GraphError, match=r"make a cycle: \{u, v\} -> \{x\} -> \{u, v\}"):
        coarsen(graph, [(0, 2), (1,)])


def test_long_groups_are_cut_short_in_the_message() -> None:
    letters = "abcdefg"
    graph = lettered(" ".join(a + b for a, b in pairwise(letters)))
    with pytest.raises(GraphError, match=r"\{a, b, c, d and 2 more\}"):
        coarsen(graph, [(0, 1, 2, 3, 4, 6), (5,)])


def test_faults_of_a_partition_are_all_named() -> None:
    graph = lettered("ab bc cd")
    with pytest.raises(GraphError) as caught:
        coarsen(graph, [(0, 1), (1, 9), ()])
    for text in (
        "task 'b' is in groups 0 and 1",
        "group 1 has task 9; there is no such id",
        "group 2 is empty",
        "2 tasks are in no group: c, d",
    ):
        assert text in str(caught.value)


def test_two_labels_in_a_group_are_refused_and_one_is_kept() -> None:
    graph = chain_of(Task("a", "op", together="g"), Task("b", "op"), Task("c", "op"))
    assert coarsen(graph, [(0, 1), (2,)]).graph.tasks[0].together == "g"
    clash = chain_of(Task("a", "op", together="g"), Task("b", "op", together="h"))
    with pytest.raises(GraphError, match=r"2 colocation groups \(g, h\)"):
        coarsen(clash, [(0, 1)])


def test_allowed_devices_are_intersected_or_refused() -> None:
    graph = chain_of(
        Task("a", "op", devices=("gpu1", "gpu0")),
        Task("b", "op"),
        Task("c", "op", devices=("gpu0",)),
    )
    assert coarsen(graph, [(0, 1, 2)]).graph.tasks[0].devices == ("gpu0",)
    clash = chain_of(
        Task("a", "op", devices=("gpu1",)), Task("b", "op"), Task("c", "op", devices=("gpu0",))
    )
    with pytest.raises(GraphError, match="no allowed device in common: 'a' on gpu1; 'c' on gpu0"):
        coarsen(clash, [(0, 1, 2)])


def test_tensors_inside_a_fused_kernel_can_be_left_out() -> None:
    graph = lettered("ab bc", None, ab=7, bc=5)
    kept = coarsen(graph, [(0, 1), (2,)]).graph
    assert [(t.name, t.bytes) for t in kept.tensors] == [("bc", 5), ("c.out", 1), ("a..b.inner", 7)]
    fused = coarsen(graph, [(0, 1), (2,)], keeps_inner=False).graph
    assert [(t.name, t.bytes) for t in fused.tensors] == [("bc", 5), ("c.out", 1)]


def test_what_a_coarse_graph_cannot_have_is_refused_and_not_left_out() -> None:
    plain = lettered("ab")
    first, *others = plain.tasks
    tensor, *behind = plain.tensors
    router = Router("gate", task=0, loads=0, num_cells=1, top_k=1, capacities=((1,),))
    for lossy, what in (
        (replace(plain, tasks=(replace(first, weights=(("w", 4),)), *others)), "weight 'w'"),
        (replace(plain, tensors=(replace(tensor, shared=True), *behind)), "shared tensor 'ab'"),
        (replace(plain, routers=(router,)), "router 'gate'"),
        (replace(plain, buffers=(("rows", 8),)), "routed buffer 'rows'"),
    ):
        with pytest.raises(GraphError, match=f"has the {what}.* which a coarse graph cannot have"):
            coarsen(lossy, [(0, 1)])


def test_names_that_are_taken_get_a_mark() -> None:
    builder = TaskGraphBuilder("names")
    builder.add_task(Task("a", "op"), [])
    inside = builder.add_tensor("a", num_bytes=1)
    builder.add_task(Task("b", "op"), [inside])
    builder.add_task(Task("a..b", "op"), [])
    made = [builder.add_tensor("b", num_bytes=1)]
    made.append(builder.add_tensor("a..b", num_bytes=1, name="a..b'.inner"))
    coarse = coarsen(builder.finalize(made), [(0, 1), (2,)])
    assert [task.name for task in coarse.graph.tasks] == ["a..b'", "a..b"]
    assert coarse.graph.tensors[-1].name == "a..b'.inner'"


def test_reasons_of_a_plan_go_to_all_members() -> None:
    graph = lettered("ab bc")
    coarse = coarsen(graph, [(0, 1), (2,)])
    steps = (Run(0, 1), Run(1, 1))
    plan = Plan(coarse.graph.digest(), PAIR.digest(), steps, "hand", ("first", "second"))
    assert coarse.expand_plan(plan).reasons == ("first", "first", "second")
    assert coarse.expand_plan(plan).origin == "hand"


def test_plan_of_another_graph_is_refused() -> None:
    graph = lettered("ab bc")
    coarse = coarsen(graph, [(0, 1), (2,)])
    with pytest.raises(PlanError, match="expected the coarse graph"):
        coarse.expand_plan(Plan(graph.digest(), PAIR.digest(), (), "hand"))


def test_copy_of_what_is_inside_a_group_is_refused() -> None:
    coarse = coarsen(lettered("ab bc"), [(0, 1), (2,)])
    inner = coarse.fine_tensor.index(None)
    plan = Plan(coarse.graph.digest(), PAIR.digest(), (Copy(inner, 0, 1, (0,)),), "hand")
    with pytest.raises(PlanError, match=r"copies 'a..b.inner', which is inside a group"):
        coarse.expand_plan(plan)


def test_graph_without_tasks_is_its_own_coarse_form() -> None:
    builder = TaskGraphBuilder("empty")
    graph = builder.finalize([builder.add_input("x", num_bytes=1)])
    assert coarsen(graph, []).graph == graph
