"""A loaded program -> outputs: one call, calls with a future, a stream of calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from heteroplace.errors import ExecutionError
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.native.execute import Session as NativeSession
from heteroplace.run.arrays import (
    Array,
    InputPorts,
    Ports,
    merged_inputs,
    take_input,
    take_outs,
)
from heteroplace.run.calls import Call, CallDeadline, Completer, PromisedCall
from heteroplace.run.closed_program import ClosedProgram, closed_program
from heteroplace.run.streams import stream


class SessionCall(NamedTuple):
    """What a call of a session exchanges with its caller, and the state that it changes."""

    inputs: InputPorts
    outputs: Ports
    state: NativeSession


class RunSession(Protocol):
    """`LoadedProgram.run_session`."""

    def __call__(
        self,
        session: SessionCall,
        inputs: Mapping[str, Array],
        out: Sequence[np.ndarray | None] | None,
        timeout_s: float | None,
    ) -> list[np.ndarray]: ...


class SessionEntry(NamedTuple):
    """A program that a session may call."""

    name: str
    """"": the only one."""
    run: RunSession
    inputs: Ports
    """State among them."""
    outputs: Ports
    expected_ns: int
    """Predicted time of a call."""


class LoadedProgram:
    """A program in the core, and its calls. Any thread may call any method."""

    def __init__(self, native: NativeExecutor, state_ports: Collection[str] = ()) -> None:
        self._native = native
        self._inputs, self._outputs = (
            tuple((p.name, p.shape, p.dtype) for p in ports if p.name not in state_ports)
            for ports in (native.inputs, native.outputs)
        )
        self._dtypes = {port.name: port.dtype for port in native.inputs}
        self._completer = Completer()

    def close(self) -> None:
        """Give up the program in the core, which goes when the calls at work have ended."""
        self._native = closed_program()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called; no call can begin then."""
        return isinstance(self._native, ClosedProgram)

    @property
    def inputs(self) -> Ports:
        """Name, shape and dtype of every input."""
        return self._inputs

    @property
    def outputs(self) -> Ports:
        """Name, shape and dtype of every output."""
        return self._outputs

    @cached_property
    def _input_ports(self) -> InputPorts:
        return InputPorts(self.inputs)

    @property
    def max_in_flight(self) -> int:
        """Most calls at work at a time."""
        return self._native.max_in_flight

    def set_input(self, name: str, array: Array) -> None:
        """Copy `array` into input `name`; it stays there for all later runs.

        Parameters
        ----------
        array
            As for `run`.

        Raises
        ------
        ExecutionError
            Unknown name, or wrong device, shape or dtype.
        """
        self._native.set_input(name, take_input(name, array, self._dtypes.get(name)))

    def run(
        self,
        inputs: Mapping[str, Array] | None = None,
        /,
        *,
        out: Sequence[np.ndarray | None] | None = None,
        timeout_s: float | None = None,
        **named: Array,
    ) -> list[np.ndarray]:
        """Run the network once and return its outputs.

        From its inputs to its outputs a call has memory of its own. An input that is not given
        keeps its value: of `set_input`, or of the last call in the executor's first memory, which
        is the last call where no two are at work at once.

        Parameters
        ----------
        inputs, named
            Numpy arrays, or tensors of any library that speaks DLPack, in host memory, by name. A
            name that is also an option (`out`) must be in `inputs`. Each is copied once; one that
            is not in C order, twice.
        out
            One array for each output, written in place and returned, or None for a new array. After
            an error their contents are undefined. An output is copied once.
        timeout_s
            Most seconds from now on, waiting for other calls included; then the call is cancelled.

        Raises
        ------
        ExecutionError
            Wrong inputs or `out` (then nothing is run), a kernel failed (the message names its step
            and device), or the time is up.
        """
        return self._start(merged_inputs(inputs, named), out, timeout_s, is_waited=True).finish()

    def run_async(
        self,
        inputs: Mapping[str, Array] | None = None,
        /,
        *,
        out: Sequence[np.ndarray | None] | None = None,
        timeout_s: float | None = None,
        **named: Array,
    ) -> Future[list[np.ndarray]]:
        """Begin a run, as `run`; return a future of its outputs.

        The inputs are copied before it returns. While `max_in_flight` calls are at work it waits
        for one to end. Calls begin in the order in which they were submitted. To cancel the future
        ends the run early. Callbacks of futures are called in one thread, for which all futures
        wait: there a call that would have to wait is refused.

        Raises
        ------
        ExecutionError
            Wrong inputs or `out`, or the time is up before it could begin. What comes later is
            raised by the future.
        """
        promised = PromisedCall(self._start(merged_inputs(inputs, named), out, timeout_s))
        self._completer.add(promised)
        return promised.future

    def run_many(
        self,
        inputs: Iterable[Mapping[str, Array]],
        *,
        in_flight: int | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[list[np.ndarray]]:
        """Run for each of `inputs`; yield the outputs, in the order of the inputs.

        An input is asked for when there is room: at most `in_flight` runs are at work or wait to be
        taken. What a run fails of is raised in its place, which ends the iterator; what `inputs`
        raises, at once. When the iterator ends, or is closed or dropped, what is in flight is
        cancelled.

        Parameters
        ----------
        inputs
            Arrays by name, as for `run`.
        in_flight
            1 to `max_in_flight`, which is the default.
        timeout_s
            For each run, from its submission on.

        Raises
        ------
        ExecutionError
            `in_flight` is out of range. From the iterator: as `run`.
        """
        most = self.max_in_flight
        count = most if in_flight is None else in_flight
        if not 1 <= count <= most:
            raise ExecutionError(
                f"in_flight is {count}; expected 1 to {most}, which max_in_flight of this executor "
                "is: load it with more"
            )
        CallDeadline(timeout_s)  # refused here, not by the first result
        if count == 1:  # nothing is gained by another thread
            return (self.run(item, timeout_s=timeout_s) for item in inputs)
        return stream(
            iter(inputs),
            lambda item: self._start(merged_inputs(item, {}), None, timeout_s),
            count,
            self._completer,
        )

    def run_session(
        self,
        session: SessionCall,
        inputs: Mapping[str, Array],
        out: Sequence[np.ndarray | None] | None,
        timeout_s: float | None,
    ) -> list[np.ndarray]:
        """Run the network once for a session; otherwise as `run`."""
        return self._start(inputs, out, timeout_s, is_waited=True, session=session).finish()

    def get_output(self, index: int) -> np.ndarray:
        """Return a copy of output `index` of the last run.

        Raises
        ------
        ExecutionError
            There is no such output, or the last run began while another was at work: what is kept
            is in the executor's first memory, which was the other's.
        """
        if not 0 <= index < len(self.outputs):
            raise ExecutionError(f"output {index} does not exist; there are {len(self.outputs)}")
        if not self._native.was_last_in_first:
            raise ExecutionError(
                "the last run began beside another, and its outputs are not kept: take those that "
                "it returned"
            )
        return self._native.get_output(self.outputs[index][0])

    def benchmark(self, num_runs: int) -> list[int]:
        """Run `num_runs` times in a loop in C++; return the wall time of each run in ns."""
        return [int(ns) for ns in self._native.benchmark(num_runs)]

    def _start(
        self,
        given: Mapping[str, Array],
        out: Sequence[np.ndarray | None] | None,
        timeout_s: float | None,
        *,
        is_waited: bool = False,
        session: SessionCall | None = None,
    ) -> Call:
        """Submit a call; all that can be wrong with it is found before.

        Parameters
        ----------
        is_waited
            The caller waits for its end at once, and so may do some of the work.
        session
            The session that the call belongs to; None: it belongs to none.
        """
        deadline = CallDeadline(timeout_s)
        inputs, outputs = self._input_ports, self.outputs
        if session is not None:
            inputs, outputs = session.inputs, session.outputs
        arrays = inputs.take(given)
        outs = take_outs(outputs, out)
        may_wait = not self._completer.is_own_thread()
        state = None if session is None else session.state
        request = self._native.begin(deadline.left_s() if may_wait else 0.0, state)
        if request is None:
            why = (
                f"for {timeout_s} s; allow more time, or load it with a higher max_in_flight"
                if may_wait
                else "and a callback of a future cannot wait for them; call it elsewhere"
            )
            raise ExecutionError(
                f"all {self.max_in_flight} requests of the executor were at work {why}"
            )
        try:
            for name, array in arrays.items():
                request.set_input(name, array)
            request.submit(deadline.left_s(), is_waited=is_waited)
        except BaseException:  # Ctrl-C too: a request that nobody finishes is a slot lost
            request.close()
            raise
        return Call(request, [name for name, _, _ in outputs], outs, deadline)
