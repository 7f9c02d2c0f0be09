"""`bench kernels`: what each kernel of a network takes, beside what the machine could do at best.

Each distinct kernel is a row: its times in place (`measure/in_place.py`) on one core and on all,
what they are in operations and bytes per second, and its share of the roofline: the least time
that its operations at peak speed, or its arguments at the memory's bandwidth, would take, over its
time. The peaks are measured here. A share above 1 says that its arguments were in a cache.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from heteroplace.bench.implementations import OWN, TVM, stock_identities
from heteroplace.bench.machine_peaks import Peaks, measure_peaks
from heteroplace.bench.models.catalogue import Model, load_model, model_names, peer_network_names
from heteroplace.bench.peers.stock import in_pass_context, silence_tuning_hint
from heteroplace.bench.run.comparison import compile_once
from heteroplace.machine.local import local_cluster
from heteroplace.measure.kernel_identity import describe_kernels
from heteroplace.measure.options import ProfileOptions
from heteroplace.measure.profile import profile_network
from heteroplace.model.cluster import Cluster
from heteroplace.progress import prefixed
from heteroplace.report.tables import format_table
from heteroplace.stats import median


@dataclass(frozen=True)
class KernelTimes:
    """Of a distinct kernel on so many cores."""

    op: str
    shapes: str
    tasks: tuple[str, ...]
    """In which it runs, once for each call."""
    flops: int
    """Of a call; 0: it only moves data, or they are not known."""
    bytes: int
    """Of a call's arguments, each once."""
    ns: tuple[int, ...]
    """Of each call."""
    implementation: str

    def row(self, model: str, threads: int, peaks: Peaks) -> dict[str, object]:
        """Return the figures; `us` is the median of the calls, `total_us` their sum."""
        each_ns = max(1.0, median(self.ns))
        return {
            "model": model,
            "threads": threads,
            "op": self.op,
            "shapes": self.shapes,
            "task": self.tasks[0],
            "calls": len(self.ns),
            "us": round(each_ns / 1e3, 2),
            "total_us": round(sum(self.ns) / 1e3, 2),
            "gflops": round(self.flops / each_ns, 2),
            "gbytes_per_s": round(self.bytes / each_ns, 2),
            "roofline": round(peaks.bound_ns(self.flops, self.bytes) / each_ns, 3),
            "implementation": self.implementation,
        }


def run(only: str, say: Callable[[str], None]) -> list[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`, or those that are
    held against other runtimes; return the rows, those that take longest first."""
    silence_tuning_hint()
    cluster = local_cluster(has_gpus=False)
    names = list(filter(re.compile(only).search, model_names() if only else peer_network_names()))
    if not names:
        return []
    peaks = {}
    for device in cluster.devices:
        if len(device.cores) not in peaks:
            found = peaks[len(device.cores)] = measure_peaks(device.target, device.cores)
            say(
                f"{len(device.cores)} cores: {found.flops_per_second / 1e9:.1f} GFLOP/s, "
                f"{found.bytes_per_second / 1e9:.1f} GB/s"
            )
    rows = []
    for name in names:
        for threads, kernels in measure_kernels(load_model(name), cluster, prefixed(say, name)):
            longest = sorted(kernels, key=lambda each: -sum(each.ns))
            rows += [each.row(name, threads, peaks[threads]) for each in longest]
    return rows


def measure_kernels(
    model: Model, cluster: Cluster, say: Callable[[str], None] = lambda line: None
) -> list[tuple[int, list[KernelTimes]]]:
    """Return by number of cores what each distinct kernel of a network takes there."""
    with in_pass_context():
        compiled = compile_once(model, cluster)
        stock = stock_identities(compiled, cluster)
        calls = compiled.calls(cluster, [0] * len(compiled.graph.tasks))
        kernels = {each.identity: each for each in describe_kernels(calls).values()}
        found = profile_network(compiled, cluster, ProfileOptions(progress=say))
    sites: dict[int, dict[str, list[tuple[str, int]]]] = defaultdict(lambda: defaultdict(list))
    for key, measurement in sorted(found.measurements.items()):
        task = calls.calls[key.site].task
        sites[key.threads][key.kernel].append((task, measurement.wall_ns))
    result = []
    for threads in sorted(sites):
        times = []
        for identity, measured in sites[threads].items():
            kernel = kernels[identity]
            implementation = TVM if identity in stock else OWN
            tasks, ns = zip(*measured, strict=True)
            times.append(
                KernelTimes(
                    kernel.op, kernel.shapes, tasks, kernel.flops, kernel.bytes, ns, implementation
                )
            )
        result.append((threads, times))
    return result


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text; times in microseconds."""
    columns = {
        "threads": "threads",
        "calls": "calls",
        "us": "each us",
        "total_us": "all us",
        "gflops": "GFLOP/s",
        "gbytes_per_s": "GB/s",
        "roofline": "roofline",
        "implementation": "by",
        "op": "op",
        "shapes": "shapes",
    }
    cells = [[str(row["model"]), *(str(row[key]) for key in columns)] for row in rows]
    return format_table(["network", *columns.values()], cells, "<" + ">" * 7 + "<<<")
