"""`heteroplace setup-tvm`: put a TVM with Relay into the Python that runs it."""

from __future__ import annotations

import argparse
from pathlib import Path

from heteroplace.cli.shared import Parsers, add_command, add_json, show
from heteroplace.command_parser import MACHINE
from heteroplace.errors import MissingTVMError
from heteroplace.tvm_wheel import (
    SOURCE_NAME,
    TVMWheelError,
    build_wheel,
    default_cache_dir,
    describe_tvm,
    install_wheel,
)


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `setup-tvm`."""
    parser = add_command(
        commands,
        "setup-tvm",
        "install a TVM with Relay, which compiling and running need",
        run,
        description="Make a wheel of the TVM with Relay that the public wheel bitblas carries, "
        "keep it in the cache folder, and install it into this Python. It needs compilers for C "
        "and C++.",
        group=MACHINE,
    )
    parser.add_argument("--check", action="store_true", help="only say which TVM there is")
    parser.add_argument(
        "--cache-dir",
        metavar="FOLDER",
        type=Path,
        help="folder for wheels; default: heteroplace's folder in the user's cache",
    )
    parser.add_argument(
        "--source",
        metavar="FILE",
        type=Path,
        help=f"a copy of {SOURCE_NAME}; default: by this Python's pip",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Install, unless only asked; say in one line which TVM this Python has.

    Raises
    ------
    MissingTVMError
        It cannot be made or installed here, or what there is has no Relay.
    """
    if not arguments.check:
        try:
            folder = arguments.cache_dir or default_cache_dir()
        except RuntimeError as fault:  # there is no home
            raise MissingTVMError(f"{fault} Give --cache-dir FOLDER") from fault
        try:
            install_wheel(build_wheel(folder.resolve(), arguments.source))
        except TVMWheelError as fault:
            raise MissingTVMError(str(fault)) from fault
    has_relay, text = describe_tvm()
    if not has_relay:
        advice = "" if not arguments.check else "; run `heteroplace setup-tvm`"
        raise MissingTVMError(f"{text}{advice}")
    show(arguments, lambda: {"tvm": text, "relay": has_relay}, lambda: text)
