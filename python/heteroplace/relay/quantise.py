"""Numbers -> whole numbers of a few bits, rounded half to even, as ONNX quantises.

TVM's own quantisation rounds half away from zero, which is another step at every tie.
"""

from __future__ import annotations

import numpy as np
from tvm import relay

from heteroplace.relay.tasks.folded_steps import ROUNDING_SHIFT

_MAX_BYTE = 255.0


def quantized(steps: relay.Expr, zero: relay.Expr | None, dtype: str) -> relay.Expr:
    """Return float32 numbers, rounded half to even, with the zero point added, as an integer type.

    A sum with `ROUNDING_SHIFT` has no fraction. TVM has no quicker rounding for vectors.
    The clip, beyond the limits of 16 bits with any zero point, keeps TVM from leaving out both.
    """
    wide, shift = ROUNDING_SHIFT // 8, relay.const(float(ROUNDING_SHIFT))
    aligned = relay.add(steps, shift)
    within = relay.clip(aligned, float(ROUNDING_SHIFT - wide), float(ROUNDING_SHIFT + wide))
    rounded = relay.subtract(within, shift)
    if zero is not None:
        rounded = relay.add(rounded, relay.cast(zero, "float32"))
    return saturated(rounded, dtype)


def saturated(data: relay.Expr, dtype: str) -> relay.Expr:
    """Return whole float32 numbers as an integer type, within its limits."""
    limits = np.iinfo(dtype)
    return relay.cast(relay.clip(data, float(limits.min), float(limits.max)), dtype)


def dynamically_quantized(
    data: relay.Expr, lowest: relay.Expr, highest: relay.Expr
) -> tuple[relay.Expr, relay.Expr, relay.Expr]:
    """Return float32 numbers as uint8, their scale and their zero point, by the range with 0.

    Source: ONNX operator specification, DynamicQuantizeLinear.

    Parameters
    ----------
    lowest, highest
        Of the data.
    """
    nothing = relay.const(0.0)
    lowest = relay.minimum(lowest, nothing)
    span = relay.subtract(relay.maximum(highest, nothing), lowest)
    scale = relay.divide(span, relay.const(_MAX_BYTE))
    # Of nothing but zeros any scale is right; onnxruntime has 1.
    scale = relay.where(relay.equal(span, nothing), relay.const(1.0), scale)
    point = quantized(relay.divide(relay.negative(lowest), scale), None, "uint8")
    return quantized(relay.divide(data, scale), point, "uint8"), scale, point
