"""Placements of ONNX models in ONNX Runtime and OpenVINO become solutions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import heteroplace
from heteroplace.cli.main import main
from heteroplace.errors import PlanError
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.importing import import_placement
from tests.placed_layers import chain_solution
from tests.relay.onnx_models import tiny_cnn

LAYERS = {"n_c": "gpu0", "n_flat": "cpu", "n_y": "cpu"}  # n_r was fused
SETTING = "session.layer_assignment_settings"


@pytest.fixture(autouse=True)
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_cnn(), "model.onnx")
    return Path("model.onnx")


def imported(placement: str, form: str, **options: Any) -> dict[str, str]:
    """The layers of the network as a file places them."""
    free = chain_solution(dict.fromkeys(LAYERS, "cpu"), is_pinned=False, **options)
    return import_placement(placement, form, free, model="model.onnx").layers()


def written_layers(form: str, output: str, layers: dict[str, str], **options: Any) -> None:
    solution = chain_solution(layers, **options)
    heteroplace.export(solution, form, output, model="model.onnx")


@pytest.mark.parametrize("gpu", ["gpu0", "gpu1"])
def test_annotations_of_an_exported_model_are_its_placement(gpu: str) -> None:
    layers = {**LAYERS, "n_c": gpu}
    written_layers("onnxruntime", "placed.onnx", layers)
    assert imported("placed.onnx", "onnxruntime") == layers


def test_one_of_several_cpu_devices_has_its_name_in_annotations() -> None:
    layers = {**LAYERS, "n_flat": "cpu.1"}
    written_layers("onnxruntime", "placed.onnx", layers, has_two_cpus=True)
    assert imported("placed.onnx", "onnxruntime", has_two_cpus=True) == layers


def annotate(annotations: dict[str, str], settings: object) -> None:
    """Write an annotated model and its settings by hand."""
    model = onnx.load("model.onnx")
    for each in model.graph.node:
        if each.name in annotations:
            each.metadata_props.add(key="layer_ann", value=annotations[each.name])
    onnx.save(model, "placed.onnx")
    Path("placed.json").write_text(json.dumps(settings))


def session(rules: str, **others: object) -> dict[str, object]:
    """Settings with some rules."""
    return {"session_config": {SETTING: rules}, **others}


def test_rules_are_for_whole_annotations_or_their_beginnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    annotations = {"n_c": "stem.conv", "n_flat": "head", "n_y": "head.other"}
    providers = {"providers": ["CUDAExecutionProvider"], "provider_options": [{"device_id": "1"}]}
    annotate(annotations, session("gpu(stem); cpu(=head)", **providers))
    layers = imported("placed.onnx", "onnxruntime")
    assert (layers["n_c"], layers["n_flat"]) == ("gpu1", "cpu")
    assert caplog.messages == [
        "onnxruntime: no rule of placed.json covers head.other; a solver places these nodes"
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], rf"placed\.json: expected .*{SETTING}"),
        ({"session_config": {}}, rf"placed\.json: expected .*{SETTING}"),
        (session("npu(=a)"), r"has the rule 'npu\(=a\)'; expected DEVICE\(ANNOTATION, ...\) with"),
        (
            session("cpu(=a); cuda(a)"),
            r"the annotation 'a' has rules for cpu\(=a\) and cuda\(a\); expected one device",
        ),
        (session("cpu"), r"has the rule 'cpu'; expected DEVICE"),
        (
            session("cuda(a)", providers=["CUDAExecutionProvider"], provider_options=[[]]),
            r"provider_options\[0\] is \[\]; expected an object such as",
        ),
        (
            session(
                "cuda(a)", providers=["CUDAExecutionProvider"], provider_options=[{"device_id": 5}]
            ),
            r"the annotation 'a' is for the device cuda 5; expected one of cpu 0, cuda 0, cuda 1",
        ),
    ],
)
def test_wrong_settings_are_refused(settings: object, message: str) -> None:
    annotate(dict.fromkeys(LAYERS, "a"), settings)
    with pytest.raises(PlanError, match=message):
        imported("placed.onnx", "onnxruntime")


def test_models_without_annotations_of_the_plan_are_refused() -> None:
    annotate({}, session("cpu(=a)"))
    with pytest.raises(PlanError, match=r"placed\.onnx: none of its 0 annotated nodes is a layer"):
        imported("placed.onnx", "onnxruntime")
    annotate(dict.fromkeys(LAYERS, "a"), session("cpu(=a)"))
    Path("placed.json").unlink()
    with pytest.raises(PlanError, match=r"placed\.json: cannot be read: No such file"):
        imported("placed.onnx", "onnxruntime")


@pytest.mark.parametrize("gpu", ["gpu0", "gpu1"])
def test_exported_affinities_are_their_placement(gpu: str) -> None:
    layers = {**LAYERS, "n_c": gpu}
    written_layers("openvino", "affinities.json", layers)
    assert imported("affinities.json", "openvino") == layers


@pytest.mark.parametrize("write", [json.dumps, str])
def test_affinities_by_hand_are_read(write: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The first GPU is "GPU" too. A node without an affinity follows its reader."""
    affinities = {"n_c": "GPU", "y": "CPU", "w": "CPU", "n_c/WithoutBiases": "GPU"}
    Path("affinities.json").write_text(write(affinities))
    assert imported("affinities.json", "openvino") == LAYERS
    assert caplog.messages == [
        "openvino: n_c/WithoutBiases are no nodes of model.onnx and do not count; OpenVINO makes "
        "such operations itself"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"n_c": "GPU.7"}', r"'n_c' is on 'GPU.7'; expected CPU, GPU.0, GPU.1, the devices of"),
        ('{"n_c": "NPU"}', r"'n_c' is on 'NPU'; expected CPU, GPU.0, GPU.1"),
        ('{"n_c": 0}', r"'n_c' is on 0; expected CPU"),
        ("[]", r"expected an object of operations and devices, .* got a list"),
        ('{"n_c": ', r"not valid JSON: Expecting value: line 1 column 9"),
        (
            '{"conv": "CPU"}',
            r"none of its 1 operations is a node of model.onnx, whose first .*'n_c'",
        ),
        ("{}", r"none of its 0 operations is a node of model.onnx"),
    ],
)
def test_wrong_affinities_are_refused(text: str, message: str) -> None:
    Path("affinities.json").write_text(text)
    with pytest.raises(PlanError, match=rf"affinities\.json: {message}"):
        imported("affinities.json", "openvino")


@pytest.mark.slow
def test_what_openvino_prints_of_a_model_is_read() -> None:
    openvino = pytest.importorskip("openvino", exc_type=ImportError)
    core = openvino.Core()
    queried = core.query_model(core.read_model("model.onnx"), "CPU")
    Path("affinities.txt").write_text(f"{queried}\n")
    assert imported("affinities.txt", "openvino") == dict.fromkeys(LAYERS, "cpu")


def test_the_command_compares_placements_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Both formats give the time of the plan that was exported."""
    plan = heteroplace.place(
        "model.onnx", "cpu-one-gpu", costs="estimate", solver="heft", pin={"n_c": "gpu0"}
    )
    plan.save("plan.json")
    free = heteroplace.place("model.onnx", "cpu-one-gpu", costs="estimate", solver="heft")
    free.save("free.json")
    for form, output in (("onnxruntime", "placed.onnx"), ("openvino", "affinities.json")):
        heteroplace.export(plan, form, output, model="model.onnx")
        words = ["import", output, "--from", form, "--plan", "free.json", "--model", "model.onnx"]
        assert main([*words, "-o", "theirs.json", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        theirs: Solution = heteroplace.load_solution("theirs.json")
        assert theirs.layers() == plan.layers()
        assert shown["expected_ns"] == theirs.expected_ns == plan.expected_ns
        assert shown["ratio"] == plan.expected_ns / free.expected_ns
        assert main(["diff", "free.json", "theirs.json"]) == 0
        assert "conv2d.1" in capsys.readouterr().out
