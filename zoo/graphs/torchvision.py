"""Classifiers of the Torchvision zoo as task graphs, with the costs of DiviML (section V).

Written out from the networks' papers, in the sizes of the zoo; a task is a convolution or a product
with its norm and activation, a pool, a sum or a concatenation (DiviML's graphs come from a tracer,
and are not printed). One image, float32; weights are those of the convolutions and products.

Costs: DiviML measured each op, and prints the mean of whole networks on each device (table II).
Here an op takes its roofline on the data sheets' peaks (`roofline.py`), times one factor for each
device, so that the mean over the networks below is the printed one. A batch of b reads weights once
and launches once. So devices differ from op to op only as far as rooflines do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from heteroplace.errors import GraphError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, TableBuilder
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.solve.problem import Problem
from zoo.graphs.clusters import divi_node
from zoo.graphs.roofline import MATMUL, MEMORY_BOUND, Efficiency, roofline_ns

MEAN_NS = {"cpu": 223_100_000, "t4": 12_160_000, "a100": 7_800_000}
"""DiviML, table II: mean time of a Torchvision network by device of `divi_node`."""
BATCH_SIZES = (1, 16, 32, 64, 128)
"""Which the paper supports is not printed."""
OP_CLASSES: Mapping[str, Efficiency] = {
    "conv": MATMUL,
    "dense": MATMUL,
    "depthwise": MEMORY_BOUND,
    "pool": MEMORY_BOUND,
    "add": MEMORY_BOUND,
    "concat": MEMORY_BOUND,
    "norm": MEMORY_BOUND,
}
CLASSES = 1000
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Map:
    """A value: square feature maps, or a vector (size 1)."""

    name: str
    channels: int
    size: int


def torchvision(name: str, batch_sizes: Sequence[int] = (1,)) -> Problem:
    """Return a network on DiviML's node.

    Raises
    ------
    GraphError
        There is no such network.
    """
    if name not in NETWORKS:
        raise GraphError(f"no network {name!r}: expected one of {', '.join(NETWORKS)}")
    cluster = divi_node()
    devices = tuple(replace(device, batch_sizes=tuple(batch_sizes)) for device in cluster.devices)
    cluster = replace(cluster, devices=devices)
    graph, factors = network_graph(name), device_factors(cluster)
    builder = TableBuilder(graph.identities, cluster.identities, tuple(batch_sizes))
    for size in batch_sizes:
        for row in roofline_ns(graph, cluster, OP_CLASSES, size):
            for ns, factor in zip(row, factors, strict=True):
                builder.add(Cost.roofline(round(ns * factor), "scaled to DiviML's means"))
    return Problem(graph, cluster, builder.finalize())


def device_factors(cluster: Cluster) -> list[float]:
    """Return for each device the printed mean over that of the rooflines of all networks."""
    sums = [0] * len(cluster.devices)
    for name in NETWORKS:
        for row in roofline_ns(network_graph(name), cluster, OP_CLASSES):
            sums = [total + ns for total, ns in zip(sums, row, strict=True)]
    return [
        MEAN_NS[device.name] * len(NETWORKS) / total
        for device, total in zip(cluster.devices, sums, strict=True)
    ]


def network_graph(name: str) -> TaskGraph:
    """Return one of NETWORKS."""
    layers = _Layers(name)
    return layers.builder.finalize([NETWORKS[name](layers).name])


class _Layers:
    """Adds layers to a builder."""

    def __init__(self, name: str) -> None:
        self.builder = TaskGraphBuilder(name)
        self._count = 0

    def image(self, size: int) -> Map:
        """Add the input."""
        name = self.builder.add_input("image", (1, 3, size, size), "float32")
        return Map(name, 3, size)

    def conv(
        self,
        x: Map,
        filters: int,
        area: int | tuple[int, int],
        stride: int = 1,
        pad: int | None = None,
    ) -> Map:
        """Add a convolution of `area` (a side, or height and width); without `pad` the size
        stays but for the stride."""
        height, width = (area, area) if isinstance(area, int) else area
        size = -(-x.size // stride)
        if pad is not None:
            size = (x.size + 2 * pad - max(height, width)) // stride + 1
        weights = height * width * x.channels * filters
        return self._add("conv", [x], filters, size, 2 * weights * size * size, weights)

    def depthwise(self, x: Map, stride: int = 1) -> Map:
        """Add a 3 x 3 convolution of each channel alone."""
        size, weights = -(-x.size // stride), 9 * x.channels
        return self._add("depthwise", [x], x.channels, size, 2 * weights * size * size, weights)

    def convs(self, x: Map, *layers: tuple[int, int | tuple[int, int]]) -> Map:
        """Add convolutions of (filters, area)."""
        for filters, area in layers:
            x = self.conv(x, filters, area)
        return x

    def pool(self, x: Map, area: int, stride: int, pad: int = 0, *, is_ceil: bool = False) -> Map:
        """Add a pool."""
        free = x.size + 2 * pad - area
        size = (-(-free // stride) if is_ceil else free // stride) + 1
        flops = area * area * x.channels * size * size
        return self._add("pool", [x], x.channels, size, flops, 0)

    def mean(self, x: Map, size: int = 1) -> Map:
        """Add a mean over the image, or over parts of it."""
        return self._add("pool", [x], x.channels, size, x.channels * x.size**2, 0)

    def norm(self, x: Map) -> Map:
        """Add a norm with its activation, where no convolution comes before it."""
        return self._add("norm", [x], x.channels, x.size, 2 * x.channels * x.size**2, 0)

    def join(self, *parts: Map) -> Map:
        """Concatenate channels."""
        return self._add("concat", parts, sum(part.channels for part in parts), parts[0].size, 0, 0)

    def sum(self, x: Map, y: Map) -> Map:
        """Add two values."""
        return self._add("add", [x, y], x.channels, x.size, x.channels * x.size**2, 0)

    def dense(self, x: Map, columns: int) -> Map:
        """Add a product with the flat value."""
        weights = x.channels * x.size**2 * columns
        return self._add("dense", [x], columns, 1, 2 * weights, weights)

    def _add(
        self, op: str, reads: Sequence[Map], channels: int, size: int, flops: int, weights: int
    ) -> Map:
        self._count += 1
        task = Task(f"{op}{self._count}", op, flops=flops, weight_bytes=weights * _FLOAT_BYTES)
        self.builder.add_task(task, [value.name for value in reads])
        name = self.builder.add_tensor(task.name, (1, channels, size, size), "float32")
        return Map(name, channels, size)


def _alexnet(net: _Layers) -> Map:
    """Krizhevsky 2014, "One weird trick ..."."""
    x = net.pool(net.conv(net.image(224), 64, 11, 4, 2), 3, 2)
    x = net.pool(net.conv(x, 192, 5), 3, 2)
    x = net.pool(net.convs(x, (384, 3), (256, 3), (256, 3)), 3, 2)
    return _classified(net, x, 4096, 4096)


def _vgg16(net: _Layers) -> Map:
    """Simonyan and Zisserman 2015, configuration D."""
    x = net.image(224)
    for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        x = net.pool(net.convs(x, *[(filters, 3)] * count), 2, 2)
    return _classified(net, x, 4096, 4096)


def _resnet(net: _Layers, *, is_deep: bool, counts: Sequence[int]) -> Map:
    """He et al. 2016, table 1; `is_deep`: blocks with a bottleneck."""
    x = net.pool(net.conv(net.image(224), 64, 7, 2), 3, 2, 1)
    for stage, count in enumerate(counts):
        width = 64 * 2**stage
        channels = 4 * width if is_deep else width
        for block in range(count):
            stride = 2 if stage and not block else 1
            if is_deep:
                inner = net.conv(net.conv(x, width, 1), width, 3, stride)
                inner = net.conv(inner, channels, 1)
            else:
                inner = net.conv(net.conv(x, width, 3, stride), width, 3)
            if not block and (stage or is_deep):
                x = net.conv(x, channels, 1, stride)
            x = net.sum(inner, x)
    return net.dense(net.mean(x), CLASSES)


def _googlenet(net: _Layers) -> Map:
    """Szegedy et al. 2015, table 1; the fives are threes, as in the zoo."""
    x = net.pool(net.conv(net.image(224), 64, 7, 2), 3, 2, is_ceil=True)
    x = net.pool(net.convs(x, (64, 1), (192, 3)), 3, 2, is_ceil=True)
    stages = (
        ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
        (
            *((192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64)),
            *((128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64)),
            (256, 160, 320, 32, 128, 128),
        ),
        ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
    )
    for index, stage in enumerate(stages):
        if index:
            x = net.pool(x, 3, 2, is_ceil=True)
        for ones, before_threes, threes, before_fives, fives, pooled in stage:
            x = net.join(
                net.conv(x, ones, 1),
                net.convs(x, (before_threes, 1), (threes, 3)),
                net.convs(x, (before_fives, 1), (fives, 3)),
                net.conv(net.pool(x, 3, 1, 1), pooled, 1),
            )
    return net.dense(net.mean(x), CLASSES)


def _inception_v3(net: _Layers) -> Map:
    """Szegedy et al. 2016, table 1, without the auxiliary head."""
    x = net.conv(net.conv(net.image(299), 32, 3, 2, 0), 32, 3, 1, 0)
    x = net.conv(net.pool(net.conv(x, 64, 3), 3, 2), 80, 1)
    x = net.pool(net.conv(x, 192, 3, 1, 0), 3, 2)

    def pooled(x: Map, filters: int) -> Map:
        return net.conv(net.pool(x, 3, 1, 1), filters, 1)

    for depth in (32, 64, 64):
        threes = net.convs(x, (64, 1), (96, 3), (96, 3))
        x = net.join(net.conv(x, 64, 1), net.convs(x, (48, 1), (64, 5)), threes, pooled(x, depth))
    reduced = net.conv(net.convs(x, (64, 1), (96, 3)), 96, 3, 2, 0)
    x = net.join(net.conv(x, 384, 3, 2, 0), reduced, net.pool(x, 3, 2))
    for width in (128, 160, 160, 192):
        sevens = net.convs(x, (width, 1), (width, (1, 7)), (192, (7, 1)))
        twice = ((width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7)))
        x = net.join(net.conv(x, 192, 1), sevens, net.convs(x, (width, 1), *twice), pooled(x, 192))
    threes = net.conv(net.conv(x, 192, 1), 320, 3, 2, 0)
    sevens = net.conv(net.convs(x, (192, 1), (192, (1, 7)), (192, (7, 1))), 192, 3, 2, 0)
    x = net.join(threes, sevens, net.pool(x, 3, 2))
    for _ in range(2):
        wide, deep = net.conv(x, 384, 1), net.convs(x, (448, 1), (384, 3))
        parts = [net.conv(one, 384, area) for one in (wide, deep) for area in ((1, 3), (3, 1))]
        x = net.join(net.conv(x, 320, 1), *parts, pooled(x, 192))
    return net.dense(net.mean(x), CLASSES)


def _squeezenet(net: _Layers) -> Map:
    """Iandola et al. 2016, table 1."""
    x = net.pool(net.conv(net.image(224), 96, 7, 2, 0), 3, 2, is_ceil=True)
    for index, width in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        narrow, filters = net.conv(x, width, 1), 4 * width
        x = net.join(net.conv(narrow, filters, 1), net.conv(narrow, filters, 3))
        if index in (2, 6):
            x = net.pool(x, 3, 2, is_ceil=True)
    return net.mean(net.conv(x, CLASSES, 1))


def _densenet121(net: _Layers) -> Map:
    """Huang et al. 2017, table 1, growth 32."""
    x = net.pool(net.conv(net.image(224), 64, 7, 2), 3, 2, 1)
    for block, count in enumerate((6, 12, 24, 16)):
        if block:
            x = net.pool(net.conv(net.norm(x), x.channels // 2, 1), 2, 2)
        for _ in range(count):
            x = net.join(x, net.convs(net.norm(x), (128, 1), (32, 3)))
    return net.dense(net.mean(net.norm(x)), CLASSES)


def _mobilenet_v2(net: _Layers) -> Map:
    """Sandler et al. 2018, table 2."""
    x = net.conv(net.image(224), 32, 3, 2)
    rows = (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    )
    for expansion, filters, count, first_stride in rows:
        for block in range(count):
            stride = 1 if block else first_stride
            inner = net.conv(x, expansion * x.channels, 1) if expansion > 1 else x
            inner = net.conv(net.depthwise(inner, stride), filters, 1)
            is_residual = stride == 1 and x.channels == filters
            x = net.sum(inner, x) if is_residual else inner
    return net.dense(net.mean(net.conv(x, 1280, 1)), CLASSES)


def _classified(net: _Layers, x: Map, *widths: int) -> Map:
    for width in widths:
        x = net.dense(x, width)
    return net.dense(x, CLASSES)


NETWORKS: Mapping[str, Callable[[_Layers], Map]] = {
    "alexnet": _alexnet,
    "vgg16": _vgg16,
    "resnet18": partial(_resnet, is_deep=False, counts=(2, 2, 2, 2)),
    "resnet50": partial(_resnet, is_deep=True, counts=(3, 4, 6, 3)),
    "squeezenet1_0": _squeezenet,
    "mobilenet_v2": _mobilenet_v2,
    "densenet121": _densenet121,
    "googlenet": _googlenet,
    "inception_v3": _inception_v3,
}
"""By the zoo's names; chains first."""
