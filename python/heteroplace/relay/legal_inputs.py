"""A Relay function -> seeded inputs that every op in it may read.

Floating-point inputs are normally distributed. What an integer may be is read from the ops that
read it: an index lies within the axis that it chooses from, a divisor is not 0; other integers are
0 or 1, which any mask, length or identifier may be; those of 8 bits, which are quantised values,
take their whole range.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tvm
from tvm import relay

from heteroplace.relay.expressions import post_order, static_shape

_SAME_VALUES = frozenset(
    {
        *("cast", "copy", "expand_dims", "reshape", "squeeze", "transpose", "layout_transform"),
        *("broadcast_to", "concatenate", "device_copy", "on_device", "strided_slice", "tile"),
    }
)
"""Ops that hand the values of their first argument on."""

_DIVISIONS = frozenset({"divide", "floor_divide", "floor_mod", "mod", "trunc_divide", "trunc_mod"})


def legal_inputs(main: relay.Function, seed: int = 0) -> dict[str, np.ndarray]:
    """Return an array for each parameter of a function whose types are inferred.

    Parameters
    ----------
    main
        Its weights are bound: every parameter is an input.
    seed
        Equal seeds give equal arrays.
    """
    limits = _limits(main)
    random = np.random.default_rng(seed)
    found = {}
    for parameter in main.params:
        shape, dtype = static_shape(parameter.checked_type), parameter.checked_type.dtype
        found[parameter.name_hint] = _values(shape, dtype, limits.get(parameter), random)
    return found


def _values(
    shape: tuple[int, ...], dtype: str, limits: tuple[int, int] | None, random: np.random.Generator
) -> np.ndarray:
    if dtype == "bfloat16":  # as bit patterns: the upper half of a float32
        bits = random.standard_normal(shape).astype("float32").view("uint32") >> 16
        return bits.astype("uint16")
    if dtype.startswith("float"):
        return random.standard_normal(shape).astype(dtype)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if limits is None and dtype in ("int8", "uint8"):
        info = np.iinfo(dtype)
        limits = (int(info.min), int(info.max) + 1)
    low, high = limits or (0, 2)
    return random.integers(low, max(high, low + 1), shape).astype(dtype)


def _limits(main: relay.Function) -> Mapping[relay.Expr, tuple[int, int]]:
    """For each input that an op reads as an index or a divisor its least value, and one more than
    its largest."""
    origins: dict[relay.Expr, relay.Expr] = {parameter: parameter for parameter in main.params}
    limits: dict[relay.Expr, tuple[int, int]] = {}
    for node in post_order(main.body):
        if isinstance(node, relay.Tuple):
            known = [origins[field] for field in node.fields if field in origins]
            if known:
                origins[node] = known[0]
        if not isinstance(node, relay.Call) or not isinstance(node.op, tvm.ir.Op):
            continue
        if node.op.name in _SAME_VALUES and node.args[0] in origins:
            origins[node] = origins[node.args[0]]
        found = _argument_limits(node)
        if found is not None and node.args[found[0]] in origins:
            origin = origins[node.args[found[0]]]
            low, high = limits.get(origin, found[1:])
            limits[origin] = (max(low, found[1]), min(high, found[2]))
    return limits


def _argument_limits(call: relay.Call) -> tuple[int, int, int] | None:
    """Which argument of a call is limited, its least value, and one more than its largest."""
    name = call.op.name
    if name in ("take", "gather", "scatter_elements", "gather_nd", "scatter_nd", "one_hot"):
        axes = _indexed_sizes(call)
        return (0 if name == "one_hot" else 1, 0, min(axes)) if axes else None
    if name in _DIVISIONS:
        return (1, 1, 8)
    return None


def _indexed_sizes(call: relay.Call) -> tuple[int, ...]:
    """The sizes of the axes that an index may choose from."""
    if call.op.name == "one_hot":
        return (int(call.attrs.depth),)
    shape = static_shape(call.args[0].checked_type)
    if call.op.name in ("gather_nd", "scatter_nd"):
        batch = int(getattr(call.attrs, "batch_dims", 0))
        return shape[batch : batch + static_shape(call.args[1].checked_type)[0]]
    axis = call.attrs.axis
    if axis is None:
        return (int(np.prod(shape)),)
    return (shape[int(axis)],)
