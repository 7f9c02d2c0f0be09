"""A parser of command lines that says what was probably meant where a word is not known."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from heteroplace.files.reader import did_you_mean
from heteroplace.written_files import overwriting

_CHOICE = re.compile(r"(invalid choice: '([^']*)') \(choose from (.*)\)", re.DOTALL)


class CommandParser(argparse.ArgumentParser):
    """A parser of argparse; those of its subcommands are of the same class."""

    _words: Sequence[str] = ()
    """What is parsed."""

    def __init__(self, **options: Any) -> None:
        """Make one that knows options by their whole names: `--al` is not `forget --all`."""
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; refuse options of other commands, and to write what is read.

        So a subcommand answers for its own options.
        """
        self._words = list(args or ())
        found, rest = super().parse_known_args(args, namespace)
        unknown = [word for word in rest if word.startswith("-")]
        if unknown and not self._has_commands():
            self.error(unknown_options(unknown, options_of(self)))
        if not self._has_commands() and (fault := overwriting(self, found)) is not None:
            self.error(fault)
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Print the message, with the nearest choice, and exit with code 2.

        The usage of a command with many options would hide the message.
        """
        if message.startswith("the following arguments are required"):
            # One that is misspelt is missing for that reason.
            message = self._misspelt() or message
        found = _CHOICE.search(message)
        if found is not None:
            near = did_you_mean(found[2], re.findall(r"[^\s',]+", found[3]))
            message = message.replace(found[1], found[1] + near)
        self.exit(2, f"error: {message} (`{self.prog} -h` shows the usage)\n")

    def _misspelt(self) -> str:
        """What is said about the first option that was given and is near one there is; "": none."""
        known = options_of(self)
        flags = [word.partition("=")[0] for word in self._words if word.startswith("--")]
        strange = [flag for flag in flags if flag not in known]
        is_meant = bool(strange) and bool(did_you_mean(strange[0], known))
        return unknown_options(strange[:1], known) if is_meant else ""

    def _has_commands(self) -> bool:
        return any(isinstance(action, argparse._SubParsersAction) for action in self._actions)


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return all options of a parser, with their dashes."""
    return [flag for action in parser._actions for flag in action.option_strings]


def unknown_options(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return what is said about options that are not known.

    >>> unknown_options(["--clutser=x"], ["--cluster", "--graph"])
    'unrecognized arguments: --clutser; did you mean "--cluster"?'
    """
    listed = list(known)
    names = [word.partition("=")[0] for word in unknown]
    near = next(filter(None, (did_you_mean(name, listed) for name in names)), "")
    return f"unrecognized arguments: {' '.join(names)}{near}"
