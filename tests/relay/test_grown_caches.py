"""Caches that grow with each call are state of a fixed capacity; decoders write the same text."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from relay_models import cpu_cluster, random_costs

import heteroplace as hp
from heteroplace.cli.main import WRONG_INPUT, main
from heteroplace.errors import FrontendError
from heteroplace.frontends import frontend_of_object
from heteroplace.parts.onnx.caches.grown_caches import with_fixed_caches
from heteroplace.parts.onnx.known_ops import known_ops
from heteroplace.run.executor import Executor
from tests.grown_decoders import (
    GPT2,
    LLAMA,
    MISTRAL,
    QWEN,
    SHARED,
    SIZE,
    GrowingSession,
    Style,
    grown_decoder,
)
from tests.tiny_decoders import byte_tokenizer, onnx_decoder

pytestmark = pytest.mark.relay

CAPACITY, LENGTH, COUNT = 16, 3, 6
PROMPT = [7, 30, 200, 3, 4, 11, 5]
SIZES = {"past_sequence_length": CAPACITY}
ENTRIES = {"token": {"sequence_length": 1}, "prompt": {"sequence_length": LENGTH}}


def shapes_of(model: onnx.ModelProto, length: int, capacity: int) -> dict[str, tuple[int, ...]]:
    """Shapes of all inputs."""
    sizes = {"batch_size": 1, "sequence_length": length, "past_sequence_length": capacity}
    sizes["past_sequence_length + sequence_length"] = capacity
    return {
        value.name: tuple(
            dim.dim_value or sizes[dim.dim_param] for dim in value.type.tensor_type.shape.dim
        )
        for value in model.graph.input
    }


class FixedSession:
    """Runs a decoder whose caches were given a capacity, by onnxruntime."""

    def __init__(self, model: onnx.ModelProto, length: int) -> None:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        self._shapes = shapes_of(model, length, CAPACITY)
        fixed, self.report = with_fixed_caches(copy, "auto", self._shapes, known_ops(), "model")
        self._session = onnxruntime.InferenceSession(fixed.SerializeToString())
        self._names = [each.name for each in self._session.get_outputs()]

    def run(self, tokens: list[int], past: int, caches: dict[str, np.ndarray]) -> np.ndarray:
        """Read tokens; return their logits."""
        total = past + len(tokens)
        feeds = {
            "input_ids": np.array([tokens]),
            "attention_mask": (np.arange(CAPACITY) < total).astype(np.int64)[None],
            "position_ids": np.arange(past, total)[None],
        }
        for name, shape in self._shapes.items():
            if name.startswith("past"):
                feeds[name] = caches.get(name, np.zeros(shape, np.float32))
        feeds = {name: feeds[name] for name in self._shapes}
        results = dict(zip(self._names, self._session.run(None, feeds), strict=True))
        for name in self._shapes:
            if name.startswith("past"):
                caches[name] = results[name.replace("past_key_values", "present")]
        return np.asarray(results["logits"])


def compiled(model: onnx.ModelProto | str, **options: Any) -> hp.Executable:
    options = {"state": "auto", "solver": "heft", "verify": "off", "sizes": SIZES, **options}
    return hp.compile(model, cpu_cluster(), costs=random_costs, **options)


@pytest.mark.parametrize(
    "style",
    [
        LLAMA,
        GPT2,
        QWEN,
        MISTRAL,
        Style(has_tables=True),
        Style(has_tables=True, has_positions=False),
        Style(has_positions=False, is_squared=True),
        Style(mask="where", core="Attention"),
        Style(window=4, core="MultiHeadAttention"),
        Style(mask="none", core="MultiHeadAttention"),
    ],
    ids=[
        "llama",
        "gpt2",
        "qwen",
        "mistral",
        "tables",
        "rows",
        "squares",
        "standard",
        "fused",
        "padded",
    ],
)
def test_caches_of_a_capacity_give_the_same_logits(style: Style) -> None:
    model = grown_decoder(style)
    sessions = {length: FixedSession(model, length) for length in (1, LENGTH)}
    growing, caches = GrowingSession(model), dict[str, np.ndarray]()
    for length in (LENGTH, LENGTH, 1, 1, LENGTH, 1, 1, LENGTH):
        past = growing.past
        tokens = [(7 * (past + i)) % 250 for i in range(length)]
        expected = growing.run(tokens)
        logits = sessions[length].run(tokens, past, caches)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert growing.past == CAPACITY
    assert f"{CAPACITY} tokens" in sessions[1].report[0]
    assert ("a window of" in sessions[1].report[0]) is bool(style.window)


@pytest.mark.costly(9)
@pytest.mark.parametrize("style", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_sessions_write_what_onnxruntime_writes(style: Style) -> None:
    model = grown_decoder(style)
    expected = GrowingSession(model).greedy(PROMPT, COUNT)
    executable = compiled(model, entries=ENTRIES)
    with Executor(executable) as executor:
        session = executor.session()
        assert list(session.generate(PROMPT, max_new_tokens=COUNT)) == expected
        assert session.num_calls == 2 + 1 + COUNT - 1


@pytest.mark.costly
def test_rows_of_keys_and_values_are_written_in_place() -> None:
    program = compiled(grown_decoder(QWEN), sizes={**SIZES, "sequence_length": 1}).lowered.program
    size = SHARED * CAPACITY * SIZE
    sizes = {(prod(each.shape), each.storage) for each in program.tensors}
    assert (size, "session") in sizes
    assert (size, "arena") not in sizes
    writers = [name for name in program.kernels if "write_rows" in name]
    assert writers
    assert all(name.endswith("_in_place") for name in writers)


@pytest.mark.costly(3)
def test_a_command_compiles_a_file_and_writes_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    model = grown_decoder(QWEN)
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer())
    command = ["compile", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "model.so"), "-q"]
    command += ["--state", "auto", "--tokenizer", str(tmp_path / "tokenizer.json")]
    command += ["--size", "past_sequence_length=16", "--costs", "estimate", "--verify", "off"]
    assert main([*command, "--entry", "token:sequence_length=1"]) == 0
    with hp.load(tmp_path / "model.so") as loaded:
        tokens = list(loaded.session().generate(PROMPT, max_new_tokens=COUNT))
    assert tokens == GrowingSession(model).greedy(PROMPT, COUNT)
    text = ["generate", str(tmp_path / "model.so"), "--prompt", "abc", "--max-new-tokens", "4"]
    assert main(text) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("style", "message"),
    [
        (Style(mask="none"), "new token 0 sees the tokens 0 to 2, and in causal attention it sees "
                             "the tokens 0 to 0"),
        (Style(bias=0.1), "differ by .* with the scale 0.35.*another bias than a mask"),
        (Style(has_sums=True), r"ReduceSum .* reads .*CumSum.*, whose shape is \[1, 3\]"),
        (Style(has_total=True), "makes the output 'total' of the number of past tokens alone"),
    ],
    ids=["no mask", "bias", "sums", "total"],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused(style: Style, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        FixedSession(grown_decoder(style), LENGTH)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_mask": (1, 17)}, r"'attention_mask' has the shape \(1, 17\), .*\(1, 16\)"),
        ({"input_ids": (1, 17)}, "a call takes 17 new tokens, and 'past.*' has room for 16"),
        ({"input_ids": (2, 1)}, r"'input_ids' has the shape \(2, 1\), .*one sequence"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    changes: dict[str, tuple[int, ...]], message: str
) -> None:
    model = grown_decoder(LLAMA)
    shapes = {**shapes_of(model, 1, CAPACITY), **changes}
    with pytest.raises(FrontendError, match=message):
        hp.frontend.from_onnx(model, input_shapes=shapes, state="auto")


def test_a_cache_that_something_else_reads_is_refused() -> None:
    model = grown_decoder(LLAMA)
    nodes = model.graph.node
    (logits,) = (node for node in nodes if "logits" in node.output)
    added = [
        onnx.helper.make_node("ReduceMean", ["present.0.key"], ["mean"], "mean", keepdims=0),
        onnx.helper.make_node("Add", [logits.input[0], "mean"], ["more"]),
    ]
    logits.input[0] = "more"
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del nodes[:]
    nodes.extend([*copies[:-1], *added, copies[-1]])
    with pytest.raises(FrontendError, match=r"'mean' reads 'present\.0\.key', whose shape is"):
        FixedSession(model, 1)


@pytest.mark.parametrize(
    ("model", "past"),
    [
        (grown_decoder(LLAMA), "past_sequence_length"),
        (grown_decoder(Style(core="Attention")), "past_sequence_length"),
        (onnx_decoder("sequence_length", has_free_sizes=True), "past_sequence_length"),
    ],
    ids=["concat", "standard", "fixed"],
)
def test_the_mask_has_the_size_of_the_past(model: onnx.ModelProto, past: str) -> None:
    frontend = frontend_of_object(model)
    assert frontend.free_sizes(model, {}, "auto")["attention_mask"][1] == past
    shapes = {"past_key_values.0.key": (1, SHARED, 9, SIZE)}
    assert frontend.free_sizes(model, shapes, "auto")["attention_mask"][1] == 9
    assert frontend.free_sizes(model, {})["attention_mask"][1] != past


def test_a_command_without_sizes_says_which_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(grown_decoder(LLAMA), tmp_path / "model.onnx")
    command = ["compile", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "model.so")]
    assert main([*command, "--state", "auto"]) == WRONG_INPUT
    sizes = ("batch_size=1", "sequence_length=128", "past_sequence_length=128")
    assert "--state auto " + " ".join(f"--size {size}" for size in sizes) in capsys.readouterr().err


def test_without_state_a_model_stays_as_it_is() -> None:
    model = grown_decoder(LLAMA)
    shapes = shapes_of(model, 1, CAPACITY)
    shapes["attention_mask"] = (1, CAPACITY + 1)
    imported = hp.frontend.from_onnx(model, input_shapes=shapes)
    types = dict(zip(imported.outputs, _output_shapes(imported.mod), strict=True))
    assert types["present.0.key"] == (1, SHARED, CAPACITY + 1, SIZE)


def _output_shapes(mod: Any) -> Iterable[tuple[int, ...]]:
    return [tuple(map(int, each.shape)) for each in mod["main"].body.checked_type.fields]
