"""Quantised results that are proven to be small: where the op stands, and its bytes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_models as om
import pytest
import tvm
import tvm.contrib.graph_executor
from relay_models import cpu_cluster, random_costs, var
from tvm import relay, te, tir

import heteroplace as hp
from heteroplace.parts.kernels.cpu.bounded_bytes import (
    BYTE_OP,
    LARGEST,
    bounded_bytes,
    packed_bytes,
)
from heteroplace.parts.kernels.rewrites.bounded_steps import with_bounded_steps
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.relay.expressions import is_op_call, post_order
from heteroplace.relay.targets import multiplies_integers
from heteroplace.tir.keep_nan import hidden
from heteroplace.tvm_bridge import llvm_cpu_target

pytestmark = pytest.mark.relay

SHIFT = 3.0 * 2**22
LANES = 16
HAS_VNNI = multiplies_integers(tvm.target.Target(llvm_cpu_target()))
needs_vnni = pytest.mark.skipif(not HAS_VNNI, reason="this processor has no VNNI")


def sums(weight: int = 1, is_depthwise: bool = False) -> relay.Expr:
    """A convolution in blocks of channels, whose sums are within 255 * 64 * weight (9 * weight)."""
    data = var("x", (1, 4, 6, 6, LANES), "uint8")
    if is_depthwise:
        filters = np.full((4, 1, 3, 3, 1, LANES), weight, "int8")
        op, groups, channels, layout = relay.nn.contrib_depthwise_conv2d_nchwc, 64, 64, "OIHW1i16o"
    else:
        filters = np.full((1, 4, 1, 1, 4, LANES, 4), weight, "int8")
        op, groups, channels, layout = relay.nn.contrib_conv2d_nchwc, 1, LANES, "OIHW4i16o4i"
    return op(
        data,
        relay.const(filters),
        kernel_size=filters.shape[2:4],
        channels=channels,
        groups=groups,
        data_layout="NCHW16c",
        kernel_layout=layout,
        out_layout="NCHW16c",
        out_dtype="int32",
    )


def scaled(scale: float, weight: int = 1, is_depthwise: bool = False) -> relay.Expr:
    blocks = 4 if is_depthwise else 1
    factor = np.full((1, blocks, 1, 1, LANES), scale, "float32")
    product = relay.cast(sums(weight, is_depthwise), "float32") * relay.const(factor)
    return product + relay.const(np.full((1, blocks, 1, 1, LANES), 3, "float32"))


def quantised(value: relay.Expr, zero: float | None = 0.0, dtype: str = "uint8") -> relay.Expr:
    within = relay.clip(value + relay.const(SHIFT), SHIFT - 2**19, SHIFT + 2**19)
    whole = within - relay.const(SHIFT)
    if zero is not None:
        whole = whole + relay.const(zero)
    return relay.cast(relay.clip(whole, 0, 255), dtype)


def ops_behind(body: relay.Expr) -> list[relay.Call]:
    """Calls of the op after the pass."""
    function = relay.Function(relay.analysis.free_vars(body), body)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(function))
    after = with_bounded_steps(mod["main"])
    return [node for node in post_order(after.body) if is_op_call(node, BYTE_OP)]


@pytest.mark.parametrize("is_depthwise", [False, True])
@pytest.mark.parametrize("zero", [None, 0.0, 128.0])
def test_small_sums_are_rounded_by_the_op(is_depthwise: bool, zero: float | None) -> None:
    (call,) = ops_behind(quantised(relay.nn.relu(scaled(0.05, -2, is_depthwise)), zero))
    assert int(call.attrs["zero"]) == (zero or 0)
    # The clip at 0 is that of the ReLU, if no zero point is added behind it.
    assert is_op_call(call.args[0], "nn.relu") == (zero == 128.0)


def test_the_limit_is_that_of_the_sums() -> None:
    """Of 64 products of 255 by 127, scaled."""
    largest = 255 * 64 * 127
    assert ops_behind(quantised(scaled((LARGEST - 4) / largest, 127)))
    assert ops_behind(quantised(scaled(-(LARGEST - 4) / largest, 127)))
    assert not ops_behind(quantised(scaled((LARGEST + 1) / largest, 127)))
    assert not ops_behind(quantised(scaled(-(LARGEST + 8) / largest, 127)))


@pytest.mark.parametrize(
    "body",
    [
        quantised(scaled(0.05), 3.0),  # ties would be rounded to odd numbers
        quantised(scaled(0.05), 0.5),
        quantised(scaled(0.05), -2.0),
        quantised(scaled(0.05), 0.0, "int8"),
        quantised(scaled(0.05) * var("factor", ())),
        quantised(relay.cast(var("sums", (1, 1, 6, 6, LANES), "int32"), "float32")),
        quantised(relay.exp(scaled(0.05))),
    ],
)
def test_other_numbers_are_clipped(body: relay.Expr) -> None:
    assert not ops_behind(body)


@pytest.mark.parametrize("width", [1, 3, 4, 5, 6, 7, 8, 11])
@pytest.mark.parametrize("zero", [0, 128])
@needs_vnni
def test_bytes_are_those_of_numpy(width: int, zero: int) -> None:
    """Ties, both ends of the range and beyond, in rows that are no whole fours of vectors."""
    bounded_bytes(var("x", (1,)), 0, None)  # adds the op
    x = te.placeholder((2, width, LANES), "float32", "x")
    compute = tvm.ir.Op.get(BYTE_OP).get_attr("FTVMCompute")
    attrs = tvm.ir.make_node("DictAttrs", zero=zero)
    (y,) = compute(attrs, [x], None)
    schedule = te.create_schedule(y.op)
    schedule[y].unroll(y.op.axis[1])
    schedule[y].vectorize(y.op.axis[2])
    functions = packed_bytes(tvm.lower(schedule, [x, y]))
    assert ("heteroplace_packed_bytes" in str(functions)) == (width >= 4)
    kernel = tvm.build(functions, target=llvm_cpu_target())
    random = np.random.default_rng(width)
    numbers = random.integers(-700, 700, (2, width, LANES)).astype("float32") / 2
    numbers.flat[:6] = [LARGEST, -LARGEST, 255.5, 254.5, -0.5, 0.5]
    result = tvm.nd.array(np.zeros(numbers.shape, "uint8"))
    kernel(tvm.nd.array(numbers), result)
    expected = np.clip(np.rint(numbers) + zero, 0, 255)
    np.testing.assert_array_equal(result.numpy(), expected.astype("uint8"))


def bytes_by_both_kernels(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    """The output of a model by our kernels and by TVM's own."""
    imported = from_onnx(model, simplify=False)
    results = []
    for options in ({}, {"kernels": "tvm"}):
        with tvm.transform.PassContext(opt_level=3):
            executable = hp.build(
                imported.mod, cpu_cluster(), imported.params, costs=random_costs, **options
            )
        (output,) = hp.Executor(executable).run(x=x)
        results.append(np.copy(output))
    return results


def test_bytes_of_numbers_that_may_be_large_are_not_packed() -> None:
    """`rounded_bytes` makes nearly the same form of them, which needs its clip."""
    x = te.placeholder((2, 8, LANES), "float32", "x")
    least, most = (tir.FloatImm("float32", SHIFT + each) for each in (0, 255))

    def byte(*at: tir.Var) -> tir.PrimExpr:
        shifted = x(*at) + tir.FloatImm("float32", SHIFT)
        within = tir.Min(tir.Max(shifted, hidden(least)), hidden(most))
        return tir.Cast("uint8", tir.reinterpret("int32", within))

    y = te.compute(x.shape, byte, "y")
    schedule = te.create_schedule(y.op)
    schedule[y].unroll(y.op.axis[1])
    schedule[y].vectorize(y.op.axis[2])
    functions = tvm.lower(schedule, [x, y])
    assert packed_bytes(functions).same_as(functions)


@pytest.mark.costly(8)
@pytest.mark.parametrize(("size", "zero"), [(14, 0), (9, 128), (6, 3)])
def test_a_quantised_network_gives_the_same_bytes_by_tvms_kernels(size: int, zero: int) -> None:
    random = np.random.default_rng(size)
    weights = {
        "s": np.float32(0.05),
        "z": np.uint8(zero),
        "w": random.integers(-127, 128, (32, 16, 1, 1)).astype("int8"),
        "d": random.integers(-127, 128, (32, 1, 3, 3)).astype("int8"),
        "ws": random.uniform(0.002, 0.02, 32).astype("float32"),
        "wz": np.zeros(32, "int8"),
    }
    nodes = [
        om.node("DequantizeLinear", "x s z", "xf"),
        om.node("DequantizeLinear", "w ws wz", "wf", axis=0),
        om.node("DequantizeLinear", "d ws wz", "df", axis=0),
        *(om.node("Conv", "xf wf", "c"), om.node("Relu", "c", "r")),
        *(om.node("QuantizeLinear", "r s z", "q"), om.node("DequantizeLinear", "q s z", "f")),
        om.node("Conv", "f df", "e", pads=[1] * 4, group=32),
        om.node("QuantizeLinear", "e s z", "y"),
    ]
    x = random.integers(0, 256, (1, 16, size, size)).astype("uint8")
    own, stock = bytes_by_both_kernels(om.typed_model(nodes, {"x": x}, ["y"], weights), x)
    assert len(np.unique(own)) > 100
    np.testing.assert_array_equal(own, stock)
