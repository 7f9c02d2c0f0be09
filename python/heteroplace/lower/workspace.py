"""Lowered kernel -> the scratch memory that its compiled code takes from the runtime.

TVM's code generator leaves small buffers of constant size on the stack, and turns every other
allocation into a call for workspace, which is given back in the opposite order: what counts is the
greatest sum along one path of nested allocations. Those in the body of a parallel loop are made by
each thread of a team for itself, those around it by the one that calls the kernel. For a GPU the
host part of a kernel takes all memory that lies between its launches from the runtime; what is
shared or local belongs to the launches themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import tir

from heteroplace.errors import LoweringError
from heteroplace.lower.program import aligned

_MAX_STACK_BYTES = 1024
"""Buffers of fewer bytes lie on the stack (`kMaxStackAlloca` of TVM's runtime)."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Bytes that one call of a kernel needs at most, in blocks as the executor gives them out."""

    caller_bytes: int = 0
    """Of the thread that calls it, which has its part in the loops too."""
    helper_bytes: int = 0
    """Of each other thread that takes part in its parallel loops."""


def kernel_workspace(functions: tvm.IRModule, is_cpu: bool = True) -> Workspace:
    """Return the workspace of a kernel for a CPU, or for a GPU.

    Raises
    ------
    LoweringError
        An allocation has no constant size.
    """
    walks = [_Walk(is_cpu) for _ in functions.functions]
    callers = [
        walk.height(function.body)
        for walk, function in zip(walks, functions.functions.values(), strict=True)
    ]
    return Workspace(max(callers, default=0), max((w.parallel_bytes for w in walks), default=0))


class _Walk:
    """One pass over a function's statements."""

    def __init__(self, is_cpu: bool) -> None:
        self._is_cpu = is_cpu
        self.parallel_bytes = 0
        """Greatest height within the body of a parallel loop so far."""

    def height(self, statement: tir.Stmt | None) -> int:
        """Greatest sum of workspace that is held at once within a statement."""
        # These have no body, and TVM takes 0.2 ms to say so.
        if statement is None or isinstance(statement, (tir.BufferStore, tir.Evaluate)):
            return 0
        if isinstance(statement, tir.SeqStmt):
            return max((self.height(part) for part in statement), default=0)
        if isinstance(statement, tir.IfThenElse):
            return max(self.height(statement.then_case), self.height(statement.else_case))
        if isinstance(statement, tir.Allocate):
            return _workspace_bytes(statement, self._is_cpu) + self.height(statement.body)
        inner = self.height(getattr(statement, "body", None))
        if isinstance(statement, tir.For) and statement.kind == tir.ForKind.PARALLEL:
            self.parallel_bytes = max(self.parallel_bytes, inner)
        return inner


def _workspace_bytes(allocation: tir.Allocate, is_cpu: bool) -> int:
    is_global = allocation.buffer_var.type_annotation.storage_scope in ("", "global")
    if not is_cpu and not is_global:
        return 0
    dtype = tvm.DataType(allocation.dtype)
    num_bytes = (dtype.bits * dtype.lanes + 7) // 8
    for extent in allocation.extents:
        if not isinstance(extent, tir.IntImm):
            raise LoweringError(
                f"buffer {allocation.buffer_var.name!r} of a kernel has the size {extent}, and "
                f"only constant sizes are known before a run; give the model fixed shapes"
            )
        num_bytes *= int(extent)
    if is_cpu and num_bytes < _MAX_STACK_BYTES and is_global:
        return 0
    return aligned(num_bytes)
