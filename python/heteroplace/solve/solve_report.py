"""A solution, and what is known beside it -> the page that shows it.

Here because it asks what moving tasks would cost, which needs the problem again.
"""

from __future__ import annotations

import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from heteroplace.control_groups import processor_name
from heteroplace.costs.device_figures import fill_device
from heteroplace.costs.work import main_dtype
from heteroplace.model.cluster import Cluster
from heteroplace.model.memory_use.live_memory import live_curves
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.model.solution import Solution
from heteroplace.model.step_values import step_ns
from heteroplace.registry import load_plugin
from heteroplace.report.html.content import Measured, PageContent, SolverPoint
from heteroplace.report.html.page import write_page
from heteroplace.report.layer_precisions import precision_line, precision_table
from heteroplace.report.machine_text import machine_text
from heteroplace.report.weight_report import weights_text
from heteroplace.simulate.decisions import full_table
from heteroplace.simulate.throughput import busy_ns
from heteroplace.solve.alternatives import alternatives, why_no_alternatives
from heteroplace.solve.moves import most_movable, moves, unmovable
from heteroplace.solve.objective import THROUGHPUT
from heteroplace.solve.problem import Problem, Progress, ProgressReport


class SolverRecord:
    """Keeps what a solver reports, for the page; `SolveOptions.progress` takes it."""

    def __init__(self, then: Progress | None = None) -> None:
        """Begin; `then` gets the reports too."""
        self._then = then
        self.points: list[SolverPoint] = []
        self._begin = time.perf_counter()

    def __call__(self, report: ProgressReport) -> None:
        """Take a report of the solver."""
        if self._then is not None:
            self._then(report)
        values = report.best_ns, report.bound_ns
        if self.points and (self.points[-1].best_ns, self.points[-1].bound_ns) == values:
            return
        # From the first phase on; the report counts from the beginning of its own.
        elapsed_ns = round((time.perf_counter() - self._begin) * 1e9)
        self.points.append(SolverPoint(elapsed_ns, report.phase, *values))


def write_report(
    solution: Solution,
    path: str | os.PathLike[str],
    *,
    measured: Measured | None = None,
    progress: Sequence[SolverPoint] = (),
    memory: Sequence[MemoryUse] = (),
    properties: Mapping[str, str] | None = None,
    command: str = "",
    file: str = "",
) -> None:
    """Write one self-contained HTML page that shows a solution.

    Parameters
    ----------
    path
        Where to; an older file is replaced.
    measured
        What the machine said of the plan; None: it was not run.
    progress
        What the solver had at which time (`SolverRecord`); empty: it was not recorded.
    memory
        For each memory what the compiled program holds; empty: it is not compiled.
    properties
        What else belongs to the machine and the versions.
    command
        What makes the page again.
    file
        The model or the compiled model, as the user named it: the title has its name. "": the
        title has the name of the network.

    Raises
    ------
    PlanError
        The plan is not one of its graph.
    OSError
        The folder does not exist or cannot be written to.
    """
    write_page(
        report_content(
            solution, measured, tuple(progress), tuple(memory), properties or {}, command, file
        ),
        path,
    )


def report_content(
    solution: Solution,
    measured: Measured | None,
    progress: tuple[SolverPoint, ...],
    memory: tuple[MemoryUse, ...],
    properties: Mapping[str, str],
    command: str,
    file: str = "",
) -> PageContent:
    """Return what the page shows; parameters as of `write_report`."""
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    missing = _missing(measured, progress, file)
    move_tasks: tuple[int, ...] = ()
    move_ns: tuple[tuple[int | None, ...], ...] = ()
    baseline = 0
    reason = unmovable(graph, plan)
    if reason:
        missing["moves"] = f"What moving a task would cost is not known: {reason}."
    elif graph.tasks:
        problem = Problem(graph, cluster, solution.costs)
        objective = "latency" if solution.item_ns is None else THROUGHPUT
        task_ids = _costliest(solution, most_movable(problem, plan))
        moved = moves(problem, plan, task_ids, objective)
        move_tasks, move_ns, baseline = moved.tasks, moved.objective_ns, moved.baseline_ns
        if len(move_tasks) < len(graph.tasks):
            missing["moves"] = (
                f"What moving a task would cost is known of the {len(move_tasks):,} costliest of "
                f"{len(graph.tasks):,} tasks; pin another one (--pin) and place again to see it."
            )
    costs = full_table(graph, cluster, solution.costs) if graph.routers else solution.costs
    machine = machine_text(cluster, processor_name() if _is_local(cluster, measured) else "")
    missing["alternatives"] = why_no_alternatives(graph)
    return PageContent(
        solution,
        solution.timeline,
        live_curves(graph, cluster, costs, plan),
        move_tasks,
        move_ns,
        baseline,
        _loads(solution),
        measured,
        progress,
        memory,
        _texts(solution),
        f"{Path(file).name or graph.name} on {machine}",
        _peak_flops(solution, measured),
        () if missing["alternatives"] else alternatives(solution),
        _about(solution, measured, machine, file),
        tuple((_properties(solution) | dict(properties)).items()),
        command,
        {name: text for name, text in missing.items() if text},
    )


def _peak_flops(solution: Solution, measured: Measured | None) -> tuple[int | None, ...]:
    """The peak of each device: from the cluster, its model, or measured; None: unknown."""
    dtype = main_dtype(solution.graph)
    measured_peaks = {} if measured is None else measured.peak_flops
    peaks: list[int | None] = []
    for device in solution.cluster.devices:
        flops = fill_device(device, dtype).flops_per_second
        peaks.append(flops or measured_peaks.get(device.name))
    return tuple(peaks)


def _is_local(cluster: Cluster, measured: Measured | None) -> bool:
    """Whether a cluster is this machine: it ran here, or it has the name of a probed one."""
    return measured is not None or cluster.name.split("-")[0] == "local"


def _about(
    solution: Solution, measured: Measured | None, machine: str, file: str
) -> tuple[tuple[str, str], ...]:
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    date = datetime.fromtimestamp(time.time() if epoch is None else int(epoch), timezone.utc)
    rows = (
        ("file", file),
        ("network", solution.graph.name),
        ("date", f"{date:%Y-%m-%d %H:%M} UTC"),
        ("heteroplace", metadata.version("heteroplace")),
        ("machine", machine),
        ("other programs", _load_text(solution, measured)),
    )
    return tuple((name, value) for name, value in rows if value)


def _load_text(solution: Solution, measured: Measured | None) -> str:
    """How busy other programs kept the machine, as far as somebody watched."""
    texts = []
    if any(detail.source == "measured" for detail in solution.costs.details):
        cores = solution.others_cores
        used = f"used {cores:.1f} cores" if cores else "used too little to disturb"
        texts.append(f"{used} while costs were measured")
    if measured is not None and measured.others_cores is not None:
        texts.append(f"used {measured.others_cores:.1f} cores during the measured runs")
    return "; ".join(texts) or "unknown, because nothing was measured"


def _costliest(solution: Solution, count: int) -> list[int]:
    """The tasks that take longest where they are."""
    spent = [0] * len(solution.graph.tasks)
    for task, devices in enumerate(solution.plan.devices_of_tasks(len(spent))):
        spent[task] = max((solution.costs.cost(task, d).ns or 0 for d in devices), default=0)
    return sorted(range(len(spent)), key=lambda task: (-spent[task], task))[:count]


def _loads(solution: Solution) -> tuple[int, ...]:
    """What one item takes of each resource, where that is what limits."""
    if solution.item_ns is None:
        return ()
    graph, cluster, steps = solution.graph, solution.cluster, solution.plan.steps
    times = [step_ns(graph, cluster, solution.costs, step) or 0 for step in steps]
    return tuple(busy_ns(graph, cluster, steps, times))


def _texts(solution: Solution) -> tuple[tuple[str, str], ...]:
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    texts = []
    if graph.routers:
        texts.append(("Routed branches", load_plugin("routers", "plan-text")(solution)))
    weights = weights_text(graph, cluster, plan)
    if weights:
        texts.append(("Weights of branches", weights))
    if solution.precision_choice is not None:
        precisions = f"{precision_line(solution)}\n\n{precision_table(solution)}"
        texts.append(("Layers in bfloat16", precisions))
    return tuple(texts)


def _properties(solution: Solution) -> dict[str, str]:
    plan = solution.plan
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return {
        "page written on": ", ".join(filter(None, (processor_name(), system))),
        "plan made by": plan.origin,
        "digest of the graph": plan.graph_digest,
        "digest of the cluster": plan.cluster_digest,
    }


def _missing(
    measured: Measured | None, progress: Sequence[SolverPoint], file: str
) -> dict[str, str]:
    """For each missing time or record, the command that gets it, with `file` where it can run."""
    missing = {}
    model = shlex.quote(file) if file.endswith(".onnx") else "MODEL.onnx"
    runs = shlex.quote(file) if file.endswith((".onnx", ".so")) else "MODEL"
    measure = f"`heteroplace report {runs} --measure 21`"
    if measured is None or measured.timeline is None:
        missing["measured"] = (
            f"The steps were not measured. {measure} measures them; in Python: "
            f"`executor.report(path)`."
        )
    if measured is None or (measured.time is None and measured.timeline is None):
        missing["time"] = f"Measured time: unknown. {measure} measures it."
    missing["peak"] = f"{measure} measures the peak of a CPU of this machine."
    if measured is None or not any("onnxruntime" in peer.name.lower() for peer in measured.peers):
        missing["onnxruntime"] = (
            f"onnxruntime: not compared. `heteroplace run {model} --compare onnxruntime "
            f"--report PAGE.html` measures both in turns."
        )
    if not progress:
        missing["progress"] = (
            "The solver's progress was not recorded. `heteroplace place ... --report FILE` and "
            "`tvmc compile --placement-report FILE` record it."
        )
    return missing
