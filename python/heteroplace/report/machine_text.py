"""A cluster -> a short text about its hardware: processors with their cores, and GPUs."""

from __future__ import annotations

import re

from heteroplace.model.cluster import Cluster

_MARKS = re.compile(r"\((?:R|TM)\)", re.IGNORECASE)


def machine_text(cluster: Cluster, processor: str = "") -> str:
    """Return the processors and other devices of a cluster, those that are alike together.

    A device without a model is called by its kind; the cluster's name then comes first.

    Parameters
    ----------
    processor
        Name of the processor of CPU devices that have no model; "": unknown.

    >>> from heteroplace.model.cluster import Device, Memory
    >>> name = "Intel(R) Xeon(R) Gold 6132"
    >>> cpu = Device("cpu.all", "cpu", "llvm", 0, 0, cores=(0, 1), model=name)
    >>> machine_text(Cluster("local", (Memory("ram", 2**30),), (cpu,)))
    'Intel Xeon Gold 6132, 2 cores'
    """
    units: dict[tuple[str, bool], set[str]] = {}
    is_named = True
    for device in cluster.devices:
        model = device.model or (processor if device.kind == "cpu" and not device.host else "")
        is_named = is_named and bool(model)
        name = " ".join(_MARKS.sub("", model).split()) or device.kind
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
    return text if is_named else f"{cluster.name}: {text}"
