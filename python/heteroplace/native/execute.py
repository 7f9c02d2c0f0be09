"""The executor: a lowered program and its compiled kernels, run over all devices at once.

The classes are those of the core (`src/bind/exec.cc`, `src/bind/session.cc`,
`src/bind/measuring.cc` and `src/bind/recording.cc`); this file has the values that they return.
"""

from __future__ import annotations

from typing import NamedTuple

import heteroplace._core as _core

Executor = _core.Executor
Request = _core.Request
Session = _core.Session
RecordedTrace = _core.RecordedTrace


class PortSpec(NamedTuple):
    """An input or output of a program."""

    name: str
    """Name in the model."""
    dtype: str
    """Type of the elements, by TVM's name; `bfloat16` is exchanged as `uint16` bit patterns."""
    shape: tuple[int, ...]
    """Extents; `()` for a scalar."""


class LoadedInstruction(NamedTuple):
    """One instruction of a program."""

    queue: int
    """Position of its queue in `Executor.queues`."""
    position: int
    """Position in the queue."""
    step: int
    """Step of the plan that it carries out."""
    kernel: str | None
    """Symbol of the kernel that it calls, or None for a copy or a join."""


class PredictionCounts(NamedTuple):
    """How the predictions of a router came out, in calls that succeeded."""

    num_calls: int
    """Calls in which branches were predicted and the router decided."""
    num_exact: int
    """Of these, the ones where just the predicted branches were active."""
    num_wider: int
    """Of these, the ones where all active branches were predicted, and more."""

    is_predicted: bool
    """Whether something is predicted of calls that begin now: not where nobody did, or where too
    few of the last 100 calls were right for that to pay."""

    @property
    def num_missed(self) -> int:
        """Those where an active branch was not predicted."""
        return self.num_calls - self.num_exact - self.num_wider

    @property
    def hit_rate(self) -> float | None:
        """The share of the calls in which no active branch was missing; None: there were none."""
        num_hits = self.num_exact + self.num_wider
        return num_hits / self.num_calls if self.num_calls else None
