"""Ops behind a convolution in blocks of channels, whose places along the channels must stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from relay_models import module, var
from tvm import relay

import heteroplace as hp
from benchmarks.conformance.worker import turn_by_turn, two_memories

pytestmark = pytest.mark.relay

CHANNELS = 4
OPS: dict[str, Callable[[relay.Expr], relay.Expr]] = {
    "values of topk": lambda x: relay.topk(x, 1, 1, "both", True, "int64")[0],
    "values alone": lambda x: relay.topk(x, 2, 1, "values"),
    "places of topk": lambda x: relay.topk(x, 1, 1, "both", True, "int64")[1],
    "argmax of channels and rows": lambda x: relay.argmax(x, [1, 2], keepdims=True),
    "argmin of all": lambda x: relay.argmin(x, None),
    "argmax of channels": lambda x: relay.argmax(x, [1]),
    "halves of the channels": lambda x: relay.add(*[relay.split(x, 2, 1)[i] for i in (0, 1)]),
    "mean of a row, then a pool": lambda x: relay.nn.avg_pool1d(relay.mean(x, [3]), (2,)),
    "places over the batch, then a pool": lambda x: relay.nn.avg_pool1d(
        relay.cast(relay.argmax(x, [0]), "float32"), (1,), strides=(2,)
    ),
    "one of a row, then a pool": lambda x: relay.nn.max_pool1d(
        relay.squeeze(relay.strided_slice(x, [0], [1], axes=[3]), [3]), (2,)
    ),
    "any of the channels": lambda x: relay.any(relay.greater(x, relay.const(1.0)), [1], True),
    "all of the rows": lambda x: relay.all(relay.greater(x, relay.const(-9.0)), [2]),
    "unbiased variance of the channels": lambda x: relay.variance(x, [1], unbiased=True),
    "variance of channels and rows": lambda x: relay.variance(x, [1, 2], keepdims=True),
    "sizes of a part of the channels": lambda x: relay.sum(
        relay.strided_slice(x, [0, 1, 0, 0], [-1, 2, -1, -1], slice_mode="size"), [2]
    ),
    "halves of the rows": lambda x: relay.split(x, 2, 2)[1],
}


def of_plain_layout(data: np.ndarray, kernel: np.ndarray, name: str) -> np.ndarray:
    """The same of the op alone, which nothing gives another layout."""
    windows = np.lib.stride_tricks.sliding_window_view(data, (3, 3), (2, 3))
    made = np.einsum("bchwij,ocij->bohw", windows, kernel).astype(np.float32)
    x = var("x", made.shape)
    executor = relay.create_executor(
        "graph", module([x], OPS[name](x)), tvm.cpu(), "llvm", params={}
    )
    return executor.evaluate()(made).numpy()  # type: ignore[no-any-return]


def test_one_channel_is_squeezed_away() -> None:
    x = var("x", (1, 3, 8, 8))
    kernel = relay.const(np.ones((1, 3, 3, 3), "float32"))
    body = relay.squeeze(relay.nn.conv2d(x, kernel, channels=1, kernel_size=(3, 3)), [0, 1])
    with tvm.transform.PassContext(opt_level=3):
        made = hp.build(module([x], body), two_memories(), costs=turn_by_turn, solver="heft")
    (found,) = hp.Executor(made).run(x=np.ones((1, 3, 8, 8), "float32"))
    np.testing.assert_array_equal(found, np.full((6, 6), 27))


@pytest.mark.parametrize("name", OPS)
def test_op_behind_blocks_of_channels(name: str) -> None:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1, 3, 8, 8), dtype=np.float32)
    kernel = rng.standard_normal((CHANNELS, 3, 3, 3), dtype=np.float32)
    x = var("x", data.shape)
    maps = relay.nn.conv2d(x, relay.const(kernel), channels=CHANNELS, kernel_size=(3, 3))
    with tvm.transform.PassContext(opt_level=3):
        place = hp.HeteroPlace(two_memories(), costs=turn_by_turn, solver="heft", verify="off")
        executable = hp.build(place(module([x], OPS[name](maps))))
    (actual,) = hp.Executor(executable).run(x=data)
    expected = of_plain_layout(data, kernel, name)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
