"""The table of ops that keep the parts of an axis apart: faults that shapes do not show."""

from __future__ import annotations

import numpy as np
import pytest
from relay_models import module, var
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.relay.axes.rules import is_broadcast
from heteroplace.relay.axes.shapes import places_after_reshape, slice_entries
from heteroplace.relay.tasks.fold import fold_constants
from heteroplace.relay.tasks.rebatch import rebatch


def test_flattening_items_behind_another_axis_is_refused() -> None:
    """The result has an axis as long as it should be, with the items of each row one by one."""
    data = var("x", (1, 2, 3))
    turned = relay.transpose(data, (1, 2, 0))
    with pytest.raises(UnsupportedRelayError, match="joins the items, axis 2"):
        rebatch(module([data], relay.nn.batch_flatten(turned)), 2)


def test_flattening_items_in_front_is_done() -> None:
    data = var("x", (1, 2, 3))
    flat = module([data], relay.nn.batch_flatten(data))
    assert [int(extent) for extent in rebatch(flat, 2)["main"].ret_type.shape] == [2, 6]


def test_a_triangle_of_items_is_refused_and_one_in_each_item_is_done() -> None:
    data = var("x", (1, 4, 8))
    rows = relay.reshape(data, (4, 8))
    with pytest.raises(
        UnsupportedRelayError, match=r"trilu.*a triangle of axis 0, which holds the"
    ):
        rebatch(module([data], relay.trilu(rows, relay.const(0), upper=False)), 2)
    each = rebatch(module([data], relay.trilu(data, relay.const(0), upper=False)), 2)
    assert [int(extent) for extent in each["main"].ret_type.shape] == [2, 4, 8]


def test_a_norm_along_several_axes_is_done_unless_one_has_the_items() -> None:
    data = var("x", (1, 3, 4))
    each = rebatch(module([data], relay.nn.l2_normalize(data, 1e-5, [1, 2])), 2)
    assert [int(extent) for extent in each["main"].ret_type.shape] == [2, 3, 4]
    with pytest.raises(UnsupportedRelayError, match=r"l2_normalize.* along axis 0 of 3"):
        rebatch(module([data], relay.nn.l2_normalize(data, 1e-5, [0, 2])), 2)


def test_vectors_along_another_axis_than_the_last_are_no_broadcast() -> None:
    """Though their sizes fit: each axis is as long as the other."""
    x, vector = var("x", (4, 4), "int32"), relay.const(np.arange(4, dtype="int32"))

    def is_fit(axis: int) -> list[bool]:
        scaled = relay.op._make.fixed_point_multiply_per_axis(
            x, vector, vector, vector, True, True, [axis]
        )
        biased = relay.nn.bias_add(x, vector, axis=axis)
        return [is_broadcast(module([x], each)["main"].body) for each in (scaled, biased)]

    assert is_fit(1) == [True, True]
    assert is_fit(0) == [False, False]


def test_slices_of_few_strides_have_1_behind_them() -> None:
    x = var("x", (6, 5, 7))
    call = module([x], relay.strided_slice(x, [1, 0, 2], [6, 5, 7], [2]))["main"].body
    assert slice_entries(call) == [(0, 1, 6, 2), (1, 0, 5, 1), (2, 2, 7, 1)]
    assert [int(extent) for extent in call.checked_type.shape] == [3, 5, 5]
    few = module([x], relay.strided_slice(x, [1, 1], [4], [1]))["main"].body
    assert slice_entries(few) == [(0, 1, 4, 1), (1, 1, 5, 1)]
    assert [int(extent) for extent in few.checked_type.shape] == [3, 4, 7]


def test_slices_of_few_strides_fold_to_what_tvm_computes() -> None:
    data = relay.const(np.arange(140, dtype="float32").reshape(7, 5, 4))
    mod = module([], relay.strided_slice(data, [1, 0, 1], [7, 5, 4], [2]))
    folds = (fold_constants, relay.transform.FoldConstant())
    ours, theirs = (fold(mod)["main"].body.data.numpy() for fold in folds)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("before", "blocks", "shape", "places"),
    [
        (1, 1, (4, 8), [(0, 1)]),
        (6, 1, (6, 4), [(0, 6), (1, 1)]),
        (2, 3, (2, 3, 4), [(0, 6), (1, 3), (2, 1)]),
        (4, 1, (8, 3), [(0, 4)]),
    ],
)
def test_places_of_an_axis_in_a_new_shape(
    before: int, blocks: int, shape: tuple[int, ...], places: list[tuple[int, int]]
) -> None:
    assert places_after_reshape(before, blocks, shape) == places
