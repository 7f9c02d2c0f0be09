"""Gradients of convolutions and pools that TVM computes wrongly, or cannot compile, are refused."""

from __future__ import annotations

import pytest
from relay_models import module, var
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.parts.parallel.training.backward import differentiate
from heteroplace.relay.expressions import static_shape

pytestmark = pytest.mark.relay


def gradients(operands: list[relay.Var], body: relay.Expr) -> list[relay.Expr | None]:
    main = module(operands, body)["main"]
    seed = relay.ones(static_shape(main.body.checked_type), "float64")
    return differentiate(main.body, seed, list(main.params))


def refused(operands: list[relay.Var], body: relay.Expr) -> str:
    with pytest.raises(UnsupportedRelayError) as caught:
        gradients(operands, body)
    return str(caught.value)


@pytest.mark.parametrize(
    ("size", "stride", "pad", "ends"), [(3, 2, 0, (7, 6)), (3, 2, 1, (9, 8)), (2, 3, 0, (8, 6))]
)
def test_a_window_that_reaches_over_padding_that_counts_is_refused(
    size: int, stride: int, pad: int, ends: tuple[int, int]
) -> None:
    """TVM divides by all of the window, and going forward by what is not behind the padding."""
    x = var("x", (1, 3, 6, 7), "float64")

    def pool(**options: bool) -> relay.Expr:
        return relay.nn.avg_pool2d(x, (size, size), (stride, stride), padding=(pad, pad), **options)

    message = refused([x], pool(ceil_mode=True, count_include_pad=True))
    assert f"along H ends at {ends[0]}, behind the {ends[1]}" in message
    for options in ({"ceil_mode": True}, {"count_include_pad": True}):
        assert gradients([x], pool(**options)) != [None]


def test_convolutions_of_other_layouts_are_refused() -> None:
    x, w = var("x", (1, 4, 4, 2), "float64"), var("w", (3, 3, 2, 3), "float64")
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    conv = relay.nn.conv2d(x, w, channels=3, kernel_size=(3, 3), **layouts)
    assert "nn.conv2d of data NHWC, weights HWIO, result NHWC has no" in refused([x, w], conv)


def test_a_convolution_with_gaps_that_reaches_less_than_its_padding_is_refused() -> None:
    x, w = var("x", (1, 2, 5, 5), "float64"), var("w", (3, 2, 2, 2), "float64")
    conv = relay.nn.conv2d(x, w, channels=3, kernel_size=(2, 2), dilation=(2, 2), padding=(3, 3))
    assert "where the padding, [3, 3, 3, 3], is wider" in refused([x, w], conv)
