"""This process as one of the ranks of a job: who the others are, and its part of a program.

A thin interface to `heteroplace._core` (see `src/parts/hosts`). A rank is the process that runs one
host of a cluster; the rank whose host feeds and reads the model leads the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

import heteroplace._core as _core
from heteroplace.errors import ExecutionError
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.native.compiled_file import CompiledFile
from heteroplace.native.core_routes import RouteDecisions
from heteroplace.native.core_trace import RecordedTrace
from heteroplace.native.execute import Executor, Request

__all__ = [
    "Group",
    "RankedExecutor",
    "RankedRequest",
    "end_mpi_at_exit",
    "launched_ranks",
    "mpi_transport",
]


def launched_ranks() -> int:
    """Return how many ranks the launcher of this process has started; 1: there is none."""
    return _core.launched_ranks()


def mpi_transport(communicator: int | None = None, library: str = "") -> _core.Transport:
    """Return this rank's transport by MPI; all ranks call it.

    Parameters
    ----------
    communicator
        MPI's handle of the ranks' communicator; None: all that the launcher has started.
    library
        Path of the MPI library; "": the one of this process, else of the launcher.

    Raises
    ------
    ExecutionError
        No library, one that is refused, or what MPI says.
    """
    return _core.mpi_transport(library, communicator)


def end_mpi_at_exit() -> None:
    """End MPI when this process ends, which whoever began it leaves open, but not in a child.

    After `mpi_transport`.
    """
    _core.end_mpi_at_exit()


class Group:
    """The ranks of a job, met; the making of one waits for all others.

    Parameters
    ----------
    silence_s
        A rank that is silent for so many seconds has failed.

    Raises
    ------
    ExecutionError
        A rank failed meanwhile.
    """

    def __init__(self, transport: _core.Transport, silence_s: float) -> None:
        least_s, most_s = 1e-3, 1e9  # as in src/parts/hosts/group.h
        if not least_s <= silence_s <= most_s:
            raise ExecutionError(
                f"silence_s is {silence_s}; expected {least_s} to {most_s:g} seconds"
            )
        self.core = _core.meet(transport, silence_s)
        self.rank: int = self.core.rank
        self.num_ranks: int = self.core.num_ranks

    @property
    def transport_name(self) -> str:
        """What moves the bytes: "MPICH 5.0.2"."""
        return self.core.transport_name

    @property
    def host(self) -> int:
        """Position of the host that this rank runs; after `agree_on_file`."""
        return self.core.host

    @property
    def failure(self) -> str:
        """Why the job has failed; "": it has not."""
        return self.core.failure

    def name_of(self, rank: int) -> str:
        """Return "rank 1 (host 'b' on machine-7)"."""
        return self.core.name_of(rank)

    def fail(self, text: str) -> None:
        """End the job on all ranks."""
        self.core.fail(text)

    def agree_on_file(
        self,
        path: str,
        file: CompiledFile | None,
        fault: str = "",
        *,
        hosts: Sequence[str] = (),
        max_in_flight: int = 1,
    ) -> tuple[str, ...]:
        """Go on only if all ranks have the same file and options; all ranks.

        Parameters
        ----------
        file
            None with a fault: why it cannot be read here.
        hosts
            The host of each rank; empty: in the order of the cluster.

        Returns
        -------
        tuple of str
            Names of the hosts.

        Raises
        ------
        ExecutionError
            On all ranks: who has another file, version or option, or that there are too few or too
            many.
        """
        core = None if file is None else file._core
        names = self.core.agree_on_file(path, core, fault, ",".join(hosts), max_in_flight)
        return tuple(names)


class RankedRequest(Request):
    """A request of several ranks, whose failure names the rank that failed."""

    def __init__(self, core: _core.Request, executor: RankedExecutor) -> None:
        super().__init__(core)
        self._executor = executor

    def finish(self, timeout_s: float | None = None) -> None:
        """Wait for the end; see `Request.finish`."""
        with self._executor.naming_failures():
            super().finish(timeout_s)


class RankedExecutor(Executor):
    """One rank's part of a program for several hosts; all ranks make one.

    On the feeding rank it is an `Executor` whose instructions and queues are those of all hosts. On
    the others all but `serve` is refused with what to call.

    Parameters
    ----------
    program_text
        The programs of all hosts. All others: see `Executor`.

    Raises
    ------
    ExecutionError
        On all ranks, if one cannot load.
    """

    def __init__(
        self,
        group: Group,
        libtvm_path: str,
        library_path: str,
        program_text: str,
        *,
        blob: npt.NDArray[np.uint8] | None,
        max_in_flight: int = 1,
        helping: bool | None = None,
        cuda_graphs: bool = False,
        cuda_words: bool = True,
    ) -> None:
        self.group = group
        self._ranked = _core.RankedExecutor(
            group.core,
            libtvm_path,
            library_path,
            program_text,
            blob,
            max_in_flight,
            helping,
            cuda_graphs,
            cuda_words,
        )
        self._core = self._ranked.executor
        self.routes = RouteDecisions(self._core)
        self.is_feeding: bool = self._ranked.is_feeding
        self._describe(self._ranked)

    @contextmanager
    def naming_failures(self) -> Iterator[None]:
        """Turn an error of a job that has failed into the one that all ranks have."""
        try:
            yield
        except ExecutionError as err:
            failure = self.group.failure
            if not failure or failure == err.args[0]:
                raise
            raise ExecutionError(failure) from err

    def serve(self) -> None:
        """Do what the feeding rank says, until it closes.

        Raises
        ------
        ExecutionError
            This is the feeding rank, or a rank has failed.
        """
        self._ranked.serve()

    def close(self) -> None:
        """End the job in order, on the feeding rank; elsewhere nothing."""
        self._ranked.close()

    def begin(self, timeout_s: float | None = None) -> Request | None:
        """As `Executor.begin`."""
        self._ranked.check_feeding("run")
        core = self._core.begin(timeout_s)
        return None if core is None else RankedRequest(core, self)

    def set_input(self, name: str, array: npt.NDArray[Any]) -> None:
        """As `Executor.set_input`."""
        self._ranked.check_feeding("set_input")
        super().set_input(name, array)

    def set_own_input(self, name: str, array: npt.NDArray[Any]) -> None:
        """As `Executor.set_input`, of state on the host of this rank, whoever feeds the model."""
        super().set_input(name, array)

    def get_own_output(self, name: str) -> npt.NDArray[Any]:
        """As `Executor.get_output`, of state on the host of this rank."""
        return super().get_output(name)

    def get_output(self, name: str, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """As `Executor.get_output`."""
        self._ranked.check_feeding("get_output")
        return super().get_output(name, out)

    def run(self, timeout_s: float | None = None) -> None:
        """As `Executor.run`."""
        self._ranked.check_feeding("run")
        with self.naming_failures():
            super().run(timeout_s)

    def benchmark(self, num_runs: int) -> npt.NDArray[np.int64]:
        """As `Executor.benchmark`, by the clock of this rank."""
        self._ranked.check_feeding("benchmark")
        with self.naming_failures():
            return super().benchmark(num_runs)

    def run_timed(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """As `Executor.run_timed`, of all hosts' instructions; it may not be recording."""
        request = self.begin()
        assert request is not None  # it waits as long as it takes
        with request:
            self.start_trace()
            try:
                request.submit()
                request.finish()
            finally:
                recorded = self.stop_trace()
            # Others may be at work, and recorded, too.
            number = request.trace_number
        start_ns = recorded.requests["start_ns"][recorded.requests["request"] == number]
        events = recorded.events[recorded.events["request"] == number]
        if not len(start_ns):
            raise ExecutionError(
                "calls of other threads have taken the place of the timed one in the recording; "
                "make fewer of them meanwhile"
            )
        return events["start_ns"] - start_ns[0], events["finish_ns"] - start_ns[0]

    def start_trace(self, max_requests: int | None = None) -> None:
        """As `Executor.start_trace`, on all ranks."""
        self._ranked.check_feeding("trace")
        with self.naming_failures():
            self._ranked.start_trace(max_requests)

    def stop_trace(self, timeout_s: float | None = None) -> RecordedTrace:
        """As `Executor.stop_trace`: of all ranks, by the clock of this one.

        `timeout_s` is for the requests here; what other ranks answer is awaited.
        """
        self._ranked.check_feeding("trace")
        with self.naming_failures():
            return RecordedTrace(self._ranked.stop_trace(timeout_s), self._ranked)

    def profile_cpu(self, num_runs: int) -> npt.NDArray[np.int64]:
        """As `Executor.profile_cpu`, of all hosts' instructions."""
        self._ranked.check_feeding("profile_cpu")
        with self.naming_failures():
            times: npt.NDArray[np.int64] = self._ranked.profile_cpu(num_runs)
            return times

    def profile_runs(self, num_runs: int) -> npt.NDArray[np.int64]:
        """As `Executor.profile_runs`, of all hosts' instructions."""
        self._ranked.check_feeding("profile_runs")
        with self.naming_failures():
            durations: npt.NDArray[np.int64] = (
                self._ranked.profile(num_runs).reshape(-1, num_runs).T
            )
            return durations

    def sample(
        self, num_samples: int, num_calls: int, is_cold: bool = False
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Refused: a kernel alone is sampled by a process alone."""
        raise ExecutionError(
            "a kernel is sampled in a process alone, not as one of several ranks; load a file of "
            "one host"
        )

    def copied_bytes(self) -> list[tuple[int, int]]:
        """Refused: each rank counts the copies of its own host."""
        raise ExecutionError(
            "copied bytes are counted in a process alone, not over several ranks; count those of a "
            "trace, or load a file of one host"
        )

    def memory_bytes(self) -> dict[str, MemoryUse]:
        """As `Executor.memory_bytes`, of all hosts."""
        self._ranked.check_feeding("memory")
        with self.naming_failures():
            return {
                name: MemoryUse(weights, arena, workspace)
                for name, arena, weights, workspace in self._ranked.memory_bytes()
            }

    def core_to_core_ns(self) -> int | None:
        """As `Executor.core_to_core_ns`, of the cores of this rank."""
        self._ranked.check_feeding("core_to_core_ns")
        return super().core_to_core_ns()
