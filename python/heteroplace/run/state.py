"""State of a program: inputs that its runs replace, each in one memory or in several."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from heteroplace.errors import ExecutionError
from heteroplace.files.manifest import State
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.run.arrays import Array, exchanged_dtype, take_input
from heteroplace.run.closed_program import closed_program


class ProgramState:
    """Reads and writes the state that this process has."""

    def __init__(self, native: NativeExecutor, states: Sequence[State]) -> None:
        self._native = native
        self._states = {state.name: state for state in states}
        self._ports = {port.name: port for port in native.inputs}
        """Of this process."""
        self.ports = frozenset(port for state in states for port in state.ports)
        """All ports that are state."""

    def close(self) -> None:
        """Give up the program, which then has no state."""
        self._native = closed_program()

    def begin(self, blob: np.ndarray) -> None:
        """Set what has a value at first, which is among the weights."""
        for state in self._states.values():
            if state.blob_offset is None:
                continue
            for port in self._own(state):
                shape, dtype = self._ports[port].shape, exchanged_dtype(self._ports[port].dtype)
                end = state.blob_offset + prod(shape) * dtype.itemsize
                content = blob[state.blob_offset : end].view(dtype).reshape(shape)
                self._native.set_own_input(port, content)

    def read(self, name: str) -> np.ndarray:
        """Return the value of a state, from the first memory here that has it."""
        port = next(iter(self._here(name)))
        return self._native.get_own_output(port)

    def write(self, name: str, value: Array) -> None:
        """Set a state in all memories here that have it."""
        for port in self._here(name):
            self._native.set_own_input(port, take_input(name, value, self._ports[port].dtype))

    def _own(self, state: State) -> list[str]:
        return [port for port in state.ports if port in self._ports]

    def _here(self, name: str) -> list[str]:
        if name not in self._states:
            names = ", ".join(map(repr, self._states)) or "none"
            raise ExecutionError(f"the program has no state {name!r}; it has {names}")
        own_names = self._own(self._states[name])
        if not own_names:
            ports = ", ".join(self._states[name].ports)
            raise ExecutionError(
                f"state {name!r} is in no memory of this rank's host (it is {ports}); ask the rank "
                f"of a host that has it"
            )
        return own_names
