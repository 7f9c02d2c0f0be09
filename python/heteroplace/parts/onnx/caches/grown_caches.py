"""A model whose caches grow with each call -> the model with caches of fixed capacity.

What exporters write for decoders:

    present = Concat(past, new); result = attention over present, masked by attention_mask

becomes a node GroupQueryAttention, whose past and present have one size, the capacity. The mask has
that size, too, with ones for the tokens so far. Nothing is taken for granted: the mask is evaluated
(`core_proof.py`), and so is whatever else depends on the number of tokens (`length_tensors.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from heteroplace.parts.onnx.caches.attention_core import AttentionCore, attention_cores
from heteroplace.parts.onnx.caches.core_proof import CoreForm, CoreProver
from heteroplace.parts.onnx.caches.fused_attention import split_attention
from heteroplace.parts.onnx.caches.grown_pairs import (
    MASK,
    POSITIONS,
    CacheSizes,
    GrownCache,
    cache_sizes,
    check_growth,
    grown_caches,
    joins_rows,
    may_have_grown_caches,
)
from heteroplace.parts.onnx.caches.length_run import (
    LengthEvaluator,
    LengthValue,
    LengthValues,
    structural,
    unknown,
)
from heteroplace.parts.onnx.caches.length_tensors import PAST, LengthTensors
from heteroplace.parts.onnx.prepare.node_attributes import AXES_OPERAND
from heteroplace.parts.onnx.prepare.onnx_control_flow import expand_control_flow
from heteroplace.parts.onnx.prepare.onnx_functions import expand_functions
from heteroplace.parts.onnx.prepare.onnx_load import true_inputs
from heteroplace.parts.onnx.prepare.onnx_repair import opset_of
from heteroplace.state_option import StateNames, possible_pairs

_MICROSOFT = "com.microsoft"
_COUNT, _ENDS, _TOTAL = f"{MASK}.count", f"{MASK}.ends", f"{MASK}.total"


def fix_grown_caches(
    model: ModelProto, state: StateNames, input_shapes: Mapping[str, Sequence[int]], where: str
) -> list[str]:
    """Give caches that grow with each call a fixed capacity, in place.

    Parameters
    ----------
    model
        Its functions and its control flow are expanded; sizes of its inputs are free.
    state
        Outputs by the inputs that they replace, or "auto".
    input_shapes
        Those of the model with caches of fixed capacity.

    Returns
    -------
    Lines that say what was done: none if no cache grows.

    Raises
    ------
    FrontendError
        A cache that grows is used in another way than by causal attention, or something else
        depends on the number of tokens in a way that cannot be kept. The message names the node.
    """
    graph = model.graph
    names = [value.name for value in true_inputs(graph)], [value.name for value in graph.output]
    caches = grown_caches(graph, possible_pairs(state, *names))
    sizes = cache_sizes(graph, caches, input_shapes, where) if caches else None
    if sizes is None:
        return []
    return _Rewrite(model, caches, sizes, where).run()


def with_fixed_caches(
    model: ModelProto,
    state: StateNames,
    input_shapes: Mapping[str, Sequence[int]],
    is_known: Callable[[NodeProto], bool],
    where: str,
) -> tuple[ModelProto, list[str]]:
    """Return a model whose caches have a fixed capacity, and what was done, as `fix_grown_caches`.

    Parameters
    ----------
    is_known
        Tells which ops need no definition by others.
    """
    names = [value.name for value in true_inputs(model.graph)]
    outputs = [value.name for value in model.graph.output]
    pairs = possible_pairs(state, names, outputs)
    if not may_have_grown_caches(model.graph, pairs):
        return model, []
    plain = model
    if any(joins_rows(node) for node in model.graph.node) or model.functions:
        plain, _ = expand_functions(plain, is_known)
    filled = {tensor.name for tensor in plain.graph.initializer}
    if any(node.op_type == "If" and node.input[0] in filled for node in plain.graph.node):
        plain = ModelProto.FromString(plain.SerializeToString())
        expand_control_flow(plain)
    split_attention(plain)
    lines = fix_grown_caches(plain, state, input_shapes, where)
    return (plain, lines) if lines else (model, [])


class _Rewrite:
    """Writes a model anew."""

    def __init__(
        self, model: ModelProto, caches: Sequence[GrownCache], sizes: CacheSizes, where: str
    ) -> None:
        self._model, self._graph, self._caches = model, model.graph, caches
        self._sizes, self._where = sizes, where
        self._evaluator = LengthEvaluator(model)
        constants = self._evaluator.constants()
        self._runs = {past: self._at(past, constants) for past in sizes.trials()}
        check_growth(caches, self._runs, sizes.length, where)

    def run(self) -> list[str]:
        """Rewrite the model; return what was done."""
        inputs = [value.name for value in true_inputs(self._graph)]
        data = [name for name in inputs if name not in (MASK, POSITIONS)]
        by_data = structural(self._graph.node, data, {})
        cores = attention_cores(self._graph, self._caches, by_data)
        prover = CoreProver(self._evaluator, self._sizes.length, self._runs, self._where)
        forms = {core.result: prover.form_of(core) for core in cores}
        lengths = LengthTensors(
            self._runs,
            structural(self._graph.node, [MASK], self._changing_shapes()),
            structural(self._graph.node, [*data, POSITIONS], {}),
            {name: node for node in self._graph.node for name in node.output},
            self._where,
        )
        by_result = {core.result: core for core in cores}
        needed = self._needed(by_result, lengths)
        self._write(by_result, forms, needed, lengths)
        form = next(iter(forms.values()))
        window = "" if form.window < 0 else f", a window of {form.window} tokens"
        return [
            f"{len(cores)} attention(s) of {form.heads} heads{window}: caches of fixed capacity, "
            f"{self._sizes.capacity} tokens; {lengths.num_replaced} tensor(s) of lengths replaced"
        ]

    def _at(self, past: int, constants: LengthValues) -> LengthValues:
        """The tensors of the model with so many past tokens."""
        values = dict(constants)
        total = past + self._sizes.length
        pasts = {cache.past for cache in self._caches}
        for value in true_inputs(self._graph):
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            shape = self._sizes.shapes[value.name]
            if value.name in pasts:
                shape = (*shape[:2], past, shape[3])
            values[value.name] = unknown(shape, dtype)
            if value.name == MASK:
                values[value.name] = LengthValue(np.ones((1, total), dtype), True)
            elif value.name == POSITIONS and shape == (1, self._sizes.length):
                values[value.name] = LengthValue(np.arange(past, total, dtype=dtype)[None], True)
        self._evaluator.run(self._graph.node, values)
        return values

    def _changing_shapes(self) -> dict[str, bool]:
        """Whether the shape of a tensor depends on the number of past tokens."""
        first, *others = self._runs.values()
        return {
            name: any(name in each and each[name].shape != value.shape for each in others)
            for name, value in first.items()
        }

    def _needed(
        self, cores: Mapping[str, AttentionCore], lengths: LengthTensors
    ) -> dict[int, NodeProto]:
        """The nodes that stay, by their place, with their new operands."""
        order = {name: i for i, node in enumerate(self._graph.node) for name in node.output if name}
        presents = {cache.present for cache in self._caches}
        needed: dict[int, NodeProto] = {}
        outputs = [each.name for each in self._graph.output if each.name not in presents]
        for name in outputs:
            node = self._graph.node[order[name]] if name in order else NodeProto(name=name)
            if lengths.is_replaceable(name):
                lengths.refuse_output(name, node)
            lengths.check_shape(name, node)
        pending = outputs
        pending += [
            name for core in cores.values() for name in (core.query, core.keys.new, core.values.new)
        ]
        while pending:
            name = pending.pop()
            place = order.get(name)
            if place is None or place in needed or name in cores:
                continue
            node = NodeProto()
            node.CopyFrom(self._graph.node[place])
            needed[place] = node
            for index, operand in enumerate(node.input):
                if not operand:
                    continue
                if lengths.is_replaceable(operand):
                    new = lengths.replaced(operand, node, index)
                    if new is not None:
                        node.input[index] = new
                        continue
                    if operand not in order or self._graph.node[order[operand]].op_type == "Shape":
                        lengths.refuse(operand, node)
                elif operand in lengths.computed and node.op_type not in ("Shape", "Size"):
                    lengths.check_shape(operand, node)
                pending.append(operand)
        return needed

    def _write(
        self,
        cores: Mapping[str, AttentionCore],
        forms: Mapping[str, CoreForm],
        needed: Mapping[int, NodeProto],
        lengths: LengthTensors,
    ) -> None:
        """Put the new nodes in place of the old ones."""
        graph, writer = self._graph, _Writer(self._sizes, opset_of(self._model))
        nodes = writer.counts(self._mask_type())
        nodes += lengths.nodes
        for place, node in enumerate(graph.node):
            if place in needed:
                nodes.append(needed[place])
            for name in node.output:
                if name in cores:
                    result = self._runs[max(self._runs)][name].shape
                    nodes += writer.attention(cores[name], forms[name], result)
        read = {name for node in nodes for name in node.input}
        read |= {value.name for value in graph.output}
        graph.initializer.extend([*lengths.tensors, *writer.tensors])
        for index in reversed(range(len(graph.initializer))):
            if graph.initializer[index].name not in read:
                del graph.initializer[index]
        del graph.node[:], graph.value_info[:]
        graph.node.extend(nodes)
        shapes = {cache.present: self._sizes.shapes[cache.past] for cache in self._caches}
        for output in graph.output:
            dims = output.type.tensor_type.shape.dim
            for dim, size in zip(dims, shapes.get(output.name, ()), strict=False):
                dim.dim_value = size
        if not any(each.domain == _MICROSOFT for each in self._model.opset_import):
            self._model.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))

    def _mask_type(self) -> int:
        return next(
            int(each.type.tensor_type.elem_type) for each in self._graph.input if each.name == MASK
        )


class _Writer:
    """Makes nodes for caches of fixed capacity."""

    def __init__(self, sizes: CacheSizes, opset: int) -> None:
        self._sizes, self._opset = sizes, opset
        self.tensors: list[TensorProto] = []
        """What the nodes read."""

    def counts(self, mask_type: int) -> list[NodeProto]:
        """Return what counts tokens: the past ones, the place of the last one, and the capacity."""
        nodes, mask = [], MASK
        if mask_type != TensorProto.INT64:
            mask = f"{_COUNT}.mask"
            nodes.append(helper.make_node("Cast", [MASK], [mask], to=TensorProto.INT64))
        count = helper.make_node("ReduceSum", [mask], [_COUNT], keepdims=0)
        if self._opset >= AXES_OPERAND:
            count.input.append(self._constant(f"{_COUNT}.axes", [1]))
        else:
            count.attribute.append(helper.make_attribute("axes", [1]))
        length = self._constant(f"{_COUNT}.length", [self._sizes.length])
        one = self._constant(f"{_COUNT}.one", [1])
        self.tensors.append(
            numpy_helper.from_array(np.array(self._sizes.capacity, np.int32), _TOTAL)
        )
        return [
            *nodes,
            count,
            helper.make_node("Sub", [_COUNT, length], [PAST]),
            helper.make_node("Sub", [_COUNT, one], [f"{_COUNT}.last"]),
            helper.make_node("Cast", [f"{_COUNT}.last"], [_ENDS], to=TensorProto.INT32),
        ]

    def attention(
        self, core: AttentionCore, form: CoreForm, result: Sequence[int]
    ) -> list[NodeProto]:
        """Return an attention over a cache of fixed capacity.

        Parameters
        ----------
        result
            The shape of what takes the place of the second product.
        """
        nodes: list[NodeProto] = []
        rows = [
            self._rows(f"{core.result}.{part}", name, heads, form.size, nodes)
            for part, name, heads in (
                ("queries", core.query, form.heads),
                ("keys", core.keys.new, form.shared),
                ("values", core.values.new, form.shared),
            )
        ]
        mixed = f"{core.result}.mixed"
        nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [*rows, core.keys.past, core.values.past, _ENDS, _TOTAL],
                [mixed, core.keys.present, core.values.present],
                name=core.last.name or core.result,
                domain=_MICROSOFT,
                num_heads=form.heads,
                kv_num_heads=form.shared,
                scale=form.scale,
                local_window_size=form.window,
                do_rotary=0,
                softcap=form.softcap,
            )
        )
        length = self._sizes.length
        split, turned = f"{mixed}.split", f"{mixed}.turned"
        shape = self._constant(f"{split}.shape", [1, length, form.heads, form.size])
        final = self._constant(f"{turned}.shape", result)
        nodes += [
            helper.make_node("Reshape", [mixed, shape], [split]),
            helper.make_node("Transpose", [split], [turned], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [turned, final], [core.result]),
        ]
        return nodes

    def _rows(self, to: str, name: str, heads: int, size: int, nodes: list[NodeProto]) -> str:
        """Add what makes [1, length, heads * size] of a tensor of heads."""
        length = self._sizes.length
        split = self._constant(f"{to}.split", [1, heads, length, size])
        joined = self._constant(f"{to}.joined", [1, length, heads * size])
        nodes += [
            helper.make_node("Reshape", [name, split], [f"{to}.heads"]),
            helper.make_node("Transpose", [f"{to}.heads"], [f"{to}.turned"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"{to}.turned", joined], [to]),
        ]
        return to

    def _constant(self, name: str, values: Sequence[int]) -> str:
        self.tensors.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name
