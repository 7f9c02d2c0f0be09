"""How the next token is chosen: by its logit, by chance, and never against an option."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from heteroplace.errors import ExecutionError
from heteroplace.parts.text.sampling import Sampler, TokenSampling

LOGITS = np.array([0.0, 2.0, 1.0, -np.inf, 3.0, 1.5], np.float32)
CHANCES = np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum()


def shares(count: int = 20000, **options: Any) -> np.ndarray:
    """How often each token is drawn."""
    sampler = Sampler(TokenSampling(seed=0, **options))
    drawn = [sampler.next(LOGITS) for _ in range(count)]
    return np.bincount(drawn, minlength=len(LOGITS)) / count


def test_the_likeliest_token_is_taken_without_a_temperature() -> None:
    assert Sampler(TokenSampling()).next(LOGITS) == 4
    assert Sampler(TokenSampling(top_k=2, top_p=0.1, seed=3)).next(LOGITS.astype(np.float16)) == 4
    assert Sampler(TokenSampling(temperature=1e-300, seed=0)).next(LOGITS) == 4


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_by_their_probabilities(temperature: float) -> None:
    expected = CHANCES ** (1 / temperature)
    np.testing.assert_allclose(
        shares(temperature=temperature), expected / expected.sum(), atol=0.015
    )


@pytest.mark.parametrize(
    ("options", "kept_tokens"),
    [
        ({"top_k": 1}, [4]),
        ({"top_k": 3}, [1, 4, 5]),
        ({"top_k": 100}, [0, 1, 2, 4, 5]),
        ({"top_p": 1e-20}, [4]),
        ({"top_p": CHANCES[4] + 0.01}, [1, 4]),
        ({"top_p": CHANCES[[4, 1, 5]].sum() - 1e-9}, [1, 4, 5]),
        ({"top_p": 0.99, "top_k": 2}, [1, 4]),
    ],
)
def test_only_the_likeliest_tokens_are_drawn_from(
    options: dict[str, Any], kept_tokens: list[int]
) -> None:
    expected = np.where(np.isin(np.arange(len(LOGITS)), kept_tokens), CHANCES, 0)
    np.testing.assert_allclose(
        shares(temperature=1.0, **options), expected / expected.sum(), atol=0.015
    )


def test_equal_tokens_have_equal_chances() -> None:
    sampler = Sampler(TokenSampling(temperature=1.0, top_p=1e-20, seed=0))
    assert sampler.next(np.zeros(7)) in range(7)


def test_a_seed_repeats_the_draws() -> None:
    logits = np.random.default_rng(0).standard_normal((50, 1000))

    def drawn(seed: int | None) -> list[int]:
        sampler = Sampler(TokenSampling(temperature=1.0, top_p=0.9, seed=seed))
        return [sampler.next(row) for row in logits]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(None) != drawn(None)


def test_tokens_that_have_occurred_are_rarer() -> None:
    sampler = Sampler(TokenSampling(repetition_penalty=1.6), occurred=[3])
    assert [sampler.next(LOGITS) for _ in range(3)] == [4, 1, 4]
    below_zero = Sampler(TokenSampling(repetition_penalty=2.0), occurred=[0])
    assert below_zero.next(np.array([-1.0, -1.5])) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature=-1; expected >= 0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": "hot"}, "temperature='hot'"),
        ({"top_k": -1}, "top_k=-1; expected a whole number >= 0"),
        ({"top_k": 1.5}, "top_k=1.5"),
        ({"top_p": 0}, "top_p=0; expected above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"seed": -1}, "seed=-1; expected a whole number >= 0, or None"),
        ({"repetition_penalty": 0}, "repetition_penalty=0; expected above 0"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        TokenSampling(**options)


@pytest.mark.parametrize("logits", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
def test_logits_that_are_no_numbers_are_refused(logits: list[float]) -> None:
    with pytest.raises(ExecutionError, match="no finite numbers"):
        Sampler(TokenSampling()).next(np.array(logits))
