"""A size that each call of a compiled file chooses -> its axes, and the entry with room for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heteroplace.errors import ExecutionError
from heteroplace.files.fields.fields import Count
from heteroplace.terminal import listed

_Port = tuple[str, tuple[int, ...], str]
"""Name, shape and dtype."""
ANY = -1
"""As a size in a shape: each call chooses it."""


@dataclass(frozen=True)
class CallLengths:
    """A size of a model that each call chooses, up to the size of the largest entry.

    A call is padded with zeros to the smallest entry that has room. Its outputs are cut to the
    length of the call.
    """

    size: str
    """Its name in the model, such as "sequence_length"."""
    entries: tuple[Count, ...]
    """The size of each entry, ascending. Entries are called by these numbers."""
    inputs: tuple[tuple[str, tuple[Count, ...]], ...]
    """Each input that has this size, and the axes that have it."""
    outputs: tuple[tuple[str, tuple[Count, ...]], ...]
    """Likewise; other outputs are returned whole."""

    @property
    def largest(self) -> int:
        """The largest length of a call."""
        return self.entries[-1]

    @property
    def text(self) -> str:
        """As one line.

        >>> CallLengths("length", (16, 64), (("ids", (1,)),), ()).text
        'any length from 1 to 64, padded to 16 or 64'
        """
        *others, last = map(str, self.entries)
        return f"any {self.size} from 1 to {last}, padded to {', '.join(others)} or {last}"

    def entry_for(self, length: int) -> int:
        """Return the size of the smallest entry that has room for a call.

        Raises
        ------
        ExecutionError
            The length is 0, or larger than all entries.
        """
        if not 1 <= length <= self.largest:
            sizes = ",".join(map(str, (*self.entries, max(length, 1))))
            remedy = (
                f"; compile the model with a larger size, such as --size {self.size}={sizes}"
                if length
                else ""
            )
            raise ExecutionError(
                f"{self.size} is {length}; this file takes 1 to {self.largest}{remedy}"
            )
        return self.entries[bisect_left(self.entries, length)]

    def length_of(self, shapes: Mapping[str, Sequence[int]]) -> int:
        """Return the length of a call.

        Parameters
        ----------
        shapes
            Of its inputs, by name; others than those with this size are not read.

        Raises
        ------
        ExecutionError
            No input with this size is there, one has too few axes, or two differ in length.
        """
        lengths: list[int] = []
        for name, axes in self.inputs:
            shape = shapes.get(name)
            if shape is None:
                continue
            for axis in axes:
                if axis >= len(shape):
                    raise ExecutionError(
                        f"input {name!r} has shape {list(shape)}; expected its {self.size} at "
                        f"axis {axis}"
                    )
                lengths.append(shape[axis])
        if not lengths:
            names = listed(repr(name) for name, _ in self.inputs)
            raise ExecutionError(f"inputs {names} are missing; they say what {self.size} is")
        if lengths.count(lengths[0]) < len(lengths):
            texts = listed(
                f"axis {axis} of input {name!r} has {shapes[name][axis]}"
                for name, axes in self.inputs
                for axis in axes
                if name in shapes
            )
            raise ExecutionError(f"inputs differ in {self.size}: {texts}; give all of them one")
        return lengths[0]

    def input_ports(self, ports: Sequence[_Port], length: int) -> tuple[_Port, ...]:
        """Return the inputs of an entry with the shapes that they have for calls of a length."""
        return _at_length(ports, dict(self.inputs), length)

    def output_ports(self, ports: Sequence[_Port], length: int) -> tuple[_Port, ...]:
        """Return the outputs of an entry with the shapes that callers get."""
        return _at_length(ports, dict(self.outputs), length)


def _at_length(
    ports: Sequence[_Port], axes: Mapping[str, Sequence[int]], length: int
) -> tuple[_Port, ...]:
    return tuple(
        (
            name,
            tuple(length if axis in axes.get(name, ()) else n for axis, n in enumerate(shape)),
            dtype,
        )
        for name, shape, dtype in ports
    )
