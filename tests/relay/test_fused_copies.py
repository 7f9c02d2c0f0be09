"""split_fields, untransposed: copies before FuseOps that become part of what reads them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_models as om
import pytest
import tvm
from relay_models import check_same_bits, cpu_cluster, module, random_inputs, stock_cluster, var
from tvm import relay

import heteroplace as hp
from heteroplace.parts.kernels.rewrites.unpacked import ReadWeightsInPlace
from heteroplace.relay.axes.untransposed import Untransposed
from heteroplace.relay.expressions import is_op_call, post_order
from heteroplace.relay.targets import STOCK_KERNELS
from heteroplace.relay.tasks.extract import extract
from heteroplace.relay.tasks.split_fields import FieldsAsSlices

pytestmark = pytest.mark.relay

HEADS, ROWS, SIZE = 3, 5, 4
SHARES = var("shares", (HEADS, ROWS, ROWS))
VALUES = var("values", (ROWS, HEADS * SIZE))
JOINED = var("joined", (ROWS, 3 * HEADS * SIZE))
TURN = (0, 2, 1)


def typed(params: list[relay.Var], body: relay.Expr) -> tvm.IRModule:
    return relay.transform.InferType()(module(params, body))


def groups(params: list[relay.Var], body: relay.Expr) -> list[str]:
    """The ops of each task, sorted, without those that are views."""
    tasks = extract(typed(params, body)).graph.tasks
    return sorted(task.op for task in tasks if task.op != "reshape")


def of_heads(value: relay.Expr, size: int = SIZE) -> relay.Expr:
    """Rows of all heads -> [heads, rows, size]."""
    return relay.transpose(relay.reshape(value, (ROWS, HEADS, size)), (1, 0, 2))


def product(a: relay.Expr, b: relay.Expr, **transposed: bool) -> relay.Call:
    return relay.nn.batch_matmul(a, b, **transposed)


def flags(params: list[relay.Var], body: relay.Expr) -> list[tuple[bool, bool]]:
    """Of the products in a network, in order, behind the pass."""
    main = Untransposed()(typed(params, body))["main"]
    return [
        (bool(node.attrs.transpose_a), bool(node.attrs.transpose_b))
        for node in post_order(main.body)
        if is_op_call(node, "nn.batch_matmul")
    ]


def columns_of(value: relay.Expr) -> int:
    mod = tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(value), value))
    return int(relay.transform.InferType()(mod)["main"].ret_type.shape[-1])


def test_values_of_an_attention_are_read_as_they_lie() -> None:
    body = product(SHARES, relay.transpose(of_heads(VALUES), TURN))
    assert flags([SHARES, VALUES], body) == [(False, False)]
    assert groups([SHARES, VALUES], body) == ["nn.batch_matmul", "reshape+transpose"]
    check_same_bits(module([SHARES, VALUES], body), Untransposed())


@pytest.mark.parametrize(
    ("between", "is_read"),
    [
        (lambda rows: relay.multiply(rows, relay.const(0.5)), True),
        (lambda rows: relay.add(rows, relay.const(np.ones((1, SIZE), "float32"))), True),
        (lambda rows: relay.squeeze(relay.expand_dims(rows, 0), [0]), True),
        (lambda rows: relay.transpose(rows, TURN), False),
        (lambda rows: relay.reshape(rows, (HEADS, ROWS, SIZE)), True),
    ],
)
def test_what_lies_between_rows_and_their_transpose(
    between: Callable[[relay.Expr], relay.Expr], is_read: bool
) -> None:
    turned = relay.transpose(between(of_heads(VALUES)), TURN)
    operand = var("operand", (HEADS, ROWS, columns_of(turned)))
    assert flags([operand, VALUES], product(operand, turned)) == [(False, not is_read)]
    check_same_bits(module([operand, VALUES], product(operand, turned)), Untransposed())


def test_a_left_matrix_too() -> None:
    body = product(relay.transpose(SHARES, TURN), of_heads(VALUES), transpose_b=False)
    assert flags([SHARES, VALUES], body) == [(True, False)]
    check_same_bits(module([SHARES, VALUES], body), Untransposed())


def test_values_that_a_function_makes_are_read_as_it_returns_them() -> None:
    x = var("x", (HEADS, ROWS, SIZE))
    result = relay.Call(relay.Function([x], relay.tanh(x)), [of_heads(VALUES)])
    assert flags([SHARES, VALUES], product(SHARES, relay.transpose(result, TURN))) == [
        (False, False)
    ]


def test_a_transpose_that_others_read_stays() -> None:
    turned = relay.transpose(of_heads(VALUES), TURN)
    body = relay.Tuple([product(SHARES, turned), relay.tanh(turned)])
    assert flags([SHARES, VALUES], body) == [(False, True)]
    read = relay.Tuple([product(SHARES, turned), turned])
    assert flags([SHARES, VALUES], read) == [(False, True)]


def test_integers_are_multiplied_as_before() -> None:
    a, b = (relay.cast(each, "int32") for each in (SHARES, of_heads(VALUES)))
    body = product(a, relay.transpose(b, TURN), out_dtype="int32")
    assert flags([SHARES, VALUES], body) == [(False, True)]


def test_kernels_of_tvm_get_rows_along_their_sums() -> None:
    mod = typed([SHARES, VALUES], product(SHARES, of_heads(VALUES), transpose_b=False))
    target = tvm.target.Target(f"llvm -keys={STOCK_KERNELS},cpu")
    main = relay.transform.InferType()(ReadWeightsInPlace(target)(mod))["main"]
    assert bool(main.body.attrs.transpose_b)
    assert is_op_call(main.body.args[1], "transpose")


def attention() -> relay.Expr:
    """Of queries, keys and values that one product has made, as ONNX has it."""
    queries, keys, values = relay.split(relay.tanh(JOINED), 3, axis=1)
    turned = relay.transpose(of_heads(keys), TURN)
    scores = product(of_heads(queries), relay.transpose(turned, TURN))
    return product(relay.nn.softmax(scores), relay.transpose(of_heads(values), TURN))


def test_fields_of_a_split_are_fused_with_what_reads_them() -> None:
    copies = ["strided_slice+reshape+transpose"] * 2
    products = ["nn.batch_matmul"] * 2
    keys = "strided_slice+reshape+transpose+transpose+transpose"
    assert groups([JOINED], attention()) == sorted(["tanh", "nn.softmax", *products, *copies, keys])
    check_same_bits(module([JOINED], attention()), FieldsAsSlices())


@pytest.mark.parametrize("cluster", [cpu_cluster(), stock_cluster()], ids=["ours", "of TVM"])
def test_such_an_attention_on_both_makers_kernels(cluster: hp.Cluster) -> None:
    mod = typed([JOINED], attention())
    inputs = random_inputs(mod)
    (expected,) = om.run_tvm(mod, {}, inputs)
    executable = hp.compile(mod, cluster, costs="estimate")
    (result,) = hp.Executor(executable).run(inputs)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_parts_of_several_sizes_and_a_negative_axis() -> None:
    parts = relay.split(JOINED, [1, 7, 30], axis=-1)
    body = relay.Tuple([relay.transpose(part, (1, 0)) for part in parts])
    assert groups([JOINED], body) == ["strided_slice+transpose"] * 4
    check_same_bits(module([JOINED], body), FieldsAsSlices())


@pytest.mark.parametrize(
    "body_of",
    [
        pytest.param(lambda parts: relay.Tuple(list(parts)), id="the network's outputs"),
        pytest.param(lambda parts: relay.nn.dense(*parts), id="a product reads it"),
        pytest.param(
            lambda parts: relay.nn.dense(*(relay.reshape(each, (ROWS, -1)) for each in parts)),
            id="a product reads a view of it",
        ),
        pytest.param(lambda parts: relay.concatenate(list(parts)[::-1], 1), id="joined again"),
        pytest.param(lambda parts: relay.concatenate(parts.astuple(), 1), id="joined as it is"),
        pytest.param(lambda parts: relay.tanh(parts[0]) + relay.sum(parts[1]), id="a sum"),
    ],
)
def test_a_split_whose_fields_cannot_all_be_fused_stays(
    body_of: Callable[[relay.expr.TupleWrapper], relay.Expr],
) -> None:
    mod = typed([JOINED], body_of(relay.split(JOINED, 2, axis=1)))
    assert tvm.ir.structural_equal(FieldsAsSlices()(mod), mod)
