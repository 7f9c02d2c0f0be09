"""Transformers as ONNX models, node by node as exporters write them: BERT and GPT-2 shapes.

- `bert_onnx`: the encoder of "BERT: Pre-training of Deep Bidirectional Transformers" (section 3),
  with the forms of the older exporters: layer norm in single ops, GELU by the error function,
  target shapes of reshapes as constants, an attention mask computed from an input.
- `gpt_onnx`: the decoder of "Language Models are Unsupervised Multitask Learners" (section 2.3),
  with the forms of the newer ones: LayerNormalization, GELU by tanh, shape arithmetic in front of
  every reshape, a baked causal mask.

Weights are seeded random numbers; or inputs, so that the graph of a model of any size takes a few
MB.
"""

from __future__ import annotations

import numpy as np
import onnx

from heteroplace.errors import GraphError
from zoo.models.onnx_graph import FLOAT, INT64, OnnxGraph

_MASKED = -10000.0
"""What BERT adds to a score that must not count."""


def bert_onnx(
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    tokens: int = 128,
    vocabulary: int = 30522,
    seed: int | None = 0,
) -> onnx.ModelProto:
    """Return the ONNX graph (opset 17) of a BERT encoder with its pooler.

    Parameters
    ----------
    layers, hidden, heads
        Number of blocks, width, and attention heads; `heads` divides `hidden`.
    tokens
        Length of the sequence.
    vocabulary
        Number of tokens known.
    seed
        Of the weights; None: they are inputs.

    Returns
    -------
    A model of inputs `ids` (below `vocabulary`), `kinds` and `mask` (0 or 1), all int64
    [1, tokens]; its outputs are the last hidden state [1, tokens, hidden] and the pooled one
    [1, hidden].

    Raises
    ------
    GraphError
        `heads` does not divide `hidden`.
    """
    _check_heads(hidden, heads)
    graph = OnnxGraph(seed)
    ids, kinds, mask = (graph.input(name, INT64, 1, tokens) for name in ("ids", "kinds", "mask"))
    value = graph.op("Gather", graph.weight("embeddings.word", vocabulary, hidden), ids, axis=0)
    kind = graph.op("Gather", graph.weight("embeddings.kind", 2, hidden), kinds, axis=0)
    value = graph.op("Add", value, kind)
    positions = graph.constant([range(tokens)], np.int64)
    place = graph.op("Gather", graph.weight("embeddings.position", tokens, hidden), positions)
    value = graph.op("Add", value, place)
    value = graph.single_ops_layer_norm("embeddings.norm", value, hidden)
    wide = graph.op("Unsqueeze", mask, graph.constant([1, 2], np.int64))
    wide = graph.op("Cast", wide, to=FLOAT)
    absent = graph.op("Sub", graph.constant(1.0, np.float32), wide)
    bias = graph.op("Mul", absent, graph.constant(_MASKED, np.float32))
    for layer in range(layers):
        name = f"layer.{layer}"
        attended = _bert_attention(graph, name, value, bias, hidden, heads, tokens)
        value = graph.op("Add", attended, value)
        value = graph.single_ops_layer_norm(f"{name}.attention.norm", value, hidden)
        inner = graph.gelu(graph.linear(f"{name}.up", value, hidden, 4 * hidden))
        inner = graph.linear(f"{name}.down", inner, 4 * hidden, hidden)
        value = graph.op("Add", inner, value)
        value = graph.single_ops_layer_norm(f"{name}.norm", value, hidden)
    first = graph.op("Gather", value, graph.constant(0, np.int64), axis=1)
    weight, offset = graph.weight("pooler.weight", hidden, hidden), graph.weight("pooler.b", hidden)
    pooled = graph.op("Tanh", graph.op("Gemm", first, weight, offset, transB=1))
    return graph.model("bert", (value, (1, tokens, hidden)), (pooled, (1, hidden)))


def _bert_attention(
    graph: OnnxGraph, name: str, value: str, bias: str, hidden: int, heads: int, tokens: int
) -> str:
    """Self-attention with three projections; all target shapes are constants."""
    split = graph.constant([1, tokens, heads, hidden // heads], np.int64)
    orders = {"query": [0, 2, 1, 3], "key": [0, 2, 3, 1], "value": [0, 2, 1, 3]}
    parts = []
    for part, order in orders.items():
        projected = graph.linear(f"{name}.attention.{part}", value, hidden, hidden)
        parts.append(graph.op("Transpose", graph.op("Reshape", projected, split), perm=order))
    query, key, content = parts
    scores = graph.op("MatMul", query, key)
    scores = graph.op("Div", scores, graph.constant((hidden // heads) ** 0.5, np.float32))
    weights = graph.op("Softmax", graph.op("Add", scores, bias), axis=-1)
    mixed = graph.op("Transpose", graph.op("MatMul", weights, content), perm=[0, 2, 1, 3])
    joined = graph.op("Reshape", mixed, graph.constant([1, tokens, hidden], np.int64))
    return graph.linear(f"{name}.attention.output", joined, hidden, hidden)


def gpt_onnx(
    layers: int = 24,
    hidden: int = 1024,
    heads: int = 16,
    tokens: int = 128,
    vocabulary: int = 50257,
    seed: int | None = None,
) -> onnx.ModelProto:
    """Return the ONNX graph (opset 17) of a GPT decoder.

    Parameters
    ----------
    layers, hidden, heads, tokens, vocabulary, seed
        As of `bert_onnx`.

    Returns
    -------
    A model of about 40 nodes a layer (constants not counted). Its first input is `ids`, int64
    [1, tokens]; its output are the logits [1, tokens, vocabulary].

    Raises
    ------
    GraphError
        `heads` does not divide `hidden`.
    """
    _check_heads(hidden, heads)
    graph = OnnxGraph(seed)
    ids = graph.input("ids", INT64, 1, tokens)
    embedded = graph.op("Gather", graph.weight("wte", vocabulary, hidden), ids, axis=0)
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
    return graph.model("gpt", (logits, (1, tokens, vocabulary)))


def _attention(
    graph: OnnxGraph, name: str, value: str, hidden: int, heads: int, tokens: int
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


def _gelu(graph: OnnxGraph, value: str) -> str:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), op by op."""
    cube = graph.op("Pow", value, graph.constant(3.0, np.float32))
    inner = graph.op("Add", value, graph.op("Mul", graph.constant(0.044715, np.float32), cube))
    inner = graph.op("Mul", graph.constant((2 / np.pi) ** 0.5, np.float32), inner)
    gate = graph.op("Add", graph.constant(1.0, np.float32), graph.op("Tanh", inner))
    half = graph.op("Mul", value, graph.constant(0.5, np.float32))
    result: str = graph.op("Mul", half, gate)
    return result


def _check_heads(hidden: int, heads: int) -> None:
    if hidden % heads:
        raise GraphError(f"a width of {hidden} cannot be split into {heads} heads of equal size")
