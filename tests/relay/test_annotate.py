"""annotate: exactly the plan's copies, in a form that TVM's own build takes as it is."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relay_models import (
    CUDA,
    TARGET,
    conv,
    cpu_cluster,
    extraction_of,
    fire_modules,
    mixed_cluster,
    module,
    placed_randomly,
    random_inputs,
    solution_of,
    stock_outputs,
    two_branches,
    var,
)
from tvm import relay

from heteroplace.errors import PlanError, UnsupportedRelayError
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.plan import Plan
from heteroplace.model.solution import Solution
from heteroplace.relay.annotate.annotation_reader import read_solution, strip_annotations
from heteroplace.relay.annotate.writer import PLAN_ATTRIBUTE, annotate, tvm_devices
from heteroplace.relay.expressions import is_op_call, post_order, task_of_span
from heteroplace.relay.tasks.extract import neutral_module
from heteroplace.relay.tasks.network import module_digest
from heteroplace.tvm_bridge import register_cuda_compiler


def chain() -> tvm.IRModule:
    x = var("x", (4,))
    return module([x], relay.nn.softmax(relay.nn.softmax(x)))


def body_text(mod: tvm.IRModule) -> list[str]:
    """The lines of the body without comments and types, for comparing by eye."""
    lines = mod["main"].astext(show_meta_data=False).splitlines()
    body = lines[lines.index(next(line for line in lines if line.startswith("fn "))) + 1 :]
    return [line.partition(" /*")[0].strip().rstrip(";") for line in body if line.startswith("  ")]


def copies_in(mod: tvm.IRModule) -> list[relay.Call]:
    return [node for node in post_order(mod["main"].body) if is_op_call(node, "device_copy")]


def devices_planned(mod: tvm.IRModule, targets: list[str]) -> tvm.IRModule:
    """The module after TVM's own PlanDevices."""
    config = tvm.target.make_compilation_config(
        tvm.transform.PassContext.current(), [tvm.target.Target(target) for target in targets]
    )
    return relay.transform.PlanDevices(config)(relay.transform.InferType()(mod))


def test_before_and_after() -> None:
    extraction = extraction_of(chain())
    mod = annotate(extraction, solution_of(extraction, cpu_cluster(), [0, 1]))
    assert body_text(neutral_module(extraction)) == [
        "%0 = nn.softmax(%x)",
        "nn.softmax(%0)",
    ]
    text = mod["main"].astext(show_meta_data=False)
    calls = [node for node in post_order(mod["main"].body) if isinstance(node, relay.Call)]
    assert [str(call.op.name) for call in calls] == [
        "on_device",  # %x, where it arrives: cpu:0
        "nn.softmax",
        "on_device",  # its result, pinned to cpu:0
        "device_copy",
        "on_device",  # the copy, pinned to cpu:1
        "nn.softmax",
        "on_device",  # the result of the second, pinned to cpu:1
        "device_copy",
        "on_device",  # the output, back where it is read
    ], text
    pinned = [call for call in calls if call.op.name == "on_device"]
    indices = [call.attrs.virtual_device.virtual_device_id for call in pinned]
    assert indices == [0, 0, 1, 1, 0]
    assert all(call.attrs.constrain_body and call.attrs.constrain_result for call in pinned)


def test_a_copy_is_shared_by_the_readers_on_one_device() -> None:
    x = var("x", (4, 4))
    shared = relay.nn.softmax(x)
    readers = [
        relay.nn.softmax(shared, axis=0),
        relay.nn.log_softmax(shared),
        relay.cumsum(shared, 0),
    ]
    extraction = extraction_of(module([x], relay.Tuple(readers)))
    mod = annotate(extraction, solution_of(extraction, cpu_cluster(), [0, 1, 1, 2]))
    copies = [copy for copy in copies_in(mod) if task_of_span(copy.args[0].args[0]) == "softmax.1"]
    to = [copy.attrs.dst_virtual_device.virtual_device_id for copy in copies]
    assert sorted(to) == [1, 2]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [fire_modules, two_branches])
def test_there_is_one_copy_for_each_tensor_and_destination(make, seed: int) -> None:
    mod = placed_randomly(make(), cpu_cluster(), seed)
    solution = read_solution(mod)
    graph = solution.graph
    device = solution.plan.placement(len(graph.tasks))
    expected = set()
    for tensor_id, tensor in enumerate(graph.tensors):
        home = 0 if tensor.producer is None else device[tensor.producer]
        readers = {device[task] for task in tensor.consumers}
        readers |= {0} if tensor_id in graph.outputs else set()
        expected |= {(tensor_id, reader) for reader in readers - {home}}
    assert len(copies_in(mod)) == len(expected)


@pytest.mark.parametrize("seed", range(4))
def test_plan_devices_adds_no_copy(seed: int) -> None:
    mod = placed_randomly(fire_modules(), cpu_cluster(), seed)
    assert len(copies_in(devices_planned(mod, [TARGET]))) == len(copies_in(mod))


@pytest.mark.parametrize("seed", range(3))
def test_plan_devices_adds_no_copy_to_a_mixed_plan(seed: int) -> None:
    mod = placed_randomly(fire_modules(), mixed_cluster(), seed)
    assert copies_in(mod)
    assert len(copies_in(devices_planned(mod, [TARGET, CUDA]))) == len(copies_in(mod))


@pytest.mark.costly
def test_stock_build_compiles_a_mixed_module() -> None:
    register_cuda_compiler()
    extraction = extraction_of(two_branches())
    mod = annotate(extraction, solution_of(extraction, mixed_cluster(), [0, 1, 0, 1]))
    targets = {"cpu": tvm.target.Target(TARGET), "cuda": tvm.target.Target(CUDA)}
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target=targets)
    assert "cuda" in {module_.type_key for module_ in library.get_lib().imported_modules}
    assert "device_index" in library.get_graph_json()


@pytest.mark.costly
def test_stock_tvm_computes_the_same_from_the_annotated_module() -> None:
    mod = fire_modules()
    inputs = random_inputs(mod)
    placed = placed_randomly(mod, cpu_cluster(), 0)
    (expected,) = stock_outputs(mod, inputs)
    (actual,) = stock_outputs(placed, inputs, disabled_pass=["AlterOpLayout"])
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)


def split_results() -> tvm.IRModule:
    x = var("x")
    parts = relay.split(relay.nn.softmax(x), 2, axis=1)
    return module([x], relay.Tuple([relay.nn.softmax(parts[1]), parts[0], x, parts[0]]))


def part_with_several_readers() -> tvm.IRModule:
    x = var("x")
    parts = relay.split(relay.nn.softmax(x), 2, axis=1)
    values = [relay.nn.softmax(parts[0]), relay.exp(parts[0]), relay.nn.log_softmax(parts[1])]
    return module([x], relay.concatenate([*values, parts[1]], 1))


def tuple_read_as_a_whole() -> tvm.IRModule:
    x = var("x")
    parts = relay.split(relay.nn.softmax(x), 2, axis=1)
    whole = relay.nn.softmax(relay.concatenate(parts.astuple(), 2))
    return module([x], relay.Tuple([whole, relay.nn.log_softmax(parts[0])]))


NETWORKS = [
    *(fire_modules, two_branches, chain, split_results),
    *(part_with_several_readers, tuple_read_as_a_whole),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("make", NETWORKS)
def test_stripping_gives_the_neutral_module_back(make, seed: int) -> None:
    mod = placed_randomly(make(), cpu_cluster(), seed)
    stripped = strip_annotations(mod)
    assert not copies_in(stripped)
    neutral = neutral_module(extraction_of(make()))
    tvm.ir.assert_structural_equal(stripped, neutral)
    # By it, kernels that were compiled before the annotation are found again.
    assert module_digest(stripped) == module_digest(neutral)
    spans = [
        [task_of_span(node) for node in post_order(m["main"].body) if isinstance(node, relay.Call)]
        for m in (stripped, neutral)
    ]
    assert spans[0] == spans[1]


@pytest.mark.parametrize("seed", range(3))
def test_several_results_and_inputs_as_results_stay_in_order(seed: int) -> None:
    mod = split_results()
    inputs = random_inputs(mod)
    placed = placed_randomly(mod, cpu_cluster(), seed)
    expected = stock_outputs(mod, inputs)
    actual = stock_outputs(placed, inputs, disabled_pass=["AlterOpLayout"])
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_the_placement_travels_with_the_module() -> None:
    extraction = extraction_of(two_branches())
    solution = solution_of(extraction, cpu_cluster(), [0, 1, 2, 0])
    mod = annotate(extraction, solution)
    assert read_solution(mod) == solution
    assert read_solution(relay.transform.InferType()(mod)) == solution


def test_a_module_without_a_placement_has_none() -> None:
    assert read_solution(two_branches()) is None


def test_a_module_without_main_is_a_typed_error() -> None:
    with pytest.raises(UnsupportedRelayError, match="no function 'main'"):
        read_solution(tvm.IRModule())


def test_a_foreign_attribute_is_a_typed_error() -> None:
    mod = two_branches()
    data = relay.const(np.frombuffer(b'{"placement_version": 99}', "uint8").copy())
    mod["main"] = mod["main"].with_attr(PLAN_ATTRIBUTE, data)
    with pytest.raises(PlanError, match="placement version 99"):
        read_solution(mod)


def test_a_plan_of_another_graph_is_refused() -> None:
    extraction = extraction_of(two_branches())
    other = extraction_of(chain())
    solution = solution_of(other, cpu_cluster(), [0, 0])
    with pytest.raises(PlanError, match="was made for a graph with digest"):
        annotate(extraction, solution)


def test_a_plan_that_leaves_a_task_out_is_refused() -> None:
    extraction = extraction_of(chain())
    whole = solution_of(extraction, cpu_cluster(), [0, 0])
    plan = Plan(whole.plan.graph_digest, whole.plan.cluster_digest, whole.plan.steps[:1], "cut")
    part = Solution(whole.graph, whole.cluster, whole.costs, plan, 0, 0)
    with pytest.raises(PlanError, match=r"does not run task 'softmax\.2'"):
        annotate(extraction, part)


def test_cpu_devices_are_numbered_and_others_keep_their_index() -> None:
    memory = (Memory("ram", 100),)
    devices = (
        Device("a", "cpu", TARGET, 0, 0, (0,)),
        Device("g", "cuda", CUDA, 3, 0),
        Device("b", "cpu", TARGET, 0, 0, (1,)),
    )
    found = tvm_devices(Cluster("c", memory, devices, (), 0))
    assert [(device.device_type, device.device_id) for device in found] == [(1, 0), (2, 3), (1, 1)]


def test_parts_of_a_gpu_have_names_of_their_own() -> None:
    devices = tuple(
        Device(f"g{index}.{part}", "cuda", CUDA, index, 0, part=part)
        for index in (0, 1)
        for part in (0, 1)
    )
    found = tvm_devices(Cluster("c", (Memory("ram", 100),), devices, (), 0))
    assert [device.device_id for device in found] == [0, 2, 1, 3]


def test_a_kind_that_tvm_does_not_have_is_a_typed_error() -> None:
    cluster = Cluster("c", (Memory("ram", 100),), (Device("n", "npu", "x", 0, 0),), (), 0)
    with pytest.raises(PlanError, match=r"device 'n' .* is of kind 'npu'"):
        tvm_devices(cluster)


def test_a_convolution_with_bias_stays_one_task_under_annotations() -> None:
    x = var("x", (1, 4, 8, 8))
    extraction = extraction_of(module([x], relay.nn.relu(conv(x, 4, 4))))
    mod = annotate(extraction, solution_of(extraction, cpu_cluster(), [1]))
    names = {
        task_of_span(node) for node in post_order(mod["main"].body) if isinstance(node, relay.Call)
    }
    assert names - {None} == {"conv2d.1"}
