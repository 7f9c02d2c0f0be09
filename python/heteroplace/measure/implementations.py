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
from collections.abc import Callable, Sequence
from dataclasses import replace

from heteroplace.errors import SolverError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.kernels import Kernel
from heteroplace.measure.cost_models.model import CostOptions
from heteroplace.measure.kernels.kernel_identity import describe_kernels
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.cost import allowed_devices, table_from_rows
from heteroplace.model.graph import TaskGraph
from heteroplace.model.hosts import with_devices
from heteroplace.model.implementations import LIBRARY_MAKERS, LibraryMaker, twin_name
from heteroplace.model.plan import devices_of
from heteroplace.model.solution import Solution
from heteroplace.parts.kernels.nvidia.known_library_kernels import is_here, known_library_kernels
from heteroplace.parts.kernels.nvidia.libraries import LIBRARIES
from heteroplace.parts.kernels.rewrites.held_weights import with_held_weights
from heteroplace.parts.kernels.tuned.known_tunings import known_tunings
from heteroplace.parts.kernels.tuned.tuned_kernels import tuning_digest
from heteroplace.place_options import PlaceOptions
from heteroplace.relay.targets import MAKER_KEYS, with_kernels_of
from heteroplace.relay.tasks.network import Network


def with_asked_makers(
    network: Network, cluster: Cluster, options: PlaceOptions, asked: CostOptions, items: int
) -> tuple[Network, Cluster]:
    """Return `with_makers` of those whose kernels the options ask for; tuned ones where there are
    any, and the kernels have implementations."""
    if options.plan_in is not None:
        return network, cluster  # those of the plan are there already
    makers = ["tvm"] if options.kernels == "best" else []
    if options.may_be_tuned and not has_one_implementation(network.graph, items):
        makers.append("tuned")
    asked_of = {"cublas": options.cublas, "cudnn": options.cudnn}
    makers += [
        name for name, maker in LIBRARY_MAKERS.items() if asked_of[maker.option] == maker.precision
    ]
    return with_makers(network, cluster, makers, asked, items)


def with_makers(
    network: Network, cluster: Cluster, makers: Sequence[str], asked: CostOptions, items: int = 1
) -> tuple[Network, Cluster]:
    """Return `with_implementations` with the tuned kernels that the store has, and kernels by
    NVIDIA's libraries with the algorithms that are quickest here.

    Raises as it does; CostStoreError where the store cannot be used; for libraries as
    `known_library_kernels`.
    """
    tunings = known_tunings(asked, cluster) if "tuned" in makers else {}
    known = [maker for maker in makers if maker != "tuned" or tunings]
    for name, maker in LIBRARY_MAKERS.items():
        if name in makers:
            asked_for = f"{maker.option}={maker.precision!r}"
            _check_has_several(network.graph, items, asked_for, f"{maker.option}='off'")
            tunings |= known_library_kernels(network, cluster, maker, asked)
    if not known:
        return network, cluster
    return with_implementations(replace(network, tunings=tunings), cluster, items, known)


def has_one_implementation(graph: TaskGraph, items: int) -> bool:
    """Say whether each kernel of a network has one implementation, whatever is asked for: there
    are several items, routers or values with versions."""
    return items > 1 or bool(graph.routers) or graph.has_shared_values


def _check_has_several(graph: TaskGraph, items: int, asked: str, mend: str) -> None:
    if has_one_implementation(graph, items):
        raise SolverError(
            f"{asked} chooses for each task of one item, without routers and values that devices "
            f"share; give {mend}"
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
        Of MAKERS; "tuned" are the kernels of `network.tunings`, of libraries what they compute.

    Raises
    ------
    SolverError
        There are several items, routers or values with versions.
    LoweringError
        An op cannot be compiled for some target, or the trace of a tuned kernel is damaged.
    """
    compiled, graph = CompiledNetwork.of(network), network.graph
    _check_has_several(graph, items, "kernels='best'", "kernels='auto' or 'tvm'")
    count = len(cluster.devices)
    twins: list[Device] = []
    bases: list[tuple[int, str]] = []
    for maker in makers:
        for index, device in enumerate(with_kernels_of(cluster, MAKER_KEYS[maker]).devices):
            base = cluster.devices[index]
            if device.target != base.target and (base.kind == "cpu" or is_here(cluster, base)):
                bases.append((index, maker))
                twins.append(replace(device, name=twin_name(base.name, maker)))
    both = replace(cluster, devices=(*cluster.devices, *twins))
    allowed = allowed_devices(graph, cluster)
    devices = [[cluster.devices[index].name for index in ids] for ids in allowed]
    kept = set(range(count))
    for position, (base_id, maker) in enumerate(bases):
        placement = [base_id if base_id in ids else ids[0] for ids in allowed]
        twin = count + position
        if maker == "tuned":
            others = tuned_tasks(compiled, cluster, placement, base_id)
        elif maker in LIBRARY_MAKERS:
            others = library_tasks(compiled, cluster, placement, base_id, LIBRARY_MAKERS[maker])
        else:
            others = differing_tasks(compiled, both, placement, base_id, twin)
        for task in others:
            devices[task].append(twins[position].name)
            kept.add(twin)
    if len(kept) == count:
        return network, cluster
    tasks = tuple(
        replace(task, devices=tuple(names))
        for task, names in zip(graph.tasks, devices, strict=True)
    )
    cluster = with_devices(both, sorted(kept))
    return with_held_weights(network.with_graph(replace(graph, tasks=tasks)), cluster), cluster


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


def tuned_tasks(
    compiled: CompiledNetwork, cluster: Cluster, placement: Sequence[int], base: int
) -> list[int]:
    """Return the tasks on device `base` some kernel of which was tuned."""
    tunings = compiled.network.tunings
    if not tunings:
        return []

    def is_tuned(kernel: Kernel) -> bool:
        return kernel.function is not None and tuning_digest(kernel.function) in tunings

    return _tasks_with(is_tuned, compiled, cluster, placement, base)


def library_tasks(
    compiled: CompiledNetwork,
    cluster: Cluster,
    placement: Sequence[int],
    base: int,
    maker: LibraryMaker,
) -> list[int]:
    """Return the tasks on GPU `base` with a kernel of a library with a chosen algorithm."""
    find = LIBRARIES[maker.option].find
    tunings = compiled.network.tunings

    def is_chosen(kernel: Kernel) -> bool:
        found = None if kernel.function is None else find(kernel.function)
        return found is not None and found.key(maker.precision, kernel.target) in tunings

    return _tasks_with(is_chosen, compiled, cluster, placement, base)


def _tasks_with(
    is_meant: Callable[[Kernel], bool],
    compiled: CompiledNetwork,
    cluster: Cluster,
    placement: Sequence[int],
    base: int,
) -> list[int]:
    """The tasks on a device with a kernel that is meant."""
    calls = compiled.calls(cluster, placement)
    known = {symbol for symbol, kernel in calls.kernels.items() if is_meant(kernel)}
    names = {call.task for call in calls.calls if call.kernel in known}
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
    kernels = describe_kernels(calls)
    found: dict[str, list[str]] = defaultdict(list)
    for call in calls.calls:
        found[call.task].append(kernels[call.kernel].identity)
    return [sorted(found[task.name]) for task in compiled.graph.tasks]


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
