"""A session of a compiled decoder -> calls that take tokens and return logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from heteroplace.errors import ExecutionError
from heteroplace.terminal import listed

if TYPE_CHECKING:  # it loads TVM
    from heteroplace.run.arrays import Ports
    from heteroplace.run.sessions import Session

IDS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
LOGITS = "logits"
_EXPECTED = (
    f"a decoder takes {IDS} [1, length], {MASK} [1, capacity] and, if it needs them, {POSITIONS} "
    f"[1, length], and returns {LOGITS} [1, length or 1, vocabulary]; its cache is state"
)


class DecoderSession(Protocol):
    """A decoder with a cache of keys and values."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens one call may take, ascending."""

    @property
    def costs(self) -> Mapping[int, float]:
        """Predicted time of a call of each length, in any unit."""

    @property
    def capacity(self) -> int:
        """How many tokens the cache holds."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""

    @property
    def has_all_rows(self) -> bool:
        """Whether there are logits of each token of a call; else they are those of the last one."""

    @property
    def tokens(self) -> list[int]:
        """What was read and written so far; the cache has all but the last one."""

    def run(self, length: int, inputs: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[Any]:
        """Run once; return the logits [1, length or 1, vocabulary].

        Parameters
        ----------
        length
            One of `lengths`.
        inputs
            `input_ids`, `attention_mask` and `position_ids`; one that the decoder lacks is ignored.
        """


class SessionDecoder:
    """A session of a compiled decoder; each entry of its file takes another number of tokens.

    Raises
    ------
    ExecutionError
        The program is no decoder.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        entries = [_Entry.of(name, *ports) for name, ports in session.entries.items()]
        entries.sort(key=lambda entry: entry.length)
        self._by_length = {entry.length: entry for entry in entries}
        self.lengths = tuple(self._by_length)
        expected = session.expected_ns
        self.costs: Mapping[int, float] = {each.length: expected[each.name] for each in entries}
        self.capacity, self.vocabulary = entries[0].capacity, entries[0].vocabulary
        self.has_all_rows = all(entry.has_all_rows for entry in entries)
        if any(entry.capacity != self.capacity for entry in entries):
            sizes = [f"{entry.name}: {entry.capacity}" for entry in entries]
            raise ExecutionError(
                f"the entries have {MASK} of unlike sizes ({listed(sizes)}); give all that of the "
                "cache"
            )

    @property
    def tokens(self) -> list[int]:
        """Those of the session."""
        return self._session.tokens

    def run(self, length: int, inputs: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[Any]:
        """See `DecoderSession`."""
        entry = self._by_length[length]
        arrays = {name: inputs[name].astype(dtype) for name, dtype in entry.types.items()}
        logits = self._session.run(arrays, entry=entry.name)[entry.place]
        if entry.is_bfloat16:  # its bits
            return (logits.astype(np.uint32) << 16).view(np.float32)
        return logits


@dataclass(frozen=True)
class _Entry:
    """A program of a decoder, for calls of one length."""

    name: str
    types: Mapping[str, str]
    """Of the inputs."""
    place: int
    """Of the logits among the outputs."""
    is_bfloat16: bool
    length: int
    capacity: int
    vocabulary: int
    has_all_rows: bool

    @classmethod
    def of(cls, name: str, inputs: Ports, outputs: Ports) -> _Entry:
        """Read the ports of an entry, which are not state."""
        types = {name: dtype for name, _, dtype in inputs}
        shapes = {name: shape for name, shape, _ in inputs}
        places = [i for i, port in enumerate(outputs) if port[0] == LOGITS or len(outputs) == 1]
        ids, mask = shapes.get(IDS, ()), shapes.get(MASK, ())
        _, logits, dtype = outputs[places[0]] if places else ("", (), "")
        is_decoder = (
            set(shapes) <= {IDS, MASK, POSITIONS}
            and all(each in ("int32", "int64") for each in types.values())
            and (len(ids), ids[:1], len(mask), mask[:1]) == (2, (1,), 2, (1,))
            and shapes.get(POSITIONS, ids) == ids
            and len(logits) == 3
            and logits[:2] in ((1, 1), ids)
        )
        if not is_decoder:
            taken, returned = (
                [f"{name} {list(shape)}" for name, shape, _ in ports] for ports in (inputs, outputs)
            )
            raise ExecutionError(
                f"the program is no decoder: beside its state it takes {listed(taken) or 'nothing'}"
                f" and returns {listed(returned) or 'nothing'}; {_EXPECTED}"
            )
        is_bfloat16, has_all_rows = dtype == "bfloat16", logits[1] == ids[1]
        return cls(*(name, types, places[0], is_bfloat16, ids[1], mask[1], logits[2]), has_all_rows)
