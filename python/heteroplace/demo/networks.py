"""Networks made in place, in Relay, without files: randomly wired CNNs, a two-branch CNN.

Randomly wired modules as in "Exploring Randomly Wired Neural Networks for Image Recognition"
(section 3), on the random graphs of `wirings.py`, with 32 nodes. Unlike the paper, the gates
are constants (sigmoid of a random number), and there is one module, not five.

Relay convolutions state `channels` and `kernel_size`: without them TVM fails at opt_level 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relay
from tvm.relay.frontend.common import set_span

from heteroplace.demo.wirings import last_nodes, wiring


class Network(NamedTuple):
    """A network in Relay, ready to be compiled."""

    mod: tvm.IRModule
    "Typed module; its `main` takes the inputs, then the parameters."
    params: dict[str, tvm.nd.NDArray]
    "Weights by parameter name; not bound."
    input_shapes: dict[str, tuple[int, ...]]
    "Shapes of the inputs, all float32."


class Weights:
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
    weights = Weights(seed)
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


def _gated(weights: Weights, value: Any) -> Any:
    return relay.multiply(value, weights.gate())


def _add_up(terms: list[Any]) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = relay.add(total, term)
    return total


def _wired_node(weights: Weights, name: str, value: Any, channels: int, separable: bool) -> Any:
    """relu, convolution, batch norm: the paper's node after its weighted sum."""
    value = set_span(relay.nn.relu(value), f"{name}.relu")
    if separable:
        value = _conv(weights, f"{name}.depthwise", value, channels, channels, 3, groups=channels)
        value = _conv(weights, f"{name}.pointwise", value, channels, channels, 1)
    else:
        value = _conv(weights, f"{name}.conv", value, channels, channels, 3)
    return _batch_norm(weights, f"{name}.bn", value, channels)


def _conv(
    weights: Weights,
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


def _batch_norm(weights: Weights, name: str, value: Any, channels: int) -> Any:
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
    weights = Weights(seed)
    image = _variable("image", (1, 3, size, size))
    stem = set_span(relay.nn.relu(_conv(weights, "stem", image, 3, channels, 3)), "stem.relu")
    left = _conv(weights, "left", stem, channels, channels, 3)
    right = _conv(weights, "right", stem, channels, channels, 1)
    joined = set_span(relay.concatenate([left, right], axis=1), "join")
    last = _conv(weights, "last", joined, 2 * channels, channels, 1)
    return weights.network({"image": image}, set_span(relay.nn.relu(last), "last.relu"))
