"""own_places: a tensor that is read at places which it decides itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, module, random_costs, var
from tvm import relay

import heteroplace as hp
from heteroplace.relay.expressions import post_order_of_function
from heteroplace.relay.tasks.prepare import fuse

pytestmark = pytest.mark.relay

X = (np.arange(35).reshape(7, 5) * 3) % 5


def _rows(c: relay.Expr) -> relay.Expr:
    return relay.take(c, relay.floor_mod(relay.reshape(c, [-1]), relay.const(7)), axis=0)


def _places(c: relay.Expr) -> relay.Expr:
    return relay.gather(relay.negative(c), 1, c)


def _points(c: relay.Expr) -> relay.Expr:
    return relay.gather_nd(c, relay.reshape(c, [1, 35]))


READS: dict[str, tuple[Callable[[relay.Expr], relay.Expr], np.ndarray]] = {
    "take": (_rows, X[X.reshape(-1) % 7]),
    "gather, behind another op": (_places, np.take_along_axis(-X, X, 1)),
    "gather_nd": (_points, X[X.reshape(-1)]),
}


def joined(x: relay.Expr) -> relay.Expr:
    """X, computed."""
    halves = relay.split(x, [3], axis=1)
    return relay.concatenate([halves[0], halves[1]], axis=1)


@pytest.mark.costly(5)
@pytest.mark.parametrize("name", READS)
def test_a_tensor_is_read_at_places_of_its_own(name: str) -> None:
    read, expected = READS[name]
    x = var("x", X.shape, "int32")
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(
            module([x], read(joined(x))), cpu_cluster(), {}, costs=random_costs, solver="heft"
        )
    (found,) = hp.Executor(executable).run(x=X.astype("int32"))
    np.testing.assert_array_equal(found, expected)


def test_what_has_nothing_to_do_with_the_places_is_fused_with_the_reader() -> None:
    x, places = var("x", X.shape, "int32"), var("places", (4,), "int32")
    with tvm.transform.PassContext(opt_level=3):
        body = fuse(module([x, places], relay.take(joined(x), places, axis=0)))["main"].body
    assert {
        call.op.name for call in post_order_of_function(body.op) if isinstance(call, relay.Call)
    } >= {
        "concatenate",
        "take",
    }
