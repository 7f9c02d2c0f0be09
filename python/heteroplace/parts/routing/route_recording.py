"""Route decisions of an executor's calls -> a file of records (`files/routes_file.py`).

The core keeps the decisions of calls that have ended and makes lines of them; a thread writes these
several times a second. Recording costs a call a copy of some numbers, whatever the file does.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from heteroplace.errors import ExecutionError
from heteroplace.files.output import naming, open_new
from heteroplace.files.routes_file import LEVELS, header_line, records_of_lines
from heteroplace.model.routed.route_profile import RouteRecord
from heteroplace.native.execute import Executor

_LOG = logging.getLogger("heteroplace")

_WRITE_S = 0.1
"""Between two looks: what 8 MiB hold of the tiniest networks takes longer."""


class RouteRecording:
    """A recording at work, until it is closed, or its process ends; `with` closes it.

    Parameters
    ----------
    routes
        Of the executor that is recorded, which lives until then.
    model_digest
        Whose decisions they are.
    path
        The file; what is there is replaced.
    level
        1: loads of branches; 2: also where each cell goes.
    observe
        Called by the writing thread with each record, such as a monitor of drift; what it raises
        ends the recording, and is raised by `close`.

    Raises
    ------
    ExecutionError
        The network has no routers, is recorded already, or `level` is another number.
    OSError
        The file cannot be written.
    """

    def __init__(
        self,
        native: Executor,
        model_digest: str,
        path: str | os.PathLike[str],
        level: int,
        observe: Callable[[RouteRecord], None] | None = None,
    ) -> None:
        if level not in LEVELS:
            raise ExecutionError(
                f"level {level} of a recording; expected 1 (loads of branches) or 2 (also where "
                "each cell goes)"
            )
        self._native, self._level, self._observe = native, level, observe
        self._num_dropped = 0
        self._is_closing = threading.Event()
        self._kept = _KeptFault()
        self._lock = threading.Lock()
        self._is_closed = False
        native.start_decisions(level)
        try:
            self._file = self._begin_file(
                Path(path), header_line(model_digest, level, native.routers)
            )
            self._thread = threading.Thread(
                target=self._work, name="heteroplace-routes", daemon=True
            )
            self._thread.start()
        except BaseException:
            native.take_decisions(ends=True)
            raise
        atexit.register(self.close)

    @staticmethod
    def _begin_file(path: Path, header: str) -> BinaryIO:
        file = open_new(path)
        with naming(path):
            file.write(header.encode())
            file.flush()
        return file

    def __enter__(self) -> RouteRecording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_dropped(self) -> int:
        """Calls so far whose decisions came too fast, and are not in the file."""
        return self._num_dropped

    def close(self) -> None:
        """End it: what calls that have ended decided is in the file. May be called again.

        In `observe` it only asks for the end, which is written and observed after that; a call
        elsewhere waits for it, and raises.

        Raises
        ------
        OSError
            The file could not be written; what comes after the last whole line is not valid.
        Exception
            What `observe` has raised.
        """
        self._is_closing.set()
        if threading.current_thread() is self._thread:
            return
        self._thread.join()  # Ctrl-C may end it: until then nothing is closed
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        atexit.unregister(self.close)
        self._file.close()
        if self._num_dropped:
            _LOG.warning(
                "%d calls are not in the recording of routes: they came too fast", self._num_dropped
            )
        if self._kept.fault is not None:
            raise self._kept.fault

    def _work(self) -> None:
        with self._kept:
            while not self._is_closing.wait(_WRITE_S):
                self._write(self._take(ends=False))
        # Also after a fault: the core is to keep nothing more.
        lines = self._take(ends=True)
        if self._kept.fault is None:
            with self._kept:
                self._write(lines)

    def _take(self, *, ends: bool) -> bytes:
        lines, num_dropped = self._native.take_decisions(ends=ends)
        self._num_dropped += num_dropped
        return lines

    def _write(self, lines: bytes) -> None:
        with naming(self._file.name):
            self._file.write(lines)
            self._file.flush()
        if self._observe is not None:
            for record in records_of_lines(lines, self._native.routers, self._level):
                self._observe(record)


class _KeptFault:
    """Keeps what is raised within it, for another thread to raise."""

    def __init__(self) -> None:
        self.fault: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, fault: BaseException | None, __: object) -> bool:
        self.fault = fault
        return True
