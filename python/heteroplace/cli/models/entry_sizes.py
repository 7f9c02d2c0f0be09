"""Sizes of entries on the command line -> one executable that has a model at all of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from heteroplace.entries import load_entry
from heteroplace.errors import HeteroPlaceError
from heteroplace.options import Argument, count, key_value

if TYPE_CHECKING:  # it loads TVM
    from heteroplace.lower.executable import Executable

_WITH_ENTRIES = "heteroplace.lower.program_entries:with_entries"
_FORM = "NAME:SIZE=N, such as 'token:sequence_length=1'"


def add_entries(parser: argparse.ArgumentParser) -> None:
    """Add --entry."""
    parser.add_argument(
        "--entry",
        metavar="NAME:SIZE=N,SIZE=N",
        type=Argument(_entry),
        action="append",
        default=[],
        help="an entry of the file: the model with these sizes, as of --size; may be repeated. All "
        "entries share weights and sessions, and `heteroplace run` runs the first one",
    )


def _entry(text: str) -> tuple[str, dict[str, int]]:
    """Read NAME:SIZE=N,SIZE=N."""
    name, colon, sizes = text.partition(":")
    if not (name and colon):
        raise ValueError(f"expected {_FORM}, got {text!r}")
    return name, dict(key_value(_FORM, count)(size) for size in sizes.split(","))


def compile_entries(
    arguments: argparse.Namespace, compile_with: Callable[[Mapping[str, int]], Executable]
) -> Executable:
    """Compile a model once, or once for each entry.

    Parameters
    ----------
    compile_with
        Compiles it with further named sizes.

    Raises
    ------
    HeteroPlaceError
        Two entries have one name, or what `compile_with` raises.
    """
    entries: list[tuple[str, dict[str, int]]] = arguments.entry
    if not entries:
        return compile_with({})
    names = [name for name, _ in entries]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise HeteroPlaceError(f"--entry: {twice[0]!r} is there twice; give each entry one name")
    executables = {name: compile_with(sizes) for name, sizes in entries}
    joined: Executable = load_entry(_WITH_ENTRIES)(executables)
    return joined
