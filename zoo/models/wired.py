"""A randomly wired network as an ONNX model: many small branches, which placing spreads over cores.

The network of `heteroplace.demo.networks.randomly_wired`, with other weights.
"""

from __future__ import annotations

import numpy as np
import onnx

from heteroplace.demo.wirings import last_nodes, wiring
from zoo.models.onnx_graph import FLOAT, OnnxGraph


def wired_onnx(
    nodes: int = 32, channels: int = 96, size: int = 28, seed: int = 1
) -> onnx.ModelProto:
    """Return one randomly wired module, WS(4, 0.75), after a stem.

    Parameters
    ----------
    nodes, channels
        Number of graph nodes, and of channels of each.
    size
        Height and width of the module's maps; the image is twice as large.
    seed
        Of the graph and of the weights.
    """
    graph = OnnxGraph(seed)
    image = graph.input("image", FLOAT, 1, 3, 2 * size, 2 * size)
    stem = graph.op("Relu", graph.conv_norm("stem", image, (3, channels), 3, stride=2))
    gates = np.random.default_rng(seed).standard_normal((nodes, nodes))
    before = wiring("ws", nodes, seed)
    values: list[str] = []
    for node, sources in enumerate(before):
        summed = stem
        if sources:
            terms = [
                graph.op(
                    "Mul",
                    values[source],
                    graph.constant(1 / (1 + np.exp(-gates[node, source])), np.float32),
                )
                for source in sources
            ]
            summed = terms[0] if len(terms) == 1 else graph.op("Sum", *terms)
        name, width = f"node{node}", (channels, channels)
        value = graph.op("Relu", summed)
        value = graph.conv(f"{name}.depthwise", value, width, 3, group=channels)
        values.append(graph.conv_norm(f"{name}.pointwise", value, width, 1))
    mean = graph.op("Mean", *(values[node] for node in last_nodes(before)))
    return graph.model("wired", (mean, (1, channels, size, size)))
