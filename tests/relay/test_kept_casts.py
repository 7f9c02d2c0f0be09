"""kept_casts: casts that change numbers stay, whatever TVM's simplifier thinks of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tvm
from relay_models import TARGET, cpu_cluster, module, random_costs, var
from tvm import relay

import heteroplace as hp
from heteroplace.parts.onnx.converters.quantized.quantized import quantized
from heteroplace.relay.expressions import is_op_call, post_order
from heteroplace.relay.targets import float_lanes
from heteroplace.relay.tasks.prepare import prepare

pytestmark = pytest.mark.relay

BYTES = np.array([-128, -1, 0, 1, 127], "int8")
LONGS = np.array([-(2**24) - 1, 2**24 + 1, 2**31 - 1], "int32")
PARTS = np.array([-0.5, 0.7, 1.5, 254.99, 300], "float32")
FLOAT_MAX = float(np.finfo("float32").max)
Op = Callable[[relay.Expr], relay.Expr]


def casts(*dtypes: str) -> Op:
    """One cast after the other."""

    def op(x: relay.Expr) -> relay.Expr:
        for dtype in dtypes:
            x = relay.cast(x, dtype)
        return x

    return op


def clipped(*dtypes: str, most: float = 255) -> Op:
    """Casts behind a clip."""
    return lambda x: casts(*dtypes)(relay.clip(x, 0, most))


CASES: dict[str, tuple[Op, np.ndarray, np.ndarray]] = {
    "a sign is lost": (casts("uint8", "float32"), BYTES, BYTES.view("uint8").astype("float32")),
    "a sign is lost in a wider type": (
        casts("uint32", "int64"),
        BYTES,
        BYTES.astype("uint32").astype("int64"),
    ),
    "a sign is lost in the type of another value": (
        lambda x: relay.cast(relay.cast_like(x, relay.const(np.zeros(5), "uint8")), "int32"),
        BYTES,
        BYTES.view("uint8").astype("int32"),
    ),
    "digits are lost": (casts("float32", "int64"), LONGS[:2], np.array([-(2**24), 2**24])),
    "digits of float16": (
        casts("float16", "int32"),
        np.array([2049, -2051], "int16"),
        np.array([2048, -2052], "int32"),
    ),
    "parts behind the point are lost": (
        clipped("uint8", "float32"),
        PARTS,
        np.array([0, 0, 1, 254, 255], "float32"),
    ),
    "uint64 behind a clip": (
        clipped("uint64", most=9),
        PARTS,
        np.array([0, 0, 1, 9, 9], "uint64"),
    ),
    "uint64 behind a clip of integers": (
        clipped("int32", "uint64", most=9),
        BYTES,
        np.array([0, 0, 0, 1, 9], "uint64"),
    ),
    "a flag behind a clip": (
        clipped("bool", "float32", most=1),
        np.array([0, 0.25, 1, -3], "float32"),
        np.array([0, 1, 1, 0], "float32"),
    ),
    "a shorter float behind a clip": (
        clipped("float16", "float32", most=1),
        np.array([0.1, 0.3, 2], "float32"),
        np.array([0.1, 0.3, 1], "float16").astype("float32"),
    ),
    "infinity in a clip to the limits": (
        lambda x: relay.clip(x, -FLOAT_MAX, FLOAT_MAX),
        np.array([np.inf, 0.5, -np.inf], "float32"),
        np.array([FLOAT_MAX, 0.5, -FLOAT_MAX], "float32"),
    ),
    "a clip of uint64": (
        lambda x: relay.clip(x, 2, 9),
        np.arange(12, dtype="uint64"),
        np.clip(np.arange(12, dtype="uint64"), 2, 9),
    ),
}


@pytest.mark.costly(8)
@pytest.mark.parametrize("name", CASES)
def test_a_cast_changes_what_it_should(name: str) -> None:
    op, data, expected = CASES[name]
    x = var("x", data.shape, str(data.dtype))
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(module([x], op(x)), cpu_cluster(), {}, costs=random_costs)
    (found,) = hp.Executor(executable).run(x=data)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


@pytest.mark.costly(4)
@pytest.mark.parametrize("target", ["llvm -mcpu=haswell", "llvm -mcpu=skylake-avx512"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_parts_are_lost_before_a_product_of_integers_by_floats(target: str, dtype: str) -> None:
    """Processors without sums of 8 bits in 32: the product puts a cast of its own behind it."""
    if float_lanes(tvm.target.Target(target)) > float_lanes(tvm.target.Target(TARGET)):
        pytest.skip("this CPU has no AVX-512")
    cluster = cpu_cluster()
    devices = tuple(replace(device, target=target) for device in cluster.devices)
    x, limits = var("x", (1, 4)), np.iinfo(dtype)
    data = relay.cast(relay.clip(x, float(limits.min), float(limits.max)), dtype)
    body = relay.nn.dense(data, relay.const(np.ones((2, 4), "int8")), out_dtype="int32")
    with tvm.transform.PassContext(opt_level=3):
        made = hp.build(module([x], body), replace(cluster, devices=devices), costs=random_costs)
    (found,) = hp.Executor(made).run(x=np.array([[0.5, 1.5, 2.75, 0.99]], "float32"))
    np.testing.assert_array_equal(found, [[3, 3]])


def test_no_op_is_added_where_all_numbers_are_whole() -> None:
    x = var("x", (5,))
    body = relay.cast(quantized(x, relay.const(3, "uint8"), "uint8"), "float32")
    with tvm.transform.PassContext(opt_level=3):
        main = prepare(module([x], body))["main"]
    assert not any(is_op_call(node, "trunc") for node in post_order(main.body))
