"""check_plan on explicit schedules: what collectives, shared tensors and state may do, and may not.

Each rule has a plan that breaks it alone, and is refused by its message.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import PlanError
from heteroplace.model.check import check_plan
from heteroplace.model.checks.check_collective import parts_axis
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_op
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder, Tensor
from heteroplace.model.plan import Collective, Copy, Plan, Run, Step
from tests.explicit_plans import explicit_plans
from tests.instances import gpus
from tests.reference.live_memory import check_limits_by_lifetime
from tests.strategies import Instance, exact_cases

BOTH = (0, 1)


def on_two_devices(graph: TaskGraph, links: int = 2, **task: object) -> Instance:
    """The graph on two devices, each with a memory, which take batches of two."""
    cluster = gpus({(0, 1): 10, (1, 0): 10} if links == 2 else {(0, 1): 10}, 2)
    devices = tuple(replace(device, batch_sizes=(1, 2)) for device in cluster.devices)
    cluster = replace(cluster, devices=devices)
    tasks = tuple(
        replace(each, **task) if each.name == "sum" else each  # type: ignore[arg-type]
        for each in graph.tasks
    )
    graph = replace(graph, tasks=tasks)
    return Instance(graph, cluster, build_table(graph, cluster, lambda *_: Cost.given(1), (1, 2)))


def step_graph() -> TaskGraph:
    """Of one weight: forward, gradient, its sum over two replicas, update."""
    builder = TaskGraphBuilder("step")
    x = builder.add_input("x", (4,), "int8")
    w = builder.add_input("w", (4,), "int8", shared=True)
    builder.add_task(Task("f", "matmul"), [x, w])
    h = builder.add_tensor("f", (4,), "int8")
    builder.add_task(Task("dw", "matmul_dw", adds=True), [h])
    g = builder.add_tensor("dw", (4,), "int8", shared=True)
    builder.add_task(Task("sum", collective_op("all_reduce")), [g])
    s = builder.add_tensor("sum", (4,), "int8", shared=True)
    builder.add_task(Task("sgd", "sgd"), [w, s])
    builder.add_update(w, builder.add_tensor("sgd", (4,), "int8", shared=True))
    return builder.finalize([h])


F, DW, SUM, SGD = range(4)
X, W, H, G, S, NEW = range(6)


def good_steps() -> list[Step]:
    """Item 0 on the first device, item 1 on the second one."""
    return [
        Run(F, 0, (0,)),
        Run(DW, 0, (0,)),
        Run(F, 1, (1,)),
        Run(DW, 1, (1,)),
        Collective(SUM, BOTH, BOTH),
        Run(SGD, 0, BOTH),
        Run(SGD, 1, BOTH),
    ]


def check(case: Instance, steps: list[Step], items: int = 2) -> None:
    plan = Plan(case.graph.digest(), case.cluster.digest(), tuple(steps), "test", items=items)
    check_plan(case.graph, case.cluster, case.costs, plan)


def refuse(case: Instance, steps: list[Step], message: str, items: int = 2) -> None:
    with pytest.raises(PlanError, match=message):
        check(case, steps, items)


def test_a_training_step_on_two_replicas_passes() -> None:
    check(on_two_devices(step_graph()), good_steps())


@pytest.mark.costly
@given(explicit_plans())
@exact_cases(50)
def test_random_explicit_plans_pass(case: tuple[Instance, Plan]) -> None:
    found, plan = case
    check_plan(found.graph, found.cluster, found.costs, plan)


@pytest.mark.costly
@given(explicit_plans(), st.data())
@exact_cases(50)
def test_every_dropped_step_of_an_explicit_plan_is_caught(
    case: tuple[Instance, Plan], data: st.DataObject
) -> None:
    found, plan = case
    dropped = data.draw(st.integers(0, len(plan.steps) - 1))
    with pytest.raises(PlanError):
        check(found, [s for i, s in enumerate(plan.steps) if i != dropped], plan.items)


@pytest.mark.parametrize(
    ("index", "step", "message"),
    [
        (4, Collective(9, BOTH, BOTH), r"collective \?9 @ gpu0,gpu1 items 0,1: no task has id 9"),
        (4, Collective(SUM, (0, 7), BOTH), r"all_reduce sum @ gpu0,\?7 .*: no device has id 7"),
        (4, Run(SUM, 0, BOTH), "the task is a collective, of several devices at once"),
        (0, Collective(F, BOTH, (0,)), "the task is no collective .its op is 'matmul'."),
        (4, Collective(SUM, (), BOTH), "its devices are none; expected at least two"),
        (4, Collective(SUM, (1,), BOTH), "its devices are gpu1; expected at least two"),
        (4, Collective(SUM, (0, 0), BOTH), "device 'gpu0' takes part 2 times; expected once"),
        (4, Collective(SUM, BOTH, BOTH, 2), "its root is device 2 of 2; expected 0 to the last"),
        (4, Collective(SUM, BOTH, (1, 0)), r"its items are \(1, 0\); expected some of 0 to 1"),
        (4, Collective(SUM, BOTH, (0,)), "it adds up items 0, 1; expected those of the step"),
        (3, Run(DW, 1, (0,)), "tensor 'f.0' is not in memory 'm1' by then for item 0"),
        (3, Run(SGD, 1, BOTH), "tensor 'sum.0' is not in memory 'm1' by then for items 0, 1"),
        (3, Run(SGD, 1, BOTH), "tensor 'dw.0' is not in memory 'm1' by then"),
        (
            5,
            Run(SGD, 0, (0,)),
            "it updates state 'w', which needs all items of the plan, without 1",
        ),
        (6, Run(SGD, 0, BOTH), "run sgd @ gpu0 items 0,1: the task has run before for items 0, 1"),
        (6, Run(SGD, 0, BOTH), "run f @ gpu1 items 1: tensor 'w' is not in memory 'm1' by then"),
        (4, Collective(SUM, BOTH, BOTH), ""),
    ],
)
def test_a_wrong_step_of_a_training_step_is_named(index: int, step: Step, message: str) -> None:
    case, steps = on_two_devices(step_graph()), good_steps()
    steps[index] = step
    if message:
        refuse(case, steps, message)
    else:
        check(case, steps)


def test_an_update_is_read_in_its_place_and_the_state_no_more() -> None:
    case, steps = on_two_devices(step_graph()), good_steps()
    refuse(case, [*steps[2:4], Run(F, 0, (0,)), steps[1], *steps[4:6], steps[0]], "has run before")
    late = [*steps[:2], *steps[3:6], steps[6], steps[2]]
    refuse(case, late, "run f @ gpu1 items 1: state 'w' was updated in memory 'm1' before")


def test_what_was_read_is_not_added_to() -> None:
    case, steps = on_two_devices(step_graph()), good_steps()
    early = [*steps[:4], Collective(SUM, BOTH, BOTH), Run(F, 1, (2,)), Run(DW, 1, (2,))]
    refuse(case, early, "it adds to tensor 'dw.0', which was read before", 3)


def test_no_item_is_added_up_twice() -> None:
    builder = TaskGraphBuilder("made once")
    builder.add_task(Task("g", "seed", adds=True), [])
    builder.add_task(
        Task("sum", collective_op("all_reduce")),
        [builder.add_tensor("g", (4,), "int8", shared=True)],
    )
    graph = builder.finalize([builder.add_tensor("sum", (4,), "int8", shared=True)])
    case = on_two_devices(graph)
    total = Collective(1, BOTH, BOTH)
    check(case, [Run(0, 0, (0,)), Run(0, 1, (1,)), total])
    twice: list[Step] = [Run(0, 0, BOTH), Run(0, 1, (1,)), total]
    refuse(case, twice, "'g.0' in memory 'm1' is added up twice for item 1")


def test_a_collective_is_allowed_where_its_task_is() -> None:
    case = on_two_devices(step_graph(), devices=("gpu0",))
    refuse(case, good_steps(), "the task is allowed on gpu0 only, not on gpu1")


def test_a_collective_needs_a_way_between_its_devices() -> None:
    case = on_two_devices(step_graph(), links=1)
    refuse(case, good_steps(), "no link leads from memory 'm1' to 'm0'")


def lanes(kind: str, reads: list[tuple[int, ...]], makes: list[tuple[int, ...]]) -> Instance:
    """A collective over tensors of some shapes, one task for each that it reads."""
    builder = TaskGraphBuilder("lanes")
    parts = []
    for number, shape in enumerate(reads):
        builder.add_task(Task(f"p{number}", "matmul"), [])
        parts.append(builder.add_tensor(f"p{number}", shape, "float32"))
    builder.add_task(Task("sum", collective_op(kind)), parts)
    return on_two_devices(
        builder.finalize([builder.add_tensor("sum", shape, "float32") for shape in makes])
    )


WHOLE, HALF, THIRD = (4, 6), (4, 3), (4, 2)


@pytest.mark.parametrize(
    ("kind", "reads", "makes"),
    [
        ("all_reduce", [WHOLE, WHOLE], [WHOLE]),
        ("reduce", [WHOLE, WHOLE], [WHOLE]),
        ("all_gather", [HALF, HALF], [WHOLE]),
        ("all_gather", [(4, 2), (4, 4)], [WHOLE]),
        ("gather", [(1, 6), (3, 6)], [WHOLE]),
        ("reduce_scatter", [WHOLE, WHOLE], [HALF, HALF]),
        ("all_to_all", [(2, 6), (2, 6)], [HALF, HALF]),
        ("broadcast", [WHOLE], [WHOLE]),
        ("scatter", [WHOLE], [(4, 5), (4, 1)]),
    ],
)
def test_lanes_that_fit_pass(
    kind: str, reads: list[tuple[int, ...]], makes: list[tuple[int, ...]]
) -> None:
    case = lanes(kind, reads, makes)
    runs: list[Step] = [Run(number, number) for number in range(len(reads))]
    check(case, [*runs, Collective(len(reads), BOTH)], 1)


@pytest.mark.parametrize(
    ("kind", "reads", "makes", "message"),
    [
        ("all_reduce", [WHOLE, HALF], [WHOLE], r"it adds 'p1.0' .* to 'p0.0' .*; expected equal"),
        ("all_reduce", [WHOLE, WHOLE], [HALF], r"it makes 'sum.0' \(float32\[4, 3\]\) of 'p0.0'"),
        ("broadcast", [WHOLE], [HALF], "expected an equal shape"),
        ("all_gather", [HALF, THIRD], [WHOLE], "expected parts along one axis"),
        ("all_gather", [(2, 3), (2, 3)], [WHOLE], "it joins .* expected parts along one axis"),
        ("reduce_scatter", [WHOLE, WHOLE], [HALF, THIRD], "it cuts 'p0.0' .* into .*'sum.1'"),
        ("scatter", [WHOLE], [HALF], "it makes 1 tensors and has 2 devices; expected one for each"),
        ("all_to_all", [WHOLE, WHOLE], [HALF, HALF], "it exchanges 192 bytes for 96"),
        ("all_gather", [THIRD] * 3, [WHOLE], "it reads 3 tensors and has 2 devices"),
    ],
)
def test_lanes_that_do_not_fit_are_named(
    kind: str, reads: list[tuple[int, ...]], makes: list[tuple[int, ...]], message: str
) -> None:
    case = lanes(kind, reads, makes)
    runs: list[Step] = [Run(number, number % 2) for number in range(len(reads))]
    refuse(case, [*runs, Collective(len(reads), BOTH)], message, 1)


def test_types_of_lanes_are_equal() -> None:
    case = lanes("all_reduce", [WHOLE, WHOLE], [WHOLE])
    tensors = list(case.graph.tensors)
    tensors[1] = replace(tensors[1], dtype="float16")
    case = on_two_devices(replace(case.graph, tensors=tuple(tensors)))
    steps: list[Step] = [Run(0, 0), Run(1, 1), Collective(2, BOTH)]
    refuse(case, steps, "'p1.0' is float16, and 'p0.0' is float32; expected equal types", 1)


def test_the_axis_of_parts_is_the_only_one_that_differs() -> None:
    def tensor(*shape: int, dtype: str = "int8", size: int = 0) -> Tensor:
        return Tensor("t", None, 0, shape, dtype, size)

    assert parts_axis(tensor(4, 6), [tensor(4, 2), tensor(4, 4)]) == 1
    assert parts_axis(tensor(4, 6), [tensor(3, 6), tensor(1, 6)]) == 0
    assert parts_axis(tensor(4, 6), [tensor(4, 6)]) is None
    assert parts_axis(tensor(4, 6), [tensor(2, 3), tensor(2, 3)]) is None
    assert parts_axis(tensor(4, 6), [tensor(24)]) is None
    assert parts_axis(tensor(4), [tensor(2), tensor(2, dtype="int16")]) is None
    whole = tensor(dtype="", size=8)
    assert parts_axis(whole, [tensor(dtype="", size=5), tensor(dtype="", size=3)]) == 0
    assert parts_axis(whole, [tensor(dtype="", size=5)]) is None


def made_anew() -> Instance:
    """`norm` is made anew for each item, in each memory, and read by `f`."""
    builder = TaskGraphBuilder("anew")
    builder.add_task(Task("norm", "norm"), [builder.add_input("x", (4,), "int8")])
    builder.add_task(Task("f", "op"), [builder.add_tensor("norm", (4,), "int8", shared=True)])
    return on_two_devices(builder.finalize([builder.add_tensor("f", (4,), "int8")]))


def test_a_shared_tensor_stands_for_the_items_of_its_latest_run() -> None:
    case = made_anew()
    check(case, [Run(0, 0, (0,)), Run(1, 0, (0,)), Run(0, 0, (1,)), Run(1, 0, (1,))])
    check(case, [Run(0, 0, BOTH), Run(1, 0, (0,)), Run(1, 0, (1,))])
    late: list[Step] = [Run(0, 0, (0,)), Run(0, 0, (1,)), Run(1, 0, (0,)), Run(1, 0, (1,))]
    refuse(case, late, "run f @ gpu0 items 0: tensor 'norm.0' is not in memory 'm0' .* item 0")


def test_a_shared_tensor_is_copied_once_for_its_items() -> None:
    case = made_anew()
    route = case.cluster.route(0, 1)
    good: list[Step] = [Run(0, 0, BOTH), Copy(1, 0, 1, route, BOTH), Run(1, 1, BOTH)]
    check(case, good)
    refuse(case, [*good[:2], *good[1:]], "the tensor is in memory 'm1' already for items 0, 1")
    refuse(case, [*good[:2], Run(1, 0, BOTH)], "nobody reads the tensor there for items 0, 1")
    short: list[Step] = [Run(0, 0, (0,)), good[1], Run(0, 0, (1,)), good[2]]
    refuse(case, short, "the tensor is not in memory 'm0' by then for item 1")


def test_a_tensor_is_not_sent_to_where_it_is() -> None:
    case, steps = on_two_devices(step_graph()), good_steps()
    to_self = Copy(H, 0, 0, (), (0,))
    refuse(case, [*steps[:1], to_self, *steps[1:]], "the tensor is in memory 'm0' already .* 0")


def test_copies_and_sums_of_a_shared_tensor_do_not_meet() -> None:
    case, steps = on_two_devices(step_graph()), good_steps()
    copy = Copy(G, 0, 1, case.cluster.route(0, 1), (0,))
    refuse(case, [*steps[:4], copy, *steps[4:]], "takes the place of what steps have added up")
    refuse(case, [*steps[:2], copy, *steps[2:]], "adds to tensor 'dw.0', which was copied there")
    back = Copy(W, 0, 1, case.cluster.route(0, 1), BOTH)
    refuse(case, [*steps[:5], steps[6], back, steps[5]], "its update is there already")


def test_state_is_not_in_the_host_memory_unless_it_is_updated_there() -> None:
    found = on_two_devices(step_graph())
    cluster: Cluster = replace(found.cluster, host=0)
    costs = build_table(found.graph, cluster, lambda *_: Cost.given(1), (1, 2))
    case, route = Instance(found.graph, cluster, costs), cluster.route
    steps: list[Step] = [
        *good_steps()[:2],
        Copy(X, 0, 1, route(0, 1), (1,)),
        *good_steps()[2:],
        Copy(H, 1, 0, route(1, 0), (1,)),
    ]
    check(case, steps)
    without = [step for step in steps if step != Run(SGD, 0, BOTH)]
    refuse(case, without, "run f @ gpu0 items 0: tensor 'w' is not in memory 'm0' by then")


@pytest.mark.costly
@given(explicit_plans(), st.integers(0, 60))
@exact_cases(50)
def test_an_explicit_plan_is_limited_by_what_lives_at_once(
    case: tuple[Instance, Plan], bytes_less: int
) -> None:
    check_limits_by_lifetime(*case, bytes_less)
