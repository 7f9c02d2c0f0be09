"""A finished comparison -> the demo's text, and the files that it leaves behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.run.comparison import (
    CHOSEN,
    CORES,
    ONNXRUNTIME,
    STOCK_ALL,
    STOCK_ONE,
    Comparison,
)
from heteroplace import Timeline
from heteroplace.costs.measurement import NEAR_CORES_NS
from heteroplace.files.output import json_text, write_text
from heteroplace.machine.usage import QUIET_CORES
from heteroplace.measure.timed_runs import TimedRuns
from heteroplace.model.solution import Solution
from heteroplace.model.units import format_bytes, format_deviation, format_gap, format_ns
from heteroplace.report.chrome_trace import TraceRun, write_trace
from heteroplace.report.compare import compare
from heteroplace.report.headline import solution_headline
from heteroplace.report.html.content import Measured, MeasuredTime
from heteroplace.report.tables import (
    Candidate,
    candidates_table,
    device_table,
    format_table,
    memory_text,
    placement_table,
)

_ROWS_SHOWN = 14
_LINE_LENGTH = 130


def plan_text(solution: Solution, all_in: Path) -> str:
    """Return loads, the first rows of the solution, and what else was considered."""
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    timeline = solution.timeline
    table = placement_table(graph, cluster, plan, timeline, max_rows=len(graph.tasks))
    lines = table.splitlines()
    shown = [_cut(line) for line in lines[: _ROWS_SHOWN + 1]]
    if len(lines) > len(shown):
        shown.append(f"... {len(lines) - len(shown)} more tasks, and whole reasons, in {all_in}")
    tried = candidates_table([Candidate(name, ns) for name, ns in solution.candidates])
    loads = device_table(graph, cluster, plan, timeline)
    return "\n\n".join([loads, "\n".join(shown), tried])


def _cut(line: str) -> str:
    return line if len(line) <= _LINE_LENGTH else line[: _LINE_LENGTH - 3] + "..."


def write_solution(solution: Solution, path: Path) -> None:
    """Write where every task runs, and the whole reason for it."""
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    timeline = solution.timeline
    parts = [
        solution_headline(solution),
        device_table(graph, cluster, plan, timeline),
        placement_table(graph, cluster, plan, timeline, max_rows=len(graph.tasks)),
        "Why:",
        "\n".join(
            f"{task.name}: {reason}" for task, reason in zip(graph.tasks, plan.reasons, strict=True)
        ),
    ]
    write_text("\n\n".join(parts) + "\n", path)


def write_timelines(solution: Solution, measured: Timeline, path: Path) -> None:
    """Write the predicted and the measured timeline as one Chrome trace."""
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    predicted = solution.timeline
    runs = [TraceRun("predicted", plan, predicted), TraceRun("measured", plan, measured)]
    write_trace(path, graph, cluster, runs)


def write_page(result: Comparison, measured: Timeline, path: Path) -> None:
    """Write the page of the chosen plan, with everything else that was timed."""
    timed = result.timed

    def time(name: str) -> MeasuredTime:
        rounds = timed.rounds_ns(name)
        return MeasuredTime(_label(name), timed.median_ns(name), min(rounds), max(rounds))

    peers = [name for name in sorted(timed.turns, key=timed.median_ns) if name != CHOSEN]
    found = Measured(measured, time(CHOSEN), tuple(map(time, peers)))
    command = "python -m benchmarks.demo"
    result.executables[CHOSEN].report(path, measured=found, command=command)


def times_text(result: Comparison) -> str:
    """Return the table of everything that was timed, and what it says."""
    timed = result.timed
    fastest = min(timed.turns, key=timed.median_ns)
    solutions = {name: made.solution for name, made in result.executables.items()}
    predicted_ns = predictions(solutions)
    rows = []
    for name in sorted(timed.turns, key=timed.median_ns):
        predicted, devices = "", ""
        if name in solutions:
            predicted = format_ns(predicted_ns[name]) if name in predicted_ns else "?"
            devices = "+".join(solutions[name].devices_used)
        rounds = timed.rounds_ns(name)
        rows.append(
            [
                _label(name),
                devices,
                predicted,
                format_ns(timed.median_ns(name)),
                f"{format_ns(min(rounds))} .. {format_ns(max(rounds))}",
                f"{timed.ratio(name, fastest):.2f}x",
            ]
        )
    headers = ["what", "devices used", "predicted", "measured", "rounds", "of fastest"]
    return format_table(headers, rows, "<<>>>>")


def predictions(solutions: Mapping[str, Solution]) -> dict[str, int]:
    """Return the predicted time of each plan, all of the same kind as the chosen plan's, in ns.

    A plan on one device has no expected time of its own, because nothing disturbs it. Its time is
    then the one that the chosen plan was compared with. A plan without such a time is left out.

    Parameters
    ----------
    solutions
        By name of the plan; CHOSEN is one of them.
    """
    chosen = solutions[CHOSEN]
    if chosen.expected is None:
        return {name: solution.predicted_ns for name, solution in solutions.items()}
    singles = dict(chosen.predicted_singles)
    found = {}
    for name, solution in solutions.items():
        if solution.expected is not None:
            found[name] = solution.expected_ns
        elif len(used := solution.devices_used) == 1 and used[0] in singles:
            found[name] = singles[used[0]]
    return found


def _label(name: str) -> str:
    labels = {CHOSEN: "chosen plan", CORES: "plan without the device of all cores"}
    is_peer = name in (STOCK_ONE, STOCK_ALL, ONNXRUNTIME)
    return labels.get(name, name if is_peer else f"all on {name}")


def verdict_text(result: Comparison, predicted_of: Timeline, measured: Timeline) -> str:
    """Return what the figures amount to: speed, prediction, bound, equality, memory."""
    timed = result.timed
    solution = result.executables[CHOSEN].solution
    chosen_ns = timed.median_ns(CHOSEN)
    single, single_ns = min(result.measured_single_ns().items(), key=lambda item: item[1])
    matched = compare(solution.graph, solution.cluster, solution.plan, predicted_of, measured)
    memory = result.executables[CHOSEN].lowered.memory_bytes
    one_memory = result.executables[single].lowered.memory_bytes
    lines = [
        f"measured {format_ns(chosen_ns)}, predicted {format_ns(solution.expected_ns)} "
        f"({format_deviation(chosen_ns, solution.expected_ns)}); gap to the lower bound "
        f"{format_gap(solution.gap_ratio)}, both without interference",
        f"best single device {single} {format_ns(single_ns)}: the plan takes "
        f"{timed.ratio(CHOSEN, single):.2f} of it",
        f"copies between memories: {len(solution.plan.copies)}; memory "
        f"{format_bytes(sum(memory))}, on {single} alone {format_bytes(sum(one_memory))}",
    ]
    executor = result.executors[CHOSEN]
    lines.append(memory_text(solution.cluster, executor.predicted_memory, executor.memory()))
    if CORES in result.executables:
        first = result.single_names[0]
        used = "+".join(result.executables[CORES].solution.devices_used)
        times = timed.ratio(first, CORES)
        lines.append(
            f"{used} without the device of all cores: {times:.2f} times as fast as {first}"
        )
    if matched.rank_correlation is not None:
        lines.append(
            f"rank correlation of predicted and measured task times: {matched.rank_correlation:.2f}"
        )
    for name, text in ((STOCK_ONE, "stock TVM"), (ONNXRUNTIME, "onnxruntime")):
        difference = result.difference(CHOSEN, name)
        if difference is not None:
            lines.append(
                f"largest difference to {text}: {difference:.2g} "
                f"(of values up to {_largest(result, name):.2g})"
            )
    lines.append(
        f"import and compile: {result.compile_s:.1f} s of processor time, stock TVM "
        f"{result.stock_compile_s:.1f} s"
    )
    lines += _disturbances(timed)
    return "\n".join(lines)


def _disturbances(timed: TimedRuns) -> list[str]:
    """What of the machine's state the figures depend on."""
    lines = []
    latency, others = timed.median_core_to_core_ns, timed.median_others_cores
    if latency is not None:
        note = ""
        if latency >= NEAR_CORES_NS:
            note = "; they are far apart now, so what runs on both is slower than predicted"
        lines.append(f"a cache line takes {latency} ns from core to core{note}")
    if others > QUIET_CORES:
        lines.append(
            f"other programs used {others:.1f} cores meanwhile: these are not the times of a quiet "
            f"machine"
        )
    return lines


def _largest(result: Comparison, name: str) -> float:
    return max(float(abs(array).max()) for array in result.outputs[name])


def summary_row(result: Comparison) -> dict[str, object]:
    """Return the figures of one model for `summary.json`; all times in ms."""
    timed = result.timed
    chosen = result.executables[CHOSEN]
    solution = chosen.solution
    singles = result.measured_single_ns()
    predicted = predictions({name: made.solution for name, made in result.executables.items()})
    most = max(solution.cluster.devices, key=lambda device: len(device.cores)).name
    row: dict[str, object] = {
        "name": result.model.name,
        "tasks": len(solution.graph.tasks),
        "devices_used": list(solution.devices_used),
        "copies": len(solution.plan.copies),
        "simulated_bound_ms": _ms(solution.bound_ns),
        "simulated_ms": _ms(solution.predicted_ns),
        "predicted_ms": _ms(solution.expected_ns),
        "measured_ms": _ms(timed.median_ns(CHOSEN)),
        "single_device_ms": {name: _ms(ns) for name, ns in singles.items()},
        "all_cores_ms": _ms(singles[most]),
        "stock_all_threads_ms": _ms(timed.median_ns(STOCK_ALL)),
        "core_to_core_ns": timed.median_core_to_core_ns,
        "stock_tvm_ms": _ms(timed.median_ns(STOCK_ONE)),
        "onnxruntime_ms": _median_ms(result, ONNXRUNTIME),
        "max_abs_diff_tvm": result.difference(CHOSEN, STOCK_ONE),
        "max_abs_diff_onnxruntime": result.difference(CHOSEN, ONNXRUNTIME),
        "compile_s": round(result.compile_s, 2),
        "stock_compile_s": round(result.stock_compile_s, 2),
        "speedup": min(singles.values()) / timed.median_ns(CHOSEN),
        "simulated_single_device_ms": {name: _ms(ns) for name, ns in solution.singles},
        "cores_measured_ms": _median_ms(result, CORES),
        "predicted_single_device_ms": {
            name: _ms(predicted[name]) for name in result.single_names if name in predicted
        },
        "cores_predicted_ms": _ms(predicted[CORES]) if CORES in predicted else None,
        "memory_bytes": {
            name: sum(executable.lowered.memory_bytes)
            for name, executable in result.executables.items()
        },
        "rounds": {
            name: [
                {
                    "ms": _ms(turn.median_ns),
                    "core_to_core_ns": turn.core_to_core_ns,
                    "others_cores": round(turn.others_cores, 3),
                    "counted": index in timed.counted(name),
                }
                for index, turn in enumerate(turns)
            ]
            for name, turns in timed.turns.items()
        },
    }
    return row


def plan_row(name: str, solution: Solution) -> dict[str, object]:
    """Return the figures of a model that was only placed."""
    singles = dict(solution.singles)
    return {
        "name": name,
        "tasks": len(solution.graph.tasks),
        "devices_used": list(solution.devices_used),
        "simulated_bound_ms": _ms(solution.bound_ns),
        "simulated_ms": _ms(solution.predicted_ns),
        "predicted_ms": _ms(solution.expected_ns),
        "simulated_single_device_ms": {device: _ms(ns) for device, ns in singles.items()},
    }


def write_summary(
    rows: Sequence[Mapping[str, object]], placed: Sequence[Mapping[str, object]], path: Path
) -> None:
    """Write the rows of the models that were measured, and of those only placed, as JSON."""
    value = {"models": list(rows), "placed_only": list(placed)}
    write_text(json_text(value, indent=1) + "\n", path)


def _median_ms(result: Comparison, name: str) -> float | None:
    if name not in result.timed.turns:
        return None
    return _ms(result.timed.median_ns(name))


def _ms(ns: int) -> float:
    return round(ns / 1e6, 4)
