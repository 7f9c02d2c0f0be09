"""Text that may hold anything -> text that a terminal only shows.

Names come from files of others: models, clusters, stores. Raw, a name could move the cursor, hide a
line, or show letters in another order than they stand in (bidirectional controls). So all that an
error says, all cells of tables and all that the commands print go through here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_LAYOUT = "\n\t"
"""What is not printable and yet belongs to texts of several lines."""


def printable(text: str, kept: str = _LAYOUT) -> str:
    r"""Return `text` with every character that is not printable as its escape in Python.

    Printable is what `str.isprintable` says: no control or formatting characters (bidirectional
    ones, those of no width), no separators but the blank, no halves of surrogate pairs.

    Parameters
    ----------
    text
        Of any origin.
    kept
        Characters that stay though they are not printable; "": for one word or cell of a line.

    >>> print(printable("red \x1b[31m and \u202egnp.exe"))
    red \x1b[31m and \u202egnp.exe
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in kept else ascii(char)[1:-1] for char in text
    )


def listed(texts: Iterable[str], separator: str = ", ", at_most: int = 8) -> str:
    """Return texts as one; of many the first, and how many more there are.

    >>> listed(["gpu0", "gpu1"], "+"), listed((f"gpu{index}" for index in range(99)), at_most=2)
    ('gpu0+gpu1', 'gpu0, gpu1 and 97 more')
    """
    every = list(texts)
    shown = separator.join(every[:at_most])
    return f"{shown} and {len(every) - at_most} more" if len(every) > at_most else shown


class PrintableStream:
    """A text stream that writes only what is printable, and what its encoding has.

    Everything but `write` and `writelines` is that of the stream below.
    """

    def __init__(self, below: TextIO) -> None:
        self.below = below
        """The stream as it was, for who draws on a terminal; cleans texts by `printable`."""

    def write(self, text: str) -> int:
        """Write `text`, escaped; return its length, as streams do."""
        encoding = self.below.encoding or "utf-8"
        self.below.write(printable(text).encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


def drawable(stream: TextIO) -> TextIO:
    """Return the stream that takes the control sequences of progress lines."""
    return cast("PrintableStream", stream).below if isinstance(stream, PrintableStream) else stream


@contextmanager
def printable_streams() -> Iterator[None]:
    """Make standard output and errors of this process printable while the block runs."""
    before = sys.stdout, sys.stderr
    sys.stdout = cast("TextIO", PrintableStream(sys.stdout))
    sys.stderr = cast("TextIO", PrintableStream(sys.stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
