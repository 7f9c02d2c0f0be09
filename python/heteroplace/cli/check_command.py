"""`heteroplace check` and `heteroplace clusters`: look at files without solving anything."""

from __future__ import annotations

import argparse

from heteroplace.cli.graph_problem import read_costs
from heteroplace.cli.shared import Parsers, add_command, add_json, check_kind, show
from heteroplace.command_parser import MACHINE
from heteroplace.errors import HeteroPlaceError
from heteroplace.files.cluster_file import (
    cluster_from_json,
    cluster_to_json,
    load_cluster,
    ready_made_clusters,
)
from heteroplace.files.costs_file import table_from_json
from heteroplace.files.fields.kinds import read_known_file
from heteroplace.files.graph_file import graph_from_json, load_graph
from heteroplace.files.plan_file import plan_from_json
from heteroplace.files.route_profile_file import route_profile_from_json
from heteroplace.files.sharding import load_sharding
from heteroplace.files.solution_file import load_solution
from heteroplace.machine.local import open_cluster
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost_lookup import check_known, find_costs
from heteroplace.model.graph import TaskGraph
from heteroplace.model.units import format_bytes
from heteroplace.model.warnings import plan_warnings
from heteroplace.native.compiled_file import CompiledFile
from heteroplace.registry import load_plugin
from heteroplace.report.tables import format_table

_USES = {"costs": ("graph", "cluster"), "plan": ("graph", "cluster", "costs")}
"""Flags by the kind of file that is checked against other files."""


def add_commands(commands: Parsers) -> None:
    """Add the subcommands `check` and `clusters`."""
    parser = add_command(
        commands,
        "check",
        "check a file and name its faults",
        run_check,
        description="Check a cluster, graph, cost or plan file or a compiled model and name its "
        "faults.",
    )
    parser.add_argument("file", metavar="FILE", help="what to check (JSON, or a compiled model)")
    parser.add_argument("--graph", metavar="FILE", help="graph that a cost or plan file is for")
    parser.add_argument("--cluster", metavar="FILE|NAME", help="cluster that it is for")
    parser.add_argument("--costs", metavar="FILE", help="costs for a plan, as in `place`")
    add_json(parser)
    parser = add_command(
        commands,
        "clusters",
        "list the ready-made clusters",
        run_clusters,
        group=MACHINE,
    )
    add_json(parser)


def run_check(arguments: argparse.Namespace) -> None:
    """Print one line about a good file, and one for each warning about a plan in it; the faults of
    a bad one are raised."""
    path = arguments.file
    kind, value = read_known_file(path)
    check_kind(arguments, path, kind, _USES)
    text, warnings = _checked(kind, value, arguments)
    show(
        arguments,
        lambda: {"file": path, "kind": kind, "text": text, "faults": [], "warnings": warnings},
        lambda: "\n".join(
            (f"{path}: {text}: no faults", *(f"{path}: warning: {one}" for one in warnings))
        ),
    )


def _checked(kind: str, value: object, arguments: argparse.Namespace) -> tuple[str, list[str]]:
    """What a file without faults holds, and the warnings about it."""
    path = arguments.file
    if kind == "cluster":
        return _describe_cluster(cluster_from_json(value, path)), []
    if kind == "graph":
        return _describe_graph(graph_from_json(value, path).graph), []
    if kind == "routes":
        return load_plugin("routers", "profile-line")(route_profile_from_json(value, path)), []
    if kind in ("solution", "sharding", "model"):
        return _check_solution(kind, path)
    if arguments.graph is None or arguments.cluster is None:
        raise HeteroPlaceError(
            f"{path}: a {kind} file can be checked only with --graph and --cluster"
        )
    return _check_for_graph(kind, value, arguments)


def run_clusters(arguments: argparse.Namespace) -> None:
    """Print the ready-made clusters; `place --cluster` takes their names."""
    clusters = {name: load_cluster(name) for name in ready_made_clusters()}
    rows = []
    for name, cluster in clusters.items():
        devices = ", ".join(device.name for device in cluster.devices)
        memory = format_bytes(sum(memory.bytes for memory in cluster.memories))
        use = "run" if cluster.host is not None else "plan only"
        rows.append([name, devices, memory, str(len(cluster.links)), use])
    show(
        arguments,
        lambda: {name: cluster_to_json(cluster) for name, cluster in clusters.items()},
        lambda: format_table(["cluster", "devices", "memory", "links", "use"], rows, "<<>><"),
    )


def _check_for_graph(
    kind: str, value: object, arguments: argparse.Namespace
) -> tuple[str, list[str]]:
    """What the file holds, and the warnings about it."""
    read, cluster = load_graph(arguments.graph), open_cluster(arguments.cluster)
    if kind == "costs":
        table = table_from_json(value, read.graph, cluster, arguments.file)
        costs = find_costs(table, read.graph, cluster)
        check_known(costs, read.graph, cluster, table, "Profile again, or take another file")
        return f"costs of graph {read.graph.name!r} on cluster {cluster.name!r}", []
    plan = plan_from_json(value, read.graph, cluster, arguments.file)
    check_plan(read.graph, cluster, read_costs(arguments.costs, read, cluster), plan)
    text = f"plan of {len(plan.steps)} steps for graph {read.graph.name!r}, by {plan.origin}"
    return text, plan_warnings(read.graph, cluster, plan)


def _check_solution(kind: str, path: str) -> tuple[str, list[str]]:
    """What the file holds, and the warnings about it."""
    if kind == "solution":
        solution = load_solution(path)
    elif kind == "sharding":
        solution = load_sharding(path).solution
    else:
        file = CompiledFile(path)
        file.check()
        file.check_signature()
        solution = file.manifest().solution
    check_plan(solution.graph, solution.cluster, solution.costs, solution.plan)
    described = _describe_graph(solution.graph), _describe_cluster(solution.cluster)
    warnings = plan_warnings(solution.graph, solution.cluster, solution.plan)
    return f"{kind} of {described[0]} on {described[1]}", warnings


def _describe_cluster(cluster: Cluster) -> str:
    hosts = "" if cluster.hosts == ("",) else f" on hosts {', '.join(map(repr, cluster.hosts))}"
    return (
        f"cluster {cluster.name!r} of {len(cluster.devices)} devices, {len(cluster.memories)} "
        f"memories and {len(cluster.links)} links{hosts}"
    )


def _describe_graph(graph: TaskGraph) -> str:
    return f"graph {graph.name!r} of {len(graph.tasks)} tasks and {len(graph.tensors)} tensors"
