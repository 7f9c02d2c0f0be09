"""Placements of decoders as arguments of llama.cpp."""

from __future__ import annotations

import ctypes
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heteroplace.errors import PlanError
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.gguf_tensors import gguf_tensor
from heteroplace.parts.exports.llama_arguments import write_llama
from tests.placed_layers import chain_solution

PARTS = ("input_layernorm", "self_attn/q_proj", "self_attn/o_proj", "mlp/up_proj", "mlp/down_proj")
EXPERTS = ("input_layernorm", "self_attn/q_proj", "mlp/gate", "mlp/experts.0/up_proj")


def decoder(
    place: Callable[[int, str], str], parts: tuple[str, ...] = PARTS, head: str = "gpu0"
) -> dict[str, str]:
    """The layers of a decoder of four blocks, with their devices."""
    layers = {"/model/embed_tokens/Gather": "cpu"}
    for block in range(4):
        for part in parts:
            layers[f"/model/layers.{block}/{part}/MatMul"] = place(block, part)
    return {**layers, "/model/norm/Mul": head, "/lm_head/MatMul": head}


def exported(layers: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    written = write_llama(chain_solution(layers, dict.fromkeys(layers, 100)))
    return written.text, written.warnings


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (decoder(lambda *_: "gpu0"), "-ngl 999 -ts 1"),
        (decoder(lambda *_: "cpu", head="cpu"), "-ngl 0"),
        (
            decoder(lambda block, _: "cpu" if block < 2 else "gpu0"),
            r"-ngl 999 -ts 1 -ot 'blk\.(0|1)\.=CPU'",
        ),
        (
            decoder(lambda block, _: f"gpu{block // 2}", head="gpu1"),
            "-ngl 999 -ts 2,3",
        ),
        (
            decoder(lambda block, _: f"gpu{block % 2}", head="cpu"),
            r"-ngl 999 -ts 2,3 -ot 'blk\.(0|2)\.=CUDA0' -ot 'blk\.(1|3)\.=CUDA1' "
            r"-ot '^(output|output_norm)\.=CPU'",
        ),
        (decoder(lambda *_: "gpu1", head="gpu1"), "-ngl 999 -ts 0,5"),
        (
            decoder(lambda block, part: "cpu" if block > 1 and "mlp" in part else "gpu0"),
            r"-ngl 999 -ts 1 -ot 'blk\.(2|3)\.(ffn_down|ffn_up)\.=CPU'",
        ),
        (
            decoder(lambda b, part: "cpu" if b < 3 and "experts" in part else "gpu0", EXPERTS),
            "-ngl 999 -ts 1 --n-cpu-moe 3",
        ),
        (
            decoder(lambda b, part: "cpu" if b > 2 and "experts" in part else "gpu0", EXPERTS),
            r"-ngl 999 -ts 1 -ot 'blk\.(3)\.(ffn_up_exps)\.=CPU'",
        ),
    ],
)
def test_placements_become_arguments(layers: dict[str, str], text: str) -> None:
    assert exported(layers) == (f"{text}\n", ())


def test_overrides_mean_the_tensors_of_the_plan() -> None:
    layers = decoder(lambda block, part: "cpu" if block == 1 and "attn" in part else "gpu0")
    text, _ = exported(layers)
    (pattern,) = (word for word in shlex.split(text) if "=" in word)
    regex, _, buffer = pattern.rpartition("=")
    names = [f"blk.{b}.{t}.weight" for b in (1, 11) for t in ("attn_q", "attn_output", "ffn_up")]
    assert [name for name in names if re.search(regex, name)] == names[:2]
    assert buffer == "CPU"


def test_what_llama_cpp_cannot_do_is_a_warning() -> None:
    layers = decoder(lambda *_: "gpu0")
    layers["/model/embed_tokens/Gather"] = "gpu0"
    layers["/model/layers.0/adapter/MatMul"] = "gpu0"
    layers |= {"/model/layers.0/self_attn/q_proj/MatMul#2": "cpu"}
    _, warnings = exported(layers)
    embedding, split, unknown = warnings
    assert embedding == "llama.cpp keeps the tables of its inputs (token_embd) on the CPU"
    assert split.startswith("the weights of blk.0.attn_q are on several devices")
    assert unknown.startswith("model.layers.0.adapter hold weights")


def test_a_network_without_blocks_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'chain' is no decoder .* got blocks none\. Export"):
        write_llama(chain_solution({"/conv1/Conv": "gpu0"}))


def test_other_programs_place_layers() -> None:
    with pytest.raises(PlanError, match="the tasks of 'chain' name no layer of a model"):
        write_llama(chain_solution({"": "gpu0"}))


def test_names_of_modules_mean_the_tensors_that_the_package_gguf_says() -> None:
    gguf = pytest.importorskip("gguf", exc_type=ImportError)
    arch = gguf.MODEL_ARCH
    cases = {
        arch.LLAMA: [
            *("model.embed_tokens", "model.norm", "lm_head"),
            *(f"model.layers.0.self_attn.{one}_proj" for one in "qkvo"),
            *(f"model.layers.0.mlp.{one}_proj" for one in ("gate", "up", "down")),
            *("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"),
        ],
        arch.GPT2: [
            *("transformer.wte", "transformer.wpe", "transformer.ln_f", "transformer.h.0.ln_1"),
            *(f"transformer.h.0.{one}" for one in ("attn.c_attn", "attn.c_proj", "ln_2")),
            *("transformer.h.0.mlp.c_fc", "transformer.h.0.mlp.c_proj"),
        ],
        arch.PHI2: ["model.layers.0.mlp.fc1", "model.layers.0.mlp.fc2", "model.final_layernorm"],
        arch.BLOOM: ["transformer.h.0.self_attention.query_key_value"],
        arch.QWEN3MOE: ["model.layers.0.mlp.gate", "model.layers.0.self_attn.q_norm"],
    }
    for architecture, modules in cases.items():
        names = gguf.get_tensor_name_map(architecture, 1)
        for module in modules:
            tensor = gguf_tensor(module)
            assert tensor is not None, module
            assert str(tensor) == names.get_name(module), module


@pytest.mark.slow
def test_llama_cpp_moves_the_tensors_of_the_plan(tmp_path: Path) -> None:
    """The package has no parser of `-ot`, but its library takes the same patterns."""
    llama_cpp = pytest.importorskip("llama_cpp", exc_type=ImportError)
    pytest.importorskip("gguf", exc_type=ImportError)
    from zoo.tiny_llama import LAYERS, TinyLlama

    path = tmp_path / "tiny.gguf"
    path.write_bytes(TinyLlama.random(head="Q8_0").content())
    layers = decoder(lambda block, part: "cpu" if block == 1 or "up" in part else "gpu0")
    layers = {
        name: at
        for name, at in layers.items()
        if name.count("layers") == 0 or (int(name.split(".")[1][0]) < LAYERS)
    } | {"/lm_head/MatMul": "cpu"}
    words = shlex.split(exported(layers)[0])
    patterns = [word.removesuffix("=CPU") for word in words if word.endswith("=CPU")]
    assert len(patterns) == 3
    expected = {"blk.0.ffn_up.weight", "output.weight"}
    loaded = {line.split()[1] for line in override_log(llama_cpp, path, patterns)}
    of_last = {name for name in loaded if name.startswith("blk.1.")}
    assert len(of_last) == 9
    assert loaded == expected | of_last


def override_log(llama_cpp: Any, path: Path, patterns: list[str]) -> list[str]:
    """What llama.cpp says of tensors that patterns move to the memory of the CPU."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    buffer_of_cpu = ctypes.CDLL(str(folder / "libggml-base.so")).ggml_backend_cpu_buffer_type
    buffer_of_cpu.restype = ctypes.c_void_p
    pairs = [(pattern.encode(), buffer_of_cpu()) for pattern in patterns]
    overrides = (_Override * (len(pairs) + 1))(*pairs, (None, None))
    lines: list[str] = []
    log = llama_cpp.llama_log_callback(lambda level, text, data: lines.append(text.decode()))
    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    options = llama_cpp.llama_model_default_params()
    field = dict(options._fields_)["tensor_buft_overrides"]
    options.tensor_buft_overrides = ctypes.cast(overrides, field)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    assert model
    llama_cpp.llama_model_free(model)
    llama_cpp.llama_log_set(ctypes.cast(None, llama_cpp.llama_log_callback), ctypes.c_void_p(0))
    return [line for line in lines if "buffer type overridden to CPU" in line]


class _Override(ctypes.Structure):
    """A pattern of names of tensors, and the memory that they go to."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer", ctypes.c_void_p))


def other_gpus(**changes: dict[str, Any]) -> Solution:
    """A decoder, half of it on each of two GPUs, which are then others."""
    layers = decoder(lambda block, _: f"gpu{block // 2}", head="gpu1")
    solution = chain_solution(layers, dict.fromkeys(layers, 100))
    devices = [replace(each, **changes.get(each.name, {})) for each in solution.cluster.devices]
    return replace(solution, cluster=replace(solution.cluster, devices=tuple(devices)))


def test_gpus_are_in_the_order_of_their_numbers() -> None:
    solution = other_gpus(gpu0={"index": 2}, gpu1={"index": 10})
    assert write_llama(solution).text == "-ngl 999 -ts 0,0,2,0,0,0,0,0,0,0,3\n"


def test_the_only_gpu_of_a_machine_needs_no_shares() -> None:
    solution = other_gpus(gpu1={"index": 0})
    assert write_llama(solution).text == "-ngl 999\n"


def test_gpus_of_two_kinds_are_refused() -> None:
    with pytest.raises(PlanError, match="GPUs of the kinds CUDA and Vulkan"):
        write_llama(other_gpus(gpu1={"kind": "vulkan"}))
