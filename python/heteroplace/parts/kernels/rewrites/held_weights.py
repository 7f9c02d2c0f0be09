"""Network + cluster -> `weight_bytes` of its tasks as the kernels of their devices hold weights.

The graph is cut before devices are known, and counts weights by their element types. Where every
device that may run a task reads its weights in fewer bits (`narrow_weights`, or
`bfloat16_products`), they are counted so, for limits of memory and for loads; where one does not, a
GPU or kernels of TVM's own, the larger size stays, as a plan has to fit wherever the task goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import tvm
from tvm import relay

from heteroplace.entries import load_entry
from heteroplace.errors import LoweringError
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.cost import allowed_devices
from heteroplace.parts.kernels.rewrites.unpacked import PACKING_LEVEL, ReadWeights, weights_of
from heteroplace.relay.expressions import post_order, shared_array, task_of_span
from heteroplace.relay.targets import device_target, has_bfloat16_kernels, has_stock_kernels
from heteroplace.relay.tasks.network import Network

_BFLOAT16_WEIGHTS = "heteroplace.parts.kernels.rewrites.bfloat16_products:bfloat16_weights"
"""Loaded where targets multiply in bfloat16."""


def with_held_weights(network: Network, cluster: Cluster) -> Network:
    """Return the network with what the weights of its tasks take on devices of `cluster`.

    The opt level is that of the current PassContext. It may be done again with another cluster of
    the same CPUs, such as one with kernels of other makers.
    """
    graph = network.graph
    held = network.held_bytes
    is_narrow = [_narrow_target(device) is not None for device in cluster.devices]
    if held is None and any(is_narrow):
        held = _held_bytes(network, cluster)
        network = replace(network, held_bytes=held)
    if not held:
        return network
    tasks = []
    for task, devices in zip(graph.tasks, allowed_devices(graph, cluster), strict=True):
        if task.name in held:
            wide, narrow = held[task.name]
            fits = all(is_narrow[device] for device in devices)
            task = replace(task, weight_bytes=narrow if fits else wide)
        tasks.append(task)
    return network.with_graph(replace(graph, tasks=tuple(tasks)))


def _held_bytes(network: Network, cluster: Cluster) -> dict[str, tuple[int, int]]:
    """By task that has such weights, bytes of all of them in their types and as they are held."""
    by_text = {device.target: _narrow_target(device) for device in cluster.devices}
    targets = [target for target in by_text.values() if target is not None]
    saved = defaultdict[str, int](int)
    saved_bytes: dict[ReadWeights, int] = {}
    counted: set[tuple[str, relay.Constant]] = set()
    for call in post_order(network.mod["main"].body):
        if not isinstance(call, relay.Call):
            continue
        rounded = _rounded_weights(call, targets)
        weights = weights_of(call) if rounded is None else ReadWeights(rounded)
        if weights is None:
            continue
        if weights not in saved_bytes:
            wide = shared_array(weights.constant.data).nbytes
            narrow = wide // 2
            if rounded is None:
                narrow = max(weights.narrow_bytes(target) for target in targets)
            saved_bytes[weights] = wide - narrow
        task = task_of_span(call) or ""
        if saved_bytes[weights] and (task, weights.constant) not in counted:
            counted.add((task, weights.constant))
            saved[task] += saved_bytes[weights]
    weight_bytes = {
        task.name: task.weight_bytes for task in network.graph.tasks if task.name in saved
    }
    return {name: (wide, wide - saved[name]) for name, wide in weight_bytes.items()}


def _rounded_weights(
    call: relay.Call, targets: Sequence[tvm.target.Target]
) -> relay.Constant | None:
    """The weights of a call that all targets multiply in bfloat16; None: there are none."""
    if not all(map(has_bfloat16_kernels, targets)):
        return None
    weights: relay.Constant | None = load_entry(_BFLOAT16_WEIGHTS)(call)
    return weights


def _narrow_target(device: Device) -> tvm.target.Target | None:
    """The target of a device that holds weights in fewer bits; None: it does not, as nothing is
    compiled for it, or by TVM's own kernels."""
    level = tvm.transform.PassContext.current().opt_level
    if device.kind != "cpu" or level < PACKING_LEVEL:
        return None
    try:
        target = device_target(device)
    except LoweringError:  # it is planned for, by costs that are given
        return None
    return None if has_stock_kernels(target) else target
