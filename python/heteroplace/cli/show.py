"""`heteroplace show`: any file of heteroplace as its golden text. Needs no TVM."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from heteroplace.argument_checks import did_you_mean
from heteroplace.cli.shared import Parsers, add_command, check_kind, print_json
from heteroplace.command_parser import ASK
from heteroplace.errors import ExecutionError, HeteroPlaceError
from heteroplace.files.cluster_file import cluster_from_json
from heteroplace.files.costs_file import NamedCost, named_costs_from_json
from heteroplace.files.fields.kinds import read_known_file
from heteroplace.files.graph_file import graph_from_json, load_graph
from heteroplace.files.manifest import Manifest
from heteroplace.files.plan_file import plan_from_json
from heteroplace.files.route_profile_file import route_profile_from_json
from heteroplace.files.sharding import load_sharding, told_text
from heteroplace.files.solution_file import load_solution
from heteroplace.machine.local import open_cluster
from heteroplace.model.solution import Solution
from heteroplace.model.text import print_cluster, print_graph, print_plan
from heteroplace.model.units import format_ns
from heteroplace.native.compiled_file import CompiledFile
from heteroplace.registry import load_plugin
from heteroplace.report.headline import solution_headline
from heteroplace.report.layer_precisions import precision_line, precision_table
from heteroplace.report.tables import device_table, format_table, memory_text
from heteroplace.terminal import listed

_USES = {
    "plan": ("graph", "cluster"),
    "costs": ("task", "device"),
    "model": ("program", "trusted-key", "routes"),
}
"""Flags by the kind of file that they are about."""


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `show`."""
    parser = add_command(
        commands,
        "show",
        "print a file as text",
        run,
        description="Print clusters, task graphs and plans in their text form, cost files as "
        "tables, and of a solution or a compiled model its cluster, plan, headline, and the load "
        "and memory of each device.",
        group=ASK,
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="what to print (JSON, or a compiled model)"
    )
    parser.add_argument("--graph", metavar="FILE", help="graph that a plan file is for")
    parser.add_argument("--cluster", metavar="FILE|NAME", help="cluster that a plan file is for")
    parser.add_argument("--task", metavar="NAME", help="only the costs of this task")
    parser.add_argument("--device", metavar="NAME", help="only the costs on this device")
    parser.add_argument(
        "--routes",
        metavar="FILE",
        help="profile or records of route decisions, by which the loads, padding and bytes of a "
        "compiled model with routers are told (default: all branches are alike)",
    )
    parser.add_argument(
        "--program", action="store_true", help="print the program of a compiled model too"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the text of each file by its path, as JSON"
    )
    parser.add_argument(
        "--trusted-key",
        metavar="FILE",
        action="append",
        help="refuse a compiled model that this key (public, Ed25519, PEM) has not signed; may be "
        "repeated",
    )


def run(arguments: argparse.Namespace) -> None:
    """Print every file; several have a line with the path before each."""
    if arguments.json:
        print_json({path: text_of_file(path, arguments) for path in arguments.files})
        return
    for position, path in enumerate(arguments.files):
        text = text_of_file(path, arguments)
        if len(arguments.files) > 1:
            print("\n" * bool(position) + f"==> {path} <==")
        print(text.rstrip("\n"))


def text_of_file(path: str, arguments: argparse.Namespace) -> str:
    """Return what is printed of one file.

    Raises
    ------
    HeteroPlaceError
        The file cannot be read or has faults, it is of a kind that is not known, or an option that
        it needs is missing, or asks for what a file of its kind has not.
    """
    kind, value = read_known_file(path)
    _check_options(path, kind, arguments)
    if kind == "cluster":
        return print_cluster(cluster_from_json(value, path))
    if kind == "graph":
        return print_graph(graph_from_json(value, path).graph)
    if kind == "costs":
        costs = named_costs_from_json(value, path)
        return _costs_text(_chosen(path, costs, arguments.task, arguments.device))
    if kind == "plan":
        graph, cluster = load_graph(arguments.graph).graph, open_cluster(arguments.cluster)
        return print_plan(graph, cluster, plan_from_json(value, graph, cluster, path))
    if kind == "routes":
        table: str = load_plugin("routers", "profile-table")(route_profile_from_json(value, path))
        return table
    if kind == "solution":
        return _solution_text(load_solution(path))
    if kind == "sharding":
        record = load_sharding(path)
        return f"{told_text(record.told)}\n{_solution_text(record.solution)}"
    return _model_text(CompiledFile(path, arguments.trusted_key), arguments)


def _check_options(path: str, kind: str, arguments: argparse.Namespace) -> None:
    check_kind(arguments, path, kind, _USES)
    if kind == "plan" and (arguments.graph is None or arguments.cluster is None):
        raise HeteroPlaceError(
            f"{path}: a plan file can be shown only with --graph and --cluster, which it refers to"
        )


def _chosen(
    path: str, costs: list[NamedCost], task: str | None, device: str | None
) -> list[NamedCost]:
    """The costs of one task or on one device; None: of all."""
    _check_name(path, "task", task, (cell.task for cell in costs))
    _check_name(path, "device", device, (cell.device for cell in costs))
    return [cell for cell in costs if task in (None, cell.task) and device in (None, cell.device)]


def _check_name(path: str, kind: str, name: str | None, existing: Iterable[str]) -> None:
    names = dict.fromkeys(existing)
    if name is not None and name not in names:
        nearest = did_you_mean(name, names) or f"; there are {len(names)}"
        raise HeteroPlaceError(f"{path}: has no costs of {kind} {name!r}{nearest}")


def _costs_text(costs: list[NamedCost]) -> str:
    """A row per cell with where its time comes from, and how many come from where."""
    rows = []
    for cell in costs:
        cost = cell.cost
        rows.append(
            [
                cell.task,
                cell.device,
                str(cell.batch),
                "-" if cost.ns is None else format_ns(cost.ns),
                format_ns(cost.spread_ns) if cost.spread_ns else "-",
                cost.source,
                "-" if cost.error is None else f"{100 * cost.error:.0f} %",
                cost.reason,
            ]
        )
    headers = ["task", "device", "batch", "time", "spread", "source", "error", "reason"]
    counts = Counter(cell.cost.source for cell in costs)
    sources = ", ".join(f"{count} {source}" for source, count in counts.most_common())
    return f"{format_table(headers, rows, '<<>>><><')}\n\ncosts: {sources or 'none'}"


def _solution_text(solution: Solution) -> str:
    choice = solution.precision_choice
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    timeline = solution.timeline
    parts = (
        print_cluster(cluster),
        print_plan(graph, cluster, replace(plan, reasons=())),
        solution_headline(solution),
        "",
        *([_reasons_text(solution), ""] if plan.reasons else []),
        *([precision_line(solution), precision_table(solution), ""] if choice is not None else []),
        device_table(graph, cluster, plan, timeline),
        "",
    )
    return "\n".join(parts)


def _reasons_text(solution: Solution) -> str:
    """A row for each task: why it is where it is."""
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    devices = plan.devices_of_tasks(len(graph.tasks))
    rows = [
        [task.name, listed([cluster.devices[device].name for device in devices[index]], "+"), why]
        for index, (task, why) in enumerate(zip(graph.tasks, plan.reasons, strict=True))
    ]
    return format_table(["task", "device", "why it is there"], rows)


def _model_text(file: CompiledFile, arguments: argparse.Namespace) -> str:
    manifest = file.manifest()
    ports = [
        f"{kind} {name} {dtype} [{','.join(map(str, shape))}]"
        for kind, values in (("input", manifest.inputs), ("output", manifest.outputs))
        for name, shape, dtype in values
    ]
    parts = [
        _solution_text(manifest.solution),
        memory_text(manifest.solution.cluster, manifest.memory),
        *ports,
        *(f"state {name} <- {output}" for name, output in manifest.session_state),
        *_entry_lines(manifest),
        *([] if manifest.lengths is None else [f"takes {manifest.lengths.text}"]),
        f"compiled by TVM {manifest.tvm_version}, "
        + ("with" if file.source() else "without")
        + " its Relay module",
        _signature_text(file, arguments.trusted_key is not None),
    ]
    if manifest.solution.graph.routers:
        text = load_plugin("routers", "plan-text")
        parts.append(text(manifest.solution, arguments.routes, manifest.model_digest))
    elif arguments.routes is not None:
        raise HeteroPlaceError(f"{arguments.files[0]}: --routes, and the model has no routers")
    if manifest.verification is not None:
        parts.append(manifest.verification.text)
    if arguments.program:
        parts += ["", manifest.program_text]
    return "\n".join(parts)


def _entry_lines(manifest: Manifest) -> list[str]:
    """The entries of a file, with the inputs that are no state, and their predicted times."""
    if not manifest.entries:
        return []
    state = {name for name, _ in manifest.session_state}
    every = [(manifest.entry, manifest), *((each.name, each.manifest) for each in manifest.entries)]
    lines = []
    for name, entry in every:
        inputs = [
            f"{port} [{','.join(map(str, shape))}]"
            for port, shape, _ in entry.inputs
            if port not in state
        ]
        time = format_ns(entry.solution.expected_ns)
        lines.append(f"entry {name}: {', '.join(inputs)}; predicted {time}")
    return lines


def _signature_text(file: CompiledFile, is_trusted: bool) -> str:
    """Say who has signed a file; one with a wrong signature is refused."""
    if not file.signer:
        return "signature: none"
    try:
        file.check_signature()
    except ExecutionError as fault:
        return f"signature: by Ed25519 key {file.signer}, not checked: {fault}"
    trust = "trusted" if is_trusted else "is it one you trust? say --trusted-key FILE"
    return f"signature: by Ed25519 key {file.signer}, right ({trust})"
