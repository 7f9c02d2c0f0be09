"""Neutral module + where each task's target is -> rows and one compiled library.

The few latest results are kept for the life of the process: the pass compiles a network to measure
it, and the build that follows usually needs the same kernels again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm import autotvm

from heteroplace.codegen.kernels import Rows, lower_segments
from heteroplace.codegen.library import KernelLibrary, compile_kernels
from heteroplace.codegen.segments import cut_segments
from heteroplace.tvm_bridge import register_cuda_compiler

_MAX_KEPT = 2
_kept: OrderedDict[tuple[object, ...], CompiledRows] = OrderedDict()


@dataclass(frozen=True)
class CompiledRows:
    """Kernel calls and the library that holds the kernels."""

    rows: Rows
    library: KernelLibrary


def compile_network(
    mod: tvm.IRModule,
    targets: tuple[tvm.target.Target, ...],
    target_of_task: Mapping[str, int],
) -> CompiledRows:
    """Optimise each target's part of `mod`, lower it and compile all kernels into one library.

    Parameters
    ----------
    mod
        Neutral module whose spans name the tasks.
    targets, target_of_task
        The distinct targets, and for each task its position among them.

    Raises
    ------
    LoweringError
        An op cannot be compiled for its target, or belongs to no task.
    """
    context = tvm.transform.PassContext.current()
    key = (
        tvm.ir.structural_hash(mod, map_free_vars=True),
        tuple(map(str, targets)),
        tuple(sorted(target_of_task.items())),
        (context.opt_level, str(context.disabled_pass), str(context.required_pass)),
        str(context.config),
        # Tuned schedules are looked up in it.
        autotvm.task.DispatchContext.current,
    )
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key]
    if any(target.kind.name == "cuda" for target in targets):
        register_cuda_compiler()
    segments, outputs = cut_segments(mod, targets, target_of_task)
    rows = lower_segments(segments, mod["main"].params, outputs)
    compiled = CompiledRows(rows, compile_kernels(list(rows.kernels.values())))
    _kept[key] = compiled
    while len(_kept) > _MAX_KEPT:
        _kept.popitem(last=False)
    return compiled
