"""A random Llama of two layers -> its GGUF file as llama.cpp writes it, and its logits by numpy."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

HIDDEN, INNER, HEADS, SHARED, LAYERS, CONTEXT = 64, 96, 4, 2, 2, 64
SIZE = HIDDEN // HEADS
BASE, EPSILON = 500.0, 1e-5
_LETTERS = [chr(code) for code in (*range(33, 127), 0x120)]
_MERGES = ["h e", "Ġ h", "Ġ t", "l l", "he ll"]
TOKENS = ["<|endoftext|>", "<|im_end|>", *_LETTERS, *(pair.replace(" ", "") for pair in _MERGES)]
_TYPES = gguf.GGMLQuantizationType


@dataclass(frozen=True)
class TinyLlama:
    """Weights in float32, as a file of these types has them; rows of heads in the order of Llama.

    Its own head has the type of `head`; None: the head is the embedding.
    """

    weights: dict[str, npt.NDArray[Any]]
    types: dict[str, Any]

    @classmethod
    def random(
        cls, matrix: str = "Q4_1", table: str = "Q8_0", head: str | None = None
    ) -> TinyLlama:
        """Return one with types of its matrices, its embedding and its head."""
        rng = np.random.default_rng(0)
        keys = SHARED * SIZE
        shapes = {"token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,)}
        if head is not None:
            shapes["output"] = (len(TOKENS), HIDDEN)
        for layer in range(LAYERS):
            of_layer = {
                "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,),
                "attn_q": (HIDDEN, HIDDEN), "attn_k": (keys, HIDDEN), "attn_v": (keys, HIDDEN),
                "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (INNER, HIDDEN),
                "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER),
            }  # fmt: skip
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
        weights, types = {}, {}
        for name, shape in shapes.items():
            kind = {"token_embd": table, "output": head}.get(name, matrix)
            types[name] = _TYPES.F32 if len(shape) == 1 else _TYPES[kind]
            values = rng.standard_normal(shape).astype("float32")
            values = values + 1 if len(shape) == 1 else values * shape[-1] ** -0.5
            weights[name] = gguf.dequantize(gguf.quantize(values, types[name]), types[name])
        return cls(weights, types)

    def content(self, architecture: str = "llama", **more: npt.NDArray[Any]) -> bytes:
        """Return the bytes of the file, with more tensors in float32."""
        with tempfile.TemporaryDirectory() as folder:
            return self._written(Path(folder) / "tiny.gguf", architecture, more)

    def _written(self, path: Path, architecture: str, more: dict[str, npt.NDArray[Any]]) -> bytes:
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(INNER)
        writer.add_block_count(LAYERS)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(SHARED)
        writer.add_layer_norm_rms_eps(EPSILON)
        writer.add_rope_dimension_count(SIZE)
        writer.add_rope_freq_base(BASE)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(TOKENS)
        writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
        writer.add_token_merges(_MERGES)
        heads = {"attn_q": HEADS, "attn_k": SHARED}
        for name, values in self.weights.items():
            rows = _as_llama_cpp(values, heads.get(name.rpartition(".")[2], 0))
            data = gguf.quantize(rows, self.types[name])
            writer.add_tensor(f"{name}.weight", data, raw_dtype=self.types[name])
        for name, values in more.items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()

    def logits(self, tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the logits of every token, [batch, length, vocabulary], in float64."""
        value = self._weight("token_embd")[tokens]
        for layer in range(LAYERS):
            name = f"blk.{layer}"
            value = value + self._attention(name, self._norm(f"{name}.attn_norm", value))
            normed = self._norm(f"{name}.ffn_norm", value)
            gate = normed @ self._weight(f"{name}.ffn_gate").T
            inner = gate / (1 + np.exp(-gate)) * (normed @ self._weight(f"{name}.ffn_up").T)
            value = value + inner @ self._weight(f"{name}.ffn_down").T
        head = "output" if "output" in self.weights else "token_embd"
        result: npt.NDArray[Any] = self._norm("output_norm", value) @ self._weight(head).T
        return result

    def _attention(self, name: str, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        batch, length, _ = value.shape
        queries, keys, values = (
            (value @ self._weight(f"{name}.attn_{part}").T)
            .reshape(batch, length, -1, SIZE)
            .swapaxes(1, 2)
            for part in "qkv"
        )
        keys, values = (
            np.repeat(data, HEADS // SHARED, axis=1) for data in (_rotated(keys), values)
        )
        scores = _rotated(queries) @ keys.swapaxes(2, 3) / SIZE**0.5
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares / shares.sum(-1, keepdims=True) @ values
        result: npt.NDArray[Any] = (
            mixed.swapaxes(1, 2).reshape(batch, length, HIDDEN)
            @ self._weight(f"{name}.attn_output").T
        )
        return result

    def _norm(self, name: str, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        size = np.sqrt((value**2).mean(-1, keepdims=True) + EPSILON)
        result: npt.NDArray[Any] = value / size * self._weight(name)
        return result

    def _weight(self, name: str) -> npt.NDArray[Any]:
        return self.weights[name].astype("float64")


def _rotated(data: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rotate the halves of heads, [batch, heads, length, size], as Llama in PyTorch does."""
    steps = BASE ** -(np.arange(SIZE // 2) * 2 / SIZE)
    angles = np.tile(np.outer(np.arange(data.shape[2]), steps), 2)
    first, second = np.split(data, 2, axis=-1)
    result: npt.NDArray[Any] = data * np.cos(angles) + np.concatenate(
        [-second, first], -1
    ) * np.sin(angles)
    return result


def _as_llama_cpp(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Order the rows of queries or keys as llama.cpp's converter does (`permute`)."""
    if not heads:
        return rows
    halves = rows.reshape(heads, 2, len(rows) // heads // 2, rows.shape[1])
    result: npt.NDArray[Any] = halves.swapaxes(1, 2).reshape(rows.shape)
    return result
