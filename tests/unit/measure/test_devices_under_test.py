"""Which devices are measured: one of each that take equally long."""

from __future__ import annotations

from dataclasses import replace

from heteroplace.measure.devices_under_test import device_class, devices_beside, turn_partner
from heteroplace.model.cluster import Cluster, Device, Memory


def test_unlike_gpus_of_one_architecture_are_not_measured_as_one() -> None:
    models = ("NVIDIA RTX 3090", "NVIDIA RTX 3060", "NVIDIA RTX 3090")
    target = "cuda -arch=sm_86"
    devices = tuple(
        Device(f"gpu{i}", "cuda", target, i, i, model=model) for i, model in enumerate(models)
    )
    memories = tuple(Memory(f"gpu{i}", 10**9) for i in range(3))
    cluster = Cluster("box", memories, devices)
    first, second, third = (device_class(cluster, index) for index in range(3))
    assert first == third != second


def test_every_second_task_is_done_by_a_device_of_the_same_class() -> None:
    """Those of one core come first where others are to be kept busy, here they do not."""
    sizes = [(0, 1), (2, 3), (4,)]
    devices = [
        Device(f"cpu.{at}", "cpu", "llvm", 0, 0, numbers) for at, numbers in enumerate(sizes)
    ]
    cluster = Cluster("box", (Memory("ram", 2**34),), tuple(devices), host=0)
    assert turn_partner(cluster, 0, [0, 0]) == 1
    assert turn_partner(cluster, 2, [2, 2]) == 0
    assert devices_beside(cluster, 0, [0, 0]) == [2, 1]
    assert turn_partner(replace(cluster, devices=cluster.devices[:1]), 0, [0]) is None
