"""A value in Relay -> the same rounded to bfloat16, in float32."""

from __future__ import annotations

from tvm import relay


def rounded_value(value: relay.Expr) -> relay.Expr:
    """Return float32 numbers with the lower half of their bits rounded away, ties to even."""

    def const(number: int) -> relay.Constant:
        return relay.const(number, "uint32")

    bits = relay.reinterpret(value, "uint32")
    is_odd = relay.bitwise_and(relay.right_shift(bits, const(16)), const(1))
    nearest = relay.add(relay.add(bits, const(0x7FFF)), is_odd)
    upper = relay.bitwise_and(nearest, const(0xFFFF0000))
    return relay.where(relay.isnan(value), value, relay.reinterpret(upper, "float32"))
