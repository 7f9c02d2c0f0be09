"""Words, lists and lines of the golden text: what all of its forms are made of.

A word that is not made of letters, digits and `_ . + / : $ @ * < > -` is written as a JSON string.
Lists are joined by commas; `()` is the empty list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from heteroplace.errors import HeteroPlaceError

BARE = r"[A-Za-z0-9_.+/:$@*<>-]+"
QUOTED = r'"(?:[^"\\]|\\.)*"'
WORD = rf"(?:{QUOTED}|{BARE})"
LIST = rf"(?:\(\)|{WORD}(?:,{WORD})*)"


class Lines:
    """The lines of a text, read one by one; errors name the line."""

    def __init__(self, text: str, error: type[HeteroPlaceError]) -> None:
        self._lines = text.split("\n")
        if self._lines[-1] == "":
            self._lines.pop()
        self._position = 0
        self._error = error

    def next_is(self, keyword: str) -> bool:
        """Say whether the next line begins with `keyword`."""
        if self._position >= len(self._lines):
            return False
        return self._lines[self._position].startswith(f"{keyword} ")

    def match(self, pattern: str) -> tuple[str, ...]:
        """Consume a line; return the groups of `pattern`, which must match all of it."""
        line = self._lines[self._position] if self._position < len(self._lines) else ""
        match = re.fullmatch(pattern, line)
        if match is None:
            keyword = pattern.split(" ", 1)[0]
            raise self._error(
                f"line {self._position + 1}: expected a line '{keyword} ...' as printed by "
                f"heteroplace, got {line!r}"
            )
        self._position += 1
        return match.groups()

    def end(self) -> None:
        """Raise if lines are left."""
        if self._position < len(self._lines):
            raise self._error(
                f"line {self._position + 1}: expected the end, got {self._lines[self._position]!r}"
            )


def ids(names: Iterable[str], kind: str, error: type[HeteroPlaceError]) -> Callable[[str], int]:
    """Return a function from a name to its position that raises for names that do not exist."""
    position = {name: index for index, name in enumerate(names)}

    def find(name: str) -> int:
        if name not in position:
            raise error(f"no {kind} is called {name!r}; there are: {', '.join(position)}")
        return position[name]

    return find


def quote(word: str) -> str:
    """Return `word` as it stands in a line."""
    return word if re.fullmatch(BARE, word) else json.dumps(word)


def unquote(word: str) -> str:
    """Return what `quote` was given."""
    if not word.startswith('"'):
        return word
    value: str = json.loads(word)
    return value


def join(words: Iterable[str]) -> str:
    """Return a list of words as it stands in a line."""
    return ",".join(quote(word) for word in words) or "()"


def split(text: str) -> list[str]:
    """Return the words that `join` was given."""
    return [] if text == "()" else [unquote(word) for word in re.findall(WORD, text)]
