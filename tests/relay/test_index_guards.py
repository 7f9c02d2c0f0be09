"""index_guards: an index outside of its axis is the nearest inside; nothing is read elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_models as om
import pytest
import tvm
from onnx import ModelProto, NodeProto, helper
from relay_models import cpu_cluster, module, random_costs, var
from tvm import relay

import heteroplace as hp
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.relay.index_guards import GuardIndices

pytestmark = pytest.mark.relay

FAR = [0, 3, 4, -1, -4, -5, 10**9, -(10**9)]
"""Of an axis of 4 elements."""
NEAREST = [0, 3, 3, 3, 0, 0, 3, 0]
DATA = np.arange(12, dtype=np.float32).reshape(4, 3)


def run(mod: tvm.IRModule, params: Any, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Build for one core and run."""
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(
            mod, cpu_cluster(), params, costs=random_costs, solver="heft", verify="off"
        )
    return hp.Executor(executable).run(**inputs)


def model_of(nodes: Sequence[NodeProto], outputs: list[str], **inputs: np.ndarray) -> ModelProto:
    """A model whose inputs have the types of the arrays."""
    model = om.make_model(nodes, {name: array.shape for name, array in inputs.items()}, outputs)
    for value in model.graph.input:
        dtype = helper.np_dtype_to_tensor_dtype(inputs[value.name].dtype)
        value.type.tensor_type.elem_type = dtype
    return model


@pytest.mark.costly
def test_indices_of_an_onnx_model_count_as_the_nearest_inside() -> None:
    far = np.array(FAR)
    inputs = {"d": DATA, "i": far, "row": far[:, None].repeat(3, 1), "column": far[:, None]}
    inputs["u"] = -np.ones((1, 3), np.float32)
    inputs["last"] = np.array([[4, 10**9, -5]])
    nodes = [
        om.node("Gather", "d i", "gather"),
        om.node("GatherElements", "d row", "elements"),
        om.node("GatherND", "d column", "nd"),
        om.node("ScatterElements", "d last u", "scatter"),
        om.node("ScatterND", "d turned u3", "scatter_nd"),
        om.node("Transpose", "last", "turned"),
        om.node("Expand", "u three", "u3"),
    ]
    nodes = [*nodes[-2:], *nodes[:-2]]
    outputs = ["gather", "elements", "nd", "scatter", "scatter_nd"]
    model = model_of(nodes, outputs, **inputs)
    model.graph.initializer.append(om.numpy_helper.from_array(np.array([3, 3]), "three"))
    imported = from_onnx(model)
    found = run(imported.mod, imported.params, inputs)
    for mine, name in zip(found[:3], outputs, strict=False):
        np.testing.assert_array_equal(mine, DATA[NEAREST], err_msg=name)
    scattered = DATA.copy()
    scattered[[3, 3, 0], [0, 1, 2]] = -1
    np.testing.assert_array_equal(found[3], scattered)
    scattered = DATA.copy()
    scattered[[0, 3]] = -1
    np.testing.assert_array_equal(found[4], scattered)


def test_gather_nd_counts_negative_indices_from_the_end() -> None:
    inputs = {"d": DATA, "i": np.array([[-1, 2], [0, -3], [-4, -1]])}
    model = model_of([om.node("GatherND", "d i", "y")], ["y"], **inputs)
    (expected,) = om.run_onnxruntime(model, inputs)
    imported = from_onnx(model)
    (found,) = run(imported.mod, imported.params, inputs)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.filterwarnings("ignore:visit_Num:DeprecationWarning")  # TVM's hybrid script
def test_other_ops_stay_inside_too() -> None:
    image, boxes = var("image", (2, 1, 4, 4)), var("boxes", (4, 5))
    length, data, index = var("n", (3,), "int32"), var("d", (4, 3)), var("i", (8,), "int64")
    body = relay.Tuple(
        [
            relay.vision.roi_align(image, boxes, (2, 2), 1.0, 2, "NCHW", "avg"),
            relay.reverse_sequence(data, length, seq_axis=0, batch_axis=1),
            relay.take(data, index, axis=0, mode="fast"),
            relay.adv_index([data, index, index]),
        ]
    )
    box = np.array([[1, 0, 0, 2, 2]] * 4, np.float32)
    box[1, 0], box[2, 0], box[3, 1] = 10**8, np.nan, np.nan
    pixels = np.arange(32, dtype=np.float32).reshape(2, 1, 4, 4)
    inputs = {"image": pixels, "boxes": box, "n": np.array([2, 9, -3], np.int32)}
    inputs |= {"d": DATA, "i": np.array(FAR)}
    mod = module([image, boxes, length, data, index], body)
    rois, turned, taken, advanced = run(mod, {}, inputs)
    np.testing.assert_array_equal(rois[1], rois[0])
    np.testing.assert_allclose(rois[2] + 16, rois[0])
    assert np.isfinite(rois).all()
    np.testing.assert_array_equal(turned[:, 1], DATA[::-1, 1])
    np.testing.assert_array_equal(turned[:, 2], DATA[:, 2])
    np.testing.assert_array_equal(taken, DATA[[0, 3, 3, 0, 0, 0, 3, 0]])
    rows, columns = np.clip(FAR, 0, 3), np.clip(FAR, 0, 2)
    np.testing.assert_array_equal(advanced, DATA[rows, columns])


def guarded(mod: tvm.IRModule) -> tvm.IRModule:
    """Run the pass, and infer types."""
    return tvm.transform.Sequential([GuardIndices(), relay.transform.InferType()])(mod)


def test_what_is_inside_stays_as_it_is() -> None:
    data, index = var("d", (4, 3)), var("i", (2, 3), "int64")
    held = relay.minimum(relay.maximum(index, relay.const(0, "int64")), relay.const(3, "int64"))
    for body in (relay.gather(data, 0, held), relay.take(data, index, axis=0)):
        mod = module([data, index], body)
        tvm.ir.assert_structural_equal(guarded(mod), mod)
    found = guarded(module([data, index], relay.gather(data, 0, index)))
    tvm.ir.assert_structural_equal(found, module([data, index], relay.gather(data, 0, held)))
    tvm.ir.assert_structural_equal(guarded(found), found)


def test_an_index_that_may_have_been_a_nan_is_held() -> None:
    data, place, index = var("d", (4, 3)), var("x", (2, 3)), var("i", (2, 3), "int64")
    known = relay.cast(relay.clip(relay.cast(index, "float32"), 0, 3), "int32")
    mod = module([data, index], relay.gather(data, 0, known))
    tvm.ir.assert_structural_equal(guarded(mod), mod)
    for unknown in (relay.clip(place, 0, 3), relay.sigmoid(place)):
        mod = module([data, place], relay.gather(data, 0, relay.cast(unknown, "int32")))
        assert guarded(mod)["main"].body.args[1].op.name == "minimum"
