"""Each command that a text prints runs as it is written, page by page, on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from heteroplace.files.cluster_file import save_cluster
from heteroplace.machine.local import open_cluster
from heteroplace.model.cluster import Cluster, Link, Memory
from heteroplace.relay.targets import multiplies_bfloat16, multiplies_integers
from heteroplace.tvm_bridge import llvm_cpu_target
from tests.document_commands import (
    ROOT,
    DocumentCommand,
    document_commands,
    faults_of_words,
    mentions,
    parser_says,
)
from tests.placed_layers import chain_solution
from tests.sequence_models import encoder, encoder_inputs
from tests.short_measuring import short_measuring
from tests.tiny_decoders import byte_tokenizer, onnx_decoder

pytestmark = [
    pytest.mark.relay,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # TVM's targets
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_INSTALLS = "installs packages; `python -m docs.type_commands` types it"
_MINUTES = "takes minutes; tests/relay/test_demo.py runs it on a small network"
_TUNES = "searches for up to ten minutes; tests/relay/test_tuning.py runs short searches"
_HOSTS = "needs two computers; tests/relay/test_ranks.py and test_profile_remote.py run ranks here"
_SERVES = "runs until a signal, or needs that server; tests/relay/test_serving.py runs the page"
_CONTAINER = "needs a container engine; `python -m docs.type_commands --chroot` types the steps"
_IN_WORK = 'docker run --rm -v "$PWD:/work" -w /work'
_CACHED = 'docker run --rm -v heteroplace:/root/.cache/heteroplace -v "$PWD:/work" -w /work'
_GPU = "needs an NVIDIA GPU; tests/gpu runs it"
NOT_RUN = {
    "heteroplace setup-tvm": _INSTALLS,
    "make demo": _MINUTES,
    "make test": "CI runs it",
    "make wheel": _INSTALLS,
    "make offline": "downloads; tests/test_offline.py installs what it packs",
    "sh build/offline/install.sh": "tests/test_offline.py runs it",
    "python3 -m venv env && . env/bin/activate": _INSTALLS,
    "pip install dist/heteroplace-*.whl": _INSTALLS,
    'pip install "heteroplace[relay]"': _INSTALLS,
    'pip install "$(echo dist/heteroplace-*.whl)[relay]"': _INSTALLS,
    "pip install nbconvert ipykernel": _INSTALLS,
    "jupyter nbconvert --to html --execute notebook.ipynb": _INSTALLS,
    "docker build -t heteroplace -f Containerfile .": _CONTAINER,
    "docker run --rm heteroplace": _CONTAINER,
    f"{_IN_WORK} heteroplace heteroplace run model.onnx": _CONTAINER,
    "docker build -t server .": _CONTAINER,
    "docker run --rm -p 8000:8000 server": _CONTAINER,
    f"{_CACHED} heteroplace heteroplace run model.onnx": _CONTAINER,
    "python -m heteroplace.tvm_wheel install": _INSTALLS,
    'pip install "heteroplace[serve]"': _INSTALLS,
    'pip install "heteroplace[generate]"': _INSTALLS,
    "heteroplace serve model.so": _SERVES,
    "heteroplace serve scores.so": _SERVES,
    "heteroplace serve a.so best=b.so": _SERVES,
    "curl -s localhost:8000/v2/models/model": _SERVES,
    'curl -s localhost:8000/v2/models/model/infer -d \'{"inputs": [{"name": "x", '
    '"shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}\'': _SERVES,
    "curl -s localhost:8000/metrics": _SERVES,
    "heteroplace tune model.onnx --cluster local --budget 10m": _TUNES,
    "heteroplace export solution.json --model model.onnx --to iree -o placed.mlir": (
        "needs IREE's compiler; tests/relay/test_exported_models.py runs it"
    ),
    "heteroplace probe --gpu-parts 2": _GPU,
    "heteroplace probe --cores 1-3 -o cluster.json": "needs four cores; see tests/unit/cli",
    "python -m heteroplace.relay.source_child < module.json": "is a child process of ours",
}
"""Commands that are not run here, with the reason."""
if not multiplies_bfloat16(tvm.target.Target(llvm_cpu_target())):
    NOT_RUN |= dict.fromkeys(
        (
            "heteroplace run model.onnx --precision bf16",
            "heteroplace compile model.onnx -o model.so --precision bf16 "
            "--precision nn.dense=float32",
        ),
        "needs a processor with AVX512-BF16; tests/relay/test_bfloat16.py has the refusal",
    )
if not multiplies_integers(tvm.target.Target(llvm_cpu_target())):
    NOT_RUN["heteroplace run model.onnx --precision int8"] = (
        "needs a processor with AVX512-VNNI; tests/relay/test_int8_rows.py has the refusal"
    )
BENCHMARKS = "in full size it takes minutes; tests/test_bench_sizes.py runs the smallest one"

COMMANDS = [each for each in document_commands() if not each.is_benchmark]
PAGES = list(dict.fromkeys(each.page for each in COMMANDS))


def is_run(command: DocumentCommand) -> bool:
    return command.typed not in NOT_RUN and command.words[0] != "mpiexec"


Before = Callable[[Path], None]
"""Puts files into the current folder, from that of `files`."""


def _given(*names: str) -> Before:
    """Return what takes given files, which other commands of the page have replaced."""

    def take(given: Path) -> None:
        for name in names:
            shutil.copy(given / name, Path(name).name)

    return take


def _write_decoder_plan(_: Path) -> None:
    """A plan of a decoder of two blocks, of which a GPU has one."""
    places = {
        "/model/layers.0/mlp/up_proj/MatMul": "cpu",
        "/model/layers.1/mlp/up_proj/MatMul": "gpu0",
    }
    chain_solution(places).save("decoder.json")


def _write_map(_: Path) -> None:
    """A device map with all of the model on the CPU."""
    Path("map.json").write_text('{"": "cpu"}')


BEFORE: dict[str, Before] = {
    "heteroplace import map.json --from device-map --plan solution.json -o theirs.json": _write_map,
    "heteroplace export decoder.json --to llama -o llama.args": _write_decoder_plan,
    "heteroplace probe -o cluster.json": lambda _: Path("cluster.json").unlink(missing_ok=True),
    "heteroplace place --graph graph.json --cluster cluster.json --costs costs.json": _given(
        "cluster.json", "costs.json"
    ),
    "heteroplace run model.so --trusted-key key.pub.pem": _given("signed/model.so"),
}
"""What the text of a command presumes, and the commands before it do not leave."""


Compiled = dict[tuple[str, bytes], bytes]
"""A command that compiles, with its model -> the file."""


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return {}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with all that the texts presume to be there, made by small means."""
    folder = tmp_path_factory.mktemp("given")
    kept = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch, short_measuring():
        patch.setenv("HETEROPLACE_COSTS", str(kept / "costs.sqlite"))
        patch.setenv("HETEROPLACE_MODELS", str(kept / "models"))
        patch.chdir(folder)
        _write_models()
        _write_others()
        yield folder


_WITH_STATE = """
<ir_version: 8, opset_import: ["": 17]>
filter (float[4] x, float[4] h) => (float[4] y, float[4] hn) { hn = Add(x, h)  y = Relu(hn) }
"""


def _write_models() -> None:
    """A small CNN with the batch fixed or open, a layer alone, which is quick to shard, a filter
    with state, and a decoder."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from onnx.parser import parse_model

    random = np.random.default_rng(0)
    shapes = {"w": (4, 3, 3, 3), "b": (4,), "v": (4, 2)}
    tensors = [
        numpy_helper.from_array(random.standard_normal(shape).astype("float32"), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "encoder.0.conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "encoder.0.relu"),
        helper.make_node("ReduceMean", ["r"], ["m"], "pool", axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["m", "v"], ["y"], "head"),
    ]
    cases = {"model": (nodes, 1, (3, 8, 8)), "open": (nodes, "N", (3, 8, 8))}
    cases["layer"] = ([helper.make_node("MatMul", ["x", "v"], ["y"], "head")], "N", (4,))
    for name, (used, rows, shape) in cases.items():
        ends = [
            [helper.make_tensor_value_info(end, TensorProto.FLOAT, [rows, *sizes])]
            for end, sizes in (("x", shape), ("y", (2,)))
        ]
        read = {value for node in used for value in node.input}
        held = [tensor for tensor in tensors if tensor.name in read]
        graph = helper.make_graph(used, "small", *ends, held)
        opsets = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), f"{name}.onnx")
    onnx.save(parse_model(_WITH_STATE), "state.onnx")
    onnx.save(onnx_decoder(1), "decoder.onnx")
    free = onnx_decoder("sequence_length", capacity=512, has_free_sizes=True)
    onnx.save(free, "free_decoder.onnx")
    onnx.save(encoder(), "sequence.onnx")
    for name, array in encoder_inputs(37).items():
        np.save({"input_ids": "ids.npy", "attention_mask": "mask.npy"}[name], array)
    Path("tokenizer.json").write_text(byte_tokenizer())
    array = random.standard_normal((1, 3, 8, 8)).astype("float32")
    np.save("x.npy", array)
    for name in ("x", "first", "second"):
        np.savez(f"{name}.npz", x=array)


def _write_others() -> None:
    """What commands of this package make of the model, and a graph with times of its own."""
    place = "heteroplace place --graph graph.json --costs costs.json --cluster cluster.json"
    commands = [
        "heteroplace probe -o cluster.json",
        "heteroplace compile model.onnx -o model.so",
        "heteroplace profile model.onnx --cluster cluster.json -o costs.json "
        "--graph-out graph.json",
        f"{place} -o before.json",
        f"{place} --pin '*=cpu.0' -o after.json",
        f"{place} -o plan.json",
        "openssl genpkey -algorithm ed25519 -out key.pem",
        "openssl pkey -in key.pem -pubout -out key.pub.pem",
        "mkdir signed",
        "tvmc compile model.onnx --placement local --placement-sign-with key.pem "
        "-o signed/model.so",
    ]
    for typed in commands:
        _run(DocumentCommand("here", typed))
    shutil.copy("model.so", "direction.so")
    clusters = [open_cluster(name) for name in ("cluster.json", "cpu-two-gpus")]
    times = {device.name: 1000 for cluster in clusters for device in cluster.devices}
    graph = json.loads(Path("graph.json").read_text())
    for task in graph["tasks"]:
        task["times_ns"] = times
    Path("graph.json").write_text(json.dumps(graph))


def _is_about_ranks(page: str) -> bool:
    return page == "docs/guide/sharding.md"


def _write_ranks() -> None:
    """Two cores with a memory each, as the text on sharding presumes."""
    here = open_cluster("local")
    cores = [device for device in here.devices if len(device.cores) == 1][:2]
    memories = tuple(Memory(f"ram{rank}", 2**30) for rank in range(len(cores)))
    devices = tuple(
        replace(device, memory=rank, copy_engines=0) for rank, device in enumerate(cores)
    )
    links = (Link("up", 0, 1, 10**10, 500, "up"), Link("down", 1, 0, 10**10, 500, "down"))
    save_cluster(Cluster("ranks", memories, devices, links, 0), "cluster.json")


def _model_of(command: DocumentCommand) -> str:
    """The model that a command is about."""
    if any("sequence_length=" in word for word in command.words) and _is_about_lengths(command):
        return "sequence.onnx"
    if "--size" in command.words:
        return "free_decoder.onnx"
    if "--tokenizer" in command.words:
        return "decoder.onnx"
    if "--state" in command.words:
        return "state.onnx"
    if "shard" in command.words or _is_about_ranks(command.page):
        return "layer.onnx"
    return "open.onnx" if "--batch" in command.words else "model.onnx"


def _is_about_lengths(command: DocumentCommand) -> bool:
    """Whether it is for a model that takes sequences of any length and keeps no state."""
    return command.page == "docs/guide/lengths.md" or "sequence_length=16,64,256" in command.words


def _run(command: DocumentCommand) -> None:
    """Run a command in this process where it is one of ours; AssertionError: it failed."""
    first, *rest = command.words
    main = _mains().get(first)
    if main is not None:
        try:
            code = main(rest)
        except SystemExit as stopped:  # as argparse ends --help
            code = stopped.code or 0
        assert code == 0, f"exit code {code}"
        return
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command.typed], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _run_once(command: DocumentCommand, compiled: Compiled) -> None:
    """Run a command; of one that compiles a model to `model.so` and has run before, take the file.

    Nothing else that a page has goes into such a file, so it would be the same again.
    """
    words = command.words
    named = {word for word in words if "." in word.rpartition("=")[2]}
    if words[:2] != ["heteroplace", "compile"] or named != {"model.onnx", "model.so"}:
        _run(command)
        return
    key = (command.typed, Path("model.onnx").read_bytes())
    if key not in compiled:
        _run(command)
        compiled[key] = Path("model.so").read_bytes()
    Path("model.so").write_bytes(compiled[key])


def _mains() -> dict[str, Callable[[list[str]], int]]:
    from heteroplace.cli.main import main
    from heteroplace.cli.tvmc_plugin.tvmc import main as tvmc

    return {"heteroplace": main, "tvmc": tvmc}


@pytest.mark.parametrize("page", [page for page in PAGES])
def test_commands_of_a_page_run_as_they_are_written(
    page: str,
    files: Path,
    compiled: Compiled,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    if _is_about_ranks(page):
        _write_ranks()
    faults = []
    for command in COMMANDS:
        if command.page != page or not is_run(command):
            continue
        shutil.copy(files / _model_of(command), "model.onnx")
        BEFORE.get(command.typed, _given())(files)
        try:
            _run_once(command, compiled)
        except AssertionError as fault:
            faults.append(f"{command.typed}: {fault}\n{capsys.readouterr().err}")
    assert not faults, "\n".join(faults)


def test_what_is_not_run_is_still_in_the_texts() -> None:
    typed = {command.typed for command in COMMANDS}
    assert set(NOT_RUN) <= typed
    assert set(BEFORE) <= typed


@pytest.mark.parametrize(
    "command",
    [each for each in document_commands() if not is_run(each)],
    ids=lambda each: each.typed,
)
def test_what_is_not_run_has_options_that_exist(command: DocumentCommand) -> None:
    assert not parser_says(command)


def test_subcommands_and_options_that_are_mentioned_exist() -> None:
    faults = [
        f"{each.page}: {each.typed}: {fault}"
        for each in mentions()
        if (fault := faults_of_words(each))
    ]
    assert not faults


def test_make_targets_exist() -> None:
    targets = (ROOT / "Makefile").read_text()
    named = [each.words[1] for each in COMMANDS if each.words[0] == "make"]
    assert named
    assert not [name for name in named if f"\n{name}:" not in targets]
