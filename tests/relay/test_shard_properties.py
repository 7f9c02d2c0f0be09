"""Random networks of products and elementwise ops: their shards compute what they do."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from numpy_relay import run_by_numpy
from relay_models import module, random_inputs, var, weights
from tvm import relay

from heteroplace.parts.parallel.shard.module import ShardedModule, shard_module
from heteroplace.relay.expressions import post_order
from heteroplace.relay.shard_spans import tag_of
from tests.corpus import corpus
from tests.strategies import exact_cases

_WIDTHS = (4, 6, 8, 12)


class _Networks:
    """Values of two axes, rows and columns, and what can be made of them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.rows = random.choice((1, 2, 4))
        self.data = var("x", (self.rows, random.choice(_WIDTHS)))
        width = int(self.data.type_annotation.shape[1])
        self.values: list[tuple[relay.Expr, int]] = [(self.data, width)]

    def grow(self) -> None:
        value, width = self._random.choice(self.values[-3:])
        make = self._random.choice(
            (self._dense, self._dense, self._dense, self._unary, self._bias, self._both,
             self._heads, self._norm, self._slice, self._join)
        )  # fmt: skip
        self.values.append(make(value, width))

    def _seed(self) -> int:
        return self._random.randrange(1000)

    def _dense(self, value: relay.Expr, width: int) -> tuple[relay.Expr, int]:
        out = self._random.choice(_WIDTHS)
        weight = weights(out, width, seed=self._seed())
        return relay.nn.dense(value, relay.multiply(weight, relay.const(0.4))), out

    def _unary(self, value: relay.Expr, width: int) -> tuple[relay.Expr, int]:
        op = self._random.choice((relay.nn.relu, relay.tanh, relay.sigmoid, relay.negative))
        return op(value), width

    def _bias(self, value: relay.Expr, width: int) -> tuple[relay.Expr, int]:
        bias = weights(width, seed=self._seed())
        add = self._random.choice((relay.add, relay.multiply, relay.nn.bias_add, relay.maximum))
        return add(value, bias), width

    def _both(self, value: relay.Expr, width: int) -> tuple[relay.Expr, int]:
        others = [other for other, of in self.values if of == width]
        op = self._random.choice((relay.add, relay.subtract, relay.maximum))
        return op(value, self._random.choice(others)), width

    def _heads(self, value: relay.Expr, width: int) -> tuple[relay.Expr, int]:
        """Each row's columns as heads, every head's columns multiplied by those of all rows."""
        heads = self._random.choice([count for count in (2, 3, 4) if width % count == 0])
        split = relay.reshape(value, (self.rows, heads, width // heads))
        turned = relay.transpose(split, (1, 0, 2))
        scores = relay.nn.softmax(relay.nn.batch_matmul(turned, turned))
        mixed = relay.nn.batch_matmul(scores, turned, transpose_b=False)
        return relay.reshape(relay.transpose(mixed, (1, 0, 2)), (self.rows, width)), width

    def _norm(self, value: relay.Expr, width: int) -> tuple[relay.Expr, int]:
        reduced = self._random.choice((relay.mean, relay.sum, relay.max))
        axis = self._random.choice((0, 1))
        return relay.subtract(value, reduced(value, axis=axis, keepdims=True)), width

    def _slice(self, value: relay.Expr, width: int) -> tuple[relay.Expr, int]:
        """One of the equal parts of the columns, by a split or a slice."""
        count = self._random.choice((2, 3)) if width % 6 == 0 else 2
        which, part = self._random.randrange(count), width // count
        if part not in _WIDTHS:
            return value, width
        if self._random.random() < 0.5:
            return relay.split(value, count, axis=1)[which], part
        begin, end = [0, which * part], [self.rows, (which + 1) * part]
        return relay.strided_slice(value, begin, end), part

    def _join(self, value: relay.Expr, width: int) -> tuple[relay.Expr, int]:
        other, more = self._random.choice(self.values)
        if width + more > 2 * max(_WIDTHS):
            return value, width
        return relay.concatenate([value, other], axis=1), width + more


@corpus
def networks(random: Random) -> str:
    """Modules in TVM's JSON, which is printed, compared and kept as a text."""
    found = _Networks(random)
    for _ in range(random.randint(1, 8)):
        found.grow()
    outputs = [value for value, _ in found.values[-random.choice((1, 1, 2)) :]]
    body = relay.Tuple(outputs) if len(outputs) > 1 else outputs[0]
    return str(tvm.ir.save_json(module([found.data], body)))


def check(mod: tvm.IRModule, sharded: ShardedModule) -> None:
    inputs = random_inputs(mod)
    pairs = zip(run_by_numpy(mod, inputs), run_by_numpy(sharded.mod, inputs), strict=True)
    for whole, shared in pairs:
        largest = max(np.abs(whole).max(), 1e-3)
        np.testing.assert_allclose(shared, whole, rtol=0, atol=1e-5 * largest)


@pytest.mark.costly
@exact_cases(40)
@given(networks(), st.sampled_from([(2, True), (3, True), (4, False)]))
def test_shards_compute_what_the_whole_does(text: str, how: tuple[int, bool]) -> None:
    mod = relay.transform.InferType()(tvm.ir.load_json(text))
    tensor, uneven = how
    check(mod, shard_module(mod, tensor=tensor, uneven=uneven))


@pytest.mark.costly
@exact_cases(20)
@given(networks())
def test_no_matrix_is_whole_that_can_be_cut(text: str) -> None:
    """Each shard has a part of every matrix of products with what the inputs make."""
    mod = relay.transform.InferType()(tvm.ir.load_json(text))
    sharded = shard_module(mod, tensor=2, uneven=True)
    assert sharded.whole == ()
    of_shard = [0, 0]
    for node in post_order(sharded.mod["main"].body):
        tag = tag_of(node) if isinstance(node, relay.Call) else None
        if tag is not None and tag.shard is not None and node.op.name == "nn.dense":
            shape = node.args[1].checked_type.shape
            of_shard[tag.shard] += int(shape[0]) * int(shape[1])
    whole = sum(
        int(node.args[1].checked_type.shape[0]) * int(node.args[1].checked_type.shape[1])
        for node in post_order(mod["main"].body)
        if isinstance(node, relay.Call) and node.op.name == "nn.dense"
    )
    # What no output needs of the second shard is left out.
    assert of_shard[0] + of_shard[1] <= whole
    assert of_shard[0] < whole or not whole
