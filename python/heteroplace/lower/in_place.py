"""Lowered kernel -> whether an output may lie in the bytes of an input.

It may where each element of the input is read only to make the element of the output that is at
its place. A kernel's output has one statement that stores it, in loops over its elements, each of
which is visited once; so it is enough to look at the indices of what is read in that statement.
A tile that is unrolled and a loop that is split have several such statements. Each of them has to
read the input then: one that does not might store a start value before others read.
(Arguments of kernels are said not to alias. That lets a compiler move the load of one element over
the store of another, and no load over the store that depends on it.)
"""

from __future__ import annotations

import tvm
from tvm import tir

from heteroplace.lower.kernels import Kernel


def may_run_in_place(kernel: Kernel, read: int, write: int) -> bool:
    """Say whether output `write` of a kernel may be where its input `read` is.

    Parameters
    ----------
    read, write
        Positions among its inputs, and among its outputs.
    """
    if kernel.functions is None or len(kernel.functions.functions) != 1:
        return False
    (function,) = kernel.functions.functions.values()
    num_reads = len(kernel.ranges)
    buffers = [function.buffer_map[parameter] for parameter in function.params]
    if num_reads + write >= len(buffers):
        return False
    source, target = buffers[read].data, buffers[num_reads + write].data
    accesses = _Accesses(source, target)
    tir.stmt_functor.post_order_visit(function.body, accesses.visit)
    return accesses.is_in_place


class _Accesses:
    """Collects what is stored to one buffer, and what is read of another."""

    def __init__(self, source: tir.Var, target: tir.Var) -> None:
        self._source = source
        self._target = target
        self._stores: list[tir.BufferStore] = []
        self._num_loads = 0
        self._is_opaque = False

    def visit(self, node: tvm.runtime.Object) -> None:
        """Note one node."""
        if isinstance(node, tir.BufferStore) and node.buffer.data.same_as(self._target):
            self._stores.append(node)
        elif isinstance(node, tir.BufferStore) and node.buffer.data.same_as(self._source):
            self._is_opaque = True
        elif isinstance(node, tir.BufferLoad) and node.buffer.data.same_as(self._source):
            self._num_loads += 1
        elif isinstance(node, tir.BufferLoad) and node.buffer.data.same_as(self._target):
            self._is_opaque = True
        elif isinstance(node, tir.Call) and any(
            isinstance(argument, tir.Var)
            and (argument.same_as(self._source) or argument.same_as(self._target))
            for argument in node.args
        ):
            self._is_opaque = True  # a library takes its address

    @property
    def is_in_place(self) -> bool:
        """Whether all that is read is where it is stored."""
        if self._is_opaque or not self._stores:
            return False
        read = [self._loads_of(store) for store in self._stores]
        if len(read) > 1 and not all(read):
            return False
        return sum(map(len, read)) == self._num_loads and all(
            _is_same_place(store, load)
            for store, loads in zip(self._stores, read, strict=True)
            for load in loads
        )

    def _loads_of(self, store: tir.BufferStore) -> list[tir.BufferLoad]:
        """What a statement reads of the source."""
        loads: list[tir.BufferLoad] = []

        def visit(node: tvm.runtime.Object) -> None:
            if isinstance(node, tir.BufferLoad) and node.buffer.data.same_as(self._source):
                loads.append(node)

        tir.stmt_functor.post_order_visit(store.value, visit)
        return loads


def _is_same_place(store: tir.BufferStore, load: tir.BufferLoad) -> bool:
    return len(load.indices) == len(store.indices) and all(
        tvm.ir.structural_equal(one, other)
        for one, other in zip(load.indices, store.indices, strict=True)
    )
