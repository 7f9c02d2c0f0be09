"""Neutral module + where each task's target is -> rows and one compiled library.

The few latest results are kept for the life of the process: the pass lowers and compiles a network
to measure it, and the build that follows usually needs the same kernels again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import autotvm

from heteroplace.codegen.kernels import Rows, lower_segments
from heteroplace.codegen.library import KernelLibrary, compile_kernels
from heteroplace.codegen.segments import cut_segments
from heteroplace.codegen.targets import placed_targets
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.tvm_bridge import register_cuda_compiler

_MAX_KEPT = 2
_Key = tuple[object, ...]


@dataclass(frozen=True)
class CompiledRows:
    """Kernel calls and the library that holds the kernels."""

    rows: Rows
    library: KernelLibrary


@dataclass
class _Kept:
    """What there is of a network: symbols are numbered anew whenever it is lowered again."""

    rows: Rows
    compiled: CompiledRows | None = None


_kept: OrderedDict[_Key, _Kept] = OrderedDict()


def compile_network(
    mod: tvm.IRModule,
    targets: tuple[tvm.target.Target, ...],
    target_of_task: Mapping[str, int],
    rows: Rows | None = None,
) -> CompiledRows:
    """Optimise each target's part of `mod`, lower it and compile all kernels into one library.

    Parameters
    ----------
    mod
        Neutral module whose spans name the tasks.
    targets, target_of_task
        The distinct targets, and for each task its position among them.
    rows
        What `lower_network` returned for the same, whose symbols the library is to have; None: any.

    Raises
    ------
    LoweringError
        An op cannot be compiled for its target, or belongs to no task.
    """
    kept = _lowered(mod, targets, target_of_task, rows)
    if kept.compiled is None:
        library = compile_kernels(list(kept.rows.kernels.values()))
        kept.compiled = CompiledRows(kept.rows, library)
    return kept.compiled


def compile_placed(
    mod: tvm.IRModule, graph: TaskGraph, cluster: Cluster, placement: Sequence[int]
) -> CompiledRows:
    """Compile the network for the device of each task; otherwise as `compile_network`."""
    return compile_network(mod, *placed_targets(graph, cluster, placement))


def lower_network(
    mod: tvm.IRModule,
    targets: tuple[tvm.target.Target, ...],
    target_of_task: Mapping[str, int],
) -> Rows:
    """Do all of `compile_network` but the compiling; parameters and errors as there.

    It tells which kernels there will be, and `compile_network` begins from it.
    """
    return _lowered(mod, targets, target_of_task, None).rows


def _lowered(
    mod: tvm.IRModule,
    targets: tuple[tvm.target.Target, ...],
    target_of_task: Mapping[str, int],
    rows: Rows | None,
) -> _Kept:
    key = _key(mod, targets, target_of_task)
    found = _kept.get(key)
    if found is None or (rows is not None and found.rows is not rows):
        if any(target.kind.name == "cuda" for target in targets):
            register_cuda_compiler()
        if rows is None:
            segments, outputs = cut_segments(mod, targets, target_of_task)
            rows = lower_segments(segments, mod["main"].params, outputs)
        found = _Kept(rows)
        _kept[key] = found
    _kept.move_to_end(key)
    while len(_kept) > _MAX_KEPT:
        _kept.popitem(last=False)
    return found


def _key(
    mod: tvm.IRModule, targets: tuple[tvm.target.Target, ...], target_of_task: Mapping[str, int]
) -> _Key:
    """All that the result depends on."""
    context = tvm.transform.PassContext.current()
    return (
        tvm.ir.structural_hash(mod, map_free_vars=True),
        tuple(map(str, targets)),
        tuple(sorted(target_of_task.items())),
        (context.opt_level, str(context.disabled_pass), str(context.required_pass)),
        str(context.config),
        # Tuned schedules are looked up in it.
        autotvm.task.DispatchContext.current,
    )
