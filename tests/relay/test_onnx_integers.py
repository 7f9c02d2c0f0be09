"""Ops of integers that TVM gets wrong or refuses: the numbers of onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_models as om
import pytest
from onnx import helper, numpy_helper
from onnx.shape_inference import infer_shapes

from heteroplace.parts.onnx.importer import from_onnx

pytestmark = pytest.mark.relay

X = np.array([[0, 3, 1, 9], [200, 2, 5, 4]])

NODES: dict[str, tuple[str, Any]] = {
    "shrink": ("uint8", om.node("Shrink", "x", "y", bias=0.1, lambd=0.3)),
    "shrink, with a sign": ("int32", om.node("Shrink", "x", "y", bias=-1.5, lambd=2.5)),
    "sign of what has none": ("uint8", om.node("Sign", "x", "y")),
    "norms": ("int32", om.node("ReduceL2", "x", "y", axes=[1])),
    "logarithms of sums": ("int32", om.node("ReduceLogSum", "x", "y", axes=[1])),
}


@pytest.mark.parametrize("name", NODES)
def test_ops_of_integers(name: str) -> None:
    dtype, node = NODES[name]
    x = (X - 3 if dtype == "int32" and "Reduce" not in node.op_type else X).astype(dtype)
    model = om.make_model([node], {"x": x.shape}, ["y"], opset=13)
    model.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    model.graph.output[0].ClearField("type")
    (expected,) = om.run_onnxruntime(infer_shapes(model), {"x": x})
    imported = from_onnx(model, simplify=False)
    (actual,) = om.run_tvm(imported.mod, imported.params, {"x": x})
    np.testing.assert_array_equal(actual, expected)


def test_the_largest_of_short_integers() -> None:
    """onnxruntime has no kernel for them."""
    x = (X - 100).astype("int16")
    model = om.make_model([om.node("TopK", "x k", "y i")], {"x": x.shape}, ["y", "i"], {"k": [2]})
    model.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    imported = from_onnx(model, simplify=False)
    values, places = om.run_tvm(imported.mod, imported.params, {"x": x})
    np.testing.assert_array_equal(values, np.sort(x)[:, ::-1][:, :2])
    np.testing.assert_array_equal(places, np.argsort(-x)[:, :2])
    assert values.dtype == np.int16


BASES = [4097, 16777217, 3, 3, 2, 3, -2, -2, 46341, -7, 0, 0, 1, -1, -1, 5]
EXPONENTS = [2, 1, 19, 39, 62, 70, 63, 3, 2, 0, 0, 5, 1000, 1001, 1000, 27]


def powers_by_multiplication(bases: np.ndarray, exponents: Any) -> np.ndarray:
    """Of which the lower bits are kept."""
    bits = np.iinfo(bases.dtype).bits
    both = np.broadcast_arrays(bases, exponents)
    low = [pow(int(x), int(e)) % 2**bits for x, e in zip(*(a.flat for a in both), strict=True)]
    wrapped = [value - 2**bits if value >= 2 ** (bits - 1) else value for value in low]
    return np.array(wrapped, bases.dtype)


@pytest.mark.costly(4)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_powers_of_integers_are_exact(dtype: str) -> None:
    x, e = np.array(BASES, dtype), np.array(EXPONENTS)
    whole = {0: np.int64(0), 1: np.float32(1), 2: np.int32(2), 3: np.int64(3), 5: np.uint8(5)}
    whole |= {13: np.float32(13), 40: np.int64(40)}
    weights = {f"by{count}": value for count, value in whole.items()}
    nodes = [om.node("Pow", f"x {name}", f"to_{name}") for name in weights]
    nodes += [om.node("Pow", "x e", "y"), om.node("Pow", "x constant", "z")]
    names = [node.output[0] for node in nodes]
    weights["constant"] = e.astype("int32")
    model = om.typed_model(nodes, {"x": x, "e": e}, names, weights)
    *of_one, of_each, of_constants = om.run_imported(model, {"x": x, "e": e})
    for count, found in zip(whole, of_one, strict=True):
        np.testing.assert_array_equal(found, powers_by_multiplication(x, count), str(count))
        assert found.dtype == x.dtype
    # Of other numbers more factors than a type has bits say nothing.
    is_told = (e <= 64) | (np.abs(x) < 2)
    for found in (of_each, of_constants):
        np.testing.assert_array_equal(found[is_told], powers_by_multiplication(x, e)[is_told])


MIXED: dict[str, tuple[Any, Any]] = {
    "negative exponents": (np.int32([2, 0, 1, -1, -1, -3]), np.int64([-1, -1, -7, -7, -4, -2])),
    "long, by floats": (np.int64([10, 2, 2, 9]), np.float32([2, -1, 0.5, 1.5])),
    "by wide integers": (np.float32([-1, 2, 3]), np.int64([2**24 + 1, -3, 4])),
    "by wide floats": (np.float32([1e30, 2]), np.float64([0.1, 20.1])),
    "wide, by floats": (np.float64([3, 2]), np.float32([0.5, 20.1])),
}


@pytest.mark.costly
def test_powers_have_the_type_of_their_base() -> None:
    nodes = [om.node("Pow", f"x{i} e{i}", f"y{i}") for i in range(len(MIXED))]
    nodes += [om.node("Pow", f"x{i} c{i}", f"z{i}") for i in range(len(MIXED))]
    inputs = {f"x{i}": base for i, (base, _) in enumerate(MIXED.values())}
    inputs |= {f"e{i}": exponent for i, (_, exponent) in enumerate(MIXED.values())}
    constants = {f"c{i}": exponent for i, (_, exponent) in enumerate(MIXED.values())}
    names = [node.output[0] for node in nodes]
    model = om.typed_model(nodes, inputs, names, constants)
    expected = om.run_onnxruntime(model, inputs)
    found = om.run_imported(model, inputs)
    for name, mine, reference in zip([*MIXED, *MIXED], found, expected, strict=True):
        assert mine.dtype == reference.dtype
        if mine.dtype.kind == "i":
            np.testing.assert_array_equal(mine, reference, name)
        else:
            rtol = np.finfo(mine.dtype).eps * 2
            np.testing.assert_allclose(mine, reference, rtol=rtol, err_msg=name)


def test_constants_of_a_shape_keep_all_bits_of_their_value() -> None:
    values = [np.int64(2**40), np.float64(0.1), np.uint64(2**63 + 1), np.float16(0.1), np.bool_(1)]
    nodes = [
        om.node("ConstantOfShape", "shape", f"y{i}", value=numpy_helper.from_array(np.array([one])))
        for i, one in enumerate(values)
    ]
    names = [node.output[0] for node in nodes] + ["y"]
    nodes.append(om.node("ConstantOfShape", "none", "y"))
    weights = {"shape": np.array([2, 3]), "none": np.zeros(0, np.int64)}
    found = om.run_imported(om.typed_model(nodes, {}, names, weights), {})
    for mine, value in zip(found, values, strict=False):
        assert mine.dtype == value.dtype
        np.testing.assert_array_equal(mine, np.full((2, 3), value))
    assert (found[-1].dtype, found[-1].shape) == (np.float32, ())
