"""`heteroplace profile`: an ONNX model and a cluster to measured costs. TVM is loaded when it runs.

Everything measured goes into a store at once, so that a run that is interrupted can be repeated
and measures only the rest, and another model only what is new in it.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heteroplace.cli.job import ended_together
from heteroplace.cli.models.given_inputs import add_input, inputs_of_model
from heteroplace.cli.models.onnx_model import check_importer, check_model_file
from heteroplace.cli.problem_arguments import add_cluster, add_store
from heteroplace.cli.shared import (
    Parsers,
    add_command,
    add_json,
    add_output_file,
    add_written,
    check_writable,
    progress_display,
    show,
    written_text,
)
from heteroplace.files.costs_file import save_costs
from heteroplace.files.graph_file import save_graph
from heteroplace.machine.local import open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.demands import layers_of
from heteroplace.model.units import format_bytes, format_ns
from heteroplace.options import add_arguments, count, duration, from_arguments, option
from heteroplace.place_options import STORE_ON
from heteroplace.report.layer_column import layer_label, without_empty_layers
from heteroplace.report.tables import format_table
from heteroplace.run.transport import Ranks, launched_transport
from heteroplace.solve.list.sequential_placement import SEQUENTIAL_ORDERS
from heteroplace.stage_log import StageLog

_PROFILER = "heteroplace.cli.machine.profile_model"
_OPTIONS = "heteroplace.measure.measure_options"
_COSTS = "heteroplace.measure.cost_models.cost_model"
_REMOTE = "heteroplace.measure.remote_host"
_LARGEST = 10


def _batches(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9][0-9]*(,[1-9][0-9]*)*", text):
        raise ValueError(f"expected numbers of items like 1,2,4, got {text!r}")
    return tuple(map(int, text.split(",")))


def _remote(text: str) -> tuple[str, str, int]:
    match = re.fullmatch(r"([^=]+)=(.+):([0-9]+)", text)
    if match is None or not 0 < int(match[3]) < 65536:
        raise ValueError(f"expected HOST=ADDRESS:PORT, got {text!r}")
    return match[1], match[2], int(match[3])


@dataclass(frozen=True)
class Extras:
    """What is measured or found out beside the times of kernels, and how long that may take."""

    batches: tuple[int, ...] = option(
        (),
        "numbers of items that run together; 1 is always measured",
        name="batch",
        metavar="N,...",
        parse=_batches,
    )
    estimated_batch: int | None = option(
        None,
        "also estimate the costs of N items from batches of 1, 2 and 4, which are measured anew "
        "each time, beyond the budget, on made-up inputs, and not kept",
        name="estimate_batch",
        metavar="N",
        parse=count,
    )
    sequential_order: str | None = option(
        None,
        "also run the model over several devices, filled one after the other: for a model that no "
        f"device can hold. ORDER: {', '.join(SEQUENTIAL_ORDERS)}",
        name="sequential",
        metavar="ORDER",
        choices=lambda: SEQUENTIAL_ORDERS,
    )
    predicts_absent: bool = option(
        False,
        "predict the costs on devices that are not here from what is measured and from their "
        "figures (see `heteroplace costs devices`)",
        name="predict",
    )
    has_interference: bool = option(
        False,
        "also measure how the tasks slow each other when several devices work",
        name="interference",
    )
    is_isolated: bool = option(
        False,
        "measure each distinct kernel alone, with warm and with cold caches, not in a run of the "
        "whole network: quicker, shared between models, less exact",
        name="isolated",
    )
    budget_s: float | None = option(
        None,
        "time for measuring, in seconds or as 30s, 10m, 1h: fewer samples of each kernel; "
        "default: as many as needed",
        name="budget",
        metavar="TIME",
        parse=duration,
    )
    remotes: tuple[tuple[str, str, int], ...] = option(
        (),
        "where TVM's RPC server of a host of the cluster is",
        name="rpc",
        metavar="HOST=ADDRESS:PORT",
        parse=_remote,
        join=tuple,
    )


@dataclass(frozen=True)
class GivenInputs:
    """What the command line says of the inputs of a model."""

    shapes: Mapping[str, tuple[int, ...]]
    """Sizes of those that the model leaves open."""
    values: Mapping[str, Any]
    """Values of those that become constants, as lists or numbers."""
    arrays: Mapping[str, Any]
    """Those to measure with; others are made up."""


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `profile`."""
    parser = add_command(
        commands,
        "profile",
        "measure the kernels of a model on each device",
        run,
        description="Measure what each task of a model takes on each device of a cluster. What "
        "the store knows is not measured again. Under mpiexec: on all hosts of the cluster at "
        "once, a rank on each.",
    )
    parser.add_argument("model", metavar="MODEL.onnx", help="the model")
    add_cluster(parser)
    add_output_file(parser, "write the cost table (JSON)")
    help = "write the task graph (JSON), which `heteroplace place` takes with the cost table"
    add_written(parser, "--graph-out", help=help)
    add_store(parser)
    add_input(parser, "to measure with")
    add_arguments(parser, Extras)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files that were asked for, and print a summary.

    Under `mpiexec` each rank measures its host; the first one has the store, writes and prints.

    Raises
    ------
    HeteroPlaceError
        An input is wrong or missing, or an output could not be written: told before any work.
    """
    transport = launched_transport()
    if transport is None:
        _run(arguments, None)
        return
    ranks = transport.launched_ranks()
    with ended_together(ranks):
        _run(arguments, ranks)


def _run(arguments: argparse.Namespace, ranks: Ranks | None) -> None:
    is_first = ranks is None or ranks.rank == 0
    model = Path(arguments.model)
    check_model_file(model)
    extras = from_arguments(Extras, arguments)
    if is_first:
        check_writable(arguments.output, arguments.graph_out)
    cluster = open_cluster(arguments.cluster)
    check_importer(model)
    shapes, values, arrays = inputs_of_model(model, arguments)
    left = {name: array for name, array in arrays.items() if name not in values}
    given = GivenInputs(shapes, values, left)
    profiler, options = importlib.import_module(_PROFILER), importlib.import_module(_OPTIONS)
    remote = importlib.import_module(_REMOTE)
    arguments.quiet |= not is_first
    display = progress_display(arguments)
    costs = importlib.import_module(_COSTS).CostOptions(arguments.store or STORE_ON)
    with costs.open_store() if is_first else nullcontext() as store:
        chosen = options.ProfileOptions(
            is_in_place=not extras.is_isolated,
            modes=("hot", "cold") if extras.is_isolated else ("hot",),
            store=store,
            finishes_each=True,
            budget_s=extras.budget_s,
            progress=StageLog(display=display),
        )
        remotes = [remote.remote_host(*where) for where in extras.remotes]
        try:
            if ranks is None:
                profile = profiler.profile_model(model, cluster, chosen, remotes, extras, given)
            else:
                profile = profiler.profile_over_hosts(model, cluster, chosen, extras, ranks, given)
        except KeyboardInterrupt:
            display.close()
            if store is not None and not costs.store_failures:
                print(f"what was measured is kept in {store.path}", file=sys.stderr)
            raise
        finally:
            display.close()
        if not is_first:
            return
        store_path = None if store is None or costs.store_failures else store.path
    if arguments.graph_out:
        save_graph(profile.graph, arguments.graph_out)
    if arguments.output:
        save_costs(profile.costs, profile.graph, cluster, arguments.output)
    written = written_text(graph=arguments.graph_out, costs=arguments.output)
    show(
        arguments,
        lambda: _to_json(profile, cluster),
        lambda: (
            f"{_task_table(profile, cluster)}\n\n{_summary(profile, cluster, store_path)}{written}"
        ),
    )


def _task_table(profile: Any, cluster: Cluster) -> str:
    """The tasks that take longest on the device that is fastest for them."""
    rows = profile.costs.rows
    names = [device.name for device in cluster.devices]

    def fastest(task: int) -> int:
        return min((cost.ns for cost in rows[task] if cost.ns is not None), default=0)

    largest = sorted(range(len(rows)), key=lambda task: (-fastest(task), task))[:_LARGEST]
    cells = []
    for task in largest:
        times = [
            "-" if cost.ns is None else f"{format_ns(cost.ns)} +-{format_ns(cost.spread_ns)}"
            for cost in rows[task]
        ]
        measured = profile.graph.tasks[task]
        cells.append([measured.name, layer_label([measured]), measured.op[:40], *times])
    sums = [
        format_ns(sum(row[index].ns or 0 for row in rows)) if rows else "-"
        for index in range(len(names))
    ]
    cells.append([f"all {len(rows)}", "", "", *sums])
    heads, align = ["task", "layer", "op", *names], "<<<" + ">" * len(names)
    return format_table(*without_empty_layers(heads, cells, align))


def _interference_text(interference: Any, cluster: Cluster) -> str:
    parts = [
        f"{device.name} {interference.slowdown[:, index].mean():.2f} times as slow"
        for index, device in enumerate(cluster.devices)
    ]
    return (
        f"while other devices work: {', '.join(parts)}; "
        f"core to core {interference.core_to_core_ns} ns; "
        f"fetching what another core wrote costs {interference.fetch_ns_per_byte:.3f} ns/B"
    )


def _summary(model_profile: Any, cluster: Cluster, store: Path | None) -> str:
    lines = []
    for batch, profile in model_profile.profiles.items():
        of_batch = f"batch {batch}: " if len(model_profile.profiles) > 1 else ""
        dropped = f", {profile.num_dropped} disturbed samples" if profile.num_dropped else ""
        lines.append(
            f"{of_batch}{profile.num_kernels} distinct kernels; {profile.num_known} measurements "
            f"known, {profile.num_measured} made in {profile.wall_s:.1f} s (measuring "
            f"{profile.measure_s:.1f} s, waiting for the compiler {profile.compile_s:.1f} s"
            f"{dropped})"
        )
    for name, num_bytes in model_profile.estimated_peak_bytes.items():
        lines.append(f"the estimated batch needs {format_bytes(num_bytes)} of memory on {name}")
    if model_profile.interference is not None:
        lines.append(_interference_text(model_profile.interference, cluster))
    sources = ", ".join(f"{count} {source}" for source, count in model_profile.sources().items())
    lines.append(f"cells: {sources}")
    lines.append(f"machine: {_conditions_text(model_profile.measurements)}")
    lines.append(f"store: {store or 'none, nothing is kept'}")
    return "\n".join(lines)


def _conditions(measurements: Mapping[Any, Any]) -> dict[str, Any]:
    seen = [measurement.conditions for measurement in measurements.values()]
    latencies = sorted(each.hop_ns for each in seen if each.hop_ns is not None)
    others = sorted(each.others_cores for each in seen)
    return {
        "first": min((each.measured_at for each in seen), default=None),
        "last": max((each.measured_at for each in seen), default=None),
        "tvm": sorted({each.tvm for each in seen}),
        "median_core_to_core_ns": latencies[len(latencies) // 2] if latencies else None,
        "median_others_cores": others[len(others) // 2] if others else None,
    }


def _conditions_text(measurements: Mapping[Any, Any]) -> str:
    if not measurements:
        return "nothing was measured, as no device of the cluster is here"
    conditions = _conditions(measurements)
    latency = conditions["median_core_to_core_ns"]
    parts = [
        f"measured {conditions['first']} to {conditions['last']}",
        f"TVM {', '.join(conditions['tvm'])}",
    ]
    parts.append("core to core unknown" if latency is None else f"core to core {latency} ns")
    if conditions["median_others_cores"] is not None:
        parts.append(f"others used {conditions['median_others_cores']:.1f} cores")
    return ", ".join(parts)


def _to_json(model_profile: Any, cluster: Cluster) -> dict[str, object]:
    return {
        "batches": {
            str(batch): {
                "kernels": profile.num_kernels,
                "known": profile.num_known,
                "measured": profile.num_measured,
                "dropped_samples": profile.num_dropped,
                "wall_s": round(profile.wall_s, 3),
                "compile_s": round(profile.compile_s, 3),
                "measure_s": round(profile.measure_s, 3),
            }
            for batch, profile in model_profile.profiles.items()
        },
        "estimated_peak_bytes": dict(model_profile.estimated_peak_bytes),
        "sources": model_profile.sources(),
        "conditions": _conditions(model_profile.measurements),
        "layers": {task.name: list(layers_of(task)) for task in model_profile.graph.tasks},
        "tasks": {
            task.name: {
                device.name: {"ns": cost.ns, "spread_ns": cost.spread_ns}
                for device, cost in zip(cluster.devices, row, strict=True)
            }
            for task, row in zip(model_profile.graph.tasks, model_profile.costs.rows, strict=True)
        },
    }
