"""Decoders whose caches grow with each call, laid out as exporters of PyTorch models write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

VOCABULARY = 260
"""Bytes, and four special tokens."""
HEADS, SHARED, SIZE = 4, 2, 8
WIDTH = HEADS * SIZE
_PAST, _NEW = "past_sequence_length", "sequence_length"
_LOWEST = float(np.finfo(np.float32).min)
_FLOAT, _INT64 = TensorProto.FLOAT, TensorProto.INT64


@dataclass(frozen=True)
class Style:
    """How a decoder is written."""

    has_positions: bool = True
    """Positions are an input; else they come from the size of the past."""
    is_rotary: bool = True
    """Positions turn queries and keys; else they have embeddings."""
    mask: str = "added"
    """What masks scores: "added", "where" (with a guard against rows without keys), "buffer" (a
    table of which the rows and columns of a call are cut), or "none"."""
    scale: str = "product"
    """"product", "quotient", or "roots" of queries and of keys."""
    window: int = 0
    """How many of the last tokens are seen; 0: all."""
    bias: float = 0.0
    """Added to scores for each token between a query and a key."""
    core: str = "plain"
    """"plain" nodes, the op "Attention" of ONNX, or "MultiHeadAttention" of onnxruntime."""
    is_squared: bool = False
    """Positions are the squares of places."""
    has_total: bool = False
    """The number of all tokens is an output."""
    has_tables: bool = False
    """Cosines and sines are rows of tables, which are cut to the number of all tokens."""
    has_sums: bool = False
    """Logits are divided by the sum of the numbers of the tokens so far."""
    layers: int = 1


LLAMA = Style(layers=2)
GPT2 = Style(has_positions=False, is_rotary=False, mask="buffer", scale="quotient")
QWEN = Style(mask="where", scale="roots")
MISTRAL = Style(has_positions=False, mask="added", window=5)


class _Graph:
    """Collects nodes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self._rng = np.random.default_rng(11)

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return its output, or the names of several."""
        names = [f"{op_type}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, names[0], **attributes))
        return names[0] if outputs == 1 else names

    def value(self, array: Any, dtype: Any = np.int64) -> str:
        """Add a constant."""
        name = f"constant_{len(self.weights)}"
        self.weights[name] = np.array(array, dtype)
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        """Add random numbers."""
        return self.value(scale * self._rng.standard_normal(shape), np.float32)

    def size(self, tensor: str, axis: int) -> str:
        """Add what reads a size of a tensor, [1]."""
        return str(self.op("Gather", self.op("Shape", tensor), self.value([axis]), axis=0))

    def scalar(self, sizes: str) -> str:
        """Add a size without axes."""
        return str(self.op("Squeeze", sizes, self.value([0])))


class _Decoder(_Graph):
    """Writes a decoder in a style."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style = style
        first = "past_key_values.0.key"
        self.past, self.length = self.size(first, 2), self.size("input_ids", 1)
        self.total = self.op("Add", self.past, self.length)
        start, end = self.scalar(self.past), self.scalar(self.total)
        self.places = self.op("Range", start, end, self.value(1))
        self.keys = self.op("Range", self.value(0), end, self.value(1))
        self.positions = self._positions()
        self.mask = {"buffer": self._buffer, "none": str}.get(style.mask, self._mask)()

    def model(self, opset: int) -> onnx.ModelProto:
        """Return the decoder."""
        hidden = self.op("Gather", self.weight(VOCABULARY, WIDTH), "input_ids")
        if not self.style.is_rotary:
            hidden = self.op(
                "Add", hidden, self.op("Gather", self.weight(64, WIDTH), self.positions)
            )
        for layer in range(self.style.layers):
            hidden = self.op("Add", hidden, self._attention(layer, hidden))
        logits = self.op("MatMul", hidden, self.weight(WIDTH, VOCABULARY, scale=0.1))
        if self.style.has_sums:
            numbers = self.op("CumSum", "attention_mask", self.value(1))
            numbers = self.op("ReduceSum", numbers, self.value([1]), keepdims=0)
            logits = self.op("Div", logits, self.op("Cast", numbers, to=_FLOAT))
        self.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
        shared = SHARED if self.style.core == "plain" else HEADS
        caches = [f"{i}.{part}" for i in range(self.style.layers) for part in ("key", "value")]
        total = f"{_PAST} + {_NEW}"
        inputs = [
            _info("input_ids", _INT64, "batch_size", _NEW),
            _info("attention_mask", _INT64, "batch_size", total),
            *([_info("position_ids", _INT64, "batch_size", _NEW)] * self.style.has_positions),
            *(
                _info(f"past_key_values.{name}", _FLOAT, "batch_size", shared, _PAST, SIZE)
                for name in caches
            ),
        ]  # fmt: skip
        outputs = [
            _info("logits", _FLOAT, "batch_size", _NEW, VOCABULARY),
            *(
                _info(f"present.{name}", _FLOAT, "batch_size", shared, total, SIZE)
                for name in caches
            ),
        ]
        if self.style.has_total:
            self.nodes.append(helper.make_node("Identity", [self.total], ["total"]))
            outputs.append(_info("total", _INT64, 1))
        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, weights)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def _positions(self) -> str:
        positions = "position_ids"
        if not self.style.has_positions:
            positions = self.op("Unsqueeze", self.places, self.value([0]))
        if self.style.is_squared:
            positions = self.op("Mod", self.op("Mul", positions, positions), self.value(50))
        return positions

    def _mask(self) -> str:
        """Which keys each token sees, [1, 1, new, total]: Boolean, or what is added."""
        rows = self.op("Unsqueeze", self.places, self.value([1]))
        is_seen = self.op("LessOrEqual", self.keys, rows)
        if self.style.window:
            first = self.op("Sub", rows, self.value(self.style.window))
            is_seen = self.op("And", is_seen, self.op("Greater", self.keys, first))
        is_token = self.op(
            "Gather", self.op("Cast", "attention_mask", to=TensorProto.BOOL), self.keys, axis=1
        )
        is_token = self.op("Unsqueeze", is_token, self.value([1, 2]))
        is_seen = self.op("And", self.op("Unsqueeze", is_seen, self.value([0, 1])), is_token)
        if self.style.mask == "where":
            return str(is_seen)
        zero, lowest = (self.value(each, np.float32) for each in (0.0, _LOWEST))
        bias = self.op("Where", is_seen, zero, lowest)
        if self.style.bias:
            apart = self.op("Cast", self.op("Sub", self.keys, rows), to=_FLOAT)
            bias = self.op(
                "Add", bias, self.op("Mul", apart, self.value(self.style.bias, np.float32))
            )
        return str(bias)

    def _buffer(self) -> str:
        """A cut of a lower triangle."""
        table = self.value(np.tri(64)[None, None], np.bool_)
        rows = self.op("Slice", table, self.past, self.total, self.value([2]))
        return str(self.op("Slice", rows, self.value([0]), self.total, self.value([3])))

    def _heads(self, hidden: str, heads: int) -> str:
        """A projection of [1, new, width] as [1, heads, new, size]."""
        moved = self.op("MatMul", hidden, self.weight(WIDTH, heads * SIZE, scale=0.4))
        shape = self.op("Concat", self.value([1]), self.length, self.value([heads, SIZE]), axis=0)
        return str(self.op("Transpose", self.op("Reshape", moved, shape), perm=[0, 2, 1, 3]))

    def _turned(self, heads: str) -> str:
        """Queries or keys, with rotary positions if the style has them."""
        if not self.style.is_rotary:
            return heads
        cosines, sines = self._rotations()
        first, second = self.op("Split", heads, outputs=2, axis=-1, num_outputs=2)
        across = self.op("Concat", self.op("Neg", second), first, axis=-1)
        parts = self.op("Mul", heads, cosines), self.op("Mul", across, sines)
        return str(self.op("Add", *parts))

    def _rotations(self) -> list[str]:
        """Cosines and sines of the angles of positions, [1, 1, new, size]."""
        steps = np.tile(100.0 ** -(np.arange(SIZE // 2) / (SIZE // 2)), 2)
        if self.style.has_tables:
            tables = [function(np.outer(np.arange(64), steps)) for function in (np.cos, np.sin)]
            zero = self.value([0])
            start = zero if self.style.has_positions else self.past
            rows = [
                self.op("Slice", self.value(table, np.float32), start, self.total, zero)
                for table in tables
            ]
            if not self.style.has_positions:
                return [self.op("Unsqueeze", row, self.value([0, 1])) for row in rows]
            rows = [self.op("Gather", row, self.positions, axis=0) for row in rows]
            return [self.op("Unsqueeze", row, self.value([1])) for row in rows]
        places = self.op("Cast", self.positions, to=_FLOAT)
        places = self.op("Unsqueeze", places, self.value([1, 3]))
        angles = self.op("Mul", places, self.value(steps, np.float32))
        return [self.op("Cos", angles), self.op("Sin", angles)]

    def _attention(self, layer: int, hidden: str) -> str:
        shared = SHARED if self.style.core == "plain" else HEADS
        queries, keys = (
            self._turned(self._heads(hidden, HEADS)),
            self._turned(self._heads(hidden, shared)),
        )
        values = self._heads(hidden, shared)
        pasts, presents = (
            [f"{kind}.{layer}.{part}" for part in ("key", "value")]
            for kind in ("past_key_values", "present")
        )
        if self.style.core != "plain":
            mixed = self._fused(queries, keys, values, pasts, presents)
        else:
            for past, new, present in zip(pasts, (keys, values), presents, strict=True):
                self.nodes.append(
                    helper.make_node("Concat", [past, new], [present], present, axis=-2)
                )
            mixed = self._core(queries, *(self._repeated(present) for present in presents))
        if self.style.core != "MultiHeadAttention":
            mixed = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
            mixed = self.op("Reshape", mixed, self._width())
        return str(self.op("MatMul", mixed, self.weight(WIDTH, WIDTH, scale=0.4)))

    def _width(self) -> str:
        """The shape of all heads together."""
        return str(self.op("Concat", self.value([1]), self.length, self.value([WIDTH]), axis=0))

    def _repeated(self, present: str) -> str:
        """[1, shared, total, size] as [1, heads, total, size]."""
        batch, total = self.size(present, 0), self.size(present, 2)
        groups = self.value([SHARED, HEADS // SHARED])
        wide = self.op("Concat", batch, groups, total, self.value([SIZE]), axis=0)
        more = self.op("Expand", self.op("Unsqueeze", present, self.value([2])), wide)
        shape = self.op("Concat", batch, self.value([HEADS]), total, self.value([SIZE]), axis=0)
        return str(self.op("Reshape", more, shape))

    def _core(self, queries: str, keys: str, values: str) -> str:
        keys = self.op("Transpose", keys, perm=[0, 1, 3, 2])
        if self.style.scale == "roots":
            root = self.op("Sqrt", self.value(SIZE**-0.5, np.float32))
            queries, keys = self.op("Mul", queries, root), self.op("Mul", keys, root)
        scores = self.op("MatMul", queries, keys)
        if self.style.scale == "product":
            scores = self.op("Mul", scores, self.value(SIZE**-0.5, np.float32))
        elif self.style.scale == "quotient":
            scores = self.op("Div", scores, self.value(SIZE**0.5, np.float32))
        if self.style.mask == "added":
            scores = self.op("Add", scores, self.mask)
        elif self.style.mask != "none":
            scores = self.op("Where", self.mask, scores, self.value(_LOWEST, np.float32))
        shares = self.op("Softmax", scores, axis=-1)
        if self.style.mask == "where":
            zero = self.value(0.0, np.float32)
            shares = self.op("Where", self.op("IsNaN", shares), zero, shares)
        return str(self.op("MatMul", shares, values))

    def _fused(
        self, queries: str, keys: str, values: str, pasts: Sequence[str], presents: Sequence[str]
    ) -> str:
        """Attention by one node."""
        if self.style.core == "Attention":
            operands = [queries, keys, values, self.mask, *pasts]
            node = helper.make_node(
                "Attention", operands, ["", *presents], f"attention_{presents[0]}"
            )
        else:
            rows = []
            for heads in (queries, keys, values):
                turned = self.op("Transpose", heads, perm=[0, 2, 1, 3])
                rows.append(self.op("Reshape", turned, self._width()))
            is_open = self.style.mask == "none"
            padding = self.op("Cast", "attention_mask", to=TensorProto.INT32) if is_open else ""
            node = helper.make_node(
                "MultiHeadAttention",
                [*rows, "", padding, self.mask, *pasts],
                ["", *presents],
                num_heads=HEADS,
                unidirectional=int(is_open),
                domain="com.microsoft",
            )
        node.output[0] = f"mixed_{len(self.nodes)}"
        self.nodes.append(node)
        return str(node.output[0])


def _info(name: str, dtype: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def grown_decoder(style: Style) -> onnx.ModelProto:
    """Return a decoder with free sizes."""
    return _Decoder(style).model(23 if style.core == "Attention" else 18)


class GrowingSession:
    """Runs a decoder by onnxruntime, with caches that grow."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._session = onnxruntime.InferenceSession(model.SerializeToString())
        self.inputs = {each.name: each.shape for each in self._session.get_inputs()}
        self._names = [each.name for each in self._session.get_outputs()]
        self.past = 0
        self._caches = {
            name: np.zeros((1, shape[1], 0, SIZE), np.float32)
            for name, shape in self.inputs.items()
            if name.startswith("past")
        }

    def run(self, tokens: Sequence[int]) -> np.ndarray:
        """Read tokens; return their logits."""
        total = self.past + len(tokens)
        arrays = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(self.past, total)[None],
        }
        feeds = {name: array for name, array in arrays.items() if name in self.inputs}
        results = dict(
            zip(self._names, self._session.run(None, {**feeds, **self._caches}), strict=True)
        )
        self._caches = {
            name: results[name.replace("past_key_values", "present")] for name in self._caches
        }
        self.past = total
        return np.asarray(results["logits"])

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return the likeliest tokens after a prompt."""
        tokens = [int(self.run(prompt)[0, -1].argmax())]
        while len(tokens) < count:
            tokens.append(int(self.run(tokens[-1:])[0, -1].argmax()))
        return tokens
