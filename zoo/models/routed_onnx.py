"""ONNX forms of networks with routers, as exporters write them; for onnxruntime and FindRouters.

Experts are computed for every token and multiplied by gates that are 0 for others; exits are an
`If`. The weights are those of the Relay forms by name, in ONNX's order of axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from zoo.models.onnx_graph import FLOAT, OnnxGraph
from zoo.models.routed import RoutedNetwork, steer_name
from zoo.models.routed_catalogue import ROUTED


class _Form(OnnxGraph):
    """A graph whose weights are those of a network in Relay."""

    def __init__(self, network: RoutedNetwork) -> None:
        super().__init__(0)
        self._params = network.params
        for name, shape in network.input_shapes.items():
            self.input(name, FLOAT, *shape)

    def linear(self, name: str, value: str, num_in: int, num_out: int) -> str:
        """Add a product with a matrix of the network, and its bias."""
        matrix = self._params[f"{name}.weight"].numpy()
        assert matrix.shape == (num_out, num_in)
        weight = self.initializer(f"{name}.weight", np.ascontiguousarray(matrix.T))
        bias = self.initializer(f"{name}.bias", self._params[f"{name}.bias"].numpy())
        product = self.op("MatMul", value, weight)
        result: str = self.op("Add", product, bias)
        return result

    def convolved(self, name: str, value: str, stride: int = 1) -> str:
        """Add a 3 x 3 convolution of the network with its bias, and a relu."""
        parts = [
            self.initializer(f"{name}.{part}", self._params[f"{name}.{part}"].numpy())
            for part in ("weight", "bias")
        ]
        y = self.op(
            "Conv", value, *parts, kernel_shape=[3, 3], strides=[stride, stride], pads=[1, 1, 1, 1]
        )
        result: str = self.op("Relu", y)
        return result


def masked_experts(network: RoutedNetwork) -> onnx.ModelProto:
    """Return one layer of experts as a sum of experts times gates, of the Relay form.

    The gates are the scores where a token is among the best k, else 0.
    """
    graph = _Form(network)
    (router,) = network.routers
    tokens, width = network.input_shapes["x"]
    count, hidden = router.num_branches, network.params[f"{router.name}.0.in.bias"].shape[0]
    logits = graph.linear(f"{router.name}.router", "x", width, count)
    scores = graph.op("Add", logits, steer_name(router.name))
    k = graph.constant([network.top_k], np.int64)
    _, where = graph.op("TopK", scores, k, outputs=2, axis=1)
    probabilities = graph.op("Softmax", logits, axis=1)
    chosen = graph.op("GatherElements", probabilities, where, axis=1)
    zeros = graph.constant(np.zeros((tokens, count)), np.float32)
    gates = graph.op("ScatterElements", zeros, where, chosen, axis=1)
    columns = graph.op("Split", gates, outputs=count, axis=1)
    total = "x"
    for index, gate in enumerate(columns):
        inner = graph.linear(f"{router.name}.{index}.in", "x", width, hidden)
        out = graph.linear(f"{router.name}.{index}.out", graph.op("Relu", inner), hidden, width)
        total = graph.op("Add", total, graph.op("Mul", out, gate))
    return graph.model("masked_experts", (total, (tokens, width)))


def exits(network: RoutedNetwork) -> onnx.ModelProto:
    """Return a classifier with exits, each an `If` whose else branch holds all that is behind; of
    one without exits just its layers."""
    graph = _Form(network)
    x = graph.convolved("stem", "x")
    layers = [
        sum(name.startswith(f"block{index}.") for name in network.params) // 2
        for index in range(_num_blocks(network))
    ]
    last = len(layers) - 1
    result = _block(graph, network, x, 0, layers)
    classes = network.params[f"exit{last}.classifier.bias"].shape[0]
    return graph.model("exits", (result, (1, classes)))


def _num_blocks(network: RoutedNetwork) -> int:
    return 1 + max(
        int(name.removeprefix("block").partition(".")[0])
        for name in network.params
        if name.startswith("block")
    )


def _block(graph: _Form, network: RoutedNetwork, x: str, index: int, layers: Sequence[int]) -> str:
    for layer in range(layers[index]):
        x = graph.convolved(f"block{index}.{layer}", x, 2 if index and not layer else 1)
    name = f"exit{index}"
    if not network.routers and index < len(layers) - 1:
        return _block(graph, network, x, index + 1, layers)
    classes, channels = network.params[f"{name}.classifier.weight"].shape
    pooled = graph.op("Flatten", graph.op("GlobalAveragePool", x), axis=1)
    logits = graph.linear(f"{name}.classifier", pooled, channels, classes)
    if index == len(layers) - 1:
        return logits
    best = graph.op("ReduceMax", graph.op("Softmax", logits, axis=1), axes=[1], keepdims=0)
    first = graph.op("Gather", steer_name(name), graph.constant(0, np.int64), axis=1)
    sure = graph.op("Greater", graph.op("Add", best, first), graph.constant(0.9, np.float32))
    begin = len(graph.nodes)
    behind = _block(graph, network, x, index + 1, layers)
    # The nodes behind the exit go into the branch; nodes are numbered, and none comes after them.
    inner = graph.nodes[begin:]
    del graph.nodes[begin:]
    end = f"{name}_behind"
    inner.append(helper.make_node("Identity", [behind], [end]))
    leaves = [helper.make_node("Identity", [logits], [f"{name}_leaves"])]
    bodies = {
        "then_branch": _body(f"{name}_exit", leaves, f"{name}_leaves", classes),
        "else_branch": _body(f"{name}_goes_on", inner, end, classes),
    }
    result: str = f"{name}_chosen"
    graph.nodes.append(helper.make_node("If", [sure], [result], name=name, **bodies))
    return result


def _body(name: str, nodes: list[onnx.NodeProto], output: str, classes: int) -> onnx.GraphProto:
    value = helper.make_tensor_value_info(output, FLOAT, (1, classes))
    return helper.make_graph(nodes, name, [], [value])


def _named(name: str) -> Callable[[], onnx.ModelProto]:
    make = exits if name == "msdnet" else masked_experts
    return lambda: make(ROUTED[name]())


ONNX_FORMS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    name: _named(name)
    for name in (
        *("switch_layer", "switch_layer_top2", "switch_layer_128", "switch_layer_small"),
        "msdnet",
    )
}
"""By the name of the network."""
