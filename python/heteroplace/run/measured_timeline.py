"""Times of instructions -> a timeline of the plan's steps; runs that give these times."""

from __future__ import annotations

from collections.abc import Sequence

from heteroplace.model.plan import Collective, Copy, Load, Run, devices_of
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Span, Timeline
from heteroplace.native.execute import Executor as NativeExecutor

_MAX_WARMUP_RUNS = 5


def timed_timeline(native: NativeExecutor, solution: Solution, num_runs: int) -> Timeline:
    """Run with clocks after some runs to warm up; return the timeline of the run of median length.

    Raises
    ------
    ExecutionError
        `num_runs` is below 1, an input has no value, or a kernel failed.
    """
    native.benchmark(min(num_runs, _MAX_WARMUP_RUNS))
    runs = []
    for _ in range(num_runs):
        starts, finishes = native.run_timed()
        records = [
            (instruction.step, instruction.kernel is not None, int(start), int(finish))
            for instruction, start, finish in zip(
                native.instructions, starts, finishes, strict=True
            )
        ]
        runs.append(measured_timeline(records, solution))
    return sorted(runs, key=lambda timeline: timeline.makespan_ns)[num_runs // 2]


def measured_timeline(
    records: Sequence[tuple[int, bool, int, int]], solution: Solution
) -> Timeline:
    """Turn (step, is a kernel, start_ns, finish_ns) of instructions into a timeline of steps."""
    cluster, plan = solution.cluster, solution.plan
    times: dict[int, tuple[int, int]] = {}
    for step, is_kernel, start, finish in records:
        if isinstance(plan.steps[step], (Run, Collective)) and not is_kernel:
            # A worker that helps is there before the kernel begins, and a copy of a value that
            # only the compiled form has belongs to no step of the plan.
            continue
        measured_times = times.get(step, (start, finish))
        times[step] = (min(measured_times[0], start), max(measured_times[1], finish))
    origin = min((start for start, _ in times.values()), default=0)
    spans = []
    for step, (start, finish) in sorted(times.items()):
        action = plan.steps[step]
        if isinstance(action, (Copy, Load)):
            resources = [cluster.links[action.route[0]].channel]
        else:
            resources = [cluster.devices[device].name for device in devices_of(action)]
        spans += [Span(step, name, start - origin, finish - origin) for name in resources]
    makespan = max((span.finish_ns for span in spans), default=0)
    return Timeline(tuple(spans), "measured", (), makespan, plan.items)
