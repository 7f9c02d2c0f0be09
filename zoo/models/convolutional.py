"""Convolutional networks as ONNX models, with the structure of the published ones, but small.

Their sizes are arguments; those of the published networks are in `full_size.py`.

- `densenet`: Huang et al., "Densely Connected Convolutional Networks", section 3
- `mobilenet_v3`: Howard et al., "Searching for MobileNetV3", section 5
- `efficientnet`: Tan and Le, "EfficientNet", table 1
- `convnext`: Liu et al., "A ConvNet for the 2020s", figure 4
- `unet`: Ronneberger et al., "U-Net", figure 1, with padding
- `yolo`: the head and neck of YOLOv8 (C2f, SPPF, a distribution over distances for each side of a
  box: Li et al., "Generalized Focal Loss"), boxes decoded in the graph
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from zoo.models.onnx_graph import FLOAT, OnnxGraph


def densenet(seed: int = 0) -> onnx.ModelProto:
    """Return three dense blocks with transitions between them; input `image` [1, 3, 64, 64]."""
    graph = OnnxGraph(seed)
    growth, channels = 12, 24
    value = graph.input("image", FLOAT, 1, 3, 64, 64)
    value = graph.op("Relu", graph.conv_norm("stem", value, (3, channels), 7, stride=2))
    value = graph.op("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for block, layers in enumerate((3, 4, 3)):
        parts = [value]
        for layer in range(layers):
            name = f"block{block}.{layer}"
            joined = graph.op("Concat", *parts, axis=1) if layer else value
            inner = graph.op("Relu", graph.batch_norm(f"{name}.norm", joined, channels))
            inner = graph.conv_norm(f"{name}.narrow", inner, (channels, 4 * growth), 1)
            inner = graph.conv(f"{name}.wide", graph.op("Relu", inner), (4 * growth, growth), 3)
            parts.append(inner)
            channels += growth
        value = graph.op("Concat", *parts, axis=1)
        value = graph.op("Relu", graph.batch_norm(f"transition{block}", value, channels))
        if block < 2:
            value = graph.conv(f"transition{block}.conv", value, (channels, channels // 2), 1)
            value = graph.op("AveragePool", value, kernel_shape=[2, 2], strides=[2, 2])
            channels //= 2
    logits = graph.pool_and_classify("classifier", value, channels, 10)
    return graph.model("densenet", (logits, (1, 10)))


def smallest(seed: int = 0) -> onnx.ModelProto:
    """Return a convolution and a layer that classifies; input `image` [1, 8, 8, 8]."""
    graph = OnnxGraph(seed)
    value = graph.input("image", FLOAT, 1, 8, 8, 8)
    value = graph.op("Relu", graph.conv("conv", value, (8, 8), 3))
    logits = graph.pool_and_classify("classifier", value, 8, 4)
    return graph.model("smallest", (logits, (1, 4)))


def _squeeze_excite(
    graph: OnnxGraph, name: str, value: str, channels: int, gate: str, squeeze: int
) -> str:
    """Scale each channel by a gate computed from the means of all, `squeeze` of them as one."""
    narrow = max(8, channels // squeeze)
    mean = graph.op("GlobalAveragePool", value)
    inner = graph.conv(f"{name}.reduce", mean, (channels, narrow), 1, bias=True)
    inner = graph.op("Relu", inner) if gate == "HardSigmoid" else _silu(graph, inner)
    inner = graph.conv(f"{name}.expand", inner, (narrow, channels), 1, bias=True)
    options: dict[str, Any] = {"alpha": 1 / 6, "beta": 0.5} if gate == "HardSigmoid" else {}
    result: str = graph.op("Mul", value, graph.op(gate, inner, **options))
    return result


def _silu(graph: OnnxGraph, value: str) -> str:
    result: str = graph.op("Mul", value, graph.op("Sigmoid", value))
    return result


def _inverted_residual(
    graph: OnnxGraph,
    name: str,
    value: str,
    channels: tuple[int, int, int],
    kernel: int,
    stride: int,
    activation: str,
    gate: str | None,
    squeeze: int = 4,
) -> str:
    """Expand, filter each channel alone, gate, project; `channels`: in, wide, out."""
    num_in, wide, num_out = channels

    def active(value: str) -> str:
        if activation == "SiLU":
            return _silu(graph, value)
        result: str = graph.op(activation, value)
        return result

    inner = value
    if wide != num_in:
        inner = active(graph.conv_norm(f"{name}.expand", value, (num_in, wide), 1))
    inner = graph.conv_norm(
        f"{name}.depthwise", inner, (wide, wide), kernel, stride=stride, group=wide
    )
    inner = active(inner)
    if gate is not None:
        inner = _squeeze_excite(graph, f"{name}.se", inner, wide, gate, squeeze)
    inner = graph.conv_norm(f"{name}.project", inner, (wide, num_out), 1)
    if stride == 1 and num_in == num_out:
        inner = graph.op("Add", inner, value)
    return inner


MobileRow = tuple[tuple[int, int, int], int, int, str, bool]
"""Channels in, wide and out; kernel, stride, activation; whether a gate scales the channels."""

_MOBILE_ROWS: tuple[MobileRow, ...] = (
    ((16, 16, 16), 3, 2, "Relu", True),
    ((16, 72, 24), 3, 2, "Relu", False),
    ((24, 88, 24), 3, 1, "Relu", False),
    ((24, 96, 40), 5, 2, "HardSwish", True),
    ((40, 120, 40), 5, 1, "HardSwish", True),
)


def mobilenet_v3(
    seed: int = 0,
    size: int = 64,
    rows: Sequence[MobileRow] = _MOBILE_ROWS,
    ends: tuple[int, int, int] = (144, 64, 10),
) -> onnx.ModelProto:
    """Return the first blocks of the small form; input `image` [1, 3, size, size].

    `ends`: channels after the last block, those hidden, and classes.
    """
    graph = OnnxGraph(seed)
    value = graph.input("image", FLOAT, 1, 3, size, size)
    value = graph.op("HardSwish", graph.conv_norm("stem", value, (3, 16), 3, stride=2))
    for index, (channels, kernel, stride, activation, has_gate) in enumerate(rows):
        gate = "HardSigmoid" if has_gate else None
        value = _inverted_residual(
            graph, f"block{index}", value, channels, kernel, stride, activation, gate
        )
    last, hidden, classes = ends
    value = graph.op("HardSwish", graph.conv_norm("last", value, (rows[-1][0][2], last), 1))
    pooled = graph.op("Flatten", graph.op("GlobalAveragePool", value), axis=1)
    inner = graph.op("HardSwish", graph.linear("hidden", pooled, last, hidden))
    logits = graph.linear("logits", inner, hidden, classes)
    return graph.model("mobilenet_v3", (logits, (1, classes)))


EfficientRow = tuple[tuple[int, int, int], int, int]
"""Channels in, wide and out; kernel, stride."""

_EFFICIENT_ROWS: tuple[EfficientRow, ...] = (
    ((16, 16, 8), 3, 1),
    ((8, 48, 12), 3, 2),
    ((12, 72, 12), 3, 1),
    ((12, 72, 20), 5, 2),
    ((20, 120, 20), 5, 1),
)


def efficientnet(
    seed: int = 0,
    size: int = 64,
    rows: Sequence[EfficientRow] = _EFFICIENT_ROWS,
    ends: tuple[int, int] = (80, 10),
    squeeze: int = 4,
) -> onnx.ModelProto:
    """Return MBConv blocks; input `image` [1, 3, size, size].

    `ends`: channels after the last block, and classes; `squeeze`: of how many channels of a block
    its gate's inner layer has one.
    """
    graph = OnnxGraph(seed)
    value = graph.input("image", FLOAT, 1, 3, size, size)
    value = _silu(graph, graph.conv_norm("stem", value, (3, rows[0][0][0]), 3, stride=2))
    for index, (channels, kernel, stride) in enumerate(rows):
        value = _inverted_residual(
            graph, f"block{index}", value, channels, kernel, stride, "SiLU", "Sigmoid", squeeze
        )
    last, classes = ends
    value = _silu(graph, graph.conv_norm("last", value, (rows[-1][0][2], last), 1))
    logits = graph.pool_and_classify("classifier", value, last, classes)
    return graph.model("efficientnet", (logits, (1, classes)))


def convnext(
    seed: int = 0,
    size: int = 32,
    widths: Sequence[int] = (24, 48),
    depths: Sequence[int] = (2, 2),
    classes: int = 10,
) -> onnx.ModelProto:
    """Return stages of blocks of these widths; input `image` [1, 3, size, size]."""
    graph = OnnxGraph(seed)
    value = graph.input("image", FLOAT, 1, 3, size, size)
    value = graph.conv("stem", value, (3, widths[0]), 4, stride=4, bias=True)
    value = _map_norm(graph, "stem.norm", value, widths[0])
    for stage, (channels, depth) in enumerate(zip(widths, depths, strict=True)):
        if stage:
            before = widths[stage - 1]
            value = _map_norm(graph, f"down{stage}.norm", value, before)
            value = graph.conv(f"down{stage}", value, (before, channels), 2, stride=2, bias=True)
        for block in range(depth):
            value = _convnext_block(graph, f"stage{stage}.{block}", value, channels)
    pooled = graph.op("Flatten", graph.op("GlobalAveragePool", value), axis=1)
    normed = graph.layer_norm("norm", pooled, widths[-1])
    logits = graph.linear("classifier", normed, widths[-1], classes)
    return graph.model("convnext", (logits, (1, classes)))


def _map_norm(graph: OnnxGraph, name: str, value: str, channels: int) -> str:
    """A layer norm over the channels of a map."""
    last = graph.layer_norm(name, graph.op("Transpose", value, perm=[0, 2, 3, 1]), channels)
    result: str = graph.op("Transpose", last, perm=[0, 3, 1, 2])
    return result


def _convnext_block(graph: OnnxGraph, name: str, value: str, channels: int) -> str:
    inner = graph.conv(
        f"{name}.depthwise", value, (channels, channels), 7, group=channels, bias=True
    )
    inner = graph.op("Transpose", inner, perm=[0, 2, 3, 1])
    inner = graph.layer_norm(f"{name}.norm", inner, channels)
    inner = graph.gelu(graph.linear(f"{name}.up", inner, channels, 4 * channels))
    inner = graph.linear(f"{name}.down", inner, 4 * channels, channels)
    inner = graph.op("Mul", graph.weight(f"{name}.scale", channels, mean=0.5), inner)
    result: str = graph.op("Add", value, graph.op("Transpose", inner, perm=[0, 3, 1, 2]))
    return result


def unet(seed: int = 0, size: int = 32, widths: Sequence[int] = (8, 16, 32)) -> onnx.ModelProto:
    """Return a level of each width, with skip connections; input `image` [1, 1, size, size]."""
    graph = OnnxGraph(seed)

    def double(name: str, value: str, num_in: int, num_out: int) -> str:
        for index, channels in enumerate(((num_in, num_out), (num_out, num_out))):
            value = graph.op("Relu", graph.conv_norm(f"{name}.{index}", value, channels, 3))
        return value

    value = graph.input("image", FLOAT, 1, 1, size, size)
    last = len(widths) - 1
    skipped = []
    for level, channels in enumerate(widths):
        value = double(f"down{level}", value, widths[level - 1] if level else 1, channels)
        if level < last:
            skipped.append(value)
            value = graph.op("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    for level in reversed(range(last)):
        channels = widths[level]
        weight = graph.weight(f"up{level}.weight", 2 * channels, channels, 2, 2, std=0.2)
        bias = graph.weight(f"up{level}.bias", channels)
        value = graph.op("ConvTranspose", value, weight, bias, kernel_shape=[2, 2], strides=[2, 2])
        value = graph.op("Concat", skipped[level], value, axis=1)
        value = double(f"merge{level}", value, 2 * channels, channels)
    mask = graph.op("Sigmoid", graph.conv("mask", value, (widths[0], 2), 1, bias=True))
    return graph.model("unet", (mask, (1, 2, size, size)))


def yolo(
    seed: int = 0,
    size: int = 64,
    widths: tuple[int, int, int, int] = (16, 16, 32, 48),
    classes: int = 5,
) -> onnx.ModelProto:
    """Return backbone, neck and two heads; input `image` [1, 3, size, size], size % 16 == 0.

    `widths` are those of the maps of 1/2, 1/4, 1/8 and 1/16 of the size. The first output
    [1, 4 + classes, boxes] has boxes as centre and size in pixels, and class scores; the second
    one the scores alone.
    """
    graph = OnnxGraph(seed)
    stem, down, eighth, sixteenth = widths
    value = graph.input("image", FLOAT, 1, 3, size, size)
    value = _silu(graph, graph.conv_norm("stem", value, (3, stem), 3, stride=2))
    value = _silu(graph, graph.conv_norm("down0", value, (stem, down), 3, stride=2))
    value = _silu(graph, graph.conv_norm("d1", value, (down, eighth), 3, stride=2))
    fine = _c2f(graph, "c2f0", value, eighth, eighth)
    value = _silu(graph, graph.conv_norm("down2", fine, (eighth, sixteenth), 3, stride=2))
    coarse = _sppf(graph, "sppf", _c2f(graph, "c2f1", value, sixteenth, sixteenth), sixteenth)
    scales = graph.constant([1, 1, 2, 2], np.float32)
    large = graph.op(
        "Resize",
        coarse,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    joined = graph.op("Concat", large, fine, axis=1)
    fine = _c2f(graph, "c2f2", joined, sixteenth + eighth, eighth)
    cells = (size // 8, size // 16)
    heads = [
        _yolo_head(graph, "head0", fine, eighth, classes, cells[0]),
        _yolo_head(graph, "head1", coarse, sixteenth, classes, cells[1]),
    ]
    joined = graph.op("Concat", *heads, axis=2)
    boxes, scores = graph.op(
        "Split", joined, graph.constant([4 * _BINS, classes], np.int64), outputs=2, axis=1
    )
    scores = graph.op("Sigmoid", scores)
    result = graph.op("Concat", _decoded(graph, boxes, cells), scores, axis=1)
    num_boxes = cells[0] ** 2 + cells[1] ** 2
    shapes = ((1, 4 + classes, num_boxes), (1, classes, num_boxes))
    return graph.model("yolo", (result, shapes[0]), (scores, shapes[1]))


_BINS = 16


def _c2f(graph: OnnxGraph, name: str, value: str, num_in: int, num_out: int) -> str:
    """Split the channels, refine one half twice, and join all that was made on the way."""
    half = num_out // 2
    value = _silu(graph, graph.conv_norm(f"{name}.in", value, (num_in, num_out), 1))
    parts = graph.op("Split", value, graph.constant([half, half], np.int64), outputs=2, axis=1)
    inner = parts[-1]
    for index in range(2):
        refined = _silu(graph, graph.conv_norm(f"{name}.{index}.a", inner, (half, half), 3))
        refined = _silu(graph, graph.conv_norm(f"{name}.{index}.b", refined, (half, half), 3))
        inner = graph.op("Add", inner, refined)
        parts.append(inner)
    joined = graph.op("Concat", *parts, axis=1)
    return _silu(graph, graph.conv_norm(f"{name}.out", joined, (4 * half, num_out), 1))


def _sppf(graph: OnnxGraph, name: str, value: str, channels: int) -> str:
    parts = [_silu(graph, graph.conv_norm(f"{name}.in", value, (channels, channels // 2), 1))]
    for _ in range(3):
        parts.append(
            graph.op("MaxPool", parts[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2])
        )
    joined = graph.op("Concat", *parts, axis=1)
    return _silu(graph, graph.conv_norm(f"{name}.out", joined, (2 * channels, channels), 1))


def _yolo_head(
    graph: OnnxGraph, name: str, value: str, channels: int, classes: int, size: int
) -> str:
    """Distances and classes of each cell, [1, 4 bins + classes, size^2]."""
    outputs = []
    for part, count in (("box", 4 * _BINS), ("class", classes)):
        inner = _silu(graph, graph.conv_norm(f"{name}.{part}", value, (channels, channels), 3))
        outputs.append(graph.conv(f"{name}.{part}.out", inner, (channels, count), 1, bias=True))
    joined = graph.op("Concat", *outputs, axis=1)
    shape = graph.constant([1, 4 * _BINS + classes, size * size], np.int64)
    result: str = graph.op("Reshape", joined, shape)
    return result


def _decoded(graph: OnnxGraph, boxes: str, cells: tuple[int, int]) -> str:
    """Expected distances to the four sides -> centre and size; `cells` along each head's map."""
    num_boxes = cells[0] ** 2 + cells[1] ** 2
    bins = graph.op("Reshape", boxes, graph.constant([1, 4, _BINS, num_boxes], np.int64))
    likely = graph.op("Softmax", graph.op("Transpose", bins, perm=[0, 2, 1, 3]), axis=1)
    steps = graph.initializer("steps", np.arange(_BINS, dtype=np.float32).reshape(1, _BINS, 1, 1))
    distances = graph.op("Conv", likely, steps, kernel_shape=[1, 1])
    distances = graph.op("Reshape", distances, graph.constant([1, 4, num_boxes], np.int64))
    low, high = graph.op("Split", distances, graph.constant([2, 2], np.int64), outputs=2, axis=1)
    grids = [np.stack(np.meshgrid(np.arange(n), np.arange(n)), -1).reshape(-1, 2) for n in cells]
    anchors = (np.concatenate(grids).T[None] + 0.5).astype(np.float32)
    begin = graph.op("Sub", graph.initializer("anchors", anchors), low)
    end = graph.op("Add", "anchors", high)
    centre = graph.op("Div", graph.op("Add", begin, end), graph.constant(2.0, np.float32))
    joined = graph.op("Concat", centre, graph.op("Sub", end, begin), axis=1)
    strides = np.repeat(np.array([8, 16], np.float32), [n * n for n in cells]).reshape(1, 1, -1)
    result: str = graph.op("Mul", joined, graph.initializer("strides", strides))
    return result
