"""Count the floating point operations of Relay calls; a multiply-add counts two."""

from __future__ import annotations

import math

from tvm import relay

from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.expressions import static_shape, tensor_types


def call_flops(call: relay.Call) -> int:
    """Return the floating point operations of one call of an operator; types must be inferred."""
    name = call.op.name
    outputs = [math.prod(static_shape(type_)) for type_ in tensor_types(call.checked_type)]
    counted = traits_of(name).flops
    if counted == "none":
        return 0
    if "conv" in name and len(call.args) == 2 and hasattr(call.attrs, "kernel_size"):
        if "transpose" in name:  # every input element is multiplied, not every output element
            elements = math.prod(static_shape(call.args[0].checked_type))
            return 2 * elements * _weights_per(call, "Ii")
        return 2 * outputs[0] * _weights_per(call, "Oo")
    if name == "heteroplace_winograd":  # as of plain sums, whatever the algorithm saves
        _, _, _, blocks, lanes, *_ = static_shape(call.args[1].checked_type)
        return 2 * outputs[0] * blocks * lanes * 9
    if name == "heteroplace_bfloat16_conv2d":
        _, blocks, *size, pairs, _, pair = static_shape(call.args[1].checked_type)
        return 2 * outputs[0] * blocks * math.prod(size) * pairs * pair
    if counted == "recurrent":  # each row of each step meets all weights
        steps, rows, _ = static_shape(call.args[0].checked_type)
        return 2 * steps * rows * math.prod(static_shape(call.args[1].checked_type))
    if counted == "attention":  # of a cache that is full
        return 4 * outputs[0] * static_shape(call.args[1].checked_type)[2]
    if counted == "product":  # each element of the result is a sum of products
        data = static_shape(call.args[0].checked_type)
        weights = math.prod(static_shape(call.args[1].checked_type))
        rows = outputs[0] // max(1, _columns(call))
        depth = data[-2] if _transposes_a(call) else data[-1]
        return 2 * rows * _columns(call) * depth if weights else 0
    if "pool2d" in name and "pool_size" in set(call.attrs.keys()):
        return outputs[0] * math.prod(int(extent) for extent in call.attrs.pool_size)
    inputs = [
        math.prod(static_shape(type_))
        for argument in call.args
        for type_ in tensor_types(argument.checked_type)
    ]
    # A reduction reads more than it writes, an elementwise op writes as much as it reads.
    return max([*outputs, *inputs])


def _transposes_a(call: relay.Call) -> bool:
    return "transpose_a" in set(call.attrs.keys()) and bool(call.attrs["transpose_a"])


def has_plain_weights(call: relay.Call) -> bool:
    """Say whether the weights of a convolution have the dimensions that their layout names.

    Weights transformed for Winograd's algorithm have not; other ops always have.
    """
    if "conv" not in call.op.name or len(call.args) != 2:
        return True
    layout = getattr(call.attrs, "kernel_layout", None)
    if layout is None or "winograd" in call.op.name:
        return bool(layout is None)
    letters = sum(letter.isalpha() for letter in layout)
    return bool(letters == len(static_shape(call.args[1].checked_type)))


def _columns(call: relay.Call) -> int:
    return static_shape(tensor_types(call.checked_type)[0])[-1]


def _weights_per(call: relay.Call, channel: str) -> int:
    """Weights for each channel of one side: "Oo" of the output, "Ii" of the input.

    In blocked layouts such as OIHW4i4o the channels of a side are two letters.
    """
    shape = static_shape(call.args[1].checked_type)
    letters = [letter for letter in call.attrs.kernel_layout if letter.isalpha()]
    channels = math.prod(
        extent for letter, extent in zip(letters, shape, strict=True) if letter in channel
    )
    return math.prod(shape) // max(1, channels)
