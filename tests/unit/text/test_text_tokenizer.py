"""Text to tokens and back, where a token may be a part of a character."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")

from heteroplace.errors import ExecutionError, MissingPackageError
from heteroplace.files.manifest import TokenizerText
from heteroplace.parts.text.text_tokenizer import TextTokenizer
from tests.tiny_decoders import CHAT_END, CHAT_START, END, byte_tokenizer

TEXT = "Grüße, 世界! 🙂🙃 e\u0301"


def tokenizer(**options: bool) -> TextTokenizer:
    return TextTokenizer(TokenizerText(byte_tokenizer(**options), (256,)), "model.so")


def byte_fallback() -> TextTokenizer:
    """One whose bytes are tokens such as <0xE4>, as those of SentencePiece have them."""
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    model = models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>")
    made_of_bytes = Tokenizer(model)
    made_of_bytes.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return TextTokenizer(TokenizerText(made_of_bytes.to_str()), "model.so")


@pytest.mark.parametrize("open_tokenizer", [tokenizer, byte_fallback])
def test_characters_come_whole(open_tokenizer: type[TextTokenizer]) -> None:
    opened = open_tokenizer()
    ids = opened.encode(TEXT)
    assert len(ids) == len(TEXT.encode())
    texts = list(opened.texts(ids))
    assert "".join(texts) == TEXT
    assert [text for text in texts if text] == list(TEXT)


def test_a_text_that_ends_within_a_character_is_shown_to_its_end() -> None:
    opened = tokenizer()
    ids = opened.encode("a世")[:-1]
    assert "".join(opened.texts(ids)) == "a\ufffd"
    assert list(opened.texts([])) == [""]


def test_a_chat_has_its_special_tokens_and_no_text_of_them() -> None:
    opened = tokenizer()
    ids = opened.encode_chat("hi")
    assert ids[0] == 257
    assert ids.count(opened.chat_end()) == 1
    assert "".join(opened.texts(ids)) == "user\nhi\nassistant\n"
    with pytest.raises(ExecutionError, match="leave --chat out"):
        tokenizer(has_chat=False).encode_chat("hi")
    assert [opened.encode(token) for token in (END, CHAT_START, CHAT_END)] == [[256], [257], [258]]


def test_no_tokenizer_and_a_damaged_one_are_told() -> None:
    with pytest.raises(ExecutionError, match=r"model\.so: holds no tokenizer; .*--tokenizer"):
        TextTokenizer(None, "model.so")
    with pytest.raises(ExecutionError, match=r"model\.so: its tokenizer cannot be read"):
        TextTokenizer(TokenizerText("{}"), "model.so")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingPackageError, match=r'pip install "heteroplace\[generate\]"'):
        TextTokenizer(TokenizerText("{}"), "model.so")
