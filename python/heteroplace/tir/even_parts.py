"""Parallel loops of lowered kernels for CPUs -> loops that threads divide evenly.

    parallel for i in range(36):          parallel for part in range(96):
        body(i)                               if part * 36 % 96 >= 96 - 36:
                                                  i = part * 36 / 96
                                                  body(i)

TVM cuts a loop into chunks of equal length, the last of which are shorter or empty. Of 36 steps in
eight chunks, four for each of two threads, one thread gets 20 and the other 16. Here each part has
one step or none, evenly spread, and 96 parts are as many for each of 1, 2, 3, 4, 6, 8 or 12
threads. A thread gets the same share of all loops, whatever their lengths, so it reads what it
wrote.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tir

from heteroplace.tir.lowered_functions import with_nodes

_PARTS = 96
_EVEN_STEPS = 8
"""Multiples of it are even for two threads as they are. The two divisions of each part would make
small kernels slower: `mobilenet_int8` took 1.04 times as long (Intel Xeon, family 6, model 167)."""
_MAX_STEPS = 1024
"""Of longer loops, the last chunk matters little."""


def even_parts(functions: tvm.IRModule) -> tvm.IRModule:
    """Return the kernels with as many parts in each parallel loop as divide evenly.

    Parameters
    ----------
    functions
        Lowered functions of one kernel; they are not changed.
    """
    return with_nodes(functions, _in_parts, "tir.For")


def _in_parts(loop: Any) -> tir.For | None:
    """What stands for a loop; None: it stays."""
    is_parallel = loop.kind == tir.ForKind.PARALLEL
    if not is_parallel or not isinstance(loop.extent, tir.IntImm):
        return None
    steps, dtype = int(loop.extent), loop.loop_var.dtype
    parts = -(-steps // _PARTS) * _PARTS
    if not 1 < steps < min(parts, _MAX_STEPS) or steps % _EVEN_STEPS == 0:
        return None
    part, step = tir.Var("part", dtype), tir.Var(loop.loop_var.name, dtype)
    place = part * steps
    body = tir.stmt_functor.substitute(loop.body, {loop.loop_var: step})
    body = tir.LetStmt(step, loop.min + tir.truncdiv(place, parts), body)
    body = tir.IfThenElse(tir.truncmod(place, parts) >= parts - steps, body, None)
    return tir.For(part, 0, parts, loop.kind, body, loop.thread_binding, loop.annotations)
