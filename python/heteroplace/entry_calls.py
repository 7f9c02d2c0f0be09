"""How often a workload calls an entry: a number of calls, or of tokens -> the number of calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from heteroplace.argument_checks import check_type
from heteroplace.errors import FrontendError
from heteroplace.options import count

Calls = int | str
"""A number of calls, or a text such as "512 tokens"."""
_TOKENS = re.compile(r"\s*0*([1-9][0-9]*)\s+tokens?\s*")


def read_calls(text: str) -> Calls:
    """Read a number, or a text such as "512 tokens"; raise ValueError for others."""
    return text if _TOKENS.fullmatch(text) else count(text)


def num_calls(calls: Calls, sizes: Mapping[str, int | Sequence[int]], where: str) -> int:
    """Return how often an entry is called.

    Parameters
    ----------
    calls
        "512 tokens" are as many calls as hold 512 tokens: the entry must have one size, that of the
        tokens of a call.
    sizes
        Of the entry, by name.
    where
        What the caller gave, for errors: "workload['prompt']".

    Raises
    ------
    FrontendError
        It is neither a number of at least 1 nor such a text, or the entry has not one size.

    Examples
    --------
    >>> num_calls(8, {}, "workload['prompt']")
    8
    >>> num_calls("512 tokens", {"sequence_length": 60}, "workload['prompt']")
    9
    """
    if not isinstance(calls, str):
        check_type(where, calls, int, "a number of calls, or '512 tokens'", FrontendError)
        if calls < 1:
            raise FrontendError(f"{where}: expected at least 1 call, got {calls}")
        return int(calls)
    tokens = _TOKENS.fullmatch(calls)
    if tokens is None:
        raise FrontendError(
            f"{where}: expected a number of calls, such as 8, or a text such as '512 tokens', got "
            f"{calls!r}"
        )
    numbers = [size for size in sizes.values() if isinstance(size, int)]
    if len(numbers) != 1 or len(sizes) != 1:
        raise FrontendError(
            f"{where}: {calls!r} needs an entry with one size, the tokens of a call, and this one "
            f"has {', '.join(sizes) or 'none'}; give the number of calls"
        )
    return -(-int(tokens[1]) // numbers[0])
