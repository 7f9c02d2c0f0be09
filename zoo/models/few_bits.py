"""Layers of a decoder with weights of 4, 8 or 32 bits, for one token, as ONNX models.

The layers are those of Llama (Touvron et al., arXiv:2302.13971, section 2.2) without rotary
positions: norms by root mean squares, attention to the tokens before, and a gated feed-forward
network. Products with weights of few bits are MatMulNBits, as onnxruntime's tools write them, with
blocks of 32; those of float32 are MatMul.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from zoo.models.onnx_graph import FLOAT, OnnxGraph

_DOMAIN = "com.microsoft"
_BLOCK = 32
_HEAD = 64
"""Channels of a head of attention."""
_SPREADS = {4: 4.6, 8: 73.9}
"""Standard deviation of numbers that are spread evenly over so many bits."""


def decoder_layers(
    *, bits: int = 4, layers: int = 8, hidden: int = 2048, inner: int = 5632, past: int = 32,
    seed: int = 0,
) -> onnx.ModelProto:  # fmt: skip
    """Return layers for one token; input `x` [1, hidden], and of each layer the keys and values of
    `past` tokens, [heads, past, 64]; output [1, hidden]."""
    graph = _FewBits(seed, bits)
    value = graph.input("x", FLOAT, 1, hidden)
    heads = hidden // _HEAD
    for layer in range(layers):
        normed = graph.norm(f"{layer}.norm", value, hidden)
        query, key, new = (
            graph.heads(graph.product(f"{layer}.{name}", normed, hidden, hidden), heads)
            for name in ("query", "key", "value")
        )
        shape = (heads, past, _HEAD)
        keys = graph.op("Concat", graph.input(f"{layer}.keys", FLOAT, *shape), key, axis=1)
        values = graph.op("Concat", graph.input(f"{layer}.values", FLOAT, *shape), new, axis=1)
        scores = graph.op("MatMul", query, graph.op("Transpose", keys, perm=[0, 2, 1]))
        scores = graph.op("Mul", scores, graph.constant(_HEAD**-0.5, "float32"))
        mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), values)
        mixed = graph.op("Reshape", mixed, graph.constant([1, hidden], "int64"))
        value = graph.op("Add", value, graph.product(f"{layer}.out", mixed, hidden, hidden))
        normed = graph.norm(f"{layer}.norm2", value, hidden)
        gate, up = (
            graph.product(f"{layer}.{name}", normed, hidden, inner) for name in ("gate", "up")
        )
        gated = graph.op("Mul", graph.op("Mul", gate, graph.op("Sigmoid", gate)), up)
        value = graph.op("Add", value, graph.product(f"{layer}.down", gated, inner, hidden))
    model = graph.model("decoder", (value, (1, hidden)))
    if bits in _SPREADS:
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return model


class _FewBits(OnnxGraph):
    """Products with weights of a few bits."""

    def __init__(self, seed: int, bits: int) -> None:
        super().__init__(seed)
        self._bits = bits
        self._numbers = np.random.default_rng([seed, bits])

    def product(self, name: str, value: str, depth: int, columns: int) -> str:
        """Add the product with weights whose sums are as large as what they are sums of."""
        if self._bits not in _SPREADS:
            weight = self.weight(f"{name}.weight", depth, columns, std=depth**-0.5)
            result: str = self.op("MatMul", value, weight)
            return result
        blocks = depth // _BLOCK
        shape = (columns, blocks, _BLOCK * self._bits // 8)
        words = self._numbers.integers(0, 256, shape, dtype=np.uint8)
        scales = self._numbers.uniform(0.8, 1.2, columns * blocks) / _SPREADS[self._bits]
        scales = (scales / depth**0.5).astype("float16").astype("float32")
        result = self.op(
            "MatMulNBits",
            value,
            self.initializer(f"{name}.weight", words),
            self.initializer(f"{name}.scales", scales),
            bits=self._bits,
            block_size=_BLOCK,
            K=depth,
            N=columns,
        )
        self.nodes[-1].domain = _DOMAIN
        return result

    def norm(self, name: str, value: str, channels: int) -> str:
        """Add a norm by the root of the mean of squares."""
        squares = self.op("ReduceMean", self.op("Mul", value, value), axes=[-1])
        size = self.op("Sqrt", self.op("Add", squares, self.constant(1e-6, "float32")))
        scale = self.initializer(name, np.ones(channels, "float32"))
        result: str = self.op("Mul", self.op("Div", value, size), scale)
        return result

    def heads(self, value: str, heads: int) -> str:
        """Return a row with an axis for each head before it."""
        result: str = self.op("Reshape", value, self.constant([heads, 1, _HEAD], "int64"))
        return result
