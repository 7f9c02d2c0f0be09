"""shard_module: the shards of a module compute together what the module does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from numpy_relay import run_by_numpy
from relay_models import conv, module, random_inputs, var, weights
from test_rebatch import outputs
from tvm import relay

from heteroplace.errors import ShardingError, UnsupportedRelayError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.parallel.shard.labels import LABELS, Labels
from heteroplace.parts.parallel.shard.module import ShardedModule, shard_module
from heteroplace.parts.parallel.shard.sharded_network import Node
from heteroplace.relay.expressions import post_order
from heteroplace.relay.shard_spans import tag_of
from zoo.models.transformers import bert_onnx, gpt_onnx

ALL_REDUCE, ALL_GATHER = "heteroplace.all_reduce", "heteroplace.all_gather"
_TOLERANCE = 1e-5
"""Of the largest output."""


def check_equal(expected: list[np.ndarray], found: list[np.ndarray]) -> None:
    for whole, shared in zip(expected, found, strict=True):
        np.testing.assert_allclose(shared, whole, rtol=0, atol=_TOLERANCE * np.abs(whole).max())


def check_by_numpy(mod: tvm.IRModule, tensor: int, **options: object) -> ShardedModule:
    """Shard a module and compare the numbers."""
    sharded = shard_module(mod, tensor=tensor, **options)  # type: ignore[arg-type]
    inputs = random_inputs(mod)
    check_equal(run_by_numpy(mod, inputs), run_by_numpy(sharded.mod, inputs))
    return sharded


def weight_elements(mod: tvm.IRModule, shard: int, least_rank: int = 2) -> int:
    """Elements of the constants that the calls of a shard read."""
    found = {
        argument
        for node in post_order(mod["main"].body)
        if isinstance(node, relay.Call) and (tag := tag_of(node)) is not None and tag.shard == shard
        for argument in node.args
        if isinstance(argument, relay.Constant)
    }
    return sum(
        constant.data.numpy().size for constant in found if len(constant.data.shape) >= least_rank
    )


def mlp(layers: int, width: int = 8, rows: int = 3) -> tvm.IRModule:
    value = data = var("x", (rows, width))
    for layer in range(layers):
        value = relay.nn.dense(value, weights(width, width, seed=layer))
        value = relay.nn.relu(relay.nn.bias_add(value, weights(width, seed=layer)))
    return module([data], value)


def attention(heads: int, depth: int = 4, tokens: int = 3) -> tvm.IRModule:
    """One product for queries, keys and values, as in GPT-2, and a causal mask."""
    width = heads * depth
    data = var("x", (tokens, width))
    joined = relay.nn.dense(data, weights(3 * width, width))
    parts = relay.split(joined, 3, axis=1)
    query, key, value = (
        relay.transpose(relay.reshape(part, (tokens, heads, depth)), (1, 0, 2)) for part in parts
    )
    scores = relay.nn.batch_matmul(query, key)
    masked = relay.add(scores, relay.const(np.triu(np.full((1, tokens, tokens), -9.0, "float32"))))
    mixed = relay.nn.batch_matmul(relay.nn.softmax(masked), value, transpose_b=False)
    back = relay.reshape(relay.transpose(mixed, (1, 0, 2)), (tokens, width))
    out = relay.nn.dense(back, weights(width, width, seed=1))
    return module([data], relay.add(out, data))


@pytest.mark.parametrize("tensor", [2, 4])
@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_mlp_has_an_all_reduce_for_two_layers(layers: int, tensor: int) -> None:
    sharded = check_by_numpy(mlp(layers), tensor)
    # Columns, rows, columns, rows; a last layer of columns is gathered.
    expected = {ALL_REDUCE: layers // 2, ALL_GATHER: layers % 2}
    assert sharded.collectives == {kind: count for kind, count in expected.items() if count}
    assert sharded.num_layers == layers


@pytest.mark.parametrize("tensor", [2, 4])
def test_attention_is_cut_by_heads(tensor: int) -> None:
    sharded = check_by_numpy(attention(heads=4), tensor)
    assert sharded.collectives == {ALL_REDUCE: 1}
    shapes = [
        tuple(int(extent) for extent in node.checked_type.shape)
        for node in post_order(sharded.mod["main"].body)
        if isinstance(node, relay.Call) and node.op.name == "nn.softmax"
    ]
    assert shapes == [(4 // tensor, 3, 3)] * tensor


def test_weights_of_the_shards_are_those_of_the_whole() -> None:
    mod = attention(heads=4)
    sharded = shard_module(mod, tensor=4)
    whole = sum(
        node.data.numpy().size
        for node in post_order(mod["main"].body)
        if isinstance(node, relay.Constant) and node.data.shape[0] > 1
    )
    parts = [weight_elements(sharded.mod, shard) for shard in range(4)]
    mask = 9  # each shard has all of it
    assert [4 * (part - mask) for part in parts] == [whole] * 4
    assert sharded.whole == ()


def test_uneven_heads_have_to_be_asked_for() -> None:
    mod = attention(heads=3)
    with pytest.raises(ShardingError, match=r"evenly by 2 shards.*3 units of 4, 2\+1"):
        shard_module(mod, tensor=2)
    assert check_by_numpy(mod, 2, uneven=True).collectives == {ALL_REDUCE: 1}
    # Without, each shard has a part of every head, and scores are added up as well.
    assert check_by_numpy(mod, 2, uneven=False).collectives == {ALL_REDUCE: 2}


def test_columns_are_shared_as_evenly_as_they_can_be() -> None:
    data = var("x", (2, 6))
    mod = module([data], relay.nn.dense(data, weights(7, 6)))
    sharded = check_by_numpy(mod, 4)
    assert [weight_elements(sharded.mod, shard) for shard in range(4)] == [12, 12, 12, 6]


def test_a_weight_of_few_columns_is_cut_by_rows() -> None:
    data = var("x", (2, 8))
    mod = module([data], relay.nn.dense(data, weights(1, 8)))
    sharded = check_by_numpy(mod, 4)
    assert sharded.collectives == {ALL_REDUCE: 1}
    assert [weight_elements(sharded.mod, shard) for shard in range(4)] == [2, 2, 2, 2]


def test_a_weight_that_cannot_be_cut_is_named() -> None:
    data = var("x", (2, 3))
    mod = module([data], relay.nn.dense(data, weights(3, 3)))
    assert check_by_numpy(mod, 4).whole == ("nn.dense",)


def test_one_shard_is_the_module_itself() -> None:
    mod = attention(heads=3)
    sharded = shard_module(mod, tensor=1)
    tvm.ir.assert_structural_equal(sharded.mod, mod)
    assert sharded.collectives == {}


def test_what_works_along_the_cut_axis_gets_all_of_it() -> None:
    data = var("x", (2, 8))
    value = relay.nn.softmax(relay.nn.dense(data, weights(8, 8)))
    mod = module([data], relay.nn.dense(value, weights(8, 8, seed=1)))
    assert check_by_numpy(mod, 2).collectives == {ALL_GATHER: 2}


def test_a_sum_that_a_shard_needs_a_part_of_is_scattered() -> None:
    """Rows, whose sum meets columns: each shard gets only its part of the sum."""
    data = var("x", (2, 8))
    left = relay.nn.dense(relay.nn.relu(relay.nn.dense(data, weights(8, 8))), weights(8, 8, seed=1))
    right = relay.nn.dense(data, weights(8, 8, seed=2))
    mod = module([data], relay.nn.dense(relay.add(right, left), weights(8, 8, seed=3)))
    assert "heteroplace.reduce_scatter" in check_by_numpy(mod, 2).collectives


def residual_convolutions() -> tvm.IRModule:
    """Channels: columns, rows, groups; a norm by channel, pooling, and a classifier."""
    data = var("x", (1, 3, 6, 6))
    first = relay.nn.relu(conv(data, 8, 3))
    scaled = relay.multiply(first, relay.reshape(weights(8), (8, 1, 1)))
    grouped = relay.nn.conv2d(
        scaled, weights(8, 1, 3, 3), padding=(1, 1), groups=8, channels=8, kernel_size=(3, 3)
    )
    second = relay.add(conv(relay.nn.relu(grouped), 8, 8, 1), first)
    third = relay.nn.max_pool2d(conv(second, 16, 8), (2, 2), (2, 2))
    flat = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(third))
    return module([data], relay.nn.dense(flat, weights(5, 16)))


@pytest.mark.parametrize("tensor", [2, 4])
def test_convolutions_are_cut_by_channels(tensor: int) -> None:
    mod = residual_convolutions()
    sharded = check_by_numpy(mod, tensor)
    assert sharded.whole == ()
    # Each shard needs a part of the residual sum; the pool all of what it reads; classes the end.
    expected = {"heteroplace.reduce_scatter": 1, ALL_REDUCE: 1, ALL_GATHER: 1}
    assert sharded.collectives == expected


def transformer(make: Callable[..., object]) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    model = from_onnx(make(layers=1, hidden=16, heads=4, tokens=5, vocabulary=12, seed=0))
    random = np.random.default_rng(0)
    values = {
        name: random.integers(0, 2, shape).astype(dtype)
        for name, (shape, dtype) in model.inputs.items()
    }
    return model.bind_params(), values


@pytest.mark.costly
@pytest.mark.parametrize("make", [bert_onnx, gpt_onnx])
def test_transformers_have_two_all_reduces_a_layer(make: Callable[..., object]) -> None:
    mod, values = transformer(make)
    expected = run_by_numpy(mod, values)
    for tensor in (2, 4):
        sharded = shard_module(mod, tensor=tensor)
        check_equal(expected, run_by_numpy(sharded.mod, values))
        # Those of Megatron-LM; the end, a pooler or the logits, is gathered.
        assert sharded.collectives == {ALL_REDUCE: 2, ALL_GATHER: 1}
        assert sharded.whole == ()
        assert sharded.num_layers == 3  # attention, the rest of the block, the end


def test_mlp_equals_the_whole_under_stock_tvm() -> None:
    mod = mlp(3)
    inputs = random_inputs(mod)
    check_equal(outputs(mod, inputs), outputs(shard_module(mod, tensor=2).mod, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("make", [bert_onnx, gpt_onnx])
def test_transformers_equal_the_whole_under_stock_tvm(make: Callable[..., object]) -> None:
    mod, values = transformer(make)
    expected = outputs(mod, values)
    for tensor in (1, 2, 4):
        check_equal(expected, outputs(shard_module(mod, tensor=tensor).mod, values))


def test_what_is_wrong_is_told() -> None:
    mod = mlp(1)
    with pytest.raises(ShardingError, match="0 shards; expected 1 or more"):
        shard_module(mod, tensor=0)
    with pytest.raises(UnsupportedRelayError, match="no input y; it has x"):
        shard_module(mod, tensor=2, inputs=["y"])
    with pytest.raises(UnsupportedRelayError, match=r"no outputs \[3\]; it has 1"):
        shard_module(mod, tensor=2, like={3: "x"})


def test_variance_takes_a_part_of_its_mean() -> None:
    """Rows are cut by a product of weights with what the inputs make, and not the other way."""
    data = var("x", (6, 4))
    rows = relay.nn.dense(weights(8, 6), relay.transpose(data))
    mean = relay.mean(rows, axis=1, keepdims=True)
    spread = relay.variance(rows, axis=1, keepdims=True, with_mean=mean)
    sharded = check_by_numpy(module([data], spread), 2)
    assert sharded.collectives == {ALL_GATHER: 1}
    shapes = [
        [int(extent) for extent in node.checked_type.shape]
        for node in post_order(sharded.mod["main"].body)
        if isinstance(node, relay.Call) and node.op.name == "variance"
    ]
    assert shapes == [[4, 1], [4, 1]]


def test_a_triangle_of_what_is_cut_is_that_of_the_whole() -> None:
    """Each shard has other columns, and would keep the first ones."""
    data = var("x", (4, 8))
    made = relay.nn.dense(data, weights(8, 8))
    for upper in (False, True):
        mod = module([data], relay.trilu(made, relay.const(1), upper=upper))
        assert check_by_numpy(mod, 2).collectives == {ALL_GATHER: 1}


def test_heads_stay_cut_through_their_triangles() -> None:
    data = var("x", (4, 8))
    query, key = (
        relay.transpose(relay.reshape(relay.nn.dense(data, weights(8, 8, seed=at)), (4, 2, 4)),
                        (1, 0, 2))
        for at in range(2)
    )  # fmt: skip
    scores = relay.trilu(relay.nn.batch_matmul(query, key), relay.const(0), upper=False)
    mixed = relay.nn.batch_matmul(scores, key, transpose_b=False)
    back = relay.reshape(relay.transpose(mixed, (1, 0, 2)), (4, 8))
    mod = module([data], relay.nn.dense(back, weights(8, 8, seed=2)))
    assert check_by_numpy(mod, 2).collectives == {ALL_REDUCE: 1}


def test_rows_of_a_table_are_taken_whole_where_they_are_taken_in_batches() -> None:
    data, ids = var("x", (2, 8)), var("ids", (2, 3), "int32")
    value = relay.nn.dense(data, weights(8, 8))
    mod = module([data, ids], relay.take(value, ids, axis=1, batch_dims=1))
    sharded = shard_module(mod, tensor=2)
    assert sharded.collectives == {ALL_GATHER: 1}


def convolutions(name: str) -> tvm.IRModule:
    """Two convolutions of forms that exporters write less often."""
    last = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    shape = (1, 8, 5, 5)
    data = var("x", (1, 5, 5, 8) if name == "channels_last" else shape[: 3 if name == "1d" else 4])
    if name == "channels_last":
        value = relay.nn.conv2d(data, weights(3, 3, 8, 4), channels=4, kernel_size=(3, 3), **last)
        value = relay.nn.conv2d(
            relay.nn.relu(value), weights(3, 3, 4, 6), channels=6, kernel_size=(3, 3), **last
        )
    elif name == "1d":
        value = relay.nn.conv1d(data, weights(4, 8, 3), channels=4, kernel_size=3)
        value = relay.nn.conv1d(relay.nn.relu(value), weights(6, 4, 1), channels=6, kernel_size=1)
    elif name == "transposed":
        value = relay.nn.conv2d_transpose(data, weights(8, 4, 3, 3), channels=4, kernel_size=(3, 3))
        value = relay.nn.conv2d_transpose(
            relay.nn.relu(value), weights(4, 6, 1, 1), channels=6, kernel_size=(1, 1)
        )
    else:
        value = relay.nn.conv2d(data, weights(8, 2, 3, 3), groups=4, channels=8, kernel_size=(3, 3))
        value = conv(relay.nn.relu(value), 6, 8, 1)
    return module([data], value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["channels_last", "1d", "transposed", "groups"])
def test_convolutions_of_all_forms_are_cut(name: str) -> None:
    mod = convolutions(name)
    sharded = shard_module(mod, tensor=2)
    assert sharded.collectives == {ALL_REDUCE: 1}
    assert sharded.whole == ()
    inputs = random_inputs(mod)
    check_equal(outputs(mod, inputs), outputs(sharded.mod, inputs))


def test_an_op_is_shared_as_somebody_says_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its labels the axis that a softmax works along is none that can be cut, the other is."""
    data = var("x", (4, 8))
    value = relay.nn.softmax(relay.nn.dense(weights(8, 8), data), axis=0)
    mod = module([data], value)
    assert check_by_numpy(mod, 2).collectives == {ALL_GATHER: 1}
    seen = []

    def labels(call: Node) -> Labels:
        seen.append(call.operand_shapes)
        return Labels((("", "column"),), ("", "column"))

    monkeypatch.setitem(LABELS, "nn.softmax", labels)
    assert check_by_numpy(mod, 2).collectives
    assert seen == [((8, 4),)]
