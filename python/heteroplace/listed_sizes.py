"""Sizes of a model, one of them a list -> the entries of a file that takes calls of any length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from heteroplace.argument_checks import check_type, is_list
from heteroplace.errors import FrontendError


@dataclass(frozen=True)
class ListedSizes:
    """A free size with several values, each of which becomes an entry."""

    name: str
    """In the model, such as "sequence_length"."""
    values: tuple[int, ...]
    """Ascending."""

    @property
    def entries(self) -> dict[str, dict[str, int]]:
        """The sizes of each entry; entries are called by their values."""
        return {str(value): {self.name: value} for value in self.values}


def read_listed(sizes: Mapping[str, Any], *, has_entries: bool, has_state: bool) -> ListedSizes:
    """Return the size that is a list.

    Parameters
    ----------
    sizes
        By name; one is a list.
    has_entries, has_state
        Whether entries, and state of sessions, are given too.

    Raises
    ------
    FrontendError
        Two sizes are lists, one has a value that is no size, or entries or state are given.
    """
    names = [name for name, size in sizes.items() if is_list(size)]
    form = f"sizes[{names[0]!r}]"
    if len(names) > 1:
        raise FrontendError(
            f"sizes {' and '.join(map(repr, names))} have several values each; calls may vary one "
            f"size, so give the others one value"
        )
    if has_entries:
        raise FrontendError(
            f"{form} has several values, and entries are given too; several values make entries "
            f"of their own, so leave one of both out"
        )
    if has_state:
        raise FrontendError(
            f"{form} has several values, which calls are padded to, and padding would become part "
            f"of the state; give each size as an entry (entries=, --entry)"
        )
    for value in sizes[names[0]]:
        check_type(form, value, Integral, "whole numbers, such as [16, 64]", FrontendError)
    values = tuple(sorted({int(value) for value in sizes[names[0]]}))
    if len(values) < 2 or values[0] < 1:
        raise FrontendError(
            f"{form} is {list(sizes[names[0]])}; expected at least two sizes, such as [16, 64], so "
            f"that padding can be checked, or one number for one size"
        )
    return ListedSizes(names[0], values)
