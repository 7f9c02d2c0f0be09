"""Placements of ONNX models, in the programs that read them: ONNX Runtime and OpenVINO."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import heteroplace
from heteroplace.errors import FrontendError, HeteroPlaceError, MissingPackageError, PlanError
from heteroplace.model.solution import Solution
from tests.placed_layers import chain_solution
from tests.programs import run_python
from tests.relay.onnx_models import make_model, node, random_inputs, run_onnxruntime, tiny_cnn

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "export.md"
LAYERS = {"n_c": "gpu0", "n_flat": "cpu", "n_y": "cpu"}  # n_r was fused
ANNOTATIONS = {"n_c": "gpu0", "n_r": "gpu0", "n_flat": "cpu", "n_y": "cpu"}


@pytest.fixture
def solution() -> Solution:
    return chain_solution(LAYERS)


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_cnn(), "model.onnx")
    return Path("model.onnx")


def guide_program(package: str) -> str:
    """The program of the guide that imports a package."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    (code,) = (block for block in blocks if f"import {package}\n" in block)
    return str(code)


def annotations(model: onnx.ModelProto) -> dict[str, str]:
    return {
        each.name: prop.value
        for each in model.graph.node
        for prop in each.metadata_props
        if prop.key == "layer_ann"
    }


@pytest.mark.filterwarnings("ignore:Specified provider 'CUDAExecutionProvider' is not in available")
def test_onnxruntime_runs_the_annotated_model(solution: Solution, model_file: Path) -> None:
    text = heteroplace.export(solution, "onnxruntime", "placed.onnx", model=model_file)
    assert json.loads(text) == {
        "session_config": {"session.layer_assignment_settings": "cuda(=gpu0); cpu(=cpu)"},
        "providers": ["CUDAExecutionProvider", "CPUExecutionProvider"],
        "provider_options": [{"device_id": "0"}, {}],
    }
    assert Path("placed.json").read_text() == text
    placed = onnx.load("placed.onnx")
    onnx.checker.check_model(placed)
    assert annotations(placed) == ANNOTATIONS
    inputs = random_inputs(tiny_cnn())
    names: dict[str, Any] = {}
    exec(guide_program("onnxruntime"), names)
    outputs = names["session"].run(None, inputs)
    for output, expected in zip(outputs, run_onnxruntime(tiny_cnn(), inputs), strict=True):
        np.testing.assert_array_equal(output, expected)


def test_onnxruntime_reads_the_settings(model_file: Path) -> None:
    solution = chain_solution(dict.fromkeys(LAYERS, "cpu"))
    text = heteroplace.export(solution, "onnxruntime", "placed.onnx", model=model_file)
    settings = json.loads(text)
    assert settings["providers"] == ["CPUExecutionProvider"]
    ((key, rules),) = settings["session_config"].items()
    assert rules == "cpu(=cpu)"
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(key, rules.replace("(", ""))
    options.log_severity_level = 4
    with pytest.raises(Exception, match="Invalid layering config: Missing"):
        onnxruntime.InferenceSession("placed.onnx", options, providers=settings["providers"])


def test_nodes_without_a_layer_follow_the_node_before(tmp_path: Path) -> None:
    model = make_model(
        [
            node("Relu", "x", "a"),
            node("Neg", "a", "b"),
            node("Exp", "b", "c"),
            node("Sin", "c", "y"),
        ],
        {"x": [4]},
        ["y"],
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    solution = chain_solution({"n_b": "gpu0", "n_a": "cpu"})
    output = tmp_path / "placed.onnx"
    heteroplace.export(solution, "onnxruntime", output, model=path)
    assert annotations(onnx.load(output)) == dict(n_a="cpu", n_b="gpu0", n_c="gpu0", n_y="gpu0")


def test_nodes_that_onnxruntime_fused_have_the_device_of_their_task(tmp_path: Path) -> None:
    """It makes one node of the product and the sum, with a name of its own."""
    model = make_model(
        [
            node("Relu", "x", "a"),
            node("Transpose", "w", "v"),
            node("MatMul", "a v", "b"),
            node("Add", "a b", "c"),
            node("Sin", "c", "y"),
        ],
        {"x": [4, 4]},
        ["y"],
        {"w": np.eye(4, dtype=np.float32)},
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    solution = chain_solution({"n_a": "cpu", "n_b/MatMulAddFusion": "gpu0", "n_y": "cpu"})
    output = tmp_path / "placed.onnx"
    heteroplace.export(solution, "onnxruntime", output, model=path)
    devices = dict(n_a="cpu", n_v="gpu0", n_b="gpu0", n_c="gpu0", n_y="cpu")
    assert annotations(onnx.load(output)) == devices


def test_wrong_models_and_plans_are_refused(model_file: Path, tmp_path: Path) -> None:
    other = chain_solution({"n_other": "cpu"})
    with pytest.raises(PlanError, match="none of its 4 nodes is a layer of the plan, whose first"):
        heteroplace.export(other, "openvino", model=model_file)
    with pytest.raises(HeteroPlaceError, match="needs the model that was placed; give --model"):
        heteroplace.export(other, "openvino")
    with pytest.raises(HeteroPlaceError, match=r"writes a model; give -o FILE\.onnx"):
        heteroplace.export(other, "onnxruntime", model=model_file)
    two = chain_solution({"n_c": "gpu0", "n_r": "gpu1"})
    with pytest.raises(PlanError, match=r"GPUs gpu0, gpu1, and a session .* --exclude gpu1"):
        heteroplace.export(two, "onnxruntime", "placed.onnx", model=model_file)
    onnx.save(tiny_cnn(), "apart.onnx", save_as_external_data=True, size_threshold=0)
    (tmp_path / "other").mkdir()
    with pytest.raises(FrontendError, match="write the annotated model into the same folder"):
        heteroplace.export(two, "onnxruntime", "other/placed.onnx", model="apart.onnx")


def test_openvino_has_the_names_of_operations(solution: Solution, model_file: Path) -> None:
    text = heteroplace.export(solution, "openvino", model=model_file)
    assert json.loads(text) == {"n_c": "GPU.0", "n_r": "GPU.0", "n_flat": "CPU", "y": "CPU"}


def test_devices_that_a_program_lacks_are_warnings(
    model_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layers = {"n_c": "gpu0", "n_c#2": "cpu", "n_flat": "cpu.1", "n_y": "cpu"}
    split = "layers on several devices go to the device of most of their weights: n_c"
    cpus = "cpu, cpu.1 become one device"
    solution = chain_solution(layers, {"n_c": 8}, has_two_cpus=True)
    heteroplace.export(solution, "onnxruntime", "placed.onnx", model=model_file)
    assert caplog.messages == [f"onnxruntime: {cpus}, cpu", f"onnxruntime: {split}"]
    caplog.clear()
    heteroplace.export(solution, "openvino", model=model_file)
    nvidia = "OpenVINO's GPU.0 and so on are GPUs of Intel; the plan has NVIDIA's gpu0"
    assert caplog.messages == [f"openvino: {each}" for each in (f"{cpus}, CPU", split, nvidia)]


@pytest.mark.slow
def test_openvino_runs_parts_on_two_devices(solution: Solution, model_file: Path) -> None:
    """There is no GPU here, so a second CPU plugin stands for it."""
    openvino = pytest.importorskip("openvino", exc_type=ImportError)
    heteroplace.export(solution, "openvino", "affinities.json", model=model_file)
    affinities = Path("affinities.json")
    affinities.write_text(affinities.read_text().replace("GPU.0", "CPU_B"))
    float32 = '{"INFERENCE_PRECISION_HINT": "f32"}'
    code = guide_program("openvino").replace(
        "core = openvino.Core()\n",
        "core = openvino.Core()\n"
        'core.register_plugin("openvino_intel_cpu_plugin", "CPU_B")\n'
        f'[core.set_property(device, {float32}) for device in ("CPU", "CPU_B")]\n',
    )
    names: dict[str, Any] = {}
    exec(code, names)
    compiled = names["compiled"]
    assert sorted(compiled.get_property("EXECUTION_DEVICES")) == ["CPU", "CPU_B"]
    queried = openvino.Core().query_model(names["core"].read_model("model.onnx"), "CPU")
    assert set(names["places"]) <= set(queried)
    inputs = random_inputs(tiny_cnn())
    (expected,) = run_onnxruntime(tiny_cnn(), inputs)
    np.testing.assert_allclose(compiled(inputs)[0], expected, rtol=1e-5, atol=1e-5)


_TWO_PROVIDERS = """
import json, sys
import onnxruntime, onnxruntime_ep_openvino
name = "OpenVINOExecutionProvider"
onnxruntime.register_execution_provider_library(name, onnxruntime_ep_openvino.get_library_path())
devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == name]
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
((key, rules),) = json.load(open("placed.json"))["session_config"].items()
rules = rules.replace("cuda(", name + "(").replace("cpu(", "CPUExecutionProvider(")
options.add_session_config_entry(key, rules)
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
options.add_provider_for_devices(devices[:1], {})
session = onnxruntime.InferenceSession("placed.onnx", options)
parts = session.get_provider_graph_assignment_info()
print(json.dumps(sorted([node.name, part.ep_name] for part in parts for node in part.get_nodes())))
"""


@pytest.mark.slow
@pytest.mark.parametrize("on_gpu", [["n_a"], ["n_b", "n_c"]])
def test_onnxruntime_assigns_nodes_to_two_providers(
    on_gpu: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another provider stands for the GPU's: without the setting it would take all nodes."""
    pytest.importorskip("onnxruntime_ep_openvino", exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    nodes = [node("Relu", "x", "a"), node("Exp", "x", "b"), node("Sin", "b", "c")]
    onnx.save(make_model(nodes, {"x": [4, 8]}, ["a", "c"]), "model.onnx")
    names = [each.name for each in nodes]
    layers = {name: "gpu0" if name in on_gpu else "cpu" for name in names}
    heteroplace.export(chain_solution(layers), "onnxruntime", "placed.onnx", model="model.onnx")
    providers = {"gpu0": "OpenVINOExecutionProvider", "cpu": "CPUExecutionProvider"}
    expected = [[name, providers[layers[name]]] for name in names]
    assert json.loads(run_python(_TWO_PROVIDERS).splitlines()[-1]) == expected


_MLIR = """\
// iree-compile --iree-input-type=onnx --iree-hal-target-device=device_0=local[0] \
--iree-hal-target-device=device_1=cuda[0] --iree-hal-local-target-device-backends=llvm-cpu \
--iree-llvmcpu-target-cpu=host
// device_0 is cpu
// device_1 is gpu0
"""


@pytest.mark.slow
def test_iree_compiles_and_runs_for_two_devices(solution: Solution, model_file: Path) -> None:
    """There is no GPU here, so a second CPU device of IREE stands for it."""
    pytest.importorskip("iree.compiler", exc_type=ImportError)
    runtime = pytest.importorskip("iree.runtime", exc_type=ImportError)
    text = heteroplace.export(solution, "iree", model=model_file)
    assert text.startswith(_MLIR)
    moves = re.findall(
        r"flow\.tensor\.transfer %\w+ : (\S+) to #hal\.device\.promise<@(\w+)>", text
    )
    assert moves == [("tensor<1x3x8x8xf32>", "device_1"), ("tensor<1x4x8x8xf32>", "device_0")]
    Path("placed.mlir").write_text(text.replace("cuda[0]", "local[1]"))
    options = shlex.split(Path("placed.mlir").read_text().partition("\n")[0])[2:]
    compiled = compile_by_iree("placed.mlir", *options)
    assert "@device_1" in compile_by_iree("placed.mlir", "--compile-to=stream", *options).decode()
    driver = runtime.get_driver("local-task")
    devices = [driver.create_default_device() for _ in range(2)]
    config = runtime.Config(device=devices[0])
    modules = [
        runtime.create_hal_module(config.vm_instance, devices=devices),
        runtime.VmModule.copy_buffer(config.vm_instance, compiled),
    ]
    context = runtime.SystemContext(vm_modules=modules, config=config)
    inputs = random_inputs(tiny_cnn())
    output = context.modules.module["test"](*inputs.values()).to_host()
    (expected,) = run_onnxruntime(tiny_cnn(), inputs)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def compile_by_iree(*words: str) -> bytes:
    """What `iree-compile` writes."""
    done = subprocess.run(
        [sys.executable, "-m", "iree.compiler.tools.scripts.iree_compile", *words, "-o", "-"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_iree_is_named_where_it_is_missing(
    solution: Solution, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "iree.compiler.dialects.flow", None)
    with pytest.raises(MissingPackageError, match="pip install iree-base-compiler"):
        heteroplace.export(solution, "iree", model=model_file)
