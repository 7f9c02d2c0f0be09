"""Command lines of llama.cpp become solutions of decoders."""

from __future__ import annotations

from pathlib import Path

import pytest

from heteroplace.errors import PlanError
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.importing import import_placement
from heteroplace.parts.exports.llama_arguments import write_llama
from tests.placed_layers import chain_solution

PARTS = ("input_layernorm", "self_attn/q_proj", "mlp/up_proj", "mlp/down_proj")
EXPERTS = ("self_attn/q_proj", "mlp/gate", "mlp/experts.0/up_proj", "mlp/experts.0/down_proj")


def decoder(
    blocks: list[str], head: str, parts: tuple[str, ...] = PARTS, **changes: str
) -> dict[str, str]:
    """Layers with their devices: the device of each block, of the output, and of other parts."""
    layers = {"/model/embed_tokens/Gather": "cpu"}
    for number, device in enumerate(blocks):
        for part in parts:
            own = changes.get(f"b{number}_{part.rpartition('/')[2]}", device)
            layers[f"/model/layers.{number}/{part}/MatMul"] = own
    return {**layers, "/model/norm/Mul": head, "/lm_head/MatMul": head}


def imported(tmp_path: Path, text: str, layers: dict[str, str]) -> Solution:
    """The decoder, on the devices of a command line."""
    path = tmp_path / "llama.args"
    path.write_text(text)
    return import_placement(path, "llama", chain_solution(layers, is_pinned=False))


CPU, GPU0, GPU1 = "cpu", "gpu0", "gpu1"


@pytest.mark.parametrize(
    "layers",
    [
        decoder([CPU] * 4, CPU),
        decoder([GPU0] * 4, GPU0),
        decoder([GPU0, GPU0, GPU1, GPU1], GPU1),
        decoder([GPU0, GPU1, GPU0, GPU1], CPU),
        decoder([CPU, CPU, GPU0, GPU0], GPU0),
        decoder([GPU1] * 4, GPU1, b2_up_proj=CPU, b3_up_proj=GPU0),
        decoder([GPU0] * 3, GPU0, EXPERTS, b0_up_proj=CPU, b0_down_proj=CPU),
    ],
)
def test_what_is_exported_is_imported(layers: dict[str, str], tmp_path: Path) -> None:
    written = write_llama(chain_solution(layers, dict.fromkeys(layers, 100)))
    assert imported(tmp_path, written.text, layers).layers() == layers


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("llama-server -m m.gguf -ngl 99 -c 4096 -ts 3/1", decoder([GPU0] * 4, GPU1)),
        ("--n_gpu_layers all --split-mode none -mg 1", decoder([GPU1] * 4, GPU1)),
        ("-ngl 3 -ts 1,0", decoder([CPU, CPU, GPU0, GPU0], GPU0)),
        ("-ngl 4 -ts 1,1", decoder([CPU, GPU0, GPU0, GPU1], GPU1)),
        ("-ngl 0 -ot output=CUDA1", decoder([CPU] * 4, GPU1)),
        ("-ngl 9 -ngl 0", decoder([CPU] * 4, CPU)),
        (
            "# our server\nllama-cli \\\n  -ngl 99 -ts 1 \\\n  -ot 'blk\\.[01]\\.ffn_.*=CPU'",
            decoder(
                [GPU0] * 4,
                GPU0,
                **{f"b{block}_{part}_proj": CPU for block in (0, 1) for part in ("up", "down")},
            ),
        ),
        (
            "-ngl 99 -ts 1 -ot blk.3.ffn_up=CUDA1,ffn_up=CUDA_Host",
            decoder([GPU0] * 4, GPU0, **{f"b{b}_up_proj": CPU for b in range(3)}, b3_up_proj=GPU1),
        ),
    ],
)
def test_command_lines_place_tensors_as_llama_cpp_does(
    text: str, layers: dict[str, str], tmp_path: Path
) -> None:
    assert imported(tmp_path, text, layers).layers() == layers


@pytest.mark.parametrize(
    ("text", "num_blocks"), [("-ncmoe 2", 2), ("--n-cpu-moe 9", 3), ("-cmoe", 3), ("--cpu-moe", 3)]
)
def test_experts_stay_on_the_cpu(text: str, num_blocks: int, tmp_path: Path) -> None:
    names = [f"b{block}_{part}_proj" for block in range(num_blocks) for part in ("up", "down")]
    layers = decoder([GPU0] * 3, GPU0, EXPERTS, **dict.fromkeys(names, CPU))
    assert imported(tmp_path, f"-ngl 99 -ts 1 {text}", layers).layers() == layers


def test_layers_without_weights_stay_with_their_module(tmp_path: Path) -> None:
    layers = decoder([GPU0, GPU1], GPU1)
    own = {"/model/layers.1/mlp/act_fn/Sigmoid": CPU, "/model/layers.1/self_attn/Softmax": GPU1}
    text = "-ngl 99 -ts 1,2 -ot 'blk\\.1\\.ffn=CPU'"
    placed = imported(tmp_path, text, {**layers, **own}).layers()
    assert {layer: placed[layer] for layer in own} == own


def test_what_differs_between_machines_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    imported(tmp_path, "-ngl 3", decoder([CPU] * 4, CPU))
    versions, memory = caplog.messages
    assert versions.startswith("llama: -ngl 3 is read as the output and 2 of 4 blocks; older")
    assert memory.startswith("llama: without -ts llama.cpp shares layers by the free memory")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("llama-cli -m model.gguf", r"-ngl is missing, and its default differs .*; add -ngl N"),
        ("-ngl", r"-ngl is the last word; give its value"),
        ("-ngl auto", r"-ngl: expected a number of layers, or all, got 'auto'"),
        ("-ngl 9 -ts 3,x", r"-ts: expected shares such as 3,1, got '3,x'"),
        ("-ngl 9 -ts -1,2", r"-ts: expected shares from 0 to .*, got '-1,2'"),
        ("-ngl 9 -ts 0,0,1", r"-ts puts layers on GPU 2; expected one of the GPUs 0, 1 of cluster"),
        ("-ngl 9 -sm row", r"-sm: expected none or layer: .*, got 'row'"),
        ("-ngl 9 -sm none -mg 7", r"-mg puts layers on GPU 7; expected one of the GPUs 0, 1"),
        ("-ngl 9 --n-cpu-moe few", r"--n-cpu-moe: expected a number of blocks, got 'few'"),
        ("-ngl 9 -ot exps", r"-ot: expected PATTERN=BUFFER, .* got 'exps'"),
        ("-ngl 9 -ot '(=CPU'", r"-ot: expected a regular expression \(.*\), got '\(=CPU'"),
        ("-ngl 9 -ot q=ROCm0", r"-ot puts blk.0.attn_q.weight on 'ROCm0'; expected CPU, CUDA0"),
        ("-ngl 9 --device CUDA0", r"--device says which GPUs are used, which is not read"),
        ("-ngl '9", r"is no command line: No closing quotation; close the quotation"),
    ],
)
def test_wrong_command_lines_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=rf"llama\.args: {message}"):
        imported(tmp_path, text, decoder([CPU] * 2, CPU))


def test_a_network_without_blocks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"llama\.args: 'chain' is no decoder .* give --model"):
        imported(tmp_path, "-ngl 9", {"/conv/Conv": CPU})
