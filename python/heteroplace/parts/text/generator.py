"""A decoder and the tokens of a prompt -> the tokens that follow, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from heteroplace.errors import ExecutionError
from heteroplace.parts.text.decoder_session import (
    IDS,
    MASK,
    POSITIONS,
    DecoderSession,
    SessionDecoder,
)
from heteroplace.parts.text.sampling import Sampler, TokenSampling

if TYPE_CHECKING:  # it loads TVM
    from heteroplace.run.sessions import Session

_GREEDY = TokenSampling()


def generate_from_session(
    session: Session,
    ids: Sequence[int],
    *,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    **sampling: Any,
) -> Iterator[int]:
    """Do what `Session.generate` does."""
    try:
        chosen = TokenSampling(**sampling)
    except TypeError as err:  # a name that is no option
        raise ExecutionError(
            f"generate: {err}; it has {', '.join(TokenSampling.__dataclass_fields__)}"
        ) from err
    decoder = SessionDecoder(session)
    return generate(decoder, ids, max_new_tokens=max_new_tokens, sampling=chosen, stop_ids=stop_ids)


def generate(
    session: DecoderSession,
    ids: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: TokenSampling = _GREEDY,
    stop_ids: Sequence[int] = (),
) -> Iterator[int]:
    """Read a prompt, then yield the tokens that the decoder writes after it.

    The session remembers both, so a second call goes on after the first one. A prompt whose call
    fails is forgotten.

    Parameters
    ----------
    ids
        The tokens of the prompt.
    max_new_tokens
        How many are written at most.
    stop_ids
        Tokens that end the text. They are not yielded.

    Raises
    ------
    ExecutionError
        An argument is wrong, the cache is full, or a call fails.
    """
    prompt = np.asarray(ids)
    if prompt.size and (prompt.ndim != 1 or prompt.dtype.kind not in "iu"):
        raise ExecutionError(
            f"ids are {prompt.dtype} {list(prompt.shape)}; expected a list of whole numbers"
        )
    total = len(session.tokens) + prompt.size
    if not total:
        raise ExecutionError("there are no tokens to go on from; give a prompt of at least one")
    strange = prompt[(prompt < 0) | (prompt >= session.vocabulary)]
    if strange.size:
        raise ExecutionError(
            f"the prompt has token {strange[0]}, and the decoder knows {session.vocabulary}: 0 to "
            f"{session.vocabulary - 1}; use the tokenizer of the model"
        )
    if max_new_tokens < 1:
        raise ExecutionError(f"max_new_tokens={max_new_tokens}; expected at least 1")
    _check_capacity(session, total)
    return _written(session, prompt.tolist(), max_new_tokens, sampling, set(stop_ids))


def _written(
    session: DecoderSession, prompt: list[int], count: int, sampling: TokenSampling, stops: set[int]
) -> Iterator[int]:
    tokens = [*session.tokens, *prompt]
    sampler = Sampler(sampling, tokens)
    for _ in range(count):
        token = sampler.next(_next_logits(session, tokens))
        tokens.append(token)
        session.tokens[:] = tokens
        if token in stops:
            return
        yield token


def _next_logits(session: DecoderSession, tokens: Sequence[int]) -> npt.NDArray[Any]:
    """Run what the cache does not have yet; return the logits after the last token."""
    total, past = len(tokens), max(len(session.tokens) - 1, 0)
    _check_capacity(session, total)
    while True:
        start, length = next_chunk(session, past, total)
        past = min(start + length, total)
        logits = session.run(length, _inputs(tokens[start:past], start, length, session.capacity))
        if past == total:
            last: npt.NDArray[Any] = logits[0, past - start - 1 if session.has_all_rows else -1]
            return last


def next_chunk(session: DecoderSession, past: int, total: int) -> tuple[int, int]:
    """Return where the next call begins, and how many tokens it takes.

    The calls for all that is left are those of least predicted time, the longest first. The last
    one may begin before `past`, with tokens that the cache has: it then writes the same rows again.
    What it takes beyond `total` is padding, whose rows no later token sees.

    Parameters
    ----------
    past
        How many tokens the cache has.
    total
        How many it shall have.
    """
    # Of a chunk with padding the last row would be none of a token.
    lengths = [each for each in session.lengths if session.has_all_rows or each <= total]
    if not lengths:
        raise ExecutionError(
            f"the decoder takes {session.lengths[0]} tokens a call and returns the logits of the "
            f"last one, and there are {total}; compile it with logits of all tokens, or for calls "
            f"of 1 token"
        )
    length = _longest_call(total - past, {each: session.costs[each] for each in lengths})
    if length < total - past:
        return past, length
    end = session.capacity if session.has_all_rows else total
    return min(past, end - length), length


def _longest_call(count: int, costs: Mapping[int, float]) -> int:
    """Return the longest of the calls that take so many tokens in the least time.

    >>> [_longest_call(count, {1: 4, 16: 20, 64: 60}) for count in (3, 9, 40, 70, 1000)]
    [1, 16, 16, 64, 64]

    Parameters
    ----------
    costs
        Time of a call, by the number of tokens that it takes.
    """
    best = min(costs, key=lambda length: costs[length] / length)
    if count > 2 * max(costs):  # what is at the end does not matter yet
        return best
    times, longest = [0.0], [0]
    for total in range(1, count + 1):
        time, length = min(
            (cost + times[max(0, total - length)], length) for length, cost in costs.items()
        )
        times.append(time)
        longest.append(max(length, longest[max(0, total - length)]))
    return longest[count]


def _inputs(
    tokens: Sequence[int], start: int, length: int, capacity: int
) -> dict[str, npt.NDArray[np.int64]]:
    ids = np.zeros((1, length), np.int64)
    ids[0, : len(tokens)] = tokens
    mask = np.zeros((1, capacity), np.int64)
    mask[0, : start + length] = 1
    return {IDS: ids, MASK: mask, POSITIONS: np.arange(start, start + length)[None]}


def _check_capacity(session: DecoderSession, total: int) -> None:
    if total > session.capacity:
        raise ExecutionError(
            f"the cache holds {session.capacity} tokens, and there are {total}; reset the session "
            f"or shorten the prompt, or compile the model with a larger past (the sizes of "
            f"{MASK} and of the past keys and values)"
        )
