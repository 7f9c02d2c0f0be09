"""Dataclasses of options -> keywords, arguments of a command line, and what a caller gave.

An option is described once, as a field made by `option`: its type, default, help and the values it
takes. The pass, TVM's pass configuration, `tvmc` and `heteroplace` all read that description.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from heteroplace.argument_checks import did_you_mean
from heteroplace.errors import HeteroPlaceError

T = TypeVar("T")
_KEY = "option"
NEEDED = dataclasses.MISSING
"""As the default of an option: it has none."""


@dataclass(frozen=True)
class Option:
    """One option, as users meet it."""

    name: str
    """Keyword, and with dashes the flag; may differ from the field by the unit at its end."""
    attribute: str
    """Name of the field."""
    default: Any
    help: str
    metavar: str | Callable[[], str] | None
    choices: Callable[[], Sequence[str]] | None
    """The values there are; called late, as some are known only then."""
    parse: Callable[[str], Any]
    """Turns text of a command line into the value, or into one entry of a repeated option."""
    join: Callable[[Sequence[Any]], Any] | None
    """Turns the entries of an option that may be repeated into its value; None: it may not be."""
    action: type[argparse.Action] | None
    """The action of a command line's argument; None: argparse's own."""

    @property
    def flag(self) -> str:
        """Return the name as a command line has it, without the dashes before it."""
        return self.name.replace("_", "-")

    @property
    def placeholder(self) -> str | None:
        """Return what stands for the value in help texts; None: argparse's own."""
        return self.metavar() if callable(self.metavar) else self.metavar


def option(
    default: Any,
    help: str,
    *,
    name: str | None = None,
    metavar: str | Callable[[], str] | None = None,
    choices: Callable[[], Sequence[str]] | None = None,
    parse: Callable[[str], Any] = str,
    join: Callable[[Sequence[Any]], Any] | None = None,
    action: type[argparse.Action] | None = None,
) -> Any:
    """Return a dataclass field that describes an option.

    Parameters
    ----------
    default
        Its value if nobody gives one; a function without arguments makes one that is not shared;
        `NEEDED`: somebody has to.
    help
        What it means, as one sentence without a full stop.
    name
        As users write it; None: as the field.
    metavar
        What stands for the value in help texts; a function returns it where that is known late.
    choices
        Returns the texts that it takes; None: any.
    parse, join, action
        See `Option`.
    """
    rest = (metavar, choices, parse, join, action)
    if default is NEEDED:
        described = Option(name or "", "", None, f"{help}; needed", *rest)
        return field(metadata={_KEY: described})
    described = Option(name or "", "", default, help, *rest)
    default_field = {"default_factory": default} if callable(default) else {"default": default}
    return field(**default_field, metadata={_KEY: described})


def options_of(cls: type) -> Iterator[Option]:
    """Yield the options of a dataclass in the order of its fields."""
    for entry in dataclasses.fields(cls):
        if _KEY in entry.metadata:
            declared: Option = entry.metadata[_KEY]
            default = declared.default() if callable(declared.default) else declared.default
            name = declared.name or entry.name
            yield replace(declared, name=name, attribute=entry.name, default=default)


def by_attribute(
    classes: Sequence[type], given: Mapping[str, Any], owner: str, error: type[HeteroPlaceError]
) -> list[dict[str, Any]]:
    """Sort keywords to the classes that have them.

    Parameters
    ----------
    classes
        Dataclasses of options, of disjoint names.
    given
        Values by the name of the option.
    owner, error
        What is said, and raised, if there is no such option.

    Returns
    -------
    attributes
        For each class the values of its fields, by their names.
    """
    owner_of = {
        entry.name: (index, entry) for index, c in enumerate(classes) for entry in options_of(c)
    }
    unknown = [name for name in given if name not in owner_of]
    if unknown:
        near = did_you_mean(unknown[0], owner_of)
        it_has = f"{near} It has" if near else "; it has"
        raise error(f"{owner} has no option {', '.join(unknown)}{it_has}: {', '.join(owner_of)}")
    values: list[dict[str, Any]] = [{} for _ in classes]
    for name, value in given.items():
        index, entry = owner_of[name]
        values[index][entry.attribute] = value
    return values


def add_arguments(
    parser: argparse._ActionsContainer,
    cls: type,
    renamed: Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
    own_names: Sequence[str] = (),
) -> None:
    """Add the options of a dataclass to a command line; those not given are None.

    Parameters
    ----------
    renamed
        Flags that are called otherwise there, by the name of the option.
    names
        The options to add; None: all.
    own_names
        Of the renamed options those that may be given by their own names, too.
    """
    for entry in options_of(cls):
        if names is not None and entry.name not in names:
            continue
        flags = ["--" + (renamed or {}).get(entry.name, entry.flag)]
        if entry.name in own_names:
            flags.append("--" + entry.flag)
        default = entry.default
        is_none = default is None or default is False or default in ((), {})
        shown = "" if is_none else f"; default: {_text(default)}"
        if entry.default is False:
            parser.add_argument(*flags, action="store_true", default=None, help=entry.help)
            continue
        parser.add_argument(
            *flags,
            type=Argument(entry.parse),
            action=entry.action or ("store" if entry.join is None else "append"),
            metavar=entry.placeholder,
            choices=None if entry.choices is None else list(entry.choices()),
            help=f"{entry.help}{'; may be repeated' if entry.join else ''}{shown}".replace(
                "%", "%%"
            ),
        )


def read_arguments(
    cls: type,
    arguments: argparse.Namespace,
    renamed: Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the options that a command line gives, by name; parameters as of `add_arguments`.

    Raises
    ------
    HeteroPlaceError
        Entries of an option do not go together, such as a key of a map that is given twice.
    """
    values = {}
    for entry in options_of(cls):
        if names is not None and entry.name not in names:
            continue
        flag = (renamed or {}).get(entry.name, entry.flag)
        value = getattr(arguments, flag.replace("-", "_"), None)
        if value is not None:
            if entry.join is not None:
                value = _joined(entry.join, f"--{entry.flag}", value)
            values[entry.name] = value
    return values


def named_pairs(flag: str, given: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return `pairs` of an option of the command line; a HeteroPlaceError names it."""
    return _joined(pairs, flag, given)


def _joined(join: Callable[[Sequence[Any]], T], flag: str, given: Sequence[Any]) -> T:
    try:
        return join(given)
    except ValueError as err:
        raise HeteroPlaceError(f"{flag}: {err}") from err


def from_arguments(
    cls: type[T],
    arguments: argparse.Namespace,
    renamed: Mapping[str, str] | None = None,
    **others: Any,
) -> T:
    """Return the dataclass of options that a command line gives.

    Parameters
    ----------
    cls
        Of which all options may be given.
    arguments
        What was parsed.
    renamed
        As of `add_arguments`.
    others
        Fields that are no options.
    """
    attributes = {entry.name: entry.attribute for entry in options_of(cls)}
    given = read_arguments(cls, arguments, renamed=renamed)
    return cls(**{attributes[name]: value for name, value in given.items()}, **others)


class Argument:
    """A reader of texts for argparse, whose faults keep their words."""

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse

    def __call__(self, text: str) -> Any:
        try:
            return self._parse(text)
        except (HeteroPlaceError, ValueError) as err:
            raise argparse.ArgumentTypeError(str(err)) from err


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def pairs(given: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Join NAME=VALUE options; one that is given twice would lose a value.

    >>> pairs([("a", 1), ("b", 2)])
    {'a': 1, 'b': 2}
    """
    values: dict[str, Any] = {}
    for name, value in given:
        if name in values:
            raise ValueError(f"{name!r} is given twice, as {values[name]!r} and as {value!r}")
        values[name] = value
    return values


def seconds(text: str) -> float:
    """Read a time above 0.

    >>> seconds("2.5")
    2.5
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"expected a number of seconds above 0, got {text!r}")
    return value


def duration(text: str) -> float:
    """Read a time above 0 in seconds, or with a unit: s, m or min, h.

    >>> duration("10m"), duration("2.5")
    (600.0, 2.5)
    """
    units = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :]
    if unit not in units:
        raise ValueError(f"expected a time such as 30s, 10m or 1h, got {text!r}")
    try:
        return seconds(number.strip()) * units[unit]
    except ValueError as err:
        raise ValueError(f"expected a time above 0 such as 30s, 10m or 1h, got {text!r}") from err


def seed_number(text: str) -> int:
    """Read a whole number of at least 0."""
    return _whole(text, 0)


def count(text: str) -> int:
    """Read a whole number of at least 1."""
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    if not text.isascii() or not text.isdecimal() or not least <= int(text) < 2**63:
        raise ValueError(f"expected a whole number >= {least}, got {text!r}")
    return int(text)


def key_value(
    expected: str, parse: Callable[[str], Any] = str, *, at_first: bool = False
) -> Callable[[str], tuple[str, Any]]:
    """Return a reader of KEY=VALUE; the last "=" counts, or the first.

    >>> key_value("LINK=FACTOR, such as 'pcie=0.5'", float)("pcie=2")
    ('pcie', 2.0)

    Parameters
    ----------
    expected
        The form, with an example, for the message of a ValueError.
    parse
        Reads the value; a ValueError of it is one of the form.
    """

    def read(text: str) -> tuple[str, Any]:
        key, equals, value = text.partition("=") if at_first else text.rpartition("=")
        try:
            if key and equals and value:
                return key, parse(value)
        except ValueError as err:
            raise ValueError(f"expected {expected}, got {text!r}") from err
        raise ValueError(f"expected {expected}, got {text!r}")

    return read


pair = key_value("PATTERN=DEVICE, such as 'nn.conv2d=cpu.0'")
"""Reads PATTERN=DEVICE."""
