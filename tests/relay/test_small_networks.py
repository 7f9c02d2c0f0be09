"""The small networks of today's structures: numbers of onnxruntime through the pass and tvmc."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
import tvm
from relay_models import cpu_cluster, random_costs, random_devices, solution_of
from tvm import relay

import heteroplace
from heteroplace import pipeline
from heteroplace.cli.tvmc_plugin.tvmc import main
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.executable import Executable
from heteroplace.lower.library import compile_kernels
from heteroplace.run.executor import Executor
from zoo.models.catalogue import load_model, onnx_model_of, small_network_names
from zoo.models.low_precision import QDQ_STEP

pytestmark = [
    pytest.mark.relay,
    # As in test_tvmc.py.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:tvm.parser.fromtext is deprecated:DeprecationWarning"),
]

NAMES = small_network_names()
TOLERANCES = {"float16_cnn": 5e-3}
"""Of the largest value of an output, where it is not that of float32."""


@pytest.fixture
def compiled(monkeypatch) -> list[int]:
    """The number of kernels of each library that is compiled."""
    counts: list[int] = []

    def noted(kernels: Collection[Any], on_kernel: Any = None) -> Any:
        counts.append(len(kernels))
        return compile_kernels(kernels, on_kernel)

    monkeypatch.setattr("heteroplace.lower.compile.compile_kernels", noted)
    return counts


def assert_equal(name: str, found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Equal within the tolerance; what is quantised may be a step of its own away."""
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        largest = np.abs(theirs).max()
        assert largest > 1e-3
        allowed = QDQ_STEP * 1.001 if name == "int8_qdq" else TOLERANCES.get(name, 1e-4) * largest
        assert np.abs(ours - theirs).max() <= allowed


def outputs_of_onnxruntime(name: str, inputs: Mapping[str, np.ndarray]) -> list[Any]:
    """Those of a quantised network are exact without optimisations alone."""
    return om.run_onnxruntime(onnx_model_of(name), inputs, optimizes=name != "int8_qdq")


def assert_helping_changes_nothing(
    executable: Executable, inputs: Mapping[str, np.ndarray]
) -> None:
    """Parts of loops, however many and wherever they are done, make the same bits."""
    alone = Executor(executable, helping=False).run(inputs)
    helped = Executor(executable, helping=True)
    for _ in range(6):  # the first calls are timed, and have no help
        for ours, theirs in zip(helped.run(inputs), alone, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.costly(14)
def test_a_network_chosen_by_the_commit_equals_onnxruntime(request) -> None:
    name = NAMES[int(request.config.option.hypothesis_seed) % len(NAMES)]
    model = load_model(name)
    with tvm.transform.PassContext(opt_level=3):
        options = {"costs": random_costs, "solver": "heft"}
        executable = heteroplace.build(model.mod, cpu_cluster(), model.params, **options)
    expected = outputs_of_onnxruntime(name, model.inputs)
    assert_equal(name, Executor(executable).run(**model.inputs), expected)
    assert_helping_changes_nothing(executable, model.inputs)


def test_what_a_seed_makes_depends_on_nothing_else() -> None:
    for name in NAMES:
        texts = {onnx_model_of(name, seed).SerializeToString() for seed in (0, 0, 1)}
        # The weights of the quantised one are a pattern.
        assert len(texts) == (1 if name == "int8_qdq" else 2)


def recurrent() -> onnx.ModelProto:
    """A GRU whose input is a part of a split, with another reader; both results are read."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, dtype=np.float32)

    nodes = [
        om.node("Split", "x sizes", "a b", axis=2),
        om.node("GRU", "a w r", "y h", hidden_size=4),
        om.node("Squeeze", "y axis", "flat"),
        om.node("Concat", "flat b a", "joined", axis=2),
        om.node("Softmax", "joined", "out"),
    ]
    weights = {
        "sizes": np.array([4, 4]),
        "axis": np.array([1]),
        "w": weight(1, 12, 4),
        "r": weight(1, 12, 4),
    }
    return om.make_model(nodes, {"x": [3, 1, 8]}, ["out", "h"], weights)


@pytest.mark.costly
def test_parts_of_tuples_with_several_readers_are_compiled_once(compiled) -> None:
    mod, params = heteroplace.frontend.from_onnx(recurrent())
    cluster = cpu_cluster()
    with tvm.transform.PassContext(opt_level=3):
        network = pipeline.prepare(mod, params)
        assert network.extraction is not None
        devices = random_devices(network.extraction, cluster, 0)
        kernels = CompiledNetwork.of(network)
        kernels.kernels(cluster, devices)  # as measuring does
        placed = pipeline.annotate(kernels, solution_of(network.extraction, cluster, devices))
        executable = heteroplace.build(placed)
    assert len(compiled) == 1
    inputs = om.random_inputs(recurrent())
    expected = om.run_onnxruntime(recurrent(), inputs)
    assert_equal("recurrent", Executor(executable).run(**inputs), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_network_is_compiled_once_and_equals_onnxruntime(name: str, compiled, tmp_path) -> None:
    model = load_model(name)
    onnx.save(onnx_model_of(name), tmp_path / "model.onnx")
    expected = outputs_of_onnxruntime(name, model.inputs)
    with tvm.transform.PassContext(opt_level=3):
        options = {"params": model.params, "time_limit": 1.0}
        placed = relay.transform.HeteroPlace(cpu_cluster(), **options)(model.mod)
        executable = heteroplace.build(placed)
    assert len(compiled) == 1
    assert_equal(name, Executor(executable).run(**model.inputs), expected)
    assert_helping_changes_nothing(executable, model.inputs)
    assert_equal(name, outputs_of_tvmc(tmp_path, model.inputs), expected)


def outputs_of_tvmc(folder: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What `tvmc compile` and `tvmc run` make of model.onnx."""
    np.savez(folder / "inputs.npz", **inputs)
    place = ["--placement", "local", "--placement-option", "time_limit=1"]
    model, library, out = (str(folder / name) for name in ("model.onnx", "model.so", "out.npz"))
    assert main(["compile", model, *place, "-o", library]) == 0
    assert main(["run", library, "-i", str(folder / "inputs.npz"), "-o", out]) == 0
    with np.load(out) as arrays:
        return [arrays[f"output_{index}"] for index in range(len(arrays.files))]
