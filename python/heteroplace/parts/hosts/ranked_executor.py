"""A file for several hosts -> an executor on each of the ranks that run it, led by one of them."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Sequence
from typing import Any

from heteroplace.errors import ExecutionError, HeteroPlaceError
from heteroplace.files.manifest import Manifest
from heteroplace.native.compiled_file import CompiledFile
from heteroplace.parts.hosts.native.core_ranks import Group
from heteroplace.parts.hosts.native.core_ranks import RankedExecutor as NativeRankedExecutor
from heteroplace.run.arrays import Ports
from heteroplace.run.executor import Executor
from heteroplace.run.loaded_program import LoadedProgram
from heteroplace.run.missing_devices import check_devices_exist
from heteroplace.run.state import ProgramState
from heteroplace.run.tvm_library import library_for


class RankedExecutor(Executor):
    """One rank's part of a network that several hosts run; made by `heteroplace.load`.

    On the rank whose host feeds the model it is used as any `Executor`, and closed at the end. On
    the others `serve` does the rest.
    """

    def __init__(
        self, group: Group, native: NativeRankedExecutor, manifest: Manifest, file: CompiledFile
    ) -> None:
        self._states = ProgramState(native, manifest.state)
        LoadedProgram.__init__(self, native, self._states.ports)
        self._states.begin(file.weights)
        self._group = group
        self._ranked = native
        self._code = file
        self._manifest = manifest
        self._replanned = ""
        # At the end of the program too, as nobody else would let the others go.
        self._ending = weakref.finalize(self, native.close)

    @property
    def inputs(self) -> Ports:
        """Name, shape and dtype of every input, on all ranks."""
        return _ports(self._manifest.inputs)

    @property
    def outputs(self) -> Ports:
        """Name, shape and dtype of every output, on all ranks."""
        return _ports(self._manifest.outputs)

    @property
    def is_feeding(self) -> bool:
        """Whether the host of this rank feeds the model and reads its outputs."""
        return self._ranked.is_feeding

    def serve(self) -> None:
        """Do this host's part of every call, until the feeding rank closes or ends.

        Raises
        ------
        ExecutionError
            This is the feeding rank; or a rank has failed, which the message names.
        """
        self._ranked.serve()

    def close(self) -> None:
        """End the job on all ranks: `serve` returns there. Calls are to be over.

        Unlike that of a process alone, the memory stays: state can still be read.
        """
        self._ending()

    @property
    def is_closed(self) -> bool:
        """Whether this rank has ended the job."""
        return not self._ending.alive

    def fail(self, text: str) -> None:
        """End the job on all ranks for a fault of the program, such as an input that is wrong.

        Calls of all ranks then raise ExecutionError with this text, behind the name of this rank;
        after `close` the others would end well.
        """
        self._group.fail(f"{self._group.name_of(self._group.rank)}: {text}")


def _ports(ports: Sequence[tuple[str, Sequence[int], str]]) -> Ports:
    return tuple((name, tuple(shape), dtype) for name, shape, dtype in ports)


def load_as_rank(
    path: str,
    group: Group,
    hosts: Sequence[str] = (),
    trusted_keys: Sequence[str | os.PathLike[str]] | None = None,
    **options: Any,
) -> RankedExecutor:
    """Load a file as one of the ranks of a group; all of them call it.

    What fails on one rank is raised there as it is, and told on all others.

    Raises
    ------
    HeteroPlaceError
        This rank cannot load the file.
    ExecutionError
        Another rank cannot, or has another file; there are too few ranks or too many.
    """
    fault: HeteroPlaceError | None = None
    file: CompiledFile | None = None
    manifest: Manifest | None = None
    try:
        file = CompiledFile(path, trusted_keys)
        manifest = file.manifest()
    except HeteroPlaceError as err:
        fault = err
    most = options.get("max_in_flight", 1)
    text = "" if fault is None else str(fault)
    try:
        names = group.agree_on_file(path, file, text, hosts=hosts, max_in_flight=most)
    except ExecutionError as err:
        raise fault or err from err
    assert file is not None and manifest is not None
    return _load_here(group, file, manifest, names[group.host], options)


def _load_here(
    group: Group, file: CompiledFile, manifest: Manifest, host: str, options: dict[str, Any]
) -> RankedExecutor:
    """Load the program of one host, of which the others wait to hear."""
    try:
        check_devices_exist(manifest.placement.devices, file.missing(group.host), host)
        file.load(group.host)
        libtvm = library_for(file.code_path, manifest, file.path)
    except HeteroPlaceError as err:
        group.fail(str(err))
        raise
    native = NativeRankedExecutor(
        group.core, libtvm, file.code_path, file.program_text, blob=file.weights, **options
    )
    return RankedExecutor(group, native, manifest, file)


def abort_after_failure(group: Group, comm: Any) -> None:
    """At the end of the process let MPI end the job, if it has failed.

    Else MPI would wait for the ranks that are gone. The group is not kept for that: it has
    communicators and memory that all ranks share. A child of the process ends nothing.
    """
    reference, rank = weakref.ref(group), os.getpid()

    def abort() -> None:
        if os.getpid() == rank:
            comm.Abort(1)

    def end() -> None:
        alive = reference()
        if alive is not None and alive.failure:
            abort()

    def forget(core: Any) -> None:
        atexit.unregister(end)
        if core.failure:
            atexit.register(abort)

    atexit.register(end)
    weakref.finalize(group, forget, group.core).atexit = False
