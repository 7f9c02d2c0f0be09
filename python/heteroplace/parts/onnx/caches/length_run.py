"""A model and sizes of its inputs -> the shapes of its tensors, and the values that follow.

What is computed from weights and data is not computed here: such a tensor has a shape, and zeros
in place of its values. Everything else (shapes, masks, positions) is evaluated by numpy and by the
reference implementation of ONNX.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from heteroplace.parts.onnx.caches.shape_rules import ruled_dtype, ruled_shape
from heteroplace.parts.onnx.prepare.node_attributes import NODE_ERRORS, attribute_of
from heteroplace.parts.onnx.prepare.onnx_repair import ONNX_DOMAINS

Array = npt.NDArray[Any]

_MAX_KNOWN = {True: 2**20, False: 2**22}
"""Elements of a tensor whose values are looked at: of floating point, and of other types."""
_MAX_EVALUATED = 2**24
"""Elements of the operands of a node that is evaluated."""
_MAX_EXACT = 2**28
"""Elements of a tensor of an attention that is run with random values."""
_VIEWS = frozenset({"Flatten", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})
"""Ops that compute nothing."""


class LengthValue(NamedTuple):
    """A tensor at some sizes of the inputs."""

    array: Array
    """Its values; zeros that take no memory where they are not known."""
    is_known: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the tensor."""
        return tuple(self.array.shape)


LengthValues = dict[str, LengthValue]
"""Tensors by name, without those of unknown shape."""


def unknown(shape: Sequence[int], dtype: npt.DTypeLike) -> LengthValue:
    """Return a tensor of which only the shape is known."""
    return LengthValue(np.broadcast_to(np.zeros((), dtype), tuple(shape)), False)


@dataclass
class LengthEvaluator:
    """Evaluates nodes of a model one by one."""

    model: ModelProto
    _references: dict[bytes, ReferenceEvaluator] = field(default_factory=dict)

    def constants(self) -> LengthValues:
        """Return the initialisers, and what is computed from them alone."""
        values: LengthValues = {}
        for tensor in self.model.graph.initializer:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            if int(np.prod(tensor.dims)) <= _MAX_KNOWN[_is_floating(dtype)]:
                values[tensor.name] = LengthValue(numpy_helper.to_array(tensor), True)
            else:
                values[tensor.name] = unknown(tensor.dims, dtype)
        self.run(self.model.graph.node, values)
        return values

    def run(
        self, nodes: Iterable[NodeProto], values: LengthValues, *, is_exact: bool = False
    ) -> None:
        """Add the outputs of nodes to `values`, where they follow from what is there.

        Parameters
        ----------
        nodes
            In the order in which they run.
        is_exact
            All operands have values, and large results are values as well.
        """
        for node in nodes:
            names = [name for name in node.output if name]
            if all(name in values for name in names):
                continue
            if not all(name in values for name in node.input if name):
                continue
            operands = [values[name] if name else None for name in node.input]
            for name, value in zip(
                node.output, self._outputs(node, operands, is_exact), strict=False
            ):
                if name:
                    values[name] = value

    def _outputs(
        self, node: NodeProto, operands: Sequence[LengthValue | None], is_exact: bool
    ) -> list[LengthValue]:
        present = [each for each in operands if each is not None]
        if node.op_type in ("Shape", "Size"):  # known whatever the values are
            return [LengthValue(array, True) for array in self._evaluated(node, operands) or []]
        if any(attribute.HasField("g") for attribute in node.attribute):
            return []
        is_known = all(each.is_known for each in present)
        value = _by_rule(node, operands)
        if is_exact and value is not None and value.array.size > _MAX_EXACT:
            return []
        # Sums that norms return beside their results have the same shape.
        by_rule = [] if value is None else [value] * len(node.output)
        if value is not None and not (is_known and (is_exact or _is_small(value.array))):
            return by_rule
        num_elements = sum(each.array.size for each in present)
        if num_elements > _MAX_EVALUATED and not is_exact and node.op_type not in _VIEWS:
            return []
        arrays = self._evaluated(node, operands)
        if arrays is None:
            return by_rule
        return [
            LengthValue(array, True)
            if is_exact or (is_known and _is_small(array))
            else unknown(array.shape, array.dtype)
            for array in arrays
        ]

    def _evaluated(
        self, node: NodeProto, operands: Sequence[LengthValue | None]
    ) -> list[Array] | None:
        """The outputs of a node by ONNX's reference; None: it has none."""
        if node.op_type == "Shape" and not node.attribute and operands[0] is not None:
            return [np.array(operands[0].shape, np.int64)]
        if node.op_type == "GatherElements":  # the reference takes few rows only
            return _gathered_elements(node, operands)
        names = [f"x{i}" if each is not None else "" for i, each in enumerate(operands)]
        outputs = [f"y{i}" if name else "" for i, name in enumerate(node.output)]
        plain = NodeProto()
        plain.CopyFrom(node)
        del plain.input[:], plain.output[:]
        plain.input.extend(names)
        plain.output.extend(outputs)
        plain.name = plain.doc_string = ""
        key = plain.SerializeToString()
        feeds = {
            name: each.array for name, each in zip(names, operands, strict=True) if each is not None
        }
        try:
            with np.errstate(all="ignore"):
                if key not in self._references:
                    self._references[key] = ReferenceEvaluator(self._alone(plain))
                results = self._references[key].run(None, feeds)
        except NODE_ERRORS:
            return None
        arrays = iter(results)
        return [np.asarray(next(arrays)) if name else np.zeros(0) for name in outputs]

    def _alone(self, node: NodeProto) -> ModelProto:
        """A model of one node; types of its inputs do not matter."""
        inputs, outputs = (
            [
                helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None)
                for name in names
                if name
            ]
            for names in (node.input, node.output)
        )
        graph = helper.make_graph([node], "node", inputs, outputs)
        return helper.make_model(graph, opset_imports=self.model.opset_import)


def _gathered_elements(
    node: NodeProto, operands: Sequence[LengthValue | None]
) -> list[Array] | None:
    data, places = operands[0], operands[1]
    if data is None or places is None:
        return None
    axis = int(attribute_of(node, "axis", 0))
    try:
        return [np.take_along_axis(data.array, places.array.astype(np.int64), axis)]
    except (IndexError, ValueError):
        return None


def _by_rule(node: NodeProto, operands: Sequence[LengthValue | None]) -> LengthValue | None:
    """The output of a node as far as a rule says it: its shape; None: there is no rule."""
    if node.domain not in (*ONNX_DOMAINS, "com.microsoft"):
        return None
    shapes = [each and each.shape for each in operands]
    arrays = [each.array if each is not None and each.is_known else None for each in operands]
    try:
        shape = ruled_shape(node, shapes, arrays)
    except (LookupError, ValueError):  # the node is damaged
        return None
    if shape is None:
        return None
    return unknown(shape, ruled_dtype(node, [each and each.array.dtype for each in operands]))


def _is_floating(dtype: npt.DTypeLike) -> bool:
    return np.dtype(dtype).kind not in "biu"


def _is_small(array: Array) -> bool:
    return array.size <= _MAX_KNOWN[_is_floating(array.dtype)]


def structural(
    nodes: Iterable[NodeProto], leaves: Iterable[str], by_shape: Mapping[str, bool]
) -> set[str]:
    """Return the tensors that are computed from the values of some, these included.

    Parameters
    ----------
    by_shape
        Tensors whose shape counts as a value of such a kind.
    """
    names = set(leaves)
    for node in nodes:
        if node.op_type in ("Shape", "Size"):
            if by_shape.get(node.input[0], False):
                names.update(node.output)
        elif not names.isdisjoint(node.input):
            names.update(name for name in node.output if name)
    return names
