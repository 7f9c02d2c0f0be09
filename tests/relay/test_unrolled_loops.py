"""Loops, recurrent layers and sequences that are too long to be unrolled are refused."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_models as om
import pytest
from onnx import TensorProto, helper

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.relay.limits import MAX_RECURRENT_STEPS, MAX_UNROLLED_NODES

pytestmark = pytest.mark.relay


def _info(name: str, shape: list[int], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def distances(num_rows: int) -> onnx.ModelProto:
    """Squared distances to rows by a Scan, as scikit-learn's neighbours are exported."""
    nodes = [
        om.node("Identity", "next_in", "next_out"),
        om.node("Sub", "next_in row", "difference"),
        om.node("ReduceSumSquare", "difference", "sum", axes=[1], keepdims=0),
        om.node("Identity", "sum", "distance"),
    ]
    inputs = [_info("next_in", [1, 3]), _info("row", [3])]
    outputs = [_info("next_out", [1, 3]), _info("distance", [1])]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    scan = om.node("Scan", "x rows", "last y", body=body, num_scan_inputs=1)
    rows = np.ones((num_rows, 3), np.float32)
    return om.make_model([scan], {"x": [1, 3]}, ["y"], {"rows": rows})


def _loop(name: str, count: str, nodes: list[onnx.NodeProto]) -> onnx.NodeProto:
    body = helper.make_graph(
        [*nodes, om.node("Identity", f"go_{name}", f"still_{name}")],
        "body",
        [
            _info(f"i_{name}", [], TensorProto.INT64),
            _info(f"go_{name}", [], TensorProto.BOOL),
            _info(f"in_{name}", [3]),
        ],
        [_info(f"still_{name}", [], TensorProto.BOOL), _info(f"out_{name}", [3])],
    )
    return om.node("Loop", f"{count} - {'in_a' if name == 'b' else 'x'}", f"y_{name}", body=body)


def nested_loops(num_outer: int, num_inner: int) -> onnx.ModelProto:
    """A loop within a loop, each of them short."""
    inner = _loop("b", "inner", [om.node("Neg", "in_b", "out_b")])
    outer = _loop("a", "outer", [inner, om.node("Identity", "y_b", "out_a")])
    counts = {"inner": np.array(num_inner), "outer": np.array(num_outer)}
    return om.make_model([outer], {"x": [3]}, ["y_a"], counts)


def lstm(num_steps: int, direction: str) -> onnx.ModelProto:
    """With a clip, which the op for all steps does not know."""
    count = 2 if direction == "bidirectional" else 1
    layer = om.node("LSTM", "x w r", "y", hidden_size=1, direction=direction, clip=9.0)
    weights = {"w": np.ones((count, 4, 1), np.float32), "r": np.ones((count, 4, 1), np.float32)}
    return om.make_model([layer], {"x": [num_steps, 1, 1]}, ["y"], weights)


def test_a_scan_of_many_steps_is_refused_with_its_size() -> None:
    with pytest.raises(FrontendError) as caught:
        from_onnx(distances(442), simplify=False)
    message = str(caught.value)
    assert "Scan 'n_last' has 442 steps and a body of 4 nodes" in message
    assert f"takes 3536 nodes; the limit is {MAX_UNROLLED_NODES}" in message
    assert "ops on whole tensors" in message


def test_a_loop_of_many_steps_is_refused() -> None:
    model = nested_loops(10**12, 1)
    with pytest.raises(FrontendError, match="Loop 'n_y_a' has 1000000000000 steps"):
        from_onnx(model, simplify=False)


@pytest.mark.costly(2)
def test_loops_in_loops_count_together() -> None:
    with pytest.raises(FrontendError, match="and the other loops") as caught:
        from_onnx(nested_loops(30, 30), simplify=False)
    assert re.search(r"has 30 steps and a body of 2 nodes", str(caught.value))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_recurrent_layer_of_many_steps_is_refused(direction: str) -> None:
    length = MAX_RECURRENT_STEPS // (2 if direction == "bidirectional" else 1) + 1
    with pytest.raises(FrontendError, match=f"the limit is {MAX_RECURRENT_STEPS} steps"):
        from_onnx(lstm(length, direction), simplify=False)


def test_a_sequence_of_many_tensors_is_refused() -> None:
    nodes = [om.node("SplitToSequence", "x", "s"), om.node("ConcatFromSequence", "s", "y", axis=0)]
    model = om.make_model(nodes, {"x": [5000, 3]}, ["y"])
    with pytest.raises(FrontendError, match="into 5000 tensors; the limit is 1024"):
        from_onnx(model, simplify=False)


@pytest.mark.costly(2)
def test_short_loops_are_unrolled() -> None:
    model = nested_loops(3, 4)
    inputs = om.random_inputs(model)
    (actual,) = om.run_imported(model, inputs)
    np.testing.assert_array_equal(actual, inputs["x"])
