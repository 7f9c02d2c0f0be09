"""Moirai's transformer-like graphs: L layers of H heads, L * (12 * H + 11) ops.

The operator counts are those of all 11 models of its tables IV and V (GPT-3 1.3B with 24 layers:
the printed 32 does not give the printed 9480 ops). What the ops are is not published; here:

- 12 per head: projection and bias of query, key and value; transpose of the key; scores, scale,
  mask, softmax; product with the value.
- 11 per layer: norm, concat, projection, bias, residual add, norm, fc1 (with its bias), GELU, fc2,
  bias, residual add.

Shapes (single precision): GPT-3 has one row of 2048 tokens. Swin's 1100 x 1100 image gives
70 x 70 patches of 16 x 16, padded, in 100 windows of 49; all layers have the table's hidden size,
without the stages that halve the map and double the channels, so weights are fewer than the names
say. AlphaFold2's sequence batch of 128 is 128 rows; 64 residues each, a short chain, keep all
tensors together within a few times the memory of the clusters. Attention is within a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heteroplace.errors import GraphError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from zoo.graphs.roofline import (
    BATCHED_MATMUL,
    MATMUL,
    MEMORY_BOUND,
    Efficiency,
    roofline_costs,
)

_DTYPE = "float32"
_DTYPE_BYTES = 4
_MATMUL_WORKSPACE_BYTES = 4 * 2**20
"""What a matrix library asks for."""


@dataclass(frozen=True)
class Transformer:
    """Sizes of one model."""

    name: str
    layers: int
    hidden: int
    heads: int
    rows: int
    """Independent sequences; attention does not cross them."""
    length: int
    """Tokens of each row."""

    @property
    def num_tasks(self) -> int:
        """Number of ops of the graph."""
        return self.layers * (12 * self.heads + 11)


TRANSFORMERS: Mapping[str, Transformer] = {
    model.name: model
    for model in (
        Transformer("swin-1.8b", 32, 512, 16, 100, 49),
        Transformer("swin-6.6b", 48, 768, 24, 100, 49),
        Transformer("swin-13b", 56, 1024, 32, 100, 49),
        Transformer("gpt3-330m", 24, 1024, 16, 1, 2048),
        Transformer("gpt3-1.3b", 24, 2048, 32, 1, 2048),
        Transformer("gpt3-2.7b", 32, 2560, 32, 1, 2048),
        Transformer("gpt3-13b", 40, 5120, 40, 1, 2048),
        Transformer("af2-87m", 48, 256, 8, 128, 64),
        Transformer("af2-930m", 64, 512, 16, 128, 64),
        Transformer("af2-2.4b", 96, 1024, 32, 128, 64),
        Transformer("af2-3.2b", 128, 1024, 32, 128, 64),
    )
}
"""The 11 models of Moirai by name."""

OP_CLASSES: Mapping[str, Efficiency] = {
    "dense": MATMUL,
    "batch_matmul": BATCHED_MATMUL,
    "add": MEMORY_BOUND,
    "multiply": MEMORY_BOUND,
    "softmax": MEMORY_BOUND,
    "transpose": MEMORY_BOUND,
    "concatenate": MEMORY_BOUND,
    "layer_norm": MEMORY_BOUND,
    "gelu": MEMORY_BOUND,
}
"""Efficiency of each op of the graphs."""


def transformer_graph(model: Transformer) -> TaskGraph:
    """Return the graph of `model`; its one input and one output are [rows, length, hidden].

    Raises
    ------
    GraphError
        A size is below 1, or the heads do not divide the hidden size.
    """
    sizes = (model.layers, model.hidden, model.heads, model.rows, model.length)
    if min(sizes) < 1 or model.hidden % model.heads:
        raise GraphError(
            f"transformer {model.name!r}: layers, hidden, heads, rows and length must be >= 1 and "
            f"heads must divide hidden, got {sizes}"
        )
    writer = _Writer(model)
    value = writer.builder.add_input("x", (model.rows, model.length, model.hidden), _DTYPE)
    for layer in range(model.layers):
        value = writer.layer(f"layer{layer}", value)
    return writer.builder.finalize([value])


def transformer_costs(graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Return roofline costs of a graph made by `transformer_graph`."""
    return roofline_costs(graph, cluster, OP_CLASSES)


class _Writer:
    """Adds ops with their sizes to a builder."""

    def __init__(self, model: Transformer) -> None:
        self.builder = TaskGraphBuilder(model.name)
        self._heads = model.heads
        self._hidden = model.hidden
        self._head = model.hidden // model.heads
        self._tokens = model.rows * model.length
        self._length = model.length
        self._of_hidden = (model.rows, model.length, model.hidden)
        self._of_head = (model.rows, model.length, self._head)
        self._of_head_transposed = (model.rows, self._head, model.length)
        self._of_scores = (model.rows, model.length, model.length)

    def layer(self, name: str, value: str) -> str:
        """Add one layer; return its output."""
        hidden, shape = self._hidden, self._of_hidden
        normed = self._norm(f"{name}.norm1", value)
        heads = [self._attention(f"{name}.head{head}", normed) for head in range(self._heads)]
        joined = self._add(f"{name}.concat", "concatenate", heads, shape)
        mixed = self._dense(f"{name}.proj", joined, hidden, hidden, shape)
        mixed = self._bias(f"{name}.proj_bias", mixed, hidden, shape)
        middle = self._elementwise(f"{name}.residual1", "add", [mixed, value], shape)
        wide = (*shape[:2], 4 * hidden)
        inner = self._norm(f"{name}.norm2", middle)
        inner = self._dense(f"{name}.fc1", inner, hidden, 4 * hidden, wide, has_bias=True)
        inner = self._elementwise(f"{name}.gelu", "gelu", [inner], wide, flops_per_element=8)
        inner = self._dense(f"{name}.fc2", inner, 4 * hidden, hidden, shape)
        inner = self._bias(f"{name}.fc2_bias", inner, hidden, shape)
        return self._elementwise(f"{name}.residual2", "add", [inner, middle], shape)

    def _attention(self, name: str, value: str) -> str:
        """Add the 12 ops of one head; return its output [rows, length, hidden / heads]."""
        shape, scores_shape = self._of_head, self._of_scores
        parts = []
        for part in "qkv":
            dense = self._dense(f"{name}.{part}", value, self._hidden, self._head, shape)
            parts.append(self._bias(f"{name}.{part}_bias", dense, self._head, shape))
        query, key, context = parts
        key = self._add(f"{name}.transpose", "transpose", [key], self._of_head_transposed)
        flops = 2 * self._tokens * self._length * self._head
        scores = self._product(f"{name}.scores", [query, key], flops, scores_shape)
        scores = self._elementwise(f"{name}.scale", "multiply", [scores], scores_shape)
        scores = self._elementwise(f"{name}.mask", "add", [scores], scores_shape)
        scores = self._elementwise(f"{name}.softmax", "softmax", [scores], scores_shape, 5)
        return self._product(f"{name}.context", [scores, context], flops, shape)

    def _dense(
        self,
        name: str,
        value: str,
        rows: int,
        columns: int,
        shape: tuple[int, ...],
        has_bias: bool = False,
    ) -> str:
        weights = rows * columns + (columns if has_bias else 0)
        flops = 2 * self._tokens * rows * columns
        workspace = _MATMUL_WORKSPACE_BYTES
        return self._add(name, "dense", [value], shape, flops, weights, workspace)

    def _product(self, name: str, values: list[str], flops: int, shape: tuple[int, ...]) -> str:
        workspace = _MATMUL_WORKSPACE_BYTES
        return self._add(name, "batch_matmul", values, shape, flops, 0, workspace)

    def _bias(self, name: str, value: str, size: int, shape: tuple[int, ...]) -> str:
        return self._add(name, "add", [value], shape, self._tokens * size, size)

    def _norm(self, name: str, value: str) -> str:
        size = self._hidden
        flops = 8 * self._tokens * size
        return self._add(name, "layer_norm", [value], self._of_hidden, flops, 2 * size)

    def _elementwise(
        self,
        name: str,
        op: str,
        values: list[str],
        shape: tuple[int, ...],
        flops_per_element: int = 1,
    ) -> str:
        flops = flops_per_element * shape[0] * shape[1] * shape[2]
        return self._add(name, op, values, shape, flops)

    def _add(
        self,
        name: str,
        op: str,
        reads: list[str],
        shape: tuple[int, ...],
        flops: int = 0,
        num_weights: int = 0,
        workspace_bytes: int = 0,
    ) -> str:
        task = Task(
            name,
            op,
            flops=flops,
            weight_bytes=num_weights * _DTYPE_BYTES,
            workspace_bytes=workspace_bytes,
        )
        self.builder.add_task(task, reads)
        return self.builder.add_tensor(name, shape, _DTYPE)
