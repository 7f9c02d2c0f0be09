"""Text that may hold anything -> text that a terminal only shows.

Names come from files of others: models, clusters, stores. Raw, a name could move the cursor, hide a
line, or show letters in another order than they stand in (bidirectional controls). So all that an
error says, all cells of tables and all that the commands print go through here.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

_LAYOUT = "\n\t"
"""What is not printable and yet belongs to texts of several lines."""


def printable(text: str, allowed: str = _LAYOUT) -> str:
    r"""Return `text` with every character that is not printable as its escape in Python.

    Printable is what `str.isprintable` says: no control or formatting characters (bidirectional
    ones, those of no width), no separators but the blank, no halves of surrogate pairs.

    Parameters
    ----------
    text
        Of any origin.
    allowed
        Characters that stay though they are not printable; "": for one word or cell of a line.

    >>> print(printable("red \x1b[31m and \u202egnp.exe"))
    red \x1b[31m and \u202egnp.exe
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in allowed else ascii(char)[1:-1] for char in text
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

    Everything but `write`, `writelines` and `flush` is that of the stream below.
    """

    def __init__(
        self, below: TextIO, name: str = "the stream", *, is_droppable: bool = False
    ) -> None:
        self.below = below
        """The stream as it was, for who draws on a terminal; cleans texts by `printable`."""
        self._name = name
        self._is_droppable = is_droppable

    def write(self, text: str) -> int:
        """Write `text`, escaped; return its length, as streams do."""
        encoding = self.below.encoding or "utf-8"
        shown = printable(text).encode(encoding, "backslashreplace").decode(encoding)
        with self._named():
            self.below.write(shown)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._named():
            self.below.flush()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the stream in an OSError; drop one of a stream whose text may be lost."""
        try:
            yield
        except OSError as err:
            if self._is_droppable:
                return
            raise type(err)(err.errno, err.strerror, self._name) from err

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
    """Make standard output and errors of this process printable while the block runs.

    A stream that was closed by the caller (`>&-`) takes texts, and drops them.
    """
    before = sys.stdout, sys.stderr
    if None in (sys.stdin, *before):  # as Python has it where the descriptor is closed
        _occupy_standard_descriptors()
    out, err = (sys.stdout or _nowhere()), (sys.stderr or _nowhere())
    sys.stdout = cast("TextIO", PrintableStream(out, "standard output"))
    sys.stderr = cast("TextIO", PrintableStream(err, "standard error", is_droppable=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def ends_quietly() -> bool:
    """Tell whether a pipe broke because the reader of standard output has ended (`| head`).

    Standard output is then null, so that nothing is written to it while the interpreter ends.
    """
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(number, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)
    return True


def _occupy_standard_descriptors() -> None:
    """Open the closed ones of 0, 1 and 2: else the next file opened would get what is printed."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")
