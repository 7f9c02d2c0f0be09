"""One file that takes calls of any length: results are those of the ONNX model at that length."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from relay_models import cpu_cluster, random_costs

import heteroplace as hp
from heteroplace.cli.main import WRONG_INPUT, main
from heteroplace.errors import ArtifactError, ExecutionError, FrontendError, PaddingError
from heteroplace.files.manifest import Manifest
from heteroplace.native.compiled_file import read_manifest
from tests import sequence_models
from tests.sequence_models import LENGTH, WIDTH, encoder, encoder_inputs
from tests.short_measuring import short_measuring

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.relay

SIZES = [64, 4, 16]
BATCH = 2
LENGTHS = (1, 2, 4, 5, 16, 17, 63, 64)


def compiled(model: onnx.ModelProto, **options: Any) -> hp.Executable:
    chosen = {"batch": BATCH, "sizes": {LENGTH: SIZES}, "solver": "heft", **options}
    cluster = chosen.pop("cluster", None) or cpu_cluster()
    return hp.compile(model, cluster, costs=random_costs, verify="off", **chosen)


@pytest.fixture(scope="module")
def executable() -> hp.Executable:
    return compiled(encoder())


@pytest.fixture(scope="module")
def executor(executable: hp.Executable) -> Iterator[hp.Executor]:
    with hp.Executor(executable, max_in_flight=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def file(executable: hp.Executable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lengths") / "model.so"
    executable.export_library(path)
    return path


class Reference:
    """onnxruntime's outputs, at any length."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )

    def check(self, outputs: list[np.ndarray], inputs: dict[str, Any]) -> None:
        """Compare shapes and numbers."""
        for ours, theirs in zip(outputs, self.session.run(None, inputs), strict=True):
            assert ours.flags.c_contiguous
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(encoder())


@pytest.mark.costly(4)
def test_results_are_those_of_onnxruntime_at_each_length(
    executor: hp.Executor, reference: Reference
) -> None:
    assert executor.lengths is not None
    assert executor.lengths.entries == (4, 16, 64)
    assert executor.lengths.outputs == (("hidden", (1,)),)
    for length in (*LENGTHS, *reversed(LENGTHS)):
        inputs = encoder_inputs(length, BATCH)
        reference.check(executor.run(inputs), inputs)


def test_outputs_are_written_into_arrays_of_the_caller(
    executor: hp.Executor, reference: Reference
) -> None:
    inputs = encoder_inputs(7, BATCH)
    hidden = np.zeros((BATCH, 7, WIDTH), "float32")
    outputs = executor.run(inputs, out=[hidden, None])
    assert outputs[0] is hidden
    reference.check(outputs, inputs)
    with pytest.raises(ExecutionError, match=r"expected float32 \(2, 7, 16\), got .*\(2, 16, 16\)"):
        executor.run(inputs, out=[np.zeros((BATCH, 16, WIDTH), "float32"), None])


def test_calls_in_flight_have_lengths_of_their_own(
    executor: hp.Executor, reference: Reference
) -> None:
    calls = [encoder_inputs(length, BATCH) for length in LENGTHS]
    futures = [executor.run_async(inputs) for inputs in calls]
    for future, inputs in zip(futures, calls, strict=True):
        reference.check(future.result(60), inputs)
    for outputs, inputs in zip(executor.run_many(calls), calls, strict=True):
        reference.check(outputs, inputs)


def test_threads_call_different_lengths_at_once(
    executor: hp.Executor, reference: Reference
) -> None:
    faults: list[BaseException] = []

    def call(seed: int) -> None:
        try:
            for turn in range(20):
                inputs = encoder_inputs(1 + (seed * 13 + turn * 7) % 64, BATCH, seed)
                reference.check(executor.run(inputs), inputs)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not faults


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (encoder_inputs(65, BATCH), "sequence_length is 65; this file takes 1 to 64; compile the"),
        (encoder_inputs(0, BATCH), "sequence_length is 0; this file takes 1 to 64$"),
        (
            {**encoder_inputs(5, BATCH), "attention_mask": np.ones((BATCH, 6), "int64")},
            "differ in sequence_length: axis 1 of input 'input_ids' has 5, axis 1 of .* has 6",
        ),
        ({"input_ids": np.ones((BATCH, 5), "int64")}, "inputs 'attention_mask' are missing"),
        (encoder_inputs(5, 3), r"input 'input_ids': expected int64 \(2, 5\), got int64 \(3, 5\)"),
        (
            dict.fromkeys(("input_ids", "attention_mask"), np.ones(5, "int64")),
            r"input 'input_ids' has shape \[5\]; expected its sequence_length at axis 1",
        ),
    ],
)
def test_wrong_lengths_are_refused(
    executor: hp.Executor, inputs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExecutionError, match=message):
        executor.run(inputs)


def test_outputs_are_not_kept(executor: hp.Executor) -> None:
    with pytest.raises(ExecutionError, match="take those that `run` returned"):
        executor.get_output(0)


def test_a_file_says_and_takes_its_lengths(
    file: Path, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "any sequence_length from 1 to 64, padded to 4, 16 or 64"
    lengths = read_manifest(file).lengths
    assert lengths is not None
    assert lengths.text == text
    assert main(["show", str(file)]) == 0
    assert f"\ntakes {text}\n" in capsys.readouterr().out
    with hp.load(file) as loaded:
        for length in LENGTHS:
            inputs = encoder_inputs(length, BATCH)
            reference.check(loaded.run(inputs), inputs)


def test_the_commands_run_a_call_of_any_length(
    file: Path, tmp_path: Path, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = encoder_inputs(21, BATCH)
    words = ["run", str(file), "--runs", "2", "-o", str(tmp_path / "y.npz")]
    for name, array in inputs.items():
        np.save(tmp_path / f"{name}.npy", array)
        words += ["--input", f"{name}={tmp_path / name}.npy"]
    assert main(words) == 0
    assert "sequence_length 21 ran as 64, which is timed." in capsys.readouterr().out
    outputs = np.load(tmp_path / "y.npz")
    reference.check([outputs["hidden"], outputs["pooled"]], inputs)
    assert main(["run", str(file), "--runs", "2", "--json"]) == 0
    shapes = json.loads(capsys.readouterr().out)["outputs"]
    assert shapes["hidden"]["shape"] == [BATCH, 4, WIDTH]


def test_a_server_takes_requests_of_any_length(executor: hp.Executor, reference: Reference) -> None:
    pytest.importorskip("uvicorn")
    from tests.http_servers import open_executor, server

    served = open_executor(
        inputs=executor.inputs, outputs=executor.outputs, lengths=executor.lengths
    )
    served.run = executor.run  # type: ignore[method-assign]

    def request(**inputs: np.ndarray) -> dict[str, Any]:
        tensors = [
            {"name": name, "shape": array.shape, "datatype": "INT64", "data": array.tolist()}
            for name, array in inputs.items()
        ]
        return {"inputs": tensors}

    with server(served) as client:
        metadata = client.get("/v2/models/model").json
        assert [port["shape"] for port in metadata["inputs"]] == [[BATCH, -1]] * 2
        assert [port["shape"] for port in metadata["outputs"]] == [[BATCH, -1, 16], [BATCH, 16]]
        for length in LENGTHS:
            inputs = encoder_inputs(length, BATCH)
            outputs = client.infer(request(**inputs)).json["outputs"]
            assert outputs[0]["shape"] == [BATCH, length, WIDTH]
            arrays = [np.reshape(each["data"], each["shape"]) for each in outputs]
            reference.check(arrays, inputs)
        body = {**request(**inputs), "parameters": {"binary_data_output": True}}
        answer = client.infer(body)
        sizes = [each["parameters"]["binary_data_size"] for each in answer.json["outputs"]]
        assert sizes == [BATCH * 64 * WIDTH * 4, BATCH * WIDTH * 4]
        answer = client.infer(request(**encoder_inputs(65, BATCH)))
        assert (answer.status, "this file takes 1 to 64" in answer.error) == (400, True)
        answer = client.infer(request(**encoder_inputs(5, 1)))
        assert "expected INT64 of shape [2, -1], got INT64 of shape [1, 5]" in answer.error


@pytest.mark.costly
def test_places_that_read_no_others_need_no_mask() -> None:
    model = sequence_models.per_position()
    reference = Reference(model)
    with hp.Executor(compiled(model)) as executor:
        for length in LENGTHS:
            inputs = {"x": np.random.default_rng(0).standard_normal((BATCH, length, WIDTH))}
            inputs["x"] = inputs["x"].astype("float32")
            reference.check(executor.run(inputs), inputs)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            sequence_models.over_places("ReduceMean"),
            "padding changes output 'y'. At length 4 the entries for 4 and 16, padded with zeros",
        ),
        (sequence_models.halved(), r"output 'y' has shape \[2, 16, 2\] at 4 and \[2, 16, 8\] at"),
    ],
)
def test_a_model_whose_results_depend_on_padding_is_refused(
    model: onnx.ModelProto, message: str
) -> None:
    with pytest.raises(PaddingError, match=message) as fault:
        compiled(model)
    assert "Compile each size as an entry, which is not padded" in str(fault.value)


def test_agreement_with_zeros_alone_is_not_enough() -> None:
    """The largest of so many numbers is above 0, so zeros beside them are never read."""
    with pytest.raises(PaddingError, match="entries for 48 and 64, padded with other numbers"):
        compiled(sequence_models.over_places("ReduceMax"), sizes={LENGTH: [48, 64]})


def test_without_the_devices_nothing_is_checked_and_nothing_is_padded() -> None:
    here = cpu_cluster()
    far = replace(here.devices[0], cores=(4000,))
    cluster = replace(here, devices=(far,))
    with pytest.raises(PaddingError, match=r"devices that are not in this machine: cpu\.0"):
        compiled(sequence_models.per_position(), cluster=cluster)


@pytest.mark.costly
def test_a_number_of_places_serves_as_a_mask() -> None:
    model = sequence_models.mean_of_first()
    reference = Reference(model)
    with hp.Executor(compiled(model)) as executor:
        for length in LENGTHS:
            x = np.random.default_rng(0).standard_normal((BATCH, length, WIDTH)).astype("float32")
            inputs = {"x": x, "x_lens": np.array([length, max(1, length - 1)])}
            reference.check(executor.run(inputs), inputs)


@pytest.mark.costly
def test_a_mask_and_an_output_have_the_length_at_two_axes(tmp_path: Path) -> None:
    model = sequence_models.pairs()
    reference, random = Reference(model), np.random.default_rng(0)
    executable = compiled(model)
    executable.export_library(tmp_path / "model.so")
    with hp.load(tmp_path / "model.so") as executor:
        for length in LENGTHS:
            x = random.standard_normal((BATCH, length, WIDTH)).astype("float32")
            is_read = random.random((BATCH, length, length)) < 0.7
            is_read |= np.eye(length, dtype=bool)
            inputs = {"x": x, "is_read": is_read}
            reference.check(executor.run(inputs), inputs)
            outs = [np.zeros((BATCH, length, n), "float32") for n in (WIDTH, length)]
            assert executor.run(inputs, out=outs)[1] is outs[1]
            reference.check(outs, inputs)


def test_inputs_that_speak_dlpack_or_are_of_another_order_are_padded(
    executor: hp.Executor, reference: Reference
) -> None:
    inputs = encoder_inputs(9, BATCH)
    given = {
        "input_ids": tvm.nd.array(inputs["input_ids"]),
        "attention_mask": np.asfortranarray(inputs["attention_mask"]),
    }
    reference.check(executor.run(given), inputs)


def test_a_session_of_onnxruntime_shows_the_name_of_the_length(file: Path) -> None:
    session = hp.InferenceSession(file)
    assert session.get_inputs()[0].shape == [BATCH, LENGTH]
    assert [each.shape for each in session.get_outputs()] == [
        [BATCH, LENGTH, WIDTH],
        [BATCH, WIDTH],
    ]
    (pooled,) = session.run(["pooled"], encoder_inputs(7, BATCH))
    assert pooled.shape == (BATCH, WIDTH)


def test_a_damaged_record_of_lengths_is_refused(executable: hp.Executable) -> None:
    manifest = executable.manifest
    data = manifest.to_json().replace(b'"size": "sequence_length"', b'"size": 1')
    with pytest.raises(ArtifactError, match="the manifest is damaged"):
        Manifest.from_json(data, manifest.program_text, "model.so")


def test_several_sizes_are_placed_together() -> None:
    model, options = sequence_models.per_position(), {"costs": random_costs, "solver": "heft"}
    workload = hp.place_workload(
        model,
        cpu_cluster(),
        batch=1,
        sizes={LENGTH: [4, 16]},
        workload={"4": 3, "16": 1},
        **options,
    )
    assert dict(workload.calls) == {"4": 3, "16": 1}


@pytest.mark.costly(6)
def test_the_program_of_the_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HETEROPLACE_COSTS", str(tmp_path / "costs.sqlite"))
    onnx.save(encoder(), "model.onnx")
    text = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "lengths.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    with short_measuring():
        exec(program, {"__name__": "program"})
    assert capsys.readouterr().out == "(1, 37, 16)\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": {LENGTH: [16]}}, "expected at least two sizes"),
        ({"sizes": {LENGTH: [0, 16]}}, "expected at least two sizes"),
        ({"sizes": {LENGTH: [16, "many"]}}, "is 'many', of type str; expected whole numbers"),
        ({"sizes": {LENGTH: [4, 16], "batch": [1, 2]}}, "have several values each"),
        ({"entries": {"one": {LENGTH: 1}}}, "several values, and entries are given too"),
        ({"state": {"x": "y"}}, "padding would become part of the state"),
        ({"sizes": {"width": [4, 16]}}, "no input has a free size 'width'"),
        ({"workload": {"5": 1}}, "there is no entry '5'"),
    ],
)
def test_wrong_sizes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        compiled(sequence_models.per_position(), **options)


def test_one_size_is_placed_at_a_time() -> None:
    with pytest.raises(FrontendError, match="sizes has a list, and one size is placed here"):
        hp.place(encoder(), cpu_cluster(), costs=random_costs, sizes={LENGTH: SIZES})


@pytest.mark.costly(4)
def test_the_command_compiles_several_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(sequence_models.per_position(), model)
    words = [str(model), "--size", f"{LENGTH}=8,2", "--batch", "1", "--costs", "estimate"]
    assert main(["compile", *words, "-o", str(tmp_path / "model.so"), "--json"]) == 0
    compiled_json = json.loads(capsys.readouterr().out)
    assert compiled_json["lengths"]["entries"] == [2, 8]
    assert list(compiled_json["workload"]["calls"]) == ["2", "8"]
    with hp.load(tmp_path / "model.so") as loaded:
        assert loaded.run(x=np.ones((1, 5, WIDTH), "float32"))[0].shape == (1, 5, WIDTH)
    assert main(["place", *words, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["entries"]) == ["2", "8"]
    assert main(["run", *words]) == WRONG_INPUT
    assert "give one value here" in capsys.readouterr().err
