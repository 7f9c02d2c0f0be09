"""Networks made in place, without files: randomly wired CNNs, a two-branch CNN, GPT graphs.

- Randomly wired modules as in "Exploring Randomly Wired Neural Networks for Image Recognition"
  (section 3), on the random graphs of `suites/wirings.py`, with 32 nodes. Unlike the paper, the
  gates are constants (sigmoid of a random number), and there is one module, not five.
- GPT graphs as an exporter writes them: decomposed GELU, shape arithmetic in front of every
  reshape. Weights are inputs, so that the graph of any size takes a few MB.

Relay convolutions state `channels` and `kernel_size`: without them TVM fails at opt_level 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import tvm
from onnx import helper
from tvm import relay
from tvm.relay.frontend.common import set_span

from heteroplace.bench.suites.wirings import last_nodes, wiring
from heteroplace.errors import GraphError


class Network(NamedTuple):
    """A network in Relay, ready to be compiled."""

    mod: tvm.IRModule
    "Typed module; its `main` takes the inputs, then the parameters."
    params: dict[str, tvm.nd.NDArray]
    "Weights by parameter name; not bound."
    input_shapes: dict[str, tuple[int, ...]]
    "Shapes of the inputs, all float32."


class _Weights:
    """Makes the parameters of a network: seeded, named, in the order of use."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self.variables: list[Any] = []
        self.params: dict[str, tvm.nd.NDArray] = {}

    def normal(self, name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> Any:
        return self._add(name, mean + std * self._generator.standard_normal(shape))

    def uniform(self, name: str, shape: tuple[int, ...], low: float, high: float) -> Any:
        return self._add(name, self._generator.uniform(low, high, shape))

    def gate(self) -> Any:
        """Return the constant that weighs one incoming edge: sigmoid of a random number."""
        value = 1.0 / (1.0 + np.exp(-self._generator.standard_normal()))
        return relay.const(np.float32(value))

    def _add(self, name: str, values: Any) -> Any:
        self.params[name] = tvm.nd.array(values.astype(np.float32))
        self.variables.append(_variable(name, values.shape))
        return self.variables[-1]

    def network(self, inputs: Mapping[str, Any], output: Any) -> Network:
        function = relay.Function([*inputs.values(), *self.variables], output)
        mod = relay.transform.InferType()(tvm.IRModule.from_expr(function))
        shapes = {
            name: tuple(int(size) for size in var.type_annotation.shape)
            for name, var in inputs.items()
        }
        return Network(mod, self.params, shapes)


def _variable(name: str, shape: tuple[int, ...]) -> Any:
    """A variable with a span of its own: `set_span` would replace it by another one."""
    span = relay.Span(relay.SourceName(name), 0, 0, 0, 0)
    return relay.Var(name, relay.TensorType(shape, "float32"), span)


def randomly_wired(
    kind: str = "ws",
    nodes: int = 32,
    channels: int = 96,
    size: int = 28,
    seed: int = 1,
    separable: bool = True,
    batch: int = 1,
) -> Network:
    """Return one randomly wired module behind a stem: wide, irregular, of many small kernels.

    Parameters
    ----------
    kind
        "ws", "er" or "ba": the random graph.
    nodes, channels
        Number of graph nodes, and of channels of each.
    size
        Height and width of the module's maps; the image is twice as large (the stem halves it).
    seed
        Of the graph and of the weights.
    separable
        Depthwise 3x3 and pointwise 1x1 convolutions, as in the paper; else full 3x3.
    batch
        Items that run together.

    Raises
    ------
    GraphError, MissingPackageError
        As `wiring`.
    """
    before = wiring(kind, nodes, seed)
    weights = _Weights(seed)
    image = _variable("image", (batch, 3, 2 * size, 2 * size))
    stem = _conv(weights, "stem.conv", image, 3, channels, kernel=3, strides=2)
    stem = set_span(relay.nn.relu(_batch_norm(weights, "stem.bn", stem, channels)), "stem.relu")
    values: list[Any] = []
    for node, sources in enumerate(before):
        summed = stem
        if sources:
            terms = [_gated(weights, values[source]) for source in sources]
            summed = set_span(_add_up(terms), f"node{node}.sum")
        values.append(_wired_node(weights, f"node{node}", summed, channels, separable))
    sinks = last_nodes(before)
    total = _add_up([values[sink] for sink in sinks])
    mean = relay.multiply(total, relay.const(np.float32(1.0 / len(sinks))))
    return weights.network({"image": image}, set_span(mean, "mean"))


def _gated(weights: _Weights, value: Any) -> Any:
    return relay.multiply(value, weights.gate())


def _add_up(terms: list[Any]) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = relay.add(total, term)
    return total


def _wired_node(weights: _Weights, name: str, value: Any, channels: int, separable: bool) -> Any:
    """relu, convolution, batch norm: the paper's node after its weighted sum."""
    value = set_span(relay.nn.relu(value), f"{name}.relu")
    if separable:
        value = _conv(weights, f"{name}.depthwise", value, channels, channels, 3, groups=channels)
        value = _conv(weights, f"{name}.pointwise", value, channels, channels, 1)
    else:
        value = _conv(weights, f"{name}.conv", value, channels, channels, 3)
    return _batch_norm(weights, f"{name}.bn", value, channels)


def _conv(
    weights: _Weights,
    name: str,
    value: Any,
    in_channels: int,
    channels: int,
    kernel: int,
    strides: int = 1,
    groups: int = 1,
) -> Any:
    """A convolution that keeps the size of the map (or halves it) and its mean square."""
    fan_in = in_channels // groups * kernel * kernel
    weight = weights.normal(
        f"{name}.weight", (channels, in_channels // groups, kernel, kernel), (2.0 / fan_in) ** 0.5
    )
    conv = relay.nn.conv2d(
        value,
        weight,
        strides=strides,
        padding=kernel // 2,
        groups=groups,
        channels=channels,
        kernel_size=(kernel, kernel),
    )
    return set_span(conv, name)


def _batch_norm(weights: _Weights, name: str, value: Any, channels: int) -> Any:
    shape = (channels,)
    normed = relay.nn.batch_norm(
        value,
        weights.normal(f"{name}.gamma", shape, 0.1, mean=1.0),
        weights.normal(f"{name}.beta", shape, 0.1),
        weights.normal(f"{name}.mean", shape, 0.1),
        weights.uniform(f"{name}.variance", shape, 0.5, 1.5),
    )
    return set_span(normed[0], name)


def small_cnn(channels: int = 8, size: int = 16, seed: int = 0) -> Network:
    """Return a CNN of two branches and seven ops, for tests: it compiles in a second or two.

    Parameters
    ----------
    channels
        Channels of each branch.
    size
        Height and width of the image of 3 channels.
    seed
        Of the weights.
    """
    weights = _Weights(seed)
    image = _variable("image", (1, 3, size, size))
    stem = set_span(relay.nn.relu(_conv(weights, "stem", image, 3, channels, 3)), "stem.relu")
    left = _conv(weights, "left", stem, channels, channels, 3)
    right = _conv(weights, "right", stem, channels, channels, 1)
    joined = set_span(relay.concatenate([left, right], axis=1), "join")
    last = _conv(weights, "last", joined, 2 * channels, channels, 1)
    return weights.network({"image": image}, set_span(relay.nn.relu(last), "last.relu"))


class _OnnxGraph:
    """Collects the nodes of an ONNX graph; each method returns the name of a value."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def op(self, op_type: str, *args: str, outputs: int = 1, **attributes: Any) -> Any:
        name = f"{op_type}_{len(self.nodes)}"
        results = [f"{name}_out{i}" if outputs > 1 else f"{name}_out" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, args, results, name=name, **attributes))
        return results if outputs > 1 else results[0]

    def constant(self, value: Any, dtype: Any) -> str:
        tensor = onnx.numpy_helper.from_array(np.asarray(value, dtype=dtype))
        result: str = self.op("Constant", value=tensor)
        return result

    def weight(self, name: str, *shape: int) -> str:
        """A weight is an input: the graph alone is wanted."""
        self.inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
        return name

    def linear(self, name: str, value: str, num_in: int, num_out: int) -> str:
        product = self.op("MatMul", value, self.weight(f"{name}.weight", num_in, num_out))
        result: str = self.op("Add", self.weight(f"{name}.bias", num_out), product)
        return result

    def layer_norm(self, name: str, value: str, hidden: int) -> str:
        gamma = self.weight(f"{name}.weight", hidden)
        beta = self.weight(f"{name}.bias", hidden)
        result: str = self.op("LayerNormalization", value, gamma, beta, axis=-1, epsilon=1e-5)
        return result

    def size(self, value: str, axis: int) -> str:
        """The size of one axis as a tensor of one element, by the chain that exporters write."""
        shape = self.op("Shape", value)
        size = self.op("Gather", shape, self.constant(axis, np.int64), axis=0)
        result: str = self.op("Unsqueeze", size, self.constant([0], np.int64))
        return result


def gpt_onnx(
    layers: int = 24,
    hidden: int = 1024,
    heads: int = 16,
    tokens: int = 128,
    vocabulary: int = 50257,
) -> onnx.ModelProto:
    """Return the ONNX graph (opset 17) of a GPT decoder without weights, as exporters write it.

    Parameters
    ----------
    layers, hidden, heads
        Number of blocks, width, and attention heads; `heads` divides `hidden`.
    tokens
        Length of the sequence.
    vocabulary
        Number of tokens known.

    Returns
    -------
    A model of about 40 nodes a layer (constants not counted). Its first input is `ids`, int64
    [1, tokens]; all weights are inputs as well.
    """
    if hidden % heads:
        raise GraphError(f"a width of {hidden} cannot be split into {heads} heads of equal size")
    graph = _OnnxGraph()
    graph.inputs.append(helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, (1, tokens)))
    embedded = graph.op("Gather", graph.weight("wte", vocabulary, hidden), "ids", axis=0)
    positions = graph.op(
        "Gather", graph.weight("wpe", tokens, hidden), graph.constant(range(tokens), np.int64)
    )
    value = graph.op("Add", embedded, positions)
    for layer in range(layers):
        name = f"h.{layer}"
        normed = graph.layer_norm(f"{name}.ln_1", value, hidden)
        attended = _attention(graph, name, normed, hidden, heads, tokens)
        value = graph.op("Add", attended, value)
        normed = graph.layer_norm(f"{name}.ln_2", value, hidden)
        inner = _gelu(graph, graph.linear(f"{name}.mlp.c_fc", normed, hidden, 4 * hidden))
        inner = graph.linear(f"{name}.mlp.c_proj", inner, 4 * hidden, hidden)
        value = graph.op("Add", value, inner)
    normed = graph.layer_norm("ln_f", value, hidden)
    logits = graph.op("MatMul", normed, graph.weight("lm_head", hidden, vocabulary))
    output = helper.make_tensor_value_info(logits, onnx.TensorProto.FLOAT, (1, tokens, vocabulary))
    return helper.make_model(
        helper.make_graph(graph.nodes, "gpt", graph.inputs, [output]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def _attention(
    graph: _OnnxGraph, name: str, value: str, hidden: int, heads: int, tokens: int
) -> str:
    """Causal self-attention; all target shapes are computed from the value's own shape."""
    qkv = graph.linear(f"{name}.attn.c_attn", value, hidden, 3 * hidden)
    sizes = graph.constant([hidden] * 3, np.int64)
    parts = graph.op("Split", qkv, sizes, outputs=3, axis=2)
    batch, length = graph.size(value, 0), graph.size(value, 1)
    split_shape = graph.op(
        "Concat", batch, length, graph.constant([heads, hidden // heads], np.int64), axis=0
    )
    query, key, content = (graph.op("Reshape", part, split_shape) for part in parts)
    query = graph.op("Transpose", query, perm=[0, 2, 1, 3])
    key = graph.op("Transpose", key, perm=[0, 2, 3, 1])
    content = graph.op("Transpose", content, perm=[0, 2, 1, 3])
    scores = graph.op("MatMul", query, key)
    scores = graph.op("Div", scores, graph.constant((hidden // heads) ** 0.5, np.float32))
    # Exporters bake the whole mask of the model in and slice it by the length of the input.
    mask = graph.constant(np.tril(np.ones((1, 1, tokens, tokens), dtype=bool)), bool)
    zero, axis = graph.constant([0], np.int64), graph.constant([2], np.int64)
    mask = graph.op("Slice", mask, zero, length, axis)
    masked = graph.op("Where", mask, scores, graph.constant(-1e9, np.float32))
    mixed = graph.op("MatMul", graph.op("Softmax", masked, axis=-1), content)
    mixed = graph.op("Transpose", mixed, perm=[0, 2, 1, 3])
    joined_shape = graph.op("Concat", batch, length, graph.constant([hidden], np.int64), axis=0)
    joined = graph.op("Reshape", mixed, joined_shape)
    return graph.linear(f"{name}.attn.c_proj", joined, hidden, hidden)


def _gelu(graph: _OnnxGraph, value: str) -> str:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), op by op."""
    cube = graph.op("Pow", value, graph.constant(3.0, np.float32))
    inner = graph.op("Add", value, graph.op("Mul", graph.constant(0.044715, np.float32), cube))
    inner = graph.op("Mul", graph.constant((2 / np.pi) ** 0.5, np.float32), inner)
    gate = graph.op("Add", graph.constant(1.0, np.float32), graph.op("Tanh", inner))
    half = graph.op("Mul", value, graph.constant(0.5, np.float32))
    result: str = graph.op("Mul", half, gate)
    return result
