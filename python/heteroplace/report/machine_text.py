"""A cluster -> a short text about its hardware: processors with their cores, and GPUs."""

from __future__ import annotations

import re

from heteroplace.model.cluster import Cluster

_MARKS = re.compile(r"\((?:R|TM)\)", re.IGNORECASE)


def machine_text(cluster: Cluster) -> str:
    """Return the processors and other devices of a cluster, those that are alike together.

    A device without a model is called by its kind; the cluster's name then comes first.

    >>> from heteroplace.model.cluster import Device, Memory
    >>> name = "Intel(R) Xeon(R) Gold 6132"
    >>> cpu = Device("cpu.all", "cpu", "llvm", 0, 0, cores=(0, 1), model=name)
    >>> machine_text(Cluster("local", (Memory("ram", 2**30),), (cpu,)))
    'Intel Xeon Gold 6132, 2 cores'
    """
    units: dict[tuple[str, bool], set[str]] = {}
    for device in cluster.devices:
        name = " ".join(_MARKS.sub("", device.model).split()) or device.kind
        # Parts of one GPU are one GPU.
        owned = device.units if device.cores else (f"{device.host}/{device.kind}{device.index}",)
        units.setdefault((name, bool(device.cores)), set()).update(owned)
    texts = []
    for (name, has_cores), owned_units in units.items():
        count = len(owned_units)
        if has_cores:
            texts.append(f"{name}, {count} {'core' if count == 1 else 'cores'}")
        else:
            texts.append(name if count == 1 else f"{count} x {name}")
    text = " + ".join(texts)
    return text if all(device.model for device in cluster.devices) else f"{cluster.name}: {text}"
