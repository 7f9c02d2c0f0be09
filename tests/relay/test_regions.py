"""In which branches values are made; one that is of two branches is refused."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_routed import random_routed
from relay_models import module, var
from tvm import relay

from heteroplace import routing
from heteroplace.errors import RoutingError
from heteroplace.parts.routing.relay import ops
from heteroplace.parts.routing.relay.regions import branches_around, branches_of_values
from heteroplace.relay.expressions import post_order
from heteroplace.relay.router_ops import routing_kind
from tests.strategies import exact_cases

X, SCORES = var("x", (6, 4)), var("s", (6, 3))


def test_values_of_two_branches_come_together_in_the_result_only() -> None:
    kept = []

    def leaking(rows: relay.Expr) -> relay.Expr:
        kept.append(relay.nn.relu(rows))
        return relay.add(kept[-1], kept[0])

    words = "branch 1 of router '' does not treat its cells one by one: add"
    with pytest.raises(RoutingError, match=words):
        routing.route(routing.annotate_cell(X, (0,), (1, 4)), routing.top_k(SCORES), [leaking] * 3)
    y = routing.route(
        routing.annotate_cell(X, (0,), (1, 4)), routing.top_k(SCORES), [relay.nn.relu] * 3
    )
    body = module([X, SCORES], y)["main"].body
    first, second, _ = (one for one in post_order(body) if ops_name(one) == "nn.relu")
    assert branches_of_values(relay.add(first, first))[first][0].branch == 0
    with pytest.raises(RoutingError, match="add reads values of two branches of one router"):
        branches_of_values(relay.add(first, second))


def test_a_result_of_a_branch_is_made_in_it() -> None:
    y = routing.route(
        routing.annotate_cell(X, (0,), (1, 4)), routing.top_k(SCORES), [relay.nn.relu] * 3
    )
    body = module([X, SCORES], y)["main"].body
    (join,) = (one for one in post_order(body) if routing_kind(one) == "join_branches")
    reads = ops.reads_of(join)
    assert branches_of_values(ops.with_reads(join, reads))
    swapped = ops.with_reads(join, [reads[1], reads[0], *reads[2:]])
    with pytest.raises(RoutingError, match="as result of branch 0 a value that is made in another"):
        branches_of_values(swapped)


def ops_name(expr: relay.Expr) -> str:
    return getattr(expr.op, "name", "") if isinstance(expr, relay.Call) else ""


@pytest.mark.costly(10)
@given(st.integers(0, 2**20))
@exact_cases(20)
def test_routers_say_in_which_branches_they_are(seed: int) -> None:
    """What `route` asks of the routers around it is what a walk over the whole module finds."""
    body = random_routed(Random(seed), max_parts=2).mod["main"].body
    for node, branches in branches_of_values(body).items():
        assert branches_around([node]) == branches
