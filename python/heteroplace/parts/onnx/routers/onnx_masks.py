"""ONNX: positions found in the run, by which rows are gathered and scattered ==> a mask of rows.

    p = NonZero(c); y = ScatterND(base, p, f(Gather(x, p)))  ==>  y = Where(c, f(x), base)

The left side has sizes that depend on values, so that it cannot be compiled; the right side is
static, and a pass that finds routers makes it compute the chosen rows only. It is equal where `f`
computes each row from the same row of what it reads, which is proven by a table of ops. Whatever
is not proven stays, and its `NonZero` is refused by name, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from heteroplace.parts.onnx.prepare.node_attributes import AXES_OPERAND, attribute_of
from heteroplace.parts.onnx.prepare.onnx_process import infer_shapes
from heteroplace.parts.onnx.prepare.onnx_repair import describe_node, opset_of
from heteroplace.parts.onnx.routers.onnx_rows import Sizes, row_fault

REASON = "reason"
"""Attribute of a NonZero that stays: why it is no dispatch of rows that can be proven."""


def masks_for_positions(model: ModelProto) -> list[str]:
    """Write dispatches of rows by position as masks, in place.

    Parameters
    ----------
    model
        Its sizes are fixed, and its ops are those of the standard.

    Returns
    -------
    A line for each `NonZero` of computed values: what was made of it, or why nothing.
    """
    nodes = [node for node in model.graph.node if node.op_type == "NonZero"]
    nodes = [node for node in nodes if _is_computed(model, node)]
    if not nodes:
        return []
    report: list[str] = []
    graph = _Rows(model)
    for name in [node.output[0] for node in nodes]:
        (node,) = (each for each in graph.order if name in each.output)
        try:
            dispatch = graph.follow(node)
        except _Unproven as err:
            node.attribute.append(helper.make_attribute(REASON, str(err)))
            report.append(f"{describe_node(node)} is left as it is: {err}")
            continue
        report.append(f"{describe_node(node)}: {len(dispatch.sinks)} scatter(s) by mask")
        graph.write(dispatch)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in graph.order]
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend(copies)
    return report


def _is_computed(model: ModelProto, node: NodeProto) -> bool:
    """Tell whether a node reads what depends on an input."""
    inputs = {value.name for value in model.graph.input}
    producers = {name: each for each in model.graph.node for name in each.output}
    pending, seen = list(node.input), set()
    while pending:
        name = pending.pop()
        if name in inputs:
            return True
        if name not in seen and name in producers:
            seen.add(name)
            pending += producers[name].input
    return False


class _Unproven(Exception):
    """Why positions are no dispatch of rows; caught in this module."""


@dataclass
class _Dispatch:
    """What is made of the positions of one NonZero."""

    source: NodeProto
    mask: str
    num_rows: int
    flat: set[str] = field(default_factory=set)
    """The positions as [n]."""
    column: set[str] = field(default_factory=set)
    """As [n, 1]; a prefix of what ScatterND and GatherND read."""
    rows: dict[str, str] = field(default_factory=dict)
    """Gathered rows -> the tensor of all rows; computed rows -> themselves."""
    sinks: list[NodeProto] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)
    """Results of the nodes that have no use any more."""


class _Rows:
    """The nodes of a model, `order`, whose values have sizes, known or not."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self.order = list(model.graph.node)
        inferred = infer_shapes(model).graph
        self._sizes: dict[str, Sizes] = {}
        self._types = {one.name: one.data_type for one in model.graph.initializer}
        for value in (*inferred.input, *inferred.value_info, *inferred.output):
            tensor = value.type.tensor_type
            self._types[value.name] = tensor.elem_type
            if tensor.HasField("shape"):
                self._sizes[value.name] = tuple(
                    dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim
                )
        self._constants: dict[str, np.ndarray] = {}
        for one in model.graph.initializer:
            self._sizes[one.name] = tuple(one.dims)
            self._constants[one.name] = numpy_helper.to_array(one)
        for node in self.order:
            if node.op_type == "Constant" and node.attribute[0].HasField("t"):
                value = numpy_helper.to_array(node.attribute[0].t)
                self._constants[node.output[0]] = value
                self._sizes[node.output[0]] = value.shape
        self._outputs = {value.name for value in model.graph.output}

    def follow(self, source: NodeProto) -> _Dispatch:
        """Return what the positions of a NonZero dispatch.

        Raises
        ------
        _Unproven
            It is not proven to be rows that are gathered, computed each alone, and scattered.
        """
        sizes = self._sizes.get(source.input[0])
        if sizes is None or len(sizes) != 1 or sizes[0] is None:
            raise _Unproven(f"it finds positions in {_shown(sizes)}, not in one number per row")
        dispatch = _Dispatch(source, source.input[0], sizes[0])
        whole = {source.output[0]}  # [1, n]
        dispatch.dropped.update(whole)
        for node in self.order:
            reads = set(node.input)
            if node is source or not reads & (
                whole | dispatch.flat | dispatch.column | set(dispatch.rows)
            ):
                continue
            if self._outputs & (
                reads & (whole | dispatch.flat | dispatch.column | set(dispatch.rows))
            ):
                raise _Unproven("rows or positions are an output of the model")
            if not self._is_alias(node, dispatch, whole):
                self._take(node, dispatch)
        named = whole | dispatch.flat | dispatch.column | set(dispatch.rows)
        if self._outputs & (named - {name for node in dispatch.sinks for name in node.output}):
            raise _Unproven("rows or positions are an output of the model")
        if not dispatch.sinks:
            raise _Unproven("nothing is scattered to its positions")
        return dispatch

    def _is_alias(self, node: NodeProto, dispatch: _Dispatch, whole: set[str]) -> bool:
        """Take a node that gives the positions another shape; False: it is none."""
        kind, first = node.op_type, node.input[0]
        if kind in ("Identity", "Cast") and first in whole | dispatch.flat | dispatch.column:
            target = next(
                names for names in (whole, dispatch.flat, dispatch.column) if first in names
            )
        elif kind == "Transpose" and first in whole:
            target = dispatch.column
        elif first in whole and self._makes_flat(node):
            target = dispatch.flat
        elif first in dispatch.flat | dispatch.column and self._makes_column(node):
            target = dispatch.column
        elif kind == "Shape" and first in dispatch.rows:
            dispatch.dropped.add(node.output[0])
            return True
        elif kind == "Expand" and first in dispatch.column and node.input[1] in dispatch.dropped:
            target = dispatch.column
        else:
            return False
        target.add(node.output[0])
        dispatch.dropped.add(node.output[0])
        return True

    def _makes_flat(self, node: NodeProto) -> bool:
        """[1, n] -> [n]"""
        if node.op_type == "Squeeze":
            axes = self._operand_or_attribute(node, "axes")
            return axes == [0] or axes == [-2]
        if node.op_type == "Gather":
            position = self._constants.get(node.input[1])
            return position is not None and position.ndim == 0 and not attribute_of(node, "axis", 0)
        return node.op_type == "Reshape" and self._operand_or_attribute(node, "shape") == [-1]

    def _makes_column(self, node: NodeProto) -> bool:
        """[n] or [n, 1] -> [n, 1]"""
        if node.op_type == "Unsqueeze":
            return self._operand_or_attribute(node, "axes") in ([1], [-1])
        return node.op_type == "Reshape" and self._operand_or_attribute(node, "shape") == [-1, 1]

    def _operand_or_attribute(self, node: NodeProto, name: str) -> list[int] | None:
        given = attribute_of(node, name, None)
        if given is None and len(node.input) > 1:
            given = self._constants.get(node.input[1])
        return None if given is None else [int(each) for each in np.reshape(given, -1)]

    def _take(self, node: NodeProto, dispatch: _Dispatch) -> None:
        """Take a node that gathers, computes or scatters rows.

        Raises
        ------
        _Unproven
            It is none of these.
        """
        kind, what = node.op_type, describe_node(node)
        if kind in ("Gather", "GatherND") and node.input[1] in dispatch.flat | dispatch.column:
            is_rows = node.input[1] in (dispatch.flat if kind == "Gather" else dispatch.column)
            is_first = not attribute_of(node, "axis", 0) and not attribute_of(node, "batch_dims", 0)
            sizes = self._sizes.get(node.input[0])
            if not is_rows or not is_first or not sizes or sizes[0] != dispatch.num_rows:
                raise _Unproven(f"{what} gathers no rows of {dispatch.num_rows}")
            dispatch.rows[node.output[0]] = node.input[0]
            dispatch.dropped.add(node.output[0])
        elif kind in ("ScatterND", "ScatterElements") and node.input[1] in dispatch.column:
            self._check_scatter(node, dispatch)
            dispatch.sinks.append(node)
        else:
            is_row = [name in dispatch.rows for name in node.input]
            fault = row_fault(node, is_row, self._sizes, self._constants, opset_of(self._model))
            if any(name in dispatch.flat | dispatch.column for name in node.input):
                fault = "reads the positions themselves"
            if fault:
                raise _Unproven(f"{what} {fault}")
            for name in node.output:
                dispatch.rows[name] = name

    def _check_scatter(self, node: NodeProto, dispatch: _Dispatch) -> None:
        what = describe_node(node)
        base, updates = self._sizes.get(node.input[0]), self._sizes.get(node.input[2])
        if node.input[2] not in dispatch.rows or node.input[0] in dispatch.rows:
            raise _Unproven(f"{what} scatters no rows that were gathered, or into some")
        if attribute_of(node, "axis", 0) or attribute_of(node, "reduction", b"none") not in (
            b"none",
            b"add",
        ):
            raise _Unproven(f"{what} scatters along another axis, or neither sets nor adds")
        if not base or not updates or base[0] != dispatch.num_rows or base[1:] != updates[1:]:
            raise _Unproven(f"{what} scatters rows of {_shown(updates)} into {_shown(base)}")
        expanded = any(
            each.op_type == "Expand" and each.output[0] == node.input[1] for each in self.order
        )
        if expanded != (node.op_type == "ScatterElements"):
            raise _Unproven(f"{what} has indices for single elements")

    def write(self, dispatch: _Dispatch) -> None:
        """Put the mask in place of the positions."""
        nodes = []
        sinks = {node.output[0] for node in dispatch.sinks}
        for node in self.order:
            if node is dispatch.source or node.output[0] in dispatch.dropped:
                continue
            if node.output[0] in sinks:
                nodes += self._masked(node, dispatch)
                continue
            copy = NodeProto.FromString(node.SerializeToString())
            for position, name in enumerate(copy.input):
                copy.input[position] = dispatch.rows.get(name, name)
            nodes.append(copy)
        self.order = nodes

    def _masked(self, node: NodeProto, dispatch: _Dispatch) -> list[NodeProto]:
        """Where(c, rows, base), or base + Where(c, rows, 0)."""
        result, base = node.output[0], node.input[0]
        rows = dispatch.rows[node.input[2]]
        rank = len(self._sizes[base])
        boolean, mask, zero = (f"{result}__{part}" for part in ("chosen", "mask", "zero"))
        nodes = [helper.make_node("Cast", [dispatch.mask], [boolean], to=TensorProto.BOOL)]
        nodes += _unsqueezed(boolean, mask, range(1, rank), opset_of(self._model))
        if attribute_of(node, "reduction", b"none") == b"none":
            nodes.append(helper.make_node("Where", [mask, rows, base], [result], name=node.name))
            return nodes
        data_type = self._types.get(node.input[2]) or self._types[base]
        value = helper.make_tensor(zero, data_type, [], [0])
        nodes.append(helper.make_node("Constant", [], [zero], value=value))
        added = f"{result}__added"
        nodes.append(helper.make_node("Where", [mask, rows, zero], [added], name=node.name))
        nodes.append(helper.make_node("Add", [base, added], [result], name=node.name))
        return nodes


def _unsqueezed(name: str, result: str, axes: Sequence[int], opset: int) -> list[NodeProto]:
    """Nodes that give a value axes of extent 1."""
    if not axes:
        return [helper.make_node("Identity", [name], [result])]
    if opset < AXES_OPERAND:
        return [helper.make_node("Unsqueeze", [name], [result], axes=list(axes))]
    tensor = numpy_helper.from_array(np.array(list(axes), dtype=np.int64))
    return [
        helper.make_node("Constant", [], [f"{result}__axes"], value=tensor),
        helper.make_node("Unsqueeze", [name, f"{result}__axes"], [result]),
    ]


def _shown(sizes: Sizes | None) -> str:
    if sizes is None:
        return "a tensor of unknown rank"
    return f"[{', '.join('?' if size is None else str(size) for size in sizes)}]"
