"""Configurations -> rows, by one process or by several that share the work.

A process is a copy of the caller: it has the graphs that were made before, and all that was
registered. It runs Python, numpy and the core's simulator, which start no threads.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from heteroplace.errors import HeteroPlaceError, ShardingError
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.search_evaluator import Evaluator
from heteroplace.parts.parallel.transforms.search_rows import SearchRow

Configuration = tuple[int, Degrees]
"""(rows of the whole batch, degrees)"""


def evaluate(
    evaluator: Evaluator,
    configurations: Sequence[Configuration],
    limit_ns: int | None,
    num_processes: int,
    note: Callable[[SearchRow], None],
) -> None:
    """Call `note` with the row of each configuration, in any order.

    Parameters
    ----------
    limit_ns
        As `Evaluator.row`.
    num_processes
        At least 1; no more are started than there are groups of configurations that share much.

    Raises
    ------
    ShardingError
        A process died.
    HeteroPlaceError
        What a configuration raises.
    """
    ordered = sorted(configurations, key=_shared)
    groups = [list(group) for _, group in itertools.groupby(ordered, key=_shared)]
    if min(num_processes, len(groups)) <= 1:
        for batch, degrees in ordered:
            note(evaluator.row(batch, degrees, limit_ns))
        return
    for batch, degrees in ordered:
        evaluator.prepare(degrees, batch)
    context = multiprocessing.get_context("fork")
    next_group = context.Value("i", 0)
    workers = []
    for _ in range(min(num_processes, len(groups))):
        receiver, sender = context.Pipe(duplex=False)
        arguments = (evaluator, groups, limit_ns, next_group, sender)
        process = context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        sender.close()  # so that a process that dies ends the connection
        workers.append((process, receiver))
    try:
        _collect({receiver: process for process, receiver in workers}, note)
    finally:
        for process, receiver in workers:
            process.kill()
            process.join()
            receiver.close()


def _shared(configuration: Configuration) -> tuple[int, ...]:
    """What configurations have in common that share sizes, times and graphs."""
    batch, degrees = configuration
    return (degrees.tensor, min(degrees.data, 2), batch // degrees.num_items)


def _work(
    evaluator: Evaluator,
    groups: Sequence[Sequence[Configuration]],
    limit_ns: int | None,
    next_group: Any,
    sender: Connection,
) -> None:
    """Send the rows of groups that no other process has taken, then None; or an error."""
    try:
        while True:
            with next_group.get_lock():
                number = next_group.value
                next_group.value += 1
            if number >= len(groups):
                break
            for batch, degrees in groups[number]:
                sender.send(evaluator.row(batch, degrees, limit_ns))
        sender.send(None)
    except HeteroPlaceError as fault:
        sender.send(fault)


def _collect(processes: dict[Connection, Any], note: Callable[[SearchRow], None]) -> None:
    """Note rows until each process is done."""
    open_connections = list(processes)
    while open_connections:
        for receiver in wait(open_connections):
            assert isinstance(receiver, Connection)
            try:
                message = receiver.recv()
            except EOFError:
                process = processes[receiver]
                process.join()
                raise ShardingError(
                    f"a process of the search died with code {process.exitcode}; take fewer, or "
                    f"one, whose messages are seen"
                ) from None
            if isinstance(message, HeteroPlaceError):
                raise message
            if message is None:
                open_connections.remove(receiver)
            else:
                note(message)
