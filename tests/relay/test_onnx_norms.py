"""Norms whose statistics have other types than the data, or are of data that is all equal."""

from __future__ import annotations

import numpy as np
import onnx_models as om
import pytest

pytestmark = pytest.mark.relay

_RNG = np.random.default_rng(0)


def test_norm_of_what_is_all_equal_is_zero() -> None:
    x = _RNG.standard_normal((2, 3, 4, 4), dtype=np.float32)
    x[:, 1] = 0.5
    x[:, 2] = 1e-9 * x[:, 2]
    model = om.make_model([om.node("MeanVarianceNormalization", "x", "y")], {"x": x.shape}, ["y"])
    (found,) = om.run_imported(model, {"x": x})
    np.testing.assert_array_equal(found[:, 1], 0)
    wide = x.astype(np.float64)
    centred = wide - wide.mean((0, 2, 3), keepdims=True)
    # As the standard's definition by other ops has it.
    expected = centred / (wide.std((0, 2, 3), keepdims=True) + 1e-9)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_norm_of_numbers_far_from_zero_keeps_their_digits() -> None:
    x = 1000 + _RNG.standard_normal((2, 3, 4, 4), dtype=np.float32)
    node = om.node("MeanVarianceNormalization", "x", "y", axes=[0, -1])
    model = om.make_model([node], {"x": x.shape}, ["y"])
    (found,) = om.run_imported(model, {"x": x})
    wide = x.astype(np.float64)
    expected = (wide - wide.mean((0, 3), keepdims=True)) / wide.std((0, 3), keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_statistics_of_a_layer_norm_are_of_their_own_type(dtype: str) -> None:
    x = (_RNG.standard_normal((2, 3, 8)) * 5 + 30).astype(dtype)
    weights = {"s": _RNG.standard_normal(8).astype(dtype), "b": np.ones(8, dtype)}
    node = om.node("LayerNormalization", "x s b", "y m i")
    model = om.typed_model([node], {"x": x}, ["y", "m", "i"], weights)
    expected = om.run_onnxruntime(model, {"x": x})
    found = om.run_imported(model, {"x": x})
    assert [each.dtype.name for each in found] == [dtype, "float32", "float32"]
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-3, atol=2e-3)
    for mine, reference in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "own"), [("float16", "float32"), ("float32", "float16")])
def test_statistics_of_a_batch_norm_are_of_their_own_type(dtype: str, own: str) -> None:
    x = _RNG.standard_normal((2, 3, 8)).astype(dtype)
    weights = {"s": np.ones(3, dtype), "b": np.ones(3, dtype)}
    weights |= {"m": _RNG.standard_normal(3).astype(own), "v": np.ones(3, own)}
    nodes = [
        om.node("BatchNormalization", "x s b m v", "y m2 v2", training_mode=1),
        om.node("BatchNormalization", "x s b m v", "z"),
    ]
    model = om.typed_model(nodes, {"x": x}, ["y", "m2", "v2", "z"], weights)
    found = om.run_imported(model, {"x": x})
    assert [each.dtype.name for each in found] == [dtype, own, own, dtype]
    wide = x.astype(np.float32)
    mean, variance = wide.mean((0, 2)), wide.var((0, 2))
    expected = [
        1 + (wide - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5),
        0.9 * weights["m"] + 0.1 * mean,
        0.9 * weights["v"] + 0.1 * variance,
        1 + (wide - weights["m"].astype(np.float32)[:, None]) / np.sqrt(1 + 1e-5),
    ]
    for mine, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=2e-3, atol=2e-3)
