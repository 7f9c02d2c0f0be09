"""check_plan accepts what the rules allow and names every kind of fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heteroplace.errors import CostMismatchError, PlanError
from heteroplace.model.check import check_plan
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Plan, Run, Step
from tests.instances import cpu, diamond, gpus, instance
from tests.reference.live_memory import check_limits_by_lifetime
from tests.strategies import Instance, exact_cases, instances_with_plan, num_cases


def plan_of(case: Instance, *steps: Step) -> Plan:
    return Plan(case.graph.digest(), case.cluster.digest(), steps, "test")


def good_steps(case: Instance) -> list[Step]:
    """The optimum of the diamond: c on the second device."""
    route = case.cluster.route
    return [
        Run(0, 0),
        Copy(0, 0, 1, route(0, 1)),
        Run(1, 0),
        Run(2, 1),
        Copy(2, 1, 0, route(1, 0)),
        Run(3, 0),
    ]


def check(case: Instance, steps: list[Step], items: int = 1) -> None:
    plan = replace(plan_of(case, *steps), items=items)
    check_plan(case.graph, case.cluster, case.costs, plan)


def test_good_plan_passes(diamond: Instance) -> None:
    check(diamond, good_steps(diamond))


@pytest.mark.parametrize(
    ("index", "step", "message"),
    [
        (0, Run(9, 0), r"step 0: run \?9 @ gpu0: no task has id 9; ids are below 4"),
        (0, Run(0, 9), r"step 0: run a @ \?9: no device has id 9; ids are below 2"),
        (
            0,
            Run(0, 1),
            "step 1: copy a.0 m0 => m1 via 0-1: the tensor is not in memory 'm0'",
        ),
        (1, Copy(0, 0, 1, ()), "its route ends in memory 'm0'"),
        (1, Copy(0, 0, 1, (1,)), "its route breaks at link '1-0', not from memory 'm0'"),
        (1, Copy(0, 0, 1, (0, 1)), "its route ends in memory 'm0'"),
        (1, Copy(0, 0, 1, (7,)), r"link ids that do not exist: \[7\]"),
        (1, Copy(8, 0, 1, (0,)), r"step 1: copy \?8 m0 => m1 via 0-1: no tensor has id 8"),
        (1, Copy(1, 0, 1, (0,)), "copy b.0 m0 => m1 via 0-1: the tensor is not in memory 'm0' by"),
        (5, Run(2, 0), "the task has run before"),
    ],
)
def test_wrong_step_is_named(diamond: Instance, index: int, step: Step, message: str) -> None:
    steps = good_steps(diamond)
    steps[index] = step
    with pytest.raises(PlanError, match=message):
        check(diamond, steps)


def test_all_faults_are_listed(diamond: Instance) -> None:
    steps = good_steps(diamond)
    del steps[4]
    del steps[1]
    with pytest.raises(PlanError, match=r"(?s)2 faults.*run c @ gpu1.*run d @ gpu0"):
        check(diamond, steps)


def test_of_many_faults_the_first_are_listed_and_all_counted(diamond: Instance) -> None:
    copies = [Copy(1, 0, 1, (7,))] * 30
    with pytest.raises(PlanError, match=r"has 89 faults:") as raised:
        check(diamond, [*good_steps(diamond), *copies])
    _, *lines, mend = str(raised.value).splitlines()
    assert len(lines) == 20
    assert lines[-1].endswith(" and 69 more")
    assert mend.startswith("Solve again")


def test_copy_that_nobody_reads_is_a_fault(diamond: Instance) -> None:
    steps = [*good_steps(diamond), Copy(3, 0, 1, (0,))]
    with pytest.raises(PlanError, match=r"step 6: copy d\.0 m0 => m1 via 0-1: nobody reads the"):
        check(diamond, steps)


def test_second_copy_to_a_memory_is_a_fault(diamond: Instance) -> None:
    steps = good_steps(diamond)
    steps.insert(2, steps[1])
    with pytest.raises(PlanError, match="the tensor is in memory 'm1' already"):
        check(diamond, steps)


def test_memory_exactly_full_is_fine_and_one_byte_less_is_not() -> None:
    # m1 holds two tasks of 1000 bytes and, of the two outputs and two copies of 10 bytes, three:
    # the copy of a.0 is not needed any more when d runs.
    route = gpus({(0, 1): 10, (1, 0): 5}, 2).route(0, 1)
    steps = [Run(0, 0), Run(1, 0), Copy(0, 0, 1, route), Copy(1, 0, 1, route), Run(2, 1), Run(3, 1)]
    check(diamond(2030, 1000), steps)
    with pytest.raises(PlanError, match=r"memory 'm1' needs .* \(1 bytes too few\)"):
        check(diamond(2029, 1000), steps)
    with pytest.raises(PlanError, match=r"memory 'm1' needs .* at step 4: run c @ gpu1 and has"):
        check(diamond(2029, 1000), steps)


@pytest.mark.costly
@given(instances_with_plan(), st.integers(0, 60))
@num_cases(200)
def test_a_plan_of_one_item_passes_if_it_fits_by_lifetime(
    case: tuple[Instance, Plan], bytes_less: int
) -> None:
    check_limits_by_lifetime(*case, bytes_less)


def test_output_must_end_in_the_host_memory() -> None:
    case = instance([], {"a": (3, 3)}, gpus({(0, 1): 1, (1, 0): 1}, 2, host=0))
    check(case, [Run(0, 0)])
    with pytest.raises(PlanError, match=r"output 'a\.0' does not end in the host memory 'm0'"):
        check(case, [Run(0, 1)])
    check(case, [Run(0, 1), Copy(0, 1, 0, case.cluster.route(1, 0))])


def relabelled(case: Instance, **changes: object) -> Instance:
    """The same instance with the first two tasks changed."""
    tasks = tuple(
        replace(task, **changes) if index < 2 else task  # type: ignore[arg-type]
        for index, task in enumerate(case.graph.tasks)
    )
    graph = TaskGraph(
        case.graph.name, tasks, case.graph.tensors, case.graph.inputs, case.graph.outputs
    )
    return Instance(graph, case.cluster, build_table(graph, case.cluster, lambda *_: Cost.given(1)))


def test_label_split_over_devices_is_a_fault() -> None:
    case = relabelled(instance([], {"a": (1,) * 3, "b": (1,) * 3}, cpu()), together="pair")
    check(case, [Run(0, 0), Run(1, 0)])
    with pytest.raises(
        PlanError, match=r"colocation group 'pair' must share a device: 'a' @cpu\.0"
    ):
        check(case, [Run(0, 0), Run(1, 1)])


def test_device_that_is_not_allowed_is_a_fault() -> None:
    case = relabelled(instance([], {"a": (1,) * 3, "b": (1,) * 3}, cpu()), devices=("cpu.1",))
    with pytest.raises(PlanError, match=r"(?s)allowed on cpu\.1 only.*its cost there is excl"):
        check(case, [Run(0, 0), Run(1, 1)])


def two_items(sizes: tuple[int, ...] = (1, 2)) -> Instance:
    """a feeds b, which device 1 runs; batches of 2 have costs on both devices."""
    cluster = gpus({(0, 1): 10}, 2)
    devices = tuple(replace(device, batch_sizes=sizes) for device in cluster.devices)
    cluster = replace(cluster, devices=devices)
    graph = instance([("a", "b")], {"a": (1, 1), "b": (1, 1)}, cluster).graph
    costs = build_table(graph, cluster, lambda *_: Cost.given(1), (1, 2))
    return Instance(graph, cluster, costs)


def steps_of_two_items() -> list[Step]:
    return [Run(0, 0, (0, 1)), Copy(0, 0, 1, (0,), (1,)), Run(1, 1, (1,)), Run(1, 0, (0,))]


def test_good_plan_of_two_items_passes() -> None:
    check(two_items(), steps_of_two_items(), 2)


@pytest.mark.parametrize(
    ("index", "step", "message"),
    [
        (0, Run(0, 0, (0,)), "copy a.0 m0 => m1 .*: the tensor is not in memory 'm0' by .* item 1"),
        (0, Run(0, 0, (0,)), "task 'a' is never run for item 1"),
        (0, Run(0, 0, (1, 0)), r"its items are \(1, 0\); expected some of 0 to 1, ascending"),
        (0, Run(0, 0, (0, 0)), r"its items are \(0, 0\)"),
        (0, Run(0, 0, (0, 2)), r"its items are \(0, 2\)"),
        (0, Run(0, 0, ()), r"its items are \(\); expected some"),
        (1, Copy(0, 0, 1, (0,), (-1,)), r"its items are \(-1,\)"),
        (1, Copy(0, 0, 1, (0,), (0, 1)), "items 0,1: nobody reads the tensor there for item 0"),
        (2, Run(1, 1, (0, 1)), "tensor 'a.0' is not in memory 'm1' by then for item 0"),
        (2, Run(1, 1, (0, 1)), "step 3: run b @ gpu0 items 0: the task has run before for item 0"),
    ],
)
def test_wrong_items_are_named(index: int, step: Step, message: str) -> None:
    steps = steps_of_two_items()
    steps[index] = step
    with pytest.raises(PlanError, match=message):
        check(two_items(), steps, 2)


def test_a_batch_that_the_device_does_not_take_is_a_fault() -> None:
    with pytest.raises(
        PlanError, match=r"(?m)run a @ gpu0 items 0,1: a batch of 2; the device takes .* of 1$"
    ):
        check(two_items((1,)), steps_of_two_items(), 2)
    with pytest.raises(
        PlanError, match=r"(?m)run b @ gpu1 items 1: a batch of 1; the device takes .* of 2$"
    ):
        check(two_items((2,)), steps_of_two_items(), 2)


def test_a_batch_without_costs_is_a_fault() -> None:
    with pytest.raises(PlanError, match="a batch of 3; the costs are for batches of 1, 2"):
        check(two_items((1, 3)), [Run(0, 0, (0, 1, 2)), Run(1, 0, (0, 1, 2))], 3)


def test_a_plan_for_no_items_is_a_fault() -> None:
    with pytest.raises(PlanError, match="it is for 0 items; expected at least 1"):
        check(two_items(), [], 0)


def test_a_label_may_be_on_another_device_for_another_item() -> None:
    case = relabelled(instance([], {"a": (1,) * 3, "b": (1,) * 3}, cpu()), together="pair")
    by_item = [Run(task, item, (item,)) for task in (0, 1) for item in (0, 1)]
    check(case, by_item, 2)
    message = r"must share a device for item 0: 'a' @cpu\.0, 'b' @cpu\.1"
    with pytest.raises(PlanError, match=message):
        check(case, [*by_item[:2], Run(1, 1, (0,)), Run(1, 1, (1,))], 2)


def test_two_items_need_room_for_what_lives_at_once() -> None:
    # Both items of a, b and then c, of which an item of a has gone.
    steps = [Run(task, 0, (item,)) for task in range(4) for item in (0, 1)]
    check(diamond(4050, 1000), steps, 2)
    with pytest.raises(PlanError, match=r"memory 'm0' needs .* at step 4: .* \(1 bytes too few\)"):
        check(diamond(4049, 1000), steps, 2)
    one_by_one = [Run(task, 0, (item,)) for item in (0, 1) for task in range(4)]
    check(diamond(4040, 1000), one_by_one, 2)


def test_plan_of_another_graph_is_a_fault(diamond: Instance) -> None:
    plan = replace(plan_of(diamond, *good_steps(diamond)), graph_digest="0000")
    with pytest.raises(PlanError, match="made for a graph with digest 0000"):
        check_plan(diamond.graph, diamond.cluster, diamond.costs, plan)


def test_costs_of_another_cluster_are_an_error(diamond: Instance) -> None:
    other = diamond.cluster.devices[0].identity._replace(target="other")
    costs = replace(diamond.costs, devices=(other, *diamond.costs.devices[1:]))
    with pytest.raises(CostMismatchError, match="device 'gpu0' is cuda, other in it, expected"):
        check_plan(diamond.graph, diamond.cluster, costs, plan_of(diamond, *good_steps(diamond)))


@pytest.mark.costly
@given(instances_with_plan(max_items=3, has_modes=True), st.data())
@exact_cases(50)
def test_every_dropped_step_is_caught(case: tuple[Instance, Plan], data: st.DataObject) -> None:
    found, plan = case
    dropped = data.draw(st.integers(0, len(plan.steps) - 1))
    steps = [step for index, step in enumerate(plan.steps) if index != dropped]
    with pytest.raises(PlanError):
        check(found, steps, plan.items)


@pytest.mark.costly
@given(instances_with_plan(max_items=3, has_modes=True), st.data())
@num_cases(100)
def test_every_swap_of_dependent_steps_is_caught(
    case: tuple[Instance, Plan], data: st.DataObject
) -> None:
    found, plan = case
    pairs = [
        (first, second)
        for first in range(len(plan.steps))
        for second in range(first + 1, len(plan.steps))
        if depends(found, plan.steps[second], plan.steps[first])
    ]
    assume(pairs)
    first, second = data.draw(st.sampled_from(pairs))
    steps = list(plan.steps)
    steps[first], steps[second] = steps[second], steps[first]
    with pytest.raises(PlanError):
        check(found, steps, plan.items)


def depends(case: Instance, later: Step, earlier: Step) -> bool:
    """Whether a copy or run reads what a run makes."""
    if not isinstance(earlier, Run):
        return False
    if not set(later.items) & set(earlier.items):
        return False
    made = set(case.graph.task_outputs[earlier.task])
    reads = {later.tensor} if isinstance(later, Copy) else {*case.graph.task_inputs[later.task]}
    return bool(made & reads)
