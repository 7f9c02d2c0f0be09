"""An ONNX model whose number of rows is free -> the inputs that hold them, and their shapes.

Rows lie along the first axis. What a model does for one row otherwise than for more is refused, as
it is imported for more (`onnx/symbolic_batch.py`): an If that asks for a size, a Squeeze of
whatever axes are 1.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.prepare.onnx_load import all_nodes, read_model, true_inputs
from heteroplace.parts.onnx.prepare.onnx_repair import describe_node
from heteroplace.terminal import listed

SYMBOLIC: Literal["symbolic"] = "symbolic"
"""A batch of any number of rows."""

_ASKS_FOR_SIZES = frozenset(("Shape", "Size"))


@dataclass(frozen=True)
class FreeBatch:
    """A model, and which of its inputs hold rows."""

    model: ModelProto
    where: str
    """Its name, for messages."""
    given: Mapping[str, Sequence[object]]
    """`input_shapes` of `from_onnx`."""
    names: tuple[str, ...]
    """Inputs with any number of rows, in the order of the file."""

    def shapes_at(self, rows: int) -> dict[str, tuple[Any, ...]]:
        """Return `input_shapes` for so many rows.

        Raises
        ------
        FrontendError
            The number is no positive one; no input has free rows, or one has other free sizes.
        """
        if not isinstance(rows, int) or rows < 1:
            raise FrontendError(
                f"batch={rows!r}; expected a number of rows, 1 or more, or {SYMBOLIC!r}"
            )
        if not self.names:
            raise FrontendError(
                f"{self.where}: no input leaves its first size free, which is the batch; leave "
                f"batch out, or export the model with dynamic axes"
            )
        shapes = {
            name: tuple(shape) for name, shape in self.given.items() if name not in self.names
        }
        faults = []
        for value in true_inputs(self.model.graph):
            if value.name not in self.names:
                continue
            dims = [dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim]
            rest = tuple(self.given.get(value.name, dims))[1:]
            if not all(isinstance(size, int) and size >= 0 for size in rest):
                faults.append(
                    f"input '{value.name}' has other free sizes than its rows. Give "
                    f"input_shapes={{'{value.name}': (-1, ...)}} with its {len(dims)} sizes"
                )
            shapes[value.name] = (rows, *rest)
        if faults:
            raise FrontendError(f"{self.where}: {listed(faults, '; ')}")
        return shapes

    def check_alike_for_all(self) -> None:
        """Raise FrontendError, naming the nodes, if the model may do another thing for one row."""
        faults = [describe_node(node) for node in _unlike_for_one(self.model.graph)]
        if faults:
            raise FrontendError(
                f"{self.where}: {listed(faults)} may do another thing for one row than for "
                f"several, so the number of rows cannot be left open. Import the model for one "
                f"number (batch=...), or name the axes of a Squeeze"
            )


def free_batch(
    path_or_model: str | os.PathLike[str] | ModelProto,
    input_shapes: Mapping[str, Sequence[object]],
    others: Collection[str] = (),
) -> FreeBatch:
    """Return which inputs of a model leave the number of their rows free.

    Parameters
    ----------
    path_or_model, input_shapes
        As of `from_onnx`: an input that is named there has free rows only if the first of its sizes
        is -1.
    others
        Names of inputs that are given values.

    Raises
    ------
    FrontendError
        As `read_model`.
    """
    model, where = read_model(path_or_model)
    names = []
    for value in true_inputs(model.graph):
        given = input_shapes.get(value.name, (-1,))
        is_open = len(given) > 0 and not (isinstance(given[0], int) and given[0] >= 0)
        if is_open and value.name not in others and _has_free_rows(value):
            names.append(value.name)
    return FreeBatch(model, where, input_shapes, tuple(names))


def _unlike_for_one(graph: GraphProto) -> list[NodeProto]:
    makers = {name: node for node in all_nodes(graph) for name in node.output if name}
    unlike = []
    for node in all_nodes(graph):
        if node.op_type == "Squeeze":
            has_axes = any(attribute.name == "axes" for attribute in node.attribute)
            if not has_axes and len([name for name in node.input if name]) < 2:
                unlike.append(node)
        elif node.op_type in ("If", "Loop") and _reads_sizes(list(node.input), makers):
            unlike.append(node)
    return unlike


def _reads_sizes(names: list[str], makers: Mapping[str, NodeProto]) -> bool:
    """Whether a value is made of the sizes of another."""
    seen = set(names)
    waiting = list(names)
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is None:
            continue
        if maker.op_type in _ASKS_FOR_SIZES:
            return True
        new = [name for name in maker.input if name and name not in seen]
        seen.update(new)
        waiting += new
    return False


def _has_free_rows(value: ValueInfoProto) -> bool:
    if not value.type.HasField("tensor_type"):
        return False
    tensor = value.type.tensor_type
    return (
        bool(tensor.HasField("shape") and tensor.shape.dim) and tensor.shape.dim[0].dim_value <= 0
    )
