"""Routers in ordinary ops: found where proven, with equal results; left alone elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import routed_patterns
import tvm
from numpy_relay import executor_by_numpy
from routed_near_misses import LEFT
from routed_patterns import (
    FOUND,
    ROWS,
    WIDTH,
    expert,
    inputs,
    is_expert,
    network,
    weight,
    with_neighbours,
)
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.parts.routing.find.find_routers import find_routers, without_branches
from heteroplace.parts.routing.relay.router import RouterOptions, router_options
from heteroplace.relay.router_ops import routing_kind

pytestmark = pytest.mark.relay
OF_6_ROWS = (
    "rows that are read with others",
    "conditions of other rows",
    "gates taken from all places",
)
"""What takes rows by their numbers."""


def routers(mod: tvm.IRModule) -> list[RouterOptions]:
    calls: list[relay.Call] = []
    relay.analysis.post_order_visit(mod["main"].body, calls.append)
    return [router_options(call.attrs) for call in calls if routing_kind(call) == "router"]


def check_equal(one: tvm.IRModule, other: tvm.IRModule) -> None:
    first, second = executor_by_numpy(one), executor_by_numpy(other)
    for seed in range(4):
        given = inputs(seed)
        with np.errstate(all="ignore"):
            pairs = zip(first(given), second(given), strict=True)
        for expected, found in pairs:
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FOUND)
def test_routing_in_ordinary_ops_becomes_routers_of_equal_results(name: str) -> None:
    make, count, top_k = FOUND[name]
    mod = network(make)
    result = find_routers(mod)
    found = routers(result.mod)
    assert len(found) == len(result.found) == count
    assert max(options.top_k for options in found) == top_k
    assert len({options.name for options in found}) == count
    check_equal(mod, result.mod)


@pytest.mark.parametrize("name", [name for name in FOUND if name not in OF_6_ROWS])
def test_routing_of_one_row_keeps_its_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed_patterns, "ROWS", 1)
    mod = network(FOUND[name][0])
    check_equal(mod, find_routers(mod).mod)


@pytest.mark.parametrize("name", LEFT)
def test_near_misses_are_left_alone(name: str) -> None:
    make, reason = LEFT[name]
    mod = network(make)
    result = find_routers(mod)
    assert result.found == ()
    assert result.mod is mod or tvm.ir.structural_equal(result.mod, mod)
    if reason:
        assert len(result.left) == 1
        assert any(each in result.left[0] for each in reason.split("|")), result.left
    else:
        assert result.left == ()


def test_there_are_at_least_30_near_misses() -> None:
    assert len(LEFT) >= 30


def test_the_pass_changes_nothing_the_second_time() -> None:
    once = relay.transform.FindRouters()(network(FOUND["top 2 scattered"][0]))
    assert len(routers(once)) == 1
    assert tvm.ir.structural_equal(relay.transform.FindRouters()(once), once)


def test_a_branch_is_only_what_no_other_reads() -> None:
    def make(x: relay.Expr, ids: relay.Expr, s: relay.Expr, c: relay.Expr) -> relay.Expr:
        shared = relay.nn.dense(x, weight(WIDTH, WIDTH))
        return relay.where(is_expert(ids, 0), expert(shared), expert(shared))

    (line,) = find_routers(network(make)).found
    assert "2 branches of 3, 3 ops" in line


def test_of_what_is_read_by_rows_only_what_reads_it_whole_is_left_outside() -> None:
    (line,) = find_routers(network(lambda x, ids, s, c: with_neighbours(x, ids))).found
    assert "2 branches of 5, 2 ops" in line


def test_weights_enter_no_branch() -> None:
    x, w = relay.var("x", shape=(ROWS, WIDTH)), relay.var("w", shape=(WIDTH, WIDTH))
    c = relay.var("c", shape=(), dtype="bool")
    body = relay.If(c, relay.nn.dense(x, relay.transpose(w)), x)
    mod = tvm.IRModule.from_expr(relay.Function([x, w, c], body))

    def entered(inputs: list[str] | None) -> int:
        calls: list[relay.Call] = []
        found = find_routers(mod, inputs).mod
        relay.analysis.post_order_visit(found["main"].body, calls.append)
        return sum(routing_kind(call) == "enter_branch" for call in calls)

    assert entered(["x", "c"]) == 2
    assert entered(None) == 3
    with pytest.raises(UnsupportedRelayError, match="no input v; it has c, w, x"):
        find_routers(mod, ["v"])


def test_a_branch_that_makes_no_tensors_is_refused() -> None:
    def make(x: relay.Expr, ids: relay.Expr, s: relay.Expr, c: relay.Expr) -> relay.Expr:
        pair = relay.Tuple([x, x])
        chosen = relay.If(c, relay.Tuple([pair]), relay.Tuple([pair]))
        return relay.TupleGetItem(relay.TupleGetItem(chosen, 0), 1)

    with pytest.raises(UnsupportedRelayError, match="branches can make tensors"):
        find_routers(network(make))


def test_only_an_if_has_to_become_a_router() -> None:
    where = network(FOUND["where"][0])
    assert without_branches(where) is where
    both = without_branches(network(FOUND["where in an if"][0]))
    assert len(routers(both)) == 1


def test_routing_of_one_example_in_constants_is_reported() -> None:
    def make(x: relay.Expr, ids: relay.Expr, s: relay.Expr, c: relay.Expr) -> relay.Expr:
        parts = [[0, 3, 4], [1, 2, 5]]
        rows = [expert(relay.take(x, relay.const(part), axis=0)) for part in parts]
        return relay.concatenate(rows, 0)

    result = find_routers(network(make))
    assert result.found == ()
    (line,) = result.left
    assert "2 parts of axis 0 (6 of 6) are taken by constant indices" in line


def test_a_split_and_a_look_up_are_no_routing_of_one_example() -> None:
    def make(x: relay.Expr, ids: relay.Expr, s: relay.Expr, c: relay.Expr) -> relay.Expr:
        even, odd = ([0, 2, 4], [1, 3, 5])
        rows = [expert(relay.take(x, relay.const(part), axis=0)) for part in (even, odd)]
        table = weight(9, WIDTH)
        looked = [relay.take(table, relay.const(part), axis=0) for part in ([0, 1, 5], [5, 2, 7])]
        return relay.concatenate([*rows, *looked], 0)

    assert find_routers(network(make)).report == ()


def test_a_condition_of_numbers_holds_where_they_are_other_than_0() -> None:
    def make(x: relay.Expr, ids: relay.Expr, s: relay.Expr, c: relay.Expr) -> relay.Expr:
        half = relay.clip(relay.expand_dims(relay.cast(ids, "float32"), 1), 0.0, 0.5)
        return relay.where(half, expert(x), x)

    mod = network(make)
    result = find_routers(mod)
    assert len(result.found) == 1
    check_equal(mod, result.mod)


def test_a_choice_of_tensors_within_a_branch_of_rows_stays() -> None:
    def make(x: relay.Expr, ids: relay.Expr, s: relay.Expr, c: relay.Expr) -> relay.Expr:
        return relay.where(is_expert(ids, 0), relay.where(c, expert(x), expert(x)), x)

    mod = network(make)
    result = find_routers(mod)
    assert len(result.found) == 1
    assert "only a part of it is in a branch" in result.left[0]
    check_equal(mod, result.mod)
