"""Tensors as rows of cells and back, and what protocols decide of scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tvm
from numpy_relay import run_by_numpy
from relay_models import module, var
from tvm import relay

from heteroplace import routing
from heteroplace.errors import RoutingError
from heteroplace.parts.routing.relay.cells import Cells

Array = np.ndarray


def run(result: relay.Expr, **inputs: Array) -> Array:
    mod = module(relay.analysis.free_vars(result), result)
    return run_by_numpy(mod, inputs)[0]


@pytest.mark.parametrize(
    ("whole", "dims", "cell", "layout", "row"),
    [
        ((3, 8), (0,), (1, 8), (3,), (8,)),
        ((6, 4), (0, 1), (2, 2), (3, 2), (2, 2)),
        ((4, 6, 5), (0, 1), (1, 1), (4, 6), (5,)),
        ((4, 3, 4, 6), (0, 2, 3), (1, 3, 2, 2), (4, 2, 3), (3, 2, 2)),
        ((2, 6), (1, 0), (2, 3), (2, 1), (2, 3)),
        ((5,), (0,), (1,), (5,), ()),
        ((1, 3, 4), (0,), (1, 3, 4), (1,), (3, 4)),
    ],
)
def test_cells_are_rows_and_rows_a_tensor_again(
    whole: tuple[int, ...],
    dims: tuple[int, ...],
    cell: tuple[int, ...],
    layout: tuple[int, ...],
    row: tuple[int, ...],
) -> None:
    x = np.arange(np.prod(whole), dtype="float32").reshape(whole)
    cells = routing.annotate_cell(var("x", whole), dims, cell)
    rows = run(cells.rows, x=x)
    assert cells.layout == layout and rows.shape == (int(np.prod(layout)), *row)
    expected = [x[where].ravel() for where in places(whole, dims, cells)]
    np.testing.assert_array_equal(rows.reshape(len(rows), -1), expected)
    np.testing.assert_array_equal(run(cells.restored(cells.rows), x=x), x)
    np.testing.assert_array_equal(run(cells.rows_of(cells.tensor, row), x=x), rows)


def places(whole: Sequence[int], dims: Sequence[int], cells: Cells) -> list[tuple[slice, ...]]:
    """Where each cell lies, along the first of dims slowest."""
    found = []
    for at in np.ndindex(*cells.layout):
        where = [slice(None)] * len(whole)
        for index, axis in zip(at, dims, strict=True):
            begin = index * cells.shape[axis]
            where[axis] = slice(begin, begin + cells.shape[axis])
        found.append(tuple(where))
    return found


def test_patches_that_a_branch_enlarges_lie_as_before() -> None:
    cells = routing.annotate_cell(var("x", (4, 6)), (0, 1), (2, 2))
    larger = relay.repeat(relay.repeat(cells.rows, 2, 1), 2, 2)
    x = np.arange(24, dtype="float32").reshape(4, 6)
    np.testing.assert_array_equal(run(cells.restored(larger), x=x), x.repeat(2, 0).repeat(2, 1))


def test_results_of_other_rank_lie_along_the_layout() -> None:
    cells = routing.annotate_cell(var("x", (4, 6)), (0, 1), (2, 2))
    x = np.arange(24, dtype="float32").reshape(4, 6)
    found = run(cells.restored(relay.sum(cells.rows, axis=[1, 2])), x=x)
    np.testing.assert_array_equal(found, x.reshape(2, 2, 3, 2).sum((1, 3)))


@pytest.mark.parametrize(
    ("whole", "dims", "cell", "words"),
    [
        ((3, 8), (0,), (2, 8), "tensor 'x' of shape .* axis 0 has 3, which cells of 2 do not fill"),
        ((3, 8), (0,), (1, 4), "axis 1 has 8 and cells have 4, but it is not in `dims`"),
        ((3, 8), (2,), (1,), r"cells along axes \(2,\)"),
        ((3, 8), (0, 0), (1, 8), r"different axes from 0 to 1"),
        ((3, 8), (0,), (1, 8, 1), "a cell has 3 extents"),
    ],
)
def test_cells_that_do_not_fill_a_tensor_are_refused(
    whole: tuple[int, ...], dims: tuple[int, ...], cell: tuple[int, ...], words: str
) -> None:
    with pytest.raises(RoutingError, match=words):
        routing.annotate_cell(var("x", whole), dims, cell)


SCORES = np.random.default_rng(5).standard_normal((7, 4)).astype("float32")


def decided(decision: routing.Decision, **inputs: Array) -> tuple[Array, Array | None]:
    gates = None if decision.gates is None else run(decision.gates, **inputs)
    mask = run(decision.mask, **inputs)
    assert ((mask != 0).sum(axis=1) <= decision.top_k).all()
    return mask, gates


@pytest.mark.parametrize("k", [1, 2, 4])
def test_top_k(k: int) -> None:
    mask, gates = decided(routing.top_k(var("s", (7, 4)), k), s=SCORES)
    kept = np.sort(SCORES, axis=1)[:, -k:].min(axis=1, keepdims=True)
    np.testing.assert_array_equal(mask, kept <= SCORES)
    np.testing.assert_array_equal(gates, np.where(mask, SCORES, 0))


def test_of_equal_scores_the_first_branch_is_taken_and_without_numbers_some_branch() -> None:
    nan, inf = np.float32("nan"), np.float32("inf")
    scores = [[1, 2, 2, 0], [-inf, -inf, -inf, -inf], [nan, nan, nan, nan], [nan, 3, nan, 1]]
    mask, _ = decided(routing.top_k(var("s", (4, 4))), s=np.array(scores, "float32"))
    assert mask[:2].argmax(1).tolist() == [1, 0]
    assert mask.sum(1).tolist() == [1, 1, 1, 1]


def test_a_router_is_compiled_without_warnings(capfd: pytest.CaptureFixture[str]) -> None:
    decision = routing.top_k(relay.add(var("s", (7, 4)), var("t", (7, 4))))
    run(decision.mask, s=SCORES, t=SCORES)
    assert "not in feed graph" not in capfd.readouterr().err


def test_scores_may_lie_as_the_cells_do() -> None:
    scores = SCORES[:6].reshape(2, 3, 4)
    mask, _ = decided(routing.top_k(var("s", (2, 3, 4))), s=scores)
    np.testing.assert_array_equal(mask.argmax(1), SCORES[:6].argmax(1))


@pytest.mark.parametrize("fallback", [None, 2])
def test_threshold(fallback: int | None) -> None:
    mask, _ = decided(routing.threshold(var("s", (7, 4)), 0.9, fallback), s=SCORES)
    expected = SCORES > 0.9
    assert not expected.any(axis=1).all()
    if fallback is not None:
        expected[~expected.any(axis=1), fallback] = True
    np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_labels_and_routes(dtype: str) -> None:
    ids = np.array([[0, 2, 1], [-1, 2, 0]], dtype)
    mask, _ = decided(routing.label(var("i", (2, 3), dtype), 3), i=ids)
    np.testing.assert_array_equal(mask, ids.reshape(-1, 1) == np.arange(3))
    again, _ = decided(routing.from_routes(ids, 3))
    np.testing.assert_array_equal(again, mask)
    wrong = routing.label(var("i", (3,), dtype), 3).mask
    refused = (run(wrong, i=np.array([3, -2, 1], dtype)) < 0).any(axis=1)
    assert refused.tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_hashes_spread_over_all_branches(dtype: str) -> None:
    ids = np.arange(-300, 300).astype(dtype)
    mask, _ = decided(routing.hashed(var("i", (600,), dtype), 7), i=ids)
    hashes = [((int(one) % 2**32) * 2654435761 % 2**32 >> 16) % 7 for one in ids]
    np.testing.assert_array_equal(mask.argmax(1), hashes)
    assert (mask.sum(0) > 40).all() and (mask.sum(1) == 1).all()


def test_a_capacity_factor_is_that_of_the_models() -> None:
    scores = var("s", (7, 4))
    assert routing.capacity_factor(scores, 2, 1.5).capacity == 2 * 3
    assert routing.capacity_factor(scores, 1, 0.0).capacity is None
    with pytest.raises(RoutingError, match="leaves room for no cell"):
        routing.capacity_factor(scores, 1, 0.4)
    cells = routing.annotate_cell(var("x", (7, 3)), (0,), (1, 3))
    for overflow in ("rounds", "error", ""):
        with pytest.raises(RoutingError, match=f"a capacity of 6, and overflow is {overflow!r}"):
            routing.route(
                cells, routing.capacity_factor(scores, 2, 1.5), [lambda x: x] * 4, overflow=overflow
            )
    best = routing.batch_prioritised(scores, 1, 1.0)
    assert best.capacity == 2
    np.testing.assert_array_equal(run(best.priority, s=SCORES), SCORES.max(axis=1))


def test_early_exit_is_for_the_sure() -> None:
    confidence = np.array([[0.2], [0.9], [np.nan], [0.5]], "float32")
    mask, _ = decided(routing.early_exit(var("c", (4, 1)), 0.5), c=confidence)
    assert mask.tolist() == [[0, 1], [1, 0], [0, 1], [0, 1]]


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_the_confidence_of_an_early_exit_may_be_of_any_float(dtype: str) -> None:
    """It is compared in its own type, which has 0.5."""
    given = "float32" if dtype == "bfloat16" else dtype  # numpy has no bfloat16
    confidence = relay.cast(var("c", (3,), given), dtype)
    values = np.array([0.25, 0.75, 0.5], given)
    mask, _ = decided(routing.early_exit(confidence, 0.5), c=values)
    assert mask.tolist() == [[0, 1], [1, 0], [0, 1]]


def test_masks_of_numpy_say_how_many_branches_a_cell_takes() -> None:
    mask = np.array([[1, 0, 1], [0, 0, 0]])
    decision = routing.from_mask(mask)
    assert decision.top_k == 2
    np.testing.assert_array_equal(decided(decision)[0], mask)
    assert routing.from_mask(var("m", (2, 3), "int32")).top_k == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: routing.top_k(var("s", (7, 4)), 5), "top_k of 5 branches; expected 1 to 4"),
        (lambda: routing.top_k(var("s", (7,))), "tensor 's' is float32"),
        (lambda: routing.top_k(var("s", (7, 4), "int32")), "tensor 's' is int32"),
        (lambda: routing.threshold(var("s", (7, 4)), 0.5, 4), "fallback is branch 4"),
        (lambda: routing.label(var("i", (7,)), 4), "routes are integers; tensor 'i' is float32"),
        (lambda: routing.from_routes([0, 3, 1], 3), "the route of cell 1 is 3; expected -1"),
        (lambda: routing.from_routes([0, -2], 3), "the route of cell 1 is -2"),
        (lambda: routing.from_routes([0.5, 1], 3), "routes are integers: .* got float64"),
        (lambda: routing.from_routes([np.nan, 1], 3), "routes are integers: .* got float64"),
        (lambda: routing.from_mask([[0, 2]]), "a mask is of 0 and 1"),
        (lambda: routing.early_exit(var("c", (7,), "int32"), 0.5), "tensor 'c' is int32"),
        (lambda: routing.host("f", [], 3, 2), "'f' reads nothing"),
    ],
)
def test_decisions_that_are_none_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(RoutingError, match=words):
        make()


def test_a_function_on_the_host_is_called_in_the_run() -> None:
    decision = routing.host("heteroplace.tests.unknown", [var("x", (4, 3))], 4, 2)
    assert decision.top_k == 2
    mod = module(relay.analysis.free_vars(decision.mask), decision.mask)
    assert isinstance(mod["main"].body.op, tvm.ir.Op)
