"""Which devices are measured: one of each that take equally long."""

from __future__ import annotations

from heteroplace.measure.devices_under_test import device_class
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
