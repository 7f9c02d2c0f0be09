"""A network, a cluster and some time -> kernels that are faster than ours, in the store.

outlook    the network in place: what each kernel takes, and what is left to gain
search     schedules alone, where most is left
judge      the best of each in place, beside ours: what is faster is kept
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from heteroplace.costs.store import CostStore
from heteroplace.costs.tunings import TunedPlace, Tuning, find_tunings
from heteroplace.errors import InfeasibleError, MissingCostError, SolverError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.machine.fingerprint import device_fingerprint
from heteroplace.measure.kernel_variants import has_one_implementation
from heteroplace.measure.kernels.kernel_times import kernel_times, peaks_seen
from heteroplace.measure.machine_peaks import measure_peaks
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.profile import profile_network, with_workspaces
from heteroplace.model.cluster import Cluster
from heteroplace.model.hosts import with_devices
from heteroplace.parts.kernels.tuned.in_model_judge import Judged, judge, widest
from heteroplace.parts.kernels.tuned.schedule_search import (
    Searched,
    TuneStep,
    search,
    searched_kernels,
)
from heteroplace.parts.kernels.tuned.trials import TrialBench
from heteroplace.parts.kernels.tuned.tuning_report import Outlook, TunedKernel, TuneReport
from heteroplace.relay.tasks.network import Network
from heteroplace.run.missing_devices import missing_devices
from heteroplace.stage_log import StageLog

_PROMISING_RATIO = 1.05
"""Alone: in place neighbours leave other caches behind."""


@dataclass(frozen=True)
class TuneOptions:
    """How a network is tuned."""

    store: CostStore
    budget_s: float = 600.0
    """Time of the search; the network is measured before and after it."""
    on_outlook: Callable[[Outlook], None] | None = None
    """Called before the search, with what is left to gain."""
    on_step: Callable[[TuneStep], None] | None = None
    """Called before each round of trials."""
    progress: Callable[[str], None] | None = None
    """Called with a line of text whenever something long begins."""

    def say(self, line: str) -> None:
        """Pass a line on to `progress`."""
        if self.progress is not None:
            self.progress(line)


def tune_network(network: Network, cluster: Cluster, options: TuneOptions) -> TuneReport:
    """Search faster kernels for the CPUs of a cluster.

    They are searched for the device with the most cores, and judged on all that share its target.
    KeyboardInterrupt ends the search; what was found is judged, and a second one ends that.

    Raises
    ------
    SolverError
        The network has routers or values that devices share.
    MissingCostError
        No CPU of the cluster is in this machine.
    LoweringError, ExecutionError, InfeasibleError, CostStoreError
        As `profile_network`.
    """
    if has_one_implementation(network.graph, 1):
        raise SolverError(
            "a network with routers, or with values that devices share, has one implementation of "
            "each kernel; there is nothing to tune"
        )
    part, widest_id = tunable_part(cluster)
    device = part.devices[widest_id]
    place = TunedPlace(device.target, device_fingerprint(device))
    begin = time.perf_counter()
    outlook, bench = _outlook(network, with_devices(part, [widest_id]), options)
    if options.on_outlook is not None:
        options.on_outlook(outlook)
    kernels = searched_kernels(bench, outlook.kernels, outlook.peaks, options.store, place)
    searching = time.perf_counter()
    was_interrupted = False
    cores = len(device.cores)
    try:
        search(bench, kernels, options.budget_s, options.store, place, options.on_step, cores)
    except KeyboardInterrupt:
        was_interrupted = True
    judging = time.perf_counter()
    stored = find_tunings(options.store, place)
    best_by_digest = {each.digest: each.best for each in kernels if _is_promising(each, stored)}
    judged = judge(network, part, best_by_digest, options.store, place, options.say)
    end = time.perf_counter()
    return TuneReport(
        outlook,
        tuple(_row(each, judged) for each in kernels),
        judging - searching,
        searching - begin + end - judging,
        was_interrupted,
    )


def tunable_part(cluster: Cluster) -> tuple[Cluster, int]:
    """Return the CPUs of a cluster that can be tuned together, and which has the most cores.

    They are in this machine and share a target, that of the CPU with the most cores; of equal ones,
    the first.

    Raises
    ------
    MissingCostError
        There is none.
    """
    here = [
        index
        for index, device in enumerate(cluster.devices)
        if device.kind == "cpu" and not missing_devices(cluster, [device.name])
    ]
    if not here:
        raise MissingCostError(
            f"cluster {cluster.name!r} has no CPU that is in this machine, and kernels are tuned "
            f"where they run; give --cluster local, or tune on the machine that the cluster is of"
        )
    first = max(here, key=lambda index: (len(cluster.devices[index].cores), -index))
    target = cluster.devices[first].target
    chosen = [index for index in here if cluster.devices[index].target == target]
    return with_devices(cluster, chosen), chosen.index(first)


def _outlook(
    network: Network, cluster: Cluster, options: TuneOptions
) -> tuple[Outlook, TrialBench]:
    """The kernels of a network on the only device of a cluster."""
    (device,) = cluster.devices
    log = StageLog.of(options.progress)
    log.say("Optimising kernels")
    compiled = with_workspaces(CompiledNetwork.of(network), cluster, on_kernel=log.count)
    placement = (0,) * len(network.graph.tasks)
    profiling = ProfileOptions(store=options.store, progress=options.progress)
    profile = profile_network(compiled, cluster, profiling)
    if any(key.site < 0 for key in profile.measurements):
        raise InfeasibleError(
            f"the network does not fit into the memory of {device.name!r}, and kernels are judged "
            f"in a run of it; tune on a larger machine"
        )
    log.say(f"Measuring the peak speeds of {device.name}")
    measured = measure_peaks(device.target, device.cores)
    calls = compiled.calls(cluster, placement)
    (times,) = kernel_times(calls, profile.measurements).values() or ([],)
    peaks = peaks_seen(measured, times)
    outlook = Outlook(device.name, len(device.cores), peaks, tuple(times))
    return outlook, TrialBench(compiled, cluster, placement)


def _is_promising(each: Searched, stored: Mapping[str, Tuning]) -> bool:
    """Say whether the best schedule of a kernel is to be measured in place: alone it is about as
    fast as ours, or, if it was not measured now, it is in use or was never judged."""
    tuning = stored.get(each.digest)
    if tuning is None or not each.best:
        return False
    if each.trials:
        return each.ratio < _PROMISING_RATIO
    return bool(tuning.kept) or tuning.own_ns == 0


def _row(each: Searched, judged: Judged) -> TunedKernel:
    own_ns, tuned_ns = widest(judged.sums_ns.get(each.digest, {}))
    return TunedKernel(
        each.times.op,
        each.times.shapes,
        len(each.times.ns),
        each.trials,
        0 if each.known is None else each.known.trials,
        each.ratio if each.best and each.trials else None,
        own_ns,
        tuned_ns,
        each.digest in judged.kept,
        each.why_not,
    )
