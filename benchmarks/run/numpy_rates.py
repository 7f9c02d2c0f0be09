"""A decoder and the rates of this machine, by numpy -> times of a prompt and of a token.

A token reads all weights from memory once. A prompt multiplies each of its tokens by all weights
but the head, which only the last token needs, and each token by those before it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx

_READ_BYTES = 2**28
"""For each core: more than caches hold."""
_PRODUCT = 2048
_REPEATS = 8
_BYTES_OF_32 = {4: 20, 8: 34}
"""Of 32 weights, by their bits, with scale and minimum: types Q4_1 and Q8_0 of GGUF files."""
_INT8_RATIO = 4
"""Products of bytes that one vector instruction does for each product of floats."""


class DecoderWork(NamedTuple):
    """What a decoder does."""

    weight_bytes: int
    """That a token reads, as the published file holds them: in 4 bits, and the head in 8."""
    weights: int
    """In products with each token."""
    head: int
    """In the product with the last one."""
    attention: int
    """Products for each pair of a token and one that it sees."""

    def num_ops(self, tokens: int) -> int:
        """Return the multiplications and additions of a prompt."""
        pairs = tokens * (tokens + 1) // 2
        return 2 * (self.weights * tokens + self.head + self.attention * pairs)


def decoder_work(model: onnx.ModelProto) -> DecoderWork:
    """Return the work of a model whose weights are of 4 or 8 bits."""
    (past,) = (each for each in model.graph.input if each.name == "past_key_values.0.key")
    head_size = int(past.type.tensor_type.shape.dim[3].dim_value)
    products, attention, read = [], 0, 0
    for node in model.graph.node:
        values = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == "MatMulNBits":
            products.append(values["K"] * values["N"])
            read += products[-1] * _BYTES_OF_32[values["bits"]] // 32
        if node.op_type == "GroupQueryAttention":
            attention += 2 * values["num_heads"] * head_size
    *others, head = products
    return DecoderWork(read, sum(others), head, attention)


@dataclass(frozen=True)
class NumpyRates:
    """What the cores of this machine reach together by numpy; other programs may be faster."""

    bytes_per_second: float
    """Read from memory."""
    flops_per_second: float
    """Of a product in float32, by numpy."""

    @classmethod
    def measured(cls) -> NumpyRates:
        """Measure both: the best of some repetitions."""
        threads = len(os.sched_getaffinity(0))
        parts = [np.ones(_READ_BYTES // 4, "float32") for _ in range(threads)]
        matrix = np.ones((_PRODUCT, _PRODUCT), "float32")
        with ThreadPoolExecutor(threads) as pool:
            read = _least_seconds(lambda: list(pool.map(np.max, parts)))
        product = _least_seconds(lambda: matrix @ matrix)
        return cls(threads * _READ_BYTES / read, 2 * _PRODUCT**3 / product)

    def rows(self, work: DecoderWork, prompts: Sequence[int]) -> Iterator[dict[str, object]]:
        """Return times in ms of products in float32 and in 8 bits, as rows of a table."""
        token = work.weight_bytes / self.bytes_per_second
        for program, ratio in (
            ("at numpy's rates, float32", 1),
            ("at numpy's rates, int8", _INT8_RATIO),
        ):
            row: dict[str, object] = {"program": program}
            for tokens in prompts:
                computing = work.num_ops(tokens) / (ratio * self.flops_per_second)
                row[f"first_{tokens}_ms"] = round(1e3 * max(computing, token), 2)
                row[f"token_{tokens}_ms"] = round(1e3 * token, 3)
            yield row


def _least_seconds(run: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)
