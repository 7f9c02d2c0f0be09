"""A program whose outputs replace some of its inputs: one sequence of calls, with its state."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from heteroplace.errors import ExecutionError
from heteroplace.run.array_files import read_arrays, write_arrays
from heteroplace.run.arrays import (
    Array,
    InputPorts,
    Ports,
    exchanged_dtype,
    merged_inputs,
    take_outs,
)
from heteroplace.terminal import listed

_PREFIX = "state:"
"""Before the names of arrays in a file of a session."""


class _Run(Protocol):
    """`Executor.run`."""

    def __call__(
        self,
        inputs: Mapping[str, Array],
        /,
        *,
        out: Sequence[np.ndarray | None] | None,
        timeout_s: float | None,
    ) -> list[np.ndarray]: ...


class Session:
    """One sequence of calls of an executor. Made by `Executor.session`.

    The program keeps its state here: callers neither give nor get it. Sessions of an executor share
    its weights and kernels, and nothing else. Different sessions may be used by different threads;
    one session takes one call at a time.

    A call that fails, is cancelled or runs out of time leaves the state as it was before.
    """

    def __init__(
        self,
        run: _Run,
        ports: tuple[Ports, Ports],
        pairs: Sequence[tuple[str, str]],
        initial: Mapping[str, Array] | None,
    ) -> None:
        inputs, outputs = ports
        places = {name: index for index, (name, _, _) in enumerate(outputs)}
        self._run, self._ports, self._pairs = run, ports, pairs
        self._state_places = {name: places[output] for name, output in pairs}
        """Among the outputs of the program."""
        self._own_places = sorted(set(places.values()) - set(self._state_places.values()))
        self._state_inputs = tuple(port for port in inputs if port[0] in self._state_places)
        self.inputs = tuple(port for port in inputs if port[0] not in self._state_places)
        """Name, shape and dtype of every input that is no state."""
        self.outputs = tuple(outputs[place] for place in self._own_places)
        """Name, shape and dtype of every output that is no state."""
        self.num_calls = 0
        """How many calls have succeeded since the session began, or was reset or loaded."""
        self._initial = {
            name: np.zeros(shape, exchanged_dtype(dtype))
            for name, shape, dtype in self._state_inputs
        }
        self._initial |= _copies(self._taken(initial or {}, "initial"))
        self._state = _copies(self._initial)
        self._lock = threading.Lock()

    @property
    def state(self) -> dict[str, np.ndarray]:
        """A copy of the state, by the names of the inputs."""
        return _copies(self._state)

    def __repr__(self) -> str:
        num_bytes = sum(array.nbytes for array in self._state.values())
        return (
            f"Session({self.num_calls} calls, state {', '.join(self._state)}: {num_bytes:,} bytes)"
        )

    def run(
        self,
        inputs: Mapping[str, Array] | None = None,
        /,
        *,
        out: Sequence[np.ndarray | None] | None = None,
        timeout_s: float | None = None,
        **named: Array,
    ) -> list[np.ndarray]:
        """Run the network once, from the state of the last call; return the outputs.

        Parameters
        ----------
        inputs, named, out, timeout_s
            As of `Executor.run`, for `inputs` and `outputs` of the session. All inputs are needed:
            none keeps the value that another session has given it.

        Raises
        ------
        ExecutionError
            As `Executor.run`; an input is missing or is state; or another call of this session is
            at work.
        """
        given = merged_inputs(inputs, named)
        self._check_inputs(given)
        outs = None if out is None else self._all_outs(out)
        if not self._lock.acquire(blocking=False):
            raise ExecutionError(
                "the session is in use by another call; wait for its end, or fork the session"
            )
        try:
            returned = self._run({**given, **self._state}, out=outs, timeout_s=timeout_s)
            self._state = {name: returned[place] for name, place in self._state_places.items()}
            self.num_calls += 1
        finally:
            self._lock.release()
        return [returned[place] for place in self._own_places]

    def reset(self) -> None:
        """Begin again, with the state that the session began with."""
        with self._lock:
            self._set(self._initial)

    def fork(self) -> Session:
        """Return another session that goes on from the same state."""
        with self._lock:
            other = Session(self._run, self._ports, self._pairs, self._initial)
            other._set(self._state)
            other.num_calls = self.num_calls
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file of numpy (.npz).

        Raises
        ------
        ArtifactError
            The file cannot be written.
        """
        with self._lock:
            write_arrays(path, {_PREFIX + name: array for name, array in self._state.items()})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from the state in a file that `save` has written.

        Raises
        ------
        ExecutionError
            It is no such file, or one of a program with other state. The session is as before.
        """
        content = read_arrays(path)
        names = [name for name, _, _ in self._state_inputs]
        if set(content) != {_PREFIX + name for name in names}:
            raise ExecutionError(
                f"{path}: holds {listed(map(repr, content)) or 'nothing'}; expected the state "
                f"{listed(map(repr, names))}, written by Session.save of this program"
            )
        state = self._taken({name: content[_PREFIX + name] for name in names}, str(path))
        with self._lock:
            self._set(state)

    def _set(self, state: Mapping[str, np.ndarray]) -> None:
        self._state = _copies(state)
        self.num_calls = 0

    def _taken(self, arrays: Mapping[str, Array], source: str) -> dict[str, np.ndarray]:
        """State as the core takes it; `source` is where messages say that it comes from."""
        try:
            return InputPorts(self._state_inputs, "state").take(arrays)
        except ExecutionError as err:
            raise ExecutionError(f"{source}: {err}") from err

    def _check_inputs(self, given: Mapping[str, Array]) -> None:
        state = [name for name in given if name in self._state_places]
        if state:
            raise ExecutionError(
                f"{', '.join(map(repr, state))} is state, which the session keeps; leave it out, "
                "or begin with executor.session(initial={...})"
            )
        names = [name for name, _, _ in self.inputs]
        missing = [name for name in names if name not in given]
        if missing:
            raise ExecutionError(
                f"inputs {listed(map(repr, missing))} are missing; a call of a session needs all "
                f"of {listed(map(repr, names))}"
            )

    def _all_outs(self, out: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        """Where each output of the program goes; state goes into new arrays."""
        by_place = dict(zip(self._own_places, take_outs(self.outputs, out), strict=True))
        return [by_place.get(place) for place in range(len(self._ports[1]))]


def _copies(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in state.items()}
