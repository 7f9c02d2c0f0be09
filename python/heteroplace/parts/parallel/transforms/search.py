"""A model, a cluster and a batch -> all mixes of data, tensor and pipeline parallelism, ranked.

DistIR (arXiv 2111.05426), section 5: enumerate the degrees, simulate each, leave out what does not
fit into memory, rank by throughput, and run the best few. Simulations are independent of each
other: they are dealt out to processes, and written to a file as they are done, so that a search
that was ended goes on where it stopped. Unlike DistIR, what a lower bound excludes need not be
simulated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from heteroplace.errors import ShardingError
from heteroplace.parts.parallel.transforms.degrees import Degrees, enumerate_degrees, num_ranks
from heteroplace.parts.parallel.transforms.search_evaluator import Evaluator, SearchProblem
from heteroplace.parts.parallel.transforms.search_processes import Configuration, evaluate
from heteroplace.parts.parallel.transforms.search_rows import (
    EXCLUDED,
    SearchFile,
    SearchRow,
    ranked,
)

_WAVE = 16
"""Configurations between two looks at the best so far; the same for any number of processes, and so
are the rows."""


def search(
    problem: SearchProblem,
    batches: Sequence[int],
    *,
    degrees: Sequence[Degrees] | None = None,
    keep: int | None = None,
    allow_fewer: bool = False,
    num_processes: int = 1,
    path: Path | None = None,
    say: Callable[[SearchRow], None] = lambda row: None,
) -> list[SearchRow]:
    """Return a row for each configuration of each batch, by batch, then degrees.

    Parameters
    ----------
    batches
        Rows of the whole batch, one or several.
    degrees
        Only these; None: all that `enumerate_degrees` has for the devices.
    keep
        Simulate only until the best so many of a batch are known: those whose lower bound is above
        them are excluded. None: simulate all.
    allow_fewer
        Also degrees that leave devices idle.
    num_processes
        That share the work; the rows are the same for any number.
    path
        A file of rows; those that it has are not simulated again, and new ones are appended, but
        for those that are excluded.
    say
        Called with each new row, in the order of completion.

    Raises
    ------
    ShardingError
        No degrees are possible, the file is not one of rows, or a process died.
    HeteroPlaceError
        A cost is missing, or devices that have to exchange something are not connected.
    """
    evaluator = Evaluator(problem)
    file = None if path is None else SearchFile(path, problem_digest(problem))
    chosen = [
        (batch, each)
        for batch in dict.fromkeys(batches)
        for each in _degrees_of(problem, batch, degrees, allow_fewer)
    ]
    stored = {} if file is None else file.rows
    rows = {each: stored[each] for each in chosen if each in stored}

    def note(row: SearchRow) -> None:
        rows[row.batch, row.degrees] = row
        if file is not None and row.method != EXCLUDED:
            file.add(row)
        say(row)

    left = [each for each in chosen if each not in rows]
    if keep is None:
        evaluate(evaluator, left, None, num_processes, note)
    else:
        for batch in dict.fromkeys(batch for batch, _ in left):
            of_batch = [each for each in left if each[0] == batch]
            _search_best(evaluator, of_batch, keep, num_processes, rows, note)
    return [rows[each] for each in sorted(rows)]


def _search_best(
    evaluator: Evaluator,
    configurations: list[Configuration],
    keep: int,
    num_processes: int,
    rows: dict[Configuration, SearchRow],
    note: Callable[[SearchRow], None],
) -> None:
    """Make the rows of one batch, those of the lowest bounds first."""
    if keep < 1:
        raise ShardingError(f"the best {keep} of a search: expected at least 1")
    batch = configurations[0][0]
    bounds = {each: evaluator.bound_ns(*each) for each in configurations}
    ordered = sorted(configurations, key=lambda each: (bounds[each], each))
    for start in range(0, len(ordered), _WAVE):
        best = ranked(row for row in rows.values() if row.batch == batch)[:keep]
        limit_ns = best[-1].makespan_ns if len(best) == keep else None
        evaluate(evaluator, ordered[start : start + _WAVE], limit_ns, num_processes, note)


def _degrees_of(
    problem: SearchProblem, batch: int, degrees: Sequence[Degrees] | None, allow_fewer: bool
) -> Sequence[Degrees]:
    """The degrees to look at for a batch."""
    if degrees is not None:
        return degrees
    if problem.devices is not None:
        num_devices = len(problem.devices)
    else:
        num_devices = num_ranks(problem.cluster)
    all_degrees = enumerate_degrees(num_devices, batch, allow_fewer=allow_fewer)
    if not all_degrees:
        raise ShardingError(
            f"a batch of {batch} rows cannot be cut for {num_devices} devices in any way; make it "
            f"a multiple of {num_devices}, or allow fewer devices"
        )
    return all_degrees


def problem_digest(problem: SearchProblem) -> str:
    """Return a hex digest of what the rows of a problem depend on.

    Model, ZeRO and recomputation are in it by `SearchProblem.name` and `options`. Of collectives
    that were timed it counts which: timed again they differ a little each time, and a search would
    never go on.
    """
    timed = problem.collectives
    parts = (
        problem.name,
        problem.options,
        problem.cluster.digest(),
        problem.costs.digest(),
        None
        if timed is None
        else ([(kind, members) for kind, members, *_ in timed.fits], sorted(timed.in_updates)),
        problem.schedule,
        problem.devices,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
