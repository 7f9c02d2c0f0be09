"""ONNX import refuses what it cannot import, and says all that is wrong with a model at once."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import onnx
import onnx_models as om
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx
from tests.strategies import exact_cases

pytestmark = pytest.mark.relay


def _message(source: Any, **options: Any) -> str:
    with pytest.raises(FrontendError) as caught:
        from_onnx(source, **options)
    text = str(caught.value)
    assert "::" not in text, "no C++ frames"
    return text


def test_missing_file(tmp_path: Path) -> None:
    assert "none.onnx: there is no such file" in _message(tmp_path / "none.onnx")


def test_directory(tmp_path: Path) -> None:
    assert "is a folder" in _message(tmp_path)


def test_a_size_of_zero_is_not_called_free() -> None:
    model = om.tiny_cnn()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    text = _message(model)
    assert "has the shape (0, " in text and "exporters write size 0" in text
    assert "free" not in text and "0 where it has no entry" in text


def test_all_opsets_of_a_domain_are_named() -> None:
    value = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    node = onnx.helper.make_node("Foo", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", value[:1], value[1:])
    opsets = [onnx.helper.make_opsetid(domain, n) for domain, n in (("", 3), ("ai.onnx", 1))]
    text = _message(onnx.helper.make_model(graph, opset_imports=opsets))
    assert "domain ai.onnx, opset 1 and 3, " in text


@pytest.mark.parametrize("content", [b"", b"this is no model", b"\x89PNG\r\n\x1a\n" * 9])
def test_foreign_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.onnx"
    path.write_bytes(content)
    text = _message(path)
    assert str(path) in text
    assert "no ONNX model" in text or "not an ONNX model" in text


def test_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "short.onnx"
    data = om.tiny_cnn().SerializeToString()
    path.write_bytes(data[: len(data) // 2])
    assert "truncated" in _message(path)


@exact_cases(40)
@given(position=st.integers(0, 5900), value=st.integers(0, 255), cut=st.integers(0, 12000))
def test_damaged_file_imports_or_is_refused(position: int, value: int, cut: int) -> None:
    data = bytearray(om.tiny_cnn().SerializeToString())
    data[min(position, len(data) - 1)] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.onnx"
        path.write_bytes(data[:cut])
        # Any other exception fails the test.
        with contextlib.suppress(FrontendError):
            assert from_onnx(path).outputs


def test_all_unsupported_ops_are_named_at_once() -> None:
    nodes = [
        om.node("ImageDecoder", "x", "d"),
        om.node("MyOp", "d", "m", domain="my.domain"),
        om.node("MyOp", "m", "y", domain="my.domain"),
    ]
    text = _message(om.make_model(nodes, {"x": [2, 2]}, ["y"], domains=["my.domain"]))
    assert "ImageDecoder 'n_d': there is no such op in domain ai.onnx, opset 17" in text
    assert "my.domain.MyOp 'n_m', my.domain.MyOp 'n_y': there is no such op in domain" in text


def test_all_free_sizes_are_named_with_the_cure() -> None:
    nodes = [om.node("Add", "x z", "y")]
    text = _message(om.make_model(nodes, {"x": ["batch", 3], "z": [3, "n"]}, ["y"]))
    assert "input 'x' has free sizes at axis 0 ('batch')" in text
    assert "input_shapes={'x': (...)} with its 2 sizes as your data has them" in text
    assert "input 'z' has free sizes at axis 1 ('n')" in text


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"q": (1,)}, "names 'q', which is no input; the inputs are x"),
        ({"x": (1, 4)}, "the file says (batch, 3)"),
        ({"x": (1, 3, 1)}, "the file says (batch, 3)"),
        ({"x": (-1, 3)}, "sizes must not be negative"),
        ({"x": (2**63, 3)}, "sizes are at most 9223372036854775807"),
    ],
)
def test_wrong_input_shapes(shapes: Any, words: str) -> None:
    model = om.make_model([om.node("Relu", "x", "y")], {"x": ["batch", 3]}, ["y"])
    assert words in _message(model, input_shapes=shapes)


def test_missing_external_weights_are_all_named(tmp_path: Path) -> None:
    path = tmp_path / "external.onnx"
    onnx.save(om.tiny_cnn(), path, save_as_external_data=True, size_threshold=64, location="w.bin")
    (tmp_path / "w.bin").unlink()
    text = _message(path)
    assert "'w' is in" in text and "'dense' is in" in text
    assert "w.bin, which does not exist" in text


def test_short_external_weights(tmp_path: Path) -> None:
    path = tmp_path / "external.onnx"
    onnx.save(om.tiny_cnn(), path, save_as_external_data=True, size_threshold=64, location="w.bin")
    data = (tmp_path / "w.bin").read_bytes()
    (tmp_path / "w.bin").write_bytes(data[:100])
    assert "which has 100" in _message(path)


def test_external_weights_of_a_model_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "external.onnx"
    onnx.save(om.tiny_cnn(), path, save_as_external_data=True, size_threshold=64, location="w.bin")
    assert "Pass the path" in _message(onnx.load(path, load_external_data=False))


def test_value_that_nothing_gives() -> None:
    model = om.make_model([om.node("Add", "x ghost", "y")], {"x": [2]}, ["y", "also_missing"])
    text = _message(model)
    assert "Add 'n_y' reads 'ghost'" in text
    assert "the graph output 'also_missing'" in text


def test_importer_failure_names_the_node_and_the_reason() -> None:
    model = om.make_model([om.node("Add", "x z", "y")], {"x": [2, 3], "z": [4]}, ["y"])
    text = _message(model, simplify=False)
    assert "Add 'n_y' cannot be imported" in text
    assert "Incompatible broadcast type TensorType([2, 3], float32) and TensorType([4]" in text


def test_shape_that_depends_on_values() -> None:
    nodes = [om.node("NonZero", "x", "i"), om.node("Cast", "i", "y", to=om.FLOAT)]
    text = _message(om.make_model(nodes, {"x": [2, 3]}, ["y"]))
    assert "NonZero 'n_i': the size of its result depends on values at run time" in text


def test_run_time_axes_are_refused_by_name() -> None:
    nodes = [om.node("Cast", "z", "axes", to=om.INT64), om.node("ReduceMean", "x axes", "y")]
    text = _message(om.make_model(nodes, {"x": [2, 3], "z": [1]}, ["y"], opset=18))
    assert "ReduceMean 'n_y': its axes (operand 1) is computed at run time" in text
