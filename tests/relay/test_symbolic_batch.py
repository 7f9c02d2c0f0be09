"""Models whose number of rows is free: one import, any batch, typed as imported for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import numpy_helper
from onnx_models import make_model, node
from relay_models import TARGET
from shard_models import onnx_perceptron, rank_cluster, save_files
from tvm import relay
from tvm.contrib import graph_executor

import heteroplace
from heteroplace.cli.main import main
from heteroplace.errors import FrontendError, UnsupportedRelayError
from heteroplace.parts.onnx.imported_model import ImportedModel
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.relay.expressions import tensor_types
from zoo.models.transformers import bert_onnx, gpt_onnx

BATCHES = (1, 3, 8)


def free_rows(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inputs of any number of rows, as exporters with dynamic axes write it."""
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    for value in model.graph.output:
        value.type.ClearField("tensor_type")
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    targets = {each.input[1] for each in model.graph.node if each.op_type == "Reshape"}
    constants = [each for each in model.graph.node if each.op_type == "Constant"]
    tensors = {each.output[0]: each.attribute[0].t for each in constants}
    tensors |= {each.name: each for each in model.graph.initializer}
    for name, tensor in tensors.items():
        array = numpy_helper.to_array(tensor)
        if name in targets and array[0] == 1:
            tensor.CopyFrom(numpy_helper.from_array(np.array([-1, *array[1:]]), tensor.name))
    del model.graph.value_info[:]
    return model


def convolutions() -> onnx.ModelProto:
    """Two convolutions, a norm, a branch, pools and a dense layer."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype("float32")

    return make_model(
        [
            node("Conv", "x w0", "c0", pads=[1, 1, 1, 1]),
            node("BatchNormalization", "c0 scale offset mean var", "n0"),
            node("Relu", "n0", "r0"),
            node("Conv", "r0 w1", "c1", pads=[1, 1, 1, 1]),
            node("Add", "c1 r0", "s1"),
            node("MaxPool", "s1", "p1", kernel_shape=[2, 2], strides=[2, 2]),
            node("Concat", "p1 p1", "j1", axis=1),
            node("GlobalAveragePool", "j1", "g1"),
            node("Flatten", "g1", "f1"),
            node("Gemm", "f1 w2", "y"),
        ],
        {"x": ["N", 3, 8, 8]},
        ["y"],
        {
            "w0": weight(8, 3, 3, 3),
            **{name: np.abs(weight(8)) for name in ("scale", "offset", "mean", "var")},
            "w1": weight(8, 8, 3, 3),
            "w2": weight(16, 20),
        },
    )


def tokens_with_a_class() -> onnx.ModelProto:
    """A token that is expanded for each row and joined, positions by look-up, a mask of ones."""
    rng = np.random.default_rng(1)
    weights = {
        "cls": rng.standard_normal((1, 1, 8)).astype("float32"),
        "table": rng.standard_normal((4, 8)).astype("float32"),
        "zero": np.array(0),
        "zeros": np.array([0]),
        "one_eight": np.array([1, 8]),
        "places": np.arange(4)[None],
        "flat": np.array([-1, 32]),
    }
    nodes = [
        node("Shape", "x", "sizes"),
        node("Gather", "sizes zero", "rows0", axis=0),
        node("Unsqueeze", "rows0 zeros", "rows"),
        node("Concat", "rows one_eight", "shape", axis=0),
        node("Expand", "cls shape", "classes"),
        node("Concat", "classes x", "tokens", axis=1),
        node("Unsqueeze", "rows0 zeros", "again"),
        node("Concat", "again four", "placed", axis=0),
        node("Expand", "places placed", "positions"),
        node("Gather", "table positions", "embedded"),
        node("Add", "tokens embedded", "sum"),
        node("ConstantOfShape", "placed", "blank"),
        node("Unsqueeze", "blank two", "wide"),
        node("Add", "sum wide", "masked"),
        node("Reshape", "masked flat", "y"),
    ]
    weights |= {"four": np.array([4]), "two": np.array([2])}
    return make_model(nodes, {"x": ["N", 3, 8]}, ["y"], weights)


MODELS = {
    "mlp": onnx_perceptron,
    "bert": lambda: free_rows(
        bert_onnx(layers=1, hidden=16, heads=2, tokens=6, vocabulary=11, seed=0)
    ),
    "gpt": lambda: free_rows(
        gpt_onnx(layers=1, hidden=16, heads=2, tokens=6, vocabulary=11, seed=0)
    ),
    "convolutions": convolutions,
    "class token": tokens_with_a_class,
}


def types_of(model: ImportedModel) -> list[str]:
    """Of all inputs and outputs."""
    main = model.mod["main"]
    inputs = [each.checked_type for each in main.params if each.name_hint in model.inputs]
    return [str(type_) for value in (*inputs, main.ret_type) for type_ in tensor_types(value)]


def by_onnxruntime(model: onnx.ModelProto, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found: list[np.ndarray] = session.run(None, values)
    return found


def outputs(model: ImportedModel, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    with tvm.transform.PassContext(opt_level=0):
        library = relay.build(model.bind_params(), target=TARGET)
    executor = graph_executor.GraphModule(library["default"](tvm.cpu(0)))
    executor.run(**values)
    return [executor.get_output(index).numpy() for index in range(executor.get_num_outputs())]


@pytest.mark.costly(15)
@pytest.mark.parametrize("name", MODELS)
def test_types_and_numbers_are_those_of_the_model_at_each_batch(name: str) -> None:
    model = MODELS[name]()
    imported = from_onnx(model, batch="symbolic")
    for batch in BATCHES:
        fixed, fresh = imported.at_batch(batch), from_onnx(model, batch=batch)
        assert types_of(fixed) == types_of(fresh)
        assert fixed.inputs == fresh.inputs
    random = np.random.default_rng(0)
    values = {
        name: random.standard_normal(shape).astype(dtype)
        if dtype == "float32"
        else random.integers(0, 2, shape).astype(dtype)
        for name, (shape, dtype) in imported.at_batch(3).inputs.items()
    }
    expected = by_onnxruntime(model, values)
    for found, known in zip(outputs(imported.at_batch(3), values), expected, strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-4, atol=1e-4)


def model_of(*nodes: onnx.NodeProto, shape: tuple[int, ...] = (4,), **weights: object) -> object:
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    return make_model(nodes, {"x": ["N", *shape]}, ["y"], arrays)


SIZE = (node("Shape", "x", "sizes"), node("Gather", "sizes zero", "rows", axis=0))

REFUSED = {
    "a mean over the rows": (
        model_of(node("ReduceSum", "x axes", "y", keepdims=1), axes=[0]),
        "sum of 'n_y' .* it mixes the items",
    ),
    "a softmax over the rows": (model_of(node("Softmax", "x", "y", axis=0)), "softmax.*axis 0"),
    "a number made of the batch": (
        model_of(*SIZE, node("Cast", "rows", "f", to=1), node("Div", "x f", "y"), zero=0),
        "divide of 'n_y' .* a number that is made of the batch",
    ),
    "numbered rows": (
        model_of(
            *SIZE,
            node("Range", "zero rows one", "r"),
            node("Cast", "r", "f", to=1),
            node("Unsqueeze", "f axes", "column"),
            node("Add", "x column", "y"),
            zero=0,
            one=1,
            axes=[1],
        ),
        "another constant for each row",
    ),
    "the first four rows": (
        model_of(node("Slice", "x begin end", "y"), begin=[0], end=[4]),
        "strided_slice of 'n_y' .* cuts the rows",
    ),
    "one more row": (
        model_of(node("Concat", "x w", "y", axis=0), w=np.ones((1, 4), "float32")),
        "concatenate of 'n_y' .* an extent of 3 for 2 rows, of 4 for 3",
    ),
    "rows that become columns": (
        model_of(node("Reshape", "x to", "y"), shape=(1, 4), to=[1, -1, 4]),
        "reshape of 'n_y'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_the_batch_otherwise_is_refused_by_name(name: str) -> None:
    model, words = REFUSED[name]
    with pytest.raises(UnsupportedRelayError, match=words):
        from_onnx(model, batch="symbolic")


def test_all_of_the_rows_may_be_sliced() -> None:
    model = model_of(
        node("Slice", "x begin end axes", "y"), begin=[0, 1], end=[2**62, 3], axes=[0, 1]
    )
    imported = from_onnx(model, batch="symbolic")
    assert types_of(imported.at_batch(9))[1] == "Tensor[(9, 2), float32]"


def test_what_is_told_before_anything_is_imported() -> None:
    free = onnx_perceptron()
    with pytest.raises(FrontendError, match="'mlp': no input leaves its first size free"):
        from_onnx(onnx_perceptron(1), batch="symbolic")
    with pytest.raises(FrontendError, match=r"batch=0; expected a number of rows, 1 or more"):
        from_onnx(free, batch=0)
    with pytest.raises(FrontendError, match="whose batch is symbolic"):
        from_onnx(free, batch=2).at_batch(4)
    with pytest.raises(FrontendError, match="batch of 0 rows"):
        from_onnx(free, batch="symbolic").at_batch(0)
    with pytest.raises(FrontendError, match="Squeeze 'n_y' may do another thing for one row"):
        from_onnx(model_of(node("Squeeze", "x", "y"), shape=(1, 4)), batch="symbolic")


def test_other_free_sizes_are_given_with_open_rows() -> None:
    model = make_model([node("Relu", "x", "y")], {"x": ["N", "length"]}, ["y"])
    with pytest.raises(FrontendError, match=r"'x' has other free sizes.*\(-1, \.\.\.\)"):
        from_onnx(model, batch="symbolic")
    imported = from_onnx(model, batch="symbolic", input_shapes={"x": (-1, 7)})
    assert imported.at_batch(4).inputs == {"x": ((4, 7), "float32")}


@pytest.mark.costly(20)
def test_one_import_is_compiled_for_several_batches_and_shared() -> None:
    model = free_rows(gpt_onnx(layers=2, hidden=16, heads=2, tokens=6, vocabulary=11, seed=0))
    imported = from_onnx(model, batch="symbolic")
    cluster = rank_cluster()
    for rows in (1, 4):
        ids = np.random.default_rng(rows).integers(0, 11, (rows, 6))
        (expected,) = by_onnxruntime(model, {"ids": ids})
        with tvm.transform.PassContext(opt_level=3):
            fixed = imported.at_batch(rows)
            placed = heteroplace.HeteroPlace(cluster, params=fixed.params, costs="estimate")(
                fixed.mod
            )
            (found,) = heteroplace.Executor(heteroplace.build(placed)).run(ids=ids)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    for degrees in ("1,2,1,1", "1,1,2,2"):
        with tvm.transform.PassContext(opt_level=3):
            shared = heteroplace.shard(
                imported.mod,
                cluster,
                params=imported.params,
                batch=4,
                degrees=degrees,
                costs="estimate",
            )
            (found,) = heteroplace.Executor(heteroplace.build(shared)).run(ids=ids)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.costly
def test_commands_take_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model, cluster = save_files(tmp_path)
    arguments = ["place", model, "--cluster", cluster, "--costs", "estimate", "--batch", "8"]
    assert main([*arguments, "-o", "solution.json"]) == 0
    assert '"shape": [8, 16]' in " ".join(Path("solution.json").read_text().split())
    capsys.readouterr()
    assert main([*arguments[:-2], "-o", "solution.json"]) == 0
    assert '"shape": [1, 16]' in " ".join(Path("solution.json").read_text().split())
