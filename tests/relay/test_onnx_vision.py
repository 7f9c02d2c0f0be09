"""Ops of vision: RoiAlign and AffineGrid in each of their forms, as ONNX and onnxruntime say."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_models as om
import pytest
import tvm
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_affine_grid import AffineGrid
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.onnx.prepare.onnx_operands import inputs_read_at_import
from heteroplace.relay.source import Source, source_from_json, source_to_json

pytestmark = pytest.mark.relay

REGIONS = np.array(
    [
        [1.0, 2.0, 13.5, 9.0],
        [0.3, 0.2, 0.6, 0.9],  # smaller than a pixel
        [-40.0, -30.0, 60.0, 45.0],  # larger than the map
        [5.0, 8.0, 4.0, 3.0],  # turned
        [30.0, 30.0, 35.0, 33.0],  # outside
    ],
    np.float32,
)
IMAGES = np.array([0, 1, 1, 0, 1])


def roi_align(coordinates: str, mode: str, ratio: int, dtype: str = "float32") -> onnx.ModelProto:
    attributes = {} if coordinates == "default" else {"coordinate_transformation_mode": coordinates}
    node = om.node("RoiAlign", "x r b", "y", mode=mode, sampling_ratio=ratio, output_height=3,
                   output_width=2, spatial_scale=0.7, **attributes)  # fmt: skip
    inputs = {"x": np.zeros((2, 3, 6, 8), dtype), "r": REGIONS.astype(dtype), "b": IMAGES}
    return om.typed_model([node], inputs, ["y"])


def check(model: onnx.ModelProto, has_runtime: bool = True) -> None:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    pixels = np.random.default_rng(0).standard_normal((2, 3, 6, 8)).astype(dtype)
    inputs = {"x": pixels, "r": REGIONS.astype(dtype), "b": IMAGES}
    (result,) = om.run_imported(model, inputs)
    (expected,) = ReferenceEvaluator(model).run(None, inputs)
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    if has_runtime:
        np.testing.assert_allclose(
            result, om.run_onnxruntime(model, inputs)[0], rtol=1e-4, atol=1e-5
        )


FORMS = itertools.product(["half_pixel", "output_half_pixel"], ["avg", "max"], [0, 2])
QUICK = {("half_pixel", "avg", 0), ("output_half_pixel", "max", 2)}


@pytest.mark.parametrize(
    ("coordinates", "mode", "ratio"),
    [pytest.param(*form, marks=() if form in QUICK else pytest.mark.costly) for form in FORMS],
)
def test_regions_are_sampled_as_the_standard_says(coordinates: str, mode: str, ratio: int) -> None:
    check(roi_align(coordinates, mode, ratio))


def test_a_module_with_regions_is_stored_and_read() -> None:
    main = from_onnx(roi_align("half_pixel", "max", 0)).mod["main"]
    mod = tvm.IRModule.from_expr(relay.Function(main.params, main.body))
    mod = relay.transform.InferType()(mod)
    arrays: list[np.ndarray] = []

    def place(array: np.ndarray) -> int:
        arrays.append(array)
        return len(arrays) - 1

    data = source_to_json(Source(mod, 3), place)
    again = source_from_json(data, lambda index, _: arrays[index].reshape(-1).view(np.uint8))
    tvm.ir.assert_structural_equal(again.mod, mod)


@pytest.mark.costly
def test_regions_of_double_precision_by_default() -> None:
    check(roi_align("default", "avg", 0, "float64"))


@pytest.mark.parametrize("is_aligned", [0, 1])
@pytest.mark.parametrize("sizes", [(3, 4), (2, 3, 4)])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_grid_of_a_transform(batch: int, sizes: tuple[int, ...], is_aligned: int) -> None:
    rank = len(sizes)
    theta = np.random.default_rng(0).standard_normal((batch, rank, rank + 1), np.float32)
    size = np.array([batch, 2, *sizes])
    node = om.node("AffineGrid", "theta size", "grid", align_corners=is_aligned)
    model = om.typed_model([node], {"theta": theta}, ["grid"], {"size": size}, 20)
    expected = AffineGrid.eval(theta, size, align_corners=is_aligned)
    (grid,) = om.run_imported(model, {"theta": theta})
    assert grid.dtype == np.float32
    np.testing.assert_allclose(grid, expected, rtol=1e-5, atol=1e-6)


def test_the_size_of_a_grid_is_asked_of_the_user() -> None:
    inputs = {"theta": np.ones((1, 2, 3), np.float32), "size": np.array([1, 2, 3, 4])}
    model = om.typed_model([om.node("AffineGrid", "theta size", "grid")], inputs, ["grid"], {}, 20)
    assert inputs_read_at_import(model) == ("size",)
    with pytest.raises(FrontendError, match=r"AffineGrid 'n_grid': its size .* input_values"):
        from_onnx(model, simplify=False)
