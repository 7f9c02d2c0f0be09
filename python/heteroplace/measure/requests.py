"""A network and a device -> the measurements that its costs are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm

from heteroplace.codegen.compile import lower_network
from heteroplace.codegen.kernels import Rows
from heteroplace.codegen.lower import lower
from heteroplace.codegen.targets import placed_targets
from heteroplace.costs.measurement import KernelKey, Measurement
from heteroplace.errors import InfeasibleError
from heteroplace.machine.fingerprint import device_fingerprint
from heteroplace.measure.devices_under_test import Subject
from heteroplace.measure.isolated import COLD, HOT
from heteroplace.measure.kernel_identity import KernelFacts, describe_kernels, network_digest
from heteroplace.measure.options import ProfileOptions
from heteroplace.measure.plan_program import serial_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost
from heteroplace.model.graph import TaskGraph

IN_PLACE = "in place"


@dataclass(frozen=True)
class Wanted:
    """What is to be known of one device."""

    subject: Subject
    rows: Rows
    facts: Mapping[str, KernelFacts]
    """Of each kernel, by symbol."""
    is_in_place: bool
    keys: Mapping[tuple[int, str], KernelKey]
    """By row and mode. In place each row of the device has its own; alone those of one kernel
    share theirs."""

    def missing(self, known: Mapping[KernelKey, Measurement]) -> dict[KernelKey, int]:
        """Return the keys that are not known, each with the first row that it belongs to."""
        found: dict[KernelKey, int] = {}
        for (row, _), key in self.keys.items():
            if key not in known:
                found.setdefault(key, row)
        return found

    def costs(self, graph: TaskGraph, known: Mapping[KernelKey, Measurement]) -> list[Cost]:
        """Return the cost of each task: the sum of its kernels. Tasks that run elsewhere cost 0.

        The spread of a sum is the sum of the spreads: kernels are slow together.
        """
        task_id = {task.name: index for index, task in enumerate(graph.tasks)}
        times, spreads = [0] * len(graph.tasks), [0] * len(graph.tasks)
        first = next((mode for _, mode in self.keys), IN_PLACE)
        for (row, mode), key in self.keys.items():
            if mode == first:
                task = task_id[self.rows.rows[row].task]
                times[task] += known[key].wall_ns
                spreads[task] += known[key].spread_ns
        reason = first if self.is_in_place else f"alone, {first}"
        return [
            Cost.measured(ns, spread, reason) for ns, spread in zip(times, spreads, strict=True)
        ]


def want(
    mod: tvm.IRModule,
    graph: TaskGraph,
    cluster: Cluster,
    subject: Subject,
    options: ProfileOptions,
    fingerprint: str | None = None,
) -> Wanted:
    """Lower the network for a device and list what must be measured; nothing is compiled.

    Parameters
    ----------
    fingerprint
        Of a device on another machine; None: it is in this one.

    Raises
    ------
    LoweringError
        An op cannot be compiled for some target.
    """
    rows = lower_network(mod, *placed_targets(graph, cluster, subject.placement))
    facts = describe_kernels(rows)
    device = cluster.devices[subject.device]
    if fingerprint is None:
        # Without a store nothing is ever compared, and a GPU's fingerprint needs a package more.
        fingerprint = device.name if options.store is None else device_fingerprint(device)
    # Only a processor's caches can be emptied.
    modes = [mode for mode in options.modes if device.kind == "cpu" or mode != COLD] or [HOT]
    place_of = {
        task.name: index for task, index in zip(graph.tasks, subject.placement, strict=True)
    }
    own = [index for index, row in enumerate(rows.rows) if place_of[row.task] == subject.device]
    is_in_place = options.is_in_place and subject.is_local and _fits(rows, graph, cluster, subject)
    digest = ""
    if is_in_place:
        places = [_place(cluster, place_of[row.task]) for row in rows.rows]
        digest = network_digest(rows, facts, places)
    threads = max(1, len(device.cores))
    keys = {}
    for index in own:
        identity = facts[rows.rows[index].kernel].identity
        for mode in [IN_PLACE] if is_in_place else modes:
            site = index if is_in_place else -1
            keys[index, mode] = KernelKey(
                identity, device.target, fingerprint, threads, options.batch, mode, digest, site
            )
    return Wanted(subject, rows, facts, is_in_place, keys)


def _fits(rows: Rows, graph: TaskGraph, cluster: Cluster, subject: Subject) -> bool:
    """Say whether the whole network can run on the device."""
    try:
        lower(rows, graph, cluster, *serial_plan(graph, cluster, subject.placement))
    except InfeasibleError:
        return False
    return True


def _place(cluster: Cluster, index: int) -> str:
    device = cluster.devices[index]
    return f"{device.kind} {device.target} {len(device.cores)}"
