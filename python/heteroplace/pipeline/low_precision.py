"""What a plan multiplies in less than float32, and how far its outputs may be off."""

from __future__ import annotations

import tvm

from heteroplace.model.solution import Solution
from heteroplace.place_options import PlaceOptions
from heteroplace.relay.annotate.requested_options import requested_number
from heteroplace.relay.targets import device_target, has_bfloat16_kernels


def low_precision_text(solution: Solution) -> str:
    """Return which devices of a plan multiply in bfloat16, as a clause; "": none."""
    used = set(solution.devices_used)
    names = [
        device.name
        for device in solution.cluster.devices
        if device.name in used and has_bfloat16_kernels(device_target(device))
    ]
    if not names:
        return ""
    return f"{' and '.join(names)} {'multiplies' if len(names) == 1 else 'multiply'} in bfloat16"


def max_error_of(mod: tvm.IRModule) -> float:
    """Return the option `max_error` by which a module was placed."""
    return requested_number(mod, "max_error", PlaceOptions().max_error)
