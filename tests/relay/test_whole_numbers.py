"""Networks of integers stay exact on processors that have no instruction for products of bytes, and
where kernels of ours stand for ops of floats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tvm
from numpy_relay import run_by_numpy
from relay_models import cpu_cluster, module, random_costs, var
from tvm import relay

import heteroplace as hp
from heteroplace.parts.kernels.rewrites.winograd import winograd_tile
from heteroplace.tvm_bridge import llvm_cpu_target

pytestmark = pytest.mark.relay

HERE = llvm_cpu_target()
OLD = "llvm -mcpu=haswell"


def outputs_of(mod: tvm.IRModule, target: str, x: np.ndarray) -> np.ndarray:
    """Of a network built for one core of a processor."""
    cluster = cpu_cluster()
    device = replace(cluster.devices[0], target=target)
    one = replace(cluster, devices=(device,))
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod, one, costs=random_costs, solver="heft")
    (found,) = hp.Executor(executable).run(x=x)
    return np.asarray(found)


def conv(x: relay.Expr, filters: np.ndarray, **attributes: object) -> relay.Expr:
    size = filters.shape[2]
    about = {"channels": len(filters), "kernel_size": (size, size), "padding": (size // 2,) * 2}
    return relay.nn.conv2d(x, relay.const(filters), **about | attributes)


def pooled(x: relay.Expr, filters: np.ndarray) -> relay.Expr:
    return relay.nn.global_avg_pool2d(conv(x, filters, out_dtype="int32"))


@pytest.mark.parametrize("target", [OLD, HERE])
@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda x, filters: conv(x, filters, out_dtype="int32"), 24),
        (lambda x, filters: conv(x, filters[:, :, :1, :1], out_dtype="int16"), 5),
        (pooled, 24),
    ],
    ids=["sums", "sums in 16 bits", "mean"],
)
def test_sums_of_bytes_are_whole(
    target: str, make: Callable[[relay.Expr, np.ndarray], relay.Expr], size: int
) -> None:
    """3 x 3 of floats is Winograd's there, whose sums are near whole numbers, not whole."""
    random = np.random.default_rng(size)
    assert winograd_tile(32, 32, 24, 24)
    x = random.integers(0, 256, (1, 32, size, size)).astype("uint8")
    filters = random.integers(-128, 128, (32, 32, 3, 3)).astype("int8")
    data = var("x", x.shape, "uint8")
    mod = module([data], make(data, filters))
    (expected,) = run_by_numpy(mod, {"x": x})
    found = outputs_of(mod, target, x)
    assert found.dtype == mod["main"].ret_type.dtype
    assert (found == expected.astype(found.dtype)).all()  # a mean is rounded towards zero


def test_a_mean_in_64_bits_is_one_of_64_bits() -> None:
    x = np.random.default_rng(0).random((1, 16, 7, 7))
    data = var("x", x.shape, "float64")
    blocks = relay.layout_transform(data, "NCHW", "NCHW16c")
    mean = relay.nn.global_avg_pool2d(blocks, layout="NCHW16c")
    mod = module([data], relay.layout_transform(mean, "NCHW16c", "NCHW"))
    found = outputs_of(mod, HERE, x)
    assert np.abs(found - x.mean((2, 3), keepdims=True)).max() < 1e-15
