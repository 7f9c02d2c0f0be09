"""TfIdfVectorizer of whole numbers ==> comparisons with the n-grams of its pool, and sums.

ONNX operator specification, TfIdfVectorizer.
"""

from __future__ import annotations

import numpy as np
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import OnnxCall, check_table, const, shape_of


def tf_idf_vectorizer(call: OnnxCall) -> relay.Expr:
    """Convert TfIdfVectorizer: [C] or [N, C] -> how often each n-gram occurs, by its column."""
    if "pool_int64s" not in call.attributes:
        raise FrontendError("n-grams of strings are not supported, only pool_int64s")
    mode = call.text("mode", "TF")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise FrontendError(f"mode '{mode}' is not known")
    shape, data = call.shape(0), call.operand(0)
    batch, length = (1, *shape) if len(shape) == 1 else shape
    words = relay.reshape(relay.cast(data, "int64"), [batch, length])
    columns = np.asarray(call.attributes["ngram_indexes"])
    first, width = int(call.number("min_gram_length", 1)), int(columns.max()) + 1
    total, past = const(np.zeros((batch, width)), "float32"), 0
    for size, grams in _grams(call):
        used, past = slice(past, past + len(grams)), past + len(grams)
        if size < first or not len(grams):
            continue
        counts = _counts(words, grams, int(call.number("max_skip_count", 0)))
        places = np.zeros((width, len(grams)))
        places[columns[used], np.arange(len(grams))] = 1
        total = relay.add(total, relay.nn.dense(counts, const(places, "float32")))
    if mode == "IDF":
        total = relay.minimum(total, const(1, "float32"))
    if mode != "TF" and "weights" in call.attributes:
        total = relay.multiply(total, const(call.attributes["weights"][:width], "float32"))
    return relay.reshape(total, [width] if len(shape) == 1 else [batch, width])


def _grams(call: OnnxCall) -> list[tuple[int, np.ndarray]]:
    """Return the n-grams of each length, [count, length], up to the longest that counts."""
    pool = np.asarray(call.attributes["pool_int64s"])
    starts = [*call.attributes["ngram_counts"], len(pool)]
    last = int(call.number("max_gram_length", 1))
    return [
        (size, pool[starts[size - 1] : starts[size]].reshape(-1, size))
        for size in range(1, min(last, len(starts) - 1) + 1)
    ]


def _counts(words: relay.Expr, grams: np.ndarray, max_skip: int) -> relay.Expr:
    """Return how often n-grams occur, [batch, count], with up to so many words left out."""
    (count, size), (batch, length) = grams.shape, shape_of(words)
    total = const(np.zeros((batch, count)), "float32")
    for skip in range(max_skip + 1 if size > 1 else 1):
        step = skip + 1
        num_starts = length - step * (size - 1)
        if num_starts <= 0:
            break
        check_table(num_starts * grams.size, "the words of its n-grams")
        index = np.arange(num_starts)[:, None] + step * np.arange(size)
        windows = relay.reshape(
            relay.take(words, const(index, "int64"), axis=1), [batch, num_starts, 1, size]
        )
        is_same = relay.all(relay.equal(windows, const(grams, "int64")), axis=[3])
        total = relay.add(total, relay.sum(relay.cast(is_same, "float32"), axis=[1]))
    return total
