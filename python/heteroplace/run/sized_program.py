"""A loaded program and the other entries of its file -> calls of the entry that has room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from heteroplace.entries import load_entry
from heteroplace.errors import ExecutionError
from heteroplace.run.arrays import Array
from heteroplace.run.calls import Call
from heteroplace.run.loaded_program import SessionCall
from heteroplace.run.routed_program import RoutedProgram

if TYPE_CHECKING:
    from heteroplace.files.call_lengths import CallLengths
    from heteroplace.run.padded_calls import PaddedCalls

_PADDED_CALLS = "heteroplace.run.padded_calls:PaddedCalls"
"""Loaded for a program that takes calls of any length."""


class SizedProgram(RoutedProgram):
    """A program whose calls may choose a size. All others are called as they are."""

    _padded: PaddedCalls | None = None
    _others: Mapping[str, SizedProgram]
    """The other entries, by name."""

    def _take_lengths(self, lengths: CallLengths, others: Mapping[str, SizedProgram]) -> None:
        """Begin to take calls of any length, which the other entries help with."""
        self._padded = load_entry(_PADDED_CALLS)(lengths, self.inputs, self.outputs)
        self._others = others
        for each in others.values():  # one thread completes the calls of all
            each._completer = self._completer

    @property
    def lengths(self) -> CallLengths | None:
        """The size that each call chooses, such as the number of tokens; None: there is none.

        Calls then need all inputs. `inputs` and `outputs` are those of the smallest entry, which
        `timeline`, `benchmark`, `trace` and `report` are about too.
        """
        return self._manifest.lengths

    def get_output(self, index: int) -> np.ndarray:
        """As `LoadedProgram.get_output`; refused where calls choose their length."""
        if self._padded is not None:
            raise ExecutionError(
                "calls of this file are of any length, and their outputs are not kept: take those "
                "that `run` returned"
            )
        return super().get_output(index)

    def _start(
        self,
        given: Mapping[str, Array],
        out: Sequence[np.ndarray | None] | None,
        timeout_s: float | None,
        *,
        is_waited: bool = False,
        session: SessionCall | None = None,
    ) -> Call:
        """Submit a call, of the entry that has room for it."""
        if self._padded is None:
            return super()._start(given, out, timeout_s, is_waited=is_waited, session=session)

        def begin(
            name: str, inputs: Mapping[str, Array], outs: Sequence[np.ndarray | None] | None
        ) -> Call:
            program = self._others.get(name, self)
            return super(SizedProgram, program)._start(inputs, outs, timeout_s, is_waited=is_waited)

        return self._padded.start(given, out, begin)
