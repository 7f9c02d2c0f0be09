"""workspace: what TVM's code generator will take from the runtime, read off lowered kernels."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm.relay")

import tvm

from heteroplace.errors import LoweringError
from heteroplace.lower.workspace import Workspace, kernel_workspace

pytestmark = pytest.mark.relay


def module(function: tvm.tir.PrimFunc) -> tvm.IRModule:
    return tvm.IRModule({"kernel": function})


def nested(
    *sizes: int, parallel_from: int | None = None, scope: str = "global"
) -> tvm.tir.PrimFunc:
    """float32 buffers within each other; a parallel loop around those from a position on."""
    body: tvm.tir.Stmt = tvm.tir.Evaluate(0)
    for position in reversed(range(len(sizes))):
        pointer = tvm.ir.PointerType(tvm.ir.PrimType("float32"), scope)
        buffer = tvm.tir.Var(f"buffer{position}", pointer)
        body = tvm.tir.Allocate(buffer, "float32", [sizes[position]], tvm.tir.const(True), body)
        if position == parallel_from:
            index = tvm.tir.Var("i", "int32")
            body = tvm.tir.For(index, 0, 4, tvm.tir.ForKind.PARALLEL, body)
    return tvm.tir.PrimFunc([], body)


def test_nested_buffers_add_up_in_blocks() -> None:
    assert kernel_workspace(module(nested(1000, 300))) == Workspace(4096 + 1280, 0)


def test_small_buffers_are_on_the_stack() -> None:
    assert kernel_workspace(module(nested(255))) == Workspace(0, 0)
    assert kernel_workspace(module(nested(256))) == Workspace(1024, 0)


def test_a_gpu_needs_small_buffers_too_but_none_that_its_launches_hold() -> None:
    assert kernel_workspace(module(nested(4)), is_cpu=False) == Workspace(128, 0)
    assert kernel_workspace(module(nested(1000, scope="shared")), is_cpu=False) == Workspace(0, 0)
    assert kernel_workspace(module(nested(1000, scope="local")), is_cpu=False) == Workspace(0, 0)


def test_helpers_need_what_is_inside_the_parallel_loop() -> None:
    found = kernel_workspace(module(nested(1000, 300, parallel_from=1)))
    assert found == Workspace(4096 + 1280, 1280)


def test_buffers_one_after_the_other_share_room() -> None:
    parts = [nested(1000).body, nested(300).body]
    function = tvm.tir.PrimFunc([], tvm.tir.SeqStmt(parts))
    assert kernel_workspace(module(function)) == Workspace(4096, 0)


def test_both_branches_are_looked_at() -> None:
    condition = tvm.tir.Var("flag", "bool")
    choice = tvm.tir.IfThenElse(condition, nested(300).body, nested(1000).body)
    function = tvm.tir.PrimFunc([condition], choice)
    assert kernel_workspace(module(function)) == Workspace(4096, 0)


def test_a_size_that_is_not_constant_is_refused() -> None:
    size = tvm.tir.Var("n", "int32")
    pointer = tvm.ir.PointerType(tvm.ir.PrimType("float32"), "global")
    buffer = tvm.tir.Var("scratch", pointer)
    body = tvm.tir.Allocate(buffer, "float32", [size], tvm.tir.const(True), tvm.tir.Evaluate(0))
    with pytest.raises(LoweringError, match="'scratch' of a kernel has the size n"):
        kernel_workspace(module(tvm.tir.PrimFunc([size], body)))
