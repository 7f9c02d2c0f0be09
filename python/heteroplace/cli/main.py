"""The command `heteroplace`: reads the arguments, runs one subcommand, turns errors into codes.

Exit codes, as of `tvmc`: 0 done (`place`: there is a plan), 2 wrong usage, 3 no placement is
possible, 4 any other error (its code HP... says which), 5 a package is missing, 6 no plan was found
within the budget, 130 interrupted without a plan.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import heteroplace
from heteroplace.command_parser import VERBOSE_FLAGS, VERBOSE_HELP, CommandParser, leaves
from heteroplace.entry import INTERRUPTED
from heteroplace.errors import HeteroPlaceError, InfeasibleError, PluginError, SolverLimitError
from heteroplace.interrupts import Interrupts
from heteroplace.registry import added_plugins, load_plugin
from heteroplace.terminal import ends_quietly, printable_streams

EXIT_CODES = (
    "Exit codes: 0 done, 2 wrong usage, 3 no placement is possible, 4 any other error (its code "
    "HP... says which), 5 a package is missing, 6 no plan was found within the budget, 130 "
    "interrupted."
)
INFEASIBLE, WRONG_INPUT, MISSING_PACKAGE, NO_PLAN = 3, 4, 5, 6
_CLI = "heteroplace.cli"
_FOLDER = Path(__file__).parent
_MODULES = {
    "run": "run_model",
    "compile": "run_model",
    "report": "report_command",
    "doctor": "doctor",
    "explain": "questions",
    "show": "show",
    "diff": "questions",
    "simulate": "questions",
    "probe": "probe_command",
    "clusters": "check_command",
    "setup-tvm": "setup_tvm",
    "place": "place",
    "profile": "profile_command",
    "costs": "costs_command",
    "solvers": "solvers_command",
    "check": "check_command",
    "completion": "doctor",
}
_COMMANDS = {
    name: module for name, module in _MODULES.items() if (_FOLDER / f"{module}.py").is_file()
}
"""Each subcommand, and the module of this folder that adds it with `add_commands(subparsers)`; it
sets `run`, which takes the parsed arguments and returns nothing. Only the one that is called is
loaded, by `main`, which answers Ctrl-C. The wheel heteroplace-runtime has few of them. Parts and
other packages register such a function as an entry point of `heteroplace.commands`, by the name of
the subcommand."""
_SEAM = "commands"
_DOCTOR = "doctor"

_VERSION = f"heteroplace {heteroplace.__version__}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; by default those of this process.
    """
    with printable_streams():
        try:
            return _run(arguments)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:  # which needs no command
        print(_VERSION)
        return 0
    try:
        parsed = make_parser(_command_of(given)).parse_args(given)
    except PluginError as fault:
        return report(fault, str(fault), is_verbose=False)
    logger = logging.getLogger("heteroplace")
    level = logger.level
    if parsed.quiet:
        logger.setLevel(logging.ERROR)
    try:
        return reported(lambda: parsed.run(parsed), is_verbose=parsed.verbose)
    finally:
        logger.setLevel(level)  # the caller's, who may go on


def reported(command: Callable[[], int | None], *, is_verbose: bool) -> int:
    """Run a command, print its error in one line, and return the exit code."""
    try:
        with Interrupts():
            code = command()
        sys.stdout.flush()  # so that a closed pipe is noticed here, not while the interpreter ends
        return code or 0
    except (HeteroPlaceError, ImportError, OSError) as fault:
        if isinstance(fault, BrokenPipeError) and ends_quietly():
            return 0
        return report(fault, str(fault), is_verbose=is_verbose)


def report(fault: Exception, text: str, *, is_verbose: bool) -> int:
    """Print `text`, after the traceback of `fault` if asked for; return the exit code."""
    if is_verbose:
        traceback.print_exception(fault)
    print(error_text(fault, text), file=sys.stderr)
    return exit_code(fault)


def _command_of(arguments: Sequence[str]) -> str | None:
    """The subcommand that is called; None: there is none, or it is not known."""
    words = (word for word in arguments if not word.startswith("-"))
    word = next(words, None)
    # The doctor says what is wrong with a plugin, so it is reached whatever plugins there are.
    return word if word == _DOCTOR or word in command_names() else None


def command_names() -> tuple[str, ...]:
    """Return the names of all subcommands: those of the core, then those of plugins.

    Raises
    ------
    PluginError
        A package registers a name of ours, or two packages register one name.
    """
    return (*_COMMANDS, *added_plugins(_SEAM, _COMMANDS))


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the whole command line, or of one command alone.

    Raises
    ------
    PluginError
        The package that registers a command cannot be loaded.
    """
    parser = CommandParser(
        prog="heteroplace",
        description="Run a model on all the processors of a machine at once.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=_VERSION)
    parser.add_argument(*VERBOSE_FLAGS, action="store_true", help=VERBOSE_HELP)
    parser.set_defaults(quiet=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    names = command_names() if command is None else (command,)
    for module in dict.fromkeys(_COMMANDS[name] for name in names if name in _COMMANDS):
        importlib.import_module(f"{_CLI}.{module}").add_commands(commands)
    for name in names:
        if name not in _COMMANDS:
            load_plugin(_SEAM, name)(commands)
            if name not in commands.choices:
                raise PluginError(
                    f"the plugin {name!r} of the group 'heteroplace.{_SEAM}' adds no command of "
                    f"that name; rename its entry point or its command"
                )
    if command is None:  # a module may add several commands
        commands._choices_actions.sort(key=lambda entry: names.index(entry.dest))
    root = make_parser if command is not None else lambda: parser
    for leaf in leaves(parser):
        if isinstance(leaf, CommandParser):
            leaf.root = root
    return parser


def error_text(fault: Exception, text: str) -> str:
    """Return what is printed of an error: `text`, and its code, which `doctor` takes."""
    code = f" [{fault.code}]" if isinstance(fault, HeteroPlaceError) else ""
    return f"error: {text}{code}"


def exit_code(fault: Exception) -> int:
    """Return the exit code of an error, of every command."""
    # MissingPackageError is also an ImportError.
    if isinstance(fault, ImportError):
        return MISSING_PACKAGE
    if isinstance(fault, SolverLimitError):
        return NO_PLAN
    return INFEASIBLE if isinstance(fault, InfeasibleError) else WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
