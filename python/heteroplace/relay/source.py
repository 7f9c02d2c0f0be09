"""A neutral module <-> JSON whose weights lie elsewhere: from it a compiled file is placed again.

Each value of `main` is one row, operands first: an input, a constant (where its bytes lie), a call
of an operator with its attributes, a tuple, or a field of one. TVM's own JSON and text are not
used: loaders of the first believe what a file says of an object's class, and the second rounds
numbers. Here attributes go through the checks of the operator's own class, and a module is written
only if what is read of it is structurally equal. Spans are not kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relay

from heteroplace.entries import load_entry
from heteroplace.errors import ArtifactError, UnsupportedRelayError
from heteroplace.files.faults import show
from heteroplace.files.reader import parse_json
from heteroplace.model.graph import tensor_bytes
from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.expressions import post_order_of_function, static_shape, tensor_types
from heteroplace.relay.roi_align_op import ROI_ALIGN_OP, register_roi_align_op

SOURCE_VERSION = 1
_REGISTERED = {
    "recurrent": "heteroplace.relay.recurrent.op:register_recurrent_ops",
    "cache": "heteroplace.relay.cache.op:register_cache_ops",
}
"""What makes ops of a kind known, which is loaded with the first of them."""
_BFLOAT16_BITS = "uint16"
"""What numpy has instead of bfloat16."""

Weights = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Source:
    """What a compiled file was made from."""

    mod: tvm.IRModule
    """The neutral module (`Network.mod`), its types inferred."""
    opt_level: int
    """Of the PassContext in which its kernels were compiled."""


def source_to_json(source: Source, place: Callable[[npt.NDArray[Any]], int]) -> bytes:
    """Write a module.

    Parameters
    ----------
    place
        Returns where the bytes of a constant lie among the weights.

    Raises
    ------
    ArtifactError
        It holds something that cannot be written.
    """
    main = source.mod["main"]
    contents: dict[int, npt.NDArray[Any]] = {}

    def place_and_keep(array: npt.NDArray[Any]) -> int:
        offset = place(array)
        contents[offset] = array
        return offset

    writer = _Writer(place_and_keep)
    for expr in post_order_of_function(main):
        writer.add(expr)
    value = {
        "source_version": SOURCE_VERSION,
        "opt_level": source.opt_level,
        "values": writer.rows,
        "output": writer.index(main.body),
    }
    data = json.dumps(value, separators=(",", ":")).encode()
    again = source_from_json(data, lambda offset, _: contents[offset].reshape(-1).view(np.uint8))
    if not tvm.ir.structural_equal(again.mod, source.mod):
        raise ArtifactError(
            "the Relay module cannot be written beside its kernels: what is read of it again "
            "differs; export without with_source"
        )
    return data


class _Writer:
    def __init__(self, place: Callable[[npt.NDArray[Any]], int]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._place = place
        self._index: dict[relay.Expr, int] = {}

    def index(self, expr: relay.Expr) -> int:
        """The row of a value that was added."""
        return self._index[expr]

    def add(self, expr: relay.Expr) -> None:
        """Add a row for one value, whose operands have theirs; operators have none."""
        if expr in self._index or isinstance(expr, tvm.ir.Op):
            return
        self._index[expr] = len(self.rows)
        self.rows.append(self._row(expr))

    def _row(self, expr: relay.Expr) -> dict[str, Any]:
        if isinstance(expr, relay.Var):
            (type_,) = tensor_types(expr.checked_type)
            return {"input": expr.name_hint, "dtype": type_.dtype, "shape": static_shape(type_)}
        if isinstance(expr, relay.Constant):
            offset = self._place(np.ascontiguousarray(expr.data.numpy()))
            return {"weight": offset, "dtype": expr.data.dtype, "shape": list(expr.data.shape)}
        if isinstance(expr, relay.Tuple):
            return {"tuple": [self.index(field) for field in expr.fields]}
        if isinstance(expr, relay.TupleGetItem):
            return {"field": expr.index, "of": self.index(expr.tuple_value)}
        if isinstance(expr, relay.Call) and isinstance(expr.op, tvm.ir.Op):
            row: dict[str, Any] = {
                "op": expr.op.name,
                "args": [self.index(argument) for argument in expr.args],
            }
            if expr.attrs is not None:
                fields = expr.attrs.list_field_info()  # none of an op of ours
                is_own = isinstance(expr.attrs, tvm.ir.attrs.DictAttrs)
                names = expr.attrs.keys() if is_own else [field.name for field in fields]
                row["attrs"] = {name: _to_json(expr.attrs[name]) for name in names}
            return row
        raise ArtifactError(
            f"the Relay module cannot be written beside its kernels: it has a "
            f"{type(expr).__name__}; export without with_source"
        )


def _to_json(value: Any) -> Any:
    """An attribute: numbers of Relay's own types are objects of one key, the name of the type."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, tvm.tir.IntImm):
        return {"integer": int(value), "dtype": value.dtype}
    if isinstance(value, tvm.tir.FloatImm):
        return {"float": float(value).hex(), "dtype": value.dtype}
    if isinstance(value, tvm.ir.Array):
        return [_to_json(item) for item in value]
    raise ArtifactError(
        f"the Relay module cannot be written beside its kernels: an attribute is a "
        f"{type(value).__name__}; export without with_source"
    )


def source_from_json(
    data: bytes, read: Callable[[int, int], Weights], where: str = "the source"
) -> Source:
    """Read a module; its weights are copied.

    Parameters
    ----------
    data
        What `source_to_json` wrote.
    read
        Returns so many bytes of the weights from an offset; raises ValueError where there are none.
    where
        The file, for messages.

    Raises
    ------
    ArtifactError
        Another version, or it is no such module.
    """
    try:
        value: Any = parse_json(data.decode())
        version = value["source_version"]
        if type(version) is not int or version != SOURCE_VERSION:
            raise ArtifactError(
                f"{where}: source version {show(version)}, this heteroplace reads "
                f"{SOURCE_VERSION}; compile the model again"
            )
        mod = _read(value["values"], value["output"], read)
        return Source(mod, _count(value["opt_level"]))
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as err:
        raise ArtifactError(f"{where}: the Relay module is damaged ({err})") from err
    except (tvm.TVMError, UnsupportedRelayError) as err:
        last = str(err).strip().splitlines()[-1]
        raise ArtifactError(f"{where}: the Relay module is damaged ({last})") from err


def _read(rows: list[Any], output: int, read: Callable[[int, int], Weights]) -> tvm.IRModule:
    values: list[relay.Expr] = []

    def value(index: object) -> relay.Expr:
        return values[_count(index)]

    inputs = []
    for row in rows:
        if "input" in row:
            shape = [_count(extent) for extent in row["shape"]]
            inputs.append(relay.var(_text(row["input"]), shape=shape, dtype=_text(row["dtype"])))
            values.append(inputs[-1])
        elif "weight" in row:
            values.append(_constant(row, read))
        elif "tuple" in row:
            values.append(relay.Tuple([value(index) for index in row["tuple"]]))
        elif "field" in row:
            values.append(relay.TupleGetItem(value(row["of"]), _count(row["field"])))
        else:
            values.append(_call(row, [value(index) for index in row["args"]]))
    function = relay.Function(inputs, value(output))
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))


def _call(row: dict[str, Any], arguments: list[relay.Expr]) -> relay.Call:
    if row["op"] == ROI_ALIGN_OP:
        register_roi_align_op()
    register = _REGISTERED.get(traits_of(_text(row["op"])).kind or "")
    if register is not None:
        load_entry(register)()
    op = tvm.ir.Op.get(_text(row["op"]))
    attrs = None
    if "attrs" in row:
        fields = {name: _from_json(field) for name, field in row["attrs"].items()}
        attrs = tvm.ir.make_node(op.attrs_type_key, **fields)
    elif op.attrs_type_key:  # TVM's type relations read them without a look.
        raise ValueError(f"a call of {op.name} without attributes")
    return relay.Call(op, arguments, attrs)


def _constant(row: dict[str, Any], read: Callable[[int, int], Weights]) -> relay.Constant:
    shape = tuple(_count(extent) for extent in row["shape"])
    dtype = _text(row["dtype"])
    array_type = np.dtype(_BFLOAT16_BITS if dtype == "bfloat16" else dtype)
    content = read(_count(row["weight"]), tensor_bytes(shape, dtype))
    array = tvm.nd.empty(shape, dtype)
    array.copyfrom(content.view(array_type).reshape(shape))
    return relay.Constant(array)


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "integer" in value:
        return tvm.tir.IntImm(_text(value["dtype"]), int(value["integer"]))
    number = float.fromhex(_text(value["float"]))
    return tvm.tir.FloatImm(_text(value["dtype"]), number) if "dtype" in value else number


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a count, got {value!r:.80}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r:.80}")
    return value
