"""Tuned kernels and libraries' ones of a placed module <-> an attribute of it, to make them anew.

The module is compiled where the store of its tuning may not be, and what a plan runs must be what
was measured for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import tvm
from tvm import relay

from heteroplace.model.cluster import Cluster
from heteroplace.model.implementations import LIBRARY_MAKERS, makers_of

TUNINGS_ATTRIBUTE = "heteroplace_tunings"
"""Attribute of `main`: a constant of the bytes of a JSON object, traces by digest and symbols of
libraries' kernels by their keys."""


def with_tunings(mod: tvm.IRModule, cluster: Cluster, tunings: Mapping[str, str]) -> tvm.IRModule:
    """Return an annotated module that carries the traces of its tuned kernels, and
    the symbols of its kernels by NVIDIA's libraries.

    Parameters
    ----------
    cluster
        Of the solution; without twins of such kernels nothing is to be carried.
    """
    if not {"tuned", *LIBRARY_MAKERS}.intersection(makers_of(cluster.devices)):
        return mod
    text = json.dumps(dict(sorted(tunings.items())))
    data = np.frombuffer(text.encode(), dtype="uint8").copy()
    main = mod["main"].with_attr(TUNINGS_ATTRIBUTE, relay.const(data))
    return tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main})


def read_tunings(mod: tvm.IRModule) -> dict[str, str]:
    """Return the traces that a module carries, by digest; empty: it has no tuned kernels."""
    attributes = mod["main"].attrs
    if attributes is None or TUNINGS_ATTRIBUTE not in attributes:
        return {}
    tunings: dict[str, str] = json.loads(attributes[TUNINGS_ATTRIBUTE].data.numpy().tobytes())
    return tunings
