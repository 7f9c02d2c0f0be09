"""The command `tvmc`: TVM's own driver, with placement in `compile` and placed files in `run`.

This version of TVM's driver loads no plug-ins. It keeps a list of functions that make its parsers,
though, and one that is added behind its own finds those of `compile` and `run` ready to be
extended. A command line without `--placement`, and a package that TVM's driver compiled, go to
TVM's driver as they are.

Exit codes are TVM's, and more: 0 done, 2 wrong usage, 3 no placement is possible, 4 any other
error, 5 a package is missing, 6 no plan within the budget, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from heteroplace.cli.main import report
from heteroplace.cli.tvmc_plugin.tvmc_errors import guarded
from heteroplace.cli.tvmc_plugin.tvmc_options import moved_option
from heteroplace.command_parser import options_of, unknown_options
from heteroplace.entry import INTERRUPTED
from heteroplace.errors import MissingTVMError
from heteroplace.interrupts import Interrupts
from heteroplace.terminal import printable_streams
from heteroplace.tvm_bridge import register_onnx_mapping_shim, require_tvm
from heteroplace.written_files import WrittenFile, overwriting

# They import TVM, so they are loaded only when it is known to be there. Each has
# `extend(parser, argv)`, which adds its options to TVM's parser and returns the command to run.
_EXTENSIONS = {
    "compile": "heteroplace.cli.tvmc_plugin.tvmc_compile",
    "run": "heteroplace.cli.tvmc_plugin.tvmc_run",
}
_WRITTEN = {"compile": "output", "run": "outputs"}
"""The option of TVM's own that names the file a command writes. `tune` is not here: it appends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; by default those of this process.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    with printable_streams():
        try:
            return _run(argv)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED


def _run(argv: list[str]) -> int:
    try:
        require_tvm()
        importlib.import_module("tvm.driver.tvmc")  # its commands register themselves
        extensions = {name: importlib.import_module(path) for name, path in _EXTENSIONS.items()}
    except MissingTVMError as fault:
        return report(fault, str(fault), is_verbose=False)
    except ModuleNotFoundError as fault:
        # What Relay or TVM's driver needs beside TVM (onnx, cloudpickle, ...).
        text = f"{fault}; install it, or all at once by: pip install 'heteroplace[relay]'"
        return report(fault, text, is_verbose=False)
    # TVM's own commands shall read ONNX files as well, with an onnx of today.
    register_onnx_mapping_shim()
    driver = importlib.import_module("tvm.driver.tvmc.main")

    def extend(
        commands: argparse._SubParsersAction[argparse.ArgumentParser],
        parser: argparse.ArgumentParser,
        defaults: object,
    ) -> None:
        del defaults  # TVM's functions have applied its configuration file already
        say_what_was_meant(parser, commands, argv)
        for name, extension in extensions.items():
            command = commands.choices[name]
            declare_written(command, _WRITTEN[name])
            command.set_defaults(func=guarded(extension.extend(command, argv)))

    driver.register_parser(extend)
    try:
        with Interrupts():
            return int(driver._main(argv) or 0)
    finally:
        driver.REGISTERED_PARSER.remove(extend)


def declare_written(command: argparse.ArgumentParser, name: str) -> None:
    """Make an option of TVM's the name of a file to write, and check the command's files."""
    action = next(action for action in command._actions if action.dest == name)
    action.__class__ = WrittenFile
    if name == "outputs":
        vars(action)["ending"] = ".npz"  # which numpy adds
    parse = command.parse_known_args

    def parse_and_check(*args: Any, **options: Any) -> Any:
        arguments, rest = parse(*args, **options)
        if (fault := overwriting(command, arguments)) is not None:
            command.exit(2, f"error: {fault}\n")  # without the usage, which has 300 lines
        return arguments, rest

    command.parse_known_args = parse_and_check  # type: ignore[method-assign]


def say_what_was_meant(
    parser: argparse.ArgumentParser,
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    argv: Sequence[str],
) -> None:
    """Have TVM's parser say what replaced an unknown option, or which option is nearest."""
    fail = parser.error

    def error(message: str) -> NoReturn:
        command = next((word for word in argv if word in commands.choices), None)
        unknown = [word for word in message.split() if word.startswith("-")]
        if command is not None and message.startswith("unrecognized arguments") and unknown:
            flags = options_of(commands.choices[command])
            moved = filter(None, (moved_option(word, argv) for word in unknown))
            message = next(moved, None) or unknown_options(unknown, flags)
        fail(message)

    parser.error = error  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
