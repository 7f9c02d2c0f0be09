"""`bench kernels`: what each kernel of a network takes, beside what the machine could do at best.

Each distinct kernel is a row: its times in place (`measure/kernels/in_place.py`) on one core and on
all, what they are in operations and bytes per second, and its share of the roofline
(`measure/kernels/kernel_times.py`). The peaks are measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from heteroplace.bench.implementations import OWN, TVM, stock_identities
from heteroplace.bench.models.catalogue import Model, load_model, matching_names, peer_network_names
from heteroplace.bench.peers.stock import in_pass_context
from heteroplace.bench.run.comparison import compile_once
from heteroplace.machine.local import local_cluster
from heteroplace.measure.kernels.kernel_times import FIGURE_TITLES, KernelTimes, kernel_times
from heteroplace.measure.machine_peaks import measure_peaks
from heteroplace.measure.options import ProfileOptions
from heteroplace.measure.profile import profile_network
from heteroplace.model.cluster import Cluster
from heteroplace.progress import prefixed
from heteroplace.report.tables import format_table


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`, or those that are
    held against other runtimes; yield the rows, those that take longest first."""
    cluster = local_cluster(has_gpus=False)
    names = matching_names(only, None if only else peer_network_names())
    if not names:
        return
    peaks = {}
    for device in cluster.devices:
        if len(device.cores) not in peaks:
            found = peaks[len(device.cores)] = measure_peaks(device.target, device.cores)
            say(
                f"{len(device.cores)} cores: {found.flops_per_second / 1e9:.1f} GFLOP/s, "
                f"{found.bytes_per_second / 1e9:.1f} GB/s"
            )
    for name in names:
        by_threads, stock = measure_kernels(load_model(name), cluster, prefixed(say, name))
        for threads, kernels in by_threads.items():
            for each in kernels:
                maker = TVM if each.identity in stock else OWN
                about = {"model": name, "threads": threads, "implementation": maker}
                yield {**about, **each.figures(peaks[threads])}


def measure_kernels(
    model: Model, cluster: Cluster, say: Callable[[str], None] = lambda line: None
) -> tuple[dict[int, list[KernelTimes]], frozenset[str]]:
    """Return by number of cores what each distinct kernel of a network takes there, and which
    identities are those of TVM's own kernels."""
    with in_pass_context():
        compiled = compile_once(model, cluster)
        stock = stock_identities(compiled, cluster)
        calls = compiled.calls(cluster, [0] * len(compiled.graph.tasks))
        found = profile_network(compiled, cluster, ProfileOptions(progress=say))
    return kernel_times(calls, found.measurements), stock


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text; times in microseconds."""
    columns = {"model": "network", "implementation": "by", "threads": "threads", **FIGURE_TITLES}
    cells = [[str(row[key]) for key in columns] for row in rows]
    return format_table(list(columns.values()), cells, "<<" + ">" * 7 + "<<")
