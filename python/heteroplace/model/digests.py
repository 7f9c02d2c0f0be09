"""What a plan or a table was made for -> whether that is the graph and the cluster at hand."""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph


def digest_mismatches(
    graph: TaskGraph, cluster: Cluster, graph_digest: str, cluster_digest: str
) -> list[str]:
    """Return what differs, each to go on from "X was " in a message; [] if both digests agree."""
    pairs = (
        ("graph", graph.name, graph_digest, graph.digest()),
        ("cluster", cluster.name, cluster_digest, cluster.digest()),
    )
    return [
        f"made for a {kind} with digest {expected}, but {kind} {name!r} has {got}"
        for kind, name, expected, got in pairs
        if expected != got
    ]
