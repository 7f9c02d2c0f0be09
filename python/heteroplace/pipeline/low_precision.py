"""What a plan multiplies in less than float32, and how far its outputs may be off."""

from __future__ import annotations

import tvm

from heteroplace.model.solution import Solution
from heteroplace.place_options import PlaceOptions
from heteroplace.relay.annotate.requested_options import requested_value
from heteroplace.relay.targets import device_target, has_bfloat16_kernels, has_int8_activations


def low_precision_text(solution: Solution) -> str:
    """Return which devices of a plan multiply in less than float32, as a clause; "": none."""
    used = set(solution.devices_used)
    devices = [device for device in solution.cluster.devices if device.name in used]
    clauses = []
    for has_kernels, what in (
        (has_bfloat16_kernels, "in bfloat16"),
        (has_int8_activations, "activations of 8 bits by weights of 4 and 8 bits"),
    ):
        names = [device.name for device in devices if has_kernels(device_target(device))]
        if names:
            verb = "multiplies" if len(names) == 1 else "multiply"
            clauses.append(f"{' and '.join(names)} {verb} {what}")
    return " and ".join(clauses)


def max_error_of(mod: tvm.IRModule) -> float:
    """Return the option `max_error` by which a module was placed."""
    return float(requested_value(mod, "max_error", PlaceOptions().max_error))
