"""even_parts: each step of a parallel loop runs once, and threads get equal shares."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tir

from heteroplace.tir.cpu_loops import even_parts

pytestmark = pytest.mark.relay

CHUNKS_PER_THREAD = 4
"""Into which the executor has a loop cut."""


def counting(steps: int, kind: str = "parallel") -> tvm.IRModule:
    """A kernel that adds 1 + i to element i."""
    builder = tir.ir_builder.create()
    counts = tir.decl_buffer((steps,), "int32", "counts")
    access = builder.buffer_ptr(counts)
    with builder.for_range(0, steps, "i", kind=kind) as i:
        access[i] += i + 1
    function = tir.PrimFunc([counts], builder.get())
    attributes = {"global_symbol": "counting", "tir.noalias": True}
    return tvm.IRModule({"counting": function.with_attrs(attributes)})


def loop_of(functions: tvm.IRModule) -> tir.For:
    """The loop that is the body of the kernel."""
    (function,) = functions.functions.values()
    body = function.body
    assert isinstance(body, tir.For)
    return body


def is_step(loop: tir.For, part: int) -> bool:
    """Whether a part of the loop has a step."""
    condition = tir.stmt_functor.substitute(loop.body.condition, {loop.loop_var: part})
    return bool(tvm.arith.Analyzer().simplify(condition))


@pytest.mark.parametrize("steps", [2, 3, 7, 12, 36, 95, 97, 100, 1023])
def test_each_step_runs_once(steps: int) -> None:
    functions = even_parts(counting(steps))
    assert int(loop_of(functions).extent) > steps
    counts = tvm.nd.array(np.zeros(steps, "int32"))
    tvm.build(functions, target="llvm")(counts)
    np.testing.assert_array_equal(counts.numpy(), np.arange(1, steps + 1))


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 6, 8, 12])
def test_threads_get_shares_that_differ_by_one_step_at_most(threads: int) -> None:
    loop = loop_of(even_parts(counting(36)))
    chunks = threads * CHUNKS_PER_THREAD
    length = -(-int(loop.extent) // chunks)  # as TVM cuts it
    assert length * chunks == int(loop.extent)
    share = length * CHUNKS_PER_THREAD
    shares = [
        sum(is_step(loop, part) for part in range(begin, begin + share))
        for begin in range(0, int(loop.extent), share)
    ]
    assert len(shares) == threads
    assert sum(shares) == 36
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("steps", [1, 8, 56, 96, 1025])
def test_one_step_even_loops_and_long_ones_stay(steps: int) -> None:
    functions = counting(steps)
    assert even_parts(functions).same_as(functions)


def test_serial_loops_stay() -> None:
    functions = counting(36, "serial")
    assert even_parts(functions).same_as(functions)
