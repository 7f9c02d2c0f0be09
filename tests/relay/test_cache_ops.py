"""Caches of a fixed capacity: written rows and attention, against numpy and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
import tvm
from relay_models import TARGET, cpu_cluster, mixed_cluster, random_costs
from tvm import relay

import heteroplace as hp
from heteroplace.lower.compile import lower_network
from heteroplace.model.op_traits.op_record import WRITE_ROWS_OP
from heteroplace.pipeline.core_stages import prepare
from heteroplace.relay.cache.attention_kernel import AttentionOptions
from heteroplace.relay.cache.expanded import Expanded
from heteroplace.relay.cache.op import (
    CACHED_ATTENTION_OP,
    cached_attention,
    write_rows,
)
from heteroplace.relay.source import Source, source_from_json, source_to_json
from heteroplace.relay.targets import kernel_target
from heteroplace.relay.tasks.network import cut_network

pytestmark = pytest.mark.relay
CAPACITY = 150


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def module(call: Any, inputs: dict[str, np.ndarray], *options: Any) -> tvm.IRModule:
    """A module of one call whose operands are like these arrays."""
    variables = [relay.var(n, shape=a.shape, dtype=str(a.dtype)) for n, a in inputs.items()]
    function = relay.Function(variables, call(*variables, *options))
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))


def attended(inputs: dict[str, np.ndarray], options: AttentionOptions) -> np.ndarray:
    """The attention, in 64 bits; a query that sees no key has 0."""
    q, k, v, past = inputs.values()
    share, capacity = q.shape[1] // k.shape[1], k.shape[2]
    k, v = (np.repeat(each, share, 1).astype("float64") for each in (k, v))
    scores = options.scale * np.einsum("bhld,bhcd->bhlc", q, k)
    if options.softcap:
        scores = options.softcap * np.tanh(scores / options.softcap)
    last = (past[:, None] + np.arange(q.shape[2]))[:, None, :, None]
    is_seen = np.arange(capacity) <= last
    if options.window >= 0:
        is_seen &= np.arange(capacity) > last - options.window
    shares = np.where(is_seen, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    total = np.maximum(shares.sum(-1, keepdims=True), 1e-300)
    result: np.ndarray = np.einsum("bhlc,bhcd->bhld", shares / total, v)
    return result


PLAIN = AttentionOptions(0.2)
ATTENTIONS = [
    ((1, 9, 3, 1, 64), [0], PLAIN),
    ((1, 9, 3, 1, 64), [149], PLAIN),
    ((1, 9, 1, 1, 80), [70], AttentionOptions(0.2, window=40)),
    ((1, 3, 3, 3, 128), [147], AttentionOptions(0.2, softcap=3.0)),
    ((2, 9, 3, 16, 64), [0, 134], AttentionOptions(0.2, window=5)),
    ((2, 3, 1, 33, 80), [50, 117], PLAIN),
    ((2, 6, 2, 3, 24), [-2, 149], PLAIN),
    ((1, 2, 1, 2, 5), [100], PLAIN),
    ((1, 70, 1, 1, 16), [64], PLAIN),
]
"""Batch, heads, groups, length and size; tokens of the past."""


@pytest.mark.costly(17)
@pytest.mark.parametrize(("sizes", "past", "options"), ATTENTIONS, ids=str)
def test_attention_has_the_numbers_of_numpy(
    sizes: tuple[int, ...], past: list[int], options: AttentionOptions
) -> None:
    batch, heads, groups, length, size = sizes
    cache = (batch, groups, CAPACITY, size)
    inputs = {"q": floats(batch, heads, length, size), "k": floats(*cache), "v": floats(*cache)}
    inputs["v"] = inputs["v"][..., ::-1].copy()
    inputs["p"] = np.array(past, "int32")
    whole = module(cached_attention, inputs, options)
    expected = attended(inputs, options)
    own = kernel_target(tvm.target.Target(TARGET))
    for mod, target in ((whole, own), (Expanded()(whole), om.QUICK)):
        (result,) = om.run_tvm(mod, {}, inputs, 3, target)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.costly(3)
def test_attention_for_any_processor() -> None:
    for length in (2, 11):  # 11 queries of two heads are tiles of six rows, more than four lanes
        cache = 1, 1, CAPACITY, 8
        inputs = {"q": floats(1, 2, length, 8), "k": floats(*cache), "v": floats(*cache)}
        inputs["p"] = np.array([130], "int32")
        mod = module(cached_attention, inputs, PLAIN)
        for target in ("llvm", "llvm -mcpu=haswell"):
            (result,) = om.run_tvm(mod, {}, inputs, 3, target)
            np.testing.assert_allclose(result, attended(inputs, PLAIN), rtol=1e-5, atol=1e-5)


def test_attention_reads_no_key_that_is_not_seen() -> None:
    inputs = {"q": floats(1, 3, 2, 16), "k": floats(1, 1, 80, 16), "v": floats(1, 1, 80, 16)}
    inputs["p"] = np.array([66], "int32")
    expected = attended(inputs, PLAIN)
    inputs["k"][:, :, 68:], inputs["v"][:, :, 68:] = np.nan, np.nan
    (result,) = om.run_tvm(module(cached_attention, inputs, PLAIN), {}, inputs, 3, TARGET)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def rows_written(cache: np.ndarray, rows: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The cache with the rows; those outside of it are dropped."""
    result: np.ndarray = cache.copy()
    for sequence, first in enumerate(start):
        for row in range(rows.shape[2]):
            if 0 <= first + row < cache.shape[2]:
                result[sequence, :, first + row] = rows[sequence, :, row]
    return result


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("start", [[0, 3], [9, -2], [11, 10]])
@pytest.mark.parametrize("size", [16, 5])
def test_rows_are_written_by_both_kernels(dtype: str, start: list[int], size: int) -> None:
    inputs = {"c": 9 * floats(2, 3, 12, size), "r": 9 * floats(2, 3, 4, size)}
    inputs = {name: array.astype(dtype) for name, array in inputs.items()}
    inputs["s"] = np.array(start, "int32")
    whole = module(write_rows, inputs)
    expected = rows_written(*inputs.values())
    for mod, target in ((whole, TARGET), (Expanded()(whole), om.QUICK)):
        (result,) = om.run_tvm(mod, {}, inputs, 3, target)
        np.testing.assert_array_equal(result, expected)
    target = kernel_target(tvm.target.Target(TARGET))
    network = cut_network(whole)
    (task,) = network.graph.tasks
    calls = lower_network(network.mod, (target,), {task.name: 0})
    (call,) = calls.calls
    assert call.in_place == ((0, 0),)
    kernel = calls.kernels[call.kernel_in_place]
    library = tvm.build(kernel.functions, target=target)
    cache = tvm.nd.array(inputs["c"])
    library[kernel.symbol](cache, tvm.nd.array(inputs["r"]), tvm.nd.array(inputs["s"]), cache)
    np.testing.assert_array_equal(cache.numpy(), expected)


def test_a_cluster_with_a_gpu_gets_plain_ops() -> None:
    inputs = {"c": floats(1, 2, 8, 4), "r": floats(1, 2, 2, 4), "s": np.array([3], "int32")}
    whole = module(write_rows, inputs)
    assert WRITE_ROWS_OP in ops_of(prepare(whole, cluster=cpu_cluster()).mod)
    assert WRITE_ROWS_OP not in ops_of(prepare(whole, cluster=mixed_cluster()).mod)


def ops_of(mod: tvm.IRModule) -> set[str]:
    return {str(name) for name in relay.analysis.list_op_freqs(mod)}


def test_a_module_with_the_ops_can_be_written_and_read() -> None:
    inputs = {"q": floats(1, 2, 2, 8), "k": floats(1, 1, 40, 8), "v": floats(1, 1, 40, 8)}
    inputs["p"] = np.array([20], "int32")
    mod = module(cached_attention, inputs, PLAIN)
    data = source_to_json(Source(mod, 3), lambda _: 0)
    again = source_from_json(data, lambda *_: np.empty(0, "uint8"))
    assert CACHED_ATTENTION_OP in ops_of(again.mod)


H, G, D, C = 4, 2, 16, 32
"""Heads, groups, size and capacity of a decoder."""


def decoder(length: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A GroupQueryAttention whose sequence length is that of a mask of tokens."""
    nodes = [
        om.node("ReduceSum", "m axis", "n", keepdims=0),
        om.node("Sub", "n one", "last"),
        om.node("Cast", "last", "e", to=onnx.TensorProto.INT32),
        om.node("Shape", "m", "sizes"),
        om.node("Gather", "sizes axis0", "total", axis=0),
        om.node("Cast", "total", "t", to=onnx.TensorProto.INT32),
        om.node(
            "GroupQueryAttention",
            "q k v pk pv e t cos sin",
            "y k2 v2",
            domain="com.microsoft",
            num_heads=H,
            kv_num_heads=G,
            do_rotary=1,
        ),
    ]
    inputs: dict[str, Any] = {"q": floats(1, length, H * D), "k": floats(1, length, G * D)}
    inputs |= {"v": floats(1, length, G * D), "pk": floats(1, G, C, D), "pv": floats(1, G, C, D)}
    inputs["m"] = np.array([[1] * 20 + [0] * 12])
    weights: dict[str, Any] = {"axis": np.array([1]), "one": np.array(1), "axis0": np.array(1)}
    weights |= {"cos": floats(C, D // 2), "sin": floats(C, D // 2)}
    outputs = ["y", "k2", "v2"]
    return om.typed_model(nodes, inputs, outputs, weights, domains=["com.microsoft"]), inputs


@pytest.mark.costly(6)
@pytest.mark.parametrize("length", [1, 16])
def test_a_decoder_is_verified_and_has_the_numbers_of_onnxruntime(length: int) -> None:
    model, inputs = decoder(length)
    network = hp.Executor(hp.compile(model, cpu_cluster(), costs=random_costs))
    result, *present = network.run(**inputs)
    expected, *caches = om.run_onnxruntime(model, inputs)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(present, caches, strict=True):
        np.testing.assert_allclose(mine[:, :, :20], theirs[:, :, :20], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("whole", [C, 1])
def test_a_total_that_is_computed_says_whether_there_is_a_past(whole: int) -> None:
    node = om.node("GroupQueryAttention", "q k v pk pv e t", "y k2 v2", domain="com.microsoft",
                   num_heads=H, kv_num_heads=G)  # fmt: skip
    _, inputs = decoder(1)
    inputs = {name: array for name, array in inputs.items() if name != "m"}
    inputs |= {"e": np.array([whole - 1], "int32"), "t": np.array(whole, "int32")}
    model = om.typed_model([node], inputs, ["y", "k2", "v2"], domains=["com.microsoft"])
    for mine, theirs in zip(
        om.run_imported(model, inputs), om.run_onnxruntime(model, inputs), strict=True
    ):
        seen = mine.shape[1] if mine.ndim == 3 else whole
        np.testing.assert_allclose(
            mine[:, :, :seen] if mine.ndim == 4 else mine,
            theirs[:, :, :seen] if mine.ndim == 4 else theirs,
            rtol=1e-5,
            atol=1e-5,
        )
