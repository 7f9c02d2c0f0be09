"""A store and a cluster -> the tuned kernels that the store keeps for its CPUs."""

from __future__ import annotations

from heteroplace.costs.tunings import TunedPlace, find_tunings
from heteroplace.machine.fingerprint import device_fingerprint
from heteroplace.measure.cost_models.cost_model import CostOptions
from heteroplace.model.cluster import Cluster
from heteroplace.run.missing_devices import missing_devices


def known_tunings(options: CostOptions, cluster: Cluster) -> dict[str, str]:
    """Return the traces that are kept for the CPUs of a cluster in this machine, by digest.

    Of a function that was tuned for several targets here, the first device's is taken.

    Raises
    ------
    CostStoreError
        The store cannot be used, or what it holds is damaged.
    """
    tunings: dict[str, str] = {}
    with options.open_store() as store:
        if store is None:
            return tunings
        places: dict[TunedPlace, None] = {}
        for device in cluster.devices:
            if device.kind == "cpu" and not missing_devices(cluster, [device.name]):
                places.setdefault(TunedPlace(device.target, device_fingerprint(device)))
        with store.optional():
            for place in places:
                for digest, tuning in find_tunings(store, place).items():
                    if tuning.kept:
                        tunings.setdefault(digest, tuning.kept)
    return tunings
