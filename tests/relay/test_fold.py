"""Constant folding by numpy: equal to TVM's own folding, op by op, and careful about the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relay

from heteroplace.demo.networks import randomly_wired
from heteroplace.relay.tasks import fold
from heteroplace.relay.tasks.fold import (
    ConstantFolder,
    NumpyFoldConstant,
    fold_constants,
    with_numpy_folding,
)
from heteroplace.relay.tasks.fold_ops import EVALUATORS, SHAPE_OPS, transform_layout
from tests.strategies import exact_cases, num_cases

pytestmark = pytest.mark.relay

RNG = np.random.default_rng(7)


def _floats(*shape: int, low: float = 0.5, high: float = 3.0, dtype: str = "float32") -> Any:
    return relay.const(RNG.uniform(low, high, shape).astype(dtype))


def _ints(*shape: int, low: int = -9, high: int = 9, dtype: str = "int64") -> Any:
    values = RNG.integers(low, high, shape).astype(dtype)
    return relay.const(np.where(values == 0, np.array(1, dtype), values), dtype)


def _bools(*shape: int) -> Any:
    return relay.const(RNG.integers(0, 2, shape).astype("bool"))


def _index(*values: int) -> Any:
    return relay.const(np.array(values), "int64")


CASES = {
    "abs": lambda: relay.abs(_ints(3, 4)),
    "add": lambda: relay.add(_floats(3, 1, 4), _floats(5, 1)),
    "all": lambda: relay.all(_bools(3, 4), axis=1),
    "any": lambda: relay.any(_bools(3, 4), axis=[0], keepdims=True),
    "arange": lambda: relay.arange(relay.const(2), relay.const(11), relay.const(3), dtype="int32"),
    "argmax": lambda: relay.argmax(_ints(3, 4, 5), axis=[0, 2], select_last_index=True),
    "argmin": lambda: relay.argmin(_ints(3, 4), axis=1, keepdims=True),
    "broadcast_to": lambda: relay.broadcast_to(_floats(3, 1), (2, 3, 4)),
    "broadcast_to_like": lambda: relay.broadcast_to_like(_floats(3, 1), _floats(2, 3, 4)),
    "cast": lambda: relay.cast(_floats(3, 4, low=-5), "int32"),
    "cast_like": lambda: relay.cast_like(_ints(3), _floats(3, dtype="float16")),
    "ceil": lambda: relay.ceil(_floats(3, low=-2)),
    "clip": lambda: relay.clip(_floats(9), 1.0, 2.0),
    "concatenate": lambda: relay.concatenate([_floats(2, 3), _floats(2, 1)], axis=1),
    "copy": lambda: relay.copy(_floats(2)),
    "divide": lambda: relay.divide(_ints(40), _ints(40)),
    "equal": lambda: relay.equal(_ints(30), _ints(30)),
    "exp": lambda: relay.exp(_floats(3)),
    "expand_dims": lambda: relay.expand_dims(_floats(3, 4), axis=1, num_newaxis=2),
    "floor": lambda: relay.floor(_floats(3, low=-2)),
    "floor_divide": lambda: relay.floor_divide(_ints(40), _ints(40)),
    "floor_mod": lambda: relay.floor_mod(_ints(40), _ints(40)),
    "full": lambda: relay.full(relay.const(np.float32(2.5)), (2, 3), "float32"),
    "full_like": lambda: relay.full_like(_floats(2, 3), relay.const(np.float32(2.5))),
    "gather_nd": lambda: relay.gather_nd(_floats(4, 5), relay.const(np.array([[0, 3], [4, 1]]))),
    "greater": lambda: relay.greater(_floats(9), _floats(9)),
    "greater_equal": lambda: relay.greater_equal(_ints(9), _ints(9)),
    "layout_transform": lambda: relay.layout_transform(_floats(16, 8, 3, 3), "OIHW", "OIHW4i8o"),
    "left_shift": lambda: relay.left_shift(_ints(9), _ints(9, low=0)),
    "less": lambda: relay.less(_floats(9), _floats(9)),
    "less_equal": lambda: relay.less_equal(_ints(9), _ints(9)),
    "log": lambda: relay.log(_floats(3)),
    "logical_and": lambda: relay.logical_and(_bools(9), _bools(9)),
    "logical_not": lambda: relay.logical_not(_bools(9)),
    "logical_or": lambda: relay.logical_or(_bools(9), _bools(9)),
    "max": lambda: relay.max(_floats(3, 4), axis=1, exclude=True),
    "maximum": lambda: relay.maximum(_floats(3, 4), _floats(4)),
    "min": lambda: relay.min(_floats(3, 4)),
    "minimum": lambda: relay.minimum(_floats(3, 4), _floats(4)),
    "mod": lambda: relay.mod(_ints(40), _ints(40)),
    "multiply": lambda: relay.multiply(_floats(3, 4), _floats(4)),
    "negative": lambda: relay.negative(_floats(3)),
    "nn.dense": lambda: relay.nn.dense(relay.const(np.zeros((2, 3), "float32")), _floats(4, 3)),
    "nn.max_pool1d": lambda: relay.nn.max_pool1d(_ints(1, 2, 9), 3, 2, 2),
    "nn.max_pool2d": lambda: relay.nn.max_pool2d(_floats(2, 3, 7, 9), 2, 2, 1, (1, 0, 0, 2)),
    "nn.max_pool3d": lambda: relay.nn.max_pool3d(_floats(1, 1, 4, 4, 4), 2, 2, padding=1),
    "nn.relu": lambda: relay.nn.relu(_floats(9, low=-2)),
    "nn.batch_flatten": lambda: relay.nn.batch_flatten(_floats(2, 3, 4)),
    "not_equal": lambda: relay.not_equal(_ints(30), _ints(30)),
    "ones_like": lambda: relay.ones_like(_floats(2, 3)),
    "power": lambda: relay.power(_floats(3), _floats(3)),
    "prod": lambda: relay.prod(_ints(5, 2, high=3, low=1), axis=0),
    "repeat": lambda: relay.repeat(_floats(2, 3), 2, axis=1),
    "reshape": lambda: relay.reshape(_floats(2, 3, 4), (0, -1)),
    "reshape_like": lambda: relay.reshape_like(_floats(2, 6), _floats(3, 4)),
    "reverse": lambda: relay.reverse(_floats(2, 3), axis=1),
    "right_shift": lambda: relay.right_shift(_ints(9), _ints(9, low=0)),
    "rsqrt": lambda: relay.rsqrt(_floats(5)),
    "scatter_elements": lambda: relay.scatter_elements(_floats(9), _ints(4, low=1), _floats(4)),
    "sigmoid": lambda: relay.sigmoid(_floats(5)),
    "split": lambda: relay.split(_floats(6, 2), (1, 4), axis=0).astuple(),
    "sqrt": lambda: relay.sqrt(_floats(5)),
    "squeeze": lambda: relay.squeeze(_floats(1, 3, 1), axis=[2]),
    "stack": lambda: relay.stack([_floats(2, 3), _floats(2, 3)], axis=1),
    "strided_slice": lambda: relay.strided_slice(_floats(7, 5), [1, -3], [7, 5], [2, 1]),
    "subtract": lambda: relay.subtract(_floats(3), _floats(3)),
    "sum": lambda: relay.sum(_ints(3, 4), axis=1),
    "take": lambda: relay.take(_floats(5, 3), _index(4, 0, 2), axis=0),
    "tanh": lambda: relay.tanh(_floats(5)),
    "tile": lambda: relay.tile(_floats(2, 3), (2, 1)),
    "transpose": lambda: relay.transpose(_floats(2, 3, 4), axes=[2, 0, 1]),
    "trunc_divide": lambda: relay.trunc_divide(_ints(40), _ints(40)),
    "trunc_mod": lambda: relay.trunc_mod(_ints(40), _ints(40)),
    "where": lambda: relay.where(_bools(4), _floats(3, 4), _floats(1)),
    "zeros_like": lambda: relay.zeros_like(_floats(2, 3)),
}

ROUNDED_ALIKE = {"exp", "log", "power", "rsqrt", "sigmoid", "tanh"}
"""Float functions that compiled code rounds differently in the last place."""


def _module(expr: Any) -> tvm.IRModule:
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(expr), expr))


def _numpy_folded(expr: Any) -> Any:
    return fold_constants(_module(expr))["main"].body


def _tvm_folded(expr: Any) -> Any:
    mod = relay.transform.InferType()(_module(expr))
    return relay.transform.FoldConstant()(mod)["main"].body


def _arrays(expr: Any) -> list[Any]:
    parts = list(expr.fields) if isinstance(expr, relay.Tuple) else [expr]
    assert all(isinstance(part, relay.Constant) for part in parts), expr
    return [part.data.numpy() for part in parts]


def test_every_evaluator_has_a_case() -> None:
    assert set(CASES) | {"ones", "zeros"} == set(EVALUATORS)


@pytest.mark.parametrize("name", sorted(CASES))
def test_op_folds_to_what_tvm_computes(name: str) -> None:
    expr = CASES[name]()
    ours, theirs = _arrays(_numpy_folded(expr)), _arrays(_tvm_folded(expr))
    assert len(ours) == len(theirs)
    for mine, tvms in zip(ours, theirs, strict=True):
        assert mine.dtype == tvms.dtype
        assert mine.shape == tvms.shape
        if name in ROUNDED_ALIKE:
            np.testing.assert_allclose(mine, tvms, rtol=1e-6)
        else:
            np.testing.assert_array_equal(mine, tvms)


def _range(dtype: str, *numbers: float) -> Any:
    return relay.arange(*(relay.const(each, dtype) for each in numbers), dtype=dtype)


@pytest.mark.parametrize(
    "expr",
    [
        lambda: _range("float32", 1000, 1100, 0.01),
        lambda: _range("float32", 5, -3, -0.07),
        lambda: _range("float64", 0.1, 57, 0.3),
        lambda: _range("int8", 100, -120, -3),
        lambda: _range("int64", 2**40, 2**40 + 9, 4),
        lambda: relay.clip(_floats(9), 2.0, 1.0),
    ],
)
def test_what_numpy_has_otherwise_has_the_bits_of_tvm(expr: Any) -> None:
    op = expr()
    np.testing.assert_array_equal(_arrays(_numpy_folded(op)), _arrays(_tvm_folded(op)))


def test_ops_without_operands_fold_where_asked() -> None:  # TVM leaves them
    ones = relay.transform.InferType()(_module(relay.ones((1, 3), "int32")))["main"].body
    assert _arrays(ConstantFolder().fold(ones))[0].tolist() == [[1, 1, 1]]
    assert isinstance(_numpy_folded(ones), relay.Call)


@pytest.mark.costly(6)
@exact_cases(8)
@given(
    shape=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_random_expressions_fold_to_what_tvm_computes(
    shape: list[int], seed: int, data: st.DataObject
) -> None:
    generator = np.random.default_rng(seed)
    expr = relay.const(generator.uniform(0.5, 2, shape).astype("float32"))
    for _ in range(data.draw(st.integers(1, 2))):  # TVM compiles every op: 40 ms
        other = relay.const(generator.uniform(0.5, 2, shape[-1:]).astype("float32"))
        step = data.draw(st.sampled_from(["add", "multiply", "divide", "sqrt", "max", "tile"]))
        if step in ("add", "multiply", "divide"):
            expr = getattr(relay, step)(expr, other)
        elif step == "sqrt":
            expr = relay.sqrt(expr)
        elif step == "max":
            expr = relay.max(expr, axis=0, keepdims=True)
        else:
            expr = relay.tile(expr, [2] + [1] * (len(shape) - 1))
    np.testing.assert_allclose(
        _arrays(_numpy_folded(expr))[0], _arrays(_tvm_folded(expr))[0], rtol=1e-6
    )


@num_cases(30)
@given(
    order=st.permutations("OIHW"),
    splits=st.lists(
        st.sampled_from(["2i", "4o", "2o", "4i"]), max_size=2, unique_by=lambda s: s[1]
    ),
)
def test_layouts_round_trip(order: list[str], splits: list[str]) -> None:
    array = np.arange(8 * 4 * 3 * 2).reshape(8, 4, 3, 2)
    layout = "".join(order) + "".join(splits)
    there = transform_layout(array, "OIHW", layout)
    assert there is not None
    back = transform_layout(there, layout, "OIHW")
    assert back is not None
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    ("src", "dst", "shape"),
    [
        ("NCHW", "NCHW4c", (1, 8, 3, 5)),
        ("NCHW4c", "NHWC", (1, 2, 3, 5, 4)),
        ("NCHW8c", "NCHW4c", (1, 2, 3, 5, 8)),
        ("OIHW", "OIHW4i8o", (16, 8, 3, 3)),
        ("OIHW1i8o", "HWOI", (2, 6, 3, 3, 1, 8)),
    ],
)
def test_layout_transform_equals_tvm(src: str, dst: str, shape: tuple[int, ...]) -> None:
    array = RNG.standard_normal(shape).astype("float32")
    expected = _arrays(_tvm_folded(relay.layout_transform(relay.const(array), src, dst)))[0]
    np.testing.assert_array_equal(transform_layout(array, src, dst), expected)


def test_layout_that_needs_padding_is_left_to_tvm() -> None:
    assert transform_layout(np.zeros((1, 6, 2, 2)), "NCHW", "NCHW4c") is None


@pytest.mark.parametrize(
    ("expr", "why"),
    [
        (lambda: relay.cast(relay.const(np.float32(1e20)), "int32"), "cast out of range"),
        (lambda: relay.cast(relay.const(np.float32(2**31)), "int32"), "cast just out of range"),
        (lambda: relay.cast(relay.const(2.0**63, "float64"), "int64"), "cast just out of range"),
        (lambda: relay.sum(_floats(3)), "a float sum depends on its order"),
        (lambda: relay.take(_floats(3), _index(7)), "index out of range"),
        (lambda: _range("float16", 0, 5, 0.3), "rounded once or twice"),
    ],
)
def test_unclear_meaning_is_left_to_tvm(expr: Any, why: str) -> None:
    assert isinstance(_numpy_folded(expr()), relay.Call), why


@pytest.mark.parametrize(("dtype", "name"), [("int64", "shape_of"), ("int32", "ndarray_size")])
def test_static_shape_of_a_variable_folds(dtype: str, name: str) -> None:
    var = relay.var("x", shape=(2, 3))
    assert name in SHAPE_OPS
    folded = _numpy_folded(getattr(relay, name)(var, dtype))
    assert folded.data.dtype == dtype
    assert folded.data.numpy().tolist() == ([2, 3] if name == "shape_of" else 6)


def test_shape_with_unknown_size_stays() -> None:
    var = relay.var("x", shape=(relay.Any(), 3))
    assert isinstance(_numpy_folded(relay.shape_of(var)), relay.Call)


def test_untouched_graph_is_the_same_object() -> None:
    var = relay.var("x", shape=(2, 3))
    function = relay.Function([var], relay.nn.relu(relay.add(var, _floats(3))))
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(function))
    assert ConstantFolder().fold(mod["main"]).same_as(mod["main"])


def test_untouched_part_of_a_folded_graph_is_the_same_object() -> None:
    var = relay.var("x", shape=(3,))
    call = relay.nn.relu(relay.add(var, _floats(3)))
    mod = relay.transform.InferType()(_module(relay.add(call, relay.sqrt(_floats(3)))))
    before = mod["main"].body
    after = ConstantFolder().fold(mod["main"]).body
    assert after.args[0].same_as(before.args[0])
    assert isinstance(after.args[1], relay.Constant)


def test_folding_twice_changes_nothing() -> None:
    var = relay.var("x", shape=(3,))
    once = fold_constants(_module(relay.add(var, relay.sqrt(_floats(3)))))
    assert ConstantFolder().fold(once["main"]).same_as(once["main"])


def test_spans_stay() -> None:
    span = relay.Span(relay.SourceName("layer7"), 0, 0, 0, 0)
    var = relay.var("x", shape=(3,))
    root = relay.Call(relay.op.get("sqrt"), [_floats(3)], None, [], span)
    call = relay.Call(relay.op.get("add"), [var, root], None, [], span)
    body = _numpy_folded(call)
    assert body.span.source_name.name == "layer7"
    assert body.args[1].span.source_name.name == "layer7"


@pytest.mark.costly
def test_graph_of_five_thousand_ops_folds() -> None:
    var = relay.var("x", shape=(1,))
    expr: Any = var
    constant: Any = _floats(1)
    for _ in range(2500):
        constant = relay.add(constant, relay.const(np.ones(1, "float32")))
        expr = relay.add(expr, relay.const(np.ones(1, "float32")))
    body = _numpy_folded(relay.add(expr, constant))
    assert isinstance(body.args[1], relay.Constant)
    assert body.args[1].data.numpy()[0] > 2500


def test_broadcast_beyond_the_limit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MAX_GROWTH_BYTES", 1000)
    assert isinstance(_numpy_folded(relay.broadcast_to(_floats(1), (251,))), relay.Call)
    assert isinstance(_numpy_folded(relay.broadcast_to(_floats(1), (250,))), relay.Constant)


def test_large_weight_still_transposes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MAX_GROWTH_BYTES", 8)
    assert isinstance(_numpy_folded(relay.transpose(_floats(3, 4))), relay.Constant)


def test_primitive_functions_are_left_alone() -> None:
    inner_var = relay.var("y", shape=(3,))
    inner = relay.Function([inner_var], relay.add(inner_var, relay.sqrt(_floats(3))))
    inner = inner.with_attr("Primitive", tvm.tir.IntImm("int32", 1))
    var = relay.var("x", shape=(3,))
    body = _numpy_folded(relay.Call(inner, [var]))
    assert isinstance(body.op.body.args[1], relay.Call)


def test_let_and_if_fold_inside() -> None:
    var, flag, bound = relay.var("x", shape=(3,)), relay.var("f", "bool"), relay.var("b")
    branch = relay.If(flag, relay.add(var, relay.sqrt(_floats(3))), var)
    body = _numpy_folded(relay.Let(bound, branch, relay.add(bound, relay.exp(_floats(3)))))
    assert isinstance(body.value.true_branch.args[1], relay.Constant)
    assert isinstance(body.body.args[1], relay.Constant)


def test_field_of_a_tuple_is_taken_out() -> None:
    var = relay.var("x", shape=(3,))
    body = _numpy_folded(relay.TupleGetItem(relay.Tuple([_floats(2), var]), 1))
    assert isinstance(body, relay.Var)


def test_pass_can_be_named_in_a_pipeline() -> None:
    var = relay.var("x", shape=(3,))
    mod = _module(relay.add(var, relay.sqrt(_floats(3))))
    with tvm.transform.PassContext(opt_level=0):
        folded = tvm.transform.Sequential([NumpyFoldConstant()])(mod)
    assert isinstance(folded["main"].body.args[1], relay.Constant)


def test_numpy_folding_goes_before_every_fold_constant() -> None:
    passes = [relay.transform.FoldScaleAxis(), relay.transform.FoldConstant()]
    scale_axis, numpy_fold, fold_constant = with_numpy_folding(passes)
    assert scale_axis.info.name == "FoldScaleAxis"
    assert scale_axis.info.opt_level == passes[0].info.opt_level
    names = [step.info.name for step in scale_axis.passes]
    assert names[-2:] == ["NumpyFoldConstant", "FoldConstant"]
    assert numpy_fold.info.name == "NumpyFoldConstant"
    assert fold_constant.info.name == "FoldConstant"


def test_nothing_is_left_for_tvm_in_a_network_with_batch_norms() -> None:
    net = randomly_wired("ws", nodes=6, channels=8, size=4)
    bound = relay.build_module.bind_params_by_name(net.mod["main"], net.params)
    simplify = relay.transform.SimplifyInference()
    passes = [simplify, NumpyFoldConstant(), *with_numpy_folding([relay.transform.FoldScaleAxis()])]
    with tvm.transform.PassContext(opt_level=3):
        mod = tvm.transform.Sequential(passes)(tvm.IRModule.from_expr(bound))
        again = relay.transform.FoldConstant()(mod)
    tvm.ir.assert_structural_equal(again, mod)
    names = set()
    relay.analysis.post_order_visit(
        mod["main"], lambda e: names.add(e.op.name) if isinstance(e, relay.Call) else None
    )
    assert names == {"add", "multiply", "nn.conv2d", "nn.relu"}
