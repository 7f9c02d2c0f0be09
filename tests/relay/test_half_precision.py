"""Networks in float16 and bfloat16: computed in float32, with weights of two bytes on CPUs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
import tvm
from onnx import TensorProto, helper
from relay_models import TARGET, cpu_cluster, module, random_costs, run_by_tvm, var
from tvm import relay

import heteroplace as hp
from heteroplace.bfloat16_bits import rounded_to_bfloat16
from heteroplace.errors import InfeasibleError, VerificationError
from heteroplace.lower.executable import Executable
from heteroplace.parts.kernels.cpu.packed_matmul_op import packed, packed_matmul
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.relay.half_precision import InFloat32, computes_in_float32
from heteroplace.relay.targets import multiplies_bfloat16, with_stock_kernels
from zoo.models.low_precision import in_half, widened
from zoo.models.transformers import bert_onnx, gpt_onnx

pytestmark = pytest.mark.relay

HALVES = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
SIZES = {"layers": 1, "hidden": 256, "heads": 4, "tokens": 16, "vocabulary": 2000}
TARGETS = (TARGET, "llvm -mcpu=haswell")
IDS = np.arange(16)[None] * 97 % 2000
MAX_SHARE = 0.55
"""Of the bytes of float32."""


def as_float32(array: np.ndarray) -> np.ndarray:
    """Numbers, or the bits of bfloat16, in float32."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def as_half(array: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers of float32, rounded to float16 or to the bits of bfloat16."""
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return array.astype(np.float16)
    return (rounded_to_bfloat16(array).view(np.uint32) >> 16).astype(np.uint16)


def compiled(model: onnx.ModelProto, **options: Any) -> Executable:
    imported = from_onnx(model)
    options = {"costs": random_costs, "solver": "heft", "verify": "off"} | options
    return hp.compile(imported.mod, cpu_cluster(), params=imported.params, **options)


def weight_bytes(executable: Executable) -> int:
    return sum(task.weight_bytes for task in executable.solution.graph.tasks)


# --- transformers -----------------------------------------------------------------------------


@pytest.mark.costly(20)
@pytest.mark.parametrize("kind", HALVES)
def test_a_transformer_is_the_widened_one_with_half_of_its_bytes(kind: int, tmp_path: Path) -> None:
    model = gpt_onnx(**SIZES, seed=0)
    half = in_half(model, kind)
    executables = {"half": compiled(half), "wide": compiled(widened(half)), "full": compiled(model)}
    outputs, sizes = {}, {}
    for name, executable in executables.items():
        path = tmp_path / f"{name}.so"
        executable.export_library(path)
        sizes[name] = path.stat().st_size
        with hp.load(path) as executor:
            (output,) = executor.run(ids=IDS)
            outputs[name] = np.copy(output)
    np.testing.assert_array_equal(outputs["half"], outputs["wide"])
    assert np.abs(outputs["half"] - outputs["full"]).max() <= 0.02 * np.abs(outputs["full"]).max()
    assert sizes["half"] <= MAX_SHARE * sizes["full"]
    for held in (weight_bytes, lambda each: sum(use.weights_bytes for use in each.memory)):
        assert held(executables["half"]) <= MAX_SHARE * held(executables["full"])


@pytest.mark.costly(10)
@pytest.mark.parametrize("kind", HALVES)
def test_a_memory_that_holds_half_of_the_bytes_is_enough(kind: int) -> None:
    model = gpt_onnx(**SIZES, seed=0)
    half = in_half(model, kind)
    cluster = cpu_cluster()
    most = int(0.7 * weight_bytes(compiled(model)))
    limits = {device.name: most for device in cluster.devices[-1:]}
    options = {"max_memory": limits, "exclude": [each.name for each in cluster.devices[:-1]]}
    with hp.Executor(compiled(half, **options)) as executor:
        assert np.isfinite(executor.run(ids=IDS)[0]).all()
    with pytest.raises(InfeasibleError):
        compiled(model, **options)


@pytest.mark.costly(10)
@pytest.mark.parametrize("kind", HALVES)
def test_a_transformer_with_inputs_and_outputs_of_half_precision(kind: int) -> None:
    model = in_half(bert_onnx(**SIZES, seed=0), kind)
    cut = len(model.graph.output)
    half = onnx.ModelProto()
    half.CopyFrom(model)
    for node, value in zip(model.graph.node[-cut:], half.graph.output, strict=True):
        value.name = node.input[0]
        value.type.tensor_type.elem_type = kind
    del half.graph.node[-cut:]
    inputs = {"ids": IDS, "kinds": IDS % 2, "mask": np.ones_like(IDS)}
    results = []
    for each in (half, model):
        with hp.Executor(compiled(each)) as executor:
            results.append([np.copy(output) for output in executor.run(inputs)])
    for narrow, wide in zip(*results, strict=True):
        np.testing.assert_array_equal(narrow, as_half(wide, HALVES[kind]))


@pytest.mark.costly(10)
@pytest.mark.skipif(
    not multiplies_bfloat16(tvm.target.Target(TARGET)), reason="no AVX512-BF16 here"
)
@pytest.mark.parametrize("kind", HALVES)
def test_precision_bf16_stays_within_the_error(kind: int) -> None:
    model = in_half(gpt_onnx(**SIZES, seed=0), kind)
    plain, rounded = compiled(model), compiled(model, precision="bf16", max_error=0.02)
    outputs = []
    for executable in (plain, rounded):
        with hp.Executor(executable) as executor:
            outputs.append(np.copy(executor.run(ids=IDS)[0]))
    assert 0 < np.abs(outputs[0] - outputs[1]).max() <= 0.02 * np.abs(outputs[0]).max()
    assert weight_bytes(rounded) <= 1.01 * weight_bytes(plain)
    if kind == TensorProto.FLOAT16:  # onnxruntime computes no bfloat16 on CPUs
        compiled(model, precision="bf16", max_error=0.02, verify="on")
        with pytest.raises(VerificationError, match="max_error"):
            compiled(model, precision="bf16", max_error=1e-7, verify="on")


# --- ONNX forms -------------------------------------------------------------------------------


def ran(model: onnx.ModelProto, **inputs: np.ndarray) -> list[np.ndarray]:
    with hp.Executor(compiled(model)) as executor:
        return [np.copy(each) for each in executor.run(inputs)]


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("is_like", [False, True])
def test_a_cast_from_a_wider_type_rounds_and_nothing_else_does(kind: int, is_like: bool) -> None:
    small = np.float32(2.0**-20)
    cast = (
        om.node("CastLike", "x one", "narrow")
        if is_like
        else om.node("Cast", "x", "narrow", to=kind)
    )
    nodes = [
        om.node("Cast", "c", "one", to=kind),
        cast,
        om.node("Add", "narrow small", "sum"),
        om.node("Cast", "sum", "same", to=kind),
        om.node("Cast", "same", "y", to=TensorProto.FLOAT),
    ]
    model = om.make_model(nodes, {"x": [300]}, ["y"], {"c": np.float32(1)})
    model.graph.initializer.append(helper.make_tensor("small", kind, [], [small]))
    x = np.linspace(-70000, 70000, 300, dtype=np.float32)
    x[:4] = [np.inf, np.nan, 1e-40, 6e-8]
    expected = as_float32(as_half(x, HALVES[kind])) + small
    np.testing.assert_array_equal(ran(model, x=x)[0], expected)


@pytest.mark.costly
def test_many_casts_to_bfloat16_in_a_row() -> None:
    nodes, value = [], "x"
    for step in range(8):
        nodes += [
            om.node("Cast", value, f"narrow{step}", to=TensorProto.BFLOAT16),
            om.node("Cast", f"narrow{step}", f"wide{step}", to=TensorProto.FLOAT),
            om.node("Mul", f"wide{step} c", f"product{step}"),
        ]
        value = f"product{step}"
    nodes.append(om.node("Neg", value, "y"))
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    expected, factor = x, np.float32(1.1)
    for _ in range(8):
        expected = rounded_to_bfloat16(expected) * factor
    (output,) = ran(om.make_model(nodes, {"x": [64]}, ["y"], {"c": factor}), x=x)
    np.testing.assert_array_equal(output, -expected)


@pytest.mark.costly(6)
@pytest.mark.parametrize("kind", HALVES)
def test_branches_and_constants_of_half_precision(kind: int) -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        constant = helper.make_tensor("", kind, [1], [0.5])
        nodes = [
            om.node("Constant", "", f"{name}_half", value=constant),
            om.node(op, f"narrow {name}_half", name),
        ]
        result = helper.make_tensor_value_info(name, kind, [4])
        return helper.make_graph(nodes, name, [], [result])

    nodes = [
        om.node("Cast", "x", "narrow", to=kind),
        om.node(
            "If", "c", "y", then_branch=branch("added", "Add"), else_branch=branch("by", "Mul")
        ),
    ]
    model = om.make_model(nodes, {"x": [4]}, ["y"])
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, [4]))
    x = np.array([1, -2, 0.25, np.inf], np.float32)
    for c, expected in ((True, x + np.float32(0.5)), (False, x * np.float32(0.5))):
        (output,) = ran(model, x=x, c=np.array(c))
        assert output.dtype == ("float16" if kind == TensorProto.FLOAT16 else "uint16")
        np.testing.assert_array_equal(as_float32(output), expected)


def test_weights_that_are_shared_and_transposed() -> None:
    random = np.random.default_rng(0)
    table = random.standard_normal((300, 64)).astype(np.float16)
    nodes = [
        om.node("Gather", "table ids", "rows"),
        om.node("Transpose", "table", "turned", perm=[1, 0]),
        om.node("MatMul", "rows turned", "y"),
    ]
    model = om.make_model(nodes, {}, ["y"], {"table": table})
    model.graph.input.append(helper.make_tensor_value_info("ids", TensorProto.INT64, [3]))
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y", TensorProto.FLOAT16, [3, 300])
    )
    ids = np.array([0, 299, 7])
    (output,) = ran(model, ids=ids)
    wide = table.astype(np.float64)
    assert output.dtype == np.float16
    np.testing.assert_allclose(output, wide[ids] @ wide.T, rtol=2e-3, atol=1e-2)


# --- Relay ------------------------------------------------------------------------------------


def constant(array: np.ndarray, dtype: str) -> relay.Constant:
    """Numbers of float32 as a constant in half precision."""
    data = tvm.nd.empty(array.shape, dtype)
    return relay.Constant(data.copyfrom(as_half(array, dtype)))


@pytest.mark.costly(6)
@pytest.mark.parametrize("dtype", HALVES.values())
def test_a_relay_module_is_computed_in_float32(dtype: str) -> None:
    random = np.random.default_rng(0)
    first, last = (
        as_float32(as_half(random.standard_normal(shape).astype(np.float32), dtype))
        for shape in ((96, 64), (70, 96))
    )
    x = as_float32(as_half(random.standard_normal((5, 64)).astype(np.float32), dtype))
    results, sizes = [], []
    for is_half in (True, False):
        of = partial(constant, dtype=dtype) if is_half else relay.const
        data = var("x", x.shape, dtype if is_half else "float32")
        hidden = relay.nn.relu(relay.nn.dense(data, of(first), out_dtype=dtype if is_half else ""))
        parts = relay.split(relay.nn.dense(hidden, of(last)), 2, axis=1)
        body = relay.Tuple([parts[0], relay.cast(parts[1], "float32"), parts[1]])
        executable = hp.compile(
            module([data], body), cpu_cluster(), costs=random_costs, solver="heft", verify="off"
        )
        sizes.append(weight_bytes(executable))
        with hp.Executor(executable) as executor:
            outputs = executor.run(x=as_half(x, dtype) if is_half else x)
            results.append([np.copy(each) for each in outputs])
    half, wide = results
    np.testing.assert_array_equal(half[0], as_half(wide[0], dtype))
    np.testing.assert_array_equal(half[1], wide[1])
    np.testing.assert_array_equal(half[2], as_half(wide[2], dtype))
    assert sizes[1] == 2 * (96 * 64 + 70 * 96)
    assert sizes[0] <= sizes[1] + 8  # by how many bits a bfloat16 is shifted is a constant


def test_ops_that_name_a_type_and_ops_that_read_bits() -> None:
    x = var("x", (4,), "float16")
    body = relay.Tuple(
        [
            relay.reinterpret(relay.add(x, relay.ones((4,), "float16")), "int16"),
            relay.reinterpret(relay.const(np.array([15360, 31744], "int16")), "float16"),
            relay.cast(relay.cast(x, "int32"), "float16"),
            relay.cast_like(x, relay.const(1.0, "float32")),
            relay.multiply(relay.cast(relay.const(1 / 3), "float16"), relay.const(3.0, "float16")),
        ]
    )
    mod = relay.transform.InferType()(InFloat32()(module([x], body)))
    assert [str(each.dtype) for each in mod["main"].ret_type.fields] == [
        *("int16", "float16", "float16", "float32", "float16")
    ]
    values = np.array([1.5, -2.75, 0.1, 3], np.float16)
    executable = hp.compile(
        module([x], body), cpu_cluster(), costs=random_costs, solver="heft", verify="off"
    )
    with hp.Executor(executable) as executor:
        outputs = [np.copy(each) for each in executor.run(x=values)]
    np.testing.assert_array_equal(outputs[0].view(np.float16), values + np.float16(1))
    np.testing.assert_array_equal(outputs[1], [1, np.inf])
    np.testing.assert_array_equal(outputs[2], [1, -2, 0, 3])
    np.testing.assert_array_equal(outputs[3], values.astype(np.float32))
    third = np.float32(np.float16(1 / 3)) * np.float32(3)
    np.testing.assert_array_equal(outputs[4], np.float16(third))


def test_where_half_precision_stays() -> None:
    cluster = cpu_cluster()
    assert computes_in_float32(cluster)
    assert not computes_in_float32(with_stock_kernels(cluster))
    gpu = replace(cluster.devices[-1], kind="cuda", target="cuda -arch=sm_80")
    assert not computes_in_float32(replace(cluster, devices=(*cluster.devices[:-1], gpu)))
    x = var("x", (2, 3), "float16")
    chosen = relay.If(var("c", (), "bool"), relay.exp(x), x)
    mod = relay.transform.InferType()(module([x, chosen.cond], chosen))
    assert tvm.ir.structural_equal(InFloat32()(mod), mod, map_free_vars=True)
    y = var("y", (2,))
    plain = relay.transform.InferType()(module([y], relay.exp(y)))
    assert tvm.ir.structural_equal(InFloat32()(plain), plain, map_free_vars=True)


# --- kernels ----------------------------------------------------------------------------------


@pytest.mark.costly(6)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(20, 40, 800), (101, 33, 777), (61, 3100, 784), (130, 64, 1536), (19, 1, 800)],
)
def test_a_panel_that_tiles_share_is_the_one_of_float32(
    rows: int, depth: int, columns: int, dtype: str, target: str
) -> None:
    random = np.random.default_rng(rows)
    x = random.standard_normal((rows, depth)).astype(np.float32)
    numbers = random.standard_normal((columns, depth)).astype(np.float32)
    numbers.reshape(-1)[:6] = [np.inf, np.nan, -0.0, 6e-8, 1e-39, -np.inf]
    half = as_half(numbers, dtype)
    results = []
    with tvm.target.Target(target):
        for weights in (as_float32(half), half):
            panels = packed(weights, "float32")
            product = packed_matmul(var("x", x.shape), relay.const(panels), columns)
            results.append(run_by_tvm(relay.tanh(product), tvm.target.Target(target), x=x))
    np.testing.assert_array_equal(*results)
    assert np.isnan(results[0]).sum() >= rows
