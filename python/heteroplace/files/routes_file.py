"""Route decisions of runs as JSON Lines: written as they come, read record by record.

The first line says whose decisions they are; each further one is what one router decided in one
run:

    {"routes_version": 1, "model": "5f0c..", "level": 2, "routers": [{"name": "r0", "cells": 3, "branches": 2}]}
    {"run": 0, "router": "r0", "loads": [1, 2], "active": [0, 1], "cells": [0, [0, 1], -1]}

`cells` (level 2) has for each cell its branch, a list of branches, or -1 where it is dropped; one
that a branch drops at its capacity is in `loads` and `active` all the same.
"""  # noqa: E501  (lines of a file)

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from heteroplace.argument_checks import did_you_mean
from heteroplace.errors import RoutingError
from heteroplace.files.faults import show
from heteroplace.files.fields.fields import Name, PositiveCount, Text
from heteroplace.files.output import naming, replacing
from heteroplace.files.reader import parse_json, read_struct
from heteroplace.model.routed.route_profile import Cells, RouteRecord, RouterShape

ROUTES_VERSION: Literal[1] = 1
LEVELS = (1, 2)
"""Loads of branches; also the decision about each cell."""
_MAX_FAULTS = 50
MAX_BRANCHES = 1 << 16
"""Of a router: whoever counts has a counter for each."""
_DROPPED = -1


class RouterEntry(Struct, forbid_unknown_fields=True, frozen=True):
    """A router whose decisions follow."""

    name: Name
    cells: PositiveCount
    branches: Annotated[int, Meta(ge=1, le=MAX_BRANCHES)]


class RoutesHeader(Struct, forbid_unknown_fields=True, frozen=True):
    """The first line."""

    routes_version: Literal[1]
    model: Text
    level: Annotated[int, Meta(ge=LEVELS[0], le=LEVELS[-1], title="one of 1, 2")]
    routers: Annotated[tuple[RouterEntry, ...], Meta(min_length=1)]


class _Line(Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Any other line."""

    run: int
    router: str
    loads: list[int]
    active: list[int]
    cells: list[int | list[int]] | None = None


def header_line(model_digest: str, level: int, routers: Sequence[RouterShape]) -> str:
    """Return the first line of a file, with its end; parameters and errors as of `RoutesWriter`."""
    for router in routers:
        if router.num_branches > MAX_BRANCHES:
            raise RoutingError(
                f"router {router.name!r} has {router.num_branches} branches; at most "
                f"{MAX_BRANCHES} can be in a recording"
            )
    entries = tuple(RouterEntry(r.name, r.num_cells, r.num_branches) for r in routers)
    header = RoutesHeader(ROUTES_VERSION, model_digest, level, entries)
    return msgspec.json.encode(header).decode() + "\n"


class RoutesWriter:
    """Writes records as they come; not thread-safe. Use it as a context manager, or close it.

    Parameters
    ----------
    path
        What is there is replaced.
    model_digest, level, routers
        See `RouteProfile`, `LEVELS`.

    Raises
    ------
    RoutingError
        A router has more than `MAX_BRANCHES` branches. What is at `path` stays.
    OSError
        The file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model_digest: str,
        level: int,
        routers: Sequence[RouterShape],
    ) -> None:
        self._level = level
        self._encoder = msgspec.json.Encoder()
        self._path = path
        header = header_line(model_digest, level, routers)
        self._stack = ExitStack()
        self._file = self._stack.enter_context(replacing(path))
        self._write(header.encode())

    def __enter__(self) -> RoutesWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, fault, trace)

    def write(self, record: RouteRecord) -> None:
        """Add a record; what its level has over that of the file is left out."""
        cells = None
        if self._level > 1 and record.cells is not None:
            cells = [_plain(taken) for taken in record.cells]
        loads, active = list(record.loads), list(record.active)
        line = _Line(record.run, record.router, loads, active, cells)
        self._write(self._encoder.encode(line) + b"\n")

    def _write(self, data: bytes) -> None:
        with naming(self._path):
            self._file.write(data)

    def close(self) -> None:
        """Write what is left and put the file in its place; may be called again."""
        self._stack.close()


class RoutesReader:
    """A file of records; its header is read at once, its records one by one.

    Raises
    ------
    RoutingError
        The file cannot be read, or its first line is wrong (all faults are named).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._source = Path(path), os.fspath(path)
        with closing(self._lines()) as lines:
            text = next(lines, b"")
        try:
            value = parse_json(text.decode())
        except UnicodeDecodeError as fault:
            raise RoutingError(f"{self._source}: is no text: {fault}") from fault
        except ValueError as fault:
            raise RoutingError(
                f"{self._source}: line 1: expected a JSON object with routes_version, model, level "
                f"and routers, got no JSON ({fault}); record it again (executor.record)"
            ) from fault
        header, faults = read_struct(value, RoutesHeader, f"{self._source}: line 1", RoutingError)
        names: dict[str, int] = {}
        for index, entry in enumerate(header.routers):
            if names.setdefault(entry.name, index) != index:
                faults.add(("routers", index, "name"), f"{show(entry.name)} occurs twice")
        faults.check()
        self.model_digest: str = header.model
        self.level: int = header.level
        self.routers = tuple(
            RouterShape(entry.name, entry.cells, entry.branches) for entry in header.routers
        )

    def records(self) -> Iterator[RouteRecord]:
        """Yield the records in order; those that are wrong are told together at the end.

        Raises
        ------
        RoutingError
            Lines are wrong: no record, an unknown router, loads that are not those of the cells, a
            branch that there is not. Names lines and what was expected. Or the file cannot be read.
        """
        shapes = {shape.name: shape for shape in self.routers}
        decoder = msgspec.json.Decoder(_Line)
        faults: list[str] = []
        with closing(self._lines()) as lines:
            next(lines, None)
            for number, text in enumerate(lines, 2):
                try:
                    record = _record(_read_line(text, decoder), shapes, self.level)
                except ValueError as fault:  # also those of msgspec, and of bytes that are no text
                    faults.append(f"line {number}: {fault}")
                    if len(faults) == _MAX_FAULTS:
                        break
                    continue
                yield record
        if faults:
            listing = "".join(f"\n  {fault}" for fault in faults)
            count = "a fault" if len(faults) == 1 else f"{len(faults)} faults"
            raise RoutingError(f"{self._source}: {count}{listing}")

    def _lines(self) -> Generator[bytes, None, None]:
        """The lines of the file, as bytes: one that is no text is told by its number."""
        try:
            with self._path.open("rb") as file:
                yield from file
        except OSError as fault:
            raise RoutingError(f"{self._source}: cannot be read: {fault.strerror}") from fault
        except ValueError as fault:  # a path that no file has
            raise RoutingError(f"{self._source!a}: cannot be read: {fault}") from fault


def records_of_lines(
    lines: bytes, routers: Sequence[RouterShape], level: int
) -> Iterator[RouteRecord]:
    """Yield the records in whole lines, without a header, as they are written.

    Raises
    ------
    RoutingError
        A line is wrong.
    """
    shapes = {shape.name: shape for shape in routers}
    decoder = msgspec.json.Decoder(_Line)
    for text in lines.splitlines():
        try:
            yield _record(_read_line(text, decoder), shapes, level)
        except ValueError as fault:
            raise RoutingError(f"a record of routes is wrong: {fault}") from fault


def is_routes_file(path: str | os.PathLike[str]) -> bool:
    """Tell whether the first line of a file is that of records; raises RoutingError if unreadable.

    What is no record of any kind is told by whoever reads it as something else.
    """
    try:
        with Path(path).open("rb") as file:
            start = file.readline()
    except OSError as fault:
        raise RoutingError(f"{os.fspath(path)}: cannot be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise RoutingError(f"{os.fspath(path)!a}: cannot be read: {fault}") from fault
    return b'"routes_version"' in start


def _plain(taken: tuple[int, ...]) -> int | list[int]:
    """The branches of a cell as a line has them."""
    if not taken:
        return _DROPPED
    return taken[0] if len(taken) == 1 else list(taken)


def _read_line(text: bytes, decoder: msgspec.json.Decoder[_Line]) -> _Line:
    """A line decoded; ValueError: it is no record, or has a key twice.

    Of such a key the decoder keeps the last. A line of other keys than that has as many colons as
    keys, beside those in the router's name; an escape in that could hide one.
    """
    line = decoder.decode(text)
    num_keys = len(_Line.__struct_fields__) - (line.cells is None)
    if text.count(b":") != num_keys + line.router.count(":") or b"\\" in text:
        parse_json(text.decode())
    return line


def _record(line: _Line, shapes: dict[str, RouterShape], level: int) -> RouteRecord:
    """A checked record; raises ValueError with what is wrong."""
    shape = shapes.get(line.router)
    if shape is None:
        nearest = did_you_mean(line.router, shapes)
        raise ValueError(f"no router is called {show(line.router)}{nearest}")
    if line.run < 0:
        raise ValueError(f"run: expected a number >= 0, got {line.run}")
    loads = tuple(line.loads)
    if len(loads) != shape.num_branches:
        raise ValueError(
            f"loads: expected {shape.num_branches} of router {shape.name!r}, got {len(loads)}"
        )
    wrong = [load for load in loads if not 0 <= load <= shape.num_cells]
    if wrong:
        raise ValueError(
            f"loads: expected numbers in 0..{shape.num_cells}, the cells of router "
            f"{shape.name!r}, got {wrong[0]}"
        )
    cells = None if line.cells is None else _cells(line.cells, shape)
    if (cells is None) != (level == 1):
        raise ValueError(
            f"cells: expected {'none' if level == 1 else 'one entry per cell'} at level {level}"
        )
    record = RouteRecord(line.run, shape.name, loads, cells)
    if line.active != list(record.active):
        raise ValueError(
            f"active: expected the branches with cells {list(record.active)}, got {line.active}"
        )
    if cells is not None:
        row = [0] * shape.num_branches
        for taken in cells:
            for branch in taken:
                row[branch] += 1
        # What is dropped at a capacity is in the load, and takes no branch.
        if any(kept_cells > load for kept_cells, load in zip(row, loads, strict=True)):
            raise ValueError(f"loads: expected at least {row} by the cells, got {line.loads}")
    return record


def _cells(cells: list[int | list[int]], shape: RouterShape) -> Cells:
    if len(cells) != shape.num_cells:
        raise ValueError(
            f"cells: expected {shape.num_cells} of router {shape.name!r}, got {len(cells)}"
        )
    sets: list[tuple[int, ...]] = []
    for cell, entry in enumerate(cells):
        if entry == _DROPPED:
            sets.append(())
            continue
        taken = [entry] if isinstance(entry, int) else entry
        for branch in taken:
            if not 0 <= branch < shape.num_branches:
                raise ValueError(
                    f"cells[{cell}]: expected a branch in 0..{shape.num_branches - 1}, or -1 for "
                    f"none, got {branch}"
                )
        if len(set(taken)) < len(taken):
            raise ValueError(f"cells[{cell}]: names a branch twice: {taken}")
        sets.append(tuple(sorted(taken)))
    return tuple(sets)
