"""Weights below the smallest normal number -> zeros.

    conv2d(%x, const[.., 3e-40, ..])  ==>  conv2d(%x, const[.., 0, ..])

Training with weight decay leaves such weights: a tenth of those of PP-OCR's detection. Processors
take over a hundred cycles for a product with a denormal number, one below 1.2e-38. As a factor or a
summand it changes a sum by far less than rounding does. The exception is an infinite input, since
infinity times 0 is NaN.
"""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import ops_where
from heteroplace.relay.expressions import (
    function_pass,
    op_name,
    post_order,
    rebuilt,
    shared_array,
)

_PRODUCTS = ops_where(lambda op: op.kind in ("product", "recurrent") or op.labels == "convolution")
_SCALES_AND_SUMS = frozenset({"multiply", "add", "subtract", "nn.bias_add"})
"""Of these, single numbers stay: an addend may be there to keep a logarithm finite."""
_MAGNITUDE, _SMALLEST = 0x7FFFFFFF, 0x00800000
"""Bits of a float32 without its sign; those of the smallest normal number."""
_CHUNK = 2**18
"""Numbers that are looked at together, in the second cache."""


def DenormalWeights() -> tvm.transform.Pass:  # noqa: N802  (named like TVM's passes)
    """Return the pass."""
    return function_pass("DenormalWeights", without_denormal_weights, opt_level=3)


def without_denormal_weights(function: relay.Function) -> relay.Function:
    """Return a function whose weights in float32 are normal numbers or zeros; the same function if
    they are."""
    weights: dict[relay.Expr, relay.Expr] = {}
    for node in post_order(function.body):
        for constant in _weights_of(node):
            if constant not in weights and (new := _without_denormals(constant)) is not None:
                weights[constant] = new
    if not weights:
        return function

    def rewritten(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if weights.keys().isdisjoint(_weights_of(old)):
            return new
        arguments = [weights.get(one, other) for one, other in zip(old.args, new.args, strict=True)]
        return relay.Call(new.op, arguments, new.attrs, new.type_args, new.span)

    return rebuilt(function, rewritten)


def _weights_of(node: relay.Expr) -> list[relay.Constant]:
    """The constants among the factors and summands of a call; []: it has none."""
    name = op_name(node)
    if name not in _PRODUCTS and name not in _SCALES_AND_SUMS:
        return []
    least_size = 1 if name in _PRODUCTS else 2
    constants = [each for each in node.args if isinstance(each, relay.Constant)]
    return [each for each in constants if prod(each.data.shape) >= least_size]


def _without_denormals(constant: relay.Constant) -> relay.Constant | None:
    """The same with zeros; None: it has no denormal number in float32."""
    if constant.data.dtype != "float32":
        return None
    array = np.ascontiguousarray(shared_array(constant.data))
    bits = array.reshape(-1).view(np.uint32)
    chunks = (bits[first : first + _CHUNK] for first in range(0, bits.size, _CHUNK))
    if not any(_is_denormal(chunk).any() for chunk in chunks):
        return None
    normal = np.where(_is_denormal(bits), np.uint32(0), bits)
    return relay.const(normal.view(np.float32).reshape(array.shape))


def _is_denormal(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    # Minus 1, zeros are the largest.
    magnitudes = bits & np.uint32(_MAGNITUDE)
    return np.asarray(magnitudes - np.uint32(1) < np.uint32(_SMALLEST - 1))
