"""Training graphs of the four networks of Celeritas, near their numbers of nodes.

"Celeritas: Fast Optimizer for Large Dataflow Graphs", section 6, DOI 10.48550/arXiv.2208.00184. Its
graphs are not published. Inception-v3 is written out; of the others the kind is known and the sizes
are chosen here, so that a step has about as many nodes as the paper's:

| network | here | nodes of the paper |
|---|---|---|
| Inception-v3 | 96 convolutions with norm, auxiliary head, Adam | 6,332 |
| NMT | two times 4 layers of 2048 LSTM units, unrolled, attention | 25,463 |
| Transformer | per-head products, as in `transformer.py` | 36,352 |
| Tensor Holography | residual convolutions of full-size images, many inputs of constants | 3,810 |

Batches are so large that no device holds a step: live tensors, variables and slots are above 32
GiB. Devices: four V100 of 32 GB on PCIe 3.0, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from heteroplace.model.graph import TaskGraph
from zoo.graphs.training import Network, Value
from zoo.graphs.training_sequences import nmt, transformer

_CLASSES = 1001


def inception_v3(batch: int = 512, *, colocates_gradients: bool = False) -> TaskGraph:
    """Return a step of Inception-v3 (Szegedy et al., 2016) on images of 299 x 299."""
    network = _Images("inception-v3", batch)
    x = network.image(299, 3)
    stem = ((32, 3, 2, False), (32, 3, 1, False), (64, 3, 1, True))
    for filters, size, stride, is_padded in stem:
        x = network.conv(x, filters, (size, size), stride, is_padded=is_padded)
    x = network.conv(network.pool(x, 2), 80, (1, 1), is_padded=False)
    x = network.pool(network.conv(x, 192, (3, 3), is_padded=False), 2)
    for depth in (32, 64, 64):
        fives = network.chain(x, (48, 1, 1), (64, 5, 5))
        threes = network.chain(x, (64, 1, 1), (96, 3, 3), (96, 3, 3))
        ones = network.conv(x, 64, (1, 1))
        x = network.join([ones, fives, threes, network.chain(network.pool(x), (depth, 1, 1))])
    reduced = network.chain(x, (64, 1, 1), (96, 3, 3))
    reduced = network.conv(reduced, 96, (3, 3), 2, is_padded=False)
    halved = network.conv(x, 384, (3, 3), 2, is_padded=False)
    x = network.join([halved, reduced, network.pool(x, 2)])
    for width in (128, 160, 160, 192):
        sevens = network.chain(x, (width, 1, 1), (width, 1, 7), (192, 7, 1))
        twice = [(width, 1, 1), (width, 7, 1), (width, 1, 7), (width, 7, 1), (192, 1, 7)]
        double = network.chain(x, *twice)
        ones = network.conv(x, 192, (1, 1))
        x = network.join([ones, sevens, double, network.chain(network.pool(x), (192, 1, 1))])
    side = network.chain(network.pool(x, 3), (128, 1, 1))
    side = network.conv(side, 768, (5, 5), is_padded=False)
    aside = network.classify(side)
    threes = network.conv(network.chain(x, (192, 1, 1)), 320, (3, 3), 2, is_padded=False)
    sevens = network.chain(x, (192, 1, 1), (192, 1, 7), (192, 7, 1))
    sevens = network.conv(sevens, 192, (3, 3), 2, is_padded=False)
    x = network.join([threes, sevens, network.pool(x, 2)])
    for _ in range(2):
        wide = network.conv(x, 384, (1, 1))
        deep = network.chain(x, (448, 1, 1), (384, 3, 3))
        parts = [network.conv(one, 384, area) for one in (wide, deep) for area in ((1, 3), (3, 1))]
        pooled = network.chain(network.pool(x), (192, 1, 1))
        x = network.join([network.conv(x, 320, (1, 1)), *parts, pooled])
    losses = [network.classify(x), aside, *network.decays]
    return network.training_graph(losses, colocates_gradients=colocates_gradients)


def holography(
    batch: int = 32, layers: int = 56, *, colocates_gradients: bool = False
) -> TaskGraph:
    """Return a step of a residual network on images of 384 x 384 with 24 filters per layer, after
    Tensor Holography (Shi et al., 2021)."""
    network = _Images("tensor-holography", batch)
    x = network.conv(network.image(384, 4), 24, (3, 3))
    for _ in range(layers // 2):
        inner = network.chain(x, (24, 3, 3), (24, 3, 3))
        x = network.add("add", [inner, x], x.shape)
    made = network.conv(x, 6, (3, 3))
    target = network.input("target", made.shape)
    difference = network.add("add", [made, target], made.shape)
    square = network.add("multiply", [difference, difference], made.shape)
    losses = [network.add("loss", [square], (1,)), *network.decays]
    return network.training_graph(losses, colocates_gradients=colocates_gradients)


class _Images(Network):
    """Layers of networks of images, NHWC."""

    def __init__(self, name: str, batch: int) -> None:
        super().__init__(name)
        self._batch = batch
        self._num_layers = 0
        self.decays: list[Value] = []
        """Losses of the weights' size."""

    def image(self, size: int, channels: int) -> Value:
        """Add the input."""
        return self.input("image", (self._batch, size, size, channels))

    def conv(
        self,
        x: Value,
        filters: int,
        size: tuple[int, int],
        stride: int = 1,
        *,
        is_padded: bool = True,
    ) -> Value:
        """Add convolution, batch norm and relu."""
        batch, height, width, channels = x.shape
        if not is_padded:
            height, width = height - size[0] + 1, width - size[1] + 1
        shape = (batch, -(-height // stride), -(-width // stride), filters)
        self._num_layers += 1
        name = f"conv{self._num_layers}"
        weights = self.variable(f"{name}/weights", (*size, channels, filters))
        flops = 2 * math.prod(shape) * math.prod(size) * channels
        self.decay(weights)
        y = self.add("conv2d", [x, weights], shape, flops=flops)
        scale = self.variable(f"{name}/scale", (filters,))
        shift = self.variable(f"{name}/shift", (filters,))
        shapes = (shape, (filters,), (filters,))
        y, mean, variance = self.add_parts("batch_norm", [y, scale, shift], shapes)
        self.average(f"{name}/mean", mean)
        self.average(f"{name}/variance", variance)
        return self.add("relu", [y], shape)

    def decay(self, weights: Value) -> None:
        """Add the square of weights to the losses."""
        square = self.add("square_sum", [weights], (1,))
        self.decays.append(self.add("scale", [square], (1,)))

    def chain(self, x: Value, *layers: tuple[int, int, int]) -> Value:
        """Add convolutions of (filters, height, width)."""
        for filters, height, width in layers:
            x = self.conv(x, filters, (height, width))
        return x

    def pool(self, x: Value, stride: int = 1) -> Value:
        """Add a pool of 3 x 3; of a stride above 1 without padding."""
        batch, height, width, channels = x.shape
        if stride > 1:
            height, width = (height - 3) // stride + 1, (width - 3) // stride + 1
        return self.add("pool", [x], (batch, height, width, channels))

    def join(self, parts: list[Value]) -> Value:
        """Concatenate channels."""
        channels = sum(part.shape[-1] for part in parts)
        return self.add("concat", parts, (*parts[0].shape[:-1], channels))

    def classify(self, x: Value) -> Value:
        """Add a mean over the image, a dense layer and a loss."""
        batch, _, _, channels = x.shape
        mean = self.add("pool", [x], (batch, 1, 1, channels))
        flat = self.add("reshape", [mean], (batch, channels))
        self._num_layers += 1
        name = f"dense{self._num_layers}"
        scores = _dense(self, name, flat, _CLASSES)
        labels = self.input(f"labels{self._num_layers}", (batch, _CLASSES))
        return self.add("loss", [self.add("softmax", [scores], scores.shape), labels], (1,))


def _dense(network: Network, name: str, x: Value, columns: int) -> Value:
    rows, depth = x.shape
    weights = network.variable(f"{name}/weights", (depth, columns))
    shape = (rows, columns)
    product = network.add("matmul", [x, weights], shape, flops=2 * rows * depth * columns)
    return network.add("bias_add", [product, network.variable(f"{name}/bias", (columns,))], shape)


TRAINED: Mapping[str, Callable[..., TaskGraph]] = {
    "holography": holography,
    "inception-v3": inception_v3,
    "nmt": nmt,
    "transformer": transformer,
}
"""The networks by name, small ones first; all take `colocates_gradients`, as
`Network.training_graph` does."""
