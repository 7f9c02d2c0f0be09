"""ONNX files that nobody should trust: a typed error that names what is wrong, and no crash."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
from onnx import TensorProto, helper, numpy_helper

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.onnx.prepare import onnx_child, onnx_process
from heteroplace.parts.onnx.prepare.onnx_source import OnnxSource
from heteroplace.parts.onnx.prepare.onnx_tensors import complete_tensors

pytestmark = pytest.mark.relay


def message(model: onnx.ModelProto | Path, **options: Any) -> str:
    with pytest.raises(FrontendError) as caught:
        from_onnx(model, **options)
    return str(caught.value)


# --- tensors ----------------------------------------------------------------------------------


def _set(**fields: Any) -> Callable[[TensorProto], None]:
    def change(tensor: TensorProto) -> None:
        for name, value in fields.items():
            if name == "dims":
                del tensor.dims[:]
                tensor.dims.extend(value)
            else:
                setattr(tensor, name, value)

    return change


def _no_data(tensor: TensorProto) -> None:
    tensor.ClearField("raw_data")


DAMAGES: dict[str, tuple[Callable[[TensorProto], None], str]] = {
    "short": (_set(raw_data=b"\0" * 5119), r"has 5119 bytes, its shape \[256, 5\] needs 5120"),
    "long": (_set(raw_data=b"\0" * 5124), "has 5124 bytes"),
    "none": (_no_data, r"has 0 elements, its shape \[256, 5\] needs 1280"),
    "negative": (_set(dims=[256, -5]), r"has a negative size in its shape \[256, -5\]"),
    "giant": (_set(dims=[2**62]), f"has {2**62} elements, and one tensor can have {2**31 - 1}"),
    "overflow": (_set(dims=[2**32, 2**32, 0, 1]), r".*\[4294967296, 4294967296, 0, 1\] needs 0"),
    "no type": (_set(data_type=99), "has the data type 99, which is none"),
    "undefined": (_set(data_type=0), "has the data type 0"),
    "other type": (_set(data_type=TensorProto.DOUBLE), "has 5120 bytes, .* needs 10240"),
    "texts": (_set(data_type=TensorProto.STRING), "has texts as raw data"),
}


@pytest.mark.parametrize("name", sorted(DAMAGES))
@pytest.mark.parametrize("where", ["initialiser", "attribute", "subgraph"])
def test_a_tensor_without_its_data_is_named(name: str, where: str) -> None:
    change, text = DAMAGES[name]
    model = om.tiny_cnn()
    tensor = next(each for each in model.graph.initializer if each.name == "dense")
    change(tensor)
    if where != "initialiser":
        node = helper.make_node("Constant", [], ["dense"])
        node.attribute.append(helper.make_attribute("value", tensor))
        model.graph.initializer.remove(tensor)
        if where == "subgraph":
            output = helper.make_tensor_value_info("dense", TensorProto.FLOAT, None)
            branch = helper.make_graph([node], "branch", [], [output])
            node = helper.make_node("If", ["b"], ["dense"], then_branch=branch, else_branch=branch)
        model.graph.node.insert(0, node)
    with pytest.raises(FrontendError, match=f"'dense' {text}"):
        complete_tensors(model, None, "the model")


@pytest.mark.parametrize("field", ["float_data", "int32_data", "int64_data", "string_data"])
def test_typed_fields_are_counted(field: str) -> None:
    data_type = {
        "float_data": TensorProto.COMPLEX64,
        "int32_data": TensorProto.INT4,
        "int64_data": TensorProto.INT64,
        "string_data": TensorProto.STRING,
    }[field]
    count = {"float_data": 6, "int32_data": 2}.get(field, 3)
    tensor = TensorProto(name="t", data_type=data_type, dims=[3])
    entry: Any = b"x" if field == "string_data" else 1
    getattr(tensor, field).extend([entry] * count)
    model = om.tiny_cnn()
    model.graph.initializer.append(tensor)
    complete_tensors(model, None, "good")
    getattr(model.graph.initializer[-1], field).append(entry)
    getattr(model.graph.initializer[-1], field).append(entry)
    with pytest.raises(FrontendError, match=r"'t' has \d elements, its shape \[3\] needs"):
        complete_tensors(model, None, "bad")


HUGE = 2**40
TABLES: dict[str, tuple[list[onnx.NodeProto], list[int], dict[str, Any]]] = {
    "pad": ([om.node("Pad", "x n", "y", mode="edge")], [4], {"n": [0, HUGE]}),
    "range": (
        [om.node("Range", "a n b", "r"), om.node("Gather", "r i", "s"), om.node("Add", "x s", "y")],
        [4],
        {"a": 0, "n": HUGE, "b": 1, "i": 0},
    ),
    "one_hot": ([om.node("OneHot", "x n v", "y")], [4], {"n": HUGE, "v": [0, 1]}),
    "dft": ([om.node("DFT", "x n", "y", axis=1)], [1, 2**14, 1], {"n": 2**14}),
    "stft": ([om.node("STFT", "x a - n", "y")], [1, 2**15, 1], {"a": 1, "n": 2**14}),
    "col2im": ([om.node("Col2Im", "x n b", "y")], [1, 1, 4], {"n": [1, HUGE], "b": [1, 1]}),
}


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_table_that_no_memory_holds_is_not_made(name: str) -> None:
    nodes, shape, constants = TABLES[name]
    arrays = {key: np.array(value, np.int64) for key, value in constants.items()}
    model = om.make_model(nodes, {"x": shape}, ["y"], arrays)
    model.graph.input[0].type.tensor_type.elem_type = (
        TensorProto.INT64 if name in ("range", "one_hot") else TensorProto.FLOAT
    )
    assert "would take" in message(model)


# --- external data ----------------------------------------------------------------------------


def external_model(folder: Path, is_inner: bool = False, **entries: str) -> Path:
    """x + w, or the same in a branch of an If; w is in a file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    model = om.make_model([om.node("Add", "x v", "y")], {"x": [4]}, ["y"], {"v": np.ones(4, "f")})
    if is_inner:
        output = helper.make_tensor_value_info("v", TensorProto.FLOAT, [4])
        node = helper.make_node("Identity", ["w"], ["v"])
        branch = helper.make_graph([node], "branch", [], [output], [tensor])
        chosen = helper.make_node("If", ["c"], ["v"], then_branch=branch, else_branch=branch)
        model.graph.node.insert(0, chosen)
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(True), "c"))
    else:
        tensor.name = "v"
        model.graph.initializer[0].CopyFrom(tensor)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


WEIGHTS = np.arange(4, dtype=np.float32)


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"offset": "-4"}, "has the offset '-4', expected a number >= 0"),
        ({"length": "1e9"}, "has the length '1e9'"),
        ({"length": "15"}, r"has 15 external bytes, its shape \[4\] needs 16"),
        ({"offset": "1"}, "ends at byte 17 of .*w.bin, which has 16"),
        ({"offset": str(2**63)}, f"ends at byte {2**63 + 16}"),
        ({"location": "../w.bin"}, "is in '../w.bin', outside of the folder"),
        ({"location": "a/../../w.bin"}, "outside of the folder"),
        ({"location": "/etc/passwd"}, "is no path below the folder"),
        ({"location": ""}, "is no path below the folder"),
        ({"location": "w\0.bin"}, r"'w\\x00.bin', which is no path"),
        ({"location": "."}, "which does not exist"),
        ({"location": "\x1b[2J"}, r"\\x1b\[2J, which does not exist"),
    ],
)
def test_external_data_out_of_reach(tmp_path: Path, entries: dict[str, str], text: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for place in (tmp_path, folder):
        (place / "w.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(FrontendError, match=f"'v' .*{text}"):
        from_onnx(external_model(folder, **entries))


def test_external_data_of_any_place_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "blob").write_bytes(b"skip" + WEIGHTS.tobytes() + b"more")
    (tmp_path / "deep" / "w.bin").symlink_to(tmp_path / "blob")  # as caches of models have it
    path = external_model(tmp_path, location="deep/../deep/./w.bin", offset="4")
    model = onnx.load(path, load_external_data=False)
    complete_tensors(model, tmp_path, "model")
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), WEIGHTS)


def test_weights_of_a_subgraph_come_from_the_models_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "w.bin").write_bytes(np.full(4, 7, np.float32).tobytes())
    monkeypatch.chdir(elsewhere)
    path = external_model(tmp_path, is_inner=True)
    assert "which does not exist" in message(path)
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    model = onnx.load(path, load_external_data=False)
    complete_tensors(model, tmp_path, "model")
    inner = model.graph.node[0].attribute[0].g.initializer[0]
    np.testing.assert_array_equal(numpy_helper.to_array(inner), WEIGHTS)


@pytest.mark.parametrize("is_inner", [False, True])
def test_files_of_weights_belong_to_a_model_wherever_they_are_named(
    tmp_path: Path, is_inner: bool
) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    path = external_model(tmp_path, is_inner, offset="")  # as if it were left out
    known = OnnxSource.of(path, {}, simplify=False).digests
    assert {Path(file).name for file in known} == {"model.onnx", "w.bin"}


def test_more_weights_than_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    path = external_model(tmp_path)
    monkeypatch.setattr(os, "sysconf", lambda name: 3)  # three pages of three bytes
    assert "are 16 bytes, and this machine has 9 bytes of memory" in message(path)


# --- names ------------------------------------------------------------------------------------


def test_a_name_of_two_values_is_refused() -> None:
    model = om.tiny_cnn()
    model.graph.node[1].output[0] = "c"
    assert "two values are called 'c'" in message(model)
    model = om.tiny_cnn()
    model.graph.initializer.append(model.graph.initializer[0])
    assert "two values are called 'w'" in message(model)


def test_a_name_with_a_zero_is_refused() -> None:
    model = om.tiny_cnn()
    model.graph.input[0].name = model.graph.node[0].input[0] = "x\0y"
    assert r"'x\x00y', which is no text" in message(model)


def test_names_are_printable_in_messages() -> None:
    nodes = [helper.make_node("NoSuchOp", ["x"], ["y"], name="a\x1b[2J\r\n\u202e")]
    model = om.make_model(nodes, {"x": [2]}, ["y"])
    nodes[0].input[0] = "none\x1b"
    text = message(model)
    assert all(char.isprintable() or char == "\n" for char in text)
    broken = om.make_model(nodes, {"x": [2]}, ["y"])
    assert r"NoSuchOp 'a\x1b[2J\r\n\u202e' reads 'none\x1b'" in message(broken)


# --- sizes and indices ------------------------------------------------------------------------


def _sized(op_type: str, sizes: list[int]) -> onnx.ModelProto:
    """A constant of these sizes, added to the input."""
    weights: dict[str, Any] = {"shape": np.array(sizes), "one": np.ones([1] * len(sizes), "f")}
    names = "shape" if op_type == "ConstantOfShape" else "one shape"
    nodes = [om.node(op_type, names, "c"), om.node("Add", "c x", "y")]
    return om.make_model(nodes, {"x": [1]}, ["y"], weights)


@pytest.mark.parametrize("simplify", [True, False])
@pytest.mark.parametrize("op_type", ["ConstantOfShape", "Expand", "Tile"])
@pytest.mark.parametrize("sizes", [[2**62], [2**31, 2**31], [2**16, 2**15], [2**62, 0]])
def test_giant_constants_are_refused(op_type: str, sizes: list[int], simplify: bool) -> None:
    if simplify and (op_type != "ConstantOfShape" or sizes != [2**62]):
        pytest.skip("one case shows that onnxruntime does not stand in the way")
    text = message(_sized(op_type, sizes), simplify=simplify)
    assert any(words in text for words in ("constant of", "elements", "cannot be imported"))


@pytest.mark.parametrize("data", ["row", "x"])
@pytest.mark.parametrize("counts", [[4, 2**62], [2, (2**64 + 2) // 3], [2**32, 2**32], [2**31, 1]])
def test_copies_whose_number_wraps_around_are_refused(counts: list[int], data: str) -> None:
    weights = {"counts": np.array(counts), "row": np.ones((1, 3), np.float32)}
    model = om.make_model([om.node("Tile", f"{data} counts", "y")], {"x": [1, 3]}, ["y"], weights)
    assert any(words in message(model) for words in ("tile makes", "has the shape", "elements"))


def test_a_size_that_no_memory_holds_is_refused_before_it_is_counted_out() -> None:
    nodes, sizes = [om.node("Resize", "x - - sizes", "y")], {"sizes": np.array([1, 1, 2, 2**32])}
    model = om.make_model(nodes, {"x": [1, 1, 2, 2]}, ["y"], sizes)
    assert f"axis 3 would have {2**32} elements; expected at most {2**24}" in message(model)


def test_a_value_of_more_elements_than_kernels_count_is_refused() -> None:
    model = om.make_model([om.node("Relu", "x", "y")], {"x": [2**16, 2**15]}, ["y"])
    assert f"a value has {2**31} elements, of the shape (65536, 32768)" in message(model)


@pytest.mark.parametrize("index", [4, -5, 2**62])
def test_a_constant_index_outside_of_its_tensor_is_refused(index: int) -> None:
    weights = {"i": np.array([[0, index, 1, 2]]), "j": np.array([[1], [index]])}
    for op_type, inputs in (("GatherElements", "x i"), ("GatherND", "x j")):
        model = om.make_model([om.node(op_type, inputs, "y")], {"x": [4, 4]}, ["y"], weights)
        assert "outside of its data of the shape (4, 4)" in message(model), op_type


def test_a_step_of_zero_is_refused() -> None:
    weights = {"zero": np.array([0]), "one": np.array([1])}
    nodes = [om.node("Slice", "x zero one zero zero", "y")]
    model = om.make_model(nodes, {"x": [4]}, ["y"], weights, 13)
    assert "strides" in message(model)
    convolution = om.tiny_cnn()
    convolution.graph.node[0].attribute.append(helper.make_attribute("strides", [0, 1]))
    assert "strides 0 x 1: none may be below 1" in message(convolution)


# --- processes --------------------------------------------------------------------------------


def _child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    """Let another program run in the place of the child."""
    path = tmp_path / "child.py"
    path.write_text(program)
    monkeypatch.setattr(onnx_child, "__file__", str(path))


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("import os; os.kill(os.getpid(), 11)", "onnxruntime was killed by SIGSEGV on the model"),
        ("import os; os.abort()", "onnxruntime was killed by SIGABRT"),
        ("import os; os.kill(os.getpid(), 24)", "onnxruntime took too long, or too much memory,"),
        ("raise MemoryError('bad\x1b')", r"onnxruntime failed (MemoryError: bad\x1b)"),
    ],
)
def test_a_death_of_onnxruntime_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, text: str
) -> None:
    _child(monkeypatch, tmp_path, program)
    found = message(om.tiny_cnn())
    assert text in found
    assert "simplify=False" in found


def test_what_onnxruntime_refuses_is_imported_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _child(monkeypatch, tmp_path, "import sys; print('no such op'); sys.exit(3)")
    report = from_onnx(om.tiny_cnn()).report
    assert "not simplified: onnxruntime refused it: no such op" in report


@pytest.mark.parametrize(
    ("work", "text"),
    [
        ("bytearray(8 * 2**30)", "^MemoryError$"),
        ("[None for _ in iter(int, 1)]", "onnx took too long, or too much memory,"),
    ],
)
def test_limits_of_the_child_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, work: str, text: str
) -> None:
    source = Path(onnx_child.__file__).read_text()
    run = f"_COMMANDS['infer'] = lambda: (lambda model, result: {work}, (MemoryError,))"
    _child(monkeypatch, tmp_path, source.replace('if __name__ == "__main__":', f"{run}\nif True:"))
    monkeypatch.setattr(onnx_process, "_SECONDS", 1)
    with pytest.raises(FrontendError, match=text):
        onnx_process.run_on_model("infer", om.tiny_cnn().SerializeToString())


def test_weights_do_not_travel_to_shape_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    run = onnx_process.run_on_model
    monkeypatch.setattr(
        onnx_process, "run_on_model", lambda c, m: (sizes.append(len(m)), run(c, m))[1]
    )
    model = om.tiny_cnn()
    inferred = onnx_process.infer_shapes(model)
    assert list(inferred.graph.initializer) == list(model.graph.initializer)
    assert [value.name for value in inferred.graph.input] == ["x"]
    assert {value.name for value in inferred.graph.value_info} >= {"c", "r", "flat"}
    assert sizes[0] < model.ByteSize() - 5000


@pytest.mark.costly
@pytest.mark.parametrize("sizes", [[2**31, 2**31], [2**12, 2**30]])
def test_a_condition_that_asks_for_all_memory_is_refused(sizes: list[int]) -> None:
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["v"])],
        "branch",
        [],
        [helper.make_tensor_value_info("v", TensorProto.FLOAT, [3])],
    )
    nodes = [
        om.node("ConstantOfShape", "sizes", "zeros"),
        om.node("ReduceSum", "zeros", "sum", keepdims=0),
        om.node("Cast", "sum", "c", to=TensorProto.BOOL),
        om.node("If", "c", "y", then_branch=branch, else_branch=branch),
    ]
    model = om.make_model(nodes, {"x": [3]}, ["y"], {"sizes": np.array(sizes)})
    assert "a constant of" in message(model, simplify=False)
