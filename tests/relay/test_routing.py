"""Routed networks: what `route` makes, its dense form, and the same network with other options."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from numpy_relay import run_by_numpy
from random_routed import random_routed
from relay_models import module, var, weights
from tvm import relay

from heteroplace import routing
from heteroplace.errors import RoutingError
from heteroplace.model.routed.capacities import branch_rows
from heteroplace.parts.routing.relay import ops
from heteroplace.parts.routing.relay.api import Branch
from heteroplace.parts.routing.relay.rewrite import (
    model_digest,
    named_routers,
    routers_of,
    update_routers,
)
from heteroplace.parts.routing.relay.router import RouterOptions
from heteroplace.parts.routing.relay.rows import buffer_rows
from heteroplace.relay.expressions import post_order
from heteroplace.relay.router_ops import routing_kind
from tests.strategies import exact_cases

Array = np.ndarray
X, SCORES = var("x", (6, 4)), var("s", (6, 3))
HOST = routing.host("tests.any", [X], 6, 2)


def check_equal(found: list[Array], expected: list[Array]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(one, other)


def run(mod: tvm.IRModule, inputs: dict[str, Array]) -> list[Array]:
    with np.errstate(all="ignore"):  # rows that nothing may read are no numbers
        return run_by_numpy(mod, inputs)


@pytest.mark.costly(20)
@given(st.integers(0, 2**20))
@exact_cases(8)
def test_routed_networks_equal_their_dense_form(seed: int) -> None:
    case = random_routed(Random(seed), max_parts=1)
    dense = routing.dense_masked(case.mod)
    for number in range(2):
        inputs = case.inputs(number)
        check_equal(run(case.mod, inputs), run(dense, inputs))


def tokens(x: relay.Expr = X) -> routing.Cells:
    return routing.annotate_cell(x, (0,), (1, 4))


def expert(seed: int) -> Callable[[relay.Expr], relay.Expr]:
    return lambda rows: relay.nn.relu(relay.nn.dense(rows, weights(4, 4, seed=seed)))


def mixture(name: str = "moe", gate: str = "combine", **options: object) -> tvm.IRModule:
    """Three experts, top-2."""
    experts = [expert(seed) for seed in range(3)]
    decision = routing.top_k(SCORES, 2)
    y = routing.route(tokens(), decision, experts, gate, name=name, **options)
    return module([X, SCORES], y)


def example_inputs() -> dict[str, Array]:
    generator = np.random.default_rng(0)
    shapes = {"x": (6, 4), "s": (6, 3)}
    return {name: generator.random(shape).astype("float32") for name, shape in shapes.items()}


def test_a_mixture_is_the_sum_of_its_experts() -> None:
    inputs = example_inputs()
    (found,) = run(mixture(), inputs)
    total = np.zeros((6, 4), "float32")
    for cell, scores in enumerate(inputs["s"]):
        for branch in np.argsort(-scores)[:2]:
            matrix = weights(4, 4, seed=int(branch)).data.numpy()
            total[cell] += np.maximum(matrix @ inputs["x"][cell], 0) * scores[branch]
    np.testing.assert_allclose(found, total, rtol=1e-5)


def test_a_relay_function_is_a_branch() -> None:
    rows = var("rows", (6, 4))
    twice = relay.Function([rows], relay.add(rows, rows))
    y = routing.route(tokens(), routing.from_mask(np.ones((6, 1))), [twice])
    inputs = example_inputs()
    np.testing.assert_array_equal(run(module([X], y), inputs)[0], 2 * inputs["x"])


def test_cells_leave_a_loop_one_by_one() -> None:
    def goes_on(rows: relay.Expr) -> relay.Expr:
        return relay.less(relay.max(rows, axis=1), relay.const(4.0))

    y = routing.loop(tokens(), goes_on, lambda rows: relay.add(rows, rows), 3, name="grow")
    mod = module([X], y)
    assert [router.options.name for router in routers_of(mod)] == ["grow.1", "grow.2", "grow.3"]
    x = np.outer([5.0, 3.0, 1.9, 1.0, 0.1, -1.0], np.ones(4)).astype("float32")
    expected = [5.0, 6.0, 7.6, 4.0, 0.8, -8.0]
    found = run(mod, {"x": x})[0]
    np.testing.assert_allclose(found, np.outer(expected, np.ones(4)), rtol=1e-6)
    check_equal(run(routing.dense_masked(mod), {"x": x}), [found])


def test_results_that_no_op_of_a_branch_makes_are_copied() -> None:
    y = routing.route(
        tokens(),
        routing.from_mask(np.ones((6, 2))),
        [lambda rows: [rows, rows], lambda rows: [relay.negative(rows)] * 2],
    )
    mod = module([X], relay.Tuple(y))
    joins = [one for one in post_order(mod["main"].body) if routing_kind(one) == "join_branches"]
    made = [[value.op.name for value in ops.reads_of(join)[:2]] for join in joins]
    assert made == [["copy", "negative"], ["copy", "copy"]]
    values = [value for join in joins for value in ops.reads_of(join)[:2]]
    assert not any(a.same_as(b) for at, a in enumerate(values) for b in values[:at])


def mixed_by_shapes(rows: relay.Expr) -> relay.Expr:
    """Two cells in each row of what is multiplied."""
    pairs = relay.nn.dense(relay.reshape(rows, (3, 8)), weights(8, 8))
    return relay.reshape(relay.nn.relu(pairs), (6, 4))


@pytest.mark.parametrize(
    ("branch", "words"),
    [
        (lambda rows: relay.nn.softmax(rows, axis=0), "nn.softmax"),
        (lambda rows: relay.add(rows, X), "add"),
        (lambda rows: relay.reverse(rows, 0), "reverse"),
        (lambda rows: relay.reshape(rows, [4, 6]), "reshape"),
        (lambda rows: relay.reshape(rows, [12, 2]), "make the same results"),
        (lambda rows: mixed_by_shapes(rows), "reshape"),
        (lambda rows: weights(6, 4), "does not depend"),
        (lambda rows: [], "make the same results"),
        (relay.Function([X, SCORES], X), "takes 2 tensors; it gets rows of 1"),
    ],
)
def test_branches_that_mix_cells_are_refused(branch: Branch, words: str) -> None:
    with pytest.raises(RoutingError, match=words):
        routing.route(tokens(), routing.top_k(SCORES), [expert(0), branch, expert(1)])


def gated_integers(gate: str) -> object:
    """One cell of whole numbers."""
    cell = routing.annotate_cell(var("i", (1, 4), "int32"), (0,), (1, 4))
    decision = routing.top_k(var("one", (1, 2)))
    return routing.route(cell, decision, [lambda rows: relay.add(rows, rows)] * 2, gate)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: routing.route([], routing.top_k(SCORES), []), "has no cells"),
        (
            lambda: routing.route(tokens(), routing.top_k(SCORES), [expert(0)]),
            r"its mask is int32\(6, 3\), expected int32\(6, 1\)",
        ),
        (
            lambda: routing.route(
                [tokens(), routing.annotate_cell(SCORES, (0, 1), (1, 1))],
                routing.top_k(SCORES),
                [expert(0)] * 3,
            ),
            "unlike layouts",
        ),
        (lambda: mixture(gate="before"), "gate is 'before'"),
        (lambda: mixture(overflow="spill"), "overflow is 'spill'"),
        (lambda: mixture(name="a\nb"), r"router 'a\\nb': a name is one line of text"),
        (lambda: mixture(capacities=[2, 1]), "positive and ascending"),
        (lambda: mixture(capacities=[[1], 2, [3]]), "neither of all nor of each"),
        (lambda: mixture(capacities=[]), "capacities of 0 branches, expected 3"),
        (lambda: mixture(capacities=[[1], [2]]), "capacities of 2 branches, expected 3"),
        (
            lambda: routing.route(
                tokens(), routing.early_exit(var("c", (6,)), 0.5), [expert(0)] * 2, "combine"
            ),
            "its decision has no gates",
        ),
        (
            lambda: routing.route(
                tokens(),
                routing.capacity_factor(SCORES, 1, 1.0),
                [expert(0)] * 3,
                capacities=[1, 4],
            ),
            "drops cells behind 2, which must be the largest capacity",
        ),
        (
            lambda: routing.route(
                tokens(), routing.top_k(SCORES), [expert(0)] * 3, residual=SCORES
            ),
            "residual",
        ),
        (
            lambda: routing.route(
                tokens(),
                routing.top_k(SCORES),
                [lambda rows: routing.route(tokens(rows), HOST, [expert(0)] * 2)] * 3,
            ),
            "a function on the host decides about rows of branch 0 of router ''",
        ),
        (lambda: routing.loop(tokens(), lambda rows: rows, expert(0), 0), "a loop of 0 turns"),
        (lambda: gated_integers("dispatch"), "cells of int32 cannot be multiplied by gates"),
        (lambda: gated_integers("combine"), "cells of int32 cannot be multiplied by gates"),
    ],
)
def test_what_does_not_fit_together_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(RoutingError, match=words):
        make()


def test_nested_routers_know_where_they_are() -> None:
    def nested(rows: relay.Expr) -> relay.Expr:
        scores = relay.nn.dense(rows, weights(2, 4))
        return routing.route(tokens(rows), routing.top_k(scores), [expert(3), expert(4)])

    y = routing.route(tokens(), routing.top_k(SCORES), [expert(0), nested, expert(1)], name="out")
    routers = routers_of(named_routers(module([X, SCORES], y)))
    assert [(one.options.name, one.num_cells, one.parent) for one in routers] == [
        ("out", 6, None),
        ("router.2", 6, ("out", 1)),
    ]


def test_a_decision_of_a_branch_about_rows_of_none_is_refused() -> None:
    def elsewhere(rows: relay.Expr) -> relay.Expr:
        decision = routing.top_k(relay.nn.dense(rows, weights(2, 4)))
        return routing.route(tokens(), decision, [expert(0), expert(1)], name="in")

    with pytest.raises(RoutingError, match="decide about cells of tensor 'x', which is not in"):
        routing.route(tokens(), routing.top_k(SCORES), [elsewhere] * 3, name="out")


def test_a_whole_tensor_from_around_a_branch_may_be_routed_in_it() -> None:
    image, scores = var("image", (1, 4, 4)), var("scores", (1, 2))

    def whole() -> routing.Cells:
        return routing.annotate_cell(image, dims=(0,), shape=(1, 4, 4))

    def inside(cell: relay.Expr) -> relay.Expr:
        pooled = relay.reshape(relay.sum(cell, axis=[1]), (1, 4))
        decision = routing.top_k(relay.nn.dense(pooled, weights(2, 4)))
        once = routing.route(whole(), decision, [relay.nn.relu, relay.negative], name="in")
        again = routing.annotate_cell(once, dims=(0,), shape=(1, 4, 4))
        return routing.route(again, decision, [relay.exp, relay.nn.relu], name="again")

    y = routing.route(whole(), routing.top_k(scores), [inside, relay.nn.relu], name="out")
    mod = module([image, scores], y)
    found = {router.options.name: router.parent for router in routers_of(mod)}
    assert found == {"out": None, "in": ("out", 0), "again": ("out", 0)}
    values = {"image": np.arange(16, dtype="float32").reshape(1, 4, 4) - 8}
    for chosen in ([[1, 0]], [[0, 1]]):
        given_inputs = values | {"scores": np.array(chosen, "float32")}
        check_equal(run(mod, given_inputs), run(routing.dense_masked(mod), given_inputs))


def test_a_router_that_was_made_outside_of_its_branch_is_refused() -> None:
    """It would count rows above the branch's load, which hold no cell."""
    rows = relay.var("rows", relay.TensorType((6, 4)))
    decision = routing.top_k(relay.nn.dense(rows, weights(2, 4)))
    inner = routing.route(tokens(rows), decision, [expert(0), expert(1)], name="in")
    branch = relay.Function([rows], inner)
    with pytest.raises(RoutingError, match="branch 0 of router 'out' holds router 'in', which was"):
        routing.route(tokens(), routing.top_k(SCORES), [branch, expert(0), expert(1)], name="out")


def test_dense_modules_hold_stock_ops_only() -> None:
    dense = relay.transform.DenseMasked()(mixture())
    assert not any(routing_kind(node) for node in post_order(dense["main"].body))
    assert tvm.ir.structural_equal(relay.transform.DenseMasked()(dense), dense)
    assert "heteroplace" not in dense.astext(show_meta_data=False)


def test_what_has_no_dense_form_is_refused() -> None:
    seats, loads, offsets = ops.router(
        relay.cast(SCORES, "int32"), RouterOptions("r", ((1, 6),) * 3, 3)
    )
    buffer = ops.dispatch(X, seats, offsets, 18)
    for result in (buffer, offsets, relay.nn.relu(buffer)):
        with pytest.raises(RoutingError, match="a dense module has none of them"):
            routing.dense_masked(module([X, SCORES], result))
    rows = ops.take_branch(buffer, loads, offsets, ops.BranchRows("r", 0, 2, 2))
    with pytest.raises(RoutingError, match="branch 0 of router 'r' has 2 rows of 6 cells"):
        routing.dense_masked(module([X, SCORES], rows))
    found = run(
        routing.dense_masked(module([SCORES], relay.Tuple([seats, loads]))),
        {"s": np.array([[1, 0, 2], [1, 1, 0]] * 3, "float32")},
    )
    assert found[0][:2].tolist() == [[1, 0, 1], [2, 1, 0]] and found[1].tolist() == [6, 3, 3]


def test_other_capacities_change_rows_and_not_results() -> None:
    mod = mixture(capacities=[1, 2, 4, 6])
    other = update_routers(mod, {"moe": {"capacities": ((2, 3),) * 3, "quantum": 4}})
    (router,) = routers_of(other)
    assert router.options.capacities == ((2, 3),) * 3 and router.options.quantum == 4
    dispatches = [n for n in post_order(other["main"].body) if routing_kind(n) == "dispatch"]
    assert int(dispatches[0].attrs["rows"]) == router.options.rows(6) != 18
    check_equal(run(other, example_inputs()), run(mod, example_inputs()))
    again = update_routers(other, {"moe": {"capacities": ((2, 3),) * 3}})
    assert tvm.ir.structural_equal(again, other)
    back = update_routers(other, {"moe": {"capacities": ((1, 2, 4, 6),) * 3, "quantum": 1}})
    assert tvm.ir.structural_equal(back, mod)


def test_updates_that_change_the_model_are_refused() -> None:
    mod = mixture(overflow="drop", capacities=[1, 2])
    for change, words in (
        ({"moe": {"capacities": ((1, 4),) * 3}}, "drops the cells behind its largest capacity"),
        ({"moe": {"overflow": "rounds"}}, "drops the cells behind its largest capacity"),
        ({"moe": {"capacity": 1}}, "router 'moe'.*capacity"),
        ({"moes": {}}, "the module has no router 'moes'; it has 'moe'"),
        ({"moe": {"quantum": 0}}, "quantum is 0"),
    ):
        with pytest.raises(RoutingError, match=words):
            update_routers(mod, change)
    finer = update_routers(mod, {"moe": {"capacities": ((2,),) * 3}})
    check_equal(run(finer, example_inputs()), run(mod, example_inputs()))


def test_routers_without_a_name_are_numbered() -> None:
    y = routing.route(tokens(), routing.top_k(SCORES), [expert(0)] * 3)
    z = routing.route(tokens(y), routing.top_k(SCORES), [expert(1)] * 3, name="second")
    named = named_routers(module([X, SCORES], z))
    assert [router.options.name for router in routers_of(named)] == ["router.1", "second"]
    assert tvm.ir.structural_equal(named_routers(named), named)
    twice = routing.route(tokens(z), routing.top_k(SCORES), [expert(1)] * 3, name="second")
    with pytest.raises(RoutingError, match="two routers are called 'second'"):
        named_routers(module([X, SCORES], twice))


def test_the_digest_is_that_of_the_model() -> None:
    mod = mixture()
    changes = {"capacities": ((3,),) * 3, "predict": "1", "memories": "a,b,a", "quantum": 2}
    assert model_digest(update_routers(mod, {"moe": changes})) == model_digest(mod)
    drops = [mixture(overflow="drop", capacities=[most]) for most in (2, 3)]
    others = [model_digest(other) for other in (mod, mixture(name="other"), *drops)]
    assert len(set(others)) == len(others)


def test_buffers_hold_the_worst_mask_and_no_row_more() -> None:
    for capacities in ([(1, 2, 4)] * 2, [(2,), (1, 3)], [(1, 4), (3,), (2,)]):
        for overflow, quantum, top_k in (("rounds", 1, 1), ("drop", 1, 2), ("rounds", 2, 2)):
            branches, cells = len(capacities), 4
            options = RouterOptions("r", tuple(capacities), top_k, overflow, quantum)
            most = 0
            for number in range((2**branches) ** cells):
                rows = [(number >> (branches * cell)) % 2**branches for cell in range(cells)]
                mask = np.array([[row >> b & 1 for b in range(branches)] for row in rows])
                if mask.sum(axis=1).max() <= top_k:
                    most = max(most, used_rows(options, mask.sum(axis=0).tolist()))
            assert buffer_rows(cells, top_k, capacities, overflow, quantum) == most


def used_rows(options: RouterOptions, loads: list[int]) -> int:
    pairs = zip(loads, options.capacities, strict=True)
    return sum(branch_rows(load, of, options.overflow, options.quantum) for load, of in pairs)
