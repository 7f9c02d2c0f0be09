"""The logits of a vocabulary -> the next token, by options that say how it is chosen."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heteroplace.errors import ExecutionError
from heteroplace.options import option

_Logits = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class TokenSampling:
    """How the next token is chosen; by default it is the likeliest one.

    Raises
    ------
    ExecutionError
        A value is out of range.
    """

    temperature: float = option(
        0.0, "divides the logits; 0: the likeliest token is taken", metavar="T", parse=float
    )
    top_k: int = option(
        0, "draw from so many of the likeliest tokens; 0: from all", metavar="N", parse=int
    )
    top_p: float = option(
        1.0,
        "draw from the likeliest tokens with this probability together",
        metavar="P",
        parse=float,
    )
    seed: int | None = option(
        None, "seed of the draws; without one they differ each time", metavar="N", parse=int
    )
    repetition_penalty: float = option(
        1.0, "makes tokens that have occurred rarer, if above 1", metavar="X", parse=float
    )
    """Their logits are divided by it where they are positive, else multiplied."""

    def __post_init__(self) -> None:
        infinity = float("inf")
        _check("temperature", self.temperature, 0 <= _number(self.temperature) < infinity, ">= 0")
        _check("top_k", self.top_k, _is_count(self.top_k), "a whole number >= 0")
        _check("top_p", self.top_p, 0 < _number(self.top_p) <= 1, "above 0 and at most 1")
        has_seed = self.seed is None or _is_count(self.seed)
        _check("seed", self.seed, has_seed, "a whole number >= 0, or None")
        penalty = self.repetition_penalty
        _check("repetition_penalty", penalty, 0 < _number(penalty) < infinity, "above 0")


def _check(name: str, value: object, is_right: bool, expected: str) -> None:
    if not is_right:
        raise ExecutionError(f"{name}={value!r}; expected {expected}")


def _number(value: object) -> float:
    """A number; NaN, which is in no range, where it is none."""
    return float(value) if isinstance(value, numbers.Real) else float("nan")


def _is_count(value: object) -> bool:
    return isinstance(value, numbers.Integral) and int(value) >= 0


class Sampler:
    """Chooses one token after another, and remembers those that have occurred.

    Parameters
    ----------
    occurred
        The tokens before the first choice.
    """

    def __init__(self, sampling: TokenSampling, occurred: Iterable[int] = ()) -> None:
        self._sampling = sampling
        self._occurred = set(occurred)
        self._random = np.random.default_rng(sampling.seed)

    def next(self, logits: _Logits) -> int:
        """Choose the next token.

        Parameters
        ----------
        logits
            One for each token of the vocabulary; minus infinity: it is never chosen.

        Raises
        ------
        ExecutionError
            The logits are no numbers.
        """
        if not np.isfinite(logits.max()):
            raise ExecutionError(
                "the logits are no finite numbers; compare the program with its model: "
                "heteroplace compile --verify on"
            )
        token = self._drawn(self._penalised(logits))
        self._occurred.add(token)
        return token

    def _penalised(self, logits: _Logits) -> _Logits:
        penalty = self._sampling.repetition_penalty
        if penalty == 1 or not self._occurred:
            return logits
        ids = np.fromiter(self._occurred, np.int64, len(self._occurred))
        changed = logits.astype(np.float64)
        own = changed[ids]
        changed[ids] = np.where(own > 0, own / penalty, own * penalty)
        return changed

    def _drawn(self, logits: _Logits) -> int:
        sampling = self._sampling
        if sampling.temperature == 0:
            return int(logits.argmax())
        # Less their maximum first: a quotient by a small temperature may be infinite.
        with np.errstate(over="ignore"):
            scaled = (logits.astype(np.float64) - logits.max()) / sampling.temperature
        ids = np.arange(len(scaled))
        if 0 < sampling.top_k < len(scaled):
            ids = np.sort(np.argpartition(scaled, -sampling.top_k)[-sampling.top_k :])
        chances = np.exp(scaled[ids])
        chances /= chances.sum()
        if sampling.top_p < 1:
            ids, chances = _nucleus(ids, chances, sampling.top_p)
        sums = chances.cumsum()
        return int(ids[np.searchsorted(sums, self._random.random() * sums[-1], side="right")])


def _nucleus(
    ids: npt.NDArray[np.int64], chances: npt.NDArray[np.float64], top_p: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The likeliest tokens that together have the probability `top_p`, the likeliest first."""
    # All that are rarer have less than 1 - top_p together; to sort them takes most of the time.
    rarest = min((1 - top_p) / len(chances), chances.max())
    likely = np.flatnonzero(chances >= rarest)
    order = likely[np.argsort(-chances[likely], kind="stable")]
    count = int(np.searchsorted(chances[order].cumsum(), top_p)) + 1
    return ids[order[:count]], chances[order[:count]]
