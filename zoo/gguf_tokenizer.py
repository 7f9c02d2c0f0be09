"""The vocabulary of a GGUF file -> `tokenizer.json`, the file of the package `tokenizers`.

The vocabulary is that of GPT-2: byte pairs, in bytes that are written as letters.
"""

from __future__ import annotations

import json
from typing import Any

from zoo.gguf_file import GgufError, GgufFile

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_SPLITTERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_BYTES],
    "smollm": [{"type": "Digits", "individual_digits": True}, _BYTES],
}
"""Names of llama.cpp -> what cuts a text into words."""
_CONTROL, _OF_USER = 3, 4
"""Types of tokens that stand in a text as they are."""


def gguf_tokenizer(file: GgufFile) -> str:
    """Return the content of a `tokenizer.json`.

    Raises
    ------
    GgufError
        The vocabulary is of another kind, or another splitter cuts the text into words.
    """
    kind, splitter = file.value("tokenizer.ggml.model"), file.value("tokenizer.ggml.pre", "")
    if kind != "gpt2" or splitter not in _SPLITTERS:
        raise GgufError(
            f"the tokenizer is of the kind {kind} with the splitter {splitter or 'default'}, "
            f"expected gpt2 with {' or '.join(_SPLITTERS)}"
        )
    tokens = file.value("tokenizer.ggml.tokens")
    types = file.value("tokenizer.ggml.token_type", [])
    added = [
        {
            "id": number,
            "content": tokens[number],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for number, kind in enumerate(types)
        if kind in (_CONTROL, _OF_USER)
    ]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {token: number for number, token in enumerate(tokens)},
        "merges": file.value("tokenizer.ggml.merges"),
    }
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _SPLITTERS[splitter]},
        "post_processor": None,
        "decoder": _BYTES,
        "model": model,
    }
    return json.dumps(content, ensure_ascii=False)
