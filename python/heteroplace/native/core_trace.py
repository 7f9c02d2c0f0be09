"""What the core has recorded of many requests, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import heteroplace._core as _core

EVENT = np.dtype(
    [
        *((name, np.int64) for name in ("request", "slot", "queue", "instruction")),
        *((name, np.int64) for name in ("is_done", "wait_ns", "start_ns", "finish_ns", "core")),
    ]
)
"""One instruction of one request; see `src/exec/trace/trace.h`."""
REQUEST = np.dtype(
    [(name, np.int64) for name in ("request", "slot", "has_failed", "start_ns", "finish_ns")]
)
"""One request."""


class RecordedTrace:
    """A finished recording of an executor, which it keeps."""

    def __init__(self, core: _core.Trace, executor: _core.Executor | _core.RankedExecutor) -> None:
        self._core = core
        self._executor = executor
        self.origin_ns: int = core.origin_ns
        self.duration_ns: int = core.duration_ns
        self.num_dropped: int = core.num_dropped
        self.num_unfinished: int = core.num_unfinished
        self.events: npt.NDArray[Any] = core.events().view(EVENT)[:, 0]
        self.requests: npt.NDArray[Any] = core.requests().view(REQUEST)[:, 0]

    def chrome_trace(self, step_names: Sequence[str] = ()) -> str:
        """Return it as text in Chrome's trace-event format, which Perfetto shows.

        Parameters
        ----------
        step_names
            Of the plan's steps; without them slices have the names of their kernels.
        """
        if isinstance(self._executor, _core.RankedExecutor):
            return self._executor.trace_json(self._core, list(step_names))
        return self._core.json(self._executor, list(step_names))
