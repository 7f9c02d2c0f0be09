"""What is left to gain of a network's kernels, and what tuning gained: values and tables."""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.measure.kernels.kernel_times import FIGURE_TITLES, KernelTimes
from heteroplace.measure.machine_peaks import Peaks
from heteroplace.model.units import format_ns
from heteroplace.report.tables import format_table

MAX_ROWS = 12
_MAX_SHAPES = 60


@dataclass(frozen=True)
class Outlook:
    """The kernels of a network before tuning."""

    device: str
    """On which they were measured, in place."""
    num_cores: int
    peaks: Peaks
    kernels: tuple[KernelTimes, ...]
    """The costliest first."""

    @property
    def total_ns(self) -> int:
        """Of all calls."""
        return sum(each.total_ns for each in self.kernels)

    @property
    def gain_ns(self) -> int:
        """The most that better kernels could gain, if all were on the roofline."""
        return round(self.total_ns - sum(each.min_ns(self.peaks) for each in self.kernels))

    def text(self, max_rows: int = MAX_ROWS) -> str:
        """Return a table of the costliest kernels, and what is left to gain."""
        rows = [each.figures(self.peaks) for each in self.kernels[:max_rows]]
        cells = [[str(row[key])[:_MAX_SHAPES] for key in FIGURE_TITLES] for row in rows]
        lines = [format_table(list(FIGURE_TITLES.values()), cells, ">>>>>><<")]
        rest = self.kernels[max_rows:]
        if rest:
            lines.append(f"... and {len(rest)} kernels, {format_ns(sum(k.total_ns for k in rest))}")
        cores = f"{self.num_cores} core{'' if self.num_cores == 1 else 's'}"
        share = self.gain_ns / max(1, self.total_ns)
        lines.append(
            f"{self.device} ({cores}): {format_ns(self.total_ns)} of kernels; better ones could "
            f"gain at most {format_ns(self.gain_ns)} ({share:.0%}), with all on the roofline of "
            f"{self.peaks.flops_per_second / 1e9:.0f} GFLOP/s and "
            f"{self.peaks.bytes_per_second / 1e9:.1f} GB/s, the most seen here"
        )
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """Return all kernels, and what is left to gain."""
        return {
            "device": self.device,
            "cores": self.num_cores,
            "flops_per_second": round(self.peaks.flops_per_second),
            "bytes_per_second": round(self.peaks.bytes_per_second),
            "total_ns": self.total_ns,
            "gain_at_most_ns": self.gain_ns,
            "kernels": [each.figures(self.peaks) for each in self.kernels],
        }


@dataclass(frozen=True)
class TunedKernel:
    """What came of a kernel."""

    op: str
    shapes: str
    calls: int
    trials: int
    """Schedules that were measured in this search."""
    trials_before: int
    """In earlier ones, as the store has it."""
    alone_ratio: float | None
    """Time of the best schedule over that of our kernel, alone; None: there is none."""
    own_ns: int
    """Of all calls of our kernel in place, on most cores; 0: no schedule was measured there."""
    tuned_ns: int
    """The same of the best schedule."""
    is_kept: bool
    """It was faster than ours on some number of cores, and is used from now on."""
    why_not: str
    """Why nothing more is drawn of it; ""."""

    def outcome(self) -> str:
        """Return what came of it, in a few words."""
        if self.is_kept:
            return "kept"
        if self.own_ns:
            return "not faster in place"
        if self.alone_ratio is not None:
            return "slower alone"
        if self.why_not:
            return self.why_not
        return "no schedule ran" if self.trials else "no time for it"


@dataclass(frozen=True)
class TuneReport:
    """What a search found."""

    outlook: Outlook
    kernels: tuple[TunedKernel, ...]
    """The costliest first."""
    search_s: float
    measure_s: float
    """Of the network before and after."""
    was_interrupted: bool

    @property
    def gain_ns(self) -> int:
        """What kernels that were kept gain on most cores, in a run of the network."""
        return sum(max(0, each.own_ns - each.tuned_ns) for each in self.kernels if each.is_kept)

    def text(self, max_rows: int = MAX_ROWS) -> str:
        """Return a table of before and after, and a summary."""
        tried = [each for each in self.kernels if each.trials or each.is_kept or each.why_not]
        cells = [
            [
                str(each.trials),
                "-" if each.alone_ratio is None else f"{each.alone_ratio:.2f}",
                format_ns(each.own_ns) if each.own_ns else "-",
                format_ns(each.tuned_ns) if each.own_ns else "-",
                each.outcome(),
                each.op[:_MAX_SHAPES],
                each.shapes[:_MAX_SHAPES],
            ]
            for each in tried[:max_rows]
        ]
        header = ["trials", "alone", "before", "after", "outcome", "op", "shapes"]
        lines = [format_table(header, cells, ">>>><<<")] if cells else []
        if len(tried) > max_rows:
            lines.append(f"... and {len(tried) - max_rows} kernels")
        trials = sum(each.trials for each in self.kernels)
        kept_kernels = [each for each in self.kernels if each.is_kept]
        how = "interrupted after" if self.was_interrupted else "in"
        lines.append(
            f"{trials} schedules of {sum(each.trials > 0 for each in self.kernels)} of "
            f"{len(self.kernels)} kernels measured {how} {self.search_s:.0f} s (the network before "
            f"and after: {self.measure_s:.0f} s); {len(kept_kernels)} kept, which gain "
            f"{format_ns(self.gain_ns)} of {format_ns(self.outlook.total_ns)} on "
            f"{self.outlook.device}"
        )
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """Return all of it."""
        return {
            "outlook": self.outlook.to_json(),
            "kernels": [
                {
                    "op": each.op,
                    "shapes": each.shapes,
                    "calls": each.calls,
                    "trials": each.trials,
                    "trials_before": each.trials_before,
                    "alone_ratio": each.alone_ratio and round(each.alone_ratio, 4),
                    "before_ns": each.own_ns or None,
                    "after_ns": each.tuned_ns or None,
                    "is_kept": each.is_kept,
                    "outcome": each.outcome(),
                }
                for each in self.kernels
            ],
            "gain_ns": self.gain_ns,
            "search_s": round(self.search_s, 3),
            "measure_s": round(self.measure_s, 3),
            "was_interrupted": self.was_interrupted,
        }
