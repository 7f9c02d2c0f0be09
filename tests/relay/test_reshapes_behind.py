"""reshapes_behind: ops behind a reshape of a product are fused with the product."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_models as om
import pytest
import tvm
from relay_models import check_same_bits, cpu_cluster, module, var
from tvm import relay

import heteroplace as hp
from heteroplace.relay.axes.reshapes_behind import ReshapesBehind
from heteroplace.relay.expressions import is_op_call, post_order
from heteroplace.relay.tasks.extract import extract
from heteroplace.relay.tasks.network import cut_network
from zoo.models.catalogue import Model, import_model
from zoo.models.transformers import bert_onnx

pytestmark = pytest.mark.relay

ROWS, DEPTH = 6, 8
WHOLE, FLAT = (1, ROWS, DEPTH), (ROWS, DEPTH)
RANDOM = np.random.default_rng(0)


def weights(*shape: int) -> relay.Constant:
    return relay.const(RANDOM.standard_normal(shape).astype("float32"))


def product(value: relay.Expr, columns: int = DEPTH) -> relay.Call:
    """A dense layer of a value [1, rows, depth], in two dimensions."""
    return relay.nn.dense(relay.reshape(value, (-1, DEPTH)), weights(columns, DEPTH))


def in_three(value: relay.Expr) -> relay.Call:
    return relay.reshape(value, (1, ROWS, -1))


def groups(params: list[relay.Var], body: relay.Expr) -> list[str]:
    """The ops of each task, sorted, without those that are views."""
    typed = relay.transform.InferType()(module(params, body))
    return sorted(task.op for task in extract(typed).graph.tasks if task.op != "reshape")


def is_unchanged(params: list[relay.Var], body: relay.Expr) -> bool:
    typed = relay.transform.InferType()(module(params, body))
    return bool(tvm.ir.structural_equal(ReshapesBehind()(typed), typed))


def check_values(params: list[relay.Var], body: relay.Expr) -> None:
    check_same_bits(module(params, body), ReshapesBehind())


X = var("x", WHOLE)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        (relay.tanh, "tanh"),
        (lambda value: relay.cast(value, "float16"), "cast"),
        (lambda value: relay.clip(value, -1.0, 1.0), "clip"),
        (lambda value: relay.add(value, relay.const(2.0)), "add"),
        (lambda value: relay.multiply(weights(1, 1, 1), value), "multiply"),
        (lambda value: relay.add(weights(DEPTH), value), "add"),
        (lambda value: relay.add(value, weights(1, 1, DEPTH)), "add"),
        (lambda value: relay.nn.bias_add(value, weights(DEPTH), axis=-1), "nn.bias_add"),
        (lambda value: relay.nn.bias_add(value, weights(DEPTH), axis=2), "nn.bias_add"),
        (lambda value: relay.add(value, X), "add"),
        (lambda value: relay.subtract(relay.tanh(X), value), "subtract"),
    ],
)
def test_an_op_behind_a_reshape_is_fused_with_the_product(op, name: str) -> None:  # type: ignore[no-untyped-def]
    body = op(in_three(product(X)))
    assert f"nn.dense+{name}" in groups([X], body)
    check_values([X], body)


def test_the_product_may_be_a_matmul_of_several_batches() -> None:
    x = var("x", (2, 3, DEPTH))
    flat = relay.nn.matmul(relay.reshape(x, FLAT), weights(DEPTH, DEPTH))
    body = relay.tanh(relay.reshape(flat, (2, 3, DEPTH)))
    assert groups([x], body) == ["nn.matmul+tanh"]
    check_values([x], body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(relay.tanh(relay.reshape(product(X), (ROWS, 2, 4))), id="last axis splits"),
        pytest.param(relay.tanh(relay.reshape(product(X), (1, ROWS * DEPTH))), id="axes join"),
        pytest.param(relay.add(in_three(product(X)), weights(1, ROWS, 1)), id="one for each row"),
        pytest.param(relay.add(in_three(product(X)), weights(3, 1, 1)), id="result is larger"),
        pytest.param(relay.add(in_three(product(X)), weights(*WHOLE)), id="constant of all rows"),
        pytest.param(relay.mean(in_three(product(X)), axis=-1), id="sum"),
        pytest.param(relay.tanh(relay.transpose(in_three(product(X)), (0, 2, 1))), id="transpose"),
        pytest.param(in_three(relay.tanh(product(X))), id="fused already"),
        pytest.param(relay.tanh(relay.reshape(X, FLAT)), id="no product"),
        pytest.param(relay.tanh(product(X)), id="no reshape"),
    ],
)
def test_what_no_product_gains_from_stays(body: relay.Expr) -> None:
    assert is_unchanged([X], body)


def test_an_op_stays_where_the_product_is_read_otherwise_too() -> None:
    inner = in_three(product(X))
    assert is_unchanged([X], relay.Tuple([relay.tanh(inner), inner]))
    assert is_unchanged([X], relay.Tuple([relay.tanh(inner), relay.mean(inner, axis=-1)]))
    assert is_unchanged([X], relay.nn.batch_matmul(relay.tanh(inner), inner))


def test_a_weight_that_no_input_reaches_is_not_taken_for_rows() -> None:
    weight = var("w", WHOLE)
    assert is_unchanged([X, weight], relay.add(in_three(product(X)), weight))


def test_several_readers_of_one_reshape_compute_nothing_twice() -> None:
    inner = in_three(product(X))
    gated = relay.multiply(inner, relay.sigmoid(inner))
    body = relay.multiply(gated, in_three(product(X)))
    last = relay.nn.dense(relay.reshape(body, FLAT), weights(4, DEPTH))
    assert groups([X], last) == ["nn.dense", "nn.dense", "nn.dense+sigmoid+multiply+multiply"]
    check_values([X], last)


def test_a_chain_of_residuals_is_one_task_for_each_product() -> None:
    value: relay.Expr = X
    for _ in range(3):
        value = relay.add(in_three(product(value)), value)
    body = relay.sum(value, axis=[-1])
    counts = Counter(groups([X], body))
    assert counts["nn.dense+add"] == 3
    check_values([X], body)
    mod = relay.transform.InferType()(module([X], body))
    after = post_order(ReshapesBehind()(mod)["main"].body)
    reshapes = [each for each in after if is_op_call(each, "reshape")]
    # Of the input, once for its two readers, and of the last sum.
    assert len(reshapes) == 2


def small_bert() -> Model:
    sizes = {"layers": 2, "hidden": 16, "heads": 2, "tokens": 6, "vocabulary": 11}
    bounds = {"ids": 11, "kinds": 2, "mask": 2}
    return import_model("bert", bert_onnx(**sizes, seed=0), bounds=bounds)


@pytest.mark.costly(4)
def test_a_bert_computes_what_onnxruntime_computes() -> None:
    model = small_bert()
    assert model.onnx_model is not None
    executable = hp.compile(model.onnx_model, cpu_cluster(), costs="estimate", verify="off")
    assert any(task.op == "nn.dense+add+add" for task in executable.solution.graph.tasks)
    actual = hp.Executor(executable).run(model.inputs)
    expected = om.run_onnxruntime(model.onnx_model, model.inputs)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


def test_layers_of_a_bert_have_no_pass_over_memory_behind_a_product() -> None:
    model = small_bert()
    with tvm.transform.PassContext(opt_level=3):
        graph = cut_network(model.mod, model.params).graph
    counts = Counter(task.op for task in graph.tasks)
    assert counts["nn.dense+add+divide+erf+add+multiply+multiply"] == 2
    assert counts["nn.dense+add+add"] == 4
    assert not any(op.startswith(("reshape+add", "reshape+divide+erf")) for op in counts)
    assert sum(counts.values()) == 53
