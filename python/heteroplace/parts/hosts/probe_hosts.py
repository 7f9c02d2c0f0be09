"""A cluster of several hosts, with a rank on each -> the same with measured links.

Loaded late, as measuring needs TVM.
"""

from __future__ import annotations

from dataclasses import replace

from heteroplace.measure.transfers.link_report import LinkReport, with_measured_links
from heteroplace.measure.transfers.links import LinkProbeOptions, measure_links
from heteroplace.model.cluster import Cluster
from heteroplace.model.hosts import on_host
from heteroplace.parts.hosts.messages import measure_messages
from heteroplace.run.transport import Ranks
from heteroplace.stage_log import Progress


def measure_hosts(
    cluster: Cluster, ranks: Ranks, say: Progress | None, options: LinkProbeOptions
) -> tuple[Cluster, list[LinkReport]]:
    """Return the cluster with links that are measured, and what was measured; all ranks.

    First each host measures its own, one after the other, as hosts may share a machine; then all
    measure the messages between them.

    Raises
    ------
    ClusterError, ExecutionError
        As `measure_links` and `measure_messages`.
    """
    own = LinkReport((), ())
    for turn, host in enumerate(cluster.hosts):
        if turn == ranks.rank:
            own = _in_whole(cluster, host, measure_links(on_host(cluster, host), say, options))
        ranks.gather(None)
    reports = [*ranks.gather(own), measure_messages(cluster, ranks, say, options)]
    for report in reports:
        cluster = with_measured_links(cluster, report)
    return cluster, reports


def _in_whole(cluster: Cluster, host: str, report: LinkReport) -> LinkReport:
    """A report of one host's part of a cluster with the memories of the whole."""
    memories = [memory for memory, at in enumerate(cluster.memory_hosts) if at == host]
    links = tuple(
        replace(link, src=memories[link.src], dst=memories[link.dst]) for link in report.links
    )
    return replace(report, links=links)
