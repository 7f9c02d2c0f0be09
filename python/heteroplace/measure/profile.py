"""Measure what each task costs on each device: a cost table from kernels that were run.

What is costed is what is run: the kernels are those of the one-device plan, and a plan on one
target uses exactly these. A task's cost is the sum of its kernels, measured in a run of the whole
network (`kernels/in_place_times.py`) or alone (`isolated.py`), which is quicker, enough for a first
plan, shared between networks, and the only way where a device is too small or on another machine.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from heteroplace.costs.measurement import Measurement
from heteroplace.files.measurements import KernelKey
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.machine.usage import QUIET_CORES
from heteroplace.measure.devices_under_test import device_class, find_devices_under_test
from heteroplace.measure.kernels.kernel_calls import with_kernel_workspaces
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.profiler import Profiler
from heteroplace.measure.remote_host import RemoteHost
from heteroplace.measure.requests import MeasurementRequest, request_measurements
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table, table_from_rows
from heteroplace.model.graph import TaskGraph
from heteroplace.stage_log import Count, StageLog


@dataclass(frozen=True)
class Profile:
    """The result of a profiling."""

    costs: CostTable
    """For one batch size."""
    measurements: dict[KernelKey, Measurement]
    """All that the costs are made of, and whatever else was measured."""
    num_kernels: int
    """Distinct kernels of the network, over all targets."""
    num_known: int
    """Measurements that the store had."""
    num_measured: int
    """Measurements that were made."""
    num_dropped: int
    """Samples that did not count, since another program had the core."""
    wall_s: float
    """Of everything: lowering, compiling, measuring."""
    compile_s: float
    """Time for which measuring waited for the compiler."""
    measure_s: float
    """Time of the measuring."""

    @property
    def others_cores(self) -> float:
        """How many cores other programs used during a measurement, at most."""
        usages = (each.conditions.others_cores for each in self.measurements.values())
        return max(usages, default=0.0)


def profile_network(
    compiled: CompiledNetwork,
    cluster: Cluster,
    options: ProfileOptions = ProfileOptions(),  # noqa: B008  (it is frozen)
    remotes: Sequence[RemoteHost] = (),
) -> Profile:
    """Measure every kernel of a network on every kind of device that may run it.

    Devices with the same target and the same number of cores are alike: one of them is measured.
    Tasks that may not run on the device that is being measured run elsewhere meanwhile. What
    `options.store` knows is not measured again, and where it knows all, nothing is compiled.

    Parameters
    ----------
    compiled
        The network; its inputs hold `options.batch` items.
    remotes
        Other machines, for the devices whose `host` they are; kernels run alone there.

    Raises
    ------
    MissingCostError
        A device that some task may run on is neither in this machine nor on one of `remotes`, and
        `options` do not say to leave it out.
    LoweringError
        An op cannot be compiled for some target.
    ExecutionError
        A kernel failed, or a remote machine does not answer.
    CostStoreError
        A measurement cannot be kept.
    """
    begin, graph = time.perf_counter(), compiled.graph
    near, far = _requests(compiled, cluster, options, remotes)
    everything = [*near, *(each for _, each in far)]
    keys = [key for each in everything for key in each.keys.values()]
    stored = {} if options.store is None else options.store.find_many(keys)
    _warn_of_busy(stored, options)
    profiler = Profiler(compiled, cluster, options)
    profiler.expect(sum(len(each.missing(stored)) for _, each in far))
    profiler.run(near, stored)
    for host, each in far:
        host.measure(each, stored, profiler)
    stored = {**stored, **profiler.measured}
    times = {
        device_class(cluster, each.under_test.device): each.costs(graph, stored)
        for each in everything
    }

    def cost(task: int, index: int) -> Cost:
        of_device = times.get(device_class(cluster, index))
        return Cost.unknown() if of_device is None else of_device[task]

    kernels = {kernel.identity for each in everything for kernel in each.kernels.values()}
    return Profile(
        build_table(graph, cluster, cost),
        stored,
        len(kernels),
        len(stored) - len(profiler.measured),
        len(profiler.measured),
        profiler.num_dropped,
        time.perf_counter() - begin,
        profiler.compile_s,
        profiler.measure_s,
    )


def _requests(
    compiled: CompiledNetwork,
    cluster: Cluster,
    options: ProfileOptions,
    remotes: Sequence[RemoteHost],
) -> tuple[list[MeasurementRequest], list[tuple[RemoteHost, MeasurementRequest]]]:
    """What is to be known of the devices in this machine, and of those on others."""
    hosts = {remote.host: remote for remote in remotes}
    near: list[MeasurementRequest] = []
    far: list[tuple[RemoteHost, MeasurementRequest]] = []
    for under_test in find_devices_under_test(compiled.graph, cluster, hosts, options.skips_absent):
        host = hosts.get(cluster.devices[under_test.device].host or "")
        if host is None:
            near.append(request_measurements(compiled, cluster, under_test, options))
        else:
            isolated = replace(options, is_in_place=False)
            fingerprint = host.fingerprint(cluster.devices[under_test.device])
            far.append(
                (host, request_measurements(compiled, cluster, under_test, isolated, fingerprint))
            )
    return near, far


def with_workspaces(
    compiled: CompiledNetwork,
    cluster: Cluster,
    remote_hosts: Collection[str] = (),
    skips_absent: bool = False,
    with_inner_values: bool = False,
    on_kernel: Count | None = None,
) -> CompiledNetwork:
    """Return the network with the scratch memory that the kernels of each task use.

    The largest of all devices that can be measured; errors as of `profile_network`. The kernels are
    lowered and compiled for it, and found again by the measuring that follows.
    `with_inner_values`: values that only the kernels of one task read are scratch memory of it.
    `on_kernel` counts the kernels.
    """
    devices = find_devices_under_test(compiled.graph, cluster, remote_hosts, skips_absent)
    for index, under_test in enumerate(devices):
        count = None if on_kernel is None else _count_part(on_kernel, index, len(devices))
        calls = compiled.calls(cluster, under_test.placement, count, compiles=True)
        graph = with_kernel_workspaces(compiled.graph, calls, with_inner_values)
        compiled = compiled.with_graph(graph)
    return compiled


def _count_part(count: Count, index: int, num_parts: int) -> Count:
    """Return what counts in one of several parts of equal size."""
    return lambda done, total: count(index * total + done, num_parts * total)


def _warn_of_busy(stored: Mapping[KernelKey, Measurement], options: ProfileOptions) -> None:
    busy = [each.conditions.others_cores for each in stored.values()]
    if max(busy, default=0.0) > QUIET_CORES:
        StageLog.of(options.progress).detail(
            f"known costs, some measured while other programs used {max(busy):.1f} cores (to "
            f"measure them anew: heteroplace costs forget, or the option store=off)"
        )


def join_batches(
    graph: TaskGraph, cluster: Cluster, profiles: Mapping[int, CostTable]
) -> CostTable:
    """Return one table of the tables of several batch sizes, 1 among them."""
    larger = {batch: profiles[batch].rows for batch in sorted(profiles) if batch != 1}
    return table_from_rows(graph, cluster, profiles[1].rows, larger)
