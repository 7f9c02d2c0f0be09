"""What is built from an ONNX model is compared with onnxruntime: by default, and with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, numpy_helper
from onnx_models import INT64, make_model, node, tiny_cnn
from relay_models import cpu_cluster, module, random_costs, var
from tvm import relay

import heteroplace as hp
from heteroplace.errors import LoweringError, SolverError, VerificationError
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.verification import Verification
from heteroplace.native.compiled_file import read_manifest
from heteroplace.parts.onnx import incremental_types
from heteroplace.parts.onnx.converters import converter_table
from heteroplace.parts.onnx.converters.call import dtype_of
from heteroplace.parts.onnx.converters.quantized import quantized
from heteroplace.parts.onnx.prepare import onnx_child, onnx_source
from heteroplace.parts.onnx.verify import executable_check as verify_module
from heteroplace.parts.onnx.verify import nodes as nodes_module
from heteroplace.parts.onnx.verify.tolerances import Tolerance
from heteroplace.relay.ranges.array_intervals import legal_arrays
from heteroplace.relay.tasks import prepare as prepare_module

FAST = {"costs": random_costs, "solver": "heft"}


def built(model: Any, cluster: Cluster | None = None, **options: Any) -> hp.Executable:
    """Import, place and build."""
    mod, params = hp.frontend.from_onnx(model)
    with tvm.transform.PassContext(opt_level=3):
        return hp.build(mod, cluster or cpu_cluster(), params, **(FAST | options))


def outcome(executable: hp.Executable) -> Verification:
    """What was found."""
    found = executable.verification
    assert found is not None
    return found


@pytest.fixture
def wrong_relu(monkeypatch: pytest.MonkeyPatch) -> None:
    """An importer that takes Relu for the absolute value."""
    stock = incremental_types._STOCK_CONVERT_MAP

    def wrong(opset: int) -> dict[str, Callable[..., Any]]:
        return {**stock(opset), "Relu": lambda inputs, attrs, params: relay.abs(inputs[0])}

    monkeypatch.setattr(incremental_types, "_STOCK_CONVERT_MAP", wrong)


def never(*_: Any) -> Any:
    """Costs that nobody may ask for."""
    raise AssertionError("costs were asked for")


def far_core() -> Cluster:
    """A core that is here, and one that no machine has."""
    near = cpu_cluster()
    far = Device("far", "cpu", near.devices[0].target, 0, 0, (100_000,))
    return replace(near, devices=(near.devices[0], far))


@pytest.mark.costly(4)
def test_numbers_beside_infinities_verify_nothing_and_the_file_can_be_read(tmp_path: Path) -> None:
    # Two ways to the same sum: their difference is 0 in one order of additions, and not in another.
    nodes = [
        node("MatMul", "x ones", "product"),
        node("ReduceSum", "x axes", "sum", keepdims=1),
        node("Sub", "product sum", "difference"),
        node("Reciprocal", "difference", "y"),
    ]
    constants = {"ones": np.ones((4096, 1), "float32"), "axes": np.array([1])}
    model = make_model(nodes, {"x": (256, 4096)}, ["y"], constants)
    executable = built(model)
    assert outcome(executable).text.startswith("not verified: where one of the compiled network ")
    executable.export_library(tmp_path / "net.so")
    assert read_manifest(tmp_path / "net.so").verification == outcome(executable)
    with pytest.raises(VerificationError, match="has infinities or NaN the other has numbers"):
        built(model, verify="on")


def test_a_model_is_verified_by_default_and_the_summary_says_so(tmp_path: Path) -> None:
    onnx.save(tiny_cnn(), tmp_path / "net.onnx")
    executable = built(tmp_path / "net.onnx")
    found = outcome(executable)
    assert found.reference.startswith("onnxruntime ")
    assert 0 < found.max_relative_difference < found.tolerance == 1e-4
    assert executable.summary().endswith(found.text)
    executable.export_library(tmp_path / "net.so")
    assert read_manifest(tmp_path / "net.so").verification == found


@pytest.mark.costly
@pytest.mark.usefixtures("wrong_relu")
def test_a_wrong_op_is_named(tmp_path: Path) -> None:
    onnx.save(tiny_cnn(), tmp_path / "net.onnx")
    with pytest.raises(VerificationError) as caught:
        built(tmp_path / "net.onnx")
    text = str(caught.value)
    assert f"model {tmp_path}/net.onnx: the compiled network differs" in text
    assert "The first node whose output differs is Relu 'n_r', on cpu" in text


@pytest.mark.usefixtures("wrong_relu")
def test_what_differs_is_built_if_nobody_asks() -> None:
    executable = built(tiny_cnn(), verify="off")
    assert executable.verification is None
    assert "verified" not in executable.summary()


@pytest.mark.costly
def test_a_network_that_was_changed_after_its_import_is_no_wrong_node() -> None:
    mod, params = hp.frontend.from_onnx(tiny_cnn())
    other = {name: tvm.nd.array(2 * value.numpy()) for name, value in params.items()}
    with (
        pytest.raises(VerificationError, match="Each node by itself agrees"),
        tvm.transform.PassContext(opt_level=3),
    ):
        hp.build(mod, cpu_cluster(), other, **FAST)


@pytest.mark.costly
def test_rounding_that_a_network_makes_larger_is_no_fault() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 8), dtype=np.float32)
    nodes = [node("MatMul", "x w", "p"), node("Mul", "p s", "q"), node("Sin", "q", "y")]
    model = make_model(nodes, {"x": [1, 64]}, ["y"], {"w": weights, "s": np.float32(1e5)})
    found = outcome(built(model))
    assert found.max_relative_difference > found.tolerance
    assert "each node agrees on equal inputs" in found.text


@pytest.mark.costly
def test_a_miscompiled_network_whose_nodes_agree_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TVM's simplifier makes x of (x + c) - c, where c rounds x to a whole number."""
    monkeypatch.setattr(prepare_module, "in_float_order", lambda step: step)
    rounder = np.float32(12582912)
    nodes = [node("Add", "x b", "t"), node("Add", "t c", "y")]
    model = make_model(nodes, {"x": [64, 64]}, ["y"], {"b": rounder, "c": -rounder})
    with pytest.raises(VerificationError, match="the network as a whole was compiled wrongly"):
        built(model)


@pytest.mark.costly
def test_another_file_under_the_same_name_is_not_taken_for_the_model(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(tiny_cnn(), path)
    mod, params = hp.frontend.from_onnx(path)
    onnx.save(make_model([node("Relu", "x", "y")], {"x": [1, 3, 8, 8]}, ["y"]), path)
    with tvm.transform.PassContext(opt_level=3):
        placed = hp.HeteroPlace(cpu_cluster(), params=params, **FAST)(mod)
        found = outcome(hp.build(placed))
        assert found.text == (
            f"not verified: {path} changed since it was imported; import it again"
        )
        with pytest.raises(VerificationError, match="changed since it was imported"):
            hp.build(placed, verify="on")


@pytest.mark.costly
def test_a_model_in_memory_that_is_too_large_to_travel_is_not_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onnx_source, "MAX_BYTES", 100)
    found = outcome(built(tiny_cnn()))
    assert found.text.startswith("not verified: the model was in memory and has over 2 GiB")


@pytest.mark.costly
def test_weights_in_another_file_belong_to_the_model(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(tiny_cnn(), path, save_as_external_data=True, location="w.bin", size_threshold=512)
    mod, params = hp.frontend.from_onnx(path)
    with tvm.transform.PassContext(opt_level=3):
        placed = hp.HeteroPlace(cpu_cluster(), params=params, **FAST)(mod)
        assert outcome(hp.build(placed)).is_verified
        data = bytearray((tmp_path / "w.bin").read_bytes())
        data[-1] ^= 1
        (tmp_path / "w.bin").write_bytes(data)
        assert "w.bin changed" in outcome(hp.build(placed)).text


def test_a_plan_for_another_machine_is_not_verified() -> None:
    executable = built(tiny_cnn(), far_core(), pin={"*": "far"})
    assert outcome(executable).text.startswith("not verified: the plan needs devices")
    assert outcome(executable).text in executable.summary()


@pytest.mark.parametrize("model", ["onnx", "relay"])
def test_what_cannot_be_verified_is_refused_before_anything_is_measured(model: str) -> None:
    if model == "onnx":
        mod, params = hp.frontend.from_onnx(tiny_cnn())
        cluster, reason = far_core(), "far .*; exclude them"
    else:
        x = var("x")
        mod, params = module([x], relay.nn.relu(x)), {}
        cluster, reason = cpu_cluster(), "does not say which ONNX model"
    with pytest.raises(VerificationError, match=reason):
        hp.build(mod, cluster, params, costs=never, verify="on")


@pytest.mark.costly
def test_an_excluded_device_need_not_be_here() -> None:
    assert outcome(built(tiny_cnn(), far_core(), exclude=["far"], verify="on")).is_verified


@pytest.mark.costly
def test_without_onnxruntime_the_summary_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "is_installed", lambda: False)
    assert outcome(built(tiny_cnn())).text == "not verified: onnxruntime is not installed"
    with pytest.raises(VerificationError, match="onnxruntime is not installed"):
        built(tiny_cnn(), verify="on", costs=never)


def test_the_option_is_a_key_of_the_pass_context_too() -> None:
    mod, params = hp.frontend.from_onnx(tiny_cnn())
    with tvm.transform.PassContext(opt_level=3, config={"relay.HeteroPlace.verify": "off"}):
        placed = hp.HeteroPlace(cpu_cluster(), params=params, **FAST)(mod)
        assert hp.build(placed).verification is None
    with pytest.raises(SolverError, match="verify must be one of auto, on, off, got 'maybe'"):
        hp.HeteroPlace(cpu_cluster(), verify="maybe")
    with pytest.raises(SolverError, match="got 'maybe'"):
        hp.build(placed, verify="maybe")


def test_options_of_placing_come_too_late_for_a_placed_module() -> None:
    mod, params = hp.frontend.from_onnx(tiny_cnn())
    with tvm.transform.PassContext(opt_level=3):
        placed = hp.HeteroPlace(cpu_cluster(), params=params, **FAST)(mod)
        with pytest.raises(LoweringError, match="placed already, and time_limit, exclude would"):
            hp.build(placed, time_limit=3.0, exclude=["cpu.0"])


def test_inputs_are_what_the_ops_that_read_them_take() -> None:
    table, index, divisor = var("t", (5, 3)), var("i", (40,), "int64"), var("d", (40,), "int32")
    chosen = relay.take(table, relay.cast(index, "int32"), axis=0)
    quotient = relay.floor_divide(relay.const(np.arange(40, dtype="int32")), divisor)
    body = relay.Tuple([chosen, quotient])
    found = legal_arrays(module([table, index, divisor], body)["main"])
    assert sorted(set(found["i"].tolist())) == [0, 1, 2, 3, 4]
    assert found["i"].dtype == np.int64
    assert set(found["d"].tolist()) == set(range(1, 8))
    assert found["t"].std() > 0.5
    again = legal_arrays(module([table, index, divisor], body)["main"])
    np.testing.assert_array_equal(again["t"], found["t"])


def test_a_model_that_reads_indices_is_verified() -> None:
    table = np.random.default_rng(0).standard_normal((7, 4), dtype=np.float32)
    model = make_model([node("Gather", "table i", "y")], {"i": [20]}, ["y"], {"table": table})
    model.graph.input[0].type.tensor_type.elem_type = INT64
    found = outcome(built(model))
    assert found.is_verified
    assert found.max_difference == 0.0


@pytest.mark.costly
def test_a_model_that_ends_the_reference_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child = tmp_path / "child.py"
    child.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    mod, params = hp.frontend.from_onnx(tiny_cnn())
    monkeypatch.setattr(onnx_child, "__file__", str(child))
    with tvm.transform.PassContext(opt_level=3):
        found = outcome(hp.build(mod, cpu_cluster(), params, **FAST))
        assert found.text.startswith("not verified: onnxruntime was killed by SIGSEGV on the model")
        with pytest.raises(VerificationError, match="killed by SIGSEGV"):
            hp.build(mod, cpu_cluster(), params, verify="on", **FAST)


def scaled_relu(ratio: float) -> Callable[..., Any]:
    """A converter whose results are all a little too large."""
    return lambda inputs, attrs, params: relay.multiply(
        relay.nn.relu(inputs[0]), relay.const(ratio, dtype_of(inputs[0]))
    )


def swapped_product(inputs: Any, attrs: Any, params: Any) -> Any:
    """A converter of MatMul that exchanges two columns of its weights."""
    order = relay.const(np.array([1, 0, *range(2, 5)]), "int64")
    return relay.nn.matmul(inputs[0], relay.take(inputs[1], order, axis=1))


def of_half_precision() -> onnx.ModelProto:
    """`tiny_cnn` in float16."""
    model = tiny_cnn()
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            half = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del model.graph.value_info[:]
    return model


def rounded() -> onnx.ModelProto:
    """A Relu of what was rounded to 8 bits."""
    nodes = [
        node("QuantizeLinear", "x s z", "xq"),
        node("DequantizeLinear", "xq s z", "xd"),
        node("Relu", "xd", "y"),
    ]
    return make_model(nodes, {"x": [8, 16]}, ["y"], {"s": np.float32(0.03), "z": np.int8(0)})


def quantised() -> onnx.ModelProto:
    """A product whose operands and result are rounded to 8 bits, and a Relu between."""
    weights = np.random.default_rng(0).integers(-127, 127, (16, 16)).astype(np.int8)
    nodes = [
        node("QuantizeLinear", "x s z", "xq"),
        node("DequantizeLinear", "xq s z", "xd"),
        node("Relu", "xd", "r"),
        node("QuantizeLinear", "r s z", "rq"),
        node("DequantizeLinear", "rq s z", "rd"),
        node("DequantizeLinear", "w s", "wd"),
        node("MatMul", "rd wd", "y"),
    ]
    constants = {"s": np.float32(0.03), "z": np.int8(0), "w": weights}
    return make_model(nodes, {"x": [8, 16]}, ["y"], constants)


def test_scales_move_too_where_it_is_asked_what_roundings_do() -> None:
    """Values between two layers are rounded by them; integers alone would not move at all."""
    constants = {"s": np.float32(0.03), "z": np.int8(0)}
    steps = [node("DequantizeLinear", "x s z", "y")]
    model = make_model(steps, {"x": [8]}, ["y"], constants)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT8
    inputs = {"x": np.arange(8, dtype=np.int8)}
    expected = {"y": np.arange(8, dtype=np.float32) * np.float32(0.03)}
    moved = nodes_module._amplified_rounding(model, ["y"], inputs, expected, Tolerance(1e-4), 0)
    assert 0 < moved.relative < 1e-5


@pytest.mark.costly
@pytest.mark.parametrize(
    ("model", "op_type", "converter"),
    [
        (tiny_cnn, "MatMul", swapped_product),
        (of_half_precision, "Relu", scaled_relu(1.01)),
        # Each of its nodes is compiled by itself: 24 s; the next test does it in every run.
        pytest.param(quantised, "Relu", scaled_relu(1.1), marks=pytest.mark.slow),
    ],
)
def test_a_small_fault_is_named_in_every_precision(
    model: Callable[[], onnx.ModelProto],
    op_type: str,
    converter: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert outcome(built(model())).is_verified
    stock = converter_table.converters_of
    monkeypatch.setattr(
        incremental_types,
        "converters_of",
        lambda table, opset: {**stock(table, opset), op_type: converter},
    )
    with pytest.raises(VerificationError, match=f"whose output differs is {op_type}"):
        built(model())


@pytest.mark.costly
def test_a_step_too_many_in_a_quantised_op_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = quantized.quantized
    monkeypatch.setattr(
        quantized,
        "quantized",
        lambda steps, *others: correct(relay.add(steps, relay.const(1.0)), *others),
    )
    with pytest.raises(VerificationError, match="whose output differs is QuantizeLinear 'n_xq'"):
        built(rounded())
