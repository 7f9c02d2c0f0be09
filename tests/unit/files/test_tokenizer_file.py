"""What a compiled file takes of a tokenizer: its text, and the tokens that end a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heteroplace.errors import FrontendError
from heteroplace.files.manifest import TokenizerText
from heteroplace.files.tokenizer_file import read_tokenizer

TOKENIZER = {"model": {"type": "BPE"}, "added_tokens": [{"id": 7, "content": "<|end|>"}]}


def written(folder: Path, **files: Any) -> Path:
    """Write files by names without their suffix; return the path of the tokenizer."""
    for name, value in {"tokenizer": TOKENIZER, **files}.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / f"{name}.json").write_text(text)
    return folder / "tokenizer.json"


@pytest.mark.parametrize(
    ("files", "stop_ids"),
    [
        ({}, ()),
        ({"generation_config": {"eos_token_id": 2}}, (2,)),
        ({"generation_config": {"eos_token_id": [2, 0]}}, (2, 0)),
        ({"generation_config": {"eos_token_id": 2}, "tokenizer_config": {"eos_token": "?"}}, (2,)),
        ({"generation_config": {}, "tokenizer_config": {"eos_token": "<|end|>"}}, (7,)),
        ({"tokenizer_config": {"eos_token": {"content": "<|end|>"}}}, (7,)),
        ({"tokenizer_config": {"eos_token": "<|other|>"}}, ()),
    ],
)
def test_files_beside_it_say_what_ends_a_text(
    tmp_path: Path, files: dict[str, Any], stop_ids: tuple[int, ...]
) -> None:
    path = written(tmp_path, **files)
    assert read_tokenizer(path) == TokenizerText(path.read_text(), stop_ids)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer": "{"}, r"tokenizer\.json: cannot be read as JSON"),
        ({"tokenizer": "[]"}, r"tokenizer\.json: holds no JSON object"),
        ({"tokenizer": {}}, r"tokenizer\.json: is no tokenizer"),
        ({"generation_config": "{"}, r"generation_config\.json: cannot be read"),
        ({"generation_config": {"eos_token_id": "2"}}, "are '2'; expected whole numbers >= 0"),
        ({"generation_config": {"eos_token_id": [2, -1]}}, r"are \[2, -1\]"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        read_tokenizer(written(tmp_path, **files))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FrontendError, match="there is no such file; give the path of a tokenizer"):
        read_tokenizer(tmp_path / "tokenizer.json")
