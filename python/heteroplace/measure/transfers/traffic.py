"""A network at a small batch -> the same with the memory traffic of a large one in between.

A kernel of a large batch reads what left the caches long ago, and a line fitted to small batches,
whose values stay in them, is far too low for it (pooling and adding: up to 6 times). So a small
batch is run here with *spacers* between its kernels: after a kernel that touched `n` bytes for `b`
items, a spacer reads and writes other `n (B / b - 1)` bytes, as many as the kernel would have
touched for the other items of a batch of `B`. Each value is then as far away when it is read as it
would be in the large batch, at every level of every cache, without a model of them; and the
network needs the memory of the small batch and a ring of twice the last cache.

What it does not imitate is reuse within one kernel: a convolution that first copies its whole
batch, padded, into scratch memory reads that back from a nearer cache than in the large batch.
"""

from __future__ import annotations

from dataclasses import replace

import tvm
from tvm import relay
from tvm.relay.backend import te_compiler

from heteroplace.lower.kernels import Kernel, KernelCall, KernelCalls, Value
from heteroplace.lower.workspace import Workspace
from heteroplace.machine.cpu import last_cache_bytes

CHUNK_BYTES = 1 << 20
"""A spacer kernel reads one chunk and writes another."""
SPACER = "heteroplace_spacer"
"""Symbol of its kernel."""


def spacer_kernel(target: tvm.target.Target) -> Kernel:
    """Return the kernel that reads a chunk and writes another.

    It has no op, as it is no part of the network; so its time is not counted (`PlanProgram`).
    """
    data = relay.var("chunk", shape=(CHUNK_BYTES // 4,), dtype="float32")
    body = relay.nn.relu(data)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([data], body)))
    function = relay.transform.FuseOps()(mod)["main"].body.op
    with target:
        lowered = te_compiler.get().lower(function, target)
    ((_, body_function),) = lowered.funcs.functions.items()
    named = {tvm.ir.GlobalVar(SPACER): body_function.with_attr("global_symbol", SPACER)}
    return Kernel(SPACER, tvm.IRModule(named), target, Workspace())


def with_traffic(calls: KernelCalls, spacer: Kernel, ratio: float) -> KernelCalls:
    """Put spacers between the calls of a network.

    Parameters
    ----------
    calls
        Of the small batch, all for one device.
    ratio
        Size of the large batch over that of the small one, >= 1.
    """
    ring = max(2, 2 * last_cache_bytes() // CHUNK_BYTES)
    first = len(calls.values)
    chunks = [
        Value((CHUNK_BYTES // 4,), "float32", input_name=f"{SPACER}.{index}")
        for index in range(ring)
    ]
    spaced: list[KernelCall] = []
    position = 0
    owed_bytes = 0.0
    for call in calls.calls:
        # More than the whole ring evicts nothing more.
        count = int(min(owed_bytes, ring * CHUNK_BYTES) // (2 * CHUNK_BYTES))
        owed_bytes = max(0.0, min(owed_bytes, ring * CHUNK_BYTES) - count * 2 * CHUNK_BYTES)
        for _ in range(count):
            # Both are said to be read: they are inputs, and nobody else reads what is written.
            pair = (first + position, first + (position + 1) % ring)
            spaced.append(KernelCall(SPACER, call.segment, call.task, pair, ()))
            position = (position + 2) % ring
        spaced.append(call)
        owed_bytes += (ratio - 1) * _touched_bytes(calls, call)
    kernels = {**calls.kernels, SPACER: spacer}
    return replace(calls, values=(*calls.values, *chunks), calls=tuple(spaced), kernels=kernels)


def _touched_bytes(calls: KernelCalls, call: KernelCall) -> int:
    """Bytes of the items that a call reads and writes; weights are not among them."""
    values = (calls.values[value] for value in (*call.reads, *call.writes))
    return sum(value.bytes for value in values if value.constant is None)
