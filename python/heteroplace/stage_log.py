"""What the stages of one network do: for a display meanwhile, and as a record afterwards."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from heteroplace.entries import load_entry

Progress: TypeAlias = Callable[[str], None]
"""Called with a line of text whenever something long begins."""
Count: TypeAlias = Callable[[int, int], None]
"""Called with the units of work that are done, and with their total."""

_FORMAT_TABLE = "heteroplace.report.tables:format_table"
_LOG = logging.getLogger("heteroplace")


@dataclass(frozen=True)
class StageReport:
    """What one stage did."""

    name: str
    wall_s: float
    cpu_s: float
    """Processor time of this process, and of the compilers that it started."""
    figures: Mapping[str, int]
    """What it found, e.g. the number of tasks."""

    @property
    def text(self) -> str:
        """As one line, e.g. "prepare: tasks 82; 0.4 s"."""
        figures_text = ", ".join(f"{name} {value:,}" for name, value in self.figures.items())
        head = f"{self.name}: {figures_text}; " if figures_text else f"{self.name}: "
        return f"{head}{self.wall_s:.1f} s"


@dataclass(frozen=True)
class StageTime:
    """How long one stage of the pipeline took."""

    name: str
    purpose: str
    """One sentence: what the stage does."""
    wall_s: float | None
    """None: the network does not need the stage."""
    cpu_s: float | None
    """Of this process and of those that it started and that have ended; None as of `wall_s`."""


class Display(Protocol):
    """What shows the work of a command. Any thread may call it."""

    def stage(self, text: str, budget_s: float | None = None) -> None:
        """Show that a stage begins, which takes at most `budget_s`."""

    def count(self, done: int, total: int) -> None:
        """Show how much of the stage is done."""

    def detail(self, text: str) -> None:
        """Show a line for users who want details."""


@dataclass
class StageLog:
    """Collects what the stages of one network did, and reports what they do meanwhile."""

    progress: Progress | None = None
    """Takes stages and details as lines of text."""
    display: Display | None = None
    """Takes counts too."""
    reports: list[StageReport] = field(default_factory=list)
    times: list[StageTime] = field(default_factory=list)
    """Of all stages of the pipeline, in the order in which they ran."""

    @classmethod
    def of(cls, progress: Progress | None) -> StageLog:
        """Return a log that reports to `progress`, which may be a log already."""
        return progress if isinstance(progress, StageLog) else cls(progress)

    def __call__(self, text: str) -> None:
        """Report a text: a log can be given wherever a function for progress is expected."""
        self.say(text)

    @contextmanager
    def timed(self, name: str, purpose: str) -> Iterator[None]:
        """Note how long a stage of the pipeline takes, without a report."""
        wall, cpu = time.perf_counter(), _cpu_s()
        yield
        wall_s, cpu_s = time.perf_counter() - wall, _cpu_s() - cpu
        self.times.append(StageTime(name, purpose, wall_s, cpu_s))

    def skip(self, name: str, purpose: str) -> None:
        """Note a stage that the network does not need."""
        self.times.append(StageTime(name, purpose, None, None))

    @contextmanager
    def stage(
        self, name: str, text: str = "", budget_s: float | None = None
    ) -> Iterator[dict[str, int]]:
        """Say `text`, if any, and take the time of the block, which fills in the figures."""
        if text:
            self.say(text, budget_s)
        figures: dict[str, int] = {}
        wall, cpu = time.perf_counter(), _cpu_s()
        yield figures
        report = StageReport(name, time.perf_counter() - wall, _cpu_s() - cpu, figures)
        self.reports.append(report)
        self.detail(report.text)

    def say(self, text: str, budget_s: float | None = None) -> None:
        """Report the stage that begins, also to the logger "heteroplace"."""
        self._write(text)
        if self.display is not None:
            self.display.stage(text, budget_s)

    def detail(self, text: str) -> None:
        """Report a detail, also to the logger "heteroplace"."""
        self._write(text)
        if self.display is not None:
            self.display.detail(text)

    def count(self, done: int, total: int) -> None:
        """Report how much of the stage is done."""
        if self.display is not None:
            self.display.count(done, total)

    def _write(self, text: str) -> None:
        _LOG.info("%s", text)
        if self.progress is not None:
            self.progress(text)

    def cpu_s(self, *names: str) -> float:
        """Return the processor seconds of some stages."""
        return sum(report.cpu_s for report in self.reports if report.name in names)


def stage_table(times: Sequence[StageTime]) -> str:
    """Return the stages of the pipeline in order, with their times; "-": not needed."""
    rows = [[time.name, *map(_seconds, (time.wall_s, time.cpu_s)), time.purpose] for time in times]
    heads = ["stage", "time", "CPU", "what it does"]
    table: str = load_entry(_FORMAT_TABLE)(heads, rows, "<>><")
    return table


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f} s"


def _cpu_s() -> float:
    """Processor seconds of this process and of the ones that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
