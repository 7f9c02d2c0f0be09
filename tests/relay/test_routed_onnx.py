"""ONNX files that route: imported, made routers, and equal to onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
from numpy_relay import run_by_numpy
from onnx import TensorProto, helper, numpy_helper
from relay_models import cpu_cluster
from tvm import relay, transform

import heteroplace as hp
from benchmarks.conformance.worker import turn_by_turn
from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.onnx.prepare.onnx_operands import inputs_read_at_import
from heteroplace.parts.routing.find.find_routers import FoundRouters, find_routers

pytestmark = pytest.mark.relay

_RNG = np.random.default_rng(2)
ROWS, WIDTH, EXPERTS = 6, 4, 3


@pytest.fixture(
    params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "simplified"]
)
def simplify(request: pytest.FixtureRequest) -> bool:
    """Whether onnxruntime simplifies the model before."""
    return bool(request.param)


def check(
    model: onnx.ModelProto, cases: Sequence[Mapping[str, Any]], simplify: bool = False
) -> FoundRouters:
    """Compare the network with routers with onnxruntime; return what was found."""
    imported = from_onnx(model, simplify=simplify)
    result = find_routers(imported.bind_params(), imported.inputs)
    for given in cases:
        expected = om.run_onnxruntime(model, dict(given))
        with np.errstate(all="ignore"):
            found = run_by_numpy(result.mod, given)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    return result


# --- If -------------------------------------------------------------------------------------------


def body(name: str, nodes: Sequence[onnx.NodeProto], outputs: Mapping[str, Sequence[int]],
         weights: Mapping[str, Any] | None = None) -> onnx.GraphProto:  # fmt: skip
    infos = [helper.make_tensor_value_info(o, TensorProto.FLOAT, s) for o, s in outputs.items()]
    tensors = [numpy_helper.from_array(value, key) for key, value in (weights or {}).items()]
    return helper.make_graph(nodes, name, [], infos, tensors)


def with_conditions(model: onnx.ModelProto, names: str) -> onnx.ModelProto:
    for name in names:
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.BOOL, []))
    return model


def nested() -> onnx.ModelProto:
    """Branches with weights, several results, and values captured from all around them."""
    inner = {
        branch: body(branch, [om.node(op, "h x", f"{branch}_z")], {f"{branch}_z": [4]})
        for branch, op in (("then_branch", "Add"), ("else_branch", "Mul"))
    }
    then = body(
        "then",
        [
            om.node("Relu", "x", "h"),
            om.node("If", "d", "p", **inner),
            om.node("Add", "p w", "q"),
        ],
        {"p": [4], "q": [4]},
        {"w": np.arange(4, dtype="f")},
    )
    otherwise = body(
        "else",
        [om.node("Mul", "x w", "p"), om.node("Identity", "x", "q")],
        {"p": [4], "q": [4]},
        {"w": np.full(4, 3, "f")},
    )
    nodes = [
        om.node("If", "c", "y z", then_branch=then, else_branch=otherwise),
        om.node("Sub", "y z", "out"),
    ]
    return with_conditions(om.make_model(nodes, {"x": [4]}, ["out", "z"]), "cd")


def test_nested_branches_with_captures_equal_onnxruntime(simplify: bool) -> None:
    cases = [
        {"x": np.array([-1, 2, -3, 4], "f"), "c": np.array(c), "d": np.array(d)}
        for c in (True, False)
        for d in (True, False)
    ]
    assert len(check(nested(), cases, simplify).found) == 2


def test_nodes_around_that_only_a_branch_reads_belong_to_it() -> None:
    then = body("then", [om.node("Neg", "h", "p")], {"p": [4]})
    otherwise = body("else", [om.node("Neg", "x", "p")], {"p": [4]})
    nodes = [
        om.node("Exp", "x", "h"),
        om.node("If", "c", "y", then_branch=then, else_branch=otherwise),
    ]
    model = with_conditions(om.make_model(nodes, {"x": [4]}, ["y"]), "c")
    cases = [{"x": np.array([1, 2, 3, 4], "f"), "c": np.array(c)} for c in (True, False)]
    (line,) = check(model, cases).found
    assert "2 branches of 2, 1 ops" in line


def test_a_condition_in_the_run_needs_no_value_at_import() -> None:
    assert inputs_read_at_import(nested()) == ()
    report = from_onnx(nested(), simplify=False).report
    assert "2 If(s) choose in the run" in report


def test_a_condition_that_is_computed_may_have_one_element_of_any_type() -> None:
    then = body("then", [om.node("Neg", "x", "p")], {"p": [4]})
    otherwise = body("else", [om.node("Identity", "x", "p")], {"p": [4]})
    nodes = [
        om.node("ReduceSum", "x", "sum", keepdims=1),
        om.node("Cast", "sum", "c", to=TensorProto.BOOL),
        om.node("If", "c", "y", then_branch=then, else_branch=otherwise),
    ]
    model = om.make_model(nodes, {"x": [4]}, ["y"])
    check(model, [{"x": np.zeros(4, "f")}, {"x": np.ones(4, "f")}])


def test_weights_of_branches_are_parameters() -> None:
    weights = {"w": _RNG.standard_normal((32, 4)).astype("f")}
    then = body("then", [om.node("MatMul", "w x", "p")], {"p": [32]}, weights)
    otherwise = body("else", [om.node("Concat", "x x x x x x x x", "p", axis=0)], {"p": [32]})
    nodes = [om.node("If", "c", "y", then_branch=then, else_branch=otherwise)]
    model = with_conditions(om.make_model(nodes, {"x": [4]}, ["y"]), "c")
    imported = from_onnx(model, simplify=False)
    assert [value.shape for value in imported.params.values()] == [(32, 4)]


def test_branches_of_unlike_sizes_are_refused_by_name() -> None:
    then = body("then", [om.node("Concat", "x x", "p", axis=0)], {"p": [8]})
    otherwise = body("else", [om.node("Identity", "x", "p")], {"p": [4]})
    nodes = [om.node("If", "c", "y", then_branch=then, else_branch=otherwise)]
    model = with_conditions(om.make_model(nodes, {"x": [4]}, ["y"]), "c")
    with pytest.raises(FrontendError, match=r"'n_y'.* of one branch and .* of the other"):
        from_onnx(model, simplify=False)


def test_a_loop_of_computed_length_stays_refused_by_name() -> None:
    loop_body = helper.make_graph(
        [om.node("Identity", "go", "go_on"), om.node("Add", "state x", "new")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("new", TensorProto.FLOAT, [4]),
        ],
    )
    nodes = [
        om.node("ReduceSum", "x", "sum", keepdims=0),
        om.node("Cast", "sum", "count", to=TensorProto.INT64),
        om.node("Loop", "count true x", "y", body=loop_body),
    ]
    model = om.make_model(nodes, {"x": [4]}, ["y"], {"true": np.array(True)})
    with pytest.raises(FrontendError, match="Loop 'n_y': only dataflow"):
        from_onnx(model, simplify=False)


# --- masks, gates and positions -------------------------------------------------------------------


def expert_nodes(index: int, x: str = "x") -> tuple[list[onnx.NodeProto], dict[str, Any], str]:
    nodes = [
        om.node("MatMul", f"{x} w{index}", f"a{index}"),
        om.node("Add", f"a{index} b{index}", f"h{index}"),
        om.node("Relu", f"h{index}", f"r{index}"),
        om.node("MatMul", f"r{index} v{index}", f"e{index}"),
    ]
    weights = {
        f"w{index}": _RNG.standard_normal((WIDTH, 8)).astype("f"),
        f"b{index}": _RNG.standard_normal(8).astype("f"),
        f"v{index}": _RNG.standard_normal((8, WIDTH)).astype("f"),
    }
    return nodes, weights, f"e{index}"


def rows() -> list[dict[str, np.ndarray]]:
    return [
        {
            "x": _RNG.standard_normal((ROWS, WIDTH)).astype("f"),
            "s": _RNG.standard_normal((ROWS, EXPERTS)).astype("f"),
        }
        for _ in range(3)
    ]


INPUTS = {"x": [ROWS, WIDTH], "s": [ROWS, EXPERTS]}


def test_where_over_cells_equals_onnxruntime(simplify: bool) -> None:
    nodes, weights, result = expert_nodes(0)
    nodes += [
        om.node("ReduceSum", "s axes", "sum", keepdims=1),
        om.node("Greater", "sum zero", "c"),
        om.node("Where", f"c {result} x", "y"),
    ]
    weights |= {"axes": np.array([1]), "zero": np.array(0, "f")}
    assert len(check(om.make_model(nodes, INPUTS, ["y"], weights), rows(), simplify).found) == 1


def test_masked_experts_by_one_hot_equal_onnxruntime(simplify: bool) -> None:
    nodes = [
        om.node("Softmax", "s", "p", axis=1),
        om.node("ArgMax", "p", "best", axis=1, keepdims=0),
        om.node("OneHot", "best depth values", "hot"),
        om.node("Mul", "hot p", "gates"),
        om.node("Split", "gates", "g0 g1 g2", axis=1),
    ]
    weights: dict[str, Any] = {"depth": np.array(EXPERTS), "values": np.array([0, 1], "f")}
    total = "x"
    for index in range(EXPERTS):
        more, tensors, result = expert_nodes(index)
        nodes += [*more, om.node("Mul", f"{result} g{index}", f"t{index}"),
                  om.node("Add", f"{total} t{index}", f"y{index}")]  # fmt: skip
        total, weights = f"y{index}", weights | tensors
    (line,) = check(om.make_model(nodes, INPUTS, [total], weights), rows(), simplify).found
    assert "3 branches" in line and "at most 1 for each cell" in line


def test_masked_experts_by_top_k_and_scatter_equal_onnxruntime(simplify: bool) -> None:
    nodes = [
        om.node("Softmax", "s", "p", axis=1),
        om.node("TopK", "p k", "best where", axis=1),
        om.node("ReduceSum", "best axes", "sum", keepdims=1),
        om.node("Div", "best sum", "normed"),
        om.node("ScatterElements", "zeros where normed", "gates", axis=1),
        om.node("Unsqueeze", "gates last", "gates3"),
    ]
    weights: dict[str, Any] = {
        "k": np.array([2]),
        "axes": np.array([1]),
        "last": np.array([2]),
        "zeros": np.zeros((ROWS, EXPERTS), "f"),
    }
    for index in range(EXPERTS):
        more, tensors, result = expert_nodes(index)
        nodes += [*more, om.node("Unsqueeze", f"{result} axes", f"u{index}")]
        weights |= tensors
    nodes += [
        om.node("Concat", "u0 u1 u2", "all", axis=1),
        om.node("Mul", "all gates3", "weighted"),
        om.node("ReduceSum", "weighted axes", "y", keepdims=0),
    ]
    (line,) = check(om.make_model(nodes, INPUTS, ["y"], weights), rows(), simplify).found
    assert "at most 2 for each cell" in line


def by_positions(kind: str) -> onnx.ModelProto:
    """y[p] = f(x[p]), or y[p] += f(x[p]) * g[p], at the positions p of each expert's rows."""
    nodes = [om.node("ArgMax", "s", "best", axis=1, keepdims=0)]
    weights: dict[str, Any] = {
        "first": np.array(0),
        "axes0": np.array([0]),
        "axes1": np.array([1]),
        "zeros": np.zeros((ROWS, WIDTH), "f"),
        "column": np.array([-1, 1]),
    }
    total = "x" if kind == "set" else "zeros"
    for index in range(EXPERTS):
        more, tensors, result = expert_nodes(index, f"x{index}")
        weights |= tensors | {f"id{index}": np.array(index)}
        nodes += [
            om.node("Equal", f"best id{index}", f"is{index}"),
            om.node("NonZero", f"is{index}", f"nz{index}"),
        ]
        if kind == "nd":
            nodes += [
                om.node("Transpose", f"nz{index}", f"at{index}"),
                om.node("GatherND", f"x at{index}", f"x{index}"),
            ]
        else:
            squeeze = om.node("Squeeze", f"nz{index} axes0", f"p{index}")
            first = om.node("Gather", f"nz{index} first", f"p{index}", axis=0)
            nodes += [
                squeeze if index else first,
                om.node("Gather", f"x p{index}", f"x{index}", axis=0),
                om.node("Reshape", f"p{index} column", f"at{index}"),
            ]
        nodes += more
        way = {} if kind == "set" else {"reduction": "add"}
        nodes.append(om.node("ScatterND", f"{total} at{index} {result}", f"y{index}", **way))
        total = f"y{index}"
    return om.make_model(nodes, INPUTS, [total], weights, 16)


@pytest.mark.parametrize(
    "kind", ["set", *(pytest.param(kind, marks=pytest.mark.costly) for kind in ("add", "nd"))]
)
def test_rows_by_position_equal_onnxruntime(kind: str, simplify: bool) -> None:
    (line,) = check(by_positions(kind), rows(), simplify).found
    assert "3 branches" in line and "at most 1 for each cell" in line
    report = from_onnx(by_positions(kind), simplify=False).report
    assert sum("by mask" in each for each in report) == EXPERTS


def test_scattered_elements_of_whole_rows_equal_onnxruntime(simplify: bool) -> None:
    nodes, weights, result = expert_nodes(0, "x0")
    nodes = [
        om.node("ReduceMax", "s", "top", axes=[1], keepdims=0),
        om.node("Greater", "top zero", "c"),
        om.node("NonZero", "c", "nz"),
        om.node("Squeeze", "nz axes0", "p"),
        om.node("Gather", "x p", "x0"),
        *nodes,
        om.node("Unsqueeze", "p axes1", "u"),
        om.node("Shape", result, "size"),
        om.node("Expand", "u size", "at"),
        om.node("ScatterElements", f"x at {result}", "y", axis=0),
    ]
    weights |= {"zero": np.array(0, "f"), "axes0": np.array([0]), "axes1": np.array([1])}
    assert len(check(om.make_model(nodes, INPUTS, ["y"], weights, 16), rows(), simplify).found) == 1


NEAR: dict[str, tuple[list[onnx.NodeProto], str]] = {
    "a softmax over the rows": ([om.node("Softmax", "x0", "e", axis=0)], "works along the rows"),
    "a sum over the rows": ([om.node("ReduceSum", "x0 axes0", "e", keepdims=1)], "may mix rows"),
    "another number for each row": ([om.node("Add", "x0 x", "e")], "another for each row"),
    "rows by rows": (
        [om.node("Transpose", "x0", "t"), om.node("MatMul", "x0 t", "m"),
         om.node("MatMul", "m x0", "e")],
        "moves the rows",
    ),
    "a norm of the batch": (
        [om.node("BatchNormalization", "x0 ones ones ones ones", "e m v", training_mode=1)],
        "works along the rows",
    ),
    "joined rows": ([om.node("Reshape", "x0 flat", "e")], "cuts or joins the rows"),
    "the positions themselves": (
        [om.node("Cast", "p", "f", to=TensorProto.FLOAT), om.node("Reshape", "f column", "g"),
         om.node("Mul", "x0 g", "e")],
        "reads the positions|may be another",
    ),
    "an output": ([om.node("Relu", "x0", "out2"), om.node("Relu", "x0", "e")], "an output"),
}  # fmt: skip


@pytest.mark.costly
@pytest.mark.parametrize("name", NEAR)
def test_positions_of_what_is_no_dispatch_stay_refused_with_the_reason(name: str) -> None:
    inner, reason = NEAR[name]
    nodes = [
        om.node("ReduceMax", "s", "top", axes=[1], keepdims=0),
        om.node("Greater", "top zero", "c"),
        om.node("NonZero", "c", "nz"),
        om.node("Squeeze", "nz axes0", "p"),
        om.node("Gather", "x p", "x0"),
        *inner,
        om.node("Unsqueeze", "p axes1", "at"),
        om.node("ScatterND", "x at e", "y"),
    ]
    weights = {
        "zero": np.array(0, "f"), "axes0": np.array([0]), "axes1": np.array([1]),
        "flat": np.array([-1, 2 * WIDTH]), "column": np.array([-1, 1]), "ones": np.ones(WIDTH, "f"),
    }  # fmt: skip
    outputs = ["y", "out2"] if name == "an output" else ["y"]
    model = om.make_model(nodes, INPUTS, outputs, weights, 16)
    with pytest.raises(FrontendError, match=r"NonZero 'n_nz'.*no dispatch of rows") as caught:
        from_onnx(model, simplify=False)
    assert any(each in str(caught.value) for each in reason.split("|")), caught.value


# --- through the whole pipeline -------------------------------------------------------------------


@pytest.mark.costly
def test_an_if_runs_in_a_placed_program() -> None:
    model = nested()
    imported = from_onnx(model)
    place = relay.transform.HeteroPlace(
        cpu_cluster(), params=imported.params, costs=turn_by_turn, solver="heft"
    )
    with transform.PassContext(opt_level=3):
        executor = hp.Executor(hp.build(place(imported.mod)))
    for c in (True, False):
        given = {"x": np.array([-1, 2, -3, 4], "f"), "c": np.array(c), "d": np.array(True)}
        expected = om.run_onnxruntime(model, given)
        for one, other in zip(executor.run(**given), expected, strict=True):
            np.testing.assert_array_equal(one, other)
