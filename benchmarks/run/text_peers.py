"""Other programs that write text: a model and its file -> tokens after a prompt.

Each of them has as many threads as ours, and else its default settings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.run.comparison import widest_cpu

CAPACITY = 768
"""Tokens that a cache has room for."""


class Onnxruntime:
    """onnxruntime; keys and values go in and out with every call."""

    def __init__(self, model: onnx.ModelProto, content: bytes, folder: Path) -> None:
        path = folder / "onnxruntime.onnx"
        onnx.save(model, path)
        self._session = onnxruntime.InferenceSession(str(path))
        self._past = [
            each.name for each in self._session.get_inputs() if each.name.startswith("past")
        ]
        self._size = [each.shape for each in self._session.get_inputs()][-1]

    def write(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return so many tokens after a prompt."""
        _, heads, _, width = self._size
        past = {name: np.zeros((1, heads, 0, width), "float32") for name in self._past}
        tokens, new = list(prompt), list(prompt)
        for _ in range(count):
            inputs = {
                "input_ids": np.array([new], "int64"),
                "attention_mask": np.ones((1, len(tokens)), "int64"),
            }
            logits, *present = self._session.run(None, {**inputs, **past})
            past = dict(zip(self._past, present, strict=True))
            new = [int(logits[0, -1].argmax())]
            tokens += new
        return tokens[len(prompt) :]

    def close(self) -> None:
        """Free the model."""
        del self._session


class LlamaCpp:
    """llama.cpp, by its package for Python."""

    def __init__(self, model: onnx.ModelProto, content: bytes, folder: Path) -> None:
        import llama_cpp

        path = folder / "model.gguf"
        path.write_bytes(content)
        threads = len(widest_cpu().devices[0].cores)
        self._model = llama_cpp.Llama(
            str(path),
            n_ctx=CAPACITY,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def write(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return so many tokens after a prompt."""
        self._model.n_tokens = 0
        new, tokens = list(prompt), []
        for _ in range(count):
            self._model.eval(new)
            new = [int(self._model.sample(temp=0.0))]
            tokens += new
        return tokens

    def close(self) -> None:
        """Free the model."""
        self._model.close()


class OpenvinoGenai:
    """openvino-genai."""

    def __init__(self, model: onnx.ModelProto, content: bytes, folder: Path) -> None:
        import openvino_genai
        from openvino import Tensor

        path = folder / "openvino.gguf"
        path.write_bytes(content)
        threads = len(widest_cpu().devices[0].cores)
        self._tensor, self._genai = Tensor, openvino_genai
        self._pipeline = openvino_genai.LLMPipeline(str(path), "CPU", INFERENCE_NUM_THREADS=threads)

    def write(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return so many tokens after a prompt."""
        options = self._genai.GenerationConfig()
        options.max_new_tokens = count
        options.ignore_eos, options.do_sample = True, False
        inputs = self._genai.TokenizedInputs(
            self._tensor(np.array([prompt], "int64")),
            self._tensor(np.ones((1, len(prompt)), "int64")),
        )
        return list(self._pipeline.generate(inputs, options).tokens[0])

    def close(self) -> None:
        """Free the model."""
        del self._pipeline


class OnnxruntimeGenai:
    """onnxruntime-genai."""

    def __init__(self, model: onnx.ModelProto, content: bytes, folder: Path) -> None:
        import onnxruntime_genai

        own = folder / "genai"
        own.mkdir()
        onnx.save(model, own / "model.onnx")
        (own / "genai_config.json").write_text(json.dumps(_genai_config(model)))
        self._genai = onnxruntime_genai
        self._model = onnxruntime_genai.Model(str(own))

    def write(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return so many tokens after a prompt."""
        parameters = self._genai.GeneratorParams(self._model)
        parameters.set_search_options(
            max_length=len(prompt) + count, min_length=len(prompt) + count, do_sample=False
        )
        generator = self._genai.Generator(self._model, parameters)
        generator.append_tokens(np.array([prompt], "int32"))
        for _ in range(count):
            generator.generate_next_token()
        return list(generator.get_sequence(0)[len(prompt) :])

    def close(self) -> None:
        """Free the model."""
        del self._model


def _genai_config(model: onnx.ModelProto) -> dict[str, Any]:
    """What onnxruntime-genai asks of a model beside its file."""
    (logits,) = (each for each in model.graph.output if each.name == "logits")
    layers = sum(each.name.endswith(".key") for each in model.graph.input)
    (past,) = (each for each in model.graph.input if each.name == "past_key_values.0.key")
    sizes = [dim.dim_value for dim in past.type.tensor_type.shape.dim]
    (attention, *_) = (node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    (heads,) = (each.i for each in attention.attribute if each.name == "num_heads")
    return {
        "model": {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "context_length": 8192,
            "type": "llama",
            "vocab_size": logits.type.tensor_type.shape.dim[2].dim_value,
            "decoder": {
                "session_options": {"provider_options": []},
                "filename": "model.onnx",
                "head_size": sizes[3],
                "hidden_size": heads * sizes[3],
                "num_attention_heads": heads,
                "num_key_value_heads": sizes[1],
                "num_hidden_layers": layers,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {"past_present_share_buffer": True, "max_length": 8192},
    }
