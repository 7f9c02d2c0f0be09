"""Prompts of all lengths in chunks, on decoders whose logits depend on every token before."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from heteroplace.errors import ExecutionError
from heteroplace.parts.text.generator import generate
from heteroplace.parts.text.sampling import TokenSampling
from tests.tiny_decoders import CAPACITY, NumpyDecoder

PROMPT = [7, 3, 30, 3, 11, 0, 31, 9, 9, 2, 17, 5, 1, 28, 4, 4, 6, 22, 13, 8, 19]


def written(decoder: NumpyDecoder, ids: list[int], count: int, **options: Any) -> list[int]:
    return list(generate(decoder, ids, max_new_tokens=count, **options))


def one_by_one(ids: list[int], count: int) -> list[int]:
    """What is written where each call takes one token."""
    return written(NumpyDecoder(1), ids, count)


@pytest.mark.parametrize("has_all_rows", [True, False])
@pytest.mark.parametrize("lengths", [(1,), (1, 4), (1, 3, 16), (4,), (CAPACITY,), (2, 8)])
@pytest.mark.parametrize("size", range(1, len(PROMPT) + 1))
def test_chunks_write_what_single_tokens_write(
    lengths: tuple[int, ...], size: int, has_all_rows: bool
) -> None:
    # Logits of the last row alone need as many tokens; see below.
    decoder = NumpyDecoder(*lengths, has_all_rows=has_all_rows or size < lengths[0])
    count = CAPACITY - size + 1  # to the last place of the cache
    assert written(decoder, PROMPT[:size], count) == one_by_one(PROMPT[:size], count)


def test_a_prompt_takes_few_calls() -> None:
    decoder = NumpyDecoder(1, 4, 8)
    written(decoder, PROMPT[:18], 3)
    assert decoder.calls == [(0, 8), (8, 8), (16, 4), (18, 1), (19, 1)]
    decoder = NumpyDecoder(1, 4, 8, has_all_rows=False)
    written(decoder, PROMPT[:18], 1)
    assert decoder.calls == [(0, 8), (8, 8), (14, 4)]


def test_a_chunk_begins_earlier_where_it_would_pass_the_end_of_the_cache() -> None:
    decoder = NumpyDecoder(16)
    assert written(decoder, PROMPT[:20], 1) == one_by_one(PROMPT[:20], 1)
    assert decoder.calls == [(0, 16), (CAPACITY - 16, 16)]


@pytest.mark.parametrize("lengths", [(1,), (1, 8), (8,)])
def test_a_second_prompt_goes_on_after_the_first(lengths: tuple[int, ...]) -> None:
    decoder = NumpyDecoder(*lengths)
    first = written(decoder, PROMPT[:5], 4)
    second = written(decoder, PROMPT[5:8], 3)
    assert second == one_by_one([*PROMPT[:5], *first, *PROMPT[5:8]], 3)
    third = written(decoder, [], 2)
    assert third == one_by_one([*PROMPT[:5], *first, *PROMPT[5:8], *second], 2)
    assert decoder.tokens == [*PROMPT[:5], *first, *PROMPT[5:8], *second, *third]


def test_a_reader_may_stop_and_go_on() -> None:
    decoder = NumpyDecoder(1, 4)
    first = list(islice(generate(decoder, PROMPT[:6], max_new_tokens=10), 4))
    assert first + written(decoder, [], 6) == one_by_one(PROMPT[:6], 10)


def test_a_stop_token_ends_the_text_and_is_remembered() -> None:
    expected = one_by_one(PROMPT[:6], 10)
    stop = next(token for token in expected[2:] if token not in expected[:2])
    decoder = NumpyDecoder(1, 4)
    before = expected[: expected.index(stop)]
    assert written(decoder, PROMPT[:6], 10, stop_ids=[stop]) == before
    assert decoder.tokens == [*PROMPT[:6], *before, stop]
    rest = expected[len(before) + 1 :]
    assert written(decoder, [], len(rest)) == rest


def test_a_full_cache_is_told_with_the_tokens_read_so_far() -> None:
    decoder = NumpyDecoder(1, 8)
    tokens = generate(decoder, PROMPT[:20], max_new_tokens=10)
    assert len(list(islice(tokens, 5))) == 5
    message = f"the cache holds {CAPACITY} tokens, and there are 25; .* with a larger past"
    with pytest.raises(ExecutionError, match=message):
        next(tokens)
    with pytest.raises(ExecutionError, match="there are 30"):
        generate(decoder, PROMPT[:5], max_new_tokens=1)
    assert len(decoder.tokens) == 25


def test_a_prompt_whose_call_fails_is_forgotten() -> None:
    decoder = NumpyDecoder(1, 4)
    first = written(decoder, PROMPT[:5], 2)
    run = decoder.run

    def fail(length: int, inputs: Any) -> Any:
        if len(decoder.calls) == 5:
            raise ExecutionError("a device is lost")
        return run(length, inputs)

    decoder.run = fail  # type: ignore[method-assign]
    with pytest.raises(ExecutionError, match="lost"):
        written(decoder, PROMPT[5:15], 1)
    decoder.run = run  # type: ignore[method-assign]
    assert decoder.tokens == [*PROMPT[:5], *first]
    assert written(decoder, PROMPT[5:7], 3) == one_by_one([*PROMPT[:5], *first, *PROMPT[5:7]], 3)


def test_a_seed_repeats_the_text() -> None:
    sampling = TokenSampling(temperature=2.0, top_k=20, seed=4)
    texts = [written(NumpyDecoder(1, 8), PROMPT[:9], 10, sampling=sampling) for _ in range(2)]
    assert texts[0] == texts[1] != one_by_one(PROMPT[:9], 10)


@pytest.mark.parametrize(
    ("ids", "count", "message"),
    [
        ([], 1, "no tokens to go on from"),
        ([1, 32], 1, "token 32, and the decoder knows 32: 0 to 31"),
        ([-1], 1, "token -1"),
        ([1.5], 1, r"ids are float64 \[1\]; expected a list of whole numbers"),
        ([[1]], 1, r"ids are int64 \[1, 1\]"),
        ([1], 0, "max_new_tokens=0; expected at least 1"),
        (PROMPT * 2, 1, "the cache holds 24 tokens, and there are 42"),
    ],
)
def test_wrong_arguments_are_refused_at_once(ids: Any, count: int, message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        generate(NumpyDecoder(1), ids, max_new_tokens=count)


def test_logits_of_the_last_row_need_as_many_tokens() -> None:
    decoder = NumpyDecoder(4, 8, has_all_rows=False)
    message = "takes 4 tokens a call and returns the logits of the last one, and there are 3"
    with pytest.raises(ExecutionError, match=message):
        written(decoder, PROMPT[:3], 1)
