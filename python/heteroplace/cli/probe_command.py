"""`heteroplace probe`: what is in this machine, as tables and as a cluster file.

Reading what there is needs no TVM; measuring links does, as the executor makes the copies.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from heteroplace.cli.job import ended_together
from heteroplace.cli.shared import (
    Parsers,
    add_command,
    add_output_file,
    check_writable,
    plural,
    print_json,
    progress_of,
)
from heteroplace.command_parser import MACHINE
from heteroplace.costs.measurement import NEAR_CORES_NS
from heteroplace.errors import HeteroPlaceError, MissingPackageError, MissingTVMError
from heteroplace.files.cluster_file import cluster_to_json, save_cluster
from heteroplace.machine.cpu import CpuInfo, parse_list, read_cpus
from heteroplace.machine.fingerprint import cpu_fingerprint, gpu_fingerprint_of
from heteroplace.machine.gpu import GpuInfo, read_gpus
from heteroplace.machine.gpu_parts import split_gpus
from heteroplace.machine.local import open_cluster
from heteroplace.machine.probe import machine_cluster
from heteroplace.measure.transfers.link_report import CopyTimes, LinkReport, with_measured_links
from heteroplace.model.cluster import Cluster
from heteroplace.model.hosts import on_host
from heteroplace.model.units import format_bytes, format_ns
from heteroplace.options import Argument
from heteroplace.report.tables import format_table
from heteroplace.run.transport import HostTransport, Ranks, check_ranks, launched_transport
from heteroplace.tvm_bridge import llvm_cpu_target, require_tvm

_MAX_CORES_TIMED = 16
_MEASURING = "heteroplace.measure.transfers.links"
"""Imports TVM, so it is imported when it is asked for."""


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `probe`."""
    parser = add_command(
        commands,
        "probe",
        "measure the processors and links of this machine",
        run,
        description="Find out what is in this machine, measure its links, and write it as a "
        "cluster file. Under mpiexec: the machines of all ranks as the hosts of one cluster, with "
        "the links between them.",
        group=MACHINE,
    )
    add_output_file(parser, "write the cluster", type=Path)
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument(
        "--cores",
        type=Argument(_cores),
        metavar="LIST",
        help='cores to use, such as "0-3,8"; default: one hardware thread of every core',
    )
    parser.add_argument("--cpu-only", action="store_true", help="leave the GPUs out")
    parser.add_argument(
        "--gpu-parts",
        type=int,
        default=1,
        metavar="N",
        help="make N devices of each GPU, which run at once and share its memory equally",
    )
    parser.add_argument(
        "--cluster",
        metavar="FILE|NAME",
        help="measure the links of this cluster, rather than of all that is found",
    )
    parser.add_argument(
        "--no-links",
        action="store_true",
        help="measure nothing (links are estimates); needs no TVM",
    )
    parser.add_argument("--quick", action="store_true", help="measure fewer and smaller copies")
    parser.add_argument(
        "--json", action="store_true", help="print the cluster as JSON, and the text to stderr"
    )


def run(arguments: argparse.Namespace) -> None:
    """Print what is found and measured, and write the cluster.

    Under `mpiexec` each rank looks at its own machine, and the first one prints and writes.
    """
    _check_options(arguments)
    transport = launched_transport()
    with redirect_stdout(sys.stderr) if arguments.json else nullcontext():
        if transport is None:
            cluster, is_first = _run_alone(arguments), True
        else:
            cluster, is_first = _run_on_ranks(arguments, transport)
    if arguments.json and is_first:
        print_json(cluster_to_json(cluster))


def _run_alone(arguments: argparse.Namespace) -> Cluster:
    measuring = None if arguments.no_links else _measuring()
    given = None if arguments.cluster is None else open_cluster(arguments.cluster)
    cpu, gpus = read_cpus(), _gpus(arguments, given)
    cluster = given or _find(arguments, cpu, gpus, arguments.cores)
    print(_describe(cpu, gpus, cluster))
    print("\n" + _device_table(cluster))
    if measuring is not None:
        cores = _used_cores(cluster)[:_MAX_CORES_TIMED]
        with progress_of(arguments) as log:
            log.say("Timing the caches of cores")
            latencies = measuring.core_latencies(cores)
            report = measuring.measure_links(cluster, log, _link_options(arguments, measuring))
        for one, other, core_to_core_ns in latencies:
            print(describe_core_to_core(one, other, core_to_core_ns))
        cluster = with_measured_links(cluster, report)
        if report.links:
            print("\n" + link_table(cluster, report))
    elif cluster.links:
        print("\n" + _estimate_table(cluster))
    _write(arguments, cluster)
    return cluster


def _gpus(arguments: argparse.Namespace, given: Cluster | None) -> tuple[GpuInfo, ...]:
    """The GPUs of this machine; none are asked for where a given cluster has none."""
    has_none = given is not None and not any(device.kind == "cuda" for device in given.devices)
    return () if arguments.cpu_only or has_none else read_gpus()


def _run_on_ranks(arguments: argparse.Namespace, transport: HostTransport) -> tuple[Cluster, bool]:
    """Return the cluster of all ranks, and whether this rank is the first one."""
    ranks = transport.launched_ranks()
    with ended_together(ranks):
        return _measure_on_ranks(arguments, transport, ranks), ranks.rank == 0


def _measure_on_ranks(
    arguments: argparse.Namespace, transport: HostTransport, ranks: Ranks
) -> Cluster:
    measuring = None if arguments.no_links else _measuring()
    given = None if arguments.cluster is None else open_cluster(arguments.cluster)
    cpu, gpus = read_cpus(), _gpus(arguments, given)
    if given is None:
        cores = arguments.cores or cpu.first_threads
        cluster = transport.join_machines(
            ranks, cores, lambda own: _find(arguments, cpu, gpus, own)
        )
    else:
        cluster = given
    check_ranks(cluster, ranks)
    own = on_host(cluster, cluster.hosts[ranks.rank])
    texts = ranks.gather(_describe(cpu, gpus, own))
    is_first = ranks.rank == 0
    if is_first:
        for host, text in zip(cluster.hosts, texts, strict=True):
            print(f"host {host!r}: {text}")
        print("\n" + _device_table(cluster))
    if measuring is not None:
        options = _link_options(arguments, measuring)
        arguments.quiet |= not is_first
        with progress_of(arguments) as log:
            cluster, reports = transport.measure_hosts(cluster, ranks, log, options)
        if is_first:
            for report in reports:
                if report.links:
                    print("\n" + link_table(cluster, report))
    elif is_first:
        print("\n" + _estimate_table(cluster))
    if is_first:
        _write(arguments, cluster)
    return cluster


def _find(
    arguments: argparse.Namespace,
    cpu: CpuInfo,
    gpus: Sequence[GpuInfo],
    cores: Sequence[int] | None,
) -> Cluster:
    return split_gpus(machine_cluster(cpu, gpus, llvm_cpu_target(), cores), arguments.gpu_parts)


def _link_options(arguments: argparse.Namespace, measuring: Any) -> Any:
    return measuring.QUICK if arguments.quick else measuring.LinkProbeOptions()


def _write(arguments: argparse.Namespace, cluster: Cluster) -> None:
    if arguments.output is not None:
        save_cluster(cluster, arguments.output)
        print(f"\nwritten: {arguments.output}")


def _describe(cpu: CpuInfo, gpus: Sequence[GpuInfo], cluster: Cluster) -> str:
    return "\n".join([describe_cpu(cpu, cluster), *map(describe_gpu, gpus)])


def describe_cpu(cpu: CpuInfo, cluster: Cluster) -> str:
    """Return some lines about processors and memory, and what to know about them."""
    num_cores, num_threads = len(cpu.first_threads), len(cpu.threads)
    limit = " (the container's limit)" if cpu.is_limited else ""
    lines = [
        f"{cpu.model or 'unknown processor'}: {plural(cpu.num_sockets, 'socket')}, "
        f"{plural(num_cores, 'core')}, {plural(num_threads, 'hardware thread')}, "
        f"{plural(len(cpu.nodes), 'NUMA node')}, memory {format_bytes(cpu.memory_bytes)}{limit}",
        f"fingerprint: {cpu_fingerprint([thread.number for thread in cpu.threads])}",
    ]
    if len(cpu.nodes) > 1:
        lines += [
            f"node {node.number}: {format_bytes(node.bytes)}, "
            f"hardware threads {_ranges(node.threads)}"
            for node in cpu.nodes
        ]
    used = _used_cores(cluster)
    idle = [thread.number for thread in cpu.threads if thread.number not in used]
    if idle and num_threads > num_cores:
        lines.append(
            f"note: hardware threads {_ranges(idle)} are left out, since two of one core slow "
            f"each other down; --cores names others"
        )
    lines += [f"note: {warning}" for warning in cpu.warnings()]
    return "\n".join(lines)


def describe_gpu(gpu: GpuInfo) -> str:
    """Return a line about a GPU."""
    nvlink = ""
    if gpu.nvlink_peers:
        peers = ", ".join(f"cuda:{peer}" for peer in gpu.nvlink_peers)
        nvlink = f", {plural(gpu.num_nvlinks, 'NVLink')} to {peers}"
    return (
        f"cuda:{gpu.index}: {gpu.name}, {format_bytes(gpu.memory_bytes)}, PCI Express "
        f"{gpu.pcie_generation} x{gpu.pcie_width}{nvlink}\n"
        f"fingerprint: {gpu_fingerprint_of(gpu)}"
    )


def describe_core_to_core(one: int, other: int, core_to_core_ns: int) -> str:
    """Return a line about how near two cores are at the moment."""
    verdict = (
        "near neighbours"
        if core_to_core_ns < NEAR_CORES_NS
        else "not near: on a shared machine this may pass; plans of many small copies are slower"
    )
    return f"cores {one} and {other}: {core_to_core_ns} ns for a cache line, {verdict}"


def link_table(cluster: Cluster, report: LinkReport) -> str:
    """Return the measured links: a row each, and one for ordinary host memory where it differs."""
    headers = ["link", "latency", "GB/s", "copy alone", "fit", "both ways", "channel"]
    links = {(link.src, link.dst): link for link in cluster.links}
    rows = []
    for index, measured in enumerate(report.links):
        link = links[measured.src, measured.dst]
        duplex = report.duplex_ratio(index)
        # A message between hosts is timed from end to end alone.
        src, dst = (cluster.memory_hosts[end] for end in (measured.src, measured.dst))
        rows.append(
            [
                link.name,
                *_line(measured.handed),
                format_ns(measured.alone.latency_ns) if src == dst else "",
                f"±{100 * measured.handed.error_ratio:.0f} %",
                "" if duplex is None else f"{100 * duplex:.0f} %",
                "own" if link.channel == link.name else link.channel,
            ]
        )
        if measured.pageable is not None:
            name = f"{link.name} (ordinary host memory)"
            error = f"±{100 * measured.pageable.error_ratio:.0f} %"
            rows.append([name, *_line(measured.pageable), "", error, "", ""])
    legend = (
        "latency: from producer to consumer, with the workers' wake-ups; copy alone: the latency "
        "without them;\nfit: error of the line through the samples, which the file has all; both "
        "ways: speed of both directions at once,\nof the sum of their speeds alone"
    )
    return format_table(headers, rows, "<>>>>><") + "\n" + legend


def _estimate_table(cluster: Cluster) -> str:
    rows = [
        [link.name, format_ns(link.latency_ns), _gigabytes(link.bytes_per_second)]
        for link in cluster.links
    ]
    table = format_table(["link", "latency", "GB/s"], rows, "<>>")
    return f"{table}\nnothing is measured: this is what slots can carry at best, or what was given"


def _device_table(cluster: Cluster) -> str:
    rows = []
    for device in cluster.devices:
        memory = cluster.memories[device.memory]
        place = (
            f"cores {_ranges(device.cores)}" if device.cores else f"{device.kind}:{device.index}"
        )
        rows.append([device.name, place, memory.name, format_bytes(memory.bytes), device.target])
    return format_table(["device", "where", "memory", "size", "target"], rows, "<<<><")


def _line(times: CopyTimes) -> list[str]:
    return [format_ns(times.latency_ns), _gigabytes(times.bytes_per_second)]


def _gigabytes(bytes_per_second: int) -> str:
    """A speed in GB/s; networks have few.

    >>> _gigabytes(12_340_000_000), _gigabytes(12_500_000)
    ('12.3', '0.0125')
    """
    digits = ".1f" if bytes_per_second >= 10**9 else ".3g"
    return f"{bytes_per_second / 1e9:{digits}}"


def _check_options(arguments: argparse.Namespace) -> None:
    chooses = arguments.cores is not None or arguments.cpu_only or arguments.gpu_parts != 1
    if arguments.cluster is not None and chooses:
        raise HeteroPlaceError(
            "--cluster says which cores and GPUs there are; leave out --cores, --cpu-only and "
            "--gpu-parts"
        )
    path = arguments.output
    check_writable(path)
    if path is not None and path.exists() and not arguments.force:
        raise HeteroPlaceError(f"{path} exists already; give another name, or --force")


def _measuring() -> Any:
    """Return the module that measures links.

    Raises
    ------
    MissingPackageError
        There is no TVM.
    """
    try:
        require_tvm()
    except MissingTVMError as err:
        raise MissingPackageError(
            f"links are measured by the executor, which needs TVM: {err}. Or give --no-links"
        ) from err
    return importlib.import_module(_MEASURING)


def _cores(text: str) -> tuple[int, ...]:
    try:
        return tuple(parse_list(text))
    except ValueError:
        raise ValueError(f"{text!r} is no list of cores such as '0-3,8'") from None


def _used_cores(cluster: Cluster) -> list[int]:
    """Cores of the devices on this machine, each once, ascending."""
    return sorted({core for device in cluster.devices if not device.host for core in device.cores})


def _ranges(numbers: tuple[int, ...] | list[int]) -> str:
    """Return numbers as the kernel writes them.

    >>> _ranges([0, 1, 2, 8])
    '0-2,8'
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
