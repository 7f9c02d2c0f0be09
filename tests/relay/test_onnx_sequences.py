"""Ops on sequences of tensors: equal to the standard's reference, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_models import run_tvm

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx

pytestmark = pytest.mark.relay


def model_of(text_nodes, constants, shape=(7, 3), outputs=("y",)):
    nodes = [helper.make_node(op, ins, outs, **attrs) for op, ins, outs, attrs in text_nodes]
    infos = [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape) for x in ("a", "b", "c")]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    values = [numpy_helper.from_array(np.asarray(v, np.int64), n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "sequences", infos, results, values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def assert_equals_reference(model) -> None:
    stream = np.random.default_rng(0)
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
    given = {x: stream.standard_normal(shape).astype(np.float32) for x in ("a", "b", "c")}
    expected = ReferenceEvaluator(model).run(None, given)
    imported = from_onnx(model, simplify=False)
    actual = run_tvm(imported.mod, imported.params, {n: given[n] for n in imported.inputs})
    for mine, reference in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(mine, reference)


def inserted(position, at):
    return model_of(
        [
            ("SequenceConstruct", ["a", "b"], ["s"], {}),
            ("SequenceInsert", ["s", "c", "p"] if position is not None else ["s", "c"], ["t"], {}),
            ("SequenceAt", ["t", "at"], ["y"], {}),
        ],
        {"at": at} | ({} if position is None else {"p": position}),
    )


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("position", [None, -2, -1, 0, 1])
def test_a_tensor_is_inserted_where_the_position_says(position, at) -> None:
    assert_equals_reference(inserted(position, at))


@pytest.mark.parametrize("at", range(3))
def test_a_position_behind_the_last_tensor_is_the_end(at) -> None:
    # By the specification and onnxruntime; the standard's reference begins anew at the front.
    imported = from_onnx(inserted(2, at), simplify=False)
    given = {x: np.full((7, 3), number, np.float32) for number, x in enumerate("abc")}
    (y,) = run_tvm(imported.mod, imported.params, {n: given[n] for n in imported.inputs})
    np.testing.assert_array_equal(y, given["abc"[at]])


@pytest.mark.parametrize("at", [-2, 1])
@pytest.mark.parametrize("position", [None, -3, -1, 0, 2])
def test_the_tensor_at_the_position_is_erased(position, at) -> None:
    erased = ["s"] if position is None else ["s", "p"]
    nodes = [
        ("SequenceConstruct", ["a", "b", "c"], ["s"], {}),
        ("SequenceErase", erased, ["t"], {}),
        ("SequenceAt", ["t", "at"], ["y"], {}),
    ]
    constants = {"at": at} | ({} if position is None else {"p": position})
    assert_equals_reference(model_of(nodes, constants))


@pytest.mark.parametrize(
    ("split", "attributes", "num_parts"),
    [
        (2, {"axis": 0}, 4),
        (3, {"axis": -2}, 3),
        (7, {"axis": 0}, 1),
        ([7], {"axis": 0}, 1),
        ([1, 4, 2], {"axis": 0}, 3),
        ([1, 4, 2], {"axis": 0, "keepdims": 0}, 3),
        ([2, 1], {"axis": 1}, 2),
        (None, {"axis": 1}, 3),
        (None, {"axis": 1, "keepdims": 0}, 3),
    ],
)
def test_a_tensor_is_split_into_parts_of_the_sizes(split, attributes, num_parts) -> None:
    nodes = [("SplitToSequence", ["a"] if split is None else ["a", "sizes"], ["s"], attributes)]
    names = [f"y{part}" for part in range(num_parts)]
    nodes += [("SequenceAt", ["s", f"p{part}"], [names[part]], {}) for part in range(num_parts)]
    constants = {f"p{part}": part for part in range(num_parts)}
    if split is not None:
        constants["sizes"] = split
    assert_equals_reference(model_of(nodes, constants, outputs=names))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (inserted(3, 0), r"position 3 is not in a sequence of 2 tensors: expected -2 to 2"),
        (inserted(0, 3), r"position 3 is not in a sequence of 3 tensors: expected -3 to 2"),
        (
            model_of(
                [
                    ("SplitToSequence", ["a", "sizes"], ["s"], {}),
                    ("SequenceAt", ["s", "p"], ["y"], {}),
                ],
                {"sizes": [3, 3], "p": 0},
            ),
            r"sizes \[3, 3\] do not fill the 7 elements along axis 0",
        ),
    ],
)
def test_positions_and_sizes_that_cannot_be_are_refused(model, message) -> None:
    with pytest.raises(FrontendError, match=message):
        from_onnx(model, simplify=False)
