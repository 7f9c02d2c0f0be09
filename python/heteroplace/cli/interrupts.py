"""What Ctrl-C does to a solver."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Interrupts:
    """Counts Ctrl-C while it is entered. In other threads than the main one it sees none."""

    def __init__(self) -> None:
        self.count = 0
        self.ends_work = True
        """The first one raises KeyboardInterrupt. A solver may catch it and return its best plan,
        so it is counted apart. False: only a second one does."""
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _take(self, _number: int, _frame: object) -> None:
        self.count += 1
        if self.ends_work or self.count > 1:
            raise KeyboardInterrupt
