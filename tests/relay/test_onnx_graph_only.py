"""An ONNX file without the elements of its large initialisers: everything else is there."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnx_models as om
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.prepare.onnx_load import model_structure, parse_file

pytestmark = pytest.mark.relay

ELEMENTS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")
LARGE, SMALL = (80, 80), (3, 5)


def tensors() -> list[TensorProto]:
    """Large and small ones, with their elements in every field that may hold them."""
    types = {"float32": 1, "int32": 6, "int64": 7, "float64": 11, "uint64": 13}
    built = []
    for shape in (LARGE, SMALL):
        for dtype, number in types.items():
            array = np.arange(1, 1 + np.prod(shape), dtype=dtype).reshape(shape)
            values = array.reshape(-1).tolist()
            name = f"{dtype}{shape[0]}"
            built.append(helper.make_tensor(f"{name}.typed", number, shape, values))
            built.append(numpy_helper.from_array(array, f"{name}.raw"))
    built.append(helper.make_tensor("texts", TensorProto.STRING, LARGE, [b"text"] * 6400))
    return built


def model() -> ModelProto:
    """A node has a large tensor of its own, and a name takes more than 127 bytes."""
    constant = numpy_helper.from_array(np.ones(LARGE, np.float32), "own")
    nodes = [
        helper.make_node("Constant", [], ["own"], value=constant, name="n" * 300),
        helper.make_node("Add", ["x", "float3280.raw"], ["sum"]),
        helper.make_node("Add", ["sum", "own"], ["y"]),
    ]
    built = om.make_model(nodes, {"x": list(LARGE)}, ["y"])
    built.graph.initializer.extend(tensors())
    entry = built.metadata_props.add()
    entry.key, entry.value = "author", "ä" * 200
    return built


def test_only_the_elements_of_large_initialisers_are_left_out(tmp_path: Path) -> None:
    expected = model()
    onnx.save(expected, tmp_path / "model.onnx")
    read = model_structure(tmp_path / "model.onnx")
    for tensor in expected.graph.initializer:
        if tuple(tensor.dims) == LARGE:
            for field in (*ELEMENTS, "string_data"):
                tensor.ClearField(field)
    assert read == expected
    assert len(read.SerializeToString()) < 30_000


def test_a_graph_that_lies_in_the_file_in_pieces_is_joined(tmp_path: Path) -> None:
    # Protocol Buffers joins a message that is there twice, so files may be appended.
    parts = model(), ModelProto(producer_name="second")
    parts[1].graph.initializer.append(numpy_helper.from_array(np.ones(LARGE), "more"))
    (tmp_path / "model.onnx").write_bytes(b"".join(part.SerializeToString() for part in parts))
    read = model_structure(tmp_path / "model.onnx")
    assert read.producer_name == "second"
    assert [tensor.name for tensor in read.graph.initializer][-1] == "more"
    assert len(read.graph.initializer) == len(tensors()) + 1
    assert len(read.graph.node) == 3


def test_a_damaged_file_is_refused_as_by_the_reader_of_the_whole_file(tmp_path: Path) -> None:
    content, path = model().SerializeToString(), tmp_path / "model.onnx"
    draw = random.Random(0)
    for _ in range(200):
        damaged = bytearray(content[: draw.randrange(len(content))])
        for _ in range(draw.randrange(3)):
            if damaged:
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            parse_file(path)
        except FrontendError as fault:
            with pytest.raises(FrontendError) as caught:
                model_structure(path)
            assert str(caught.value) == str(fault)


@pytest.mark.parametrize("content", [b"", b"\x3a", b"\x3a\xff\xff\xff\xff\x0f", b"\x3b", b"\xff"])
def test_what_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    if not content:  # an empty message, to Protocol Buffers
        assert model_structure(path) == ModelProto()
        return
    with pytest.raises(FrontendError, match="is not an ONNX model, or is truncated"):
        model_structure(path)
