"""Corpora: the random cases of one kind, made once per process and shared by all properties.

A generator is a function of a `Random` and some arguments. `corpus` turns it into a function of the
arguments that returns a strategy of Hypothesis; what that draws is only the *number* of a case, so
a case costs nothing after the first property has made it. Cases are numbered by size: Hypothesis
shrinks a failure to a small case that fails, and prints it in full.

A property of n cases takes n cases out of the corpus that depend on the seed (see
`tests.conftest`), the same for every property of n cases: so optima are shared too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from functools import cache, wraps
from random import Random
from typing import Concatenate, ParamSpec, TypeVar

from hypothesis import settings
from hypothesis import strategies as st

NUM_CASES = 1000
"""Different cases of a corpus, where there are as many."""
_MAX_DRAWS = 5 * NUM_CASES

Args = ParamSpec("Args")
Case = TypeVar("Case")
Key = tuple[tuple[str, Hashable], ...]
"""The arguments of a generator, by name."""

_seed = [""]


def set_seed(seed: str) -> None:
    """Choose which cases those properties take that take fewer than there are."""
    _seed[0] = seed


def corpus(
    generator: Callable[Concatenate[Random, Args], Case],
) -> Callable[Args, st.SearchStrategy[Case]]:
    """Turn a generator into a function of its arguments that returns a strategy."""
    signature = inspect.signature(generator)

    @wraps(generator)
    def strategy(*args: Args.args, **kwargs: Args.kwargs) -> st.SearchStrategy[Case]:
        bound = signature.bind(Random(), *args, **kwargs)
        bound.apply_defaults()
        return _drawn(generator, tuple(bound.arguments.items())[1:])

    return strategy


@st.composite
def _drawn(draw: st.DrawFn, generator: Callable[..., Case], key: Key) -> Case:
    cases = _taken(generator, key, settings().max_examples, _seed[0])
    return cases[draw(st.integers(0, len(cases) - 1))]


@cache
def _taken(generator: Callable[..., Case], key: Key, count: int, seed: str) -> tuple[Case, ...]:
    """So many cases of a corpus, by size."""
    cases = _all_cases(generator, key)
    if count >= len(cases):
        return cases
    return tuple(cases[index] for index in sorted(Random(seed).sample(range(len(cases)), count)))


@cache
def _all_cases(generator: Callable[..., Case], key: Key) -> tuple[Case, ...]:
    """Different cases, by the length of what is printed; the same ones in every run."""
    random = Random(generator.__name__)
    found: dict[str, Case] = {}
    for _ in range(_MAX_DRAWS):
        case = generator(random, **dict(key))
        found.setdefault(repr(case), case)
        if len(found) == NUM_CASES:
            break
    return tuple(found[text] for text in sorted(found, key=lambda text: (len(text), text)))
