"""A file `tokenizer.json` and those beside it -> the tokenizer that a compiled file holds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heteroplace.errors import FrontendError
from heteroplace.files.manifest import TokenizerText
from heteroplace.files.no_file import why_no_file

_GENERATION, _CONFIG = "generation_config.json", "tokenizer_config.json"
"""Files beside the tokenizer that say which tokens end a text; the first one that does counts."""


def read_tokenizer(path: str | os.PathLike[str]) -> TokenizerText:
    """Read a `tokenizer.json`, and which tokens end a text from the files beside it.

    Raises
    ------
    FrontendError
        It is no such file, or a file beside it is damaged.
    """
    file = Path(path)
    text, tokenizer = _read(file)
    if not isinstance(tokenizer.get("model"), dict):
        raise FrontendError(
            f"{file}: is no tokenizer: it has no 'model'; give the tokenizer.json of the model"
        )
    sources: Mapping[str, Callable[[dict[str, Any]], object]] = {
        _GENERATION: lambda config: config.get("eos_token_id"),
        _CONFIG: lambda config: _id_of(config.get("eos_token"), tokenizer),
    }
    for name, stop_of in sources.items():
        beside = file.parent / name
        stop = stop_of(_read(beside)[1]) if beside.is_file() else None
        if stop is not None:
            return TokenizerText(text, _checked(stop, beside))
    return TokenizerText(text)


def _read(file: Path) -> tuple[str, dict[str, Any]]:
    """The text of a file, and the JSON object in it."""
    if not file.is_file():
        raise FrontendError(f"{file}: {why_no_file(file)}; give the path of a tokenizer.json")
    try:
        text = file.read_text(encoding="utf-8")
        value = json.loads(text)
    except (OSError, ValueError, RecursionError) as err:
        raise FrontendError(f"{file}: cannot be read as JSON ({err}); export it again") from err
    if not isinstance(value, dict):
        raise FrontendError(f"{file}: holds no JSON object; export it again")
    return text, value


def _id_of(token: object, tokenizer: Mapping[str, Any]) -> object:
    """The number of a token that is named by its text, or by an object with its text."""
    name = token.get("content") if isinstance(token, dict) else token
    added = tokenizer.get("added_tokens") or ()
    return next((each.get("id") for each in added if each.get("content") == name), None)


def _checked(stop: object, source: Path) -> tuple[int, ...]:
    ids = stop if isinstance(stop, list) else [stop]
    if not all(type(each) is int and each >= 0 for each in ids):
        raise FrontendError(
            f"{source}: the tokens that end a text are {stop!r}; expected whole numbers >= 0"
        )
    return tuple(ids)
