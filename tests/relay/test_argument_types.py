"""Arguments of wrong types, and weights that are not those of a module, end in typed errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm import relay

import heteroplace as hp
from heteroplace.errors import (
    ArtifactError,
    ClusterError,
    ExecutionError,
    FrontendError,
    LoweringError,
    SolverError,
)
from heteroplace.lower.artifact import write_artifact
from heteroplace.relay.parameters import bound_main

pytestmark = pytest.mark.relay
WEIGHT = np.ones((4, 3), "float32")


def dense() -> tvm.IRModule:
    x, w = relay.var("x", shape=(2, 3)), relay.var("w", shape=(4, 3))
    return tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.dense(x, w)))


def placing(**options: Any) -> tvm.IRModule:
    cluster = hp.local_cluster(has_gpus=False)
    return hp.HeteroPlace(cluster, solver="heft", store="off", **options)(dense())


def from_onnx(model: Any = "m.onnx", **options: Any) -> Any:
    return hp.frontend.from_onnx(model, **options)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: hp.build(1), LoweringError, "mod is 1, of type int; expected a Relay module"),
        (lambda: hp.build(None, "local"), LoweringError, "mod is None; expected a Relay module"),
        (lambda: hp.build("m.onnx"), LoweringError, "from_onnx"),
        (lambda: hp.build(dense()["main"]), LoweringError, "IRModule.from_expr(function)"),
        (lambda: hp.build(onnx.ModelProto()), LoweringError, "mod is of type ModelProto"),
        (lambda: hp.build(tvm.IRModule()), LoweringError, "no function 'main'"),
        (lambda: hp.build(dense(), 1), ClusterError, "cluster is 1, of type int; expected a Clu"),
        (lambda: hp.HeteroPlace({}), ClusterError, "cluster is of type dict"),
        (lambda: hp.HeteroPlace(None), ClusterError, "cluster is None"),
        (lambda: placing(progress=1), SolverError, "progress is 1; expected a function"),
        (lambda: hp.load(1), ExecutionError, "path is 1, of type int; expected the path"),
        (lambda: hp.load("m.so", hosts=1), ExecutionError, "hosts is 1"),
        (lambda: hp.load("m.so", trusted_keys="k"), ExecutionError, "is 'k', one text; expected"),
        (lambda: hp.load("m.so", trusted_keys=[1]), ExecutionError, "trusted_keys[0] is 1"),
        (lambda: hp.load("m.so", max_in_flight="2"), ExecutionError, "max_in_flight is '2'"),
        (lambda: hp.load("m.so", helping="on"), ExecutionError, "helping is 'on'"),
        (lambda: hp.Executor(1), ExecutionError, "path is 1"),
        (lambda: from_onnx(1), FrontendError, "path_or_model is 1, of type int"),
        (lambda: from_onnx(b"\x08"), FrontendError, "onnx.load_from_string"),
        (lambda: from_onnx(input_shapes=[1]), FrontendError, "input_shapes is of type list"),
        (lambda: from_onnx(input_shapes={"x": 2}), FrontendError, "input_shapes['x'] is 2"),
        (lambda: from_onnx(input_shapes={"x": "ab"}), FrontendError, "is 'ab', one text"),
        (lambda: from_onnx(input_shapes={"x": (2.5,)}), FrontendError, "['x'][0] is 2.5"),
        (lambda: from_onnx(input_values=1), FrontendError, "input_values is 1"),
        (lambda: from_onnx(batch=1.5), FrontendError, "batch is 1.5"),
        (lambda: hp.load_cluster(1), ClusterError, "cluster is 1"),
        (lambda: hp.save_cluster(1, "c.json"), ClusterError, "cluster is 1"),
        (lambda: hp.local_cluster(1), ClusterError, "cores is 1"),
        (lambda: hp.local_cluster("0"), ClusterError, "cores is '0', one text"),
        (lambda: relay.transform.Shard(1, batch=4), ClusterError, "cluster is 1"),
        (lambda: hp.shard(1, "local", batch=4), LoweringError, "mod is 1"),
        (lambda: hp.shard(dense(), "local", batch=4, params=1), LoweringError, "params is 1"),
        (lambda: hp.tune(1, "local"), LoweringError, "mod is 1"),
        (lambda: hp.tune(dense(), "local", store=1), SolverError, "store is 1"),
    ],
)
def test_an_argument_of_a_wrong_type_says_what_is_expected(
    call: Callable[[], object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert says in str(caught.value) and "expected" in str(caught.value)


PARAMS = [
    ({"w": WEIGHT.astype("float64")}, "params['w'] has dtype float64, expected float32; give arr"),
    ({"w": WEIGHT.astype("int32")}, "params['w'] has dtype int32, expected float32"),
    ({"w": WEIGHT.astype(">f4")}, "params['w'] has dtype >f4, expected float32"),
    ({"w": np.full((4, 3), object())}, "params['w'] has dtype object"),
    ({"w": np.ones((5, 3), "float32")}, "params['w'] has shape [5, 3], expected [4, 3]"),
    ({"w": np.ones(12, "float32")}, "params['w'] has shape [12], expected [4, 3]"),
    ({"w": tvm.nd.array(np.ones((1, 3), "float32"))}, "params['w'] has shape [1, 3]"),
    ({"w": [[1.0] * 3] * 4}, "params['w'] is of type list; expected an array"),
    ({"w": None}, "params['w'] is of type NoneType"),
    ({0: WEIGHT}, "a key of params is 0, of type int"),
    ([WEIGHT], "params is of type list; expected weights by the names"),
    (WEIGHT, "params is of type ndarray"),
]


@pytest.mark.parametrize(("params", "says"), PARAMS)
def test_weights_of_another_type_or_shape_are_refused(params: Any, says: str) -> None:
    with pytest.raises(LoweringError) as caught:
        bound_main(dense(), params)
    assert says in str(caught.value)


@pytest.mark.parametrize("params", [PARAMS[0][0], PARAMS[4][0], PARAMS[10][0]])
def test_all_that_takes_weights_checks_them(params: Any) -> None:
    placed: list[Callable[[], object]] = [
        lambda: placing(params=params),
        lambda: hp.build(dense(), "local", params),
        lambda: hp.shard(dense(), "local", batch=4, params=params),
        lambda: hp.tune(dense(), "local", params),
    ]
    for call in placed:
        with pytest.raises(LoweringError, match=r"params(\['w'\])? "):
            call()


def test_weights_in_any_layout_and_of_open_sizes_are_bound() -> None:
    bound_main(dense(), {"w": np.ones((3, 4), "float32").T, "other": None})
    wide = np.array([2**40 + 1], "int64")
    x = relay.var("x", shape=(1,), dtype="int64")
    kept = bound_main(tvm.IRModule.from_expr(relay.Function([x], x)), {"x": wide}).body.data
    assert kept.dtype == "int64" and kept.numpy() == wide
    x = relay.var("x", shape=(relay.Any(), 3))
    bound_main(tvm.IRModule.from_expr(relay.Function([x], x)), {"x": np.ones((7, 3), "float32")})


def test_a_file_to_write_is_named_by_a_path() -> None:

    for path in (None, 1.5):
        with pytest.raises(ArtifactError, match=r"path is (None|1\.5).* expected the name of"):
            write_artifact(path, b"", None, None)
