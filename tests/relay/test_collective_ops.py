"""Collectives as Relay ops: stock TVM computes on one device what several would."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from numpy_relay import run_by_numpy
from relay_models import module, random_inputs, var
from test_rebatch import outputs
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.model.collectives import KINDS, collective_kind
from heteroplace.relay import collective_ops as ops
from heteroplace.relay.tasks.extract import extract
from heteroplace.relay.tasks.prepare import fuse

A, B, WIDE = var("a", (2, 6)), var("b", (2, 6)), var("wide", (2, 4))


def flat(*results: relay.Expr) -> relay.Expr:
    """All results as one tuple; of a call that returns several, each of them."""
    fields: list[relay.Expr] = []
    for result in results:
        typed = module([A, B, WIDE], result)["main"].body
        count = len(getattr(typed.checked_type, "fields", ()))
        fields += [relay.TupleGetItem(result, at) for at in range(count)] if count else [result]
    return relay.Tuple(fields)


def every_collective() -> relay.Expr:
    return flat(
        ops.all_reduce((A, B)),
        ops.all_gather((A, WIDE), 1),
        ops.reduce_scatter((A, B), 1, (4, 2)),
        ops.all_to_all((A, B), 1, 0, (4, 2)),
        ops.reduce((A, B)),
        ops.gather((A, WIDE), 1),
        ops.broadcast(A),
        ops.scatter(A, 1, (1, 5)),
    )


def test_every_kind_is_an_op_of_relay() -> None:
    ops.register_collective_ops()
    collectives = {ops.PREFIX + kind for kind in KINDS}
    known = set(tvm.ir.Op.list_op_names())
    assert collectives <= known
    assert collectives == {name for name in known if collective_kind(name) is not None}


@pytest.mark.costly
def test_stock_tvm_computes_every_collective() -> None:
    mod = module([A, B, WIDE], every_collective())
    inputs = random_inputs(mod)
    for by_tvm, by_numpy in zip(outputs(mod, inputs), run_by_numpy(mod, inputs), strict=True):
        np.testing.assert_array_equal(by_tvm, by_numpy)


def test_sums_are_made_in_rank_order() -> None:
    shards = [var(name, (1,)) for name in "xyz"]
    mod = module(shards, ops.all_reduce(shards))
    big = np.float32(2**25)
    values = {"x": big, "y": np.float32(1), "z": -big}
    inputs = {name: np.array([value], "float32") for name, value in values.items()}
    # From the left the 1 is lost beside the large number; in any other order it is not.
    assert outputs(mod, inputs)[0] == 0


def test_sums_of_single_numbers_are_computed() -> None:
    shards = [var(name, ()) for name in "xy"]
    mod = module(shards, ops.all_reduce(shards))
    found = outputs(mod, {"x": np.array(1, "float32"), "y": np.array(2, "float32")})
    assert found[0] == 3


def test_nothing_fuses_with_a_collective() -> None:
    mod = module([A, B], relay.nn.relu(ops.all_reduce((relay.tanh(A), relay.exp(B)))))
    graph = extract(mod).graph
    assert [task.op for task in graph.tasks] == ["tanh", "exp", "heteroplace.all_reduce", "nn.relu"]
    assert fuse(mod)["main"].body.checked_type == mod["main"].body.checked_type


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ops.all_reduce((A, WIDE)), "unlike shapes cannot be added"),
        (lambda: ops.all_gather((A, WIDE), 0), "cannot be joined along axis 0"),
        (lambda: ops.reduce_scatter((A, B), 1, (4, 4)), r"axis 1 of \(2, 6\) has no parts of"),
        (lambda: ops.all_to_all((A, B), 1, 0, (2, 2, 2)), "2 shards exchange 3 parts each"),
        (lambda: ops.all_reduce((A, var("i", (2, 6), "int32"))), "unlike types"),
        (lambda: ops.all_reduce(()), "a tuple of tensors, one a shard"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(make, words: str) -> None:  # type: ignore[no-untyped-def]
    expr = make()
    with pytest.raises(UnsupportedRelayError, match=words):
        module(relay.analysis.free_vars(expr), expr)
