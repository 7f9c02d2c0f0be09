"""Layers, width and heads -> GPT-2 run forward on some sequences, as a sharded graph.

The network of DistIR's experiments (arXiv 2111.05426, section 6) without importing it: its weights
of up to 394 GB are sizes here. Lanes cut it as Megatron-LM does (arXiv 1909.08053, section 3):
attention by heads and the layers behind it by columns, then rows, with a sum over the lanes before
bias and residual; norms and embeddings are whole in each lane. Heads that the lanes do not divide
are dealt out unevenly: the first lanes have one more.
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.errors import ShardingError
from heteroplace.model.collectives import collective_op
from heteroplace.model.graph import Task, tensor_bytes
from heteroplace.parts.parallel.transforms.builder import ShardedBuilder, TaskEntry, check_sizes
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph

VOCABULARY = 50257
POSITIONS = 1024
SEQUENCE = 8
"""Tokens of a sequence in what was published with DistIR: its example has (256, 8, 768)."""


@dataclass(frozen=True)
class Gpt2:
    """GPT-2 for one microbatch."""

    num_layers: int
    width: int
    num_heads: int
    rows: int
    """Sequences of one microbatch."""
    num_lanes: int = 1
    sequence: int = SEQUENCE
    """Tokens of a sequence."""
    dtype: str = "float16"

    def inference(self) -> ShardedGraph:
        """Return the graph from token ids to the last norm.

        Raises
        ------
        ShardingError
            A size is below 1; lanes do not divide the width, or some would have no head.
        """
        return _Maker(self).inference()


class _Maker:
    def __init__(self, gpt2: Gpt2) -> None:
        lanes = gpt2.num_lanes
        check_sizes(
            "GPT-2",
            num_layers=gpt2.num_layers,
            width=gpt2.width,
            num_heads=gpt2.num_heads,
            rows=gpt2.rows,
            num_lanes=lanes,
            sequence=gpt2.sequence,
        )
        if gpt2.width % gpt2.num_heads or gpt2.width % lanes or gpt2.num_heads < lanes:
            raise ShardingError(
                f"GPT-2 of width {gpt2.width} with {gpt2.num_heads} heads cannot be cut into "
                f"{lanes} lanes: heads must divide the width, lanes too, and each needs a head"
            )
        self._gpt2 = gpt2
        self._builder = ShardedBuilder(f"gpt2-{gpt2.num_layers}", lanes, gpt2.num_layers)
        self._lanes = range(lanes)
        self._full = (gpt2.rows, gpt2.sequence, gpt2.width)
        self._element = tensor_bytes((1,), gpt2.dtype)
        depth = gpt2.width // gpt2.num_heads
        heads = [gpt2.num_heads // lanes + (lane < gpt2.num_heads % lanes) for lane in self._lanes]
        self._heads = heads
        self._depth = depth
        self._layer = 0
        self._lane: int | None = 0

    def inference(self) -> ShardedGraph:
        gpt2, builder = self._gpt2, self._builder
        ids = builder.add_input("ids", (gpt2.rows, gpt2.sequence), "int64")
        x: list[str] = []
        for lane in self._lanes:
            self._lane = lane
            tokens = self._op("take", "tokens", [ids], self._full, weights=VOCABULARY * gpt2.width)
            weights = POSITIONS * gpt2.width
            x.append(self._op("add", "embedded", [tokens], self._full, weights=weights))
        for layer in range(gpt2.num_layers):
            self._layer = layer
            x = self._attend(x)
            x = self._feed_forward(x)
        out = []
        for lane in self._lanes:
            self._lane = lane
            out.append(self._norm("norm.last", x[lane]))
        builder.outputs = [out[0]]
        return builder.finalize()

    def _attend(self, x: list[str]) -> list[str]:
        """Self-attention and its residual."""
        parts = []
        for lane in self._lanes:
            self._lane = lane
            parts.append(self._attend_lane(lane, self._norm("norm.1", x[lane])))
        return self._join("attention", parts, x)

    def _attend_lane(self, lane: int, x: str) -> str:
        rows, tokens, width = self._full
        heads, depth = self._heads[lane], self._depth
        own = heads * depth
        qkv = self._matmul("qkv", x, (rows, tokens, 3 * own), width, bias=True)
        split = {
            name: self._op("split", name, [qkv], (rows, tokens, own)) for name in ("q", "k", "v")
        }
        shape = (rows, heads, tokens, depth)
        q, k, v = (self._op("transpose", f"{name}.t", [split[name]], shape) for name in split)
        scores = (rows, heads, tokens, tokens)
        flops = 2 * rows * heads * tokens * tokens * depth
        product = self._op("nn.batch_matmul", "qk", [q, k], scores, flops)
        scaled = self._op("multiply", "scaled", [product], scores)
        masked = self._op("where", "masked", [scaled], scores)
        shares = self._op("nn.softmax", "shares", [masked], scores)
        mixed = self._op("nn.batch_matmul", "mixed", [shares, v], shape, flops)
        back = self._op("transpose", "mixed.t", [mixed], (rows, tokens, own))
        return self._matmul("projected", back, self._full, own)

    def _feed_forward(self, x: list[str]) -> list[str]:
        """The two wide layers and their residual."""
        rows, tokens, width = self._full
        inner = 4 * width // self._gpt2.num_lanes
        parts = []
        for lane in self._lanes:
            self._lane = lane
            normed = self._norm("norm.2", x[lane])
            wide = self._matmul("wide", normed, (rows, tokens, inner), width, bias=True)
            active = self._op("gelu", "active", [wide], (rows, tokens, inner))
            parts.append(self._matmul("narrow", active, self._full, inner))
        return self._join("feed_forward", parts, x)

    def _join(self, name: str, parts: list[str], x: list[str]) -> list[str]:
        """The sum of the lanes' parts, with bias and residual."""
        total = parts
        if len(parts) > 1:
            self._lane = None
            op = collective_op("all_reduce")
            flops = len(parts) * self._elements(self._full)
            total = [self._op(op, f"{name}.sum", parts, self._full, flops)] * len(parts)
        found = []
        for lane in self._lanes:
            self._lane = lane
            weights = self._full[2]
            biased = self._op("add", f"{name}.bias", [total[lane]], self._full, weights=weights)
            found.append(self._op("add", f"{name}.out", [biased, x[lane]], self._full))
        return found

    def _norm(self, name: str, x: str) -> str:
        return self._op("nn.layer_norm", name, [x], self._full, weights=2 * self._full[2])

    def _matmul(
        self, name: str, x: str, shape: tuple[int, ...], depth: int, bias: bool = False
    ) -> str:
        """A product with a constant, `depth` x the last extent of `shape`."""
        weights = depth * shape[-1] + (shape[-1] if bias else 0)
        elements = self._elements(shape)
        flops = 2 * elements * depth + (elements if bias else 0)
        return self._op("matmul", name, [x], shape, flops, weights)

    def _elements(self, shape: tuple[int, ...]) -> int:
        elements = 1
        for extent in shape:
            elements *= extent
        return elements

    def _op(
        self,
        op: str,
        name: str,
        reads: list[str],
        shape: tuple[int, ...],
        flops: int | None = None,
        weights: int = 0,
    ) -> str:
        """Add a task of the current layer and lane; without flops it has one for each element."""
        full_name = f"{self._layer}.{name}"
        if self._lane is not None and self._gpt2.num_lanes > 1:
            full_name += f".{self._lane}"
        flops = self._elements(shape) if flops is None else flops
        task = Task(f"{op}.{full_name}", op, flops=flops, weight_bytes=weights * self._element)
        entry = TaskEntry(task, tuple(reads), self._layer, self._lane)
        return self._builder.add_op(entry, shape, self._gpt2.dtype, full_name)
