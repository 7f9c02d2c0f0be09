"""The table of ops that keep the parts of an axis apart: faults that shapes do not show."""

from __future__ import annotations

import pytest
from relay_models import module, var
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.relay.axes.shapes import places_after_reshape
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
