"""Requests that are recorded on GPUs, by clocks that are not the host's."""

from __future__ import annotations

import numpy as np
import pytest
from executor_programs import make_executor
from mixed_programs import MixedWriter

from heteroplace.native.execute import Executor
from tests.fake_cuda.control import FakeCuda

pytestmark = pytest.mark.timeout(600)

DAY_NS = 86_400_000_000_000


def run_at_once(executor: Executor, writer: MixedWriter, num_requests: int) -> None:
    """Run requests at once, and check their numbers."""
    requests = [executor.begin() for _ in range(num_requests)]
    for request in requests:
        request.submit()
    for request in requests:
        writer.finish(request)
        request.close()


def make_executor_of(library: str, writer: MixedWriter, num_instructions: int) -> Executor:
    """Load a program for three requests at once, with its inputs."""
    executor = make_executor(library, writer.text(num_instructions), max_in_flight=3)
    executor.set_input("x0", writer.values[-2])
    executor.set_input("x1", writer.values[-1])
    return executor


def test_many_requests_are_recorded_by_events_of_their_devices(
    cuda_library: str, fake: FakeCuda
) -> None:
    fake.set("delay_ns", 50_000)
    writer = MixedWriter(2, (0, 1))
    executor = make_executor_of(cuda_library, writer, 25)
    fake.run(executor)
    executor.start_trace()
    for _ in range(5):
        run_at_once(executor, writer, 3)
    trace = executor.stop_trace()
    assert len(trace.requests) == 15 and not trace.requests["has_failed"].any()
    assert len(trace.events) == 15 * len(executor.instructions)
    for queue in range(len(executor.queues)):
        own = np.sort(trace.events[trace.events["queue"] == queue], order=["start_ns", "finish_ns"])
        assert (own["start_ns"] <= own["finish_ns"]).all()
        # An event's time is that of a float: some ns may be lost.
        assert (own["finish_ns"][:-1] <= own["start_ns"][1:] + 1000).all()


def test_times_are_exact_long_after_the_clocks_were_tied(cuda_library: str, fake: FakeCuda) -> None:
    fake.set("delay_ns", 1_000_000)
    writer = MixedWriter(2, (0, 1))
    executor = make_executor_of(cuda_library, writer, 12)
    executor.start_trace()
    run_at_once(executor, writer, 1)
    # As if the stream had had work for a day: a float tells a day's milliseconds to 8 of them.
    fake.set("clock_ahead_ns", DAY_NS)
    for _ in range(3):
        run_at_once(executor, writer, 3)
    trace = executor.stop_trace()
    for queue in range(1, len(executor.queues)):  # the first is of a core
        own = trace.events[trace.events["queue"] == queue]
        assert (own["start_ns"] < own["finish_ns"]).all()
        # Where the clocks were tied again meanwhile, the day is gone.
        gaps = own["start_ns"][1:] - own["finish_ns"][:-1]
        assert ((gaps > -1000) | (gaps < -DAY_NS // 2)).all(), gaps
