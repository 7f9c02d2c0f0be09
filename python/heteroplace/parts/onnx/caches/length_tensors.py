"""A model with caches that grow -> new tensors for those that depend on the number of tokens.

A cache of fixed capacity does not say how many tokens it holds. So every tensor that is computed
from the sizes of caches or from the mask, and is read by what is computed from data, is replaced:

    value(past) = A                            ==>  a constant
    value(past) = A + B * past, of integers    ==>  A + B * (tokens that the mask counts - new ones)
    Gather(the first rows of a table, places)  ==>  Gather(table, places)
    Slice(table, past, past + new)             ==>  Gather(table, places)

That is checked for several numbers of past tokens, the smallest and the largest among them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper, numpy_helper

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.caches.length_run import Array, LengthValues
from heteroplace.parts.onnx.prepare.node_attributes import attribute_of
from heteroplace.parts.onnx.prepare.onnx_repair import describe_node

PAST = "attention_mask.past"
"""The number of past tokens at run time, int64[1]."""
_SLICE_OPERANDS = 4
"""Data, starts, ends and axes."""


@dataclass
class LengthTensors:
    """Replaces tensors of one model that depend on the number of past tokens."""

    runs: Mapping[int, LengthValues]
    """Tensors of the model by the number of past tokens."""
    growing: Collection[str]
    """Tensors that are computed from the sizes of caches or from the mask."""
    computed: Collection[str]
    """Tensors that are computed from other inputs."""
    producers: Mapping[str, NodeProto]
    """The nodes of the model by their outputs."""
    where: str
    nodes: list[NodeProto] = field(default_factory=list)
    """What computes the new tensors."""
    tensors: list[TensorProto] = field(default_factory=list)
    """What they read."""
    _replaced: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def num_replaced(self) -> int:
        """How many tensors were replaced."""
        return len(self._replaced)

    def is_replaceable(self, name: str) -> bool:
        """Return whether a tensor depends on the past, and on no data."""
        return name in self.growing and name not in self.computed

    def replaced(self, name: str, reader: NodeProto, index: int) -> str | None:
        """Return the tensor to read instead; None: its own node can stay, with other operands.

        Parameters
        ----------
        reader, index
            A node that is computed from data, and which of its operands the tensor is.

        Raises
        ------
        FrontendError
            The tensor grows with the past, or changes with it in another way than in steps.
        """
        axis = _table_axis(reader) if index == 0 else None
        key = name, -1 if axis is None else axis
        if key not in self._replaced:
            arrays = {past: self._array(name, past, reader) for past in self.runs}
            new = self._constant(name, arrays) or self._in_steps(name, arrays)
            if new is None and axis is not None:
                new = self._table(name, arrays, axis)
            if new is None:
                new = self._rows(name, arrays)
            if new is None and len({array.shape for array in arrays.values()}) > 1:
                raise FrontendError(
                    f"{self._place(reader)} reads '{name}', whose shape is {_listed(arrays)}, and "
                    f"a cache of fixed capacity keeps all shapes. Leave the option state out"
                )
            if new is None:
                return None
            self._replaced[key] = new
        return self._replaced[key]

    def refuse(self, name: str, reader: NodeProto) -> None:
        """Raise FrontendError for a tensor that is not replaced."""
        arrays = {past: self._array(name, past, reader) for past in self.runs}
        raise FrontendError(
            f"{self._place(reader)} reads '{name}', which is {_listed(arrays, has_values=True)}; "
            f"expected a constant, or whole numbers that change by the same with each token. Leave "
            f"the option state out, or give the model positions as an input"
        )

    def refuse_output(self, name: str, producer: NodeProto) -> None:
        """Raise FrontendError for an output of the model that is a number of tokens."""
        raise FrontendError(
            f"{self._place(producer)} makes the output '{name}' of the number of past tokens "
            f"alone; expected outputs that are computed from data. Leave the option state out, or "
            f"remove the output"
        )

    def check_shape(self, name: str, reader: NodeProto) -> None:
        """Raise FrontendError if the shape of a tensor of data is not the same for every past."""
        shapes = {past: values[name].shape for past, values in self.runs.items() if name in values}
        if len(set(shapes.values())) > 1:
            shown = "; ".join(
                f"{list(shape)} with {past} past tokens" for past, shape in shapes.items()
            )
            raise FrontendError(
                f"{self._place(reader)} reads '{name}', whose shape is {shown}, and a cache of "
                f"fixed capacity keeps all shapes. Leave the option state out"
            )

    def _place(self, node: NodeProto) -> str:
        return f"{self.where}: {describe_node(node)}"

    def _array(self, name: str, past: int, reader: NodeProto) -> Array:
        value = self.runs[past].get(name)
        if value is None or not value.is_known:
            raise FrontendError(
                f"{self._place(reader)} reads '{name}', which depends on the number of past "
                f"tokens, and cannot be evaluated for {past} of them. Leave the option state out"
            )
        return value.array

    def _constant(self, name: str, arrays: Mapping[int, Array]) -> str | None:
        first, *others = arrays.values()
        if not all(np.array_equal(first, each) for each in others):
            return None
        return self._initializer(f"{name}.fixed", first)

    def _in_steps(self, name: str, arrays: Mapping[int, Array]) -> str | None:
        """A tensor of whole numbers that change by the same with each past token."""
        (low, start), *others = sorted(arrays.items())
        if len({array.shape for array in arrays.values()}) > 1 or start.dtype.kind not in "iuf":
            return None
        wide = {past: array.astype(np.float64) for past, array in arrays.items()}
        if start.dtype.kind == "f" and not all(
            (each == np.rint(each)).all() for each in wide.values()
        ):
            return None
        past = others[-1][0]
        step = (wide[past] - wide[low]) / (past - low)
        if not all(np.array_equal(wide[low] + step * (past - low), wide[past]) for past in wide):
            return None
        if not (step == np.rint(step)).all():
            return None
        offset = wide[low] - step * low
        factor, shift = (
            self._initializer(f"{name}.{part}", np.atleast_1d(each).astype(np.int64))
            for part, each in (("per_token", step), ("first", offset))
        )
        names = [f"{name}.{part}" for part in ("steps", "counted", "shaped", "at_run_time")]
        code = helper.np_dtype_to_tensor_dtype(start.dtype)
        shape = self._initializer(f"{name}.shape", np.array(start.shape, np.int64))
        self.nodes += [
            helper.make_node("Mul", [PAST, factor], names[:1]),
            helper.make_node("Add", [names[0], shift], names[1:2]),
            helper.make_node("Reshape", [names[1], shape], names[2:3]),
            helper.make_node("Cast", [names[2]], names[3:], to=code),
        ]
        return names[3]

    def _table(self, name: str, arrays: Mapping[int, Array], axis: int) -> str | None:
        """A table of which only rows are read: all rows that there are at most."""
        largest = arrays[max(arrays)]
        for array in arrays.values():
            if array.ndim != largest.ndim or axis >= array.ndim:
                return None
            head = np.take(largest, np.arange(min(array.shape[axis], largest.shape[axis])), axis)
            if not np.array_equal(head, array):
                return None
        return self._initializer(f"{name}.table", largest)

    def _rows(self, name: str, arrays: Mapping[int, Array]) -> str | None:
        """Rows that a Slice cuts out of a table, from a place that depends on the past."""
        node = self.producers.get(name)
        if node is None or node.op_type != "Slice" or len(node.input) < _SLICE_OPERANDS:
            return None
        places = {}
        for past, array in arrays.items():
            table, start, _, axes = (self.runs[past].get(each) for each in node.input[:4])
            if table is None or start is None or axes is None or start.array.size != 1:
                return None
            axis = int(axes.array.item())
            places[past] = int(start.array.item()) + np.arange(array.shape[axis])
            whole = table.array
            is_inside = (places[past] >= 0).all() and (places[past] < whole.shape[axis]).all()
            if not (is_inside and np.array_equal(np.take(whole, places[past], axis), array)):
                return None
        first = self.runs[min(arrays)][node.input[0]].array
        if node.input[0] in self.growing or not np.array_equal(first, whole):
            return None
        index = self._in_steps(f"{name}.places", places)
        if index is None:
            return None
        rows = f"{name}.rows"
        table_name = self._initializer(f"{name}.table", whole)
        self.nodes.append(helper.make_node("Gather", [table_name, index], [rows], axis=axis))
        return rows

    def _initializer(self, name: str, array: npt.NDArray[Any]) -> str:
        self.tensors.append(
            numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        )
        return name


def _table_axis(reader: NodeProto) -> int | None:
    """The axis along which a node reads rows of its first operand; None: it reads no rows."""
    return int(attribute_of(reader, "axis", 0)) if reader.op_type == "Gather" else None


def _listed(arrays: Mapping[int, Array], *, has_values: bool = False) -> str:
    """Shapes or values of a tensor, for messages."""

    def text(array: Array) -> str:
        if not has_values:
            return str(list(array.shape))
        return np.array2string(array, threshold=6, edgeitems=2, precision=4).replace("\n", "")

    chosen: Sequence[int] = sorted(arrays)[:3]
    return "; ".join(f"{text(arrays[past])} with {past} past tokens" for past in chosen)
