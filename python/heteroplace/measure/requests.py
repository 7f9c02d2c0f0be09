"""A network and a device -> the measurements that its costs are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heteroplace.costs.measurement import Measurement
from heteroplace.errors import InfeasibleError
from heteroplace.files.measurements import KernelKey
from heteroplace.lower.compile import CompiledNetwork, TaskTargets, task_targets
from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.lower import lower
from heteroplace.machine.fingerprint import device_fingerprint
from heteroplace.measure.devices_under_test import DeviceUnderTest
from heteroplace.measure.isolated import COLD, HOT
from heteroplace.measure.kernels.kernel_identity import (
    KernelDescription,
    describe_kernels,
    identity_of_call,
    network_digest,
    place_text,
)
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.plan_program import serial_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost
from heteroplace.model.graph import TaskGraph

IN_PLACE = "in place"


@dataclass(frozen=True)
class MeasurementRequest:
    """What is to be known of one device."""

    under_test: DeviceUnderTest
    targets: TaskTargets
    """Requests of equal targets share kernels."""
    calls: KernelCalls
    kernels: Mapping[str, KernelDescription]
    """Of each kernel, by symbol."""
    is_in_place: bool
    keys: Mapping[tuple[int, str], KernelKey]
    """By call and mode. In place each call of the device has its own; alone those of one kernel
    share theirs."""

    def missing(self, stored: Mapping[KernelKey, Measurement]) -> dict[KernelKey, int]:
        """Return the keys that are not known, each with the first call that it belongs to."""
        numbers: dict[KernelKey, int] = {}
        for (call, _), key in self.keys.items():
            if key not in stored:
                numbers.setdefault(key, call)
        return numbers

    def costs(self, graph: TaskGraph, stored: Mapping[KernelKey, Measurement]) -> list[Cost]:
        """Return the cost of each task: the sum of its kernels. Tasks that run elsewhere cost 0.

        The spread of a sum is the sum of the spreads: kernels are slow together.
        """
        task_id = {task.name: index for index, task in enumerate(graph.tasks)}
        times, spreads = [0] * len(graph.tasks), [0] * len(graph.tasks)
        first = next((mode for _, mode in self.keys), IN_PLACE)
        for (call, mode), key in self.keys.items():
            if mode == first:
                task = task_id[self.calls.calls[call].task]
                times[task] += stored[key].wall_ns
                spreads[task] += stored[key].spread_ns
        reason = first if self.is_in_place else f"alone, {first}"
        return [
            Cost.measured(ns, spread, reason) for ns, spread in zip(times, spreads, strict=True)
        ]


def request_measurements(
    compiled: CompiledNetwork,
    cluster: Cluster,
    under_test: DeviceUnderTest,
    options: ProfileOptions,
    fingerprint: str | None = None,
) -> MeasurementRequest:
    """Lower the network for a device and list what must be measured; nothing is compiled.

    Parameters
    ----------
    options
        Whether in place, how often and what is known.
    fingerprint
        Of a device on another machine; None: it is in this one.

    Raises
    ------
    LoweringError
        An op cannot be compiled for some target.
    """
    graph, placement = compiled.graph, under_test.placement
    calls = compiled.calls(cluster, placement)
    kernels = describe_kernels(calls)
    device = cluster.devices[under_test.device]
    if fingerprint is None:
        # Without a store nothing is ever compared, and a GPU's fingerprint needs a package more.
        fingerprint = device.name if options.store is None else device_fingerprint(device)
    # Only a processor's caches can be emptied.
    modes = [mode for mode in options.modes if device.kind == "cpu" or mode != COLD] or [HOT]
    place_of = {
        task.name: index for task, index in zip(graph.tasks, under_test.placement, strict=True)
    }
    own = [
        index for index, call in enumerate(calls.calls) if place_of[call.task] == under_test.device
    ]
    is_in_place = (
        options.is_in_place and under_test.is_local and _fits(calls, graph, cluster, under_test)
    )
    digest = ""
    if is_in_place:
        places = [place_text(cluster.devices[place_of[call.task]]) for call in calls.calls]
        digest = network_digest(calls, kernels, places)
    threads = max(1, len(device.cores))
    keys = {}
    for index in own:
        call = calls.calls[index]
        identity = kernels[call.kernel].identity
        if not is_in_place:
            identity = identity_of_call(identity, calls, call)
        for mode in [IN_PLACE] if is_in_place else modes:
            site = index if is_in_place else -1
            keys[index, mode] = KernelKey(
                identity, device.target, fingerprint, threads, options.batch, mode, digest, site
            )
    targets = task_targets(graph, cluster, placement)
    return MeasurementRequest(under_test, targets, calls, kernels, is_in_place, keys)


def _fits(
    calls: KernelCalls, graph: TaskGraph, cluster: Cluster, under_test: DeviceUnderTest
) -> bool:
    """Say whether the whole network can run on the device."""
    try:
        lower(calls, graph, cluster, serial_plan(graph, cluster, under_test.placement), None)
    except InfeasibleError:
        return False
    return True
