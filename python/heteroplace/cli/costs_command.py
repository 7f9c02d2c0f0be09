"""`heteroplace costs ACTION`: the store of measured kernels, and predictions. Needs no TVM."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from heteroplace.cli.machine import costs_cross_validate
from heteroplace.cli.problem_arguments import add_store
from heteroplace.cli.shared import (
    Parsers,
    add_command,
    add_json,
    add_written,
    check_writable,
    plural,
    print_json,
    show,
)
from heteroplace.costs.device_figures import device_figures_table, known_devices
from heteroplace.costs.store import CostStore, default_path
from heteroplace.costs.store_file import load_rows, rows_to_json
from heteroplace.costs.store_values import UNITS_S, Row, StoreFilter
from heteroplace.costs.tunings import count_tunings, forget_tunings
from heteroplace.errors import HeteroPlaceError
from heteroplace.files.measurements import Note, date_seconds
from heteroplace.files.reader import write_json
from heteroplace.model.units import format_bytes, format_ns
from heteroplace.options import add_arguments, from_arguments
from heteroplace.report.tables import format_table

_HOW_TO_FILL = "measure with: heteroplace profile MODEL --cluster FILE"
_SHAPE = re.compile(r"float32(?=\[)")
_ARCHITECTURE = re.compile(r"-(?:mcpu|arch)=(\S+)")
_STANDARD_OUTPUT = "-"
_SHAREABLE = ("target", "device", "threads", "batch", "mode")
_LEFT_ALIGNED = ("op", "shapes (float32)", "target", "device", "mode")


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `costs` with its own subcommands."""
    parser = add_command(
        commands,
        "costs",
        "list, export, import or forget measured kernels; check predictions",
        description="The store of measured kernels, which all models share, and what is predicted "
        "where nothing was measured.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = add_command(actions, "list", "show what was measured", run_list)
    listing.add_argument(
        "--notes", action="store_true", help="show what was measured of links and interference"
    )
    listing.add_argument("--json", action="store_true", help="print JSON, as `export` writes it")
    _add_filters(listing)
    export = add_command(
        actions,
        "export",
        "write measurements to a file",
        run_export,
        description="Write measurements as JSON.",
    )
    add_written(export, "file", help='JSON; "-" for standard output')
    _add_filters(export)
    imports = add_command(
        actions,
        "import",
        "add the measurements in a file",
        run_import,
        description="Add the measurements in a file, all or, if it has faults, none. Of two of "
        "the same kernel the newer one stays.",
    )
    imports.add_argument("file", metavar="FILE", help="what `export` wrote (JSON)")
    forget = add_command(
        actions,
        "forget",
        "remove measurements",
        run_forget,
        description="Remove measurements from the store.",
    )
    _add_filters(forget)
    forget.add_argument("--all", action="store_true", help="remove everything, also all notes")
    forget.add_argument("--tuned", action="store_true", help="remove what was tuned, and no more")
    forget.add_argument("--dry-run", action="store_true", help="only say how many that would be")
    costs_cross_validate.add_cross_validate(actions)
    devices = add_command(
        actions,
        "devices",
        "show the devices whose figures are known",
        run_devices,
        description="Show the devices that costs can be predicted for by name (the model of a "
        "device in a cluster file), with their figures and where those are from.",
    )
    for action in (listing, export, imports, forget):
        add_store(action)
    for action in (export, imports, forget, devices):
        add_json(action)


def run_list(arguments: argparse.Namespace) -> None:
    """Print a table and a summary, or JSON."""
    only = from_arguments(StoreFilter, arguments)
    with _Opened(arguments.store) as opened:
        rows = opened.rows(only)
        notes = opened.notes(only)
    if arguments.json:
        print_json(rows_to_json(rows, notes))
    elif arguments.notes:
        print(_notes_table(notes) if notes else f"{opened.path}: no notes")
    elif rows:
        print(f"{_rows_table(rows)}\n\n{_summary(rows, notes, opened.path)}")
    else:
        print(opened.why_nothing())


def run_export(arguments: argparse.Namespace) -> None:
    """Write what the filters let through to a file, or to standard output."""
    only = from_arguments(StoreFilter, arguments)
    with _Opened(arguments.store) as opened:
        rows, notes = opened.rows(only), opened.notes(only)
    if not rows and not notes:
        raise HeteroPlaceError(opened.why_nothing())
    value = rows_to_json(rows, notes)
    if arguments.file == _STANDARD_OUTPUT:
        print_json(value)
        return
    check_writable(arguments.file)
    write_json(value, arguments.file)
    show(
        arguments,
        lambda: {"file": arguments.file, "measurements": len(rows), "notes": len(notes)},
        lambda: f"{arguments.file}: {_count(rows, notes)}",
    )


def run_import(arguments: argparse.Namespace) -> None:
    """Add what a file holds; the store is made if it is not there."""
    rows, notes = load_rows(arguments.file)
    with CostStore(arguments.store) as store:
        num_stored = store.add_many(rows, notes)
    older = len(rows) - num_stored
    read = {"measurements": len(rows), "notes": len(notes), "older": older}
    rest = f"; {older} of them left out, the store has newer ones" if older else ""
    show(
        arguments,
        lambda: {"store": str(store.path), **read},
        lambda: f"{store.path}: read {_count(rows, notes)}{rest}",
    )


def run_forget(arguments: argparse.Namespace) -> None:
    """Remove what the filters let through."""
    only = from_arguments(StoreFilter, arguments)
    if only.is_empty != (arguments.all or arguments.tuned):
        flag = "--all removes everything" if arguments.all else "--tuned takes no filters"
        raise HeteroPlaceError(
            "forget: give a filter, such as --op or --older-than, or --all to remove everything"
            if only.is_empty
            else f"forget: {flag}; leave it out, or the filters"
        )
    if arguments.tuned and not arguments.all:
        _forget_tuned(arguments)
        return
    with _Opened(arguments.store) as opened:
        if arguments.dry_run:
            num_rows, num_notes = len(opened.rows(only)), len(opened.notes(only))
        else:
            num_rows, num_notes = opened.forget(only)
            if arguments.all:
                opened.forget_tuned(is_real=True)
    removed = {"measurements": num_rows, "notes": num_notes}
    notes = f" and {plural(num_notes, 'note')}" if arguments.all else ""
    _show_removed(arguments, opened, removed, f"{plural(num_rows, 'measurement')}{notes}")


def _show_removed(
    arguments: argparse.Namespace, opened: _Opened, removed: dict[str, int], text: str
) -> None:
    verb = "would remove" if arguments.dry_run else "removed"
    show(
        arguments,
        lambda: {"store": str(opened.path), **removed, "dry_run": arguments.dry_run},
        lambda: f"{opened.path}: {verb} {text}",
    )


def _forget_tuned(arguments: argparse.Namespace) -> None:
    with _Opened(arguments.store) as opened:
        count = opened.forget_tuned(is_real=not arguments.dry_run)
    text = f"what was tuned of {plural(count, 'kernel')}"
    _show_removed(arguments, opened, {"tuned": count}, text)


def run_devices(arguments: argparse.Namespace) -> None:
    """Print the figures of known devices."""
    show(arguments, lambda: list(map(asdict, known_devices())), device_figures_table)


class _Opened:
    """The store to look at; the default one is empty, and is not made, where it is not there."""

    def __init__(self, path: str | None) -> None:
        self.path = default_path() if path is None else Path(path)
        is_there = path is not None or self.path.exists()
        self._store = CostStore(self.path, is_made=False) if is_there else None
        self._size = len(self._store) if self._store is not None else 0

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *fault: object) -> None:
        if self._store is not None:
            self._store.close()

    def rows(self, only: StoreFilter) -> list[Row]:
        return list(self._store.rows(only)) if self._store is not None else []

    def notes(self, only: StoreFilter) -> list[Note]:
        """All notes; none if only some kernels are meant."""
        return self._store.notes() if self._store is not None and only.is_empty else []

    def why_nothing(self) -> str:
        """Why there are no rows, and what to do."""
        if self._size:
            return f"{self.path}: the filters meet none of its {plural(self._size, 'measurement')}"
        return f"{self.path}: no kernel was measured yet; {_HOW_TO_FILL}"

    def forget(self, only: StoreFilter) -> tuple[int, int]:
        if self._store is None:
            return 0, 0
        return self._store.forget(only), self._store.forget_notes() if only.is_empty else 0

    def forget_tuned(self, *, is_real: bool) -> int:
        """How many kernels were tuned; they are removed if it is real."""
        if self._store is None:
            return 0
        return forget_tunings(self._store) if is_real else count_tunings(self._store)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("filters", "All that are given must be met.")
    add_arguments(group, StoreFilter)


def _rows_table(rows: Sequence[Row]) -> str:
    """The rows; a column in which all say the same is one line above the table instead."""
    now = time.time()
    columns = {
        "op": [measured.op for _, measured in rows],
        "shapes (float32)": [_SHAPE.sub("", measured.shapes) for _, measured in rows],
        "target": [_short_target(key.target) for key, _ in rows],
        "device": [key.device for key, _ in rows],
        "threads": [str(key.threads) for key, _ in rows],
        "batch": [str(key.batch) for key, _ in rows],
        "mode": [key.mode for key, _ in rows],
        "site": [str(key.site) if key.site >= 0 else "" for key, _ in rows],
        "median": [format_ns(measured.wall_ns) for _, measured in rows],
        "spread": [f"+-{format_ns(measured.spread_ns)}" for _, measured in rows],
        "samples": [str(measured.num_samples) for _, measured in rows],
        "age": [_age(measured.conditions.measured_at, now) for _, measured in rows],
    }
    if not any(columns["site"]):
        del columns["site"]
    shared = [name for name in _SHAREABLE if len(set(columns[name])) == 1]
    line = ", ".join(f"{name} {columns.pop(name)[0]}" for name in shared)
    align = "".join("<" if name in _LEFT_ALIGNED else ">" for name in columns)
    table = format_table(list(columns), list(zip(*columns.values(), strict=True)), align)
    return f"all with {line}:\n\n{table}" if shared else table


def _notes_table(notes: Sequence[Note]) -> str:
    now = time.time()
    cells = [
        [
            note.kind,
            note.subject,
            note.quantity,
            f"{note.value:.6g} {note.unit}".rstrip(),
            _age(note.measured_at, now),
            note.device,
        ]
        for note in notes
    ]
    return format_table(["kind", "of", "quantity", "value", "age", "device"], cells, "<<<>><")


def _summary(rows: Sequence[Row], notes: Sequence[Note], path: Path) -> str:
    now = time.time()
    num_kernels = len({key.kernel for key, _ in rows})
    num_devices = len({key.device for key, _ in rows})
    dates = sorted((measured.conditions.measured_at for _, measured in rows), key=date_seconds)
    oldest, newest = _age(dates[0], now), _age(dates[-1], now)
    others = f"; {plural(len(notes), 'note')} on links and interference (--notes)" if notes else ""
    return (
        f"{plural(len(rows), 'measurement')} of {plural(num_kernels, 'kernel')} on "
        f"{plural(num_devices, 'device')}, ages {newest} to {oldest}{others}; {path} "
        f"({format_bytes(path.stat().st_size)})"
    )


def _count(rows: Sequence[Row], notes: Sequence[Note]) -> str:
    text = plural(len(rows), "measurement")
    return f"{text} and {plural(len(notes), 'note')}" if notes else text


def _short_target(target: str) -> str:
    """The kind of a target and its processor: "llvm -keys=cpu -mcpu=x" ==> "llvm x"."""
    architecture = _ARCHITECTURE.search(target)
    return f"{target.split()[0]} {architecture[1]}" if architecture else target


def _age(date: str, now: float) -> str:
    """How long ago, in the largest unit of which it is at least two."""
    age_s = now - date_seconds(date)
    for unit, size_s in sorted(UNITS_S.items(), key=lambda item: -item[1]):
        if age_s >= 2 * size_s and unit != "w":
            return f"{age_s / size_s:.0f} {unit}"
    return f"{age_s:.0f} s" if age_s > -1 else "in the future"
