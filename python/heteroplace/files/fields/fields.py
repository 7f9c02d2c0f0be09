"""Kinds of fields in files -> their types, from which msgspec reads them and makes JSON Schemas.

A `title` says what a field accepts where its schema alone reads badly; messages print it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from msgspec import UNSET, Meta, UnsetType

from heteroplace.model.units import MAX_INTEGER

T = TypeVar("T")
Json = dict[str, Any]
MAX_NUMBER = 1e300
"""Numbers that are not whole are below this."""
_BYTES = "([kMGTP]|[KMGT]i)?B"


def about(text: str) -> Meta:
    """Return the description of a field."""
    return Meta(description=text)


def or_none(value: T | UnsetType) -> T | None:
    """Return the value of a key that may be absent, not null; None stands for an absent one."""
    return None if value is UNSET else value


def one_of(choices: Sequence[str]) -> Meta:
    """Return what restricts a text to the choices."""
    # `$` also matches before a line feed at the end.
    pattern = f"^({'|'.join(choices)})$(?!\\n)"
    return Meta(pattern=pattern, extra_json_schema={"enum": list(choices)})


def quantity(unit: str, *, is_positive: bool = True) -> str:
    """Return the pattern of a number and a unit, of which `unit` is a pattern."""
    return f"^{'(?=[0-9.]*[1-9])' if is_positive else ''}[0-9]+(\\.[0-9]+)? ?{unit}$"


Text = str
Name = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
PositiveCount = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Number = Annotated[float, Meta(ge=0, lt=MAX_NUMBER)]
Texts = tuple[Text, ...]
Names = tuple[Name, ...]
SIZE_PATTERN = quantity(_BYTES, is_positive=False)
_SIZE = Meta(title='a size such as "16 GiB" or "800 MB", or a number of bytes')
_POSITIVE_SIZE = Meta(title='a size > 0 such as "16 GiB" or "800 MB", or a number of bytes')
Size = Annotated[Count | Annotated[str, Meta(pattern=SIZE_PATTERN)], _SIZE]
"""Bytes: a number, or text with a unit."""
PositiveSize = Annotated[
    PositiveCount | Annotated[str, Meta(pattern=quantity(_BYTES))], _POSITIVE_SIZE
]
SchemaLink = Annotated[Text, about("For editors.")]
"""Of `$schema`."""
