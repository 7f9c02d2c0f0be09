"""Encoders with attention, and a recurrent tagger, as ONNX models; small, of the real structure.

Sizes are arguments, but for the tagger's; those of the published networks are in `full_size.py`.

- `vit`: Dosovitskiy et al., "An Image is Worth 16x16 Words", section 3.1
- `swin`: Liu et al., "Swin Transformer", section 3: windows, shifted windows with their mask, the
  bias of relative positions, merging of patches
- `t5_encoder`: Raffel et al., "Exploring the Limits of Transfer Learning", section 2.1: root mean
  square norms, buckets of relative positions, no scaling of the scores
- `lstm_tagger`: Huang et al., "Bidirectional LSTM-CRF Models for Sequence Tagging", section 2.2,
  without the CRF
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from zoo.models.onnx_graph import FLOAT, INT64, OnnxGraph

VOCABULARY = 50
"""Token ids of `t5_encoder` and `lstm_tagger` are below it."""
_MASKED = -100.0


def _attention(
    graph: OnnxGraph,
    name: str,
    value: str,
    shape: tuple[int, int, int],
    heads: int,
    bias: str | None = None,
    scale: float | None = None,
) -> str:
    """Self-attention by one product for queries, keys and values.

    `shape`: rows, tokens, width; the bias is added to scores [rows, heads, tokens, tokens].
    """
    rows, tokens, width = shape
    depth = width // heads
    joined = graph.linear(f"{name}.qkv", value, width, 3 * width)
    split = graph.constant([rows, tokens, 3, heads, depth], np.int64)
    joined = graph.op("Transpose", graph.op("Reshape", joined, split), perm=[2, 0, 3, 1, 4])
    parts = graph.op("Split", joined, graph.constant([1, 1, 1], np.int64), outputs=3, axis=0)
    axis = graph.constant([0], np.int64)
    query, key, content = (graph.op("Squeeze", part, axis) for part in parts)
    query = graph.op(
        "Mul", query, graph.constant(depth**-0.5 if scale is None else scale, np.float32)
    )
    scores = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
    if bias is not None:
        scores = graph.op("Add", scores, bias)
    mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), content)
    mixed = graph.op("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = graph.op("Reshape", mixed, graph.constant([rows, tokens, width], np.int64))
    return graph.linear(f"{name}.out", mixed, width, width)


def _feed_forward(graph: OnnxGraph, name: str, value: str, width: int) -> str:
    inner = graph.gelu(graph.linear(f"{name}.up", value, width, 4 * width))
    return graph.linear(f"{name}.down", inner, 4 * width, width)


def vit(
    seed: int = 0,
    size: int = 32,
    patch: int = 8,
    width: int = 48,
    heads: int = 4,
    layers: int = 2,
    classes: int = 10,
) -> onnx.ModelProto:
    """Return blocks over patches and a class token; input `image` [1, 3, size, size]."""
    graph = OnnxGraph(seed)
    tokens = (size // patch) ** 2 + 1
    image = graph.input("image", FLOAT, 1, 3, size, size)
    value = graph.conv("patches", image, (3, width), patch, stride=patch, bias=True)
    value = graph.op("Reshape", value, graph.constant([1, width, tokens - 1], np.int64))
    value = graph.op("Transpose", value, perm=[0, 2, 1])
    value = graph.op("Concat", graph.weight("class", 1, 1, width, std=1.0), value, axis=1)
    value = graph.op("Add", value, graph.weight("positions", 1, tokens, width, std=1.0))
    for layer in range(layers):
        name = f"layer{layer}"
        normed = graph.layer_norm(f"{name}.norm1", value, width)
        mixed = _attention(graph, name, normed, (1, tokens, width), heads)
        value = graph.op("Add", value, mixed)
        normed = graph.layer_norm(f"{name}.norm2", value, width)
        value = graph.op("Add", value, _feed_forward(graph, name, normed, width))
    value = graph.layer_norm("norm", value, width)
    first = graph.op("Gather", value, graph.constant(0, np.int64), axis=1)
    return graph.model("vit", (graph.linear("head", first, width, classes), (1, classes)))


def swin(
    seed: int = 0,
    size: int = 32,
    window: int = 4,
    width: int = 24,
    heads: Sequence[int] = (3, 3),
    depths: Sequence[int] = (2, 2),
    classes: int = 10,
) -> onnx.ModelProto:
    """Return stages in which every second block is shifted; input `image` [1, 3, size, size]."""
    graph = OnnxGraph(seed)
    image = graph.input("image", FLOAT, 1, 3, size, size)
    value = graph.conv("patches", image, (3, width), 4, stride=4, bias=True)
    size //= 4
    value = graph.op("Reshape", value, graph.constant([1, width, size * size], np.int64))
    value = graph.op("Transpose", value, perm=[0, 2, 1])
    value = graph.layer_norm("patches.norm", value, width)
    for stage, (num_heads, depth) in enumerate(zip(heads, depths, strict=True)):
        if stage:
            value = _merged(graph, f"merge{stage - 1 if stage > 1 else ''}", value, size, width)
            size, width = size // 2, 2 * width
        for block in range(depth):
            shift = block % 2 * (window // 2)
            is_shifted = shift and size > window  # one window alone is never shifted
            pair = f"{block // 2}." if block > 1 else ""
            name = f"stage{stage}.{pair}{shift}"
            geometry = size, window, width, num_heads
            value = _swin_block(graph, name, value, geometry, shift if is_shifted else 0)
    value = graph.layer_norm("norm", value, width)
    pooled = graph.op("ReduceMean", value, axes=[1], keepdims=0)
    return graph.model("swin", (graph.linear("head", pooled, width, classes), (1, classes)))


def _swin_block(
    graph: OnnxGraph, name: str, value: str, geometry: tuple[int, int, int, int], shift: int
) -> str:
    """`geometry`: size of the map and of a window, width, heads."""
    size, window, width, heads = geometry
    tokens, across = window**2, size // window
    normed = graph.layer_norm(f"{name}.norm1", value, width)
    field = graph.op("Reshape", normed, graph.constant([1, size, size, width], np.int64))
    field = _rolled(graph, field, shift, size)
    cut = graph.constant([across, window, across, window, width], np.int64)
    windows = graph.op("Transpose", graph.op("Reshape", field, cut), perm=[0, 2, 1, 3, 4])
    windows = graph.op("Reshape", windows, graph.constant([across**2, tokens, width], np.int64))
    bias = _relative_bias(graph, name, window, heads)
    if shift:
        bias = graph.op("Add", bias, graph.constant(_shift_mask(size, window, shift), np.float32))
    mixed = _attention(graph, name, windows, (across**2, tokens, width), heads, bias)
    back = graph.constant([across, across, window, window, width], np.int64)
    field = graph.op("Transpose", graph.op("Reshape", mixed, back), perm=[0, 2, 1, 3, 4])
    field = graph.op("Reshape", field, graph.constant([1, size, size, width], np.int64))
    field = _rolled(graph, field, size - shift if shift else 0, size)
    field = graph.op("Reshape", field, graph.constant([1, size * size, width], np.int64))
    value = graph.op("Add", value, field)
    normed = graph.layer_norm(f"{name}.norm2", value, width)
    result: str = graph.op("Add", value, _feed_forward(graph, name, normed, width))
    return result


def _rolled(graph: OnnxGraph, value: str, shift: int, size: int) -> str:
    """The map moved cyclically up and to the left, by slices, as exporters write a roll."""
    if not shift:
        return value
    for axis in (1, 2):
        bounds = [graph.constant([at], np.int64) for at in (0, shift, size)]
        along = graph.constant([axis], np.int64)
        head = graph.op("Slice", value, bounds[0], bounds[1], along)
        tail = graph.op("Slice", value, bounds[1], bounds[2], along)
        value = graph.op("Concat", tail, head, axis=axis)
    return value


def _relative_bias(graph: OnnxGraph, name: str, window: int, heads: int) -> str:
    """A learned number for each head and difference of positions, [1, heads, tokens, tokens]."""
    span, tokens = 2 * window - 1, window**2
    at = np.stack(np.meshgrid(*[np.arange(window)] * 2, indexing="ij")).reshape(2, -1)
    apart = at[:, :, None] - at[:, None, :] + window - 1
    index = (apart[0] * span + apart[1]).reshape(-1)
    table = graph.weight(f"{name}.relative", span**2, heads, std=0.5)
    found = graph.op("Gather", table, graph.constant(index, np.int64), axis=0)
    found = graph.op("Reshape", found, graph.constant([tokens, tokens, heads], np.int64))
    found = graph.op("Transpose", found, perm=[2, 0, 1])
    result: str = graph.op("Unsqueeze", found, graph.constant([0], np.int64))
    return result


def _shift_mask(size: int, window: int, shift: int) -> np.ndarray:
    """What keeps apart the regions that a roll brought into one window."""
    region = np.zeros((size, size))
    bounds = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
    for row, rows in enumerate(bounds):
        for column, columns in enumerate(bounds):
            region[rows, columns] = 3 * row + column
    across = size // window
    windows = region.reshape(across, window, across, window).transpose(0, 2, 1, 3)
    windows = windows.reshape(across**2, -1)
    return np.where(windows[:, None, :] == windows[:, :, None], 0.0, _MASKED)[:, None]


def _merged(graph: OnnxGraph, name: str, value: str, size: int, width: int) -> str:
    """Each 2 x 2 patches joined, and their width halved."""
    field = graph.op("Reshape", value, graph.constant([1, size, size, width], np.int64))
    axes, steps = graph.constant([1, 2], np.int64), graph.constant([2, 2], np.int64)
    ends = graph.constant([size, size], np.int64)
    parts = [
        graph.op("Slice", field, graph.constant([row, column], np.int64), ends, axes, steps)
        for column in (0, 1)
        for row in (0, 1)
    ]
    joined = graph.op("Concat", *parts, axis=-1)
    flat = graph.constant([1, size * size // 4, 4 * width], np.int64)
    normed = graph.layer_norm(f"{name}.norm", graph.op("Reshape", joined, flat), 4 * width)
    weight = graph.weight(f"{name}.weight", 4 * width, 2 * width, std=0.1)
    result: str = graph.op("MatMul", normed, weight)
    return result


def t5_encoder(
    seed: int = 0,
    width: int = 32,
    heads: int = 4,
    tokens: int = 12,
    layers: int = 2,
    vocabulary: int = VOCABULARY,
) -> onnx.ModelProto:
    """Return blocks over `ids`, int64 [1, tokens], below `vocabulary`."""
    graph = OnnxGraph(seed)
    ids = graph.input("ids", INT64, 1, tokens)
    value = graph.op("Gather", graph.weight("embedding", vocabulary, width, std=1.0), ids, axis=0)
    at = np.arange(tokens)
    apart = at[None, :] - at[:, None]
    near = np.minimum(np.abs(apart), 8 + (np.log2(np.maximum(np.abs(apart), 1) / 8)).astype(int))
    bucket = graph.constant(16 * (apart > 0) + near, np.int64)
    bias = graph.op("Gather", graph.weight("relative", 32, heads, std=0.5), bucket, axis=0)
    bias = graph.op("Transpose", bias, perm=[2, 0, 1])
    bias = graph.op("Unsqueeze", bias, graph.constant([0], np.int64))
    for layer in range(layers):
        name = f"layer{layer}"
        normed = _rms_norm(graph, f"{name}.norm1", value, width)
        mixed = _attention(graph, name, normed, (1, tokens, width), heads, bias, scale=1.0)
        value = graph.op("Add", value, mixed)
        normed = _rms_norm(graph, f"{name}.norm2", value, width)
        inner = graph.op("MatMul", normed, graph.weight(f"{name}.wi", width, 4 * width, std=0.1))
        weight = graph.weight(f"{name}.wo", 4 * width, width, std=0.1)
        value = graph.op("Add", value, graph.op("MatMul", graph.op("Relu", inner), weight))
    return graph.model("t5", (_rms_norm(graph, "norm", value, width), (1, tokens, width)))


def _rms_norm(graph: OnnxGraph, name: str, value: str, width: int) -> str:
    squares = graph.op("Pow", value, graph.constant(2.0, np.float32))
    mean = graph.op("ReduceMean", squares, axes=[-1])
    root = graph.op("Sqrt", graph.op("Add", mean, graph.constant(1e-6, np.float32)))
    scaled = graph.op("Div", value, root)
    result: str = graph.op("Mul", graph.weight(f"{name}.weight", width, mean=1.0), scaled)
    return result


def lstm_tagger(seed: int = 0) -> onnx.ModelProto:
    """Return two bidirectional layers over `ids`, int64 [1, 8], below `VOCABULARY`."""
    graph = OnnxGraph(seed)
    width, tokens, tags = 16, 8, 7
    ids = graph.input("ids", INT64, 1, tokens)
    value = graph.op("Gather", graph.weight("embedding", VOCABULARY, width, std=1.0), ids, axis=0)
    value = graph.op("Transpose", value, perm=[1, 0, 2])
    for layer in range(2):
        num_in, name = width if layer == 0 else 2 * width, f"lstm{layer}"
        value, _, _ = graph.op(
            "LSTM",
            value,
            graph.weight(f"{name}.w", 2, 4 * width, num_in, std=0.3),
            graph.weight(f"{name}.r", 2, 4 * width, width, std=0.3),
            graph.weight(f"{name}.b", 2, 8 * width, std=0.1),
            outputs=3,
            hidden_size=width,
            direction="bidirectional",
        )
        value = graph.op("Transpose", value, perm=[0, 2, 1, 3])
        value = graph.op("Reshape", value, graph.constant([tokens, 1, 2 * width], np.int64))
    value = graph.op("Transpose", value, perm=[1, 0, 2])
    scores = graph.linear("tags", value, 2 * width, tags)
    result = graph.op("LogSoftmax", scores, axis=-1)
    return graph.model("lstm_tagger", (result, (1, tokens, tags)))
