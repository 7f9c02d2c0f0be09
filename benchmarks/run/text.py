"""`run --text`: SmolLM2-135M-Instruct writes text, beside llama.cpp and three other runtimes.

All run on the same cores, in turns, each at its default settings. A turn reads a prompt and writes
one token, and does so again with more tokens. The first time is that to the first token, and the
difference is that of the others.

The weights are those of the published file: 4 bits (Q4_1) in all layers, 8 in the embedding. In
float32 they are the same numbers, dequantised. onnxruntime runs these alone: with the published
form, whose zero points are floats, its kernel takes a second for each token. Every program chooses
the likeliest token.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import onnx
import onnxruntime

import heteroplace
from benchmarks.row_table import row_table
from benchmarks.run.comparison import widest_cpu
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from zoo.gguf_decoder import Weights
from zoo.models.catalogue import SMALLEST, matching_names
from zoo.smollm2 import chat_prompt, smollm2, smollm2_content, smollm2_tokenizer
from zoo.tiny_llama import TinyLlama

_CAPACITY = 768
_PROMPTS = (64, 361, 512)
"""Tokens."""
_NEW_TOKENS = 32
_ROUNDS = 5
_LENGTHS = {"token": 1, "short": 64, "long": 256}
"""Tokens of a call, by the name of the entry."""
_QUESTIONS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain why the sky is blue.",
    "List three uses of a paper clip.",
    "Who wrote Romeo and Juliet?",
    "How do I boil an egg?",
    "Name the planets of the solar system.",
    "What is seven times eight?",
    "Describe a sunny day in two sentences.",
    "Give me a recipe for pancakes.",
    "What does a compiler do?",
    "Translate 'good morning' into Spanish.",
    "Why do leaves change colour in autumn?",
    "Tell me a joke about computers.",
    "What is the difference between a list and a tuple in Python?",
    "Write an e-mail that asks for a day off.",
    "How far is the moon?",
    "What is photosynthesis?",
    "Suggest a name for a small bakery.",
    "Summarise the story of Cinderella.",
)
_AGREED_TOKENS = 128


class Writer(Protocol):
    """A program that writes text."""

    def write(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return the tokens after a prompt, from an empty cache."""

    def close(self) -> None:
        """Give up its memory."""


Make = Callable[[onnx.ModelProto, bytes, Path], Writer]


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the forms of weights whose name matches the regular expression `only`."""
    for name in matching_names(only, ("int4", "float32")):
        yield from _rows(name, prefixed(say, name))


def _rows(name: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure all programs with one form of weights; a row for each, times in ms."""
    prompts: Sequence[int] = _PROMPTS
    count, rounds = _NEW_TOKENS, _ROUNDS
    if name == SMALLEST:
        prompts, count, rounds = (8,), 2, 1
        content, ids = TinyLlama.random().content(), list(range(2, 20))
    else:
        say("downloading")
        content = smollm2_content()
        ids = _long_prompt(content)
    weights: Weights = "float32" if name == "float32" else "int4"
    model = smollm2(weights=weights, content=content, has_all_rows=False)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        writers: dict[str, Writer] = {}
        for program, make in _programs(name).items():
            say(f"loading {program}")
            writers[program] = make(model, content, folder)
            stack.callback(writers[program].close)
        say("measuring")
        times = _measured(writers, ids, prompts, count, rounds)
        agreed = _agreement(writers, content, say) if name == "float32" else {}
        for program in writers:
            yield {
                "name": name,
                "program": program,
                **{
                    f"first_{size}_ms": round(1e3 * median(times[program, size][0]), 2)
                    for size in prompts
                },
                **{
                    f"token_{size}_ms": round(1e3 * median(times[program, size][1]), 3)
                    for size in prompts
                },
                "same_tokens": agreed.get(program),
            }


def _measured(
    writers: dict[str, Writer], ids: list[int], sizes: Sequence[int], count: int, rounds: int
) -> dict[tuple[str, int], tuple[list[float], list[float]]]:
    """Time all programs in turns: seconds to the first token, and of each of `count` others.

    No two calls of a program read the same prompt, as some keep what they have read.
    """
    times: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
    for number in range(rounds + 1):
        for size in sizes:
            for name, writer in writers.items():
                seconds = []
                for is_long in (False, True):
                    start = 2 * number + is_long
                    begin = time.perf_counter()
                    writer.write(ids[start : start + size], 1 + is_long * count)
                    seconds.append(time.perf_counter() - begin)
                first, others = times.setdefault((name, size), ([], []))
                if number:  # the first round warms up
                    first.append(seconds[0])
                    others.append((seconds[1] - seconds[0]) / count)
    return times


def _agreement(
    writers: dict[str, Writer], content: bytes, say: Callable[[str], None]
) -> dict[str, str]:
    """How many tokens after each question are those that onnxruntime writes."""
    say("comparing tokens")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(smollm2_tokenizer(content))
    same = total = 0
    for question in _QUESTIONS:
        ids = tokenizer.encode(chat_prompt(question), add_special_tokens=False).ids
        ours, theirs = (
            writers[name].write(ids, _AGREED_TOKENS) for name in ("ours", "onnxruntime")
        )
        same += sum(a == b for a, b in zip(ours, theirs, strict=True))
        total += len(theirs)
    return {"ours": f"{same} of {total}"}


def _long_prompt(content: bytes) -> list[int]:
    """Tokens of which prompts are parts."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(smollm2_tokenizer(content))
    text = chat_prompt(" ".join(_QUESTIONS * 4))
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _programs(name: str) -> dict[str, Make]:
    """The programs that are installed and take the form of weights."""
    if name == SMALLEST:
        return {"ours": _OursSmall}
    programs: dict[str, Make] = {"ours": _Ours}
    if name == "int4":
        programs["ours, int8"] = _OursInt8
    if name == "float32":
        programs["onnxruntime"] = _Onnxruntime
    others: dict[str, tuple[str, Make, tuple[str, ...]]] = {
        "llama.cpp": ("llama_cpp", _LlamaCpp, ("int4",)),
        "openvino-genai": ("openvino_genai", _OpenvinoGenai, ("int4",)),
        "onnxruntime-genai": ("onnxruntime_genai", _OnnxruntimeGenai, ("float32",)),
    }
    for program, (module, make, forms) in others.items():
        if name in forms and importlib.util.find_spec(module) is not None:
            programs[program] = make
    return programs


class _Ours:
    precision = "float32"
    capacity = _CAPACITY
    lengths: Mapping[str, int] = _LENGTHS

    def __init__(self, model: onnx.ModelProto, content: bytes, folder: Path) -> None:
        executable = heteroplace.compile(
            model,
            widest_cpu(),
            sizes={
                "batch_size": 1,
                "past_sequence_length": self.capacity,
                "total_sequence_length": self.capacity,
            },
            entries={name: {"sequence_length": size} for name, size in self.lengths.items()},
            state="auto",
            verify="off",
            precision=self.precision,
        )
        self._executor = Executor(executable)
        self._session = self._executor.session()

    def write(self, prompt: Sequence[int], count: int) -> list[int]:
        self._session.reset()
        return list(self._session.generate(prompt, max_new_tokens=count))

    def close(self) -> None:
        self._executor.close()


class _OursInt8(_Ours):
    precision = "int8"


class _OursSmall(_Ours):
    capacity = 32
    lengths: Mapping[str, int] = MappingProxyType({"token": 1, "short": 8})


class _Onnxruntime:
    """Keys and values go in and out with every call."""

    def __init__(self, model: onnx.ModelProto, content: bytes, folder: Path) -> None:
        path = folder / "onnxruntime.onnx"
        onnx.save(model, path)
        self._session = onnxruntime.InferenceSession(str(path))
        self._past = [
            each.name for each in self._session.get_inputs() if each.name.startswith("past")
        ]
        self._size = [each.shape for each in self._session.get_inputs()][-1]

    def write(self, prompt: Sequence[int], count: int) -> list[int]:
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
        del self._session


class _LlamaCpp:
    def __init__(self, model: onnx.ModelProto, content: bytes, folder: Path) -> None:
        import llama_cpp

        path = folder / "model.gguf"
        path.write_bytes(content)
        threads = len(widest_cpu().devices[0].cores)
        self._model = llama_cpp.Llama(
            str(path),
            n_ctx=_CAPACITY,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def write(self, prompt: Sequence[int], count: int) -> list[int]:
        self._model.n_tokens = 0
        new, tokens = list(prompt), []
        for _ in range(count):
            self._model.eval(new)
            new = [int(self._model.sample(temp=0.0))]
            tokens += new
        return tokens

    def close(self) -> None:
        self._model.close()


class _OpenvinoGenai:
    def __init__(self, model: onnx.ModelProto, content: bytes, folder: Path) -> None:
        import openvino_genai
        from openvino import Tensor

        path = folder / "openvino.gguf"
        path.write_bytes(content)
        threads = len(widest_cpu().devices[0].cores)
        self._tensor, self._genai = Tensor, openvino_genai
        self._pipeline = openvino_genai.LLMPipeline(str(path), "CPU", INFERENCE_NUM_THREADS=threads)

    def write(self, prompt: Sequence[int], count: int) -> list[int]:
        options = self._genai.GenerationConfig()
        options.max_new_tokens = count
        options.ignore_eos, options.do_sample = True, False
        inputs = self._genai.TokenizedInputs(
            self._tensor(np.array([prompt], "int64")),
            self._tensor(np.ones((1, len(prompt)), "int64")),
        )
        return list(self._pipeline.generate(inputs, options).tokens[0])

    def close(self) -> None:
        del self._pipeline


class _OnnxruntimeGenai:
    def __init__(self, model: onnx.ModelProto, content: bytes, folder: Path) -> None:
        import onnxruntime_genai

        own = folder / "genai"
        own.mkdir()
        onnx.save(model, own / "model.onnx")
        (own / "genai_config.json").write_text(json.dumps(_genai_config(model)))
        self._genai = onnxruntime_genai
        self._model = onnxruntime_genai.Model(str(own))

    def write(self, prompt: Sequence[int], count: int) -> list[int]:
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


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text."""
    columns = {"name": "weights", "program": "program"}
    columns |= {f"first_{size}_ms": f"first token after {size}" for size in _PROMPTS}
    columns |= {f"token_{size}_ms": f"others after {size}" for size in _PROMPTS}
    return row_table(rows, {**columns, "same_tokens": "same tokens"}, num_names=2)
