"""Calls of any length -> calls of the entry that has room: padded inputs, and outputs that are cut.

An input is copied once more than in other calls, into a buffer that later calls use again. An
output is copied once more only where its real part is no block of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from heteroplace.errors import ExecutionError
from heteroplace.files.call_lengths import CallLengths
from heteroplace.run.arrays import (
    Array,
    InputPorts,
    Ports,
    exchanged_dtype,
    take_input,
    take_outs,
)
from heteroplace.run.calls import Call, Outputs
from heteroplace.terminal import listed

_Outs = Sequence[np.ndarray | None] | None
_Begin = Callable[[str, Mapping[str, Array], _Outs], Call]
"""Begins a call of an entry, by name; inputs are copied when it returns."""
_Places = tuple[slice, ...]
_MAX_LENGTHS = 256
"""Lengths whose shapes are remembered."""


class CutCall(Call):
    """A call of an entry that has more room than its caller needs; outputs are cut."""

    def __init__(
        self, whole: Call, cuts: Sequence[_Places | None], outs: Sequence[np.ndarray | None]
    ) -> None:
        super().__init__(whole.request, (), outs, whole.deadline)
        self._whole = whole
        self._cuts = cuts

    def finish(self) -> Outputs:
        """As `Call.finish`."""
        whole = self._whole.finish()
        return [
            output if places is None else _cut(output[places], out)
            for output, places, out in zip(whole, self._cuts, self._outs, strict=True)
        ]


class PaddedCalls:
    """The entries of a file that takes calls of any length. Any thread may call any method.

    Parameters
    ----------
    lengths
        The size that calls choose.
    inputs, outputs
        Of one entry.
    """

    def __init__(self, lengths: CallLengths, inputs: Ports, outputs: Ports) -> None:
        self._lengths = lengths
        self._dtypes = {name: dtype for name, _, dtype in inputs}
        self._axes = dict(lengths.inputs)
        self._padded = {
            size: {
                name: (shape, exchanged_dtype(dtype))
                for name, shape, dtype in lengths.input_ports(inputs, size)
                if name in self._axes
            }
            for size in lengths.entries
        }
        # One call at a time takes each; a list does a pop or an append as a whole.
        self._buffers: dict[int, list[_Buffers]] = {size: [] for size in lengths.entries}

        cut = dict(lengths.outputs)

        def ports_at(length: int) -> tuple[InputPorts, Ports, list[_Places | None]]:
            """Inputs, outputs, and what is cut of each output; of calls of a length."""
            cuts = [_places(cut[name], length) if name in cut else None for name, _, _ in outputs]
            own_inputs = InputPorts(lengths.input_ports(inputs, length))
            return own_inputs, lengths.output_ports(outputs, length), cuts

        self._ports_at = lru_cache(_MAX_LENGTHS)(ports_at)

    def start(self, given: Mapping[str, Array], out: _Outs, begin: _Begin) -> Call:
        """Begin a call of the smallest entry that has room.

        Raises
        ------
        ExecutionError
            Inputs are missing, wrong, or longer than the largest entry; or `out` is wrong.
        """
        missing = [name for name in self._dtypes if name not in given]
        if missing:
            raise ExecutionError(
                f"inputs {listed(map(repr, missing))} are missing; a call that chooses "
                f"{self._lengths.size} needs all of {listed(map(repr, self._dtypes))}"
            )
        sized = {name: self._array(name, given[name]) for name in self._axes}
        length = self._lengths.length_of({name: array.shape for name, array in sized.items()})
        size = self._lengths.entry_for(length)
        if size == length:
            return begin(str(size), {**given, **sized}, out)
        inputs, outputs, cuts = self._ports_at(length)
        arrays = inputs.take({**given, **sized})
        outs = take_outs(outputs, out)
        whole = [own if places is None else None for own, places in zip(outs, cuts, strict=True)]
        buffers = self._taken(size)
        try:
            buffers.fill(arrays, length)
            return CutCall(begin(str(size), {**arrays, **buffers.arrays}, whole), cuts, outs)
        finally:
            self._buffers[size].append(buffers)

    def _array(self, name: str, array: Array) -> np.ndarray:
        """An input that has the size; one of numpy is checked later."""
        return array if isinstance(array, np.ndarray) else take_input(name, array)

    def _taken(self, size: int) -> _Buffers:
        """Buffers for the inputs of one call."""
        try:
            return self._buffers[size].pop()
        except IndexError:
            zeros = {name: np.zeros(*form) for name, form in self._padded[size].items()}
            return _Buffers(zeros, self._axes)


class _Buffers:
    """The padded inputs of one call at a time, by name; zeros at first."""

    def __init__(self, arrays: Mapping[str, np.ndarray], axes: Mapping[str, Sequence[int]]) -> None:
        self.arrays = arrays
        self._axes = axes
        self._length = 0

    def fill(self, arrays: Mapping[str, np.ndarray], length: int) -> None:
        """Write arrays of a length, and zeros behind them where the last ones were longer."""
        before = self._length
        self._length = max(before, length)  # so it stays if this is interrupted
        for name, axes in self._axes.items():
            buffer = self.arrays[name]
            if length < before:
                for axis in axes:
                    buffer[tuple([slice(None)] * axis + [slice(length, None)])] = 0
            buffer[_places(axes, length)] = arrays[name]
        self._length = length


def _places(axes: Sequence[int], length: int) -> _Places:
    return tuple(slice(length) if axis in axes else slice(None) for axis in range(max(axes) + 1))


def _cut(part: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    if out is None:
        return np.ascontiguousarray(part)
    out[...] = part
    return out
