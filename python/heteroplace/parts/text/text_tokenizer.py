"""Text <-> tokens, by the tokenizer that a compiled file holds."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from heteroplace.errors import ExecutionError, MissingPackageError
from heteroplace.files.manifest import TokenizerText

_PACKAGE = "tokenizers"
_CHAT_START, _CHAT_END = "<|im_start|>", "<|im_end|>"
_INCOMPLETE = "\ufffd"
"""Stands at the end of a text whose last character has not come whole yet."""


class TextTokenizer:
    """Turns text into tokens and back.

    Raises
    ------
    MissingPackageError
        The package `tokenizers` is not installed.
    ExecutionError
        The file has no tokenizer, or one that the package does not read.

    Parameters
    ----------
    source
        What `Executor.tokenizer` is.
    file
        The compiled file, for messages.
    """

    def __init__(self, source: TokenizerText | None, file: str) -> None:
        if source is None:
            raise ExecutionError(
                f"{file}: holds no tokenizer; compile the model with --tokenizer tokenizer.json"
            )
        try:
            package = importlib.import_module(_PACKAGE)
        except ModuleNotFoundError as err:
            raise MissingPackageError(
                f"text needs the package {_PACKAGE}, which is not installed; run: pip install "
                f'"heteroplace[generate]"'
            ) from err
        try:
            self._tokenizer: Any = package.Tokenizer.from_str(source.text)
        except Exception as err:  # the package raises no type of its own
            raise ExecutionError(
                f"{file}: its tokenizer cannot be read ({err}); install a newer {_PACKAGE}, or "
                f"compile the model with another tokenizer.json"
            ) from err
        self.stop_ids = source.stop_ids
        """The tokens that end a text."""
        self._file = file

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with those that a text begins with."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def encode_chat(self, text: str) -> list[int]:
        """Return the tokens of a user's message, and those after which the answer begins (ChatML).

        Raises
        ------
        ExecutionError
            The tokenizer does not have the tokens of ChatML.
        """
        self.chat_end()
        chat = f"{_CHAT_START}user\n{text}{_CHAT_END}\n{_CHAT_START}assistant\n"
        ids: list[int] = self._tokenizer.encode(chat, add_special_tokens=False).ids
        return ids

    def chat_end(self) -> int:
        """Return the token that ends a message of a chat; raises as `encode_chat`."""
        start, end = map(self._tokenizer.token_to_id, (_CHAT_START, _CHAT_END))
        if start is None or end is None:
            raise ExecutionError(
                f"{self._file}: its tokenizer has no {_CHAT_START} and {_CHAT_END}, so the model "
                f"was not trained for chats in ChatML; leave --chat out, and write the prompt in "
                f"the form of the model"
            )
        return int(end)

    def texts(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the text of tokens as they come; a character comes whole, so some texts are empty.

        Special tokens have no text.
        """
        # The text of a token depends on those before it, such as a blank at the beginning.
        before: list[int] = []
        new: list[int] = []
        for token in ids:
            new.append(token)
            text = self._text_after(before, new)
            if text.endswith(_INCOMPLETE):
                yield ""
                continue
            yield text
            before, new = new, []
        yield self._text_after(before, new)

    def _text_after(self, before: list[int], new: list[int]) -> str:
        return self._text([*before, *new])[len(self._text(before)) :]

    def _text(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
