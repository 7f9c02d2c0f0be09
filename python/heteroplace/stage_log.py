"""What the stages of one network did, for whoever shows it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from heteroplace.measure.options import Progress

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
        found = ", ".join(f"{name} {value:,}" for name, value in self.figures.items())
        head = f"{self.name}: {found}; " if found else f"{self.name}: "
        return f"{head}{self.wall_s:.1f} s"


@dataclass
class StageLog:
    """Collects what the stages of one network did, and tells when one begins and what it did."""

    progress: Progress | None = None
    reports: list[StageReport] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, text: str = "") -> Iterator[dict[str, int]]:
        """Say `text`, if any, and take the time of the block, which fills in the figures."""
        if text:
            self.say(text)
        figures: dict[str, int] = {}
        wall, cpu = time.perf_counter(), _cpu_s()
        yield figures
        report = StageReport(name, time.perf_counter() - wall, _cpu_s() - cpu, figures)
        self.reports.append(report)
        self.say(report.text)

    def say(self, text: str) -> None:
        """Tell what begins, or what was done; the logger "heteroplace" is told too."""
        _LOG.info("%s", text)
        if self.progress is not None:
            self.progress(text)

    def cpu_s(self, *names: str) -> float:
        """Return the processor seconds of some stages."""
        return sum(report.cpu_s for report in self.reports if report.name in names)


def _cpu_s() -> float:
    """Processor seconds of this process and of the ones that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
