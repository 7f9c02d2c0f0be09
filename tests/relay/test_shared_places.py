"""shared_places: places that come from look-ups, and are read more than once."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relay_models import module, var
from tvm import relay

from heteroplace.relay.expressions import post_order_of_function
from heteroplace.relay.tasks.prepare import fuse

pytestmark = pytest.mark.relay

LEVELS = 6


def tables(levels: int) -> tvm.IRModule:
    """Places that lead to places: each level looks up two tables at what the one before gave."""
    numbers = np.arange(8, dtype="int32")
    places = var("x", (4,), "int32")
    first = places
    for _ in range(levels):
        left, right = (relay.take(relay.const(table), places) for table in (numbers, numbers[::-1]))
        places = relay.add(left, right)
    return module([first], places)


def test_no_look_up_is_computed_again_for_the_next_level() -> None:
    fused = fuse(relay.transform.InferType()(tables(LEVELS)))
    calls = [node for node in post_order_of_function(fused["main"]) if isinstance(node, relay.Call)]
    functions = [call.op for call in calls if isinstance(call.op, relay.Function)]
    assert len(functions) == LEVELS


def test_places_of_one_look_up_stay_in_its_kernel() -> None:
    x = var("x", (4,), "int32")
    table = relay.const(np.arange(8, dtype="float32"))
    look_up = relay.take(table, relay.add(x, relay.const(1)))
    fused = fuse(relay.transform.InferType()(module([x], look_up)))
    functions = [
        node
        for node in post_order_of_function(fused["main"])
        if isinstance(node, relay.Call) and isinstance(node.op, relay.Function)
    ]
    assert len(functions) == 1
