"""Requests of one sequence share a session; how sequences begin, end and make room."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("httptools")
pytest.importorskip("prometheus_client")

from heteroplace.errors import ExecutionError
from heteroplace.parts.serving.http_messages import RefusedRequestError
from heteroplace.parts.serving.sequences import Sequences, SequenceStep
from tests.http_servers import (
    INFER,
    Answer,
    ModelExecutor,
    infer_once,
    json_request,
    open_executor,
    server,
    stateful_executor,
)


def step(sequence: int | str, value: int, **parameters: Any) -> dict[str, object]:
    """A request of a sequence, all of whose numbers are `value`."""
    return json_request([value] * 6) | {"parameters": {"sequence_id": sequence, **parameters}}


def sum_of(answer: Answer) -> float:
    assert answer.status == 200, answer.body
    (output,) = answer.json["outputs"]
    assert len(set(output["data"])) == 1
    return float(output["data"][0])


def test_requests_of_a_sequence_go_on_from_each_other() -> None:
    with server(stateful_executor()) as client:
        assert "sequence" in client.get("/v2").json["extensions"]
        assert sum_of(client.infer(step(1, 5, sequence_start=True))) == 5
        assert sum_of(client.infer(step("b", 7, sequence_start=True))) == 7
        assert sum_of(client.infer(step(1, 2))) == 7
        assert sum_of(client.infer(step("b", 1))) == 8
        assert sum_of(client.infer(step(1, 1, sequence_end=True))) == 8
        refused = client.infer(step(1, 1))
        assert refused.status == 400 and "sequence 1 is not known" in refused.error
        assert sum_of(client.infer(step("b", 1, sequence_start=True))) == 1


@pytest.mark.parametrize("sequence", [{}, {"sequence_id": 0}, {"sequence_id": ""}])
def test_a_model_with_state_needs_a_sequence(sequence: dict[str, object]) -> None:
    with server(stateful_executor()) as client:
        answer = client.infer(json_request() | {"parameters": sequence})
        assert answer.status == 400 and "give the parameters sequence_id" in answer.error


def test_a_model_without_state_has_no_sequences() -> None:
    with server(open_executor()) as client:
        answer = client.infer(step(1, 5, sequence_start=True))
        assert answer.status == 400 and "keeps no state" in answer.error


def test_a_run_that_fails_leaves_the_sequence() -> None:
    executor = stateful_executor()
    with server(executor) as client:
        client.infer(step(1, 5, sequence_start=True))
        executor.fault = ExecutionError("no")
        assert client.infer(step(1, 5, sequence_end=True)).status == 500
        executor.fault = None
        assert sum_of(client.infer(step(1, 2, sequence_end=True))) == 7


def test_requests_of_one_sequence_run_one_after_the_other() -> None:
    executor = ModelExecutor(session_state=(("s", "t"),), max_in_flight=2)
    with server(executor) as client:
        executor.gate.set()
        client.infer(step(1, 0, sequence_start=True))
        executor.gate.clear()
        answers: list[Answer] = []

        def send() -> None:
            answers.append(infer_once(client.port, step(1, 1)))

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        executor.wait_for_run()
        executor.gate.set()
        for thread in threads:
            thread.join()
    assert sorted(map(sum_of, answers)) == [1, 2, 3, 4]


def test_a_sequence_begins_anew_while_a_client_that_is_gone_is_still_served() -> None:
    executor = ModelExecutor(session_state=(("s", "t"),), max_in_flight=2)
    text = json.dumps(step(1, 7, sequence_start=True)).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(text)}\r\n\r\n".encode()
    pending = 'heteroplace_requests_pending{model="model"}'
    with server(executor) as client, ThreadPoolExecutor(1) as threads:
        with socket.create_connection(("127.0.0.1", client.port)) as killed:
            killed.sendall(head + text)
            executor.wait_for_run()
        while client.metric(pending) > 0:
            pass
        anew = threads.submit(infer_once, client.port, step(1, 2, sequence_start=True))
        executor.wait_for_run()
        executor.gate.set()
        assert sum_of(anew.result()) == 2
        assert sum_of(client.infer(step(1, 3))) == 5


def test_no_more_sequences_than_allowed() -> None:
    with server(stateful_executor(), max_sequences=1) as client:
        client.infer(step(1, 5, sequence_start=True))
        answer = client.infer(step(2, 5, sequence_start=True))
        assert answer.status == 429 and "1 sequences are open" in answer.error
        assert sum_of(client.infer(step(1, 2, sequence_end=True))) == 7
        assert sum_of(client.infer(step(2, 5, sequence_start=True))) == 5


class Clock:
    """Seconds that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def run_step(sequences: Sequences, id_: int, is_start: bool = False) -> Any:
    async with sequences.session_of(SequenceStep(id_, is_start, False), end_s=1e9) as session:
        return session


def test_an_idle_sequence_makes_room_for_a_new_one() -> None:
    async def scenario() -> None:
        clock = Clock()
        sequences = Sequences(open_executor().session, max_open=2, idle_s=10, clock=clock)
        first = await run_step(sequences, 1, is_start=True)
        clock.now_s = 6
        second = await run_step(sequences, 2, is_start=True)
        clock.now_s = 12  # the first one has waited too long, and nobody needs its room
        assert await run_step(sequences, 1) is first
        clock.now_s = 17
        await run_step(sequences, 3, is_start=True)
        with pytest.raises(RefusedRequestError, match="idle for more than 10 s"):
            await run_step(sequences, 2)
        assert await run_step(sequences, 1) is first is not second

    asyncio.run(scenario())


def test_a_request_that_waits_while_its_sequence_ends_is_refused() -> None:
    async def scenario() -> None:
        sequences = Sequences(open_executor().session, max_open=2, idle_s=10, clock=Clock())
        waiting: list[asyncio.Task[Any]] = []
        async with sequences.session_of(SequenceStep(1, True, True), end_s=1e9) as first:
            waiting += [asyncio.create_task(run_step(sequences, 1))]
            waiting += [asyncio.create_task(run_step(sequences, 1, is_start=True))]
            await asyncio.sleep(0)
        with pytest.raises(RefusedRequestError, match="sequence 1 is not known"):
            await waiting[0]
        assert await waiting[1] is not first

    asyncio.run(scenario())


def test_a_sequence_at_work_is_not_idle() -> None:
    async def scenario() -> None:
        clock = Clock()
        sequences = Sequences(open_executor().session, max_open=1, idle_s=10, clock=clock)
        async with sequences.session_of(SequenceStep(1, True, False), end_s=1e9):
            clock.now_s = 100
            with pytest.raises(RefusedRequestError, match="1 sequences are open"):
                await run_step(sequences, 2, is_start=True)

    asyncio.run(scenario())


def test_a_request_waits_no_longer_than_its_limit() -> None:
    async def scenario() -> None:
        clock = Clock()
        sequences = Sequences(open_executor().session, max_open=1, idle_s=10, clock=clock)
        async with sequences.session_of(SequenceStep(1, True, False), end_s=1e9):
            with pytest.raises((TimeoutError, asyncio.TimeoutError)):
                async with sequences.session_of(SequenceStep(1, False, False), end_s=0.01):
                    pass

    asyncio.run(scenario())


def test_a_client_that_starts_twice_begins_anew() -> None:
    with server(stateful_executor()) as client:
        for _ in range(2):
            assert sum_of(client.infer(step(1, 5, sequence_start=True))) == 5
