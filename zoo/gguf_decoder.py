"""A GGUF file of a Llama -> an ONNX model of it, laid out as by onnxruntime-genai's model builder.

The layers are those of Llama (Touvron et al., arXiv:2302.13971, section 2.2), with grouped queries.
A layer is norms by root mean squares, GroupQueryAttention with rotary positions and a gated
feed-forward network.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx

from heteroplace.terminal import listed
from zoo.decoder_graph import MICROSOFT, DecoderAxes, DecoderGraph, DecoderSizes
from zoo.gguf_file import BLOCK, BlockedWeights, GgufError, GgufFile

Weights = Literal["float32", "int4"]
_TABLE = "token_embd.weight"
_HEAD = "output.weight"


def _sizes_of(file: GgufFile) -> DecoderSizes:
    """Read the sizes of a file; raises GgufError for another architecture than Llama."""
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
    return DecoderSizes(
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
    sizes = _sizes_of(file)
    axes = DecoderAxes.of(length, past, sizes.context)
    graph = _Decoder(file, sizes, axes, has_blocks=weights == "int4")
    normed, value = graph.first()
    for layer in range(sizes.layers):
        attended = graph.self_attention(f"blk.{layer}", layer, normed)
        normed, value = graph.named_norm(f"blk.{layer}.ffn_norm.weight", value, attended)
        gated = graph.feed_forward(f"blk.{layer}", normed)
        is_last = layer + 1 == sizes.layers
        behind = "output_norm.weight" if is_last else f"blk.{layer + 1}.attn_norm.weight"
        normed, value = graph.named_norm(behind, value, gated)
    graph.head(normed, has_all_rows=has_all_rows)
    return graph.whole()


class _Decoder(DecoderGraph):
    """Collects the nodes of a decoder with the weights of a file."""

    def __init__(
        self, file: GgufFile, sizes: DecoderSizes, axes: DecoderAxes, *, has_blocks: bool
    ) -> None:
        super().__init__(sizes, axes)
        self._file, self._has_blocks = file, has_blocks
        self._used: set[str] = set()

    def first(self) -> tuple[str, str]:
        """Add the embedding of the tokens; its norm, and itself."""
        blocks = self._blocks(_TABLE)
        if blocks is not None and blocks.zeros is None:  # Gather takes no zeros that are floats
            numbers, scales = self._stored(_TABLE, blocks)
            rows = self.constant([len(blocks.numbers), -1], np.int64)
            table = self.op("Reshape", numbers, rows)
            value = self.op(
                "GatherBlockQuantized", table, self.tokens, scales,
                bits=blocks.bits, block_size=BLOCK, gather_axis=0, quantize_axis=1,
            )  # fmt: skip
            self.nodes[-1].domain = MICROSOFT
        else:
            value = self.op("Gather", self._array(_TABLE), self.tokens, axis=0)
        return self.norm(value, self._array("blk.0.attn_norm.weight")), value

    def named_norm(self, name: str, value: str, more: str) -> tuple[str, str]:
        """Add a sum; its norm with a scale of the file, and itself."""
        return self.norm_of_sum(self._array(name), value, more)

    def self_attention(self, name: str, layer: int, value: str) -> str:
        """Add a layer's attention of grouped queries."""
        queries = self._product(f"{name}.attn_q.weight", value, heads=self.sizes.heads)
        keys = self._product(f"{name}.attn_k.weight", value, heads=self.sizes.shared)
        values = self._product(f"{name}.attn_v.weight", value)
        mixed = self.attention(layer, queries, keys, values)
        return self._product(f"{name}.attn_output.weight", mixed)

    def feed_forward(self, name: str, value: str) -> str:
        """Add the gated network."""
        gate = self._product(f"{name}.ffn_gate.weight", value)
        up = self._product(f"{name}.ffn_up.weight", value)
        gated = self.op("Mul", self.op("Mul", gate, self.op("Sigmoid", gate)), up)
        return self._product(f"{name}.ffn_down.weight", gated)

    def head(self, value: str, *, has_all_rows: bool) -> None:
        """Add the scores of the next token; without weights of its own it has the embedding's."""
        if not has_all_rows:
            value = self.last_row(value)
        if _HEAD in self._file:
            self._product(_HEAD, value)
        elif self._blocks(_TABLE) is not None:
            self._product(_TABLE, value)
        else:
            self.op("MatMul", value, self.op("Transpose", self._array(_TABLE), perm=[1, 0]))
        rows = self._file.rows(_HEAD if _HEAD in self._file else _TABLE)
        self.name_logits(rows, has_all_rows=has_all_rows)

    def whole(self) -> onnx.ModelProto:
        """Return the model; raises GgufError if a tensor of the file is in no node."""
        rest = sorted({*self._file.tensors()} - self._used)
        if rest:
            raise GgufError(f"the file has tensors that no Llama has: {listed(rest)}")
        return self.decoder()

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
        self.nodes[-1].domain = MICROSOFT
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
