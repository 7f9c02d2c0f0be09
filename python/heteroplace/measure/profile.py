"""Measure what each task costs on each device: a cost table from kernels that were run.

What is costed is what is run: the kernels are those of the one-device plan, and a plan on one
target uses exactly these. A task's cost is the sum of its kernels, measured in a run of the whole
network (`in_place.py`) or alone (`alone.py`), which is quicker, enough for a first plan, shared
between networks, and the only way where a device is too small or on another machine.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm

from heteroplace.codegen.compile import lower_network
from heteroplace.codegen.targets import placed_targets
from heteroplace.costs.measurement import KernelKey, Measurement
from heteroplace.measure.devices_under_test import find_subjects, likeness
from heteroplace.measure.kernel_calls import with_row_workspaces
from heteroplace.measure.options import ProfileOptions, Progress
from heteroplace.measure.profiler import Profiler
from heteroplace.measure.remote import RemoteHost, measure_remotely
from heteroplace.measure.requests import Wanted, want
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table, table_from_rows
from heteroplace.model.graph import TaskGraph


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


def profile_network(
    mod: tvm.IRModule,
    graph: TaskGraph,
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
    mod
        Neutral module whose spans name the tasks of `graph`; its inputs hold `options.batch` items.
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
    begin = time.perf_counter()
    near, far = _wanted(mod, graph, cluster, options, remotes)
    everything = [*near, *(each for _, each in far)]
    keys = [key for each in everything for key in each.keys.values()]
    known = {} if options.store is None else options.store.find_many(keys)
    _announce(graph, cluster, [each for each in everything if each.missing(known)], options)
    profiler = Profiler(mod, graph, cluster, options)
    profiler.expect(sum(len(each.missing(known)) for _, each in far))
    profiler.run(near, known)
    for host, each in far:
        measure_remotely(host, each, known, profiler)
    profiler.tell("")
    known = {**known, **profiler.measured}
    times = {
        likeness(cluster, each.subject.device): each.costs(graph, known) for each in everything
    }

    def cost(task: int, index: int) -> Cost:
        of_device = times.get(likeness(cluster, index))
        return Cost.unknown() if of_device is None else of_device[task]

    kernels = {facts.identity for each in everything for facts in each.facts.values()}
    return Profile(
        build_table(graph, cluster, cost),
        known,
        len(kernels),
        len(known) - len(profiler.measured),
        len(profiler.measured),
        profiler.num_dropped,
        time.perf_counter() - begin,
        profiler.compile_s,
        profiler.measure_s,
    )


def _wanted(
    mod: tvm.IRModule,
    graph: TaskGraph,
    cluster: Cluster,
    options: ProfileOptions,
    remotes: Sequence[RemoteHost],
) -> tuple[list[Wanted], list[tuple[RemoteHost, Wanted]]]:
    """What is to be known of the devices in this machine, and of those on others."""
    hosts = {remote.host: remote for remote in remotes}
    near: list[Wanted] = []
    far: list[tuple[RemoteHost, Wanted]] = []
    for subject in find_subjects(graph, cluster, hosts, options.skips_absent):
        host = hosts.get(cluster.devices[subject.device].host or "")
        if host is None:
            near.append(want(mod, graph, cluster, subject, options))
        else:
            alone = replace(options, is_in_place=False)
            found = host.fingerprint(cluster.devices[subject.device])
            far.append((host, want(mod, graph, cluster, subject, alone, found)))
    return near, far


def measure_costs(
    mod: tvm.IRModule,
    graph: TaskGraph,
    cluster: Cluster,
    progress: Progress | None = None,
    is_in_place: bool = True,
    options: ProfileOptions = ProfileOptions(),  # noqa: B008  (it is frozen)
) -> CostTable:
    """Return only the costs of `profile_network`; parameters and errors as there."""
    chosen = replace(options, progress=progress, is_in_place=is_in_place)
    return profile_network(mod, graph, cluster, chosen).costs


def with_workspaces(
    mod: tvm.IRModule,
    graph: TaskGraph,
    cluster: Cluster,
    remote_hosts: Collection[str] = (),
    skips_absent: bool = False,
) -> TaskGraph:
    """Return `graph` with the scratch memory that the kernels of each task use.

    The largest of all devices that can be measured; parameters and errors as `measure_costs`. The
    kernels are lowered for it, not compiled, and found again by the measuring that follows.
    """
    for subject in find_subjects(graph, cluster, remote_hosts, skips_absent):
        rows = lower_network(mod, *placed_targets(graph, cluster, subject.placement))
        graph = with_row_workspaces(graph, rows)
    return graph


def _announce(
    graph: TaskGraph, cluster: Cluster, to_measure: Sequence[Wanted], options: ProfileOptions
) -> None:
    if options.progress is not None and to_measure:
        names = ", ".join(cluster.devices[each.subject.device].name for each in to_measure)
        options.progress(f"measuring {len(graph.tasks)} tasks on {names}")


def join_batches(
    graph: TaskGraph, cluster: Cluster, profiles: Mapping[int, CostTable]
) -> CostTable:
    """Return one table of the tables of several batch sizes, 1 among them."""
    larger = {batch: profiles[batch].rows for batch in sorted(profiles) if batch != 1}
    return table_from_rows(graph.digest(), cluster, profiles[1].rows, larger)
