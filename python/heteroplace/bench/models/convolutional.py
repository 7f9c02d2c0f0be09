"""Convolutional networks as ONNX models, with the structure of the published ones, but small.

- `densenet`: Huang et al., "Densely Connected Convolutional Networks", section 3
- `mobilenet_v3`: Howard et al., "Searching for MobileNetV3", section 5
- `efficientnet`: Tan and Le, "EfficientNet", table 1
- `convnext`: Liu et al., "A ConvNet for the 2020s", figure 4
- `unet`: Ronneberger et al., "U-Net", figure 1, with padding
- `yolo`: the head and neck of YOLOv8 (C2f, SPPF, a distribution over distances for each side of a
  box: Li et al., "Generalized Focal Loss"), boxes decoded in the graph
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from heteroplace.bench.models.onnx_graph import FLOAT, OnnxGraph


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


def _squeeze_excite(graph: OnnxGraph, name: str, value: str, channels: int, gate: str) -> str:
    """Scale each channel by a gate computed from the means of all."""
    narrow = max(8, channels // 4)
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
        inner = _squeeze_excite(graph, f"{name}.se", inner, wide, gate)
    inner = graph.conv_norm(f"{name}.project", inner, (wide, num_out), 1)
    if stride == 1 and num_in == num_out:
        inner = graph.op("Add", inner, value)
    return inner


def mobilenet_v3(seed: int = 0) -> onnx.ModelProto:
    """Return the first blocks of the small form; input `image` [1, 3, 64, 64]."""
    graph = OnnxGraph(seed)
    value = graph.input("image", FLOAT, 1, 3, 64, 64)
    value = graph.op("HardSwish", graph.conv_norm("stem", value, (3, 16), 3, stride=2))
    rows = [
        ((16, 16, 16), 3, 2, "Relu", "HardSigmoid"),
        ((16, 72, 24), 3, 2, "Relu", None),
        ((24, 88, 24), 3, 1, "Relu", None),
        ((24, 96, 40), 5, 2, "HardSwish", "HardSigmoid"),
        ((40, 120, 40), 5, 1, "HardSwish", "HardSigmoid"),
    ]
    for index, (channels, kernel, stride, activation, gate) in enumerate(rows):
        value = _inverted_residual(
            graph, f"block{index}", value, channels, kernel, stride, activation, gate
        )
    value = graph.op("HardSwish", graph.conv_norm("last", value, (40, 144), 1))
    pooled = graph.op("Flatten", graph.op("GlobalAveragePool", value), axis=1)
    hidden = graph.op("HardSwish", graph.linear("hidden", pooled, 144, 64))
    return graph.model("mobilenet_v3", (graph.linear("logits", hidden, 64, 10), (1, 10)))


def efficientnet(seed: int = 0) -> onnx.ModelProto:
    """Return five MBConv blocks; input `image` [1, 3, 64, 64]."""
    graph = OnnxGraph(seed)
    value = graph.input("image", FLOAT, 1, 3, 64, 64)
    value = _silu(graph, graph.conv_norm("stem", value, (3, 16), 3, stride=2))
    rows = [
        ((16, 16, 8), 3, 1),
        ((8, 48, 12), 3, 2),
        ((12, 72, 12), 3, 1),
        ((12, 72, 20), 5, 2),
        ((20, 120, 20), 5, 1),
    ]
    for index, (channels, kernel, stride) in enumerate(rows):
        value = _inverted_residual(
            graph, f"block{index}", value, channels, kernel, stride, "SiLU", "Sigmoid"
        )
    value = _silu(graph, graph.conv_norm("last", value, (20, 80), 1))
    logits = graph.pool_and_classify("classifier", value, 80, 10)
    return graph.model("efficientnet", (logits, (1, 10)))


def convnext(seed: int = 0) -> onnx.ModelProto:
    """Return two stages of two blocks; input `image` [1, 3, 32, 32]."""
    graph = OnnxGraph(seed)
    value = graph.input("image", FLOAT, 1, 3, 32, 32)
    value = graph.conv("stem", value, (3, 24), 4, stride=4, bias=True)
    value = _map_norm(graph, "stem.norm", value, 24)
    for stage, channels in enumerate((24, 48)):
        if stage:
            value = _map_norm(graph, f"down{stage}.norm", value, channels // 2)
            value = graph.conv(
                f"down{stage}", value, (channels // 2, channels), 2, stride=2, bias=True
            )
        for block in range(2):
            value = _convnext_block(graph, f"stage{stage}.{block}", value, channels)
    pooled = graph.op("Flatten", graph.op("GlobalAveragePool", value), axis=1)
    normed = graph.layer_norm("norm", pooled, 48)
    return graph.model("convnext", (graph.linear("classifier", normed, 48, 10), (1, 10)))


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


def unet(seed: int = 0) -> onnx.ModelProto:
    """Return three levels with skip connections; input `image` [1, 1, 32, 32]."""
    graph = OnnxGraph(seed)

    def double(name: str, value: str, num_in: int, num_out: int) -> str:
        for index, channels in enumerate(((num_in, num_out), (num_out, num_out))):
            value = graph.op("Relu", graph.conv_norm(f"{name}.{index}", value, channels, 3))
        return value

    value = graph.input("image", FLOAT, 1, 1, 32, 32)
    sizes = (8, 16, 32)
    skipped = []
    for level, channels in enumerate(sizes):
        value = double(f"down{level}", value, sizes[level - 1] if level else 1, channels)
        if level < 2:
            skipped.append(value)
            value = graph.op("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    for level in (1, 0):
        channels = sizes[level]
        weight = graph.weight(f"up{level}.weight", 2 * channels, channels, 2, 2, std=0.2)
        bias = graph.weight(f"up{level}.bias", channels)
        value = graph.op("ConvTranspose", value, weight, bias, kernel_shape=[2, 2], strides=[2, 2])
        value = graph.op("Concat", skipped[level], value, axis=1)
        value = double(f"merge{level}", value, 2 * channels, channels)
    mask = graph.op("Sigmoid", graph.conv("mask", value, (8, 2), 1, bias=True))
    return graph.model("unet", (mask, (1, 2, 32, 32)))


def yolo(seed: int = 0) -> onnx.ModelProto:
    """Return backbone, neck and two heads; input `image` [1, 3, 64, 64].

    The first output [1, 4 + classes, boxes] has boxes as centre and size in pixels, and class
    scores; the second one the scores alone.
    """
    graph = OnnxGraph(seed)
    value = graph.input("image", FLOAT, 1, 3, 64, 64)
    value = _silu(graph, graph.conv_norm("stem", value, (3, 16), 3, stride=2))
    value = _silu(graph, graph.conv_norm("down0", value, (16, 16), 3, stride=2))
    fine = _c2f(
        graph, "c2f0", _silu(graph, graph.conv_norm("d1", value, (16, 32), 3, stride=2)), 32, 32
    )
    value = _silu(graph, graph.conv_norm("down2", fine, (32, 48), 3, stride=2))
    coarse = _sppf(graph, "sppf", _c2f(graph, "c2f1", value, 48, 48), 48)
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
    fine = _c2f(graph, "c2f2", graph.op("Concat", large, fine, axis=1), 80, 32)
    heads = [_yolo_head(graph, "head0", fine, 32, 8), _yolo_head(graph, "head1", coarse, 48, 4)]
    joined = graph.op("Concat", *heads, axis=2)
    boxes, scores = graph.op(
        "Split", joined, graph.constant([4 * _BINS, _CLASSES], np.int64), outputs=2, axis=1
    )
    scores = graph.op("Sigmoid", scores)
    result = graph.op("Concat", _decoded(graph, boxes), scores, axis=1)
    shapes = ((1, 4 + _CLASSES, _NUM_BOXES), (1, _CLASSES, _NUM_BOXES))
    return graph.model("yolo", (result, shapes[0]), (scores, shapes[1]))


_BINS, _CLASSES, _NUM_BOXES = 16, 5, 8 * 8 + 4 * 4


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


def _yolo_head(graph: OnnxGraph, name: str, value: str, channels: int, size: int) -> str:
    """Distances and classes of each cell, [1, 4 bins + classes, size^2]."""
    outputs = []
    for part, count in (("box", 4 * _BINS), ("class", _CLASSES)):
        inner = _silu(graph, graph.conv_norm(f"{name}.{part}", value, (channels, channels), 3))
        outputs.append(graph.conv(f"{name}.{part}.out", inner, (channels, count), 1, bias=True))
    joined = graph.op("Concat", *outputs, axis=1)
    shape = graph.constant([1, 4 * _BINS + _CLASSES, size * size], np.int64)
    result: str = graph.op("Reshape", joined, shape)
    return result


def _decoded(graph: OnnxGraph, boxes: str) -> str:
    """Expected distances to the four sides -> centre and size."""
    bins = graph.op("Reshape", boxes, graph.constant([1, 4, _BINS, _NUM_BOXES], np.int64))
    likely = graph.op("Softmax", graph.op("Transpose", bins, perm=[0, 2, 1, 3]), axis=1)
    steps = graph.initializer("steps", np.arange(_BINS, dtype=np.float32).reshape(1, _BINS, 1, 1))
    distances = graph.op("Conv", likely, steps, kernel_shape=[1, 1])
    distances = graph.op("Reshape", distances, graph.constant([1, 4, _NUM_BOXES], np.int64))
    low, high = graph.op("Split", distances, graph.constant([2, 2], np.int64), outputs=2, axis=1)
    cells = [np.stack(np.meshgrid(np.arange(n), np.arange(n)), -1).reshape(-1, 2) for n in (8, 4)]
    anchors = (np.concatenate(cells).T[None] + 0.5).astype(np.float32)
    begin = graph.op("Sub", graph.initializer("anchors", anchors), low)
    end = graph.op("Add", "anchors", high)
    centre = graph.op("Div", graph.op("Add", begin, end), graph.constant(2.0, np.float32))
    joined = graph.op("Concat", centre, graph.op("Sub", end, begin), axis=1)
    strides = np.repeat(np.array([8, 16], np.float32), [64, 16]).reshape(1, 1, -1)
    result: str = graph.op("Mul", joined, graph.initializer("strides", strides))
    return result
