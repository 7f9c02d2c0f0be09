"""`benchmarks batches`: Standard Evaluation of Celeritas: predict batch 16 from batches 1, 2 and 4.

Each network is measured in place on one core, at each size, in interleaved rounds; the small sizes
once as they are and once with the memory traffic of the large one (`measure/transfers/traffic.py`).
Compared with the times measured at 16:

- "line": Celeritas' own estimate, a line through the times as they are;
- "traffic": lines through the times with traffic, their intercepts held by what fetching the
  weights may take (`costs/standard_evaluation.py`).

Deviations: sum |estimated - measured| / sum measured over the tasks (weighted), and the mean of
|estimated - measured| / measured (mean, as Celeritas has it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.peers.stock import in_pass_context
from heteroplace.costs.prediction.regression import fit_batches
from heteroplace.costs.standard_evaluation import (
    estimate_graph,
    fit_times,
    likely_intercept_ns,
)
from heteroplace.machine.local import local_cluster
from heteroplace.measure.batches import BatchProgram, compile_batch, device_table
from heteroplace.measure.rounds import Rounds, sample_in_turns
from heteroplace.model.graph import TaskGraph
from heteroplace.report.tables import format_table
from zoo.models.catalogue import SMALLEST, Model, matching_models

SMALL = (1, 2, 4)
LARGE = 16
NUM_ROUNDS = 7
"""Of every network but the smallest, which has one."""
DEFAULT = "^(resnet50|inception_v2|squeezenet|randomly_wired|shufflenet)$"
"""Networks that are measured unless --only names others."""

PAPER_ROWS = (
    ("Inception_V3 (from the paper)", 0.0799, 0.0154),
    ("NMT (from the paper)", 0.1085, 0.0393),
    ("Transformer (from the paper)", 0.1416, 0.0602),
    ("Tensor Holography (from the paper)", 0.1132, 0.0292),
)
"""Celeritas, section 6: relative deviation of times and of memory, 4 V100."""


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    for model, tell in matching_models(only or DEFAULT, say):
        with in_pass_context():
            num_rounds = 1 if model.name == SMALLEST else NUM_ROUNDS
            yield row_of(model, tell, num_rounds=num_rounds)


def row_of(
    model: Model,
    say: Callable[[str], None] = lambda line: None,
    small: Sequence[int] = SMALL,
    large: int = LARGE,
    num_rounds: int = NUM_ROUNDS,
) -> dict[str, object]:
    """Return the figures of one network; times in ms, deviations as ratios."""
    cluster = local_cluster(has_gpus=False)
    programs: dict[int, BatchProgram] = {}
    for batch in (*small, large):
        say(f"compiling for batch {batch}")
        programs[batch] = compile_batch(model.mod, model.params, cluster, 0, batch, model.inputs)
    plain = {batch: program.rounds() for batch, program in programs.items()}
    busy = {batch: programs[batch].rounds(large) for batch in small}
    for number in range(num_rounds):
        say(f"round {number + 1} of {num_rounds}")
        sample_in_turns([*plain.values(), *busy.values()], 1)
    times = {batch: rounds.task_times() for batch, rounds in plain.items()}
    measured = times[large]
    row: dict[str, object] = {"name": model.name, "tasks": len(measured), "batch": large}
    for batch, of_tasks in times.items():
        row[f"batch_{batch}_ms"] = round(sum(of_tasks) / 1e6, 4)
    lines = [
        fit_batches(small, [times[batch][task] for batch in small]).predict(large)
        for task in range(len(measured))
    ]
    row |= _deviations("line", lines, measured)
    row |= _deviations("traffic", _estimated(programs, busy, large), measured)
    graphs = {batch: programs[batch].graph for batch in small}
    row |= _memory(graphs, programs, small, large)
    return row


def _estimated(
    programs: Mapping[int, BatchProgram], busy: Mapping[int, Rounds], large: int
) -> list[float]:
    """The times at the large batch, as the Standard Evaluation of this package has them."""
    some = programs[min(busy)]
    tables = {
        size: device_table(programs[size].graph, some.cluster, some.device, rounds.task_times())
        for size, rounds in busy.items()
    }
    graph = estimate_graph({size: programs[size].graph for size in busy}, large)
    found = []
    for task_id, task in enumerate(graph.tasks):
        likely = likely_intercept_ns(task, some.cluster.devices[some.device])
        fit = fit_times(tables, task_id, some.device, likely)
        assert fit is not None  # every task was measured
        found.append(fit.predict(large))
    return found


def _deviations(
    label: str, predicted: Sequence[float], measured: Sequence[int]
) -> dict[str, object]:
    """Weighted and mean deviation over the tasks that take any time, and that of the sum."""
    pairs = [(p, m) for p, m in zip(predicted, measured, strict=True) if m > 0]
    total = sum(m for _, m in pairs)
    return {
        f"{label}_weighted": round(sum(abs(p - m) for p, m in pairs) / total, 4),
        f"{label}_mean": round(sum(abs(p - m) / m for p, m in pairs) / len(pairs), 4),
        f"{label}_sum": round(sum(p for p, _ in pairs) / total - 1, 4),
    }


def _memory(
    graphs: Mapping[int, TaskGraph],
    programs: Mapping[int, BatchProgram],
    small: Sequence[int],
    large: int,
) -> dict[str, object]:
    """Deviation of the memory of the tasks, weighted and mean, and of the whole program."""
    predicted = _task_bytes(estimate_graph(graphs, large))
    measured = _task_bytes(programs[large].graph)
    pairs = [(p, m) for p, m in zip(predicted, measured, strict=True) if m > 0]
    peak = programs[large].peak_bytes()
    peaks = [programs[size].peak_bytes() for size in small]
    estimate = fit_batches(small, peaks, "memory").predict(large)
    return {
        "memory_weighted": round(sum(abs(p - m) for p, m in pairs) / sum(measured), 5),
        "memory_mean": round(sum(abs(p - m) / m for p, m in pairs) / len(pairs), 5),
        "predicted_peak_bytes": round(estimate),
        "measured_peak_bytes": peak,
        "peak_deviation": round(abs(estimate - peak) / peak, 5),
    }


def _task_bytes(graph: TaskGraph) -> list[int]:
    """Weights, workspace and results of each task."""
    return [
        task.weight_bytes
        + task.workspace_bytes
        + sum(graph.tensors[tensor].bytes for tensor in graph.task_outputs[index])
        for index, task in enumerate(graph.tasks)
    ]


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text, those of the paper below; deviations in percent."""
    columns = {
        "line_weighted": "line, weighted",
        "line_mean": "mean",
        "traffic_weighted": "traffic, weighted",
        "traffic_mean": "mean",
        "traffic_sum": "of the sum",
        "memory_weighted": "memory, weighted",
        "memory_mean": "mean",
        "peak_deviation": "peak",
    }
    cells = [
        [str(row["name"]), *(f"{100 * float(str(row[key])):.1f} %" for key in columns)]
        for row in rows
    ]
    for name, time, memory in PAPER_ROWS:
        cells.append([name, "", f"{100 * time:.1f} %", "", "", "", "", f"{100 * memory:.1f} %", ""])
    return format_table(["network", *columns.values()], cells, "<" + ">" * len(columns))
