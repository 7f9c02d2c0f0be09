"""Recordings of calls: what every queue did, for how long it waited, and for which request."""

from __future__ import annotations

import logging
import os
from html import escape
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from heteroplace.entries import load_entry
from heteroplace.errors import ExecutionError
from heteroplace.files.output import write_text
from heteroplace.model.solution import Solution
from heteroplace.model.text.plan_text import step_name
from heteroplace.model.timeline import Timeline
from heteroplace.model.trace import QueueUse, TracedRequest
from heteroplace.model.units import format_ns
from heteroplace.native.execute import Executor, RecordedTrace
from heteroplace.run.measured_timeline import measured_timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from heteroplace.report.lanes import Lanes

_BAR, _SORTED = "heteroplace.report.lanes:Bar", "heteroplace.report.lanes:sorted_lanes"
_SVG = "heteroplace.report.lanes_svg:lanes_svg"
_FIGURE = "heteroplace.report.lanes_plot:lanes_figure"
"""Loaded when a trace is shown."""
_LOG = logging.getLogger("heteroplace")


class Trace:
    """A recording of the calls of an executor, by `Executor.trace`. `with` starts and stops it.

    While it is on, each instruction costs one look at a clock (some 10 ns) and no lock, so it may
    stay on. Each call that begins meanwhile is recorded as a whole or not at all; of more than
    there is room for, the last ones are kept. What it holds can be asked for once it was stopped,
    and it may then be started anew. Any thread may call any method.
    """

    def __init__(self, native: Executor, solution: Solution, max_requests: int | None) -> None:
        self._native = native
        self._solution = solution
        self._max_requests = max_requests
        self._recorded: RecordedTrace | None = None

    def __enter__(self) -> Trace:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Record the calls that begin from now on; those at work are not in it.

        Raises
        ------
        ExecutionError
            The executor records already, or memory is short.
        """
        self._native.start_trace(self._max_requests)

    def stop(self, timeout_s: float | None = None) -> None:
        """End the recording, once the calls in it have ended, or after `timeout_s`.

        A call that has not ended by then, or has a step that does not end, is only counted.

        Raises
        ------
        ExecutionError
            It was not started, or `timeout_s` is no time.
        """
        recorded = self._native.stop_trace(timeout_s)
        self._recorded = recorded
        if recorded.num_dropped:
            _LOG.info(
                "the trace keeps the last %d calls; %d before them were dropped",
                len(recorded.requests),
                recorded.num_dropped,
            )
        if recorded.num_unfinished:
            _LOG.warning(
                "%d calls are not in the trace: they have not ended", recorded.num_unfinished
            )

    def _take(self) -> RecordedTrace:
        if self._recorded is None:
            raise ExecutionError(
                "the trace holds nothing yet: start it, make calls, and stop it (leave its `with`)"
            )
        return self._recorded

    @property
    def requests(self) -> tuple[TracedRequest, ...]:
        """The calls, in the order in which they were submitted."""
        return tuple(
            TracedRequest(number, slot, bool(has_failed), start_ns, finish_ns, bool(is_serial))
            for number, slot, has_failed, start_ns, finish_ns, is_serial in (
                self._take().requests.tolist()
            )
        )

    @property
    def num_dropped(self) -> int:
        """How many calls were recorded before these, and had to make room."""
        return self._take().num_dropped

    @property
    def num_unfinished(self) -> int:
        """How many calls had not ended when it was stopped."""
        return self._take().num_unfinished

    @property
    def origin_ns(self) -> int:
        """When the recording began, as `time.monotonic_ns()` has it; all times count from there."""
        return self._take().origin_ns

    @property
    def events(self) -> npt.NDArray[Any]:
        """Instructions: `request`, `slot`, `queue`, `instruction` (place in the queue), `is_done`
        (0: the call failed or was cancelled there), `wait_ns` (before the start), `start_ns`,
        `finish_ns`, `core` (of a call in a group that was done, the queue whose core did it, within
        its group or the join of it, or a number behind those of queues, of a stream beside that of
        its queue; else -1); by request, queue, instruction."""
        return self._take().events

    @property
    def busy(self) -> tuple[QueueUse, ...]:
        """For each queue how it spent the time from the first call to the end of the last."""
        recorded = self._take()
        events, requests = recorded.events, recorded.requests
        wall_ns = 0
        if len(requests):
            wall_ns = int(requests["finish_ns"].max() - requests["start_ns"].min())
        uses = []
        for queue, name in enumerate(self._native.queues):
            is_own = (events["queue"] == queue) & (events["core"] < 0)
            own = events[is_own & (events["is_done"] == 1)]
            busy_ns = int((own["finish_ns"] - own["start_ns"]).sum())
            uses.append(QueueUse(name, busy_ns, int(own["wait_ns"].sum()), wall_ns))
        return tuple(uses)

    def timeline(self, request: int | None = None) -> Timeline:
        """Return when each step of the plan ran in one call, by its number.

        None: of the calls that succeeded, the one that took the median time. Steps without a kernel
        of their own have no span.

        Raises
        ------
        ExecutionError
            There is no such call, or it did not succeed.
        """
        good = [one for one in self.requests if not one.has_failed]
        if request is None:
            ordered = sorted(good, key=lambda one: one.finish_ns - one.start_ns)
            request = ordered[len(ordered) // 2].number if ordered else -1
        if request not in (one.number for one in good):
            raise ExecutionError(
                f"the trace has no successful call {request}; it has "
                + (f"{good[0].number} to {good[-1].number}" if good else "none at all")
            )
        events = self.events[self.events["request"] == request]
        # Events of a whole call are in the order of the instructions.
        records = [
            (instruction.step, instruction.kernel is not None, int(start), int(finish))
            for instruction, start, finish in zip(
                self._native.instructions, events["start_ns"], events["finish_ns"], strict=True
            )
        ]
        return measured_timeline(records, self._solution)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it in Chrome's trace-event format, for https://ui.perfetto.dev.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        solution = self._solution
        names = [step_name(step, solution.graph, solution.cluster) for step in solution.plan.steps]
        write_text(self._take().chrome_trace(names), path)

    def plot(self) -> Figure:
        """Return a figure of matplotlib: what each queue did, a colour for each call.

        Raises
        ------
        ExecutionError
            It was not stopped yet.
        MissingPackageError
            matplotlib is not installed.
        """
        figure: Figure = load_entry(_FIGURE)(self._lanes())
        return figure

    def __repr__(self) -> str:
        if self._recorded is None:
            return "<Trace: nothing recorded yet>"
        return f"<Trace: {self._figures()}>"

    def _repr_html_(self) -> str:
        """Return what each queue did, as a picture for a notebook."""
        picture = "" if self._recorded is None else load_entry(_SVG)(self._lanes())
        return f"<p><b>{escape(repr(self)[1:-1])}</b></p>{picture}"

    def _figures(self) -> str:
        num_calls, uses = len(self.requests), self.busy
        wall_ns = max((use.wall_ns for use in uses), default=0)
        calls = f"{num_calls} call{'' if num_calls == 1 else 's'}"
        return f"{calls} on {len(uses)} queues in {format_ns(wall_ns)}"

    def _lanes(self) -> Lanes:
        """What each queue did; of a call in a group the shares of other cores are left out."""
        solution, queues = self._solution, self._native.queues
        names = {
            (instruction.queue, instruction.position): step_name(
                solution.plan.steps[instruction.step], solution.graph, solution.cluster
            )
            for instruction in self._native.instructions
        }
        events = self._take().events
        own = events[(events["core"] < 0) & (events["is_done"] == 1)]
        begin_ns = int(own["start_ns"].min()) if len(own) else 0
        bar = load_entry(_BAR)
        bars = [
            (
                queues[queue],
                bar(
                    int(start) - begin_ns,
                    int(finish) - begin_ns,
                    f"{names.get((int(queue), int(place)), 'instruction')}, call {request}",
                    int(request),
                ),
            )
            for queue, place, start, finish, request in zip(
                *(own[name] for name in ("queue", "instruction", "start_ns", "finish_ns")),
                own["request"],
                strict=True,
            )
        ]
        lanes: Lanes = load_entry(_SORTED)(self._figures(), queues, bars)
        return lanes
