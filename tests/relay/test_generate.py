"""Compiled decoders write what onnxruntime writes: by sessions, by files and by the command."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import make_model, node
from relay_models import cpu_cluster, random_costs

pytest.importorskip("tokenizers")

import heteroplace as hp
from heteroplace.cli.main import WRONG_INPUT, main
from heteroplace.errors import ExecutionError, FrontendError
from heteroplace.parts.text.text_tokenizer import TextTokenizer
from heteroplace.run.executor import Executor
from tests.tiny_decoders import CAPACITY, byte_tokenizer, greedy_tokens, onnx_decoder

pytestmark = pytest.mark.relay

PROMPT = [7, 30, 200, 3, 4, 11]
PROMPT_TEXT = "Grüße"
COUNT = 12


def compiled(model: onnx.ModelProto, **options: Any) -> hp.Executable:
    options = {"state": "auto", "solver": "heft", "verify": "off", **options}
    return hp.compile(model, cpu_cluster(), costs=random_costs, **options)


@pytest.fixture(scope="module")
def executor() -> Executor:
    return Executor(compiled(onnx_decoder(4)))


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return greedy_tokens(PROMPT, COUNT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its tokenizer and its compiled file."""
    folder = tmp_path_factory.mktemp("decoder")
    onnx.save(onnx_decoder(4), folder / "model.onnx")
    (folder / "tokenizer.json").write_text(byte_tokenizer())
    command = ["compile", str(folder / "model.onnx"), "-o", str(folder / "model.so"), "-q"]
    command += ["--state", "auto", "--tokenizer", str(folder / "tokenizer.json")]
    assert main([*command, "--costs", "estimate", "--verify", "off"]) == 0
    return folder


@pytest.mark.costly(5)
@pytest.mark.parametrize(("length", "has_all_rows"), [(1, True), (4, False)])
def test_other_decoders_write_what_onnxruntime_writes(
    expected: list[int], length: int, has_all_rows: bool
) -> None:
    session = Executor(compiled(onnx_decoder(length, has_all_rows=has_all_rows))).session()
    assert list(session.generate(PROMPT, max_new_tokens=COUNT)) == expected
    assert session.num_tokens == len(PROMPT) + COUNT


@pytest.mark.costly(5)
def test_a_file_of_several_lengths_reads_prompts_in_chunks(
    expected: list[int], tmp_path: Path
) -> None:
    entries = {"prompt": {"input_ids": (1, 4)}, "token": {"input_ids": (1, 1)}}
    executable = compiled(onnx_decoder("n"), entries=entries)
    executable.export_library(tmp_path / "model.so")
    with hp.load(tmp_path / "model.so") as loaded:
        session = loaded.session()
        assert list(session.generate(PROMPT, max_new_tokens=COUNT)) == expected
        assert session.num_calls == 2 + COUNT - 1


@pytest.mark.costly
def test_prompts_of_any_length(executor: Executor) -> None:
    ids = [5 * number % 256 for number in range(CAPACITY)]
    for size in (1, 3, 4, 5, 17, CAPACITY - 1, CAPACITY):
        count = min(4, CAPACITY - size + 1)
        texts = list(executor.session().generate(ids[:size], max_new_tokens=count))
        assert texts == greedy_tokens(ids[:size], count)


def test_a_session_goes_on_and_so_do_its_forks_and_files(
    executor: Executor, expected: list[int], tmp_path: Path
) -> None:
    session = executor.session()
    assert list(session.generate(PROMPT, max_new_tokens=5)) == expected[:5]
    fork, loaded = session.fork(), executor.session()
    session.save(tmp_path / "session.npz")
    loaded.load(tmp_path / "session.npz")
    for each in (session, fork, loaded):
        assert each.num_tokens == len(PROMPT) + 5
        assert list(each.generate([], max_new_tokens=COUNT - 5)) == expected[5:]
    session.reset()
    assert session.num_tokens == 0
    assert list(session.generate(PROMPT, max_new_tokens=COUNT)) == expected


def test_options_of_sampling(executor: Executor, expected: list[int]) -> None:
    def texts(**options: Any) -> list[int]:
        return list(executor.session().generate(PROMPT, max_new_tokens=COUNT, **options))

    assert texts(temperature=5.0, top_k=1) == expected
    assert texts(temperature=30.0, seed=1) == texts(temperature=30.0, seed=1) != expected
    assert texts(stop_ids=[expected[3]]) == expected[: expected.index(expected[3])]
    with pytest.raises(ExecutionError, match=r"unexpected keyword argument 'heat'.*it has temp"):
        texts(heat=1.0)


def test_a_program_that_is_no_decoder_is_refused() -> None:
    filters = make_model([node("Add", "x h", "hn"), node("Relu", "hn", "y")],
                         {"x": [2], "h": [2]}, ["y", "hn"])  # fmt: skip
    session = Executor(compiled(filters)).session()
    with pytest.raises(ExecutionError, match=r"no decoder: .* takes x \[2\] and returns y \[2\]"):
        session.generate([1])


@pytest.mark.costly(5)
def test_compile_takes_a_tokenizer(folder: Path, tmp_path: Path) -> None:
    executable = compiled(onnx_decoder(1), tokenizer=folder / "tokenizer.json")
    executable.export_library(tmp_path / "model.so")
    with hp.load(tmp_path / "model.so") as loaded:
        assert loaded.tokenizer is not None
        assert loaded.tokenizer.text == byte_tokenizer()
        assert loaded.tokenizer.stop_ids == ()
    with pytest.raises(FrontendError, match="no such file"):
        compiled(onnx_decoder(1), tokenizer=tmp_path / "tokenizer.json")
    with pytest.raises(FrontendError, match="tokenizer is 3, of type int; expected the path"):
        compiled(onnx_decoder(1), tokenizer=3)


def command(folder: Path, *options: str) -> list[str]:
    return ["generate", str(folder / "model.so"), *options]


def test_the_command_prints_text_and_figures(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(command(folder, "--prompt", PROMPT_TEXT, "--max-new-tokens", "9", "--json")) == 0
    value = json.loads(capsys.readouterr().out)
    with hp.load(folder / "model.so") as executor:
        tokenizer = TextTokenizer(executor.tokenizer, "")
        ids = tokenizer.encode(PROMPT_TEXT)
        assert value["prompt_tokens"] == len(ids) == len(PROMPT_TEXT.encode())
        assert value["tokens"] == greedy_tokens(ids, 9)
        assert value["text"] == "".join(tokenizer.texts(value["tokens"]))
    assert value["first_token_s"] > 0
    assert value["tokens_per_second"] > 0

    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT_TEXT))
    assert main(command(folder, "--prompt", "-", "--max-new-tokens", "9")) == 0
    captured = capsys.readouterr()
    # Characters that a terminal would obey are written as escapes.
    assert captured.out == value["text"].replace("\x15", "\\x15") + "\n"
    assert "7 tokens of the prompt, the first new one after " in captured.err
    assert "tokens per second" in captured.err


def test_the_command_draws_and_chats(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = [*command(folder, "--prompt", "a", "--temperature", "20"), "--max-new-tokens", "8"]
    outputs = []
    for seed in ("1", "1", "2"):
        assert main([*drawn, "--seed", seed, "-q"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]
    # ChatML takes more tokens than the cache has.
    assert main(command(folder, "--prompt", "a", "--chat")) == WRONG_INPUT
    printed = capsys.readouterr()
    assert f"the cache holds {CAPACITY} tokens, and there are 2" in printed.err
    assert printed.out.endswith("\n")  # the error begins on a line of its own


@pytest.mark.costly(4)
def test_the_command_says_what_a_file_lacks(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, message in (
        ({}, "holds no tokenizer; compile the model with --tokenizer tokenizer.json"),
        (
            {"state": {}, "tokenizer": folder / "tokenizer.json"},
            "no state that sessions keep; compile it with state='auto'",
        ),
    ):
        compiled(onnx_decoder(1), **options).export_library(tmp_path / "model.so")
        assert main(command(tmp_path, "--prompt", "a")) == WRONG_INPUT
        assert message in capsys.readouterr().err
    assert main(command(folder, "--prompt", "a", "--top-p", "2")) == WRONG_INPUT
    assert "top_p=2.0; expected above 0 and at most 1" in capsys.readouterr().err


def test_rows_of_the_cache_behind_the_text_do_not_count(executor: Executor) -> None:
    filled = np.full((1, 1, CAPACITY, 16), 1e3, np.float32)
    names = [name for name, _ in executor.session_state]
    session = executor.session(dict.fromkeys(names, filled))
    assert list(session.generate(PROMPT[:5], max_new_tokens=5)) == greedy_tokens(PROMPT[:5], 5)
