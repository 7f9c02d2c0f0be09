"""Sizes -> a decoder with experts, as Mixtral has it, with random weights, as an ONNX model.

    python -m zoo.mixtral -o mixtral.onnx                # 214 million weights, any sizes of inputs
    python -m zoo.mixtral --length 1 --past 512          # one token a call, at most 512 in all

Jiang et al., "Mixtral of Experts" (arXiv:2401.04088): layers of a Llama with grouped queries, whose
feed-forward network is one of 8 experts; each token goes to 2 of them. The file is laid out as by
onnxruntime-genai's model builder, with the experts of a layer in one op `MoE`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from zoo.decoder_graph import MICROSOFT, DecoderAxes, DecoderGraph, DecoderSizes


@dataclass(frozen=True)
class MixtralSizes:
    """Sizes of a decoder with experts; by default 214 million weights, 82 million for a token."""

    attention: DecoderSizes = field(
        default_factory=lambda: DecoderSizes(
            layers=8, heads=8, shared=2, size=64, context=4096, base=1e6, epsilon=1e-5
        )
    )
    inner: int = 1792
    """Inner values of an expert; 3.5 times the channels, as in Mixtral."""
    experts: int = 8
    chosen: int = 2
    """Experts of a token."""
    vocabulary: int = 32000

    @property
    def hidden(self) -> int:
        """Return how many channels a token has."""
        return self.attention.heads * self.attention.size


def tiny_sizes() -> MixtralSizes:
    """Return sizes for tests: 2 layers, 64 channels, 8 experts, 100 tokens."""
    attention = DecoderSizes(
        layers=2, heads=4, shared=2, size=16, context=64, base=1e4, epsilon=1e-5
    )
    return MixtralSizes(attention, inner=96, vocabulary=100)


def mixtral(
    sizes: MixtralSizes | None = None,
    *,
    length: int | None = None,
    past: int | None = None,
    has_all_rows: bool = True,
    is_fused: bool = True,
    seed: int = 0,
) -> onnx.ModelProto:
    """Return the network, whose weights are random.

    Its inputs and outputs, `length`, `past` and `has_all_rows` are those of `gguf_decoder`.

    Parameters
    ----------
    sizes
        None: those of `MixtralSizes()`.
    is_fused
        Whether gate and linear part of an expert are one matrix whose rows take turns
        (`swiglu_fusion=1`), which onnxruntime computes on CPUs; else they are two, FC1 and FC3, as
        the model builder has them for Mixtral. Both compute the same.
    seed
        Of the weights; both forms have the same ones.

    Raises
    ------
    ValueError
        `length` is under 1, or `past` is under it or over the tokens of the training.
    """
    sizes = MixtralSizes() if sizes is None else sizes
    axes = DecoderAxes.of(length, past, sizes.attention.context)
    graph = _Decoder(sizes, axes, seed, is_fused=is_fused)
    value = graph.op("Gather", graph.matrix("embedding", sizes.vocabulary, sizes.hidden, 1.0),
                     graph.tokens, axis=0)  # fmt: skip
    normed = graph.norm(value, graph.scale("layers.0.attention_norm"))
    layers = sizes.attention.layers
    for layer in range(layers):
        attended = graph.self_attention(layer, normed)
        scale = graph.scale(f"layers.{layer}.experts_norm")
        normed, value = graph.norm_of_sum(scale, value, attended)
        mixed = graph.experts(layer, normed)
        behind = "norm" if layer + 1 == layers else f"layers.{layer + 1}.attention_norm"
        normed, value = graph.norm_of_sum(graph.scale(behind), value, mixed)
    if not has_all_rows:
        normed = graph.last_row(normed)
    graph.product("head", normed, sizes.hidden, sizes.vocabulary)
    graph.name_logits(sizes.vocabulary, has_all_rows=has_all_rows)
    return graph.decoder()


class _Decoder(DecoderGraph):
    """Collects the nodes of a decoder with random weights."""

    def __init__(
        self, sizes: MixtralSizes, axes: DecoderAxes, seed: int, *, is_fused: bool
    ) -> None:
        super().__init__(sizes.attention, axes, seed)
        self._all, self._is_fused = sizes, is_fused

    def matrix(self, name: str, rows: int, columns: int, std: float) -> str:
        """Add a random matrix."""
        return self.weight(name, rows, columns, std=std)

    def scale(self, name: str) -> str:
        """Add the scale of a norm."""
        return self.weight(f"{name}.scale", self._all.hidden, mean=1.0)

    def product(self, name: str, value: str, num_in: int, num_out: int) -> str:
        """Add the product with a random matrix."""
        result: str = self.op("MatMul", value, self.matrix(name, num_in, num_out, num_in**-0.5))
        return result

    def self_attention(self, layer: int, value: str) -> str:
        """Add a layer's attention of grouped queries."""
        hidden = self._all.hidden
        queries, keys, values = (
            self.product(f"layers.{layer}.{name}", value, hidden, heads * self.sizes.size)
            for name, heads in (
                ("queries", self.sizes.heads),
                ("keys", self.sizes.shared),
                ("values", self.sizes.shared),
            )
        )
        mixed = self.attention(layer, queries, keys, values)
        return self.product(f"layers.{layer}.attended", mixed, hidden, hidden)

    def experts(self, layer: int, value: str) -> str:
        """Add a layer's experts, and the product whose softmax chooses among them."""
        sizes, name = self._all, f"layers.{layer}"
        scores = self.product(f"{name}.router", value, sizes.hidden, sizes.experts)
        rows = self.op("Reshape", scores, self.constant([-1, sizes.experts], np.int64))
        gate, linear = (
            self._stack(f"{name}.{part}", sizes.inner, sizes.hidden) for part in ("gate", "linear")
        )
        out = self._stack(f"{name}.out", sizes.hidden, sizes.inner)
        if self._is_fused:
            fused = np.stack([gate, linear], 2).reshape(sizes.experts, -1, sizes.hidden)
            first, last = {f"{name}.gate_and_linear": fused}, {}
            kind: dict[str, Any] = {"activation_type": "swiglu", "swiglu_fusion": 1}
        else:
            first, last = {f"{name}.gate": gate}, {f"{name}.linear": linear}
            kind = {"activation_type": "silu"}
        weights = [
            self.initializer(*each)
            for part in (first, {f"{name}.out": out}, last)
            for each in part.items()
        ]
        no_bias = [one for weight in weights for one in (weight, "")][:-1]
        result: str = self.op(
            "MoE", value, rows, *no_bias, k=sizes.chosen, normalize_routing_weights=1, **kind
        )
        self.nodes[-1].domain = MICROSOFT
        return result

    def _stack(self, name: str, rows: int, columns: int) -> np.ndarray:
        """Return a random matrix for each expert; it is no weight of the graph yet."""
        self.weight(name, self._all.experts, rows, columns, std=columns**-0.5)
        return numpy_helper.to_array(self.weights.pop())


def main() -> int:
    """Write the model."""
    parser = argparse.ArgumentParser(prog="python -m zoo.mixtral", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--length", type=int, help="new tokens of a call; default: any number")
    parser.add_argument("--past", type=int, help="tokens of past and present; default: any number")
    parser.add_argument("--tiny", action="store_true", help="the sizes of the tests")
    parser.add_argument(
        "--last-row", action="store_true", help="logits of the last token of a call alone"
    )
    parser.add_argument(
        "--separate", action="store_true", help="gate and linear part of experts are two matrices"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: 0)")
    parser.add_argument("-o", "--output", metavar="FILE.onnx", default="mixtral.onnx")
    arguments = parser.parse_args()
    try:
        model = mixtral(
            tiny_sizes() if arguments.tiny else None,
            length=arguments.length,
            past=arguments.past,
            has_all_rows=not arguments.last_row,
            is_fused=not arguments.separate,
            seed=arguments.seed,
        )
    except ValueError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    onnx.save(model, arguments.output)
    print(f"wrote {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
