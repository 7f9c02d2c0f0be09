"""Rows of `benchmarks prediction`: what was promised for a plan, beside what its run took.

A row has the keys

    model, plan, devices, predicted_ms, measured_ms, predicted_peak_bytes, measured_peak_bytes

and predicted_low_ms and predicted_high_ms (a tenth of the runs is expected below and above),
pace (see `prediction.pace_of`; predicted times are at this pace),
simulated_ms (the makespan that solvers minimise: no interference, no scatter), kind ("random",
"solver" or "single"), tasks, task_error (weighted error of the tasks' times within the plan),
rounds_ms (of the rounds that count, without what the machine did to all plans of a round alike;
measured_ms is their median), rounds_counted and of these rounds_undisturbed, spread_ms (half of
the interquartile range of the rounds), core_to_core_ns (latency) and others_cores (the machine in
the turns that count), max_abs_diff (of the outputs, to those of the model's first plan). Bytes are
summed over the memories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heteroplace.lower.executable import Executable
from heteroplace.measure.timed_runs import TimedRuns
from heteroplace.model.timeline import Timeline
from heteroplace.report.accuracy import weighted_error
from heteroplace.report.compare import compare
from heteroplace.run.executor import Executor
from heteroplace.simulate.expect import Expectation
from heteroplace.stats import half_spread, median

Row = dict[str, object]


@dataclass(frozen=True)
class PlannedRun:
    """A plan with its prediction, ready to run."""

    kind: str
    """"random", "solver" or "single"."""
    executable: Executable
    executor: Executor
    predicted: Expectation

    @property
    def name(self) -> str:
        """What made the plan."""
        return self.executable.solution.plan.origin


def predicted_peak_bytes(executable: Executable) -> int:
    """Return the memory that a plan is said to need, over all memories."""
    return sum(use.total_bytes for use in executable.memory)


def measured_peak_bytes(executor: Executor) -> int:
    """Return the memory that a program held in its runs: weights, values and scratch memory."""
    return sum(use.total_bytes for use in executor.memory().values())


@dataclass(frozen=True)
class RowMaker:
    """Makes the rows of one model."""

    model: str
    timed: TimedRuns
    rounds_ns: Mapping[str, Sequence[float]]
    """By name of the plan: times of the rounds that count, balanced."""
    pace: float

    def row(self, item: PlannedRun, measured: Timeline, difference: float) -> Row:
        """Return the row of one plan."""
        solution = item.executable.solution
        turns = self.timed.counted_turns(item.name)
        times = self.rounds_ns[item.name]
        matched = compare(
            solution.graph, solution.cluster, solution.plan, item.predicted.timeline, measured
        )
        tasks = [step for step in matched.steps if step.resource]
        task_error = weighted_error(
            [step.predicted_ns for step in tasks], [step.measured_ns for step in tasks]
        )
        # A plan of one device is what the pace is taken from; its own error is that without it.
        pace = 1.0 if item.kind == "single" else self.pace
        latencies = [turn.core_to_core_ns for turn in turns if turn.core_to_core_ns is not None]
        return {
            "model": self.model,
            "plan": item.name,
            "devices": list(solution.devices_used),
            "predicted_ms": _ms(item.predicted.makespan_ns * pace),
            "measured_ms": _ms(median(times)),
            "predicted_peak_bytes": predicted_peak_bytes(item.executable),
            "measured_peak_bytes": measured_peak_bytes(item.executor),
            "predicted_low_ms": _ms(item.predicted.low_ns * pace),
            "predicted_high_ms": _ms(item.predicted.high_ns * pace),
            "pace": round(pace, 4),
            "simulated_ms": _ms(solution.predicted_ns),
            "kind": item.kind,
            "tasks": len(solution.graph.tasks),
            "task_error": None if task_error is None else round(task_error, 5),
            "rounds_ms": [_ms(time) for time in times],
            "rounds_counted": len(turns),
            "rounds_undisturbed": sum(turn.is_undisturbed for turn in turns),
            "spread_ms": _ms(half_spread(times)),
            "core_to_core_ns": int(median(latencies)) if latencies else None,
            "others_cores": round(median([turn.others_cores for turn in turns]), 3),
            "max_abs_diff": difference,
        }


def _ms(ns: float) -> float:
    return round(ns / 1e6, 5)
