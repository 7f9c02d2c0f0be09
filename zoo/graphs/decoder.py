"""One decoding step of a GPT-3 like network: the workload of DiviML's study of several nodes.

The paper says: GPT-3, one step, 20 tokens per input. Its size, its graph and how many inputs are
served at once are not printed; here 24 layers of hidden size 2048 (GPT-3 XL), all heads in one op,
keys and values of the tokens so far as weights beside the network's own.
"""

from __future__ import annotations

from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.solve.problem import Problem
from zoo.graphs.clusters import divi_nodes
from zoo.graphs.roofline import roofline_costs
from zoo.graphs.transformer import OP_CLASSES

LAYERS, HIDDEN, TOKENS = 24, 2048, 20
_DTYPE_BYTES = 4


def decoding(nodes: int, layers: int = LAYERS) -> Problem:
    """Return one decoding step on so many of DiviML's nodes."""
    graph, cluster = decoder_graph(layers), divi_nodes(nodes)
    return Problem(graph, cluster, roofline_costs(graph, cluster, OP_CLASSES))


def decoder_graph(layers: int) -> TaskGraph:
    """Return the graph of one step: 12 ops per layer, one token in, one token out."""
    builder = TaskGraphBuilder(f"gpt3-decode{layers}")
    value = builder.add_input("token", num_bytes=HIDDEN * _DTYPE_BYTES)

    def op(name: str, kind: str, reads: list[str], flops: int, weights: int, width: int) -> str:
        task = Task(name, kind, flops=flops, weight_bytes=weights * _DTYPE_BYTES)
        builder.add_task(task, reads)
        return builder.add_tensor(name, num_bytes=width * _DTYPE_BYTES)

    def dense(name: str, value: str, rows: int, columns: int) -> str:
        return op(name, "dense", [value], 2 * rows * columns, rows * columns, columns)

    for layer in range(layers):
        at = f"layer{layer}"
        normed = op(f"{at}.norm1", "layer_norm", [value], 8 * HIDDEN, 2 * HIDDEN, HIDDEN)
        parts = [dense(f"{at}.{part}", normed, HIDDEN, HIDDEN) for part in "qkv"]
        # Products with the keys, and the weights of the softmax with the values, of all tokens.
        work, kept = 4 * TOKENS * HIDDEN, 2 * TOKENS * HIDDEN
        mixed = op(f"{at}.attention", "batch_matmul", parts, work, kept, HIDDEN)
        mixed = dense(f"{at}.proj", mixed, HIDDEN, HIDDEN)
        middle = op(f"{at}.residual1", "add", [mixed, value], HIDDEN, 0, HIDDEN)
        inner = op(f"{at}.norm2", "layer_norm", [middle], 8 * HIDDEN, 2 * HIDDEN, HIDDEN)
        inner = dense(f"{at}.fc1", inner, HIDDEN, 4 * HIDDEN)
        inner = op(f"{at}.gelu", "gelu", [inner], 32 * HIDDEN, 0, 4 * HIDDEN)
        inner = dense(f"{at}.fc2", inner, 4 * HIDDEN, HIDDEN)
        value = op(f"{at}.residual2", "add", [inner, middle], HIDDEN, 0, HIDDEN)
    return builder.finalize([value])
