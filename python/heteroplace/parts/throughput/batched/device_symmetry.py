"""Problem -> which devices and nodes may change places, and one plan of all that then are equal.

DiviML, section IV-F: equal devices in a node, and equal nodes, make plans equal that differ only in
who is who: on six nodes with two pairs of equal GPUs each 4**6 * 6! of them. A node is the computer
that a device sits in (`Device.host`).

Unlike DiviML, which orders devices that are the same model: "equal" is measured, in times, memory,
links and shared units, within a tolerance. Within 0 plans that change places stay exactly as long;
within more they are nearly so, which finds plans but proves no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from heteroplace.errors import SolverError
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.solve.deadline import NEVER, Deadline, TimeUpError
from heteroplace.solve.problem import Problem

EQUAL_WITHIN = 0.01
"""Devices are treated as equal if no time, size or speed differs by more than this part."""

MAX_IMAGES = 96
"""Of one labelling that are looked at."""

Exchange = tuple[tuple[int, ...], tuple[int, ...]]
"""Devices that take the place of others, one by one, and the others."""


@dataclass(frozen=True)
class DeviceSymmetry:
    """Classes of devices that may change places: in a node, and with all of another node."""

    node_classes: tuple[tuple[tuple[int, ...], ...], ...]
    """Classes of equal nodes; of each node its devices, equal ones at the same place in each node
    of a class, in the order of the first."""
    device_classes: tuple[tuple[int, ...], ...]
    """Equal devices of one node, ascending; every device is in one class."""

    @property
    def num_orders(self) -> int:
        """Orders of devices and nodes that give equal plans; 1: nothing is symmetric."""
        orders = 1
        for members in (*self.device_classes, *self.node_classes):
            for count in range(2, len(members) + 1):
                orders *= count
        return orders

    def images(self, labels: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return what exchanges make of a labelling [num_devices], itself first; <= MAX_IMAGES.

        Those are found first that need few exchanges.
        """
        labellings = {labels: None}
        waiting = [labels]
        if not labels:
            return waiting
        for source in waiting:
            for one, other in self.exchanges:
                image = list(source)
                for a, b in zip(one, other, strict=True):
                    image[a], image[b] = source[b], source[a]
                if tuple(image) not in labellings and len(labellings) < MAX_IMAGES:
                    labellings[tuple(image)] = None
                    waiting.append(tuple(image))
        return waiting

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Each of equal devices, and of equal nodes, with the next: all others follow from them."""
        all_exchanges: list[Exchange] = []
        for devices in self.device_classes:
            all_exchanges += [((one,), (other,)) for one, other in pairwise(devices)]
        for nodes in self.node_classes:
            all_exchanges += pairwise(nodes)
        return tuple(all_exchanges)

    def canonical(self, labels: Sequence[object]) -> tuple[int, ...]:
        """Return which device takes the place of each, so that the labels come in one order.

        Two labellings that differ only by exchanges become the same. O(devices log devices).

        Parameters
        ----------
        labels
            [num_devices], what is known of each device; of one type that can be compared.
        """
        image = list(range(len(labels)))
        for devices in self.device_classes:
            ordered = sorted(devices, key=lambda device: (labels[device], device))
            for place, device in zip(devices, ordered, strict=True):
                image[place] = device
        smallest = list(image)
        for nodes in self.node_classes:
            filled = [[image[device] for device in node] for node in nodes]
            order = sorted(
                range(len(nodes)),
                key=lambda node: ([labels[device] for device in filled[node]], node),
            )
            for places, source in zip(nodes, order, strict=True):
                for place, device in zip(places, filled[source], strict=True):
                    smallest[place] = device
        return tuple(smallest)


def device_symmetry(
    problem: Problem, tolerance: float = 0.0, deadline: Deadline = NEVER
) -> DeviceSymmetry:
    """Return the devices and nodes that may change places.

    Parameters
    ----------
    tolerance
        Largest part by which times, sizes and speeds may differ; 0: not at all.

    Raises
    ------
    SolverError
        The tolerance is not in [0, 1).
    TimeUpError
        Past the deadline.
    """
    if not 0 <= tolerance < 1:
        raise SolverError(f"tolerance of equal devices must be in [0, 1), got {tolerance!r}")
    comparison = _Comparison(problem, tolerance, deadline)
    nodes: dict[str, list[int]] = {}
    for device_id, device in enumerate(problem.cluster.devices):
        nodes.setdefault(device.host, []).append(device_id)
    inside: list[tuple[int, ...]] = []
    for devices in nodes.values():
        inside += comparison.equal_devices(devices)
    groups = [tuple(devices) for devices in nodes.values()]
    return DeviceSymmetry(comparison.equal_nodes(groups, inside), tuple(inside))


def symmetry_in_time(problem: Problem, tolerance: float, deadline: Deadline) -> DeviceSymmetry:
    """Return `device_symmetry`; past the deadline, or where the tolerance is negative, every device
    is alone."""
    alone = DeviceSymmetry((), tuple((device,) for device in range(len(problem.cluster.devices))))
    try:
        return alone if tolerance < 0 else device_symmetry(problem, tolerance, deadline)
    except TimeUpError:
        return alone


class _Comparison:
    """Which devices and nodes may change places; what hangs on no group is looked up once."""

    def __init__(self, problem: Problem, tolerance: float, deadline: Deadline) -> None:
        cluster = problem.cluster
        self._problem, self._tolerance, self._deadline = problem, tolerance, deadline
        units = [set(ids) for ids in cluster.unit_ids]
        self._shares = np.array([[bool(one & other) for other in units] for one in units])
        """[num_devices, num_devices]: whether two devices have a unit in common."""
        count = len(cluster.memories)
        # Times are linear between the measured points of links, and behind them.
        sizes = sorted({size for link in cluster.links for size, _ in link.measured})
        self._ways = np.full((2 + len(sizes), count, count), -1, dtype=np.int64)
        """Of routes latency, bandwidth, and times of the sizes that some link was measured with,
        each [num_memories, num_memories]; -1: there is none."""
        self._class_of: dict[int, int] = {}
        """Of each device its class inside its node."""
        for src in range(count):
            deadline.check()
            for dst in range(count):
                if src != dst and cluster.is_reachable(src, dst):
                    route = cluster.route(src, dst)
                    links = [cluster.links[link] for link in route]
                    self._ways[:, src, dst] = (
                        sum(link.latency_ns for link in links),
                        min(link.bytes_per_second for link in links),
                        *(cluster.transfer_ns(route, size) for size in sizes),
                    )

    def equal_devices(self, devices: Sequence[int]) -> list[tuple[int, ...]]:
        """Split the devices of a node into classes of which each two may change places."""
        groups: list[list[int]] = []
        for device in devices:
            for group in groups:
                self._deadline.check()
                if all(self._can_exchange((other,), (device,)) for other in group):
                    group.append(device)
                    break
            else:
                groups.append([device])
        return [tuple(group) for group in groups]

    def equal_nodes(
        self, nodes: Sequence[tuple[int, ...]], inside: Sequence[tuple[int, ...]]
    ) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Split nodes into classes of which each two may change places.

        The devices of a node come in the order of their equals in the first of its class.

        Parameters
        ----------
        inside
            `equal_devices` of all nodes.
        """
        self._class_of = {device: number for number, ids in enumerate(inside) for device in ids}
        groups: list[list[tuple[int, ...]]] = []
        for node in nodes:
            for group in groups:
                order = self._order_like(group[0], node)
                if order and all(self._can_exchange(other, order) for other in group[1:]):
                    group.append(order)
                    break
            else:
                groups.append([node])
        return tuple(tuple(group) for group in groups)

    def _order_like(self, first: Sequence[int], node: Sequence[int]) -> tuple[int, ...]:
        """Return the devices of a node in an order in which they may change places with those of
        the first; () if there is none.

        A search in depth: a device at a time, from those that are as fast, as large and as far from
        the ones before it. Of equal devices only one is tried at each place, as they may change
        places among each other.
        """
        if len(first) != len(node):
            return ()
        waiting: list[tuple[int, ...]] = [()]
        while waiting:
            self._deadline.check()
            order = waiting.pop()
            if len(order) == len(first):
                if self._can_exchange(first, order):
                    return order
                continue
            next_of_class: dict[int, int] = {}
            for device in node:
                if device not in order:
                    next_of_class.setdefault(self._class_of[device], device)
            # The last is looked at first, so that ties go to the order of the devices.
            for device in sorted(next_of_class.values(), reverse=True):
                if self._is_like(first, (*order, device)):
                    waiting.append((*order, device))
        return ()

    def _is_like(self, first: Sequence[int], order: Sequence[int]) -> bool:
        """Whether the last device of an order is to those before it what its counterpart is."""
        one, other = first[len(order) - 1], order[-1]
        devices, run_ns = self._problem.cluster.devices, self._problem.native.batch_run_ns
        memories = self._problem.cluster.memories
        own = [devices[device].memory for device in first[: len(order)]]
        theirs = [devices[device].memory for device in order]
        sizes = [np.array([memories[ids[-1]].bytes]) for ids in (own, theirs)]
        before = list(first[: len(order)])
        return (
            self._are_near(sizes[0], sizes[1], -1)
            and self._are_near(run_ns[:, :, one], run_ns[:, :, other], IMPOSSIBLE)
            and bool((self._shares[one, before] == self._shares[other, list(order)]).all())
            and all(
                self._are_near(rates[own[-1], own], rates[theirs[-1], theirs], -1)
                and self._are_near(rates[own, own[-1]], rates[theirs, theirs[-1]], -1)
                for rates in self._ways
            )
        )

    def _can_exchange(self, first: Sequence[int], second: Sequence[int]) -> bool:
        """Whether every plan stays one, and as long, if two groups of devices change places."""
        if len(first) != len(second):
            return False
        cluster = self._problem.cluster
        image = list(range(len(cluster.devices)))
        for one, other in zip(first, second, strict=True):
            image[one], image[other] = other, one
        moved: dict[int, int] = {}
        for device, other in enumerate(image):
            memory, to = cluster.devices[device].memory, cluster.devices[other].memory
            if moved.setdefault(memory, to) != to:
                return False
        if cluster.host is not None and moved.get(cluster.host, cluster.host) != cluster.host:
            return False
        return (
            self._has_equal_times(image)
            and bool((self._shares == self._shares[np.ix_(image, image)]).all())
            and self._has_equal_memories(moved)
        )

    def _has_equal_times(self, image: Sequence[int]) -> bool:
        run_ns = self._problem.native.batch_run_ns
        return self._are_near(run_ns, run_ns[:, :, list(image)], IMPOSSIBLE)

    def _has_equal_memories(self, moved: dict[int, int]) -> bool:
        memories = self._problem.cluster.memories
        image = [moved.get(memory, memory) for memory in range(len(memories))]
        if sorted(image) != list(range(len(memories))):
            return False
        sizes = np.array([memory.bytes for memory in memories])
        pairs = np.ix_(image, image)
        return self._are_near(sizes, sizes[image], -1) and all(
            self._are_near(rates, rates[pairs], -1) for rates in self._ways
        )

    def _are_near(self, one: IntArray, other: IntArray, none: int) -> bool:
        """Whether numbers differ by no more than the tolerance; `none` is near itself alone."""
        if ((one == none) != (other == none)).any():
            return False
        largest = np.maximum(0, np.maximum(one, other))
        return bool((np.abs(one - other) <= self._tolerance * largest).all())
