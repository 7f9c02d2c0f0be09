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
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Protocol

import onnx

import heteroplace
from benchmarks.row_table import row_table
from benchmarks.run.comparison import widest_cpu
from benchmarks.run.numpy_rates import NumpyRates, decoder_work
from benchmarks.run.text_peers import (
    CAPACITY,
    LlamaCpp,
    Onnxruntime,
    OnnxruntimeGenai,
    OpenvinoGenai,
)
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from zoo.gguf_decoder import Weights
from zoo.models.catalogue import SMALLEST, matching_names
from zoo.smollm2 import chat_prompt, smollm2, smollm2_content, smollm2_tokenizer
from zoo.tiny_llama import TinyLlama

_PROMPTS = (64, 361, 512)
"""Tokens."""
_NEW_TOKENS = 32
_ROUNDS = 5
_LENGTHS = {"token": 1, "short": 64, "middle": 128, "long": 256}
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
        in_few_bits = model
        if weights != "int4":
            in_few_bits = smollm2(weights="int4", content=content, has_all_rows=False)
        for row in NumpyRates.measured().rows(decoder_work(in_few_bits), prompts):
            yield {"name": name, **row}
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
        programs["onnxruntime"] = Onnxruntime
    others: dict[str, tuple[str, Make, tuple[str, ...]]] = {
        "llama.cpp": ("llama_cpp", LlamaCpp, ("int4",)),
        "openvino-genai": ("openvino_genai", OpenvinoGenai, ("int4",)),
        "onnxruntime-genai": ("onnxruntime_genai", OnnxruntimeGenai, ("float32",)),
    }
    for program, (module, make, forms) in others.items():
        if name in forms and importlib.util.find_spec(module) is not None:
            programs[program] = make
    return programs


class _Ours:
    precision = "float32"
    capacity = CAPACITY
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


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text."""
    columns = {"name": "weights", "program": "program"}
    columns |= {f"first_{size}_ms": f"first token after {size}" for size in _PROMPTS}
    columns |= {f"token_{size}_ms": f"others after {size}" for size in _PROMPTS}
    return row_table(rows, {**columns, "same_tokens": "same tokens"}, num_names=2)
