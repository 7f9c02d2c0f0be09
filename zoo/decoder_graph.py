"""Sizes of a decoder with a cache -> the parts of its ONNX graph that all such decoders share.

They are laid out as by onnxruntime-genai's model builder: token ids, the mask, the keys and values
of the past and the present ones, rotary positions within GroupQueryAttention, and norms by root
mean squares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from zoo.models.onnx_graph import FLOAT, INT64, OnnxGraph

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own ops."""


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of the attention of a decoder."""

    layers: int
    heads: int
    shared: int
    """Heads of keys and values, which groups of queries share."""
    size: int
    """Channels of a head."""
    context: int
    """Tokens that the rotary positions are trained for."""
    base: float
    """Of the rotary positions."""
    epsilon: float
    """Of the norms."""


@dataclass(frozen=True)
class DecoderAxes:
    """Sizes of inputs, or names of sizes that are free."""

    batch: int | str
    length: int | str
    past: int | str
    total: int | str

    @classmethod
    def of(cls, length: int | None, past: int | None, context: int) -> DecoderAxes:
        """Return the axes of a model.

        Parameters
        ----------
        length
            New tokens of a call; None: any number.
        past
            Tokens that past, present and mask have room for; None: any number. The batch is 1 if a
            size is given.
        context
            The most tokens that `past` may be.

        Raises
        ------
        ValueError
            `length` is under 1, or `past` is under it or over `context`.
        """
        if length is not None and length < 1:
            raise ValueError(f"length={length} must be at least 1")
        if past is not None and not (length or 1) <= past <= context:
            raise ValueError(f"past={past} must be from {length or 1} to {context}")
        return cls(
            "batch_size" if length is None and past is None else 1,
            length or "sequence_length",
            past or "past_sequence_length",
            past or "total_sequence_length",
        )


class DecoderGraph(OnnxGraph):
    """Collects the nodes of a decoder; `seed` as of `OnnxGraph`."""

    def __init__(self, sizes: DecoderSizes, axes: DecoderAxes, seed: int | None = None) -> None:
        super().__init__(seed)
        self.sizes, self.axes = sizes, axes
        self._names: set[str] = set()
        self._outputs: list[onnx.ValueInfoProto] = []
        self.tokens = self.input("input_ids", INT64, axes.batch, axes.length)
        self._state = (*self._lengths(), *self._rotations())

    def initializer(self, name: str, array: np.ndarray) -> str:
        """Add an array if there is none of this name."""
        if name not in self._names:
            self._names.add(name)
            super().initializer(name, array)
        return name

    def _lengths(self) -> tuple[str, str]:
        """Add the place of the last token of each sequence, and how many places there are."""
        mask = self.input("attention_mask", INT64, self.axes.batch, self.axes.total)
        one = self.initializer("one", np.array([1], np.int64))
        count = self.op("ReduceSum", mask, one, keepdims=0)
        last = self.op("Cast", self.op("Sub", count, one), to=TensorProto.INT32)
        places = self.op("Gather", self.op("Shape", mask), self.constant(1, np.int64), axis=0)
        return last, self.op("Cast", places, to=TensorProto.INT32)

    def _rotations(self) -> tuple[str, str]:
        """Add cosines and sines of the angles of positions, [context, channels / 2]."""
        steps = np.arange(0, self.sizes.size, 2) / self.sizes.size
        angles = np.outer(np.arange(self.sizes.context), self.sizes.base**-steps)
        cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        return self.initializer("cos_cache", cosines), self.initializer("sin_cache", sines)

    def norm(self, value: str, scale: str) -> str:
        """Add the norm of a value by the root of the mean of squares."""
        result: str = self.op(
            "SimplifiedLayerNormalization", value, scale,
            axis=-1, epsilon=self.sizes.epsilon, stash_type=1,
        )  # fmt: skip
        return result

    def norm_of_sum(self, scale: str, value: str, more: str) -> tuple[str, str]:
        """Add a sum; its norm by the root of the mean of squares, and itself."""
        normed, _, _, total = self.op(
            "SkipSimplifiedLayerNormalization", value, more, scale,
            outputs=4, epsilon=self.sizes.epsilon,
        )  # fmt: skip
        node = self.nodes[-1]
        node.domain = MICROSOFT
        node.output[1] = node.output[2] = ""
        return normed, total

    def attention(self, layer: int, queries: str, keys: str, values: str) -> str:
        """Add attention of grouped queries to the past and to the tokens before."""
        sizes, axes = self.sizes, self.axes
        past = (axes.batch, sizes.shared, axes.past, sizes.size)
        present = (axes.batch, sizes.shared, axes.total, sizes.size)
        parts = ("key", "value")
        before = [self.input(f"past_key_values.{layer}.{part}", FLOAT, *past) for part in parts]
        mixed, _, _ = self.op(
            "GroupQueryAttention", queries, keys, values, *before, *self._state,
            outputs=3, num_heads=sizes.heads, kv_num_heads=sizes.shared,
            scale=sizes.size**-0.5, do_rotary=1, rotary_interleaved=0,
        )  # fmt: skip
        self.nodes[-1].domain = MICROSOFT
        self.nodes[-1].output[1:] = [
            self._output(f"present.{layer}.{part}", *present) for part in parts
        ]
        result: str = mixed
        return result

    def last_row(self, value: str) -> str:
        """Add the cut to the last token of a call."""
        ends = [self.constant([each], np.int64) for each in (-1, 2**31 - 1, 1)]
        result: str = self.op("Slice", value, *ends)
        return result

    def name_logits(self, vocabulary: int, *, has_all_rows: bool) -> None:
        """Make the result of the last node the logits."""
        length = self.axes.length if has_all_rows else 1
        self.nodes[-1].output[0] = self._output("logits", self.axes.batch, length, vocabulary)

    def decoder(self) -> onnx.ModelProto:
        """Return the model, whose logits were named last."""
        # Logits first, as the model builder has them.
        outputs = [self._outputs[-1], *self._outputs[:-1]]
        return helper.make_model(
            helper.make_graph(self.nodes, "decoder", self.inputs, outputs, self.weights),
            opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)],
            ir_version=8,
        )

    def _output(self, name: str, *shape: int | str) -> str:
        self._outputs.append(helper.make_tensor_value_info(name, FLOAT, shape))
        return name
