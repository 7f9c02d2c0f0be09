"""The module is the truth: what an annotation says is where the op runs, whoever wrote it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from relay_models import (
    TARGET,
    conv,
    cpu_cluster,
    extraction_of,
    mixed_cluster,
    module,
    placed_randomly,
    random_costs,
    random_inputs,
    solution_of,
    stock_outputs,
    two_branches,
    var,
    weights,
)
from tvm import relay

import heteroplace as hp
from heteroplace.errors import LoweringError
from heteroplace.model.check import check_plan
from heteroplace.model.demands import layers_of
from heteroplace.model.plan import Run
from heteroplace.model.solution import Solution
from heteroplace.pipeline.build_state import BuildState
from heteroplace.pipeline.placing_again import place_again
from heteroplace.relay.annotate.annotation_reader import (
    is_annotated,
    read_solution,
    strip_annotations,
)
from heteroplace.relay.annotate.devices import read_devices
from heteroplace.relay.annotate.foreign import extract_annotated
from heteroplace.relay.annotate.moved import SplitPlan, follow_annotations
from heteroplace.relay.annotate.requested_options import with_requested_options
from heteroplace.relay.annotate.unplaced import unplaced
from heteroplace.relay.annotate.writer import annotate
from heteroplace.relay.expressions import is_op_call, post_order, task_of_span
from heteroplace.relay.output_names import with_output_names
from heteroplace.relay.tasks.network import cut_network
from heteroplace.simulate.throughput import throughput_ns
from heteroplace.stage_log import StageLog
from heteroplace.tvm_bridge import register_cuda_compiler

on = relay.annotation.on_device
CPU0, CPU1 = tvm.cpu(0), tvm.cpu(1)
FAST = {"costs": random_costs, "solver": "heft"}


def placed_on(devices: list[int], cluster: hp.Cluster) -> tvm.IRModule:
    """`two_branches`: conv2d.1, max_pool2d.1, conv2d.2 (with relu and add), softmax.1."""
    extraction = extraction_of(two_branches())
    return annotate(extraction, solution_of(extraction, cluster, devices))


class Mover(relay.ExprMutator):
    """Changes the device of the `on_device` around the ops of one task; copies stay as they are."""

    def __init__(self, task: str, device: tvm.runtime.Device, op: str = "") -> None:
        super().__init__()
        self.task, self.device, self.op = task, device, op

    def visit_call(self, call: relay.Call) -> relay.Expr:
        new = super().visit_call(call)
        if is_op_call(call, self.op):
            return on(new, self.device, True, True)
        if not is_op_call(call, "on_device") or is_op_call(call.args[0], "device_copy"):
            return new
        if self.op or task_of_span(call.args[0]) != self.task:
            return new
        return on(new.args[0], self.device, True, True)


def moved(mod: tvm.IRModule, mover: Mover) -> tvm.IRModule:
    main = mod["main"]
    function = relay.Function(main.params, mover.visit(main.body), None, [], main.attrs)
    return tvm.IRModule.from_expr(function)


def device_names(solution: Solution) -> dict[str, str]:
    devices = solution.plan.placement(len(solution.graph.tasks))
    names = [solution.cluster.devices[device].name for device in devices]
    return {task.name: name for task, name in zip(solution.graph.tasks, names, strict=True)}


def measured_devices(executable: hp.Executable, mod: tvm.IRModule) -> dict[str, str]:
    """Run; compare with stock TVM; return the device of each task in the measured timeline."""
    inputs = random_inputs(mod)
    executor = hp.Executor(executable)
    for actual, expected in zip(executor.run(**inputs), stock_outputs(mod, inputs), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)
    solution = executable.solution
    steps, tasks = solution.plan.steps, solution.graph.tasks
    spans = executor.timeline().spans
    return {
        tasks[step.task].name: span.resource
        for span in spans
        if isinstance(step := steps[span.step], Run)
    }


def devices_planned(mod: tvm.IRModule) -> tvm.IRModule:
    """The module after TVM's own PlanDevices."""
    targets = [tvm.target.Target(TARGET)]
    config = tvm.target.make_compilation_config(tvm.transform.PassContext.current(), targets)
    return relay.transform.PlanDevices(config)(relay.transform.InferType()(mod))


@pytest.mark.costly
def test_an_on_device_that_is_moved_by_hand_moves_the_op(tmp_path: Path) -> None:
    mod = moved(placed_on([0, 0, 0, 0], cpu_cluster()), Mover("max_pool2d.1", CPU1))
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod)
    found = measured_devices(executable, two_branches())
    assert found == {
        "conv2d.1": "cpu.0",
        "max_pool2d.1": "cpu.1",
        "conv2d.2": "cpu.0",
        "softmax.1": "cpu.0",
    }
    summary = executable.summary()
    assert "moved by hand: max_pool2d.1 cpu.0 -> cpu.1" in summary.splitlines()[0]
    assert "moved by hand from cpu.0; " in summary
    executable.export_library(tmp_path / "model.so")
    assert hp.load(tmp_path / "model.so").solution == executable.solution


def test_a_move_to_another_memory_brings_its_copies() -> None:
    solution = follow_annotations(
        moved(placed_on([0, 0, 0, 0], mixed_cluster()), Mover("conv2d.2", tvm.cuda(0)))
    )
    check_plan(solution.graph, solution.cluster, solution.costs, solution.plan)
    assert device_names(solution)["conv2d.2"] == "gpu0"
    # Two inputs go there (x and the other branch), one result comes back.
    assert [(copy.src, copy.dst) for copy in solution.plan.copies] == [(0, 1), (0, 1), (1, 0)]
    old = solution_of(extraction_of(two_branches()), mixed_cluster(), [0, 0, 0, 0])
    assert solution.bound_ns == old.bound_ns


def test_what_was_planned_for_throughput_is_told_so_after_a_move() -> None:
    extraction = extraction_of(two_branches())
    old = solution_of(extraction, cpu_cluster(), [0, 0, 0, 0])
    mod = annotate(extraction, replace(old, item_ns=old.predicted_ns))
    solution = follow_annotations(moved(mod, Mover("max_pool2d.1", CPU1)))
    judged = (solution.graph, solution.cluster, solution.costs, solution.plan)
    assert solution.objective_ns == solution.item_ns == throughput_ns(*judged)
    assert solution.item_ns < old.predicted_ns


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("change", [lambda mod: mod, devices_planned])
def test_a_plan_that_agrees_with_the_module_is_used_as_it_is(change, seed: int) -> None:
    mod = placed_randomly(two_branches(), cpu_cluster(), seed)
    assert follow_annotations(change(mod)) == read_solution(mod)


def by_hand() -> tvm.IRModule:
    """One branch on each CPU; what joins them is not annotated."""
    x = var("x", (1, 8, 8, 8))
    left = on(relay.nn.relu(conv(x, 8, 8)), CPU0)
    right = on(relay.nn.max_pool2d(conv(x, 8, 8, 1), (3, 3), padding=(1, 1)), CPU1)
    return module([x], relay.nn.softmax(relay.add(left, right)))


@pytest.mark.costly
@pytest.mark.parametrize("change", [lambda mod: mod, devices_planned])
def test_a_module_annotated_by_stock_means_is_built(change) -> None:
    mod = change(by_hand())
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod, cpu_cluster(), **FAST)
    assert measured_devices(executable, two_branches()) == {
        "conv2d.1": "cpu.1",
        "max_pool2d.1": "cpu.1",
        "conv2d.2": "cpu.0",
        "softmax.1": "cpu.0",
    }
    assert "pinned to cpu.1" in executable.summary()


def test_regions_are_optimised_within_themselves() -> None:
    x = var("x", (1, 8, 8, 8))
    value = x
    for device in (CPU1, CPU0):
        figures = [weights(8, seed=seed) for seed in range(3)]
        normed = relay.nn.batch_norm(
            conv(value, 8, 8), *figures, relay.const(np.ones(8, "float32"))
        )
        value = on(relay.nn.relu(normed[0]), device)
    with tvm.transform.PassContext(opt_level=3):
        graph = extract_annotated(module([x], value), cpu_cluster()).graph
    # The scales are folded into the weights, which loses the spans of the convolutions.
    assert [(task.op, task.devices) for task in graph.tasks] == [
        ("nn.conv2d+add+nn.relu", ("cpu.1",)),
        ("nn.conv2d+add+nn.relu", ("cpu.0",)),
    ]


def test_a_device_copy_alone_says_where_both_sides_are() -> None:
    x = var("x")
    value = relay.op.device_copy(relay.nn.softmax(x), CPU1, CPU0)
    assert planned_names(module([x], relay.tanh(value))) == {"nn.softmax": 1, "tanh": 0}


def planned_names(mod: tvm.IRModule) -> dict[str, int]:
    return {op.op.name: device for op, device in read_devices(mod["main"], cpu_cluster()).items()}


def chain(kinds: list[int]) -> tvm.IRModule:
    """Ops in a row, one read by two; those of kind 1 and 2 are annotated with cpu:0 and cpu:1."""
    x = var("x")
    value = x
    ops = [relay.tanh, relay.exp, relay.sigmoid, relay.nn.relu, relay.erf, relay.negative]
    for op, kind in zip(ops, kinds, strict=True):
        value = op(value)
        if kind:
            value = on(value, (CPU0, CPU1)[kind - 1])
    return module([x], value)


@pytest.mark.parametrize("seed", range(12))
def test_ops_are_where_plan_devices_puts_them(seed: int) -> None:
    kinds = np.random.default_rng(seed).integers(0, 3, 6).tolist()
    assert planned_names(chain(kinds)) == planned_names(devices_planned(chain(kinds)))


def test_annotations_are_noticed() -> None:
    assert is_annotated(by_hand())
    assert is_annotated(devices_planned(two_branches()))
    assert not is_annotated(two_branches())
    assert not is_annotated(strip_annotations(devices_planned(by_hand())))


def test_a_device_that_the_cluster_does_not_have_is_refused() -> None:
    placed = moved(placed_on([0, 0, 0, 0], cpu_cluster()), Mover("conv2d.1", tvm.cpu(7)))
    with pytest.raises(LoweringError, match=r"nn\.conv2d of task 'conv2d\.1' on cpu:7, .* cpu:0"):
        hp.build(placed)
    x = var("x")
    foreign = module([x], on(relay.nn.softmax(x), tvm.cuda(0)))
    with pytest.raises(LoweringError, match=r"nn\.softmax on cuda:0, .* it has cpu:0 \(cpu\.0\)"):
        hp.build(foreign, cpu_cluster(), **FAST)


TORN = r"'conv2d\.2' is torn between add on 'cpu\.0' and nn\.conv2d, nn\.relu on 'cpu\.1'"


def split_by_hand(**options: object) -> tvm.IRModule:
    """`two_branches`, placed with options; then somebody moves the relu inside of a task."""
    placed = with_requested_options(placed_on([0, 0, 0, 0], cpu_cluster()), options)
    return moved(with_output_names(placed, ["scores"]), Mover("", CPU1, op="nn.relu"))


@pytest.mark.costly
def test_an_annotation_inside_a_task_of_a_plan_makes_a_new_plan() -> None:
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(split_by_hand(costs="estimate"))
    summary = executable.summary()
    assert "made anew from the annotations" in summary
    assert re.search(TORN, summary)
    assert executable.manifest.outputs[0][0] == "scores"
    places = device_names(executable.solution)
    assert measured_devices(executable, two_branches()) == places
    assert places.pop("conv2d.2") == "cpu.1"
    assert set(places.values()) == {"cpu.0"}
    ops = {task.name: task.op for task in executable.solution.graph.tasks}
    assert ops["conv2d.2"] == "nn.conv2d+nn.relu"


def test_a_new_plan_takes_the_options_of_the_old_one_but_for_places() -> None:
    pins = {"pin": {"conv2d.2": "cpu.0"}}
    executable = hp.build(split_by_hand(costs="estimate", solver="heft", **pins))
    assert executable.solution.plan.origin.startswith("heft")


def test_a_new_plan_that_needs_a_lost_option_is_refused() -> None:
    with pytest.raises(LoweringError, match=rf"{TORN}.* place the model again with costs="):
        hp.build(split_by_hand(costs=random_costs))


def test_a_split_task_of_a_plan_for_several_items_is_refused() -> None:
    mod = split_by_hand(costs="estimate")
    split = follow_annotations(mod)
    assert isinstance(split, SplitPlan)
    plan = replace(split.attached.plan, items=2)
    several = replace(split, attached=replace(split.attached, plan=plan))
    state = BuildState(mod, None, StageLog(), plan=several)
    with pytest.raises(LoweringError, match=rf"{TORN}.* plan is for 2 items"):
        place_again(state)


def test_layers_survive_a_new_plan() -> None:
    mod = split_by_hand(costs="estimate")
    attached = read_solution(mod)
    tasks = tuple(
        replace(task, members=tuple(f"net/{task.name}:{kind}" for kind in task.members))
        for task in attached.graph.tasks
    )
    again = unplaced(mod, replace(attached.graph, tasks=tasks))
    assert read_solution(again) is None
    assert is_annotated(again)
    graph = cut_network(again, cluster=cpu_cluster()).graph
    layers = {layer for task in graph.tasks for layer in layers_of(task)}
    assert layers == {f"net/{task.name}" for task in attached.graph.tasks}


@pytest.mark.parametrize("is_diamond", [False, True], ids=["chain", "diamond"])
def test_an_annotation_inside_a_fused_group_splits_it(is_diamond: bool) -> None:
    x = var("x", (1, 8, 8, 8))
    first = on(relay.exp(x), CPU0)
    value = on(relay.nn.relu(first), CPU1)
    mod = module([x], on(relay.add(value, first), CPU0) if is_diamond else value)
    executable = hp.build(mod, cpu_cluster(), **FAST)
    solution = executable.solution
    places = [solution.cluster.devices[d].name for d in solution.plan.placement(2 + is_diamond)]
    assert places == ["cpu.0", "cpu.1", "cpu.0"][: 2 + is_diamond]
    data = np.random.default_rng(0).standard_normal((1, 8, 8, 8)).astype(np.float32)
    power = np.exp(data)
    expected = np.maximum(power, 0) + (power if is_diamond else 0)
    (actual,) = hp.Executor(executable).run(x=data)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_annotations_that_contradict_each_other_are_refused() -> None:
    x = var("x")
    value = relay.nn.softmax(x)
    both = module([x], relay.Tuple([on(value, CPU0), on(value, CPU1)]))
    with pytest.raises(LoweringError, match=r"nn\.softmax is torn between cpu:0 and cpu:1"):
        hp.build(both, cpu_cluster(), **FAST)


def test_an_op_between_two_devices_is_where_it_is_read_first() -> None:
    x = var("x")
    between = relay.tanh(x)
    near = relay.exp(between)
    mod = module([x], on(relay.add(near, on(relay.erf(between), CPU1)), CPU0))
    expected = {"tanh": 0, "exp": 0, "erf": 1, "add": 0}
    assert planned_names(mod) == planned_names(devices_planned(mod)) == expected


def test_a_device_that_options_forbid_is_refused() -> None:
    with tvm.transform.PassContext(opt_level=3):
        make = relay.transform.HeteroPlace(cpu_cluster(), exclude=["cpu.1"], **FAST)
        placed = make(two_branches())
    with pytest.raises(LoweringError, match=r"'conv2d\.1' .* cannot run on 'cpu\.1': it may run"):
        hp.build(moved(placed, Mover("conv2d.1", CPU1)))
    with pytest.raises(LoweringError, match=r"annotated against pin or exclude: conv2d\.1"):
        hp.build(by_hand(), cpu_cluster(), exclude=["cpu.1"], **FAST)


def test_an_op_that_was_added_later_is_refused() -> None:
    mod = placed_on([0, 0, 0, 0], cpu_cluster())
    main = mod["main"]
    body = on(relay.tanh(main.body), CPU0, True, True)
    changed = tvm.IRModule.from_expr(relay.Function(main.params, body, None, [], main.attrs))
    with pytest.raises(LoweringError, match="tanh belongs to no task of the plan"):
        hp.build(changed)


def test_an_annotated_module_needs_its_cluster() -> None:
    with pytest.raises(LoweringError, match="give build"):
        hp.build(by_hand())


@pytest.mark.costly
def test_a_module_for_a_gpu_is_compiled_where_it_says() -> None:
    register_cuda_compiler()
    x = var("x", (1, 8, 8, 8))
    far = on(relay.nn.relu(conv(x, 8, 8)), tvm.cuda(0))
    mod = module([x], on(relay.nn.softmax(far), CPU0))
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod, mixed_cluster(), **FAST)
    assert device_names(executable.solution) == {"conv2d.1": "gpu0", "softmax.1": "cpu.0"}
    assert any(is_op_call(node, "on_device") for node in post_order(mod["main"].body))
