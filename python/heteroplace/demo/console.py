"""What the demo shows while it works: a spinner and a bar on a terminal, plain lines elsewhere.

On a terminal a step is followed by the time that it took, elsewhere preceded by the time at which
it began.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.status import Status

_FRAMES_PER_SECOND = 4
"""Few: every frame takes time from what is compiled or measured meanwhile."""


class Screen:
    """Prints results, and one line for each step of the work with the time that it took."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, markup=False, soft_wrap=True)
        self._begin = self._start = time.perf_counter()
        self._step = ""
        self._status: Status | None = None
        self._progress: Progress | None = None

    def print(self, text: str = "") -> None:
        """Print `text` as it is."""
        self._end_step()
        self._console.print(text)

    def title(self, text: str) -> None:
        """Print a headline."""
        self.print(f"\n{text}\n{'=' * len(text)}")

    def step(self, text: str) -> None:
        """Begin something long; it ends with the next step or print."""
        self._end_step()
        self._step, self._start = text, time.perf_counter()
        if self._console.is_terminal:
            # The text is escaped: rich would read [brackets] as styles.
            shown = text.replace("[", "\\[") + " ..."
            self._status = self._console.status(shown, refresh_per_second=_FRAMES_PER_SECOND)
            self._status.start()
        else:
            self._console.print(f"  {self._start - self._begin:4.0f} s  {text}")

    def _end_step(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
            self._console.print(f"  {self._step} ({time.perf_counter() - self._start:.1f} s)")
        self._step = ""

    def bar(self, done: int, total: int) -> None:
        """Show how many of `total` units are done; begin with 0 and end with `total`.

        It is drawn here and only here, not by a thread in between: a measurement goes on.
        """
        if not self._console.is_terminal:
            return
        if self._progress is None:
            self._end_step()
            self._progress = Progress(
                TextColumn("  {task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}"),
                TimeElapsedColumn(),
                console=self._console,
                auto_refresh=False,
            )
            self._progress.add_task("rounds", total=total)
            self._progress.start()
        self._progress.update(self._progress.task_ids[0], completed=done)
        self._progress.refresh()
        if done >= total:
            self._progress.stop()
            self._progress = None
