"""The options of `place --graph` -> graph, cluster and costs."""

from __future__ import annotations

import argparse

from heteroplace.costs.complete import complete_costs
from heteroplace.errors import HeteroPlaceError, MissingCostError
from heteroplace.files.costs_file import load_costs, load_table
from heteroplace.files.fields.given_times import costs_from_times
from heteroplace.files.graph_file import GraphFile, load_graph
from heteroplace.files.published.published_graph import load_published
from heteroplace.files.published.published_instance import PublishedInstance
from heteroplace.machine.local import open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.cost_lookup import check_known
from heteroplace.model.demands import with_max_memory
from heteroplace.place_options import PlaceOptions, demanded_graph
from heteroplace.solve import Problem
from heteroplace.solve.objective import THROUGHPUT

_ADVICE = (
    "Give costs that know it, leave those devices out (--exclude), or have `heteroplace profile "
    "--predict` make the costs for this cluster"
)


def read_problem(arguments: argparse.Namespace, place: PlaceOptions) -> Problem:
    """Return graph, cluster and costs of the files, as far as the options let them be used.

    Raises
    ------
    HeteroPlaceError
        There is no cluster, or one too many; or a file has faults.
    """
    is_steady = arguments.objective == THROUGHPUT
    published = load_published(arguments.graph, is_steady=is_steady)
    if published is not None:
        return _published_problem(arguments, place, published)
    if arguments.cluster is None:
        load_graph(arguments.graph)  # what is wrong with the graph is said first
        arguments.fail(
            f"--cluster is missing: {arguments.graph} has tasks and no devices; give a cluster "
            f"file (JSON), the name of a ready-made cluster, or local"
        )
    whole, read = open_cluster(arguments.cluster), load_graph(arguments.graph)
    cluster = with_max_memory(whole, place.max_memory)
    graph = demanded_graph(read.graph, cluster, place)
    # A cost is that of a task on a device, whatever else it may run on and how much memory it has.
    if place.missing == "refuse":
        costs = read_costs(arguments.costs, read, whole)
        check_known(costs, graph, cluster, costs, _ADVICE)
        return Problem(graph, cluster, costs)
    if arguments.costs is None:
        table = costs_from_times(read.graph, whole, read.times or {}, may_lack=True)
    else:
        table = load_table(arguments.costs, read.graph, whole)
    return Problem(graph, cluster, complete_costs(table, graph, cluster, place.missing, _ADVICE))


def _published_problem(
    arguments: argparse.Namespace, place: PlaceOptions, published: PublishedInstance
) -> Problem:
    """What a published file holds, which is all three."""
    given = [flag for flag in ("cluster", "costs") if getattr(arguments, flag) is not None]
    if given:
        flags = " and ".join(f"--{flag}" for flag in given)
        raise HeteroPlaceError(
            f"{flags}: {arguments.graph} has devices, links and times of its own, and its sizes "
            f"mean nothing on others; leave {flags} out"
        )
    cluster = with_max_memory(published.cluster, place.max_memory)
    graph = demanded_graph(published.graph, cluster, place)
    return Problem(graph, cluster, published.costs)


def read_costs(path: str | None, read: GraphFile, cluster: Cluster) -> CostTable:
    """Return the cost table in `path`, or else the one of the times in the graph file.

    Raises
    ------
    MissingCostError
        There is neither.
    """
    if path is not None:
        return load_costs(path, read.graph, cluster)
    if read.times is None:
        raise MissingCostError(
            f"the file of graph {read.graph.name!r} gives no times; add times_ns to its tasks, or "
            f"give a cost table with --costs"
        )
    return costs_from_times(read.graph, cluster, read.times)
