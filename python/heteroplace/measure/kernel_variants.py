"""A cluster -> the same with a device for each other way to make its kernels.

An implementation of a task is a device: beside a CPU stand its twins, on the same cores and in the
same memory, whose targets have the keys of other makers: TVM's own kernels, and tuned ones; beside
a GPU one whose products are cuBLASLt's. Devices that share cores or a GPU never run at once, so a
solver chooses kernels together with the place, a cost table has a column for each implementation,
and a plan names the one that it took. They share a segment (`lower_network`): layouts are those of
the device itself, and a value goes from one to the other as it is.

A task may run on a twin where its kernels differ there, so equal ones are measured once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from heteroplace.entries import load_entry
from heteroplace.errors import SolverError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.kernel_provider import KernelVariants, kernel_variants, with_held_weights
from heteroplace.measure.cost_models.cost_model import CostOptions
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.cost import allowed_devices, table_from_rows
from heteroplace.model.demands import with_precisions
from heteroplace.model.graph import TaskGraph
from heteroplace.model.hosts import with_devices
from heteroplace.model.implementations import BFLOAT16, LIBRARY_MAKERS, twin_name
from heteroplace.model.plan import devices_of
from heteroplace.model.solution import Solution
from heteroplace.place_options import PlaceOptions
from heteroplace.precision_option import network_precision, precision_by_pattern
from heteroplace.registry import load_plugin, plugins
from heteroplace.relay.expressions import post_order, task_of_span
from heteroplace.relay.products import constant_weights, gated_weights
from heteroplace.relay.targets import MAKER_KEYS, with_kernels_of
from heteroplace.relay.tasks.network import Network
from heteroplace.relay.tasks.split_repeated import parts_between
from heteroplace.run.missing_devices import missing_devices

_DESCRIBE_KERNELS = "heteroplace.measure.kernels.kernel_identity:describe_kernels"
"""Loaded where there are other kernels to compare with."""


_REMEDIES = {
    "tvm": ("kernels='best'", "kernels='auto' or 'tvm'"),
    BFLOAT16: ("precision by layer or 'auto'", "precision='bf16'"),
}
"""By maker, the option that asks for its kernels, and what to give instead."""


class SearchedVariants(KernelVariants, Protocol):
    """Kernel variants, and where their tunings come from."""

    def find_tunings(
        self, network: Network, cluster: Cluster, options: CostOptions
    ) -> Mapping[str, str]:
        """Return the tunings for the kernels of a network; empty: there are none.

        Raises
        ------
        CostStoreError
            The store cannot be used.
        SolverError, ExecutionError, LoweringError
            The search is not possible here; the message says why.
        """


def with_requested_makers(
    network: Network, cluster: Cluster, options: PlaceOptions, cost_options: CostOptions, items: int
) -> tuple[Network, Cluster]:
    """Return `with_makers` of those whose kernels the options ask for; tuned ones where there are
    any, and the kernels have implementations."""
    if options.plan_in is not None:
        return network, cluster  # those of the plan are there already
    makers = ["tvm"] if options.kernels == "best" else []
    whole = network_precision(options.precision)
    if whole in (None, "auto"):
        makers.append(BFLOAT16)
    is_installed = "tuned" in plugins("kernel_variants")
    if is_installed and options.may_be_tuned and not has_one_implementation(network.graph, items):
        makers.append("tuned")
    precisions = {"cublas": options.cublas, "cudnn": options.cudnn}
    makers += [
        name
        for name, maker in LIBRARY_MAKERS.items()
        if precisions[maker.option] == maker.precision
    ]
    network, cluster = with_makers(network, cluster, makers, cost_options, items)
    if whole is None:
        by_pattern = precision_by_pattern(options.precision)
        network = network.with_graph(with_precisions(network.graph, cluster, by_pattern))
    return network, cluster


def with_makers(
    network: Network,
    cluster: Cluster,
    makers: Sequence[str],
    cost_options: CostOptions,
    items: int = 1,
) -> tuple[Network, Cluster]:
    """Return `with_implementations` with the kernel variants that have tunings.

    Raises as it and `SearchedVariants.find_tunings` do; PluginError where no installed package has
    the variants of a maker.
    """
    tunings: dict[str, str] = {}
    available = []
    for maker in makers:
        if maker not in ("tvm", BFLOAT16):
            if maker in LIBRARY_MAKERS:
                option, precision = LIBRARY_MAKERS[maker]
                _check_has_several(
                    network.graph, items, f"{option}={precision!r}", f"{option}='off'"
                )
            variants: SearchedVariants = load_plugin("kernel_variants", maker)
            of_maker = variants.find_tunings(network, cluster, cost_options)
            if not of_maker:
                continue
            tunings |= of_maker
        available.append(maker)
    if not available:
        return network, cluster
    return with_implementations(replace(network, tunings=tunings), cluster, items, available)


def has_one_implementation(graph: TaskGraph, items: int) -> bool:
    """Say whether each kernel of a network has one implementation, whatever is asked for: there
    are several items, routers or values with versions."""
    return items > 1 or bool(graph.routers) or graph.has_shared_values


def _check_has_several(graph: TaskGraph, items: int, option: str, remedy: str) -> None:
    if has_one_implementation(graph, items):
        raise SolverError(
            f"{option} chooses for each task of one item, without routers and values that devices "
            f"share; give {remedy}"
        )


def with_implementations(
    network: Network, cluster: Cluster, items: int = 1, makers: Sequence[str] = ("tvm",)
) -> tuple[Network, Cluster]:
    """Return a network and a cluster with the twins of each device on which some kernel differs.

    The network is lowered for each target, not compiled. Without any difference both are returned
    as they are.

    Parameters
    ----------
    makers
        Of MAKERS; variants of kernels are those with a tuning in `network.tunings`.

    Raises
    ------
    SolverError
        There are several items, routers or values with versions.
    LoweringError
        An op cannot be compiled for some target, or the trace of a tuned kernel is damaged.
    """
    compiled, graph = CompiledNetwork.of(network), network.graph
    for maker in makers:
        _check_has_several(graph, items, *_REMEDIES.get(maker, _REMEDIES["tvm"]))
    count = len(cluster.devices)
    twins: list[Device] = []
    bases: list[tuple[int, str]] = []
    for maker in makers:
        for index, device in enumerate(with_kernels_of(cluster, MAKER_KEYS[maker]).devices):
            base = cluster.devices[index]
            is_here = base.kind == "cpu" or not missing_devices(cluster, [base.name])
            if device.target != base.target and is_here:
                bases.append((index, maker))
                twins.append(replace(device, name=twin_name(base.name, maker)))
    both = replace(cluster, devices=(*cluster.devices, *twins))
    allowed = allowed_devices(graph, cluster)
    devices = [[cluster.devices[index].name for index in ids] for ids in allowed]
    kept_devices = set(range(count))
    for position, (base_id, maker) in enumerate(bases):
        placement = [base_id if base_id in ids else ids[0] for ids in allowed]
        twin = count + position
        if maker == "tvm":
            others = differing_tasks(compiled, both, placement, base_id, twin)
        elif maker == BFLOAT16:
            others = _tasks_with_weights(network, placement, base_id)
        else:
            others = variant_tasks(compiled, cluster, placement, base_id, maker)
        for task in others:
            devices[task].append(twins[position].name)
            kept_devices.add(twin)
    if len(kept_devices) == count:
        return network, cluster
    tasks = tuple(
        replace(task, devices=tuple(names))
        for task, names in zip(graph.tasks, devices, strict=True)
    )
    cluster = with_devices(both, sorted(kept_devices))
    return with_held_weights(network.with_graph(replace(graph, tasks=tasks)), cluster), cluster


def _tasks_with_weights(network: Network, placement: Sequence[int], base: int) -> list[int]:
    """The tasks on device `base` that multiply by constant weights, gated ones among them."""
    names = {
        task_of_span(call)
        for call in post_order(network.mod["main"].body)
        if constant_weights(call) is not None or gated_weights(call) is not None
    }
    tasks = network.graph.tasks
    return [
        task
        for task, device in enumerate(placement)
        if device == base and tasks[task].name in names
    ]


def differing_tasks(
    compiled: CompiledNetwork, cluster: Cluster, placement: Sequence[int], base: int, twin: int
) -> list[int]:
    """Return the tasks on device `base` that have other kernels on device `twin`."""
    other = [twin if device == base else device for device in placement]
    mine, theirs = (_task_kernels(compiled, cluster, each) for each in (placement, other))
    return [
        task
        for task, device in enumerate(placement)
        if device == base and mine[task] != theirs[task]
    ]


def variant_tasks(
    compiled: CompiledNetwork, cluster: Cluster, placement: Sequence[int], base: int, maker: str
) -> list[int]:
    """Return the tasks on device `base` with a kernel of which a maker has a tuned variant."""
    tunings = compiled.network.tunings
    if not tunings:
        return []
    variants = kernel_variants(maker)
    calls = compiled.calls(cluster, placement)
    tuned = {
        symbol
        for symbol, kernel in calls.kernels.items()
        if kernel.function is not None
        and any(
            variants.key(part, kernel.target) in tunings
            for part in parts_between(kernel.function, variants.cuts(kernel.function))
        )
    }
    names = {call.task for call in calls.calls if call.kernel in tuned}
    return [
        task
        for task, device in enumerate(placement)
        if device == base and compiled.graph.tasks[task].name in names
    ]


def _task_kernels(
    compiled: CompiledNetwork, cluster: Cluster, placement: Sequence[int]
) -> list[list[str]]:
    """The identities of each task's kernels."""
    calls = compiled.calls(cluster, placement)
    kernels = load_entry(_DESCRIBE_KERNELS)(calls)
    identities: dict[str, list[str]] = defaultdict(list)
    for call in calls.calls:
        identities[call.task].append(kernels[call.kernel].identity)
    return [sorted(identities[task.name]) for task in compiled.graph.tasks]


def without_unused_twins(solution: Solution, graph: TaskGraph, cluster: Cluster) -> Solution:
    """Return a solution without the twins, if its plan uses none of them.

    Parameters
    ----------
    graph, cluster
        Before `with_implementations`.
    """
    count = len(cluster.devices)
    used = {device for step in solution.plan.steps for device in devices_of(step)}
    if len(solution.cluster.devices) == count or max(used, default=0) >= count:
        return solution
    twins = {device.name for device in solution.cluster.devices[count:]}
    tasks = tuple(
        replace(task, devices=before.devices, weight_bytes=before.weight_bytes)
        for task, before in zip(solution.graph.tasks, graph.tasks, strict=True)
    )
    plain = replace(solution.graph, tasks=tasks)
    rows = tuple(row[:count] for row in solution.costs.rows)
    return replace(
        solution,
        graph=plain,
        cluster=cluster,
        plan=replace(solution.plan, graph_digest=plain.digest(), cluster_digest=cluster.digest()),
        costs=table_from_rows(plain, cluster, rows),
        singles=tuple(single for single in solution.singles if single[0] not in twins),
        single_times=tuple(time for time in solution.single_times if time[0] not in twins),
    )
