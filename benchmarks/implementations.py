"""Who made the kernels of a network: TVM, or this package.

A kernel is TVM's own if `kernels="tvm"` gives the same one; it is lowered once more to see that.
"""

from __future__ import annotations

from collections import defaultdict

from benchmarks.peers.stock import in_pass_context
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.kernels.kernel_identity import describe_kernels
from heteroplace.model.cluster import Cluster
from heteroplace.relay.targets import with_stock_kernels

TVM = "tvm"
OWN = "heteroplace"


def stock_identities(compiled: CompiledNetwork, cluster: Cluster) -> frozenset[str]:
    """Return the identities of the kernels that the first device has with `kernels="tvm"`."""
    with in_pass_context():
        calls = compiled.calls(with_stock_kernels(cluster), [0] * len(compiled.graph.tasks))
        return frozenset(kernel.identity for kernel in describe_kernels(calls).values())


def task_providers(compiled: CompiledNetwork, cluster: Cluster) -> list[str]:
    """Return for each task TVM, or OWN: one of its kernels is this package's."""
    stock = stock_identities(compiled, cluster)
    with in_pass_context():
        calls = compiled.calls(cluster, [0] * len(compiled.graph.tasks))
        kernels = describe_kernels(calls)
    found: dict[str, set[str]] = defaultdict(set)
    for call in calls.calls:
        found[call.task].add(kernels[call.kernel].identity)
    return [TVM if found[task.name] <= stock else OWN for task in compiled.graph.tasks]
