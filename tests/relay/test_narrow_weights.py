"""Weights in half precision or of whole numbers: read in fewer bits, and the same to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from relay_models import TARGET, cpu_cluster, random_costs, run_by_tvm, var
from tvm import relay

import heteroplace as hp
from heteroplace.model.cluster import Cluster
from heteroplace.parts.kernels.cpu.batch_matmul_op import batch_matmul
from heteroplace.parts.kernels.cpu.packed_matmul_op import packed, packed_matmul
from heteroplace.parts.kernels.rewrites.held_weights import with_held_weights
from heteroplace.parts.kernels.rewrites.narrow_weights import narrowed, widened_value
from heteroplace.parts.kernels.rewrites.unpacked import ReadWeightsInPlace
from heteroplace.relay.targets import with_stock_kernels
from heteroplace.relay.tasks.network import cut_network
from tests.strategies import exact_cases, num_cases

TARGETS = tuple(map(tvm.target.Target, (TARGET, "llvm -mcpu=haswell")))
HALVES = ("float16", "uint16")
KINDS = (*HALVES, "int8")


def rounded(array: np.ndarray, kind: str) -> np.ndarray:
    """The array in float32, as float16 or bfloat16 can hold it; or 40 times it, as int8 can."""
    if kind == "int8":
        return np.clip(40 * array, -128, 127).astype("int8").astype("float32")
    if kind == "float16":
        with np.errstate(over="ignore"):
            return array.astype("float16").astype("float32")
    return (array.astype("float32").view("uint32") & np.uint32(0xFFFF0000)).view("float32")


def narrow(array: np.ndarray, kind: str) -> np.ndarray:
    """What `rounded` returned, in two bytes or one."""
    if kind in ("float16", "int8"):
        return array.astype(kind)
    return (array.view("uint32") >> 16).astype("uint16")


def widened_array(array: np.ndarray) -> np.ndarray:
    """Numbers of any type, or the bits of bfloat16, in float32."""
    if array.dtype == np.uint16:
        return (array.astype("uint32") << 16).view("float32")
    return array.astype("float32")


@pytest.mark.costly(9)
@given(
    rows=st.sampled_from([1, 2, 5, 17, 40, 101]),
    depth=st.sampled_from([3, 24, 1024]),
    columns=st.sampled_from([5, 48, 70, 96]),
    kind=st.sampled_from(KINDS),
    target=st.sampled_from(TARGETS),
    is_fused=st.booleans(),
)
@exact_cases(8)
def test_products_are_those_of_weights_that_were_widened_before(
    rows: int, depth: int, columns: int, kind: str, target: tvm.target.Target, is_fused: bool
) -> None:
    random = np.random.default_rng(rows * columns)
    x = random.standard_normal((rows, depth)).astype("float32")
    weights = rounded(random.standard_normal((columns, depth)), kind)
    results = []
    for each in (weights, narrow(weights, kind)):
        with target:
            panels = packed(each, "float32")
            body = packed_matmul(var("x", x.shape), relay.const(panels, str(panels.dtype)), columns)
        results.append(run_by_tvm(relay.nn.relu(body) if is_fused else body, target, x=x))
    np.testing.assert_array_equal(*(each.view("uint32") for each in results))


@pytest.mark.costly(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [48, 70])
def test_products_of_batches_are_those_of_weights_that_were_widened_before(
    kind: str, columns: int
) -> None:
    random = np.random.default_rng(columns)
    x = random.standard_normal((2, 17, 33)).astype("float32")
    weights = rounded(random.standard_normal((2, 33, columns)), kind)
    results = []
    for each in (weights, narrow(weights, kind)):
        body = batch_matmul(var("x", x.shape), relay.const(each, str(each.dtype)))
        results.append(run_by_tvm(body, TARGETS[0], x=x))
    np.testing.assert_array_equal(*(each.view("uint32") for each in results))


@pytest.mark.parametrize("kind", HALVES)
def test_every_number_of_16_bits_is_widened_as_it_is(kind: str) -> None:
    bits = np.arange(2**16, dtype="uint16")
    if kind == "float16":
        bits = bits[np.isfinite(bits.view("float16"))]
        expected = bits.view("float16").astype("float32")
    else:
        expected = (bits.astype("uint32") << 16).view("float32")
    table = relay.const(bits.view(kind).reshape(-1, 2), kind)
    rows = relay.take(table, var("at", (len(bits) // 2,), "int32"), axis=0)
    for target in TARGETS:
        found = run_by_tvm(widened_value(rows, kind, None), target, at=np.arange(len(bits) // 2))
        np.testing.assert_array_equal(found.reshape(-1).view("uint32"), expected.view("uint32"))


@pytest.mark.costly
@given(
    size=st.integers(4096, 9000),
    kind=st.sampled_from([*HALVES, "float32"]),
    place=st.integers(0, 2**40),
    odd=st.sampled_from([1e5, 1e-9, 0.1, np.inf, np.nan, -0.0, 6e-8]),
)
@num_cases(60)
def test_weights_are_narrow_only_where_that_is_exact(
    size: int, kind: str, place: int, odd: float
) -> None:
    weights = np.random.default_rng(size).standard_normal(size).astype("float32")
    weights = weights if kind == "float32" else rounded(weights, kind)
    weights[place % size] = odd
    found = narrowed(weights, TARGETS[1])
    if found is weights:
        assert kind == "float32" or not np.array_equal(
            rounded(weights, kind).view("uint32"), weights.view("uint32")
        )
        return
    again = widened_array(found)
    np.testing.assert_array_equal(again.view("uint32"), weights.view("uint32"))


def test_float16_stays_wide_where_no_instruction_widens_it() -> None:
    weights = rounded(np.linspace(-3, 3, 5000), "float16")
    assert narrowed(weights, tvm.target.Target("llvm")) is weights
    assert narrowed(rounded(weights, "uint16"), tvm.target.Target("llvm")).dtype == "uint16"


def test_constants_of_products_and_tables_are_narrow() -> None:
    weights = rounded(np.random.default_rng(0).standard_normal((96, 64)), "float16")
    rows = relay.take(relay.const(weights), var("at", (7,), "int32"), axis=0)
    y = relay.nn.dense(rows, relay.const(weights[:64]))
    batch = relay.const(np.ascontiguousarray(weights.reshape(1, 96, 64)))
    z = relay.nn.batch_matmul(relay.expand_dims(y, 0), batch)
    mod = tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(z), z))
    with tvm.transform.PassContext(opt_level=3):
        made = ReadWeightsInPlace(TARGETS[1])(relay.transform.InferType()(mod))
        made = relay.transform.InferType()(made)
    constants: list[relay.Constant] = []
    relay.analysis.post_order_visit(
        made["main"].body,
        lambda node: constants.append(node) if isinstance(node, relay.Constant) else None,
    )
    assert [str(each.data.dtype) for each in constants] == ["float16"] * 3
    at = np.array([0, 5, 95, 1, 1, 2, 3])
    found = run_by_tvm(made["main"].body, TARGETS[1], at=at)
    expected = weights[at] @ weights[:64].T @ weights.T
    np.testing.assert_allclose(found[0], expected, rtol=1e-3, atol=1e-3)


def half_model(kind: int, *, is_computed_in_half: bool) -> onnx.ModelProto:
    """A table, a product, a convolution and a product, with weights of a type of ONNX."""
    random = np.random.default_rng(0)
    shapes = {"table": (200, 64), "first": (64, 144), "filter": (16, 16, 7, 7), "last": (144, 64)}
    given = []
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype("float32") * 0.1
        given.append(helper.make_tensor(name, kind, shape, values.ravel()))
    shape = helper.make_tensor("shape", TensorProto.INT64, [4], [1, 16, 9, 7])
    back = helper.make_tensor("back", TensorProto.INT64, [2], [7, 144])
    nodes = []
    read = {name: name for name in shapes}
    if not is_computed_in_half:
        read = {name: f"{name}_wide" for name in shapes}
        for name, wide in read.items():
            nodes.append(helper.make_node("Cast", [name], [wide], to=TensorProto.FLOAT))
    nodes += [
        helper.make_node("Gather", [read["table"], "ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", read["first"]], ["hidden"]),
        helper.make_node("Reshape", ["hidden", "shape"], ["map"]),
        helper.make_node("Conv", ["map", read["filter"]], ["mixed"], pads=[3, 3, 3, 3]),
        helper.make_node("Reshape", ["mixed", "back"], ["flat"]),
        helper.make_node("MatMul", ["flat", read["last"]], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [7])]
    result = kind if is_computed_in_half else TensorProto.FLOAT
    outputs = [helper.make_tensor_value_info("y", result, [7, 64])]
    graph = helper.make_graph(nodes, "halves", inputs, outputs, [*given, shape, back])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


@pytest.mark.costly(9)
@pytest.mark.parametrize(
    ("kind", "is_computed_in_half"),
    [
        (kind, half)
        for kind in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
        for half in (False, True)
    ],
)
def test_networks_hold_their_weights_in_two_bytes(
    kind: int, is_computed_in_half: bool, tmp_path: Path
) -> None:
    imported = hp.frontend.from_onnx(half_model(kind, is_computed_in_half=is_computed_in_half))
    name = "float16" if kind == TensorProto.FLOAT16 else "bfloat16"
    lines = [line for line in imported.report if f" {name} (" in line]
    assert len(lines) == 2
    computed = [line for line in imported.report if f"values of {name} are computed" in line]
    assert len(computed) == is_computed_in_half
    assert lines[0].startswith(f"3 {name} (") and "in two bytes" in lines[0]
    assert "widened to float32, as Conv read them: filter" in lines[1]
    ids = np.array([0, 5, 199, 7, 7, 1, 3])
    outputs, sizes = {}, {}
    for kernels in ("auto", "tvm", "best"):
        with tvm.transform.PassContext(opt_level=3):
            executable = hp.build(
                imported.mod,
                cpu_cluster(),
                params=imported.params,
                costs=random_costs,
                solver="heft",
                kernels=kernels,
            )
        (output,) = hp.Executor(executable).run(ids=ids)
        outputs[kernels] = widened_array(output)
        tasks = executable.solution.graph.tasks
        sizes[kernels] = {each.name: each.weight_bytes for each in tasks if each.weight_bytes > 999}
        executable.export_library(tmp_path / kernels)
    largest = np.abs(outputs["tvm"]).max()
    steps = {TensorProto.FLOAT16: 2e-3, TensorProto.BFLOAT16: 8e-3}
    bound = steps[kind] if is_computed_in_half else 1e-5
    assert np.abs(outputs["auto"] - outputs["tvm"]).max() <= bound * largest
    held = sorted(sizes["auto"].values())
    assert held[-1] == 4 * 16 * 16 * 49
    assert held[:2] == [2 * 64 * 144] * 2
    assert held[2] < 4 * 200 * 64
    saved = (tmp_path / "tvm").stat().st_size - (tmp_path / "auto").stat().st_size
    assert saved > 2 * (200 * 64 + 2 * 64 * 144) - 20_000


def test_tasks_that_may_run_by_other_kernels_count_weights_as_those_hold_them() -> None:
    weights = rounded(np.random.default_rng(0).standard_normal((96, 64)), "uint16")
    y = relay.nn.dense(var("x", (3, 64)), relay.const(weights))
    network = cut_network(tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(y), y)))
    cluster = cpu_cluster()

    def held(where: Cluster) -> int:
        return with_held_weights(network, where).graph.tasks[0].weight_bytes

    with tvm.transform.PassContext(opt_level=3):
        assert held(cluster) == weights.nbytes // 2
        assert held(with_stock_kernels(cluster)) == weights.nbytes
        others = [*cluster.devices[:-1], with_stock_kernels(cluster).devices[-1]]
        mixed = replace(cluster, devices=tuple(others))
        assert held(mixed) == weights.nbytes
        narrow = with_held_weights(network, cluster)
        assert with_held_weights(narrow, mixed).graph.tasks[0].weight_bytes == weights.nbytes
        pinned = replace(narrow.graph.tasks[0], devices=(cluster.devices[0].name,))
        narrow = narrow.with_graph(replace(narrow.graph, tasks=(pinned,)))
        again = with_held_weights(narrow, mixed).graph.tasks[0]
        assert again.weight_bytes == weights.nbytes // (2 if len(cluster.devices) > 1 else 1)
    with tvm.transform.PassContext(opt_level=2):
        assert held(cluster) == weights.nbytes


@pytest.mark.parametrize(
    ("odd", "dtype"),
    [(127, "int8"), (-128, "int8"), (128, "uint16"), (-0.0, "uint16"), (0.5, "uint16")],
)
def test_whole_numbers_of_8_bits_take_a_byte(odd: float, dtype: str) -> None:
    weights = np.ones(5000, "float32")
    weights[4999] = odd
    assert narrowed(weights, TARGETS[1]).dtype == dtype
