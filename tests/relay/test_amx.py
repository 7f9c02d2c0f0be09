"""Products and convolutions by AMX: the machine code, kernels against numpy, and networks."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from relay_models import TARGET, conv, cpu_cluster, module, random_inputs, var, weights
from tvm import relay, te

import heteroplace as hp
from heteroplace.bfloat16_bits import bfloat16_bits, rounded_to_bfloat16
from heteroplace.errors import LoweringError
from heteroplace.parts.kernels.cpu import bfloat16_conv_op
from heteroplace.parts.kernels.cpu.amx.amx_assembly import BlockProduct, Part
from heteroplace.parts.kernels.cpu.amx.amx_conv import int8_conv
from heteroplace.parts.kernels.cpu.amx.amx_products import mark_block, with_amx
from heteroplace.parts.kernels.cpu.bfloat16 import ROUND_OP
from heteroplace.parts.kernels.cpu.filter_window import FilterWindow
from heteroplace.parts.kernels.cpu.grouped_matmul_op import (
    BFLOAT16_MATMUL,
    INT8_MATMUL,
    GroupedMatmul,
)
from heteroplace.parts.kernels.cpu.int8_conv import schedule_int8_conv
from heteroplace.parts.kernels.rewrites.bfloat16_products import Bfloat16Convolutions
from heteroplace.parts.kernels.rewrites.narrow_weights import widened
from heteroplace.pipeline.error_budget import largest_error
from heteroplace.relay.expressions import is_op_call, post_order
from heteroplace.relay.targets import multiplies_tiles

pytestmark = pytest.mark.relay

on_amx = pytest.mark.skipif(
    not multiplies_tiles(tvm.target.Target(TARGET)), reason="the processor has no AMX"
)
AMX = "llvm -keys=amx,cpu -mcpu=cooperlake"
EXACT = 1e-5
"""Of the largest value: sums of the same products in another order."""
SYS_ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18


def amx_kernel(tensors: Sequence[te.Tensor], schedule: te.Schedule) -> tuple[tvm.IRModule, int]:
    """Lower a kernel, and count its calls of functions that multiply by AMX."""
    functions = with_amx(tvm.lower(schedule, list(tensors)))
    names = re.findall(r'"heteroplace_amx_\w+_[0-9a-f]{16}"', functions.script())
    return functions, len(names)


def run_kernel(functions: tvm.IRModule, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Run a lowered kernel; its last parameter is the result."""
    # TVM runs it, and not the executor, which asks the system for the tiles.
    assert ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0
    kernel = tvm.build(functions, target=tvm.target.Target(AMX))
    result = functions["main"].buffer_map[functions["main"].params[-1]]
    zeros = np.zeros([int(extent) for extent in result.shape], result.dtype)
    values = [tvm.nd.array(each) for each in (*arrays, zeros)]
    kernel(*values)
    output: np.ndarray = values[-1].numpy()
    return output


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_machine_code_is_that_of_the_manual() -> None:
    parts = Part(0, 0), Part(4096, 2048)
    block = BlockProduct(
        "uint16", 15, 64, parts, parts[:1], ((100, -4096),), 3, (64, 1024), 128, 64, 64, True
    )
    code = [
        bytes(map(int, line.split(",")))
        for line in re.findall(r"\.byte ([\d,]+)", block.text())
        if line
    ]
    # As GNU's assembler writes them.
    expected = (
        "c4 82 7b 4b 84 08 00 00 00 00",  # tileloadd 0(%r8,%r9,1),%tmm0
        "c4 82 7b 4b 8c 08 00 08 00 00",  # tileloadd 2048(%r8,%r9,1),%tmm1
        "c4 e2 7b 4b b4 17 00 f0 ff ff",  # tileloadd -4096(%rdi,%rdx,1),%tmm6
        "c4 e2 7b 4b a4 06 64 00 00 00",  # tileloadd 100(%rsi,%rax,1),%tmm4
        "c4 e2 4a 5c c4",  # tdpbf16ps %tmm6,%tmm4,%tmm0
        "c4 e2 7b 4b ac 06 64 10 00 00",  # tileloadd 4196(%rsi,%rax,1),%tmm5
        "c4 e2 4a 5c cd",  # tdpbf16ps %tmm6,%tmm5,%tmm1
        "c4 82 7a 4b 84 08 00 00 00 00",  # tilestored %tmm0,0(%r8,%r9,1)
        "c4 82 7a 4b 8c 08 00 08 00 00",  # tilestored %tmm1,2048(%r8,%r9,1)
        "c4 e2 78 49 00",  # ldtilecfg (%rax)
        "c4 e2 78 49 c0",  # tilerelease
    )
    assert [each.hex(" ") for each in code] == list(expected)
    of_bytes = block._replace(dtype="uint8", adds=False).text()
    assert ".byte 196,226,123,73,192" in of_bytes  # tilezero %tmm0
    assert ".byte 196,226,73,94,196" in of_bytes  # tdpbusd %tmm6,%tmm4,%tmm0


def multiplied(op: GroupedMatmul, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, int]:
    """The product of a matrix, as the op reads it, and of weights, and how many calls of AMX."""
    with tvm.target.Target(AMX):
        panels = op.panels(b)
        left = te.placeholder(a.shape, str(a.dtype), "a")
        right = te.placeholder(panels.shape, str(panels.dtype), "b")
        (product,) = op.compute({"columns": len(b)}, [left, right], None)
        schedule = op.schedule_grouped_matmul(None, [product], None)
        functions, calls = amx_kernel((left, right, product), schedule)
    return run_kernel(functions, (a, panels)), calls


@on_amx
@pytest.mark.parametrize("rows", [2, 17, 33, 197])
@pytest.mark.parametrize("columns", [16, 33, 70])
@pytest.mark.parametrize("depth", [16, 50, 96, 1024])
def test_products_are_those_of_rounded_numbers(rows: int, columns: int, depth: int) -> None:
    a, b = normal(rows, depth), normal(columns, depth)
    output, calls = multiplied(BFLOAT16_MATMUL, bfloat16_bits(a), b)
    # A step multiplies 5 of 25 pairs: too few for AMX.
    assert (calls > 0) == (depth != 50)
    wide_a, wide_b = (rounded_to_bfloat16(each).astype(np.float64) for each in (a, b))
    assert largest_error([output], [(wide_a @ wide_b.T).astype(np.float32)]) < EXACT


@on_amx
@pytest.mark.parametrize(
    ("size", "strides", "padding", "dilation"),
    [
        ((1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
        ((1, 1), (2, 2), (0, 0, 0, 0), (1, 1)),
        ((3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
        ((3, 3), (2, 2), (3, 3, 3, 3), (3, 3)),
        ((5, 3), (2, 1), (2, 1, 0, 3), (1, 1)),
        ((7, 7), (2, 2), (3, 3, 3, 3), (1, 1)),
    ],
)
@pytest.mark.parametrize("data", [(1, 1, 7, 7, 16), (2, 3, 9, 33, 32), (1, 1, 28, 20, 4)])
@pytest.mark.parametrize("blocks", [2, 3])
def test_convolutions_are_those_of_rounded_numbers(
    size: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    data: tuple[int, ...],
    blocks: int,
) -> None:
    values, filters = normal(*data), normal(blocks, data[1], *size, data[-1], 16)
    window = FilterWindow(strides, padding, dilation)
    pairs = bfloat16_conv_op.paired_filters(filters)
    with tvm.target.Target(AMX):
        left = te.placeholder(data, "uint16", "data")
        right = te.placeholder(pairs.shape, "uint16", "filters")
        (result,) = bfloat16_conv_op._compute(window._asdict(), [left, right], None)
        schedule = bfloat16_conv_op.schedule_bfloat16_conv(None, [result], None)
        functions, calls = amx_kernel((left, right, result), schedule)
    assert calls > 0
    output = run_kernel(functions, (bfloat16_bits(values), pairs))
    rounded = rounded_to_bfloat16(values), rounded_to_bfloat16(filters)
    assert largest_error([output], [convolved(*rounded, *window)]) < EXACT


@on_amx
@pytest.mark.parametrize("sizes", [(2, 48, 64), (70, 33, 128), (197, 70, 1024)])
def test_products_of_bytes_are_exact(sizes: tuple[int, int, int]) -> None:
    rows, columns, depth = sizes
    a, b = all_bytes(rows, depth)[0], all_bytes(columns, depth)[1]
    output, calls = multiplied(INT8_MATMUL, a, b)
    assert calls > 0
    assert np.array_equal(output, a.astype(np.int64) @ b.astype(np.int64).T)


@on_amx
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_of_bytes_are_exact(size: int, stride: int) -> None:
    values, _ = all_bytes(1, 3, 15, 21, 16)
    _, filters = all_bytes(2, 3, size, size, 16, 16)
    fours = filters.reshape(2, 3, size, size, 4, 4, 16).swapaxes(-1, -2)
    window = FilterWindow((stride, stride), (size // 2,) * 4, (1, 1))
    with tvm.target.Target(AMX):
        left = te.placeholder(values.shape, "uint8", "data")
        right = te.placeholder(fours.shape, "int8", "filters")
        result = int8_conv(left, right, {**window._asdict(), "groups": 1})
        assert result is not None
        functions, calls = amx_kernel((left, right, result), schedule_int8_conv([result]))
    assert calls > 0
    output = run_kernel(functions, (values, np.ascontiguousarray(fours)))
    expected = convolved(values, filters, *window)
    assert np.array_equal(output, expected)


def all_bytes(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of uint8 and of int8, with the smallest and the largest."""
    random = np.random.default_rng(len(shape))
    unsigned = random.integers(0, 256, shape, np.uint8)
    signed = random.integers(-128, 128, shape, np.int8)
    unsigned.flat[:2], signed.flat[:2] = (0, 255), (-128, 127)
    return unsigned, signed


def convolved(
    data: np.ndarray,
    filters: np.ndarray,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> np.ndarray:
    """By numpy, in 64 bits."""
    above, left, below, right = padding
    around = (0, 0), (0, 0), (above, below), (left, right), (0, 0)
    padded = np.pad(data.astype(np.float64), around)
    extent = [(e - 1) * d + 1 for e, d in zip(filters.shape[2:4], dilation, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, extent, (2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1], :, :: dilation[0], :: dilation[1]]
    sums = np.einsum("nbyxlij,obijlk->noyxk", windows, filters.astype(np.float64), optimize=True)
    return sums.astype(np.float32)


@on_amx
@pytest.mark.costly
def test_networks_join_blocks_of_channels_where_amx_makes_and_reads_them() -> None:
    x = var("x", (1, 32, 14, 14))
    first = relay.nn.relu(conv(x, 64, 32, 3))
    shared = relay.nn.relu(conv(first, 64, 64, 1))
    deep = relay.nn.conv2d(
        shared, weights(64, 1, 3, 3), groups=64, channels=64, kernel_size=(3, 3), padding=(1, 1)
    )
    last = conv(relay.nn.relu(deep), 32, 64, 1)
    mod = module([x], relay.add(last, conv(relay.add(shared, first), 32, 64, 1)))
    inputs = random_inputs(mod)
    outputs = {}
    for precision in ("float32", "bf16"):
        with tvm.transform.PassContext(opt_level=3):
            placed = hp.HeteroPlace(cpu_cluster(), precision=precision, max_error=0.1)(mod)
            executable = hp.build(placed)
        outputs[precision] = hp.Executor(executable).run(inputs)
    assert 0 < largest_error(outputs["bf16"], outputs["float32"]) < 0.02


def blocked_conv(data: relay.Expr, size: int, *, by_channel: bool = False) -> relay.Expr:
    """A convolution of 64 channels in blocks of 16."""
    conv2d = (
        relay.nn.contrib_depthwise_conv2d_nchwc if by_channel else relay.nn.contrib_conv2d_nchwc
    )
    shape = (4, 1, size, size, 1, 16) if by_channel else (4, 4, size, size, 16, 16)
    layouts = {"data_layout": "NCHW16c", "out_layout": "NCHW16c"}
    layouts["kernel_layout"] = "OIHW1i16o" if by_channel else "OIHW16i16o"
    pad = (size // 2,) * 4
    return conv2d(
        data,
        relay.const(normal(*shape)),
        channels=64,
        kernel_size=(size, size),
        padding=pad,
        groups=64 if by_channel else 1,
        **layouts,
    )


@pytest.mark.parametrize(
    ("producer", "num_readers", "together"),
    [
        ("conv", 1, 2),  # AMX stores two blocks in one
        ("conv", 2, 2),
        ("depthwise", 1, 1),  # rounded by its own kernel, in float32 blocks
        ("depthwise", 2, 1),
        ("swish", 1, 1),  # of a depthwise convolution: it is read twice, in the same kernel
        ("pool", 2, 1),
        ("sum", 1, 2),  # of AMX and of what another kernel has stored
    ],
)
def test_blocks_are_joined_where_amx_or_elementwise_ops_make_them(
    producer: str, num_readers: int, together: int
) -> None:
    x = relay.var("x", shape=(1, 4, 14, 14, 16))
    if producer == "pool":
        value = relay.nn.max_pool2d(x, (3, 3), padding=(1, 1), layout="NCHW16c")
    elif producer == "sum":
        stored = blocked_conv(x, 3, by_channel=True)
        value = relay.add(blocked_conv(stored, 1), relay.add(stored, stored))
    else:
        value = blocked_conv(x, 3, by_channel=producer != "conv")
    if producer == "swish":
        value = relay.multiply(value, relay.sigmoid(value))
    readers = relay.Tuple([blocked_conv(value, 1) for _ in range(num_readers)])
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x], readers)))
    with tvm.target.Target(AMX):
        rewritten = Bfloat16Convolutions(lambda _: True)(mod)
    roundings = [each for each in post_order(rewritten["main"].body) if is_op_call(each, ROUND_OP)]
    assert int(roundings[-1].attrs["together"]) == together


def test_loops_that_are_no_products_are_refused() -> None:
    a, b = (te.placeholder((16, 16), "uint16", name) for name in "ab")
    at = te.reduce_axis((0, 16), "at")
    total = te.compute((16, 16), lambda y, x: te.sum(widened(a[y, at], "float32"), axis=at))
    schedule = te.create_schedule(total.op)
    mark_block(schedule[total], total.op.axis[0])
    with pytest.raises(LoweringError, match="expected one that reads itself and two factors"):
        with_amx(tvm.lower(schedule, [a, b, total]))
