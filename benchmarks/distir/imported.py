"""GPT-2 imported from ONNX and cut by its axes -> the graphs of a search at any depth and width.

The model's weights are parameters without values, so that a network of 394 GB can be imported. Its
blocks are equal: three are imported and cut into lanes, and the layers between the first and the
last are repeated (`heteroplace.parts.parallel.transforms.repeat`). Sizes are those of half
precision, as the published ones; ops are those of the imported network after fusion.
"""

from __future__ import annotations

from dataclasses import replace

import tvm

from benchmarks.distir.gpt2 import SEQUENCE, VOCABULARY
from benchmarks.distir.published import PublishedModel
from heteroplace.model.graph import TaskGraph
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.parallel.shard.sharded_graphs import prepared_network, shard_prepared
from heteroplace.parts.parallel.transforms.repeat import repeat_layers
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.relay.tasks.rebatch import rebatch
from zoo.models.transformers import gpt_onnx

_BLOCKS = 3
_FIRST, _LENGTH = 1, 2
"""Layers of a block: attention, and what is behind it. The first norm is in no repeated layer."""


class ImportedSource:
    """The sharded graphs of a published GPT-2, as `SearchProblem.source` gives them.

    Raises
    ------
    HeteroPlaceError
        The model cannot be imported.
    """

    def __init__(self, model: PublishedModel) -> None:
        self._model = model
        blocks = min(_BLOCKS, model.layers)
        onnx = gpt_onnx(blocks, model.width, model.heads, SEQUENCE, VOCABULARY)
        self._times = model.layers - blocks + 1
        self._imported = from_onnx(onnx)
        self._prepared: dict[int, tvm.IRModule] = {}

    def __call__(self, num_lanes: int, rows: int, batch: int) -> ShardedGraph:
        """Return the graph of one replica.

        Raises
        ------
        HeteroPlaceError
            The network cannot be cut into so many lanes.
        """
        if rows not in self._prepared:
            mod = rebatch(self._imported.mod, rows, ["ids"])
            self._prepared[rows] = prepared_network(mod, self._imported.params)
        network = shard_prepared(
            self._prepared[rows], tensor=num_lanes, inputs=["ids"], uneven=True
        )
        sharded = network.sharded
        if self._times > 1:
            sharded = repeat_layers(sharded, _FIRST, _LENGTH, self._times)
        return replace(sharded, graph=in_half_precision(sharded.graph))


def in_half_precision(graph: TaskGraph) -> TaskGraph:
    """Return the graph with float16 for float32: half of the bytes of tensors and weights."""
    tensors = tuple(
        replace(tensor, dtype="float16", bytes=tensor.bytes // 2)
        if tensor.dtype == "float32"
        else tensor
        for tensor in graph.tensors
    )
    tasks = tuple(
        replace(
            task,
            weight_bytes=task.weight_bytes // 2,
            weights=tuple((name, num_bytes // 2) for name, num_bytes in task.weights),
        )
        for task in graph.tasks
    )
    return replace(graph, tasks=tasks, tensors=tensors)
