"""A compiled file -> an executor: of its plan, or of one that is made again for this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any

from heteroplace.argument_checks import check_path, check_sequence, check_type
from heteroplace.entries import load_entry
from heteroplace.errors import ExecutionError, MissingDeviceError
from heteroplace.interrupts import interruptible
from heteroplace.native.compiled_file import CompiledFile
from heteroplace.native.transports import check_programs
from heteroplace.run.executor import Executor
from heteroplace.run.transport import RankOptions, host_transport

if TYPE_CHECKING:
    from heteroplace.option_keywords import ReplanKeywords

_PLACED_AGAIN = "heteroplace.replanning:placed_again"
"""Loaded for a file whose devices are not here: it needs TVM, and all that compiles."""
ON_MISSING = ("error", "replan")
"""What to do where a device of a file's plan, or what its code needs of one, is not here."""


@interruptible
def load(
    path: str | os.PathLike[str],
    *,
    max_in_flight: int = 1,
    helping: bool | None = None,
    trusted_keys: Sequence[str | os.PathLike[str]] | None = None,
    on_missing: str = "error",
    place_options: ReplanKeywords | None = None,
    cuda_graphs: bool = False,
    cuda_words: bool = True,
    adapt: bool = True,
    comm: object = None,
    hosts: Sequence[str] = (),
    silence_s: float = 30.0,
) -> Executor:
    """Load a compiled file; see `Executor`.

    One for several hosts is loaded by one process for each, its ranks, all at once, and is then a
    `RankedExecutor`: under `mpiexec`, or with a communicator.

    Parameters
    ----------
    max_in_flight
        Most calls at work at a time. With several, a core goes on with another one while one waits
        for other cores: what a plan for throughput needs (its notes say how many).
    helping
        Whether cores that wait do parts of others' kernels; see `Executor`.
    trusted_keys
        Files of public Ed25519 keys, PEM: only what one of them has signed is read (see
        `Executable.export_library`). None: anything.
    on_missing
        Where this machine lacks a device of the plan, or what the code needs of one: "error", or
        "replan": the Relay module in the file is placed and compiled again (it has one if it was
        exported `with_source`). `Executor.replanned` says why and how, and so does a warning of the
        logger "heteroplace".
    place_options
        Options of `HeteroPlace` for that, and `cluster`, if it is not to be this machine.
    cuda_graphs, cuda_words
        How the work of GPUs is issued and awaited.
    adapt
        Whether one thread does a call alone as long as that is faster; see `Executor`.
    comm
        The ranks: a communicator of mpi4py. None: for a file for several hosts all that the
        launcher (`mpiexec`) has started; other files are loaded by each process for itself.
    hosts
        The host that each rank runs, by name; empty: in the order of the cluster.
    silence_s
        A rank that is silent for so many seconds has failed, and so have all.

    Raises
    ------
    ArtifactError
        The file is truncated, damaged, foreign, of another version, or not signed by a trusted key.
    MissingDeviceError
        This machine lacks something, which is not to be mended by a new plan or cannot be, as the
        file has no Relay module.
    ExecutionError
        An option is wrong, or there is no library for signatures; a rank cannot load or has another
        file, or there are too few ranks or too many.
    MissingPackageError
        The file is for several hosts, and mpi4py is not installed.
    HeteroPlaceError
        The model cannot be placed on this machine; see `HeteroPlace`.
    """
    _check_types(path, trusted_keys, hosts, max_in_flight, helping)
    check_type("adapt", adapt, bool, "True or False", ExecutionError)
    _check_replanning(on_missing, place_options)
    options: dict[str, Any] = {
        "max_in_flight": max_in_flight,
        "helping": helping,
        "cuda_graphs": cuda_graphs,
        "cuda_words": cuda_words,
    }
    # With a communicator all others wait, also for one that cannot read the file.
    file = CompiledFile(path, trusted_keys) if comm is None else None
    if file is None or len(check_programs(file.program_text)) > 1:
        if file is not None:
            _check_launched(file)
        if on_missing == "replan":
            raise ExecutionError(
                "on_missing='replan' is for a process alone: several ranks would have to agree on "
                "the new plan; place the model again for the cluster, and compile it"
            )
        ranks = RankOptions(comm, hosts, silence_s)
        loaded: Executor = host_transport().load(os.fspath(path), trusted_keys, ranks, **options)
        return loaded
    if hosts:
        raise ExecutionError(
            f"hosts={list(hosts)}: names of the hosts of several ranks; this file is for one "
            f"process: leave them out"
        )
    make: Callable[..., Executor] = partial(Executor, adapt=adapt, **options)
    try:
        return make(file)
    except MissingDeviceError as fault:
        if on_missing == "error":
            raise MissingDeviceError(
                f"{file.path}: {fault}, or load it with on_missing='replan'"
            ) from fault
        placed_again: Callable[..., Executor] = load_entry(_PLACED_AGAIN)
        return placed_again(file, fault, make, dict(place_options or {}))


def _check_launched(file: CompiledFile) -> None:
    """Raise ExecutionError where a file for several hosts is loaded by a process alone."""
    if host_transport().num_launched_ranks() > 1:
        return
    num_hosts = len(check_programs(file.program_text))
    raise ExecutionError(
        f"{file.path} is for {num_hosts} hosts, one rank each, and this process is alone; start "
        f"{num_hosts}: mpiexec -n {num_hosts} python ..., or pass comm"
    )


def _check_types(
    path: object, trusted_keys: object, hosts: object, max_in_flight: object, helping: object
) -> None:
    """Raise ExecutionError where an argument of `load` is of a wrong type."""
    check_path("path", path, "the path of a compiled file (.so)", ExecutionError)
    if trusted_keys is not None:
        check_sequence(
            *("trusted_keys", trusted_keys, (str, os.PathLike)),
            "paths of public keys (PEM), such as ['key.pem']",
            ExecutionError,
        )
    check_sequence("hosts", hosts, str, "names of hosts, such as ['b', 'a']", ExecutionError)
    check_type("max_in_flight", max_in_flight, int, "a whole number, at least 1", ExecutionError)
    check_type("helping", helping, (bool, NoneType), "True, False or None", ExecutionError)


def _check_replanning(on_missing: str, place_options: Mapping[str, Any] | None) -> None:
    """Raise ExecutionError where the options of a new plan do not go together."""
    if on_missing not in ON_MISSING:
        raise ExecutionError(
            f"on_missing={on_missing!r}; expected one of {', '.join(map(repr, ON_MISSING))}"
        )
    if place_options is not None and on_missing != "replan":
        raise ExecutionError(
            "place_options say how a model is placed again, and on_missing='error' does not do "
            "that; leave them out, or give on_missing='replan'"
        )
