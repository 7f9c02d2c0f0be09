"""A run of a compiled model -> what `heteroplace run` prints of it, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from heteroplace.cli.environment import times_json
from heteroplace.cli.models.cached_model import Program
from heteroplace.cli.models.model_arrays import numbers_of
from heteroplace.cli.models.onnx_model import solution_json
from heteroplace.cli.run_file import Ran
from heteroplace.cli.shared import plural
from heteroplace.machine.usage import QUIET_CORES
from heteroplace.model.plan import Run
from heteroplace.model.solution import Solution
from heteroplace.model.units import format_deviation, format_ns
from heteroplace.report.headline import solution_headline
from heteroplace.report.layer_column import layer_label, without_empty_layers
from heteroplace.report.layer_precisions import precision_line
from heteroplace.report.notes import solution_notes
from heteroplace.report.tables import device_table, format_table
from heteroplace.stats import quantile

_COSTLIEST = 5
_NS_PER_S = 10**9


def result_text(program: Program, ran: Ran, batch: int | None) -> str:
    """Return the text: notes, what placing gains, times, loads, the longest tasks, outputs.

    Parameters
    ----------
    batch
        Rows of a run, where the command line names them.
    """
    solution = ran.solution
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    lines = [program.origin, *(f"note: {note}" for note in _notes(program, ran))]
    lines += [solution_headline(solution), *filter(None, [precision_line(solution)])]
    lines.append(_measured(ran, batch))
    lines += [time.text() for time in ran.peer_times]
    lines += ["", device_table(graph, cluster, plan, solution.timeline), ""]
    lines += [_costliest(solution), "", *_outputs(ran)]
    verification = ran.manifest.verification
    return "\n".join(lines if verification is None else [*lines, verification.text])


def result_json(program: Program, ran: Ran, batch: int | None) -> dict[str, object]:
    """Return what `result_text` says, for --json."""
    times = ran.times_ns
    return {
        "file": str(program.path),
        "origin": program.origin,
        "notes": list(_notes(program, ran)),
        "measured_ns": times_json(times),
        "items_per_second": (batch or 1) * _NS_PER_S / quantile(times, 0.5),
        "others_cores": ran.others_cores,
        "compared": [asdict(time) for time in ran.peer_times],
        "solution": solution_json(ran.solution),
        "verification": ran.manifest.verification and asdict(ran.manifest.verification),
        "outputs": {
            name: {"shape": list(value.shape), "dtype": ran.dtypes[name]}
            for name, value in ran.outputs.items()
        },
    }


def _notes(program: Program, ran: Ran) -> Iterator[str]:
    yield from program.notes
    yield from ran.notes
    yield from solution_notes(ran.solution)
    if ran.others_cores > QUIET_CORES:
        yield (
            f"Other programs used {ran.others_cores:.1f} cores during the measured runs. These are "
            f"run as planned, and may be faster on a quiet machine; calls of a loaded file adapt."
        )


def _measured(ran: Ran, batch: int | None) -> str:
    """The times of the runs, beside the prediction."""
    times = ran.times_ns
    median, predicted_ns = quantile(times, 0.5), ran.solution.expected_ns
    count = (batch or 1) * _NS_PER_S / median
    rate = f"{count:,.0f}" if count >= 100 else f"{count:.3g}"
    what = "runs" if batch is None else "items"
    return (
        f"measured {format_ns(median)} (p90 {format_ns(quantile(times, 0.9))}, p99 "
        f"{format_ns(quantile(times, 0.99))}, {plural(len(times), 'run')}; {rate} {what}/s), "
        f"predicted {format_ns(predicted_ns)} ({format_deviation(median, predicted_ns)})"
    )


def _costliest(solution: Solution) -> str:
    """The tasks that take longest, and why they are where they are."""
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    times = solution.timeline.step_times
    runs = [(index, step) for index, step in enumerate(plan.steps) if isinstance(step, Run)]
    taken = {index: times[index][1] - times[index][0] for index, _ in runs if index in times}
    longest = sorted(taken, key=lambda index: (-taken[index], index))[:_COSTLIEST]
    rows = []
    for index in longest:
        step = plan.steps[index]
        assert isinstance(step, Run)
        task = graph.tasks[step.task]
        reason = plan.reasons[step.task] if plan.reasons else ""
        device = cluster.devices[step.device].name
        time = format_ns(taken[index])
        rows.append([task.name, layer_label([task]), task.op, device, time, reason])
    heads = ["longest tasks", "layer", "op", "device", "time", "reason"]
    return format_table(*without_empty_layers(heads, rows, "<<<<><"))


def _outputs(ran: Ran) -> list[str]:
    lines = []
    for name, dtype in ran.dtypes.items():
        value = numbers_of(ran.outputs[name], dtype)
        shape = ",".join(map(str, value.shape))
        text = f"output {name}: {dtype} [{shape}]"
        if value.size and value.dtype.kind in "fiu":
            text += f", {value.min():.4g} .. {value.max():.4g}, mean {value.mean():.4g}"
        lines.append(text)
    return lines
