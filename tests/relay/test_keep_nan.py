"""keep_nan: a NaN that goes into relu, clip or a maximum of two comes out, as of onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_models as om
import pytest
import tvm
from relay_models import cpu_cluster, random_costs
from tvm import relay, tir

import heteroplace as hp
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.tir.keep_nan import keep_nan

pytestmark = pytest.mark.relay

Arrays = dict[str, np.ndarray]

SHAPE = (4, 16)


def _inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(SHAPE).astype(np.float32) for name in ("x", "y")}
    values["x"].reshape(-1)[::5] = np.nan
    values["y"].reshape(-1)[::7] = np.nan
    return values


@pytest.mark.costly
def test_nan_comes_out_as_of_onnxruntime() -> None:
    nodes = [
        om.node("Relu", "x", "relu"),
        om.node("Clip", "x low high", "clip"),
        om.node("Max", "x y", "max"),
        om.node("Min", "y x", "min"),
        om.node("LeakyRelu", "x", "leaky", alpha=0.1),
        om.node("Sign", "x", "sign"),
    ]
    outputs = ["relu", "clip", "max", "min", "leaky", "sign"]
    limits = {"low": np.float32(-0.5), "high": np.float32(0.5)}
    model = om.make_model(nodes, dict.fromkeys("xy", SHAPE), outputs, limits)
    expected = om.run_onnxruntime(model, _inputs())
    imported = from_onnx(model, simplify=False)
    with tvm.transform.PassContext(opt_level=3):
        placed = relay.transform.HeteroPlace(cpu_cluster(), costs=random_costs)(imported.mod)
        executable = hp.build(placed)
    found = hp.Executor(executable).run(**_inputs())
    for name, mine, reference in zip(outputs, found, expected, strict=True):
        assert np.isnan(reference).any(), name
        np.testing.assert_array_equal(mine, reference, err_msg=name)


def test_nan_is_true_as_of_onnxruntime() -> None:
    nodes = [om.node("Cast", "x", "b", to=9), om.node("Cast", "b", "y", to=1)]
    model = om.make_model(nodes, {"x": SHAPE}, ["y"])
    values = {"x": _inputs()["x"]}
    values["x"][1] = 0
    (expected,) = om.run_onnxruntime(model, values)
    imported = from_onnx(model, simplify=False)
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(imported.mod, cpu_cluster(), {}, costs=random_costs)
    (found,) = hp.Executor(executable).run(**values)
    assert set(np.unique(expected)) == {0.0, 1.0}
    np.testing.assert_array_equal(found, expected)


def _lowered(build: Callable[[tir.Var], tir.PrimExpr], dtype: str, *, is_cpu: bool = False) -> str:
    """The text of one store, after the rewrite."""
    x, index = tir.decl_buffer((8,), dtype, "x"), tir.Var("i", "int32")
    y = tir.decl_buffer((8,), dtype, "y")
    value = build(x[index], y[index])  # type: ignore[call-arg]
    body = tir.For(index, 0, 8, 0, tir.BufferStore(y, value, [index]))
    function = tir.PrimFunc([x, y], body)
    return str(keep_nan(tvm.IRModule({"f": function}), is_cpu=is_cpu)["f"].body)


def test_the_form_of_each_kind() -> None:
    zero = tir.FloatImm("float32", 0.0)
    relu = _lowered(lambda x, y: tir.Max(x, zero), "float32")
    assert "T.Select(T.float32(0) > a, T.float32(0), a)" in relu
    relu6 = _lowered(lambda x, y: tir.Min(x, zero), "float32")
    assert "T.Select(T.float32(0) < a, T.float32(0), a)" in relu6
    two = _lowered(lambda x, y: tir.Max(x, x + zero), "float32")
    assert "T.Select(T.isnan(a), a, T.Select(a > b, a, b))" in two


def test_a_cpu_has_the_order_in_which_a_nan_comes_out() -> None:
    zero = tir.FloatImm("float32", 0.0)
    relu = _lowered(lambda x, y: tir.Max(x, zero), "float32", is_cpu=True)
    assert 'T.max(T.reinterpret("float32", T.reinterpret("int32", T.float32(0))), x[i])' in relu
    three = _lowered(lambda x, y: tir.Max(tir.Max(x, x * x), x + zero), "float32", is_cpu=True)
    assert "T.Select(T.isnan(a), a, T.max(a, T.Let(" in three


def _run_with_nans(nodes: list[onnx.NodeProto], names: Sequence[str], limits: Arrays) -> None:
    model = om.make_model(nodes, dict.fromkeys(names, SHAPE), ["y"], limits)
    inputs = {}
    for index, name in enumerate(names):
        inputs[name] = np.random.default_rng(index).standard_normal(SHAPE).astype(np.float32)
        inputs[name].reshape(-1)[[index, -1]] = np.nan
    (expected,) = om.run_onnxruntime(model, inputs)
    assert np.isnan(expected).sum() > len(names)
    imported = from_onnx(model, simplify=False)
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(imported.mod, cpu_cluster(), {}, costs=random_costs)
    (found,) = hp.Executor(executable).run(**inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_nan_of_any_of_many_tensors() -> None:
    """In one kernel: the compiler took 73 s for seven, and 12 times as long as for six."""
    names = [f"x{index}" for index in range(12)]
    _run_with_nans([om.node("Max", " ".join(names), "y")], names, {})


def test_a_nan_through_many_limits() -> None:
    """As before, one within the other."""
    nodes, limits = [om.node("Identity", "x", "v0")], {}
    for index in range(8):
        limits[f"low{index}"] = np.float32(-0.7 - index / 100)
        limits[f"high{index}"] = np.float32(0.8 - index / 100)
        nodes += [
            om.node("Clip", f"v{index} low{index} high{index}", f"c{index}"),
            om.node("Sin", f"c{index}", f"v{index + 1}"),
        ]
    _run_with_nans([*nodes, om.node("Identity", "v8", "y")], ["x"], limits)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_whole_numbers_stay_as_they_are(dtype: str) -> None:
    one = tir.IntImm(dtype, 1)
    assert "T.max" in _lowered(lambda x, y: tir.Max(x, one), dtype)


def test_a_fold_over_elements_stays_as_it_is() -> None:
    assert "T.max(y[i], x[i])" in _lowered(lambda x, y: tir.Max(y, x), "float32")
