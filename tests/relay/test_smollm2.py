"""A Llama in a GGUF file -> ONNX: the logits of numpy, weights of 4 bits, the tokenizer; faults."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime
import pytest

from heteroplace.errors import MissingPackageError

gguf = pytest.importorskip("gguf", reason="gguf is in the extra bench")

import onnx_models as om  # noqa: E402

from zoo import smollm2 as zoo_smollm2  # noqa: E402
from zoo.gguf_file import GgufError, GgufFile  # noqa: E402
from zoo.smollm2 import chat_prompt, smollm2, smollm2_tokenizer  # noqa: E402
from zoo.tiny_llama import CONTEXT, LAYERS, SHARED, SIZE, TOKENS, TinyLlama  # noqa: E402

pytestmark = pytest.mark.costly(12)

_PROMPT, _TOTAL, _ROOM, _BEFORE = 5, 9, 12, 3
_TOKENS = np.random.default_rng(1).integers(0, len(TOKENS), (2, _TOTAL))
Weights = Literal["float32", "int4"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def empty_past(batch: int, length: int) -> dict[str, np.ndarray]:
    shape = (batch, SHARED, length, SIZE)
    return {
        f"past_key_values.{layer}.{part}": np.zeros(shape, "float32")
        for layer in range(LAYERS)
        for part in ("key", "value")
    }


def logits_of_calls(
    models: tuple[onnx.ModelProto, onnx.ModelProto], tokens: np.ndarray, room: int | None
) -> np.ndarray:
    """The logits of a call for the prompt by the first model, then of one call a token."""
    first, then = (onnxruntime.InferenceSession(each.SerializeToString()) for each in models)
    past, results, begin = empty_past(len(tokens), room or 0), [], 0
    for end in (_PROMPT, *range(_PROMPT + 1, _TOTAL + 1)):
        mask = np.zeros((len(tokens), room or end), np.int64)
        mask[:, :end] = 1
        session = then if begin else first
        inputs = {"input_ids": tokens[:, begin:end], "attention_mask": mask, **past}
        outputs = session.run(None, inputs)
        names = [
            value.name.replace("present", "past_key_values") for value in session.get_outputs()
        ]
        past = dict(zip(names, outputs, strict=True))
        results.append(past.pop("logits"))
        begin = end
    return np.concatenate(results, axis=1)


@pytest.mark.parametrize("weights", ["float32", "int4"])
@pytest.mark.parametrize(
    "types", [("Q4_1", "Q8_0", None), ("Q4_1", "Q4_1", None), ("F16", "F32", "Q8_0")]
)
def test_prompt_and_tokens_have_the_logits_of_numpy(
    weights: Weights, types: tuple[str, str, str | None]
) -> None:
    llama = TinyLlama.random(*types)
    content = llama.content()
    free = smollm2(weights=weights, content=content)
    expected = llama.logits(_TOKENS)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits_of_calls((free, free), _TOKENS, None), expected, atol=1e-4)
    models = tuple(
        smollm2(weights=weights, length=length, past=_ROOM, content=content)
        for length in (_PROMPT, 1)
    )
    logits = logits_of_calls((models[0], models[1]), _TOKENS[:1], _ROOM)
    np.testing.assert_allclose(logits, expected[:1], atol=1e-4)


def test_logits_may_be_those_of_the_last_token_alone() -> None:
    llama = TinyLlama.random("Q4_1", "Q8_0", None)
    model = smollm2(weights="int4", content=llama.content(), has_all_rows=False)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    tokens = _TOKENS[:1]
    inputs = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), **empty_past(1, 0)}
    logits = session.run(["logits"], inputs)[0]
    assert logits.shape[1] == 1
    np.testing.assert_allclose(logits[:, 0], llama.logits(tokens)[:, -1], atol=1e-4)


@pytest.mark.parametrize(("weights", "length"), [("float32", _PROMPT), ("int4", 1)])
def test_the_importer_has_the_numbers_of_onnxruntime(weights: Weights, length: int) -> None:
    content = TinyLlama.random().content()
    model = smollm2(weights=weights, length=length, past=_ROOM, content=content)
    rng = np.random.default_rng(2)
    inputs = empty_past(1, _ROOM)
    for value in inputs.values():
        value[:, :, :_BEFORE] = rng.standard_normal((1, SHARED, _BEFORE, SIZE))
    inputs["input_ids"] = _TOKENS[:1, :length]
    inputs["attention_mask"] = (np.arange(_ROOM) < _BEFORE + length).astype(np.int64)[None]
    expected = om.run_onnxruntime(model, inputs)
    for ours, theirs in zip(om.run_imported(model, inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_weights_of_4_and_8_bits_are_those_of_the_file() -> None:
    llama = TinyLlama.random()
    content = llama.content()
    file = GgufFile(content)
    for name in ("blk.0.attn_v", "token_embd"):
        blocks = file.blocks(f"{name}.weight")
        assert blocks is not None
        zeros = 128 if blocks.zeros is None else blocks.zeros[..., None]
        numbers = blocks.numbers.astype("float32").reshape(*blocks.scales.shape, 32)
        weights = ((numbers - zeros) * blocks.scales[..., None]).reshape(blocks.numbers.shape)
        np.testing.assert_allclose(weights, llama.weights[name], atol=1e-6)
    model = smollm2(weights="int4", content=content)
    bits = [
        onnx.helper.get_node_attr_value(node, "bits")
        for node in model.graph.node
        if node.op_type == "MatMulNBits"
    ]
    assert bits == [4] * (7 * LAYERS) + [8]
    # The embedding is there once, for both its uses.
    assert sum(each.name.startswith("token_embd") for each in model.graph.initializer) == 2


def test_a_block_of_equal_weights_is_exact() -> None:
    llama = TinyLlama.random()
    llama.weights["blk.0.attn_v"][:] = 0.5
    blocks = GgufFile(llama.content()).blocks("blk.0.attn_v.weight")
    assert blocks is not None and blocks.zeros is not None
    assert not blocks.numbers.any()
    assert (-blocks.zeros * blocks.scales == 0.5).all()


def test_the_tokenizer_is_that_of_the_vocabulary() -> None:
    content = TinyLlama.random().content()
    written = json.loads(smollm2_tokenizer(content))
    assert [each["content"] for each in written["added_tokens"]] == TOKENS[:2]
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is in the extra bench")
    tokenizer = tokenizers.Tokenizer.from_str(smollm2_tokenizer(content))
    text = "hello hi 12<|im_end|>"
    encoded = tokenizer.encode(text)
    assert encoded.tokens == ["hell", "o", "Ġh", "i", "Ġ", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text


def test_a_prompt_has_the_turns_of_a_chat() -> None:
    assert chat_prompt("Hello") == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("length", "past", "text"),
    [
        (4, 3, "past=3 must be from 4 to 64"),
        (None, CONTEXT + 1, "past=65 must be from 1 to 64"),
        (0, None, "length=0 must be at least 1"),
    ],
)
def test_wrong_sizes_are_refused(length: int | None, past: int | None, text: str) -> None:
    content = TinyLlama.random().content()
    with pytest.raises(ValueError, match=text):
        smollm2(weights="int4", length=length, past=past, content=content)


def test_files_of_other_networks_are_refused() -> None:
    llama = TinyLlama.random()
    with pytest.raises(GgufError, match="of the architecture gemma, expected llama"):
        smollm2(weights="int4", content=llama.content("gemma"))
    more = {"rope_freqs.weight": np.ones(SIZE // 2, "float32")}
    with pytest.raises(GgufError, match=r"tensors that no Llama has: rope_freqs\.weight"):
        smollm2(weights="int4", content=llama.content(**more))
    del llama.weights["blk.1.ffn_up"]
    with pytest.raises(GgufError, match=r"no tensor blk\.1\.ffn_up\.weight"):
        smollm2(weights="int4", content=llama.content())
    with pytest.raises(GgufError, match="is no GGUF file"):
        smollm2(weights="int4", content=b"no file of weights")


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingPackageError, match="pip install gguf"):
        smollm2(weights="int4", content=b"")


def test_the_command_writes_the_model_and_its_tokenizer(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = TinyLlama.random().content()
    monkeypatch.setattr(zoo_smollm2, "smollm2_content", lambda: content)
    options = ["smollm2", "--past", "8", "-o", "m.onnx", "--tokenizer", "t.json"]
    monkeypatch.setattr(sys, "argv", options)
    assert zoo_smollm2.main() == 0
    assert "wrote m.onnx: SmolLM2-135M-Instruct" in capsys.readouterr().out
    assert (here / "t.json").read_text() == smollm2_tokenizer(content)
    assert onnx.load("m.onnx").graph.input[1].type.tensor_type.shape.dim[1].dim_value == 8
    monkeypatch.setattr(sys, "argv", ["smollm2", "--past", "65"])
    assert zoo_smollm2.main() == 1
    assert "error: past=65 must be from 1 to 64" in capsys.readouterr().err


@pytest.mark.costly(30)
def test_the_trained_model_names_the_capital_of_france() -> None:
    content = zoo_smollm2.smollm2_content()
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is in the extra bench")
    tokenizer = tokenizers.Tokenizer.from_str(smollm2_tokenizer(content))
    model = smollm2(weights="int4", content=content)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    tokens = np.array([tokenizer.encode("The capital of France is").ids])
    past = {
        value.name: np.zeros((1, 3, 0, 64), "float32")
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    inputs = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), **past}
    (logits,) = session.run(["logits"], inputs)
    assert tokenizer.decode([int(logits[0, -1].argmax())]) == " Paris"
