"""LSTM, GRU and RNN as one op: its kernels, and the same unrolled, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
import tvm
from own_kernels import AVX2
from relay_models import CUDA, TARGET
from tvm import relay

from heteroplace.errors import LoweringError, UnsupportedRelayError
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.parallel.training.step import training_step
from heteroplace.pipeline.core_stages import prepare
from heteroplace.relay.expressions import op_name, post_order
from heteroplace.relay.limits import MAX_RECURRENT_STEPS
from heteroplace.relay.recurrent.op import RECURRENT_BYTES_OP, RECURRENT_OP
from heteroplace.relay.recurrent.unrolled import Unrolled, unrolled_for
from heteroplace.relay.source import Source, source_to_json
from tests.programs import run_python

pytestmark = pytest.mark.relay
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LAYERS = [
    ((5, 2, 7, 16), "reverse"),
    ((6, 1, 5, 3), "bidirectional"),
    ((4, 3, 8, 40), "forward"),
    ((1, 1, 4, 128), "forward"),
]
"""Steps, batch, inputs, states; and the direction."""


def layer(kind: str, sizes: tuple[int, ...], direction: str, **attributes: Any) -> onnx.ModelProto:
    """One layer with biases and all of its outputs."""
    steps, batch, inputs, hidden = sizes
    rng = np.random.default_rng(sum(sizes))
    columns, directions = GATES[kind] * hidden, 2 if direction == "bidirectional" else 1
    weights = {
        "w": rng.standard_normal((directions, columns, inputs)),
        "r": rng.standard_normal((directions, columns, hidden)) / np.sqrt(hidden),
        "b": rng.standard_normal((directions, 2 * columns)),
    }
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    outputs = ["y", "h", "c"] if kind == "LSTM" else ["y", "h"]
    node = om.node(
        kind, "x w r b", " ".join(outputs), hidden_size=hidden, direction=direction, **attributes
    )
    small = {name: value.astype("float32") for name, value in weights.items()}
    return om.make_model([node], {"x": [steps, batch, inputs]}, outputs, small)


def byte_layer(steps: int, inputs: int, hidden: int, most: int = 63) -> onnx.ModelProto:
    """A bidirectional LSTM with weights of bytes, from -most - 1 to `most`."""
    rng = np.random.default_rng(hidden)
    weights: dict[str, Any] = {
        "w": rng.integers(-most - 1, most + 1, (2, inputs, 4 * hidden)).astype("int8"),
        "r": rng.integers(-most - 1, most + 1, (2, hidden, 4 * hidden)).astype("int8"),
        "b": rng.standard_normal((2, 8 * hidden)).astype("float32"),
        "ws": np.array([0.01, 0.02], np.float32),
        "rs": np.array([0.003, 0.002], np.float32),
        "z": np.zeros(2, "int8"),
    }
    node = om.node(
        "DynamicQuantizeLSTM",
        "x w r b - - - - ws z rs z",
        "y h c",
        domain="com.microsoft",
        hidden_size=hidden,
        direction="bidirectional",
    )
    data = {"x": np.zeros((steps, 1, inputs), np.float32)}
    return om.typed_model([node], data, ["y", "h", "c"], weights, domains=["com.microsoft"])


def count_ops(mod: tvm.IRModule) -> int:
    return sum(
        count
        for name, count in relay.analysis.list_op_freqs(mod).items()
        if name in (RECURRENT_OP, RECURRENT_BYTES_OP)
    )


def check(model: onnx.ModelProto, tolerance: float, *all_inputs: Any) -> None:
    """Compare both forms with onnxruntime, for this processor and for any x86-64 one."""
    imported = from_onnx(model, simplify=False)
    whole = relay.transform.InferType()(imported.mod)
    assert count_ops(whole) > 0
    apart = Unrolled()(whole)
    assert count_ops(apart) == 0
    for mod, target in ((whole, TARGET), (whole, AVX2), (whole, "llvm"), (apart, om.QUICK)):
        results = om.built_by_tvm(mod, imported.params, 3, target)
        for inputs in all_inputs:
            expected = om.run_onnxruntime(model, inputs)
            for mine, reference in zip(results(inputs), expected, strict=True):
                np.testing.assert_allclose(mine, reference, rtol=tolerance, atol=tolerance)


@pytest.mark.costly(27)
@pytest.mark.parametrize(("sizes", "direction"), LAYERS, ids=str)
@pytest.mark.parametrize("kind", GATES)
def test_both_forms_have_the_numbers_of_onnxruntime(
    kind: str, sizes: tuple[int, ...], direction: str
) -> None:
    model = layer(kind, sizes, direction)
    check(model, 5e-6, om.random_inputs(model))


@pytest.mark.costly(2)
@pytest.mark.parametrize("hidden", [16, 20, 64])
def test_both_forms_with_weights_of_bytes(hidden: int) -> None:
    model = byte_layer(5, 8, hidden)
    data = np.random.default_rng(0).standard_normal((5, 1, 8)).astype("float32")
    check(model, 5e-3, {"x": data})


@pytest.mark.parametrize("hidden", [16, 48, 64])
def test_sums_with_avx2_are_exact(hidden: int) -> None:
    """They are those of the kernel for any processor, which adds up one product at a time."""
    imported = from_onnx(byte_layer(2, 8, hidden, most=127), simplify=False)
    mod = relay.transform.InferType()(imported.mod)
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 1, 8)).astype("float32")}
    actual, expected = (
        om.built_by_tvm(mod, imported.params, 3, target)(inputs) for target in (AVX2, "llvm")
    )
    for mine, reference in zip(actual, expected, strict=True):
        assert np.abs(reference).max() > 0.1
        np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.costly(8)
def test_a_state_of_zeros_and_one_of_a_single_value() -> None:
    """The range of a state is its rounding step: of zeros there is none."""
    model = byte_layer(3, 4, 16)
    zeros, large = (np.full((3, 1, 4), value, np.float32) for value in (0, 50))
    check(model, 5e-3, {"x": zeros}, {"x": large})


@pytest.mark.parametrize(("lengths", "count"), [([4, 4], 1), ([4, 3], 0)])
def test_lengths_that_are_known_to_be_all_steps(lengths: list[int], count: int) -> None:
    model = layer("LSTM", (4, 2, 3, 16), "reverse")
    model.graph.node[0].input.append("lengths")
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.array(lengths, np.int32), "lengths")
    )
    imported = from_onnx(model, simplify=False)
    assert count_ops(imported.mod) == count
    inputs = om.random_inputs(model)
    expected = om.run_onnxruntime(model, inputs)
    results = om.run_tvm(imported.mod, imported.params, inputs, 3, TARGET)
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=5e-6, atol=5e-6)


def test_nan_stays_nan() -> None:
    model = layer("LSTM", (3, 1, 4, 16), "forward")
    data = np.zeros((3, 1, 4), np.float32)
    data[1, 0, 2] = np.nan
    imported = from_onnx(model, simplify=False)
    states = om.run_tvm(imported.mod, imported.params, {"x": data}, 3, TARGET)[0]
    assert np.isfinite(states[0]).all()
    assert np.isnan(states[1:]).all()


def test_a_layer_of_many_steps_is_one_task() -> None:
    model = layer("LSTM", (MAX_RECURRENT_STEPS + 1, 1, 2, 3), "forward")
    imported = from_onnx(model, simplify=False)
    network = prepare(imported.mod, imported.params, cluster=cluster("cpu", TARGET))
    assert len(network.graph.tasks) < 20
    with pytest.raises(UnsupportedRelayError, match="Place it on CPUs only"):
        prepare(imported.mod, imported.params, cluster=cluster("cuda", CUDA))


def cluster(kind: str, target: str) -> Cluster:
    cores = (0,) if kind == "cpu" else ()
    device = Device(f"{kind}.0", kind, target, 0, 0, cores)
    return Cluster("one", (Memory("ram", 2**33),), (device,), (), 0)


def test_what_a_device_has_no_kernel_for_is_unrolled() -> None:
    floats = from_onnx(layer("GRU", (4, 1, 3, 16), "forward"), simplify=False).mod
    small = from_onnx(byte_layer(4, 3, 16), simplify=False).mod
    for mod, kind, target, count in (
        (floats, "cpu", TARGET, 1),
        (floats, "cpu", "llvm", 1),
        (floats, "cuda", CUDA, 0),
        (small, "cpu", "llvm", 0),
        (small, "cpu", AVX2, 2),
        (small, "cpu", "llvm -mcpu=cascadelake", 2),
    ):
        assert count_ops(unrolled_for(mod, cluster(kind, target))) == count


def test_a_processor_that_is_only_planned_for_keeps_the_op() -> None:
    mod = from_onnx(byte_layer(4, 3, 16), simplify=False).mod
    device = Device("cpu.0", "cpu", "llvm", 0, 0, ())
    planned = Cluster("one", (Memory("ram", 2**33),), (device,), (), 0)
    assert count_ops(unrolled_for(mod, planned)) == 2


def test_steps_belong_to_the_layer() -> None:
    mod = relay.transform.InferType()(
        from_onnx(layer("LSTM", (3, 1, 4, 16), "forward"), simplify=False).mod
    )
    ops = [
        node
        for node in post_order(Unrolled()(mod)["main"].body)
        if op_name(node) in ("nn.dense", "tanh", "sigmoid")
    ]
    assert len(ops) > 12
    assert {node.span.source_name.name for node in ops} == {"n_y"}


def test_a_gpu_is_told_to_unroll_first() -> None:
    mod = from_onnx(layer("RNN", (4, 1, 3, 16), "forward"), simplify=False).mod
    with pytest.raises(LoweringError, match="unrolled:Unrolled"):
        relay.build(mod, target=tvm.target.Target("cuda -arch=sm_80", host="llvm"))


def test_all_weights_of_a_layer_are_trained() -> None:
    imported = from_onnx(layer("LSTM", (2, 1, 3, 5), "forward"), simplify=False)
    main = imported.mod["main"]
    states = tvm.IRModule.from_expr(relay.Function(main.params, main.body.fields[0]))
    step = training_step(states, imported.params, loss="mse")
    assert {"w", "r", "b"} <= set(step.weights)
    assert count_ops(step.backward) == 0


READER = """
import numpy as np
from heteroplace.relay.source import source_from_json
folder = {folder!r}
arrays = np.load(folder + "/arrays.npz")
data = open(folder + "/source.json", "rb").read()
read = source_from_json(data, lambda index, _: arrays[str(index)])
print(read.mod["main"].ret_type.fields[0])
"""


def test_a_stored_module_is_read_by_a_new_process(tmp_path: Path) -> None:
    imported = from_onnx(byte_layer(4, 3, 16), simplify=False)
    main = relay.build_module.bind_params_by_name(imported.mod["main"], imported.params)
    plain = relay.Function(main.params, main.body)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(plain))
    arrays: dict[str, np.ndarray] = {}

    def place(array: np.ndarray) -> int:
        arrays[str(len(arrays))] = array.reshape(-1).view(np.uint8)
        return len(arrays) - 1

    (tmp_path / "source.json").write_bytes(source_to_json(Source(mod, 3), place))
    np.savez(tmp_path / "arrays.npz", **arrays)
    text = run_python(READER.format(folder=str(tmp_path)))
    assert text.strip() == "Tensor[(4, 2, 1, 16), float32]"
