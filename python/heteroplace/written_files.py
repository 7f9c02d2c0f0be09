"""Arguments of a command line that name files to write; refuses one that is read, too.

An argument whose action is `WrittenFile` names a file that the command writes. Every other value
that names an existing file counts as read, so inputs need no declaration. `CommandParser` checks
each command line by `overwriting`.
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heteroplace.entries import load_entry
from heteroplace.errors import CostStoreError
from heteroplace.files.output import final_path, is_replaceable

_STORE_PATH = "heteroplace.costs.store:default_path"
"""Loaded for commands that keep measured kernels."""
_ONNX_START = b"\x08"
"""The first byte of every ONNX model: the field `ir_version`."""


class WrittenFile(argparse._StoreAction):
    """The action of an argument that names a file to write."""

    default_name: Callable[[argparse.Namespace], str | None] | None = None
    """Returns the file that is written where the argument is left out; None: no file is."""
    ending = ""
    """What is added to a name without it."""

    def __init__(self, *args: Any, default_name: Any = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.default_name = default_name


@dataclass(frozen=True)
class FileArgument:
    """A file that a command line names, or that the command uses by default."""

    label: str
    """The option or the positional argument, as the help text has it."""
    path: Path


def label_of(action: argparse.Action) -> str:
    """Return an argument as users write it."""
    if action.option_strings:
        return action.option_strings[-1]
    shown = action.metavar if isinstance(action.metavar, str) else action.dest
    return shown.partition(".")[0]


def overwriting(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> str | None:
    """Return why a command line would overwrite a file; None: it would not.

    Two names of one file count as one: links, symbolic or hard, are followed. Devices and pipes
    are never overwritten.

    Parameters
    ----------
    parser
        Of the command.
    arguments
        What it has parsed.
    """
    written = list(_written(parser, arguments))
    return overwritten_file(written, list(_read(parser, arguments)) if written else [])


def overwritten_file(written: Sequence[FileArgument], read: Sequence[FileArgument]) -> str | None:
    """Return why one of the files to write must not be written; None: all may be."""
    outputs = [file for file in written if _is_replaced(file.path)]
    for index, output in enumerate(outputs):
        for other in outputs[:index]:
            if _is_same(output.path, other.path):
                return (
                    f"{other.label} and {output.label} would both write {output.path}; give each "
                    f"a file of its own"
                )
    present = [output for output in outputs if output.path.exists()]
    if not present:
        return None
    for source in _with_external_data(read):
        for output in present:
            if _is_same(output.path, source.path):
                same = "" if output.path == source.path else f", the same file as {source.path}"
                return (
                    f"{output.label} would overwrite {output.path}{same}, which is read as "
                    f"{source.label}; give another file to write"
                )
    return None


def _written(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace
) -> Iterator[FileArgument]:
    for action in parser._actions:
        if not isinstance(action, WrittenFile):
            continue
        value = getattr(arguments, action.dest, None)
        if value is None and action.default_name is not None:
            value = action.default_name(arguments)
        if value:
            text = os.fspath(value)
            added = "" if text.endswith(action.ending) else action.ending
            yield FileArgument(label_of(action), Path(text + added))


def _read(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Iterator[FileArgument]:
    for action in parser._actions:
        if isinstance(action, WrittenFile) or action.choices is not None:
            continue
        for text in _texts(getattr(arguments, action.dest, None)):
            if _is_file(text):
                yield FileArgument(label_of(action), Path(text))
    if hasattr(arguments, "store"):
        try:
            yield FileArgument("the store of measured kernels", load_entry(_STORE_PATH)())
        except CostStoreError:  # no home: then there is no such store either
            return


def _texts(value: object) -> Iterator[str]:
    """All texts of a value that may name a file: also FILE in NAME=FILE."""
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        if isinstance(text, str) and text and "\0" not in text:
            yield text
            yield from filter(None, [text.partition("=")[2], text.rpartition("=")[2]])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # longer than a name may be
        return False


def _is_replaced(path: Path) -> bool:
    try:
        return is_replaceable(final_path(path))
    except (OSError, ValueError):  # `check_writable` says what is wrong with the name
        return False


def _is_same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def _with_external_data(read: Sequence[FileArgument]) -> Iterator[FileArgument]:
    """The files, and those that hold weights of an ONNX model among them."""
    yield from read
    for source in read:
        for location in _external_data(source.path):
            yield FileArgument(f"the external data of {source.path}", source.path.parent / location)


def _external_data(path: Path) -> set[str]:
    """The files that an ONNX model refers to; none of anything else."""
    try:
        with path.open("rb") as file:
            if file.read(1) != _ONNX_START:
                return set()
        onnx = importlib.import_module("onnx")
        decode_error = importlib.import_module("google.protobuf.message").DecodeError
    except (ImportError, OSError):  # the command says so itself
        return set()
    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)
    except (decode_error, OSError):
        return set()
    tensors = onnx.external_data_helper._get_all_tensors(model)
    entries = (entry for tensor in tensors for entry in tensor.external_data)
    locations = {entry.value for entry in entries if entry.key == "location"}
    return {location for location in locations if location and "\0" not in location}
