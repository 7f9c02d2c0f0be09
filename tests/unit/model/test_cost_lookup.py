"""Costs belong to tasks and devices: what a table says of other graphs and clusters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.coarsen.levels import usable_devices
from heteroplace.errors import CostMismatchError, MissingCostError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.cost_lookup import check_known, find_costs
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.list.sequential_placement import sequential_placement
from tests.strategies import Instance, instances, num_cases

LLVM = "llvm -mcpu=x"


def device(name: str, target: str = LLVM, **more: object) -> Device:
    return Device(name, target.split()[0], target, 0, 0, **more)  # type: ignore[arg-type]


def cluster(*devices: Device) -> Cluster:
    return Cluster("machine", (Memory("ram", 10**6),), devices, (), 0)


def chain(*tasks: Task) -> TaskGraph:
    """A graph in which each task reads what the one before has made."""
    builder = TaskGraphBuilder("chain")
    tensor = builder.add_input("x", (4,), "float32")
    for task in tasks:
        builder.add_task(task, [tensor])
        tensor = builder.add_tensor(task.name, (4,), "float32")
    return builder.finalize([tensor])


ONE, OTHER = device("cpu.0", cores=(0,)), device("gpu", "cuda -arch=sm_80")
PAIR = cluster(ONE, OTHER)
GRAPH = chain(Task("a", "relu"), Task("b", "tanh"))


def measured(task: int, device: int) -> Cost:
    return Cost.measured(100 + 10 * task + device, 1)


TABLE = build_table(GRAPH, PAIR, measured)


@given(instances(), st.data())
@num_cases(60)
def test_a_table_holds_for_its_own_graph_and_any_links_limits_and_order(
    case: Instance, data: st.DataObject
) -> None:
    assert find_costs(case.costs, case.graph, case.cluster) == case.costs
    order = data.draw(st.permutations(range(len(case.cluster.devices))))
    other = replace(
        case.cluster,
        name="other",
        memories=tuple(replace(memory, bytes=2**60) for memory in case.cluster.memories),
        devices=tuple(case.cluster.devices[index] for index in order),
    )
    found = find_costs(case.costs, case.graph, other)
    assert found.rows == tuple(tuple(row[index] for index in order) for row in case.costs.rows)


def test_pins_and_excluded_devices_leave_a_table_valid() -> None:
    tasks = [replace(task, devices=("gpu",)) for task in GRAPH.tasks]
    pinned = replace(GRAPH, tasks=tuple(tasks))
    found = find_costs(TABLE, pinned, PAIR)
    assert found.rows == TABLE.rows
    plan = get_solver("heft").solve(Problem(pinned, PAIR, found), SolveOptions()).plan
    assert set(plan.placement(2)) == {1}


def test_what_was_excluded_is_unknown_where_it_is_allowed_again() -> None:
    pinned = replace(GRAPH, tasks=(replace(GRAPH.tasks[0], devices=("gpu",)), GRAPH.tasks[1]))
    table = build_table(pinned, PAIR, measured)
    assert table.cost(0, 0) == Cost.excluded("task is pinned to gpu")
    found = find_costs(table, GRAPH, PAIR)
    assert found.rows == ((Cost.unknown(), TABLE.cost(0, 1)), TABLE.rows[1])
    with pytest.raises(MissingCostError, match=r"does not know: task 'a' on 'cpu\.0'\. Do so\."):
        check_known(found, GRAPH, PAIR, table, "Do so.")
    check_known(find_costs(table, pinned, PAIR), pinned, PAIR, table, "")


def test_a_new_device_like_a_known_one_takes_its_times() -> None:
    more = cluster(device("cpu.7", cores=(7,)), OTHER, device("new", "cuda -arch=sm_90"))
    found = find_costs(TABLE, GRAPH, more)
    assert found.rows == tuple((*row, Cost.unknown()) for row in TABLE.rows)
    with pytest.raises(MissingCostError, match=r"'new' \(cuda, cuda -arch=sm_90\) is like none"):
        check_known(found, GRAPH, more, TABLE, "")


def test_devices_of_which_a_table_says_different_things_are_no_model_for_another() -> None:
    two = cluster(device("cpu.0", cores=(0,)), device("cpu.1", cores=(1,)))
    table = build_table(GRAPH, two, measured)
    found = find_costs(table, GRAPH, cluster(device("cpu.2", cores=(2,))))
    assert {cost.source for row in found.rows for cost in row} == {"unknown"}


@pytest.mark.parametrize("change", [{"target": "llvm -mcpu=y"}, {"cores": (0, 1)}, {"model": "m"}])
def test_another_processor_or_number_of_threads_is_not_known(change: dict[str, object]) -> None:
    found = find_costs(TABLE, GRAPH, cluster(replace(ONE, **change), OTHER))
    assert [row[0].source for row in found.rows] == ["unknown", "unknown"]
    assert [row[1] for row in found.rows] == [row[1] for row in TABLE.rows]


def test_predicted_times_depend_on_the_figures_of_the_device_too() -> None:
    table = build_table(GRAPH, PAIR, lambda task, device: Cost.roofline(5 + task + device))
    faster = cluster(ONE, replace(OTHER, flops_per_second=10**12))
    found = find_costs(table, GRAPH, faster)
    assert [[cost.source for cost in row] for row in found.rows] == [["roofline", "unknown"]] * 2
    assert find_costs(TABLE, GRAPH, faster).rows == TABLE.rows


def test_devices_without_target_and_model_are_told_by_their_names() -> None:
    two = Cluster("p", (Memory("ram", 10**6),), (Device("p", "x", "", 0, 0),), (), 0)
    table = build_table(GRAPH, two, lambda *_: Cost.given(5))
    other = replace(two, devices=(Device("q", "x", "", 0, 0),))
    assert find_costs(table, GRAPH, other).rows == ((Cost.unknown(),),) * 2


def test_a_task_of_another_name_takes_the_median_of_what_was_measured_of_its_work() -> None:
    graph = chain(Task("a", "relu"), Task("b", "relu"), Task("c", "relu"))
    table = build_table(graph, PAIR, measured)
    longer = chain(*graph.tasks, Task("d", "relu"), Task("e", "tanh"))
    found = find_costs(table, longer, PAIR)
    assert found.rows[:3] == table.rows
    assert found.cost(3, 0) == Cost.scaled(110, "as b, which does the same work", 1 / 110)
    assert found.rows[4] == (Cost.unknown(), Cost.unknown())


def test_given_times_are_of_one_task_only() -> None:
    table = build_table(GRAPH, PAIR, lambda *_: Cost.given(5))
    found = find_costs(table, chain(*GRAPH.tasks, Task("c", "relu")), PAIR)
    assert found.rows[2] == (Cost.unknown(), Cost.unknown())


def test_given_times_are_of_one_device_only() -> None:
    table = build_table(GRAPH, PAIR, lambda *_: Cost.given(5))
    found = find_costs(table, GRAPH, cluster(device("cpu.1", cores=(1,)), OTHER))
    assert found.rows == ((Cost.unknown(), Cost.given(5)),) * 2


def test_a_task_that_computes_something_else_is_not_known_by_its_name() -> None:
    other = chain(replace(GRAPH.tasks[0], flops=5), GRAPH.tasks[1])
    found = find_costs(TABLE, other, PAIR)
    assert found.rows == ((Cost.unknown(), Cost.unknown()), TABLE.rows[1])
    with pytest.raises(MissingCostError, match=r"5 flops, .* here, and .* 0 flops, .* the table"):
        check_known(found, other, PAIR, TABLE, "")


def test_a_graph_without_any_known_task_is_another_one() -> None:
    with pytest.raises(CostMismatchError, match=r"none of the tasks of graph 'chain': task 'z'"):
        find_costs(TABLE, chain(Task("z", "exp")), PAIR)


def test_several_batches_are_found() -> None:
    table = build_table(GRAPH, PAIR, lambda t, d, b: Cost.given(t + d + b), (1, 4))
    found = find_costs(table, GRAPH, replace(PAIR, devices=(OTHER,)))
    assert found.batches == (1, 4)
    assert found.rows_of(4) == tuple((row[1],) for row in table.rows_of(4))


def test_links_are_no_part_of_what_a_table_is_checked_for() -> None:
    apart = replace(PAIR, memories=(Memory("ram", 9), Memory("card", 9)))
    linked = replace(apart, links=(Link("up", 0, 1, 1, 1, "up"), Link("down", 1, 0, 1, 1, "down")))
    TABLE.check(GRAPH, apart)
    TABLE.check(GRAPH, linked)
    assert isinstance(find_costs(TABLE, GRAPH, linked), CostTable)


def test_what_chooses_devices_by_the_table_alone_keeps_pins() -> None:
    pinned = replace(GRAPH, tasks=tuple(replace(task, devices=("gpu",)) for task in GRAPH.tasks))
    found = find_costs(TABLE, pinned, PAIR)
    assert sequential_placement(pinned, PAIR, found).devices == (1, 1)
    assert usable_devices(pinned, PAIR, found).tolist() == [[False, True]] * 2
