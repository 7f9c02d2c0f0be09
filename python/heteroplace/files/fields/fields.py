"""What the fields of files may be: one name per kind, with its reader, stand-in and JSON schema.

A reader turns the JSON value into the struct's, or raises ValueError with what it expects. The
stand-in takes a faulty value's place until all faults are found; mostly it is no valid value, so
that what follows from a fault is not told as another. Units are parsed by `model.units`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from heteroplace.model.units import IN_63_BITS, MAX_INTEGER, is_integer, parse_bytes

T = TypeVar("T")
Json = dict[str, Any]
MAX_NUMBER = 1e300
"""Numbers that are not whole are below this."""
_AMOUNT = r"[0-9]+(\.[0-9]+)? ?"
_ABOVE_ZERO = "^(?=[0-9.]*[1-9])"


class FaultError(ValueError):
    """A fault that is told as it is, without what was expected and what was got."""


def kind(
    read: Callable[[object], object],
    stand_in: object,
    *,
    schema: Json | None = None,
    least: int | None = None,
    shortest: int | None = None,
) -> Meta:
    """Return what makes a type in a struct a kind of field.

    Parameters
    ----------
    read
        Turns the JSON value into the field's; raises ValueError with what it expects.
    stand_in
        The field's value where `read` refuses.
    schema
        JSON Schema of what `read` accepts; None: as it follows from the type.
    least, shortest
        Smallest whole number (the largest is that of 63 bits), fewest characters or elements; for
        the fast way and the schema.
    """
    limits: dict[str, Any] = {"ge": least, "le": None if least is None else MAX_INTEGER}
    limits["min_length"] = shortest
    if schema is not None:
        limits["extra_json_schema"] = {"replaced": schema}
    return Meta(extra={"read": read, "stand_in": stand_in}, **limits)


def about(text: str) -> Meta:
    """Return the description of a field."""
    return Meta(description=text)


def a_text(value: object) -> str:
    """Accept any text."""
    if not isinstance(value, str):
        raise ValueError("text")
    return value


def a_name(value: object) -> str:
    """Accept text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("a name (text that is not empty)")
    return value


def a_boolean(value: object) -> bool:
    """Accept true and false."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def an_integer(value: object) -> int:
    """Accept a whole number."""
    if not is_integer(value):
        raise ValueError("a whole number")
    number = int(value)  # type: ignore[call-overload]
    if abs(number) > MAX_INTEGER:
        raise ValueError(f"a whole number {IN_63_BITS}")
    return int(number)


def a_number(value: object) -> float:
    """Accept a finite number >= 0."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value < MAX_NUMBER
    ):
        raise ValueError("a number >= 0")
    return value


def a_count(value: object) -> int:
    """Accept a whole number >= 0."""
    if not is_integer(value) or value < 0:  # type: ignore[operator]
        raise ValueError("a whole number >= 0")
    if value > MAX_INTEGER:  # type: ignore[operator]
        raise ValueError(f"a whole number >= 0 {IN_63_BITS}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def list_of(read: Callable[[object], T], expected: str) -> Callable[[object], tuple[T, ...]]:
    """Return a reader of lists whose elements `read` accepts; `expected` describes them."""

    def read_all(value: object) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise ValueError(expected)
        try:
            return tuple(map(read, value))
        except ValueError as fault:
            raise ValueError(expected) from fault

    return read_all


def distinct(read: Callable[[object], int], expected: str) -> Callable[[object], tuple[int, ...]]:
    """Return a reader of lists of different numbers, at least one."""
    read_all = list_of(read, expected)

    def read_distinct(value: object) -> tuple[int, ...]:
        numbers = read_all(value)
        if not numbers or len(set(numbers)) < len(numbers):
            raise ValueError(expected)
        return numbers

    return read_distinct


def positive(read: Callable[[object], int]) -> Callable[[object], int]:
    """Return `read` with 0 refused."""

    def read_positive(value: object) -> int:
        number = read(value)
        if number <= 0:
            raise ValueError("more than 0")
        return number

    return read_positive


def one_of(choices: tuple[object, ...], stand_in: object, expected: str = "") -> Meta:
    """Return the kind of fields that are one of the choices, of the same type each."""

    def read_choice(value: object) -> object:
        for choice in choices:
            if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                return choice
        raise ValueError(expected or f"one of {', '.join(map(str, choices))}")

    return kind(read_choice, stand_in, schema={"enum": list(choices)})


def version(newest: int, oldest: int | None = None) -> Meta:
    """Return the kind of `schema_version`: files of `oldest` to `newest` are read."""
    oldest = newest if oldest is None else oldest
    known = f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"

    def read(value: object) -> int:
        number = an_integer(value)
        if not oldest <= number <= newest:
            raise FaultError(f"this file is of version {number}, and heteroplace reads {known}")
        return number

    return kind(read, newest, schema={"const": newest})


def quantity(unit: str, *, is_positive: bool = True) -> Json:
    """Return the JSON Schema of a number and a unit, of which `unit` is a pattern."""
    return {"type": "string", "pattern": f"{_ABOVE_ZERO if is_positive else '^'}{_AMOUNT}{unit}$"}


def size_schema(least: int) -> Json:
    """Return the JSON Schema of a size of at least 0 or 1 bytes."""
    text = quantity("([kMGTP]|[KMGT]i)?B", is_positive=least > 0)
    return {"anyOf": [{"type": "integer", "minimum": least, "maximum": MAX_INTEGER}, text]}


Text = Annotated[str, kind(a_text, "")]
Name = Annotated[str, kind(a_name, "", shortest=1)]
Count = Annotated[int, kind(a_count, 0, least=0)]
Integer = Annotated[int, kind(an_integer, 0)]
Number = Annotated[float, kind(a_number, 0.0, schema={"type": "number", "minimum": 0})]
Texts = Annotated[tuple[str, ...], kind(list_of(a_text, "a list of texts"), ())]
Size = Annotated[
    Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | str, kind(parse_bytes, 0, schema=size_schema(0))
]
"""Bytes: a number, or text with a unit; the reader gives a number."""
SchemaLink = Annotated[str, kind(a_text, ""), about("For editors.")]
"""Of `$schema`."""
