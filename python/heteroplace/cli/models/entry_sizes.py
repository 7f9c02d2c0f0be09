"""Entries and calls on the command line -> a model at all of their sizes, placed together."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heteroplace.argument_checks import did_you_mean, is_list
from heteroplace.cli.models.given_inputs import (
    InputSizes,
    input_arrays,
    input_sizes,
    measured_inputs,
)
from heteroplace.cli.models.onnx_model import solution_json
from heteroplace.cli.shared import given_flags, progress_display, progress_of, show
from heteroplace.entry_calls import num_calls, read_calls
from heteroplace.errors import HeteroPlaceError
from heteroplace.listed_sizes import ListedSizes, read_listed
from heteroplace.machine.local import LOCAL, open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.workload_solution import WorkloadSolution
from heteroplace.options import Argument, count, key_value, named_pairs
from heteroplace.progress import SolverProgress
from heteroplace.stage_log import StageLog

if TYPE_CHECKING:  # it loads TVM
    from heteroplace.lower.executable import Executable

_BUILDER = "heteroplace.cli.models.entry_builder"
"""What places and compiles entries; loaded when that is asked for, as it needs TVM."""
_FORM = "NAME:SIZE=N, such as 'token:sequence_length=1'"
_CALLS = "NAME=CALLS, such as 'token=128' or 'prompt=512 tokens'"
_FILES = ("output", "plan", "trace", "report", "annotate-onnx")
"""Options of `place` that write a file of one plan."""


@dataclass(frozen=True)
class ChosenEntry:
    """An entry as the command line has it."""

    named: Mapping[str, int]
    """Sizes, by their names in the model."""
    calls: int
    """How often the workload calls it."""


@dataclass(frozen=True)
class EntryOptions:
    """What one entry is placed with."""

    sizes: InputSizes
    calls: int
    options: Mapping[str, Any]
    """Keywords of `HeteroPlace`."""


def add_entries(parser: argparse.ArgumentParser) -> None:
    """Add --entry and --workload."""
    parser.add_argument(
        "--entry",
        metavar="NAME:SIZE=N,SIZE=N",
        type=Argument(_entry),
        action="append",
        default=[],
        help="an entry: the model with these sizes, as of --size; may be repeated. All entries "
        "share weights and sessions, and are placed together; `heteroplace run` runs the first one",
    )
    parser.add_argument(
        "--workload",
        metavar="NAME=CALLS",
        type=Argument(key_value(_CALLS, read_calls)),
        action="append",
        default=[],
        help="how often an entry is called, such as token=128 or 'prompt=512 tokens'; may be "
        "repeated, and names all entries or none; default: each once",
    )


def add_more_memory(parser: argparse.ArgumentParser) -> None:
    """Add --more-memory, a question about a workload."""
    parser.add_argument(
        "--more-memory",
        metavar="NAME=SIZE",
        type=Argument(key_value("NAME=SIZE, such as 'gpu0=1GiB'")),
        action="append",
        default=[],
        help="with --entry: also say what the workload would take if a memory, or that of a "
        "device, had so much more; gpu0=-1GiB is less; may be repeated",
    )


def _entry(text: str) -> tuple[str, dict[str, int]]:
    """Read NAME:SIZE=N,SIZE=N."""
    name, colon, sizes = text.partition(":")
    if not (name and colon):
        raise ValueError(f"expected {_FORM}, got {text!r}")
    return name, dict(key_value(_FORM, count)(size) for size in sizes.split(","))


def chosen_entries(arguments: argparse.Namespace) -> dict[str, ChosenEntry]:
    """Return the entries of the command line by name; none: the model has one size.

    A --size with several values makes an entry of each.

    Raises
    ------
    HeteroPlaceError
        Two entries have one name, or --workload does not name all entries, and nothing else; or
        as `listed_size`.
    """
    listed = listed_size(arguments)
    entries: list[tuple[str, dict[str, int]]] = arguments.entry
    if listed is not None:
        entries = list(listed.entries.items())
    names = [name for name, _ in entries]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise HeteroPlaceError(f"--entry: {twice[0]!r} is there twice; give each entry one name")
    calls = named_pairs("--workload", arguments.workload)
    if calls and not entries:
        raise HeteroPlaceError(
            f"--workload says how often entries are called, and there are none; give each by "
            f"--entry {_FORM}, or leave --workload out"
        )
    for name in calls:
        if name not in names:
            near = did_you_mean(name, names)
            raise HeteroPlaceError(
                f"--workload: there is no entry {name!r}{near or '.'} "
                f"Entries are {', '.join(names)}"
            )
    missing = [name for name in names if name not in calls]
    if calls and missing:
        raise HeteroPlaceError(
            f"--workload does not say how often {missing[0]!r} is called; "
            f"add --workload {missing[0]}=CALLS"
        )
    return {
        name: ChosenEntry(sizes, num_calls(calls.get(name, 1), sizes, f"--workload {name}"))
        for name, sizes in entries
    }


def listed_size(arguments: argparse.Namespace) -> ListedSizes | None:
    """Return the --size that has several values, which calls choose; None: there is none.

    Raises
    ------
    FrontendError
        See `read_listed`.
    """
    sizes = named_pairs("--size", arguments.size)
    if not any(map(is_list, sizes.values())):
        return None
    has_state = bool(given_flags(arguments, ("state",)))
    return read_listed(sizes, has_entries=bool(arguments.entry), has_state=has_state)


def compile_entries(
    entries: Mapping[str, ChosenEntry],
    cluster: Cluster,
    options: Mapping[str, Any],
    arguments: argparse.Namespace,
    log: StageLog,
) -> tuple[Executable, WorkloadSolution]:
    """Place a model at the sizes of all entries together, and compile it with progress shown.

    Parameters
    ----------
    options
        Keywords of `HeteroPlace`.
    log
        Notes the time of each stage.

    Raises
    ------
    HeteroPlaceError
        The model cannot be placed or compiled at these sizes, or padding changes its results.
    """
    compiled: tuple[Executable, WorkloadSolution] = _build(
        *("compile_model_entries", entries, cluster, options, arguments, log),
        listed=listed_size(arguments),
    )
    return compiled


def show_entries(
    entries: Mapping[str, ChosenEntry], options: Mapping[str, Any], arguments: argparse.Namespace
) -> None:
    """Place a model at the sizes of all entries together, and print where; see `compile_entries`.

    Raises
    ------
    HeteroPlaceError
        A file is to be written, which has one plan, or the model cannot be placed.
    """
    refused = given_flags(arguments, _FILES)
    if refused:
        raise HeteroPlaceError(
            f"{', '.join(refused)}: a file has one plan, and --entry makes a plan for each entry; "
            f"leave it out, or place one size by --size"
        )
    cluster = open_cluster(arguments.cluster or LOCAL)
    solution: WorkloadSolution = _build(
        "place_model_entries", entries, cluster, options, arguments, StageLog()
    )
    answers = []
    with progress_of(arguments) as log:
        for memory, size in arguments.more_memory:
            log.say(f"Placing all entries with {size} more in {memory}")
            answers.append(solution.more_memory(memory, size))
    show(
        arguments,
        lambda: {
            **workload_json(solution),
            "entries": {name: solution_json(each) for name, each in solution.solutions.items()},
            "more_memory": list(map(asdict, answers)),
        },
        lambda: "\n\n".join(map(str, (solution, *answers))),
    )


def _build(
    function: str,
    entries: Mapping[str, ChosenEntry],
    cluster: Cluster,
    options: Mapping[str, Any],
    arguments: argparse.Namespace,
    log: StageLog,
    **others: object,
) -> Any:
    """Call a function of the builder with what the command line says of each entry."""
    model, arrays = Path(arguments.model), input_arrays(arguments)
    build = getattr(importlib.import_module(_BUILDER), function)
    with progress_display(arguments) as log.display:
        watched = {**options, "solver_progress": SolverProgress(log.display)}
        chosen = {}
        for name, entry in entries.items():
            sizes = input_sizes(model, arrays, arguments, entry.named)
            chosen[name] = EntryOptions(
                sizes, entry.calls, {**watched, **measured_inputs(arrays, sizes)}
            )
        is_annotated = not arguments.ignore_annotations
        return build(model, chosen, cluster, log, is_annotated=is_annotated, **others)


def workload_json(solution: WorkloadSolution) -> dict[str, object]:
    """Return what a workload takes as a whole, for `--json`; times are in ns, sizes in bytes."""
    cluster = next(iter(solution.solutions.values())).cluster
    return {
        "objective_ns": solution.objective_ns,
        "bound_ns": solution.bound_ns,
        "gap": solution.gap_ratio,
        "singles_ns": dict(solution.singles),
        "calls": dict(solution.calls),
        "memory": {
            memory.name: {
                "bytes": memory.bytes,
                "weight_bytes": solution.weight_bytes[memory.name],
                "value_bytes": solution.value_bytes[memory.name],
            }
            for memory in cluster.memories
        },
    }
