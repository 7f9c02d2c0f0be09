"""A program whose outputs replace some of its inputs: one sequence of calls, with its state."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from heteroplace.errors import ExecutionError
from heteroplace.native.execute import Session as NativeSession
from heteroplace.registry import load_plugin
from heteroplace.run.array_files import read_arrays, write_arrays
from heteroplace.run.arrays import Array, InputPorts, Ports, merged_inputs
from heteroplace.run.loaded_program import RunSession, SessionCall, SessionEntry
from heteroplace.terminal import listed

_PREFIX = "state:"
"""Before the names of arrays in a file of a session."""
_TOKENS = "tokens"
"""The name of an array there: the tokens of a session that has generated some."""
_GENERATORS = "generators"


class Session:
    """One sequence of calls of an executor. Made by `Executor.session`.

    The program keeps its state here: callers neither give nor get it. Sessions of an executor share
    its weights and kernels, and nothing else. Different sessions may be used by different threads;
    one session takes one call at a time.

    A call that fails, is cancelled or runs out of time can be made again: it leaves the state as it
    was, but for rows of a cache that it has written, which the next call writes again.
    """

    def __init__(
        self,
        entries: Sequence[SessionEntry],
        state: NativeSession,
        pairs: Sequence[tuple[str, str]],
        initial: Mapping[str, Array] | None,
    ) -> None:
        self._entries, self._native, self._pairs = entries, state, pairs
        self._state_names = frozenset(name for name, _ in pairs)
        self._state_inputs = tuple(
            port for port in entries[0].inputs if port[0] in self._state_names
        )
        self._programs = {entry.name: _Program.of(entry, state, pairs) for entry in entries}
        first = self._programs[entries[0].name]
        self.inputs = first.inputs
        """Name, shape and dtype of every input that is no state; of the first entry."""
        self.outputs = first.call.outputs
        """Name, shape and dtype of every output that is no state; of the first entry."""
        self.num_calls = 0
        """How many calls have succeeded since the session began, or was reset or loaded."""
        self.tokens: list[int] = []
        """What `generate` has read and written since then. The state knows all but the last one."""
        self._initial = {
            name: array.copy() for name, array in self._taken(initial or {}, "initial").items()
        }
        for name, array in self._initial.items():
            state.write(name, array)
        self._lock = threading.Lock()

    @property
    def state(self) -> dict[str, np.ndarray]:
        """A copy of the state, by the names of the inputs."""
        with self._lock:
            return self._read()

    @property
    def num_bytes(self) -> int:
        """Size of the state, in all memories together."""
        return self._native.num_bytes

    @property
    def entries(self) -> dict[str, tuple[Ports, Ports]]:
        """Inputs and outputs that are no state, of each entry by its name; "": the only one."""
        return {name: (each.inputs, each.call.outputs) for name, each in self._programs.items()}

    @property
    def expected_ns(self) -> dict[str, int]:
        """Predicted time of a call of each entry, by its name."""
        return {entry.name: entry.expected_ns for entry in self._entries}

    @property
    def num_tokens(self) -> int:
        """How many tokens `generate` has read and written."""
        return len(self.tokens)

    def __repr__(self) -> str:
        names = listed(name for name, _, _ in self._state_inputs)
        return f"Session({self.num_calls} calls, state {names}: {self.num_bytes:,} bytes)"

    def run(
        self,
        inputs: Mapping[str, Array] | None = None,
        /,
        *,
        out: Sequence[np.ndarray | None] | None = None,
        timeout_s: float | None = None,
        entry: str | None = None,
        **named: Array,
    ) -> list[np.ndarray]:
        """Run the network once, from the state of the last call; return the outputs.

        Parameters
        ----------
        inputs, named, out, timeout_s
            As of `Executor.run`, for inputs and outputs that are no state. All inputs are needed:
            none keeps the value that another session has given it.
        entry
            Which program of the file runs; None: the one whose inputs have these shapes, else the
            first.

        Raises
        ------
        ExecutionError
            As `Executor.run`; an input is missing or is state; or another call of this session is
            at work.
        """
        given = merged_inputs(inputs, named)
        program = self._program(entry, given)
        self._check_inputs(given, program)
        if not self._lock.acquire(blocking=False):
            raise ExecutionError(
                "the session is in use by another call; wait for its end, or fork the session"
            )
        try:
            outputs = program.run(program.call, given, out, timeout_s)
            self.num_calls += 1
        finally:
            self._lock.release()
        return outputs

    def generate(
        self,
        ids: Sequence[int],
        *,
        max_new_tokens: int = 128,
        stop_ids: Sequence[int] = (),
        **sampling: float | None,
    ) -> Iterator[int]:
        """Read a prompt, then yield the tokens that a decoder writes after it.

        A second call goes on after the tokens of the first one.

        Parameters
        ----------
        ids
            The tokens of the prompt.
        max_new_tokens
            How many are written at most.
        stop_ids
            Tokens that end the text. They are not yielded.
        sampling
            `temperature` (0: the likeliest token), `top_k`, `top_p`, `seed` and
            `repetition_penalty`.

        Raises
        ------
        ExecutionError
            The program is no decoder, an argument is wrong, or the cache is full.
        PluginError
            The part `text` is not installed.
        """
        generator = load_plugin(_GENERATORS, "text")
        tokens: Iterator[int] = generator(
            self, ids, max_new_tokens=max_new_tokens, stop_ids=stop_ids, **sampling
        )
        return tokens

    def reset(self) -> None:
        """Begin again, with the state that the session began with."""
        with self._lock:
            self._set(self._initial)

    def fork(self) -> Session:
        """Return another session that goes on from the same state."""
        with self._lock:
            state = self._native.fork()
            other = Session(self._entries, state, self._pairs, None)
            other._initial = self._initial
            other.num_calls, other.tokens = self.num_calls, list(self.tokens)
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file of numpy (.npz).

        Raises
        ------
        ArtifactError
            The file cannot be written.
        """
        with self._lock:
            arrays = {_PREFIX + name: array for name, array in self._read().items()}
            if self.tokens:
                arrays[_TOKENS] = np.array(self.tokens, np.int64)
            write_arrays(path, arrays)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from the state in a file that `save` has written.

        Raises
        ------
        ExecutionError
            It is no such file, or one of a program with other state. The session is as before.
        """
        content = read_arrays(path)
        tokens = content.pop(_TOKENS, np.zeros(0, np.int64))
        names = [name for name, _, _ in self._state_inputs]
        if set(content) != {_PREFIX + name for name in names}:
            raise ExecutionError(
                f"{path}: holds {listed(map(repr, content)) or 'nothing'}; expected the state "
                f"{listed(map(repr, names))}, written by Session.save of this program"
            )
        state = self._taken({name: content[_PREFIX + name] for name in names}, str(path))
        with self._lock:
            self._set(state)
            self.tokens = tokens.tolist()

    def _set(self, state: Mapping[str, np.ndarray]) -> None:
        """Make this the state; what is not in it becomes zeros."""
        self._native.clear()
        for name, array in state.items():
            self._native.write(name, array)
        self.num_calls, self.tokens = 0, []

    def _read(self) -> dict[str, np.ndarray]:
        return {name: self._native.read(name) for name, _, _ in self._state_inputs}

    def _taken(self, arrays: Mapping[str, Array], source: str) -> dict[str, np.ndarray]:
        """State as the core takes it; `source` is where messages say that it comes from."""
        try:
            return InputPorts(self._state_inputs, "state").take(arrays)
        except ExecutionError as err:
            raise ExecutionError(f"{source}: {err}") from err

    def _program(self, entry: str | None, given: Mapping[str, Array]) -> _Program:
        if entry is not None and entry not in self._programs:
            names = listed(name for name in self._programs if name)
            raise ExecutionError(f"there is no entry {entry!r}; the file has {names or 'none'}")
        if entry is not None or len(self._programs) == 1:
            return self._programs[self._entries[0].name if entry is None else entry]
        shapes = {name: tuple(getattr(array, "shape", ())) for name, array in given.items()}
        for program in self._programs.values():
            if shapes == {name: shape for name, shape, _ in program.inputs}:
                return program
        return self._programs[self._entries[0].name]

    def _check_inputs(self, given: Mapping[str, Array], program: _Program) -> None:
        state = [name for name in given if name in self._state_names]
        if state:
            raise ExecutionError(
                f"{', '.join(map(repr, state))} is state, which the session keeps; leave it out, "
                "or begin with executor.session(initial={...})"
            )
        missing = [name for name, _, _ in program.inputs if name not in given]
        if missing:
            names = (name for name, _, _ in program.inputs)
            raise ExecutionError(
                f"inputs {listed(map(repr, missing))} are missing; a call of a session needs all "
                f"of {listed(map(repr, names))}"
            )


class _Program(NamedTuple):
    """A program as a session calls it."""

    run: RunSession
    inputs: Ports
    """Those that are no state."""
    call: SessionCall

    @classmethod
    def of(
        cls, entry: SessionEntry, state: NativeSession, pairs: Sequence[tuple[str, str]]
    ) -> _Program:
        """Leave state out of inputs and outputs."""
        replaced, replacing = {name for name, _ in pairs}, {output for _, output in pairs}
        inputs = tuple(port for port in entry.inputs if port[0] not in replaced)
        outputs = tuple(port for port in entry.outputs if port[0] not in replacing)
        return cls(entry.run, inputs, SessionCall(InputPorts(inputs), outputs, state))
