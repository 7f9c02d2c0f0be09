"""Calls of a routed network -> those of the same network with all branches at one capacity.

What a branch costs at a capacity is measured as any network is: all branches are run, each on as
many rows, at the start of its buffers. What comes out is of no use, as rows of one branch lie over
those of another; what is read and written is as much as in a run that chooses all branches so.
"""

from __future__ import annotations

from dataclasses import replace

from heteroplace.lower.kernels import KernelCall, KernelCalls, Variant


def at_capacity(calls: KernelCalls, capacity: int) -> KernelCalls:
    """Return calls without branches.

    Parameters
    ----------
    capacity
        Each branch is at the smallest of its own that is as large, else at its largest.
    """
    values = [
        value if value.rows is None else replace(value, rows=None, alias_of=value.rows.buffer)
        for value in calls.values
    ]
    routers = {router.router.name: router.router for router in calls.routers}
    calls_at_capacity = []
    for call in calls.calls:
        if call.branch is None:
            calls_at_capacity.append(call)
            continue
        name, branch = call.branch
        chosen = routers[name].capacity_of(branch, capacity)
        calls_at_capacity += [
            _plain(call, variant) for variant in call.variants if variant.capacity in (0, chosen)
        ]
    return replace(calls, values=tuple(values), calls=tuple(calls_at_capacity), routers=())


def _plain(call: KernelCall, variant: Variant) -> KernelCall:
    return replace(
        call,
        kernel=variant.kernel,
        reads=variant.reads,
        writes=variant.writes,
        branch=None,
        variants=(),
    )
