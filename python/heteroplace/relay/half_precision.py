"""A module in float16 or bfloat16 -> the same in float32, between its inputs and outputs.

    nn.dense(%x, %w) of float16     ==>  nn.dense(cast(%x, float32), cast(%w, float32))
    cast(%x, float16), %x wider     ==>  cast(cast(%x, float16), float32)
    %y of float16 is returned       ==>  cast(%y, float16) is returned

CPUs compute no sums in half precision: TVM's kernels convert every number before and after each op,
and one by one. Weights are widened while the module is optimised; kernels of CPUs then hold them in
two bytes again (`parts/kernels/rewrites/narrow_weights.py`). Values are rounded where the module
casts them from a wider type, and where they leave it. The ONNX importer does the same for its
models (`parts/onnx/prepare/onnx_half_types.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relay

from heteroplace.errors import LoweringError
from heteroplace.model.cluster import Cluster
from heteroplace.relay.bfloat16_rounding import rounded_value
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import function_pass, op_name, post_order, rebuilt, tensor_types
from heteroplace.relay.targets import device_target, has_stock_kernels

_HALVES = ("float16", "bfloat16")
_WIDE = "float32"
_TYPES = ("dtype", "out_dtype", "output_dtype")
"""Attributes of ops that name an element type."""
_CASTS = ("cast", "cast_like")
_READS_BITS = "reinterpret"
_ANNOTATIONS = ("on_device", "device_copy", "annotation.cast_hint")


def computes_in_float32(cluster: Cluster) -> bool:
    """Say whether values of half precision are to be widened: all devices are CPUs with kernels of
    ours. GPUs compute in half precision, and kernels of TVM's own stay as they are."""
    try:
        return all(
            device.kind == "cpu" and not has_stock_kernels(device_target(device))
            for device in cluster.devices
        )
    except LoweringError:  # it is planned for, by costs that are given
        return False


def InFloat32() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass. Modules with control flow, annotations of devices, bits of computed halves,
    or functions or ops that are not TVM's stay as they are."""
    return function_pass("InFloat32", _in_wide_arithmetic)


def _in_wide_arithmetic(function: relay.Function) -> relay.Function:
    nodes = post_order(function.body)
    if not any(_half_of(node) for node in nodes) or not all(map(_is_plain, nodes)):
        return function
    mapped: ExprMap[relay.Expr] = ExprMap()
    rebuilt(function, _rewrite, mapped)
    body = _narrowed(function.body, mapped)
    return relay.Function(function.params, body, function.ret_type, [], function.attrs)


def _is_plain(node: relay.Expr) -> bool:
    if isinstance(node, relay.Call):
        name = op_name(node)
        is_own = name is None or name.startswith("heteroplace")
        return not is_own and name not in _ANNOTATIONS and not _reads_computed_bits(node)
    if isinstance(node, relay.Var):
        return isinstance(node.checked_type, relay.TensorType)
    return isinstance(node, relay.Constant | relay.Tuple | relay.TupleGetItem | tvm.ir.Op)


def _reads_computed_bits(call: relay.Call) -> bool:
    """Tell whether a call reads the bits of a half that is no input and no constant."""
    if op_name(call) != _READS_BITS or not _half_of(call.args[0]):
        return False
    return not isinstance(call.args[0], relay.Var | relay.Constant)


def _rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
    if isinstance(old, relay.Var | relay.Constant):
        return _in_float32(new, _half_of(old), getattr(old, "span", None))
    if not isinstance(old, relay.Call):
        return new
    if op_name(old) in _CASTS:
        return _cast(old, new)
    if op_name(old) == _READS_BITS:
        operand = old.args[0] if _half_of(old.args[0]) else new.args[0]
        bits = relay.Call(new.op, [operand], old.attrs, [], old.span)
        return _in_float32(bits, _half_of(old), old.span)
    attrs = _wide_attrs(old.attrs)
    if attrs is old.attrs:
        return new
    return relay.Call(new.op, new.args, attrs, [], old.span)


def _cast(old: relay.Call, new: relay.Call) -> relay.Expr:
    """A cast among values of which those of half precision are float32 now."""
    read, result = _half_of(old.args[0]), _half_of(old)
    if not result:
        target = str(old.checked_type.dtype)
        return new.args[0] if target == _WIDE and read else _cast_to(new.args[0], target, old.span)
    if read == result:
        return new.args[0]
    if result == "float16":
        return _cast_to(_cast_to(new.args[0], result, old.span), _WIDE, old.span)
    is_wide = bool(read) or str(old.args[0].checked_type.dtype) == _WIDE
    return rounded_value(new.args[0] if is_wide else _cast_to(new.args[0], _WIDE, old.span))


def _in_float32(value: relay.Expr, half: str, span: Any) -> relay.Expr:
    """A value of half precision in float32; others as they are."""
    if not half:
        return value
    if half == "bfloat16":
        # By its bits, as TVM's code generator fails on many kernels that read bfloat16.
        if isinstance(value, relay.Constant):
            bits = value.data.numpy().view(np.uint16).astype(np.uint32) << 16
            return relay.const(bits.view(np.float32), _WIDE)
        bits = relay.cast(relay.reinterpret(value, "uint16"), "uint32")
        return relay.reinterpret(relay.left_shift(bits, relay.const(16, "uint32")), _WIDE)
    if isinstance(value, relay.Constant):
        return relay.const(value.data.numpy().astype(_WIDE), _WIDE)
    return _cast_to(value, _WIDE, span)


def _narrowed(old: relay.Expr, mapped: Mapping[relay.Expr, relay.Expr]) -> relay.Expr:
    """What a function returned, in the types in which it did."""
    if not _half_of(old):
        return mapped[old]
    if isinstance(old, relay.Tuple):
        return relay.Tuple([_narrowed(field, mapped) for field in old.fields])
    if isinstance(old.checked_type, relay.TupleType):
        fields = enumerate(old.checked_type.fields)
        tensors = [(relay.TupleGetItem(mapped[old], index), each.dtype) for index, each in fields]
        return relay.Tuple(
            [_cast_to(one, dtype, None) if dtype in _HALVES else one for one, dtype in tensors]
        )
    if op_name(old) == "cast" and not _half_of(old.args[0]):
        return relay.Call(old.op, [mapped[old.args[0]]], old.attrs, [], old.span)
    return _cast_to(mapped[old], _half_of(old), getattr(old, "span", None))


def _half_of(node: relay.Expr) -> str:
    """The type of a value of half precision; "": it is another."""
    node_type = getattr(node, "_checked_type_", None)
    if isinstance(node_type, relay.TupleType):
        return next((each.dtype for each in tensor_types(node_type) if each.dtype in _HALVES), "")
    dtype = str(node_type.dtype) if isinstance(node_type, relay.TensorType) else ""
    return dtype if dtype in _HALVES else ""


def _cast_to(value: relay.Expr, dtype: str, span: Any) -> relay.Expr:
    call = relay.cast(value, dtype)
    return relay.Call(call.op, call.args, call.attrs, call.type_args, span)


def _wide_attrs(attrs: Any) -> Any:
    """Attributes in which no half precision is named; the same where none is."""
    names = [] if attrs is None else [name for name in _TYPES if name in attrs.keys()]  # noqa: SIM118 (no dict)
    halves = [name for name in names if str(attrs[name]) in _HALVES]
    if not halves:
        return attrs
    # TVM's attributes cannot be changed, and are made by name from JSON alone.
    content = json.loads(tvm.ir.save_json(attrs))
    fields = content["nodes"][content["root"]]["attrs"]
    fields.update(dict.fromkeys(halves, _WIDE))
    return tvm.ir.load_json(json.dumps(content))
