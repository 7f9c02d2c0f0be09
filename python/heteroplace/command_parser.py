"""A parser of command lines that says what was probably meant where a word is not known."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from heteroplace.argument_checks import did_you_mean
from heteroplace.terminal import listed
from heteroplace.written_files import overwriting

START, ASK, MACHINE, MORE = "Start", "Ask", "Machine", "More"
COMMAND_GROUPS = (START, ASK, MACHINE, MORE)
"""Groups of subcommands in the help, in order."""
VERBOSE_FLAGS = ("-v", "--verbose")
VERBOSE_HELP = "show the details of each stage, and the traceback of an error"
_HELP_WIDTH = 79
_REPLACED = {
    "--input-shapes": "sizes are given by --input NAME=1,3,224,224",
    "--inputs": "arrays are given by --input NAME=FILE.npy",
    "--measure-inputs": "arrays are given by --input NAME=FILE.npy",
    "--progress": "progress is always shown; -q hides it, and -v shows details",
    "--solution": "-o FILE writes the solution, and --plan FILE the plan alone",
}
"""What is said about options of earlier versions."""
_CHOICE = re.compile(r"(invalid choice: '([^']*)') \(choose from (.*)\)", re.DOTALL)


class _HelpAll(argparse.Action):
    """--help-all: prints the help with every option."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        text = "show every option"
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=text)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print the help and end."""
        assert isinstance(parser, CommandParser)
        parser.show_all()
        parser.print_help()
        parser.exit()


class CommandParser(argparse.ArgumentParser):
    """A parser of argparse; those of its subcommands are of the same class."""

    group = MORE
    """One of COMMAND_GROUPS, where this parser is of a subcommand."""
    _common: Collection[str] = ()
    """Options that --help shows; empty: it shows all."""

    root: Callable[[], argparse.ArgumentParser] | None = None
    """Returns the parser of all commands, to say which one has an option; None: it is not asked."""
    _words: Sequence[str] = ()
    """What is parsed."""

    def __init__(self, **options: Any) -> None:
        """Make one that knows options by their whole names: `--al` is not `forget --all`."""
        super().__init__(**{"allow_abbrev": False, **options})

    def show_first(self, flags: Collection[str]) -> None:
        """Let --help show these options alone, and add --help-all."""
        self._common = flags
        self.add_argument("--help-all", action=_HelpAll)

    def show_all(self) -> None:
        """Let --help show every option."""
        self._common = ()

    def format_help(self) -> str:
        """Return the help: subcommands by group; of many options, the common ones."""
        if self.root is None and self._has_commands() and not self._common:
            return self._grouped_help()
        if not self._common:
            return super().format_help()
        shown = {"-h", "--help-all", *self._common}
        hidden = [
            action
            for action in self._actions
            if action.option_strings and shown.isdisjoint(action.option_strings)
        ]
        texts = [action.help for action in hidden]
        groups = [(group, group.title, group.description) for group in self._action_groups]
        usage = self.usage
        names = [str(a.metavar or a.dest) for a in self._actions if not a.option_strings]
        try:
            self.usage = f"{self.prog} [OPTION ...] {' '.join(names)}"
            for action in hidden:
                action.help = argparse.SUPPRESS
            for group, _, _ in groups:
                if all(action in hidden for action in group._group_actions):
                    group.title = group.description = None
            return f"{super().format_help()}\n{len(hidden)} more options: {self.prog} --help-all\n"
        finally:
            self.usage = usage
            for action, text in zip(hidden, texts, strict=True):
                action.help = text
            for group, title, description in groups:
                group.title, group.description = title, description

    def _grouped_help(self) -> str:
        lines: dict[str, list[str]] = {group: [] for group in COMMAND_GROUPS}
        (commands,) = self._groups()
        width = max(map(len, commands.choices))
        for entry in commands._choices_actions:
            parser = commands.choices[entry.dest]
            group = parser.group if isinstance(parser, CommandParser) else MORE
            lines[group].append(f"  {entry.dest:{width}}  {entry.help}")
        filled = {group: "\n".join(of) for group, of in lines.items() if of}
        if len(filled) == 1:  # commands of a command
            filled = dict(zip(("Commands",), filled.values(), strict=True))
        texts = [f"{group}:\n{text}" for group, text in filled.items()]
        usage = f"usage: {self.prog} COMMAND [OPTION ...]"
        options = f"`{self.prog} COMMAND --help` shows the options of a command."
        epilog = textwrap.fill(self.epilog or "", _HELP_WIDTH)
        parts = [usage, self.description or "", *texts, options, epilog]
        return "\n\n".join(part for part in parts if part) + "\n"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; refuse options of other commands, and to write what is read.

        So a subcommand answers for its own options.
        """
        self._words = list(args or ())
        self._check_before_command()
        namespace_read, rest = super().parse_known_args(args, namespace)
        unknown = [word for word in rest if word.startswith("-")]
        if unknown and not self._has_commands():
            self.error(unknown_options(unknown, options_of(self), self._owners(unknown)))
        if not self._has_commands() and (fault := overwriting(self, namespace_read)) is not None:
            self.error(fault)
        return namespace_read, rest

    def error(self, message: str) -> NoReturn:
        """Print the message, with the nearest choice, and exit with code 2.

        The usage of a command with many options would hide the message.
        """
        if message.startswith("the following arguments are required"):
            # One that is misspelt is missing for that reason.
            message = self._misspelt() or message
        choice = _CHOICE.search(message)
        if choice is not None:
            near = did_you_mean(choice[2], re.findall(r"[^\s',]+", choice[3]))
            message = message.replace(choice[1], choice[1] + near)
        self.exit(2, f"error: {message} (`{self.prog} -h` shows the usage)\n")

    def _misspelt(self) -> str:
        """What is said about the first option that was given and is near one there is; "": none."""
        options = options_of(self)
        flags = [word.partition("=")[0] for word in self._words if word.startswith("--")]
        strange = [flag for flag in flags if flag not in options]
        is_meant = bool(strange) and bool(did_you_mean(strange[0], options))
        owners = self._owners(strange[:1])
        return unknown_options(strange[:1], options, owners) if is_meant or owners else ""

    def _check_before_command(self) -> None:
        """Refuse options that stand before their command: their values would be its name."""
        names = [name for group in self._groups() for name in group.choices]
        for word in self._words if names else ():
            if not word.startswith("-") or word == "--":
                return
            if word.partition("=")[0] not in options_of(self):
                self.error(unknown_options([word], options_of(self), self._owners([word])))

    def _owners(self, unknown: Iterable[str]) -> list[str]:
        """The commands that have the first of some options that this one does not have."""
        name = next((word.partition("=")[0] for word in unknown), "")
        root = self if self._has_commands() else self.root and self.root()
        return [] if not root else [p.prog for p in leaves(root) if name in options_of(p)]

    def _groups(self) -> Iterator[argparse._SubParsersAction[Any]]:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield action

    def _has_commands(self) -> bool:
        return any(True for _ in self._groups())


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return all options of a parser, with their dashes."""
    return [flag for action in parser._actions for flag in action.option_strings]


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of all commands that have no commands of their own."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield parser
    for group in groups:
        for command in group.choices.values():
            yield from leaves(command)


def unknown_options(
    unknown: Iterable[str], valid: Iterable[str], owners: Sequence[str] = ()
) -> str:
    """Return what is said about options that are not known.

    Parameters
    ----------
    owners
        Commands that have the first of them.

    >>> unknown_options(["--clutser=x"], ["--cluster", "--graph"])
    'unrecognized arguments: --clutser; did you mean "--cluster"?'
    >>> unknown_options(["--runs"], ["--runs"])
    'unrecognized arguments: --runs; after "--" it is no option: write it before'
    """
    names = [word.partition("=")[0] for word in unknown]
    text = f"unrecognized arguments: {' '.join(names)}"
    options = list(valid)
    if names[0] in _REPLACED:
        return f"{text}; {_REPLACED[names[0]]}"
    first, *rest = names[0].split() or [""]
    if first in options and rest:
        return f"{text}; write {first} and its value as two words, or {first}={' '.join(rest)}"
    if first in options:
        return f'{text}; after "--" it is no option: write it before'
    # A shorter or longer form is meant; other near ones are guesses, and the owner is none.
    if owners and not any(first.startswith(one) or one.startswith(first) for one in options):
        return f"{text}; {first} is an option of {listed(map('`{}`'.format, owners), at_most=3)}"
    return text + next(filter(None, (did_you_mean(name, options) for name in names)), "")
