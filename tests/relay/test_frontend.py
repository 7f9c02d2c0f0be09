"""ONNX import: numbers equal onnxruntime's, modules equal the stock importer's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
import tvm
from onnx import helper
from relay_models import compiled_of, cpu_cluster, extracted_anew
from tvm import relay
from tvm.relay.frontend import common as tvm_common
from tvm.relay.frontend import onnx as tvm_onnx

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.imported_model import ImportedModel
from heteroplace.parts.onnx.importer import count_calls, from_onnx
from heteroplace.parts.onnx.incremental_types import linear_time_import
from heteroplace.parts.onnx.prepare.onnx_weights import light_model, light_model_names
from heteroplace.relay.local_types import write_types
from heteroplace.tvm_bridge import register_onnx_mapping_shim
from zoo.models.transformers import gpt_onnx

pytestmark = pytest.mark.relay

register_onnx_mapping_shim()


def _assert_equals_onnxruntime(model: onnx.ModelProto, **options: Any) -> ImportedModel:
    imported = from_onnx(model, **options)
    inputs = om.random_inputs(model)
    expected = om.run_onnxruntime(model, inputs)
    actual = om.run_tvm(imported.mod, imported.params, inputs)
    assert len(actual) == len(expected)
    for mine, reference in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-5 * np.abs(reference).max())
    return imported


# --- what is imported -------------------------------------------------------------------------


@pytest.mark.costly(4)
@pytest.mark.parametrize("simplify", [True, False])
def test_tiny_model_equals_onnxruntime(simplify: bool) -> None:
    imported = _assert_equals_onnxruntime(om.tiny_cnn(), simplify=simplify)
    assert imported.inputs == {"x": ((1, 3, 8, 8), "float32")}
    assert imported.outputs == ("y",)


@pytest.mark.slow
def test_squeezenet_equals_onnxruntime() -> None:
    _assert_equals_onnxruntime(light_model("squeezenet"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inception_v1", "inception_v2", "resnet50", "shufflenet"])
def test_light_network_equals_onnxruntime(name: str) -> None:
    _assert_equals_onnxruntime(light_model(name))


def test_imported_model_unpacks_into_module_and_parameters(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    onnx.save(om.tiny_cnn(), path)
    mod, params = from_onnx(path)
    names = [var.name_hint for var in mod["main"].params]
    assert names == ["x", "w", "dense"]  # the bias of 4 elements is a constant
    assert sorted(params) == ["dense", "w"]


def test_bound_module_has_only_the_inputs() -> None:
    imported = from_onnx(om.tiny_cnn())
    assert [var.name_hint for var in imported.bind_params()["main"].params] == ["x"]
    assert len(imported.mod["main"].params) == 3  # unchanged


def test_initialisers_listed_as_inputs_are_no_inputs() -> None:
    model = om.tiny_cnn()
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    model.ir_version = 3
    assert list(from_onnx(model).inputs) == ["x"]


def test_model_in_memory_is_not_changed() -> None:
    model = om.tiny_cnn(opset=18)
    before = model.SerializeToString()
    from_onnx(model)
    assert model.SerializeToString() == before


@pytest.mark.costly
def test_graph_without_weights_imports() -> None:
    imported = from_onnx(gpt_onnx(layers=1, hidden=64, heads=4, tokens=8, vocabulary=100))
    assert imported.params == {}
    assert imported.inputs["ids"] == ((1, 8), "int64")
    assert imported.inputs["h.0.mlp.c_fc.weight"] == ((64, 256), "float32")


@pytest.mark.slow
def test_gpt_graph_equals_onnxruntime() -> None:
    model = gpt_onnx(layers=1, hidden=16, heads=2, tokens=6, vocabulary=30)
    rng = np.random.default_rng(0)
    inputs = om.random_inputs(model)
    inputs["ids"] = rng.integers(0, 30, (1, 6))
    expected = om.run_onnxruntime(model, inputs)[0]
    actual = om.run_tvm(from_onnx(model).mod, {}, inputs)[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_free_sizes_are_fixed_by_input_shapes() -> None:
    model = om.make_model([om.node("Relu", "x", "y")], {"x": ["batch", 3]}, ["y"])
    imported = from_onnx(model, input_shapes={"x": (2, 3)})
    assert imported.inputs == {"x": ((2, 3), "float32")}
    assert any("'x' has shape (2, 3)" in line for line in imported.report)


def test_external_weights_are_read(tmp_path: Path) -> None:
    path = tmp_path / "external.onnx"
    onnx.save(om.tiny_cnn(), path, save_as_external_data=True, size_threshold=64, location="w.bin")
    expected = from_onnx(om.tiny_cnn()).params["dense"].numpy()
    np.testing.assert_array_equal(from_onnx(path).params["dense"].numpy(), expected)


def test_report_says_what_was_done() -> None:
    text = "\n".join(from_onnx(om.tiny_cnn()).report)
    assert "onnxruntime (BASIC) simplified 4 nodes" in text
    assert "4 ONNX nodes" in text
    assert "Relay calls" in text


def test_report_says_when_onnxruntime_refuses() -> None:
    nodes = [om.node("Attention", "x w b", "y", domain="com.microsoft", num_heads=2)]
    weights = {"w": np.ones((5, 15), np.float32), "b": np.ones(15, np.float32)}
    model = om.make_model(nodes, {"x": [1, 2, 4]}, ["y"], weights, domains=["com.microsoft"])
    with pytest.raises(FrontendError):  # 4 channels, weights for 5: TVM refuses as well
        from_onnx(model)
    model = om.tiny_cnn()
    model.graph.node[1].attribute.append(helper.make_attribute("no_such_attribute", 1))
    with pytest.raises(FrontendError, match="n_r"):
        from_onnx(model)


# --- repairs ----------------------------------------------------------------------------------


def _reduce_mean() -> onnx.ModelProto:
    nodes = [om.node("ReduceMean", "x axes", "y", keepdims=0)]
    return om.make_model(nodes, {"x": [2, 3, 4, 5]}, ["y"], {"axes": np.array([1, 3])}, 18)


def _reduce_sum() -> onnx.ModelProto:
    nodes = [om.node("ReduceSum", "x axes", "y", keepdims=1)]
    return om.make_model(nodes, {"x": [2, 3, 4]}, ["y"], {"axes": np.array([0, 2])}, 13)


def _uneven_split() -> onnx.ModelProto:
    nodes = [om.node("Split", "x", "a b c", axis=1, num_outputs=3)]
    return om.make_model(nodes, {"x": [2, 8]}, ["a", "b", "c"], opset=18)


def _even_split() -> onnx.ModelProto:
    nodes = [om.node("Split", "x", "a b", axis=-1, num_outputs=2)]
    return om.make_model(nodes, {"x": [2, 8]}, ["a", "b"], opset=18)


def _scatter() -> onnx.ModelProto:
    nodes = [om.node("ScatterND", "x indices updates", "y", reduction="none")]
    weights = {"indices": np.array([[0], [2]]), "updates": np.ones((2, 3), np.float32)}
    return om.make_model(nodes, {"x": [4, 3]}, ["y"], weights, 18)


def _padded_axes() -> onnx.ModelProto:
    nodes = [om.node("Pad", "x pads value axes", "y")]
    weights = {
        "pads": np.array([1, 0, 2, 1]),
        "axes": np.array([2, 0]),
        "value": np.array(0.5, np.float32),
    }
    return om.make_model(nodes, {"x": [2, 3, 4]}, ["y"], weights, 18)


def _dropout() -> onnx.ModelProto:
    nodes = [om.node("Relu", "x", "r"), om.node("Dropout", "r ratio", "y")]
    return om.make_model(nodes, {"x": [2, 3]}, ["y"], {"ratio": np.array(0.5, np.float32)}, 13)


def _gelu() -> onnx.ModelProto:
    nodes = [om.node("Gelu", "x", "y", approximate="tanh")]
    return om.make_model(nodes, {"x": [2, 3]}, ["y"], opset=20)


def _group_norm() -> onnx.ModelProto:
    nodes = [om.node("GroupNormalization", "x scale bias", "y", num_groups=2)]
    weights = {
        "scale": np.array([1, 2, 3, 4], np.float32),
        "bias": np.array([0, 1, 0, 1], np.float32),
    }
    return om.make_model(nodes, {"x": [1, 4, 3, 3]}, ["y"], weights, 21)


def _value_ints() -> onnx.ModelProto:
    nodes = [om.node("Constant", "", "s", value_ints=[3, 2]), om.node("Reshape", "x s", "y")]
    return om.make_model(nodes, {"x": [2, 3]}, ["y"], opset=19)


REPAIRS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "reduce mean over two axes": (_reduce_mean, "stamped opset 17"),
    "reduce sum over two axes": (_reduce_sum, "1 ONNX nodes"),
    "uneven split": (_uneven_split, "stamped opset 17"),
    "even split": (_even_split, "stamped opset 17"),
    "scatter": (_scatter, "stamped opset 17"),
    "pad with axes": (_padded_axes, "stamped opset 17"),
    "dropout": (_dropout, "bypassed 1 Dropout"),
    "tanh gelu": (_gelu, "expanded into older ops: Gelu"),
    "group norm": (_group_norm, "expanded into older ops: GroupNormalization"),
    "constant of integers": (_value_ints, "wrote 1 Constant nodes as tensors"),
}


@pytest.mark.costly(6)
@pytest.mark.parametrize("name", sorted(REPAIRS))
def test_repaired_model_equals_onnxruntime(name: str) -> None:
    build, line = REPAIRS[name]
    imported = _assert_equals_onnxruntime(build(), simplify=False)
    assert any(line in reported for reported in imported.report), imported.report


@pytest.mark.costly(8)
@pytest.mark.parametrize("name", sorted(REPAIRS))
def test_simplified_model_equals_onnxruntime(name: str) -> None:
    _assert_equals_onnxruntime(REPAIRS[name][0](), simplify=True)


def _stock_import(model: onnx.ModelProto, frozen: bool) -> tuple[tvm.IRModule, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TVM calls its own old functions
        result: tuple[tvm.IRModule, Any] = relay.frontend.from_onnx(model, freeze_params=frozen)
    return result


# --- linear-time import -----------------------------------------------------------------------


@pytest.mark.costly(9)
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("build", [om.tiny_cnn, lambda: light_model("squeezenet")])
def test_module_is_the_stock_importers(build: Callable[[], onnx.ModelProto], frozen: bool) -> None:
    stock, stock_params = _stock_import(build(), frozen)
    with linear_time_import() as state:
        ours, params = _stock_import(build(), frozen)
    tvm.ir.assert_structural_equal(ours, stock)
    assert params.keys() == stock_params.keys()
    assert state.current_node is not None


@pytest.mark.parametrize(
    "build",
    [
        om.tiny_cnn,
        lambda: light_model("squeezenet"),
        lambda: gpt_onnx(1, hidden=16, heads=2, tokens=6, vocabulary=30),
    ],
)
def test_objects_of_tvm_are_asked_only_for_what_they_have(
    build: Callable[[], onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM takes 0.2 ms to say that an attribute is missing, and 0.2 s the first time."""
    missing: list[str] = []
    stock = tvm.runtime.Object.__getattr__

    def noted(value: tvm.runtime.Object, name: str) -> Any:
        try:
            return stock(value, name)
        except AttributeError:
            missing.append(f"{type(value).__name__}.{name}")
            raise

    monkeypatch.setattr(tvm.runtime.Object, "__getattr__", noted)
    imported = from_onnx(build(), simplify=False)
    bound = relay.build_module.bind_params_by_name(imported.mod["main"], imported.params)
    network = compiled_of(extracted_anew(tvm.IRModule.from_expr(bound)))
    network.calls(cpu_cluster(), [0] * len(network.graph.tasks))
    assert not missing


def _flatten_by_shape() -> onnx.ModelProto:
    """What exporters write for `x.view(x.size(0), -1)`."""
    nodes = [
        om.node("Shape", "x", "shape"),
        om.node("Gather", "shape zero", "size"),
        om.node("Unsqueeze", "size axes", "first"),
        om.node("Concat", "first rest", "target", axis=0),
        om.node("Reshape", "x target", "y"),
    ]
    weights = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    return om.make_model(nodes, {"x": [2, 3, 4]}, ["y"], weights)


def test_shape_arithmetic_folds_to_what_the_stock_importer_has() -> None:
    stock, _ = _stock_import(_flatten_by_shape(), frozen=True)
    with linear_time_import():
        ours, _ = _stock_import(_flatten_by_shape(), frozen=True)
    tvm.ir.assert_structural_equal(ours, stock)
    assert count_calls(ours["main"]) == 1


@pytest.mark.costly
def test_import_of_twice_the_layers_makes_twice_the_calls_and_types_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = []
    infer = relay.transform.InferTypeLocal
    for layers in (1, 2):
        calls: list[int] = []
        monkeypatch.setattr(
            relay.transform, "InferTypeLocal", lambda e, calls=calls: (calls.append(1), infer(e))
        )
        model = gpt_onnx(layers, hidden=16, heads=2, tokens=6, vocabulary=30)
        imported = from_onnx(model, simplify=False)
        counts.append((len(calls), count_calls(imported.mod["main"])))
    assert counts[1][1] > 1.6 * counts[0][1]
    assert counts[1][0] < 2.2 * counts[0][0]  # quadratic would be 4


@pytest.mark.parametrize("raises", [True, False])
def test_stock_functions_are_put_back(raises: bool) -> None:
    names = ("infer_type", "fold_constant", "infer_value", "set_span")
    before = [getattr(m, n) for m in (tvm_common, tvm_onnx) for n in names]
    try:
        with linear_time_import():
            assert tvm_onnx.infer_type is not before[0]
            if raises:
                raise KeyError("stop")
    except KeyError:
        assert raises
    assert [getattr(m, n) for m in (tvm_common, tvm_onnx) for n in names] == before


@pytest.mark.costly
def test_types_are_written_on_a_deep_graph_without_recursion() -> None:
    expr: Any = relay.var("x", shape=(1,))
    for _ in range(3000):
        expr = relay.nn.relu(expr)
    write_types(expr)
    assert expr.checked_type == relay.TensorType((1,), "float32")


# --- random weights ---------------------------------------------------------------------------


def test_light_models_are_those_of_the_wheel() -> None:
    assert {"resnet50", "squeezenet", "inception_v2"} <= set(light_model_names())
    with pytest.raises(FrontendError, match="resnet50"):
        light_model("resnet51")


def test_random_weights_depend_on_the_seed_only() -> None:
    first = light_model("squeezenet", seed=1).SerializeToString()
    assert first == light_model("squeezenet", seed=1).SerializeToString()
    assert first != light_model("squeezenet", seed=2).SerializeToString()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in ("squeezenet", "shufflenet") else [pytest.mark.slow])
        for n in light_model_names()
    ],
)
def test_outputs_of_random_weights_are_not_degenerate(name: str) -> None:
    model = light_model(name)
    first, second = (
        om.run_onnxruntime(model, om.random_inputs(model, seed))[0].ravel() for seed in (0, 1)
    )
    assert np.all(np.isfinite(first))
    assert np.std(first) > 1e-5
    assert np.max(np.abs(first - second)) > 1e-3 * np.max(np.abs(first))
    if np.all(first >= 0):  # a softmax
        assert np.max(first) < 0.9
