"""flops: counts worked out by hand, a multiply-add as two."""

from __future__ import annotations

import pytest
import tvm
from relay_models import module, var
from tvm import relay

from heteroplace.relay.tasks.flops import call_flops


def conv_of(data, weight, **attributes) -> relay.Expr:
    kernel = attributes.pop("kernel_size", (3, 3))
    return relay.nn.conv2d(
        var("x", data), var("w", weight), kernel_size=kernel, padding=(1, 1), **attributes
    )


CASES = {
    # 2 x outputs x (weights per output channel)
    "conv": (conv_of((1, 8, 10, 10), (16, 8, 3, 3), channels=16), 2 * 16 * 100 * 8 * 9),
    "strided conv": (
        conv_of((1, 8, 10, 10), (16, 8, 3, 3), channels=16, strides=(2, 2)),
        2 * 16 * 25 * 8 * 9,
    ),
    "batch of 3": (conv_of((3, 8, 10, 10), (16, 8, 3, 3), channels=16), 2 * 3 * 16 * 100 * 8 * 9),
    "grouped conv": (
        conv_of((1, 8, 10, 10), (16, 2, 3, 3), channels=16, groups=4),
        2 * 16 * 100 * 2 * 9,
    ),
    "depthwise conv": (
        conv_of((1, 8, 10, 10), (8, 1, 3, 3), channels=8, groups=8),
        2 * 8 * 100 * 9,
    ),
    "NHWC conv": (
        conv_of(
            (1, 10, 10, 8), (3, 3, 8, 16), channels=16, data_layout="NHWC", kernel_layout="HWIO"
        ),
        2 * 16 * 100 * 8 * 9,
    ),
    "conv1d": (
        relay.nn.conv1d(
            var("x", (1, 4, 10)), var("w", (6, 4, 3)), channels=6, kernel_size=3, padding=1
        ),
        2 * 6 * 10 * 4 * 3,
    ),
    "transposed conv": (  # every input element meets every weight of its channel
        relay.nn.conv2d_transpose(
            var("x", (1, 4, 5, 5)),
            var("w", (4, 6, 2, 2)),
            channels=6,
            kernel_size=(2, 2),
            strides=(2, 2),
        ),
        2 * 4 * 25 * 6 * 4,
    ),
    "dense": (relay.nn.dense(var("x", (5, 7)), var("w", (3, 7))), 2 * 5 * 3 * 7),
    "matmul": (relay.nn.matmul(var("x", (5, 7)), var("w", (7, 3))), 2 * 5 * 3 * 7),
    "matmul of a transposed": (
        relay.nn.matmul(var("x", (7, 5)), var("w", (7, 3)), transpose_a=True),
        2 * 5 * 3 * 7,
    ),
    "batch_matmul": (
        relay.nn.batch_matmul(var("x", (2, 5, 7)), var("w", (2, 3, 7))),
        2 * 2 * 5 * 3 * 7,
    ),
    "max_pool": (relay.nn.max_pool2d(var("x", (1, 4, 8, 8)), (2, 2), (2, 2)), 4 * 16 * 4),
    "global pool": (relay.nn.global_avg_pool2d(var("x", (1, 4, 8, 8))), 4 * 64),
    "relu": (relay.nn.relu(var("x", (2, 3))), 6),
    "broadcast add": (relay.add(var("x", (4, 1)), var("w", (1, 5))), 20),
    "sum": (relay.sum(var("x", (4, 5))), 20),
    "reshape": (relay.reshape(var("x", (4, 5)), (20,)), 0),
    "transpose": (relay.transpose(var("x", (4, 5))), 0),
    "concatenate": (relay.concatenate([var("x", (4, 5)), var("w", (4, 5))], 0), 0),
    "no elements": (relay.nn.relu(var("x", (0, 3))), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_flops(name: str) -> None:
    expression, expected = CASES[name]
    mod: tvm.IRModule = module(relay.analysis.free_vars(expression), expression)
    assert call_flops(mod["main"].body) == expected
