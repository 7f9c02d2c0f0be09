"""One loaded model that answers many requests: places in its queue, threads that run it, limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from heteroplace.errors import ExecutionError
from heteroplace.parts.serving.completions import Completion, CompletionRequest
from heteroplace.parts.serving.http_messages import DisconnectedError
from heteroplace.parts.serving.inference_messages import InferenceMessages, InferenceRequest
from heteroplace.parts.serving.run_threads import RunThreads
from heteroplace.parts.serving.sequences import Sequences
from heteroplace.parts.serving.serving_metrics import ModelMetrics
from heteroplace.parts.serving.serving_options import ServingOptions

if TYPE_CHECKING:  # it loads TVM
    from heteroplace.run.executor import Executor

Arrays = Mapping[str, npt.NDArray[Any]]
Outputs = list[npt.NDArray[Any]]
_UNWATCHED_S = 0.1
"""How long a request waits before anything looks whether its client is still there."""


class ServedModel:
    """A model, its queue, and one thread for each request that may run at once.

    All methods but `close` are called in the event loop. A request has a place from its headers to
    its answer, so the memory of all bodies is limited. The threads take requests in the order in
    which they came; between two of them the event loop has nothing to do.
    """

    def __init__(
        self, name: str, executor: Executor, options: ServingOptions, metrics: ModelMetrics
    ) -> None:
        self.name = name
        has_state = bool(executor.session_state)
        ports = executor.session() if has_state else executor
        self.messages = InferenceMessages(
            name, ports.inputs, ports.outputs, has_state, executor.lengths
        )
        self.metrics = metrics
        metrics.serial.set_function(lambda: executor.call_modes.num_serial)
        self._executor = executor
        self._sequences = Sequences(
            executor.session, options.max_sequences, options.sequence_idle_s
        )
        self._max_pending = executor.max_in_flight + options.max_waiting
        self._num_pending = 0
        self._threads: RunThreads[Any] = RunThreads(executor.max_in_flight, f"serve-{name}")

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place in the queue.

        Raises
        ------
        asyncio.QueueFull
            All places are taken.
        """
        if self._num_pending >= self._max_pending:
            raise asyncio.QueueFull
        self._num_pending += 1
        self.metrics.pending.inc()
        try:
            yield
        finally:
            self._num_pending -= 1
            self.metrics.pending.dec()

    async def run(
        self, inference: InferenceRequest, end_s: float, disconnected: Callable[[], Awaitable[None]]
    ) -> Outputs:
        """Run the network once a thread is free, and the sequence of the request is; return its
        outputs.

        Parameters
        ----------
        end_s
            When the time is up, by `time.monotonic`.
        disconnected
            Returns when the client is gone. A request that still waits then never runs.

        Raises
        ------
        TimeoutError
            The time is up.
        DisconnectedError
            The client is gone.
        ExecutionError
            The run failed.
        RefusedRequestError
            See `Sequences.session_of`.
        """
        if inference.sequence is None:
            return await self._run_by(self._executor.run, inference.arrays, end_s, disconnected)
        async with self._sequences.session_of(inference.sequence, end_s) as session:
            return await self._run_by(session.run, inference.arrays, end_s, disconnected)

    async def _run_by(
        self,
        run: Callable[..., Outputs],
        arrays: Arrays,
        end_s: float,
        disconnected: Callable[[], Awaitable[None]],
    ) -> Outputs:
        loop = asyncio.get_running_loop()
        submitted_s = time.monotonic()
        future = self._threads.submit(lambda: self._run(run, arrays, submitted_s, end_s))
        watchers: list[asyncio.Task[None]] = []
        timers = (
            loop.call_later(end_s - submitted_s, _fail, future, TimeoutError()),
            # Most requests end soon, and a watcher for each would cost more than it saves.
            loop.call_later(
                _UNWATCHED_S,
                lambda: watchers.append(loop.create_task(_watch(disconnected, future))),
            ),
        )
        try:
            outputs: Outputs = await future
            return outputs
        finally:
            for timer in timers:
                timer.cancel()
            for watcher in watchers:
                watcher.cancel()

    def completion(self, request: CompletionRequest, end_s: float) -> Completion:
        """Return the answer to a request for text, which `submit` lets a thread write."""
        return Completion(self._executor, request, end_s)

    def submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Have one of the threads make a call."""
        return self._threads.submit(call)

    def close(self) -> None:
        """End the threads; requests that run are finished."""
        self._threads.close()

    def _run(
        self, run: Callable[..., Outputs], arrays: Arrays, submitted_s: float, end_s: float
    ) -> Outputs:
        began_s = time.monotonic()
        left_s = end_s - began_s
        if left_s <= 0:
            raise TimeoutError
        try:
            outputs = run(arrays, timeout_s=left_s)
        except ExecutionError as err:
            if time.monotonic() >= end_s:
                raise TimeoutError from err
            raise
        self.metrics.count_run(began_s - submitted_s, time.monotonic() - began_s)
        return outputs


def _fail(future: asyncio.Future[Outputs], fault: Exception) -> None:
    if not future.done():
        future.set_exception(fault)


async def _watch(
    disconnected: Callable[[], Awaitable[None]], future: asyncio.Future[Outputs]
) -> None:
    """Give up a request once its client is gone."""
    await disconnected()
    _fail(future, DisconnectedError())
