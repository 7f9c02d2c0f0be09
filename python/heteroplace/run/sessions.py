"""A program whose outputs replace some of its inputs: one sequence of calls, with its state."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from heteroplace.errors import ExecutionError
from heteroplace.run.array_files import read_arrays, write_arrays
from heteroplace.run.arrays import Array, Ports, exchanged_dtype, merged_inputs, take_input
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
        self._run = run
        self._ports = ports
        self._pairs = dict(pairs)
        inputs, outputs = ports
        places = {name: index for index, (name, _, _) in enumerate(outputs)}
        self._state_places = {name: places[output] for name, output in pairs}
        """Among the outputs of the program."""
        self._own_places = sorted(set(places.values()) - set(self._state_places.values()))
        self._inputs = tuple(port for port in inputs if port[0] not in self._pairs)
        self._outputs = tuple(outputs[place] for place in self._own_places)
        self._types = {name: (shape, dtype) for name, shape, dtype in inputs if name in self._pairs}
        self._initial = self._zeros()
        self._lock = threading.Lock()
        self._num_calls = 0
        if initial:
            self._initial |= self._taken(initial, self._refused)
        self._state = _copies(self._initial)

    @property
    def inputs(self) -> Ports:
        """Name, shape and dtype of every input that is no state."""
        return self._inputs

    @property
    def outputs(self) -> Ports:
        """Name, shape and dtype of every output that is no state."""
        return self._outputs

    @property
    def num_calls(self) -> int:
        """How many calls have succeeded since the session began, or was reset or loaded."""
        return self._num_calls

    @property
    def state(self) -> dict[str, np.ndarray]:
        """A copy of the state, by the names of the inputs."""
        return _copies(self._state)

    def __repr__(self) -> str:
        num_bytes = sum(array.nbytes for array in self._state.values())
        return (
            f"Session({self._num_calls} calls, state {', '.join(self._state)}: {num_bytes:,} bytes)"
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
            self._num_calls += 1
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
            other = Session(self._run, self._ports, list(self._pairs.items()), self._initial)
            other._set(self._state)
            other._num_calls = self._num_calls
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
        if set(content) != {_PREFIX + name for name in self._types}:
            raise ExecutionError(
                f"{path}: holds {listed(map(repr, content)) or 'nothing'}; expected the state "
                f"{listed(map(repr, self._types))}, written by Session.save of this program"
            )
        arrays = {name: content[_PREFIX + name] for name in self._types}
        state = self._taken(arrays, lambda text: ExecutionError(f"{path}: {text}"))
        with self._lock:
            self._set(state)

    def _set(self, state: Mapping[str, np.ndarray]) -> None:
        self._state = _copies(state)
        self._num_calls = 0

    def _zeros(self) -> dict[str, np.ndarray]:
        return {
            name: np.zeros(shape, exchanged_dtype(dtype))
            for name, (shape, dtype) in self._types.items()
        }

    def _taken(
        self, arrays: Mapping[str, Array], refused: Callable[[str], ExecutionError]
    ) -> dict[str, np.ndarray]:
        """Copies of state as the core takes it, checked."""
        copies = {}
        for name, given in arrays.items():
            if name not in self._types:
                names = listed(map(repr, self._types))
                raise refused(f"the program has no state {name!r}; it has {names}")
            shape, dtype = self._types[name]
            array = take_input(name, given, dtype)
            if (array.shape, array.dtype) != (shape, exchanged_dtype(dtype)):
                raise refused(
                    f"state {name!r}: expected {dtype} {shape}, got {array.dtype} {array.shape}"
                )
            copies[name] = array.copy()
        return copies

    @staticmethod
    def _refused(text: str) -> ExecutionError:
        return ExecutionError(f"initial: {text}")

    def _check_inputs(self, given: Mapping[str, Array]) -> None:
        state = [name for name in given if name in self._types]
        if state:
            raise ExecutionError(
                f"{', '.join(map(repr, state))} is state, which the session keeps; leave it out, "
                "or begin with executor.session(initial={...})"
            )
        missing = [name for name, _, _ in self._inputs if name not in given]
        if missing:
            raise ExecutionError(
                f"inputs {', '.join(map(repr, missing))} are missing; a call of a session needs "
                f"all of {_names(self._inputs)}"
            )

    def _all_outs(self, out: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        """Where each output of the program goes; state goes into new arrays."""
        if isinstance(out, np.ndarray) or len(out) != len(self._outputs):
            raise ExecutionError(
                f"`out` has {len(out)} elements; expected {len(self._outputs)}, one for each "
                f"output: {_names(self._outputs)}"
            )
        by_place = dict(zip(self._own_places, out, strict=True))
        return [by_place.get(place) for place in range(len(self._ports[1]))]


def _copies(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in state.items()}


def _names(ports: Ports) -> str:
    return listed(repr(name) for name, _, _ in ports) or "none"
