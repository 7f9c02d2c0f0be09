"""segments and kernels: each target's part is optimised as a whole, with TVM's own kernels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tvm
from relay_models import (
    CUDA,
    TARGET,
    compiled_of,
    conv,
    cpu_cluster,
    extraction_of,
    fire_modules,
    mixed_cluster,
    module,
    random_devices,
    solution_of,
    stock_cluster,
    two_branches,
    var,
)
from tvm import relay
from tvm.autotvm.task import DispatchContext
from tvm.relay.backend import te_compiler

from heteroplace import pipeline
from heteroplace.errors import LoweringError
from heteroplace.lower.carried import carried_kernels
from heteroplace.lower.compile import CompiledKernels
from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.segment_calls import lower_segments
from heteroplace.lower.segments import ValueName, cut_segments
from heteroplace.model.cluster import Cluster, Device
from heteroplace.relay.annotate.annotation_reader import strip_annotations
from heteroplace.relay.annotate.writer import annotate
from heteroplace.relay.targets import cluster_targets
from heteroplace.relay.tasks.extract import neutral_module
from heteroplace.tvm_bridge import register_cuda_compiler


def calls_of(mod: tvm.IRModule, cluster: Cluster, devices: list[int] | int) -> KernelCalls:
    """Kernel calls of a network whose task i is on devices[i]."""
    extraction = extraction_of(mod)
    names = [task.name for task in extraction.graph.tasks]
    if isinstance(devices, int):
        devices = [devices] * len(names)
    targets, target_of_device = cluster_targets(cluster)
    target_of_task = {
        name: target_of_device[device] for name, device in zip(names, devices, strict=True)
    }
    neutral = neutral_module(extraction)
    with tvm.transform.PassContext(opt_level=3):
        segments, outputs = cut_segments(neutral, targets, target_of_task)
        return lower_segments(segments, neutral["main"].params, outputs)


def stock_kernels(mod: tvm.IRModule) -> list[str]:
    """Kernels that relay.build calls, by name, without what makes names unique."""
    with tvm.transform.PassContext(opt_level=3):
        graph = relay.build(mod, target=TARGET).get_graph_json()
    nodes = json.loads(graph)["nodes"]
    names = [node["attrs"]["func_name"] for node in nodes if node["op"] == "tvm_op"]
    names = [name.removeprefix("tvmgen_default_fused_") for name in names if name != "__nop"]
    return sorted(name.rstrip("0123456789").rstrip("_") for name in names)


def plain(symbol: str) -> str:
    """A symbol without its digest."""
    return symbol.rpartition("_")[0]


@pytest.mark.costly
@pytest.mark.parametrize("make", [fire_modules, two_branches])
def test_a_plan_on_one_target_of_tvm_kernels_has_those_of_stock_tvm(make) -> None:
    calls = calls_of(make(), stock_cluster(), 0)
    assert sorted(plain(call.kernel) for call in calls.calls) == stock_kernels(make())


@pytest.mark.costly
def test_devices_of_one_target_change_nothing_about_the_kernels() -> None:
    one = calls_of(fire_modules(), cpu_cluster(), 0)
    alternating = [index % 2 for index in range(len(extraction_of(fire_modules()).graph.tasks))]
    two = calls_of(fire_modules(), cpu_cluster(), alternating)
    assert [plain(call.kernel) for call in one.calls] == [plain(call.kernel) for call in two.calls]


@pytest.mark.costly
@pytest.mark.parametrize("seed", range(3))
def test_cpu_convolutions_are_blocked_and_those_of_a_gpu_are_not(seed: int) -> None:
    extraction = extraction_of(fire_modules())
    devices = random_devices(extraction, mixed_cluster(), seed)
    calls = calls_of(fire_modules(), mixed_cluster(), devices)
    device_of = {
        task.name: device for task, device in zip(extraction.graph.tasks, devices, strict=True)
    }
    convolutions = [call for call in calls.calls if "conv2d" in call.kernel]
    assert len(convolutions) == 6
    for call in calls.calls:
        kind = calls.kernels[call.kernel].target.kind.name
        assert kind == ("cuda" if device_of[call.task] == 1 else "llvm"), call
    for call in convolutions:
        assert ("NCHWc" in call.kernel) == (device_of[call.task] == 0), call.kernel


def test_every_task_with_a_computation_has_a_kernel() -> None:
    extraction = extraction_of(fire_modules())
    devices = random_devices(extraction, mixed_cluster(), 9)
    calls = calls_of(fire_modules(), mixed_cluster(), devices)
    reshapes = {task.name for task in extraction.graph.tasks if task.op == "nn.batch_flatten"}
    assert {call.task for call in calls.calls} == {
        t.name for t in extraction.graph.tasks
    } - reshapes


def loaded(compiled: CompiledKernels, folder: Path) -> tvm.runtime.Module:
    path = folder / "kernels.so"
    path.write_bytes(compiled.library.image)
    return tvm.runtime.load_module(str(path))


@pytest.fixture(scope="module")
def mixed_kernels() -> CompiledKernels:
    """Of a network on a CPU and a GPU."""
    extraction = extraction_of(two_branches())
    cluster = mixed_cluster()
    placement = [index % 2 for index in range(len(extraction.graph.tasks))]
    with tvm.transform.PassContext(opt_level=3):
        return compiled_of(extraction).kernels(cluster, placement)


def test_a_mixed_network_compiles_into_one_library(
    mixed_kernels: CompiledKernels, tmp_path: Path
) -> None:
    compiled = mixed_kernels
    register_cuda_compiler()
    library = loaded(compiled, tmp_path)
    assert compiled.library.sealed().path
    kernels = compiled.calls.kernels.items()
    symbols = [symbol for symbol, kernel in kernels if kernel.target.kind.name == "llvm"]
    assert 0 < len(symbols) < len(kernels)
    assert all(library.get_function(symbol, query_imports=True) for symbol in symbols)


@pytest.mark.costly
def test_two_cpu_targets_are_two_segments_and_one_library(tmp_path: Path) -> None:
    base = cpu_cluster()
    other = Device("plain", "cpu", "llvm", 0, 0, base.devices[0].cores)
    cluster = Cluster("two", base.memories, (base.devices[0], other), (), 0)
    extraction = extraction_of(two_branches())
    assert len(cluster_targets(cluster)[0]) == 2
    placement = [index % 2 for index in range(len(extraction.graph.tasks))]
    with tvm.transform.PassContext(opt_level=3):
        compiled = compiled_of(extraction).kernels(cluster, placement)
    library = loaded(compiled, tmp_path)
    assert all(
        library.get_function(symbol, query_imports=True) for symbol in compiled.calls.kernels
    )


def test_inputs_come_in_the_order_of_the_model_used_or_not() -> None:
    x, y, z = var("in:0"), var("unused"), var("z")
    body = relay.Tuple([relay.subtract(relay.exp(z), relay.nn.softmax(x)), y])
    calls = calls_of(module([x, y, z], body), cpu_cluster(), 0)
    names = [value.input_name for value in calls.values if value.input_name is not None]
    assert names == ["in:0", "unused", "z"]
    assert calls.values[calls.outputs[1]].input_name == "unused"


def test_a_value_crosses_once_however_many_read_it() -> None:
    x = var("x")
    shared = relay.nn.softmax(x)
    left, right = relay.nn.softmax(shared, axis=1), relay.nn.softmax(shared, axis=2)
    extraction = extraction_of(module([x], relay.Tuple([left, right])))
    target_of_task = {t.name: int(i > 0) for i, t in enumerate(extraction.graph.tasks)}
    targets, _ = cluster_targets(mixed_cluster())
    with tvm.transform.PassContext(opt_level=3):
        segments, outputs = cut_segments(neutral_module(extraction), targets, target_of_task)
    assert [len(segment.sources) for segment in segments] == [1, 1]
    assert segments[0].exports == segments[1].sources
    assert segments[0].sources == (ValueName("x"),)
    assert segments[1].exports == outputs


def test_a_segment_that_is_not_convex_is_cut_all_the_same() -> None:
    calls = calls_of(fire_modules(), mixed_cluster(), [i % 2 for i in range(12)])
    made = {value for call in calls.calls for value in call.writes}
    read = [value for call in calls.calls for value in call.reads]
    assert read
    for value in read:
        while calls.values[value].alias_of is not None:
            value = calls.values[value].alias_of
        description = calls.values[value]
        is_given = description.input_name is not None or description.constant is not None
        assert value in made or is_given


def test_a_call_without_a_task_is_refused() -> None:
    x = var("x")
    mod = module([x], relay.nn.relu(x))
    with pytest.raises(LoweringError, match=r"op nn\.relu belongs to no task of the plan"):
        cut_segments(mod, (tvm.target.Target(TARGET),), {})


def test_an_op_without_an_implementation_on_a_target_is_named() -> None:
    data = var("data", (1, 1, 8, 8, 16))
    kernel = relay.const(np.ones((1, 1, 3, 3, 16, 16), "float32"))
    body = relay.nn.contrib_conv2d_nchwc(
        data,
        kernel,
        channels=16,
        kernel_size=(3, 3),
        data_layout="NCHW16c",
        kernel_layout="OIHW16i16o",
    )
    with pytest.raises(LoweringError, match=r"cannot compile nn\.contrib_conv2d_NCHWc for .*cuda"):
        calls_of(module([data], body), mixed_cluster(), 1)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (Device("n", "npu", "x", 0, 0), "of kind 'npu'.*only for: cpu, cuda"),
        (Device("c", "cpu", TARGET, 0, 0), "names no cores"),
        (Device("c", "cpu", "llvm -mcpu=", 0, 0, (0,)), "does not accept its target"),
        (Device("c", "cpu", "notatarget", 0, 0, (0,)), "does not accept its target 'notatarget'"),
    ],
)
def test_a_device_that_cannot_be_compiled_for_is_a_typed_error(
    device: Device, message: str
) -> None:
    base = cpu_cluster()
    with pytest.raises(LoweringError, match=message):
        cluster_targets(Cluster("odd", base.memories, (device,), (), 0))


def test_the_host_of_a_gpu_target_is_the_cpu() -> None:
    targets, positions = cluster_targets(mixed_cluster())
    assert positions == (0, 1)
    assert str(targets[1].host) == str(tvm.target.Target(TARGET))
    assert str(targets[1].attrs["arch"]) == CUDA.partition("arch=")[2]


def test_kernels_are_made_once_for_each_assignment_of_targets() -> None:
    compiled, cluster = compiled_of(extraction_of(two_branches())), cpu_cluster()
    count = len(compiled.graph.tasks)
    with tvm.transform.PassContext(opt_level=3):
        assert compiled.known_kernels(cluster, [0] * count) is None
        first = compiled.kernels(cluster, [0] * count)
        last = len(cluster.devices) - 1
        assert compiled.kernels(cluster, [last] * count) is first  # of the same target
        assert compiled.known_kernels(cluster, [0] * count) is first


def test_what_is_lowered_is_not_lowered_again_to_be_carried() -> None:
    compiled, cluster = compiled_of(extraction_of(two_branches())), cpu_cluster()
    placement = [0] * len(compiled.graph.tasks)
    with tvm.transform.PassContext(opt_level=3):
        calls = compiled.calls(cluster, placement)
        kernels = compiled.known_kernels(cluster, placement)
    assert kernels is not None
    assert kernels.calls is calls


def test_lowering_keeps_tvms_hint_on_tuning_to_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(te_compiler, "_first_warning", True)
    monkeypatch.setattr(DispatchContext, "warning_messages", set())
    compiled, cluster = compiled_of(extraction_of(two_branches())), cpu_cluster()
    with tvm.transform.PassContext(opt_level=3):
        compiled.calls(cluster, [0] * len(compiled.graph.tasks))
    assert not caplog.records


def test_an_annotated_module_carries_its_kernels() -> None:
    extraction, cluster = extraction_of(two_branches()), cpu_cluster()
    compiled = compiled_of(extraction)
    solution = solution_of(extraction, cluster, [0] * len(extraction.graph.tasks))
    with tvm.transform.PassContext(opt_level=3):
        bare = pipeline.annotate(compiled, solution)
        kernels = compiled.kernels(cluster, [0] * len(extraction.graph.tasks))
    mod = pipeline.annotate(compiled, solution)
    assert carried_kernels(bare, compiled.network.digest, ()) is None
    assert carried_kernels(mod, "of other ops", ()) is None
    found = carried_kernels(mod, compiled.network.digest, ())
    assert found is not None
    assert found[1].library.files() == kernels.library.files()
    assert found[1].calls.calls == kernels.calls.calls
    pairs = zip(found[1].calls.values, kernels.calls.values, strict=True)
    for read, value in pairs:
        assert (read.shape, read.dtype, read.alias_of) == (value.shape, value.dtype, value.alias_of)
        if value.constant is not None:
            np.testing.assert_array_equal(read.constant, value.constant)
    assert tvm.ir.structural_hash(mod) != tvm.ir.structural_hash(bare)


def test_annotations_leave_no_trace_in_the_kernels() -> None:
    extraction = extraction_of(two_branches())
    solution = solution_of(extraction, cpu_cluster(), [0] * len(extraction.graph.tasks))
    stripped = strip_annotations(annotate(extraction, solution))
    assert tvm.ir.structural_equal(stripped, neutral_module(extraction))


def test_a_convolution_alone_keeps_its_neutral_layout_outside() -> None:
    x = var("x", (1, 16, 8, 8))
    calls = calls_of(module([x], conv(x, 16, 16)), cpu_cluster(), 0)
    assert calls.values[calls.outputs[0]].shape == (1, 16, 8, 8)
    assert len({call.task for call in calls.calls}) == 1
