"""Small decoders with a cache for tests, in numpy and in ONNX, and a tokenizer of single bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

CAPACITY, VOCABULARY = 24, 260
"""Bytes, and four special tokens."""
END, CHAT_START, CHAT_END = "<|end|>", "<|im_start|>", "<|im_end|>"
_HEADS, _SIZE = 2, 16
_WIDTH = _HEADS * _SIZE


class NumpyDecoder:
    """A decoder whose logits depend on all tokens before, with their places; it notes its calls."""

    def __init__(self, *lengths: int, capacity: int = CAPACITY, has_all_rows: bool = True) -> None:
        rng = np.random.default_rng(5)
        self.lengths, self.capacity, self.vocabulary = lengths, capacity, 32
        self.has_all_rows = has_all_rows
        self.costs = {length: 4.0 + length for length in lengths}
        self.tokens: list[int] = []
        self.calls: list[tuple[int, int]] = []
        """Where each call began, and how many tokens it took."""
        self._rows = np.full((capacity, 8), np.nan)
        self._embeddings = rng.standard_normal((32, 8))
        self._places = rng.uniform(0.5, 2, (capacity, 8))
        self._head = rng.standard_normal((8, 32))

    def run(self, length: int, inputs: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[Any]:
        """Write rows of the cache, and return logits."""
        ids, mask, places = (
            inputs[name][0] for name in ("input_ids", "attention_mask", "position_ids")
        )
        assert length in self.lengths
        assert len(ids) == len(places) == length
        start = int(mask.sum()) - length
        assert mask[: start + length].all()
        assert places.tolist() == list(range(start, start + length))
        self.calls.append((start, length))
        self._rows[places] = self._embeddings[ids] * self._places[places]
        sums = np.cumsum(self._rows, axis=0)[places]
        logits = (np.tanh(sums) @ self._head)[None]
        return logits if self.has_all_rows else logits[:, -1:]


def onnx_decoder(
    length: int | str,
    *,
    has_all_rows: bool = True,
    capacity: int = CAPACITY,
    has_free_sizes: bool = False,
) -> onnx.ModelProto:
    """One layer of grouped attention with rotary places, as exporters of onnxruntime write it.

    `has_free_sizes`: past and mask have the names of sizes, and `capacity` is the greatest.
    """
    rng = np.random.default_rng(7)
    angles = np.outer(np.arange(capacity), 10000.0 ** (-np.arange(_SIZE // 2) / (_SIZE // 2)))

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    weights = {
        "embeddings": normal(VOCABULARY, _WIDTH),
        "queries": normal(_WIDTH, _WIDTH) / 4,
        "keys": normal(_WIDTH, _SIZE) / 4,
        "values": normal(_WIDTH, _SIZE),
        "back": normal(_WIDTH, _WIDTH),
        "head": normal(_WIDTH, VOCABULARY),
        "cosines": np.cos(angles).astype(np.float32),
        "sines": np.sin(angles).astype(np.float32),
        "axis": np.array([1]),
        "one": np.array(1, np.int32),
    }
    if not has_all_rows:
        weights |= {"first": np.array([-1]), "end": np.array([2**40])}
    attention = "q k v past_key_values.0.key past_key_values.0.value ends whole cosines sines"
    nodes = [
        _node("Gather", "embeddings input_ids", "x"),
        *(_node("MatMul", f"x {name}", name[0]) for name in ("queries", "keys", "values")),
        _node("ReduceSum", "attention_mask axis", "count", keepdims=1),
        _node("Cast", "count", "count32", to=TensorProto.INT32),
        _node("Sub", "count32 one", "ends"),
        _node("Shape", "attention_mask", "shape"),
        _node("Gather", "shape axis", "whole64"),
        _node("Cast", "whole64", "whole", to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention",
            attention.split(),
            ["attended", "present.0.key", "present.0.value"],
            domain="com.microsoft",
            num_heads=_HEADS,
            kv_num_heads=1,
            do_rotary=1,
        ),
        _node("MatMul", "attended back", "moved"),
        _node("Add", "x moved", "y"),
        _node("Slice", "y first end axis", "last"),
        _node("MatMul", f"{'y' if has_all_rows else 'last'} head", "logits"),
    ]
    if has_all_rows:
        nodes = [each for each in nodes if each.op_type != "Slice"]
    past_size: int | str = "past_sequence_length" if has_free_sizes else capacity
    total: int | str = "total_sequence_length" if has_free_sizes else capacity
    past: list[int | str] = [1, 1, past_size, _SIZE]
    inputs: dict[str, list[int | str]] = {"input_ids": [1, length], "attention_mask": [1, total]}
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            *(_value(name, TensorProto.INT64, shape) for name, shape in inputs.items()),
            *(_value(f"past_key_values.0.{kind}", 1, past) for kind in ("key", "value")),
        ],
        [
            _value("logits", 1, [1, length if has_all_rows else 1, VOCABULARY]),
            *(_value(f"present.0.{kind}", 1, past) for kind in ("key", "value")),
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], **attributes)


def _value(name: str, dtype: int, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def greedy_tokens(prompt: list[int], count: int) -> list[int]:
    """What onnxruntime writes after a prompt, token by token."""
    session = onnxruntime.InferenceSession(onnx_decoder(1).SerializeToString())
    key = value = np.zeros((1, 1, CAPACITY, _SIZE), np.float32)
    tokens = list(prompt)
    for past in range(len(prompt) + count - 1):
        mask = (np.arange(CAPACITY) <= past).astype(np.int64)[None]
        logits, key, value = session.run(
            None,
            {
                "input_ids": np.array([[tokens[past]]]),
                "attention_mask": mask,
                "past_key_values.0.key": key,
                "past_key_values.0.value": value,
            },
        )
        if past >= len(prompt) - 1:
            tokens.append(int(logits[0, 0].argmax()))
    return tokens[len(prompt) :]


def byte_tokenizer(*, has_chat: bool = True) -> str:
    """The `tokenizer.json` of a tokenizer whose tokens 0 to 255 are bytes in ByteLevel's order."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, *((CHAT_START, CHAT_END) if has_chat else ())])
    text: str = tokenizer.to_str()
    assert json.loads(text)["model"]
    return text
