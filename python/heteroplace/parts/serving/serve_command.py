"""`heteroplace serve`: compiled files -> an HTTP server, whose packages are loaded when it runs."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from pathlib import Path

from heteroplace.cli.shared import Parsers, add_command, add_json, progress_display
from heteroplace.command_parser import START
from heteroplace.errors import HeteroPlaceError, MissingPackageError
from heteroplace.options import add_arguments, from_arguments
from heteroplace.parts.serving.serving_options import ServingOptions
from heteroplace.stage_log import StageLog

_SERVER = "heteroplace.parts.serving.http_server"


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `serve`."""
    parser = add_command(
        commands,
        "serve",
        "serve compiled files over HTTP (Open Inference Protocol)",
        run,
        description="Serve compiled files over HTTP by the Open Inference Protocol, version 2, "
        "until SIGTERM or Ctrl-C; requests in flight are then finished. Files are loaded before "
        "the port opens.",
        group=START,
    )
    parser.add_argument(
        "models",
        nargs="+",
        metavar="[NAME=]FILE",
        help="a compiled file; its model is called NAME, or as the file without its suffix",
    )
    add_arguments(parser, ServingOptions)
    parser.add_argument(
        "--trusted-key",
        metavar="KEY.pem",
        action="append",
        help="serve only files that this public key has signed; may be repeated",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Load the files and serve them until a signal.

    Raises
    ------
    HeteroPlaceError
        A file cannot be loaded or served, a name is used twice, or the port is taken.
    MissingPackageError
        The extra `serve` is not installed.
    """
    files = named_files(arguments.models)
    options = from_arguments(ServingOptions, arguments)
    try:
        server = importlib.import_module(_SERVER)
    except ModuleNotFoundError as err:
        raise MissingPackageError(
            f"heteroplace serve needs {err.name}, which is not installed; run: pip install "
            f'"heteroplace[serve]"'
        ) from err

    display = progress_display(arguments)

    def say_started(host: str, port: int) -> None:
        display.close()
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        value = {"url": url, "models": list(files)}
        text = f"serving {', '.join(files)} on {url}"
        print(json.dumps(value) if arguments.json else text, flush=True)

    with display:
        log = StageLog(display=display)
        server.serve(files, options, arguments.trusted_key, say_started, log)


def named_files(texts: Sequence[str]) -> dict[str, str]:
    """Return paths by the names of their models, from FILE or NAME=FILE.

    Raises
    ------
    HeteroPlaceError
        Two files have one name, or a name is empty or has a slash.
    """
    files: dict[str, str] = {}
    for text in texts:
        name, separator, path = text.partition("=")
        if not separator or Path(text).exists():
            name, path = Path(text).stem, text
        if not name or "/" in name:
            raise HeteroPlaceError(f"{text}: expected FILE or NAME=FILE; a name has no slash")
        if name in files:
            raise HeteroPlaceError(
                f"{files[name]} and {path} are both called {name!r}; name one: OTHER={path}"
            )
        files[name] = path
    return files
