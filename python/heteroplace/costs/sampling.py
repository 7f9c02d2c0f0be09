"""Samples of a kernel's time -> when there are enough of them, and what the kernel takes.

Stop rule: sampling ends when the confidence interval of the median is narrow. The interval comes
from order statistics (`stats.median_interval`), as run times are far from normally distributed:
they have a floor, a tail, and on shared machines several modes.

Noise: other programs only ever lengthen a run. A sample during which the thread lost its core has
much less processor time than wall time, and is dropped. What remains is not trimmed further: a
kernel that has two speeds has a wide interval and a wide spread, and both are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from heteroplace.errors import MissingCostError
from heteroplace.stats import half_spread, median, median_interval


@dataclass(frozen=True)
class KernelSample:
    """One sample: some calls of a kernel in a row."""

    wall_ns: int
    """Of all calls together."""
    cpu_ns: int
    """Processor time of all threads that took part; 0: not known (the work was elsewhere)."""


@dataclass(frozen=True)
class SamplingOptions:
    """When there are enough samples."""

    precision_ratio: float = 0.02
    """Half the width of the median's confidence interval over the median, at which to stop."""
    confidence: float = 0.95
    """Probability that the interval holds the true median, between 0 and 1."""
    min_samples: int = 9
    """Fewer are never taken."""
    max_samples: int = 200
    """More are never taken."""
    max_ns: int = 150_000_000
    """Wall time after which no more samples are taken, but for the first `min_samples`."""
    lost_ratio: float = 0.1
    """A sample is dropped if it lacks this part of the processor time per wall time that the
    undisturbed samples have."""


@dataclass(frozen=True)
class Summary:
    """What the samples of one kernel say; times are of one call."""

    wall_ns: int
    """Median."""
    spread_ns: int
    """Half of the interquartile range of the wall times."""
    cpu_ns: int
    """Median processor time; 0: not known."""
    num_samples: int
    """Samples that count."""
    num_dropped: int
    """Samples dropped since the kernel did not have its cores all the time."""
    low_ns: int
    """The median's confidence interval begins here."""
    high_ns: int
    """And ends here."""
    ended_by: str
    """"precision", "samples" or "time"."""


@dataclass
class Sampling:
    """Collects the samples of one kernel. Not thread-safe."""

    num_calls: int
    """Calls that each sample consists of."""
    options: SamplingOptions = field(default_factory=SamplingOptions)
    _samples: list[KernelSample] = field(default_factory=list)
    _total_ns: int = 0

    def add(self, samples: Sequence[KernelSample]) -> None:
        """Take more samples."""
        self._samples += samples
        self._total_ns += sum(sample.wall_ns for sample in samples)

    @property
    def num_samples(self) -> int:
        """Samples taken so far, disturbed ones among them."""
        return len(self._samples)

    def ended_by(self) -> str | None:
        """Return why no more samples are needed: "precision", "samples", "time"; None: they are."""
        samples = undisturbed(self._samples, self.options.lost_ratio)
        if len(self._samples) < self.options.min_samples:
            return None
        walls = sorted(sample.wall_ns for sample in samples)
        interval = median_interval(walls, self.options.confidence)
        if len(samples) >= self.options.min_samples and interval is not None:
            half = (interval[1] - interval[0]) / 2
            if half <= self.options.precision_ratio * median(walls):
                return "precision"
        if len(self._samples) >= self.options.max_samples:
            return "samples"
        return "time" if self._total_ns >= self.options.max_ns else None

    def summary(self) -> Summary:
        """Return the result of the samples so far.

        Raises
        ------
        MissingCostError
            There is no sample.
        """
        if not self._samples:
            raise MissingCostError("a kernel was never sampled; take at least one sample")
        samples = undisturbed(self._samples, self.options.lost_ratio)
        walls = sorted(sample.wall_ns for sample in samples)
        low, high = median_interval(walls, self.options.confidence) or (walls[0], walls[-1])
        cpus = [sample.cpu_ns for sample in samples]
        return Summary(
            self._per_call(median(walls)),
            self._per_call(half_spread(walls)),
            self._per_call(median(cpus)),
            len(samples),
            len(self._samples) - len(samples),
            self._per_call(low),
            self._per_call(high),
            self.ended_by() or "time",
        )

    def _per_call(self, ns: float) -> int:
        return round(ns / self.num_calls)


def undisturbed(samples: Sequence[KernelSample], lost_ratio: float) -> list[KernelSample]:
    """Return the samples whose threads kept their cores, in the order given; at least half.

    The processor time per wall time of the best quarter is what the kernel has when nothing
    disturbs it, whatever its number of threads. If most samples lack a part of it, the half that
    lacks least is kept.

    >>> undisturbed([KernelSample(10, 10), KernelSample(10, 10), KernelSample(25, 10)], 0.1)
    [KernelSample(wall_ns=10, cpu_ns=10), KernelSample(wall_ns=10, cpu_ns=10)]
    """
    if any(sample.cpu_ns <= 0 for sample in samples):
        return list(samples)
    ratios = [sample.cpu_ns / max(1, sample.wall_ns) for sample in samples]
    ranked = sorted(ratios, reverse=True)
    best = ranked[len(ranked) // 4] if ranked else 0.0
    limit = min(best * (1 - lost_ratio), ranked[(len(ranked) - 1) // 2] if ranked else 0.0)
    return [sample for sample, ratio in zip(samples, ratios, strict=True) if ratio >= limit]
