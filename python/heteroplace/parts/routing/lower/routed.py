"""Routed network -> kernel calls: of what is in a branch one for each of its capacities.

The module is cut into regions (`routed_module`) and made once for each capacity: version j has all
branches at their j-th one (`relay.routing.resize`), and is compiled as any module. Branches that
are alike share their kernels, as equal groups do. `routed_calls` puts the versions together.

before ==> after, for an expert with capacities 4 and 16

    nn.dense(%x: float32[64, 8], %w)    ==>  4: dense_4(x[4, 8], w), 16: dense_16(x[16, 8], w)

Weights of dense layers lie in panels, the same at all capacities (`packed_matmul_op`).
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relay

from heteroplace.lower.kernel_provider import SharedForms
from heteroplace.lower.kernels import KernelCalls, Value
from heteroplace.lower.segment_calls import lower_parts
from heteroplace.lower.segments import cut_segments
from heteroplace.model.graph import TaskGraph
from heteroplace.parts.routing.lower.paired_calls import Version
from heteroplace.parts.routing.lower.routed_calls import RoutedCombiner
from heteroplace.parts.routing.lower.routed_module import Branch, RoutedModule, cut_regions
from heteroplace.parts.routing.lower.skip_resident_rows import with_kept_rows
from heteroplace.parts.routing.relay.branch_sizes import resize_branches
from heteroplace.relay.expressions import static_shape, tensor_types
from heteroplace.tvm_bridge import register_cuda_compiler

_PROBE = 2
"""Rows of a branch with one capacity are followed to so many times as many, for the proof alone."""


def lower_routed(
    mod: tvm.IRModule,
    graph: TaskGraph,
    targets: tuple[tvm.target.Target, ...],
    target_of_task: Mapping[str, int],
) -> KernelCalls:
    """Lower a network with routers.

    Parameters
    ----------
    mod
        Neutral module whose spans name the tasks of `graph`.
    targets
        The distinct targets.
    target_of_task
        For each task the position of its target.

    Returns
    -------
    The calls, those in branches with variants. Inputs come first among the values.

    Raises
    ------
    UnsupportedRelayError
        An op of a branch could mix rows.
    LoweringError
        An op cannot be compiled for its target, or a branch cannot be cut out of the module.
    """
    if any(target.kind.name == "cuda" for target in targets):
        register_cuda_compiler()
    cut = cut_regions(mod, graph)
    capacities = branch_capacities(graph, cut)
    _prove(cut, capacities)
    nowhere = len(targets)
    main = {
        task.name: nowhere if task.branch else target_of_task[task.name] for task in graph.tasks
    }
    cuts = [cut_segments(cut.mod, (*targets, None), main)]
    versions: list[dict[Branch, int]] = []
    shared: SharedForms = {}
    for number in range(max(map(len, capacities.values()), default=0)):
        sizes = {branch: own[number] for branch, own in capacities.items() if number < len(own)}
        rows = {branch: size for branch, size in sizes.items() if size}
        of_task = {
            task.name: target_of_task[task.name] if task.branch in sizes else nowhere
            for task in graph.tasks
        }
        resized = resize_branches(cut.mod, _branches_of_rows(cut), rows)
        cuts.append(cut_segments(resized, (*targets, None), of_task, shared))
        versions.append(sizes)
    parts = lower_parts([segments for segments, _ in cuts])
    names = cuts[0][1]
    versions_made = [Version(part, sizes) for part, sizes in zip(parts[1:], versions, strict=True)]
    inputs = [_input(parameter) for parameter in mod["main"].params]
    return with_kept_rows(RoutedCombiner(graph, cut, parts[0], versions_made, names).run(inputs))


def _input(parameter: relay.Var) -> Value:
    (type_,) = tensor_types(parameter.checked_type)
    return Value(static_shape(type_), type_.dtype, parameter.name_hint)


def branch_capacities(graph: TaskGraph, cut: RoutedModule) -> dict[Branch, tuple[int, ...]]:
    """Return the capacities of each branch; (0,) if its cells are whole tensors."""
    return {
        (router.name, branch): sizes if router.name in cut.num_rows else (0,)
        for router in graph.routers
        for branch, sizes in enumerate(router.capacities)
    }


def _branches_of_rows(cut: RoutedModule) -> dict[str, Branch]:
    return {name: taken.branch for name, taken in cut.taken.items()}


def _prove(cut: RoutedModule, capacities: Mapping[Branch, tuple[int, ...]]) -> None:
    """Raise UnsupportedRelayError if a branch mixes rows: a version of as many says nothing."""
    single = {branch: _PROBE * own[0] for branch, own in capacities.items() if own == own[-1:]}
    single = {branch: rows for branch, rows in single.items() if rows}
    if single:
        resize_branches(cut.mod, _branches_of_rows(cut), single)
