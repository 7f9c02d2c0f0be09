"""narrow_extents: extents of 64 bits, as importers make them, become ones of 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, module, random_costs, var
from tvm import relay

import heteroplace as hp
from heteroplace.relay.tasks.narrow_extents import NarrowExtents

pytestmark = pytest.mark.relay

Sizes = Callable[..., list[Any]]
"""Numbers to extents of 32 or 64 bits."""
Body = Callable[[relay.Expr, Sizes], relay.Expr]

SHAPE = (2, 3, 4, 6)
OPS: dict[str, Body] = {
    "broadcast_to": lambda x, of: relay.broadcast_to(x, of(2, 3, 4, 6)),
    "full": lambda x, of: relay.add(x, relay.full(relay.const(2.0), of(4, 6), "float32")),
    "zeros": lambda x, of: relay.add(x, relay.zeros(of(4, 6), "float32")),
    "tile": lambda x, of: relay.tile(x, of(1, 2, 1, 1)),
    "reshape": lambda x, of: relay.reshape(x, of(6, -1)),
    "split": lambda x, of: relay.split(x, of(1), 1)[1],
    "avg_pool": lambda x, of: relay.nn.avg_pool2d(x, of(2, 2), of(1, 1), padding=of(1, 1, 1, 1)),
    "adaptive": lambda x, of: relay.nn.adaptive_avg_pool2d(x, of(2, 3)),
    "resize": lambda x, of: relay.image.resize2d(x, of(8, 12)),
    "mirror_pad": lambda x, of: relay.nn.mirror_pad(
        x, [of(0, 0), of(0, 0), of(1, 1), of(1, 1)], "REFLECT"
    ),
    "conv2d": lambda x, of: relay.nn.conv2d(
        x, var("w", (5, 3, 3, 3)), of(1, 1), of(1, 1, 1, 1), of(1, 1), 1, of(5)[0], of(3, 3)
    ),
    "blocks": lambda x, of: relay.nn.space_to_batch_nd(x, of(1, 1), [of(0, 0), of(0, 0)]),
    "windows": lambda x, of: relay.sliding_window(x, 2, of(2, 2), of(1, 1)),
    "affine_grid": lambda x, of: relay.image.affine_grid(var("t", (2, 2, 3)), of(4, 4)),
    "an input": lambda x, of: relay.nn.relu(relay.var("y", relay.TensorType(of(2, 3)))),
    "a tuple": lambda x, of: relay.TupleGetItem(
        relay.var("y", relay.TupleType([relay.TensorType(of(2, 3)), relay.TensorType([1])])), 0
    ),
}


def wide(*sizes: int) -> list[Any]:
    """Extents as they come from a tensor of int64."""
    return [tvm.tir.IntImm("int64", size) for size in sizes]


def typed(body: Body, of: Sizes) -> tvm.IRModule:
    """An op with something behind it."""
    expr = relay.nn.relu(body(var("x", SHAPE), of))
    return relay.transform.InferType()(tvm.IRModule.from_expr(expr))


@pytest.mark.parametrize("name", OPS)
def test_wide_extents_are_narrow(name: str) -> None:
    narrow = typed(OPS[name], lambda *sizes: list(sizes))
    found = relay.transform.InferType()(NarrowExtents()(typed(OPS[name], wide)))
    assert tvm.ir.structural_equal(found, narrow, map_free_vars=True), found
    assert tvm.ir.structural_equal(NarrowExtents()(narrow), narrow)


def test_functions_within_are_called_with_what_they_take() -> None:
    x, y = var("x", (1, 3)), relay.var("y", relay.TensorType(wide(2, 3)))
    inner = relay.Function([y], relay.add(relay.negative(y), x))
    body = inner(relay.broadcast_to(x, wide(2, 3)))
    found = relay.transform.InferType()(NarrowExtents()(module([x], body)))
    assert "i64" not in str(found), found


def test_numbers_that_are_no_extents_stay() -> None:
    x = var("x", (2, 3))
    ends = relay.strided_slice(x, wide(0, 1), wide(2**63 - 1, 3))
    padded = relay.nn.pad(ends, [wide(0, 0), wide(1, 1)])
    mod = relay.transform.InferType()(module([x], padded))
    assert tvm.ir.structural_equal(NarrowExtents()(mod), mod)


def test_what_does_not_fit_stays() -> None:
    x = relay.var("x", relay.TensorType(wide(2**40, 1)))
    mod = relay.transform.InferType()(module([x], relay.nn.relu(x)))
    (type_,) = [each.type_annotation for each in NarrowExtents()(mod)["main"].params]
    assert [extent.dtype for extent in type_.shape] == ["int64", "int32"]


@pytest.mark.costly
def test_a_pool_of_integers_has_their_type() -> None:
    x = var("x", (1, 1, 4, 4))
    whole = relay.cast(relay.nn.softmax(relay.broadcast_to(x, wide(2, 1, 4, 4))), "int32")
    body = relay.add(relay.nn.avg_pool2d(whole, (2, 2), padding=(1, 1)), relay.const(1))
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(module([x], body), cpu_cluster(), {}, costs=random_costs)
    (found,) = hp.Executor(executable).run(x=np.zeros((1, 1, 4, 4), "float32"))
    np.testing.assert_array_equal(found, np.ones((2, 1, 5, 5), "int32"))
