"""A GGUF file of a Llama -> an ONNX model of it, laid out as by onnxruntime-genai's model builder.

The layers are those of Llama (Touvron et al., arXiv:2302.13971, section 2.2), with grouped queries.
A layer is norms by root mean squares, GroupQueryAttention with rotary positions and a gated
feed-forward network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from heteroplace.terminal import listed
from zoo.gguf_file import BLOCK, BlockedWeights, GgufError, GgufFile
from zoo.models.onnx_graph import FLOAT, INT64, OnnxGraph

Weights = Literal["float32", "int4"]
_DOMAIN = "com.microsoft"
_TABLE = "token_embd.weight"
_HEAD = "output.weight"


@dataclass(frozen=True)
class DecoderSizes:
    """The sizes that the metadata of a GGUF file says."""

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

    @classmethod
    def of(cls, file: GgufFile) -> DecoderSizes:
        """Read them; raises GgufError for another architecture than Llama."""
        architecture = file.value("general.architecture")
        if architecture != "llama":
            raise GgufError(f"the network is of the architecture {architecture}, expected llama")
        heads = file.value("llama.attention.head_count")
        size = file.value("llama.embedding_length") // heads
        rotary = file.value("llama.rope.dimension_count", size)
        if file.value("llama.attention.key_length", size) != size or rotary != size:
            raise GgufError(f"a head has {size} channels, and not all of them have positions")
        if file.value("llama.rope.scaling.type", "none") != "none":
            raise GgufError("scaled rotary positions are not supported")
        return cls(
            layers=file.value("llama.block_count"),
            heads=heads,
            shared=file.value("llama.attention.head_count_kv", heads),
            size=size,
            context=file.value("llama.context_length"),
            base=file.value("llama.rope.freq_base", 10000.0),
            epsilon=file.value("llama.attention.layer_norm_rms_epsilon"),
        )


def gguf_decoder(
    file: GgufFile,
    *,
    weights: Weights,
    length: int | None = None,
    past: int | None = None,
    has_all_rows: bool = True,
) -> onnx.ModelProto:
    """Return a Llama as an ONNX model that takes token ids and the keys and values of the past.

    Inputs are `input_ids` [batch, length], `attention_mask` [batch, total], which is 1 for the
    tokens of the past and the new ones, and of each layer N `past_key_values.N.key` and `.value`
    [batch, heads of keys, past, channels]. Outputs are `logits` [batch, length, vocabulary], and
    of each layer `present.N.key` and `.value`.

    Parameters
    ----------
    weights
        "float32": all weights in float32. "int4": tensors of type Q4_1 and Q8_0 keep their numbers
        of 4 and 8 bits, in MatMulNBits and GatherBlockQuantized; others are in float32.
    length
        New tokens of a call; None: any number.
    past
        Tokens that the past, the present and the mask have room for; tokens are at the start, and
        the mask is 0 behind them. None: the past has any length, and the present is longer by the
        new tokens. The batch is 1 if a size is given.
    has_all_rows
        Whether there are logits of each new token, [batch, length, vocabulary]; else they are those
        of the last one, [batch, 1, vocabulary], as with `prune_lm_head` of the model builder.

    Raises
    ------
    GgufError
        The file is not that of a Llama, or it has tensors of unknown use.
    ValueError
        `length` is under 1, or `past` is under it or over what the network is trained for.
    """
    sizes = DecoderSizes.of(file)
    if length is not None and length < 1:
        raise ValueError(f"length={length} must be at least 1")
    if past is not None and not (length or 1) <= past <= sizes.context:
        raise ValueError(f"past={past} must be from {length or 1} to {sizes.context}")
    graph = _Decoder(file, sizes, _Axes.of(length, past), has_blocks=weights == "int4")
    normed, value = graph.first()
    for layer in range(sizes.layers):
        attended = graph.attention(f"blk.{layer}", layer, normed)
        normed, value = graph.norm_of_sum(f"blk.{layer}.ffn_norm.weight", value, attended)
        gated = graph.feed_forward(f"blk.{layer}", normed)
        is_last = layer + 1 == sizes.layers
        behind = "output_norm.weight" if is_last else f"blk.{layer + 1}.attn_norm.weight"
        normed, value = graph.norm_of_sum(behind, value, gated)
    graph.head(normed, has_all_rows=has_all_rows)
    return graph.decoder()


@dataclass(frozen=True)
class _Axes:
    """Sizes of inputs, or names of sizes that are free."""

    batch: int | str
    length: int | str
    past: int | str
    total: int | str

    @classmethod
    def of(cls, length: int | None, past: int | None) -> _Axes:
        return cls(
            "batch_size" if length is None and past is None else 1,
            length or "sequence_length",
            past or "past_sequence_length",
            past or "total_sequence_length",
        )


class _Decoder(OnnxGraph):
    """Collects the nodes of a decoder with the weights of a file."""

    def __init__(
        self, file: GgufFile, sizes: DecoderSizes, axes: _Axes, *, has_blocks: bool
    ) -> None:
        super().__init__()
        self._file, self._sizes, self._axes, self._has_blocks = file, sizes, axes, has_blocks
        self._names: set[str] = set()
        self._used: set[str] = set()
        self._outputs: list[onnx.ValueInfoProto] = []
        self._tokens = self.input("input_ids", INT64, axes.batch, axes.length)
        self._state = (*self._lengths(), *self._rotations())

    def initializer(self, name: str, array: np.ndarray) -> str:
        """Add an array if there is none of this name."""
        if name not in self._names:
            self._names.add(name)
            super().initializer(name, array)
        return name

    def _lengths(self) -> tuple[str, str]:
        """Add the place of the last token of each sequence, and how many places there are."""
        mask = self.input("attention_mask", INT64, self._axes.batch, self._axes.total)
        one = self.initializer("one", np.array([1], np.int64))
        count = self.op("ReduceSum", mask, one, keepdims=0)
        last = self.op("Cast", self.op("Sub", count, one), to=TensorProto.INT32)
        places = self.op("Gather", self.op("Shape", mask), self.constant(1, np.int64), axis=0)
        return last, self.op("Cast", places, to=TensorProto.INT32)

    def _rotations(self) -> tuple[str, str]:
        """Add cosines and sines of the angles of positions, [context, channels / 2]."""
        steps = np.arange(0, self._sizes.size, 2) / self._sizes.size
        angles = np.outer(np.arange(self._sizes.context), self._sizes.base**-steps)
        cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        return self.initializer("cos_cache", cosines), self.initializer("sin_cache", sines)

    def first(self) -> tuple[str, str]:
        """Add the embedding of the tokens; its norm, and itself."""
        blocks = self._blocks(_TABLE)
        if blocks is not None and blocks.zeros is None:  # Gather takes no zeros that are floats
            numbers, scales = self._stored(_TABLE, blocks)
            rows = self.constant([len(blocks.numbers), -1], np.int64)
            table = self.op("Reshape", numbers, rows)
            value = self.op(
                "GatherBlockQuantized", table, self._tokens, scales,
                bits=blocks.bits, block_size=BLOCK, gather_axis=0, quantize_axis=1,
            )  # fmt: skip
            self.nodes[-1].domain = _DOMAIN
        else:
            value = self.op("Gather", self._array(_TABLE), self._tokens, axis=0)
        scale = self._array("blk.0.attn_norm.weight")
        normed = self.op(
            "SimplifiedLayerNormalization", value, scale,
            axis=-1, epsilon=self._sizes.epsilon, stash_type=1,
        )  # fmt: skip
        return normed, value

    def norm_of_sum(self, name: str, value: str, more: str) -> tuple[str, str]:
        """Add a sum; its norm by the root of the mean of squares, and itself."""
        normed, _, _, total = self.op(
            "SkipSimplifiedLayerNormalization", value, more, self._array(name),
            outputs=4, epsilon=self._sizes.epsilon,
        )  # fmt: skip
        node = self.nodes[-1]
        node.domain = _DOMAIN
        node.output[1] = node.output[2] = ""
        return normed, total

    def attention(self, name: str, layer: int, value: str) -> str:
        """Add attention of grouped queries to the past and to the tokens before."""
        sizes, axes = self._sizes, self._axes
        queries = self._product(f"{name}.attn_q.weight", value, heads=sizes.heads)
        keys = self._product(f"{name}.attn_k.weight", value, heads=sizes.shared)
        values = self._product(f"{name}.attn_v.weight", value)
        past = (axes.batch, sizes.shared, axes.past, sizes.size)
        present = (axes.batch, sizes.shared, axes.total, sizes.size)
        parts = ("key", "value")
        before = [self.input(f"past_key_values.{layer}.{part}", FLOAT, *past) for part in parts]
        mixed, _, _ = self.op(
            "GroupQueryAttention", queries, keys, values, *before, *self._state,
            outputs=3, num_heads=sizes.heads, kv_num_heads=sizes.shared,
            scale=sizes.size**-0.5, do_rotary=1, rotary_interleaved=0,
        )  # fmt: skip
        self.nodes[-1].domain = _DOMAIN
        self.nodes[-1].output[1:] = [
            self._output(f"present.{layer}.{part}", *present) for part in parts
        ]
        return self._product(f"{name}.attn_output.weight", mixed)

    def feed_forward(self, name: str, value: str) -> str:
        """Add the gated network."""
        gate = self._product(f"{name}.ffn_gate.weight", value)
        up = self._product(f"{name}.ffn_up.weight", value)
        gated = self.op("Mul", self.op("Mul", gate, self.op("Sigmoid", gate)), up)
        return self._product(f"{name}.ffn_down.weight", gated)

    def head(self, value: str, *, has_all_rows: bool) -> None:
        """Add the scores of the next token; without weights of its own it has the embedding's."""
        axes = self._axes
        if not has_all_rows:
            ends = [self.constant([each], "int64") for each in (-1, 2**31 - 1, 1)]
            value = self.op("Slice", value, *ends)
        if _HEAD in self._file:
            self._product(_HEAD, value)
        elif self._blocks(_TABLE) is not None:
            self._product(_TABLE, value)
        else:
            self.op("MatMul", value, self.op("Transpose", self._array(_TABLE), perm=[1, 0]))
        rows = self._file.rows(_HEAD if _HEAD in self._file else _TABLE)
        length = axes.length if has_all_rows else 1
        self.nodes[-1].output[0] = self._output("logits", axes.batch, length, rows)

    def decoder(self) -> onnx.ModelProto:
        """Return the model; raises GgufError if a tensor of the file is in no node."""
        rest = sorted({*self._file.tensors()} - self._used)
        if rest:
            raise GgufError(f"the file has tensors that no Llama has: {listed(rest)}")
        # Logits first, as the model builder has them.
        outputs = [self._outputs[-1], *self._outputs[:-1]]
        return helper.make_model(
            helper.make_graph(self.nodes, "decoder", self.inputs, outputs, self.weights),
            opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(_DOMAIN, 1)],
            ir_version=8,
        )

    def _output(self, name: str, *shape: int | str) -> str:
        self._outputs.append(helper.make_tensor_value_info(name, FLOAT, shape))
        return name

    def _product(self, name: str, value: str, heads: int = 0) -> str:
        """Add the product with a matrix of the file.

        Parameters
        ----------
        heads
            Of the rows that have rotary positions, else 0.
        """
        rows = _rows_by_halves(self._file.rows(name), heads)
        blocks = self._blocks(name)
        if blocks is None:
            matrix = self._file.array(name)[rows].T
            weight = self.initializer(name, np.ascontiguousarray(matrix))
            self._used.add(name)
            result: str = self.op("MatMul", value, weight)
            return result
        columns, depth = blocks.numbers.shape
        result = self.op(
            "MatMulNBits", value, *self._stored(name, blocks.reordered(rows)),
            bits=blocks.bits, block_size=BLOCK, K=depth, N=columns,
        )  # fmt: skip
        self.nodes[-1].domain = _DOMAIN
        return result

    def _blocks(self, name: str) -> BlockedWeights | None:
        return self._file.blocks(name) if self._has_blocks else None

    def _stored(self, name: str, blocks: BlockedWeights) -> list[str]:
        """Return the initializers of weights in blocks: numbers, scales, and zeros if they vary."""
        parts: dict[str, np.ndarray] = {
            f"{name}.numbers": blocks.packed(),
            f"{name}.scales": blocks.scales,
        }
        if blocks.zeros is not None:
            parts[f"{name}.zeros"] = blocks.zeros
        for part, array in parts.items():
            self.initializer(part, array)
        self._used.add(name)
        return list(parts)

    def _array(self, name: str) -> str:
        """Return the initializer of a tensor in float32."""
        self._used.add(name)
        return self.initializer(name, self._file.array(name))


def _rows_by_halves(rows: int, heads: int) -> npt.NDArray[np.int64]:
    """Return where the rows of a matrix are in the file; 0 heads: at their own places.

    llama.cpp rotates neighbours, and its files have the rows of queries and keys in that order.
    ONNX's rotary positions, without `rotary_interleaved`, are those of the two halves of a head.
    """
    places = np.arange(rows)
    return places.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1) if heads else places
