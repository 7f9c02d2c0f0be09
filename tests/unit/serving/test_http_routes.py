"""Paths, statuses and limits of the server, on models that do what a test says."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("httptools")
pytest.importorskip("prometheus_client")

from heteroplace.errors import ExecutionError
from tests.http_servers import (
    INFER,
    HttpClient,
    ModelExecutor,
    binary_request,
    infer_once,
    json_request,
    open_executor,
    server,
)

NUM_MUTATIONS = 1000
NUM_CLIENTS = 100


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    with server(open_executor()) as connected:
        yield connected


def test_health_and_metadata(client: HttpClient) -> None:
    for path, expected in (
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/model/ready", {"name": "model", "ready": True}),
    ):
        assert client.get(path).json == expected
    assert client.get("/v2").json["extensions"] == ["binary_tensor_data", "sequence"]
    described = {
        "name": "model",
        "versions": ["1"],
        "platform": "heteroplace",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 3]}],
    }
    assert client.get("/v2/models/model").json == described
    assert client.get("/v2/models/model/versions/1").json == described


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/other", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("GET", "/v2/models/model/versions/2", 404),
        ("POST", "/v2/models/model/versions/2/infer", 404),
        ("GET", "/nothing", 404),
        ("GET", INFER, 405),
        ("DELETE", "/v2", 405),
    ],
)
def test_other_paths_are_errors_in_json(
    client: HttpClient, method: str, path: str, status: int
) -> None:
    answer = client.call(method, path)
    assert answer.status == status
    assert answer.error


def test_json_in_and_out(client: HttpClient) -> None:
    answer = client.infer({**json_request(), "id": "seven"})
    assert answer.status == 200
    output = {"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [2, 4, 6, 8, 10, 12]}
    expected = {"model_name": "model", "model_version": "1", "outputs": [output], "id": "seven"}
    assert answer.json == expected
    nested = client.infer(json_request([[1, 2, 3], [4, 5, 6]]))
    assert nested.json["outputs"] == [output]


def test_raw_bytes_in_and_out(client: HttpClient) -> None:
    answer = client.infer(*binary_request())
    assert answer.status == 200
    (output,) = answer.json["outputs"]
    assert output["parameters"] == {"binary_data_size": 24}
    assert "data" not in output
    assert np.frombuffer(answer.body[-24:], "float32").tolist() == [0, 2, 4, 6, 8, 10]


def test_outputs_are_those_that_were_requested() -> None:
    executor = open_executor(
        inputs=(("x", (2, 3), "float32"), ("z", (), "int64")),
        outputs=(("y", (2, 3), "float32"), ("w", (), "int64")),
    )
    scalar = {"name": "z", "shape": [], "datatype": "INT64", "data": [4]}
    request = {"inputs": [*json_request()["inputs"], scalar]}  # type: ignore[misc]
    with server(executor) as client:
        both = client.infer(request).json["outputs"]
        assert [output["name"] for output in both] == ["y", "w"]
        (one,) = client.infer({**request, "outputs": [{"name": "w"}]}).json["outputs"]
        assert one == {"name": "w", "datatype": "INT64", "shape": [], "data": [8]}
        names = [{"name": "w"}, {"name": "y", "parameters": {"binary_data": True}}]
        mixed = client.infer({**request, "outputs": names})
        assert mixed.body[-24:] == np.array([2, 4, 6, 8, 10, 12], "float32").tobytes()
        assert "data" in mixed.json["outputs"][0]
        for outputs, words in (
            ([{"name": "v"}], "has no output 'v'"),
            ([{"name": "w"}, {"name": "w"}], "twice"),
            ([{"name": "w", "parameters": {"classification": 3}}], "not supported"),
        ):
            answer = client.infer({**request, "outputs": outputs})
            assert answer.status == 400
            assert words in answer.error
        missing = client.infer(json_request())
        assert (missing.status, missing.error) == (400, "inputs that the request lacks: z")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "Expected `object`"),
        ({}, "missing required field `inputs`"),
        ({"inputs": []}, "lacks: x"),
        (b'{"inputs": [{"data": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"other": ' + b"[" * 100_000, "nested too deeply"),
        (json_request(name="q"), "has no input 'q'; it has 'x'"),
        (json_request(shape=[-2, 3]), "got FP32 of shape"),
        (json_request(shape=[3, 2]), "expected FP32 of shape [2, 3], got FP32 of shape [3, 2]"),
        (json_request(shape=[2, 3.5]), "$.inputs[0].shape[1]"),
        (json_request(shape=[10**30, 3]), "got FP32 of shape"),
        (json_request(shape="2,3"), "Expected `array`"),
        (json_request(datatype="FP64"), "expected FP32"),
        (json_request(datatype="BYTES"), "BYTES is not supported"),
        (json_request(5), "Expected `array`"),
        (json_request([1, 2]), "expected 6 numbers"),
        (json_request(parameters={"binary_data_size": 24}), "0 bytes are left"),
        (json_request(parameters={"binary_data_size": -1}), "binary_data_size is -1"),
        (json_request(parameters={"shared_memory_region": "r"}), "not supported"),
        ({"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32"}]}, "neither data nor"),
        ({"inputs": json_request()["inputs"] * 2}, "twice"),  # type: ignore[operator]
        (b'{"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [NaN]}]}', ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_bodies_are_told(client: HttpClient, body: Any, words: str) -> None:
    answer = client.infer(body)
    assert answer.status == 400
    assert words in answer.error


@pytest.mark.parametrize("length", [-1, 10**6, "x", "", "1e3", "９"])
def test_wrong_lengths_of_the_json_are_told(client: HttpClient, length: object) -> None:
    body, _ = binary_request()
    header = str(length).encode().decode("latin-1")
    answer = client.call("POST", INFER, body, {"Inference-Header-Content-Length": header})
    assert answer.status == 400
    assert "Inference-Header-Content-Length" in answer.error


@pytest.mark.parametrize("change", [-24, -1, 1, 1000])
def test_raw_bytes_that_are_cut_or_too_long_are_told(client: HttpClient, change: int) -> None:
    body, json_bytes = binary_request()
    wrong = body[:change] if change < 0 else body + bytes(change)
    answer = client.infer(wrong, json_bytes)
    assert answer.status == 400
    assert "bytes" in answer.error


def test_mutated_bodies_never_harm_the_server(client: HttpClient) -> None:
    generator = random.Random(7)
    whole = (json.dumps(json_request()).encode(), None), binary_request()
    statuses = set()
    for _ in range(NUM_MUTATIONS):
        body, json_bytes = generator.choice(whole)
        mutated = bytearray(body)
        for _ in range(generator.randint(1, 4)):
            start = generator.randrange(len(mutated) + 1)
            part = generator.choice(
                (b"", b"[", b'"', b"-", b"9" * 30, b"\x00", generator.randbytes(3), body[:40])
            )
            mutated[start : start + generator.randint(0, 8)] = part
        if json_bytes is not None:
            json_bytes = max(0, json_bytes + generator.choice((0, 0, -1, 3, -50)))
        answer = client.infer(bytes(mutated), json_bytes)
        statuses.add(answer.status)
        assert answer.status == 200 or answer.error
    assert statuses == {200, 400}
    assert client.infer(json_request()).status == 200


def test_bodies_over_the_limit_are_refused() -> None:
    with server(open_executor(), max_body_bytes=500) as client:
        assert client.infer(json_request()).status == 200
        for headers in ({}, {"Transfer-Encoding": "chunked"}):
            body = b"1f5\r\n" + b"x" * 501 + b"\r\n0\r\n\r\n" if headers else b"x" * 501
            answer = client.call("POST", INFER, body, headers)
            assert answer.status == 413
            assert "larger than 500 B;" in answer.error
        assert client.infer(json_request()).status == 200


def test_encoded_bodies_are_refused(client: HttpClient) -> None:
    answer = client.call("POST", INFER, b"{}", {"Content-Encoding": "gzip"})
    assert answer.status == 415
    assert "gzip" in answer.error


def test_a_full_queue_answers_429() -> None:
    executor = ModelExecutor()
    with server(executor, max_waiting=1) as client, ThreadPoolExecutor(2) as threads:
        running = threads.submit(infer_once, client.port, json_request())
        executor.wait_for_run()
        waiting = threads.submit(infer_once, client.port, json_request())
        while client.metric('heteroplace_requests_pending{model="model"}') < 2:
            pass
        refused = client.infer(json_request())
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert "queue of model 'model' is full (1 requests wait)" in refused.error
        executor.gate.set()
        assert (running.result().status, waiting.result().status) == (200, 200)
        assert client.infer(json_request()).status == 200


def test_requests_over_their_time_answer_504_and_never_run() -> None:
    executor = ModelExecutor()
    with server(executor, timeout_s=0.3) as client, ThreadPoolExecutor(1) as threads:
        running = threads.submit(infer_once, client.port, json_request())
        executor.wait_for_run()
        waiting = client.infer(json_request())
        assert (waiting.status, waiting.error) == (504, "the request took longer than 0.3 s")
        assert running.result().status == 504
        executor.gate.set()
        assert executor.num_runs == 1


def test_a_body_that_does_not_end_answers_504() -> None:
    with server(open_executor(), timeout_s=0.2) as client:
        with socket.create_connection(("127.0.0.1", client.port)) as slow:
            slow.sendall(
                f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{{".encode()
            )
            assert slow.recv(100).startswith(b"HTTP/1.1 504")
        assert client.infer(json_request()).status == 200


def test_a_run_that_fails_answers_500_and_the_next_one_is_right() -> None:
    executor = open_executor(fault=ExecutionError("step 3 failed on cpu.0"))
    with server(executor) as client:
        answer = client.infer(json_request())
        assert (answer.status, answer.error) == (500, "step 3 failed on cpu.0")
        executor.fault = ZeroDivisionError()
        answer = infer_once(client.port, json_request())
        assert (answer.status, answer.error) == (500, "unexpected ZeroDivisionError; see the log")
        executor.fault = None
        assert client.infer(json_request()).status == 200


def test_a_client_that_is_gone_frees_its_place_and_never_runs() -> None:
    executor = ModelExecutor()
    pending = 'heteroplace_requests_pending{model="model"}'
    with server(executor) as client, ThreadPoolExecutor(1) as threads:
        running = threads.submit(infer_once, client.port, json_request())
        executor.wait_for_run()
        text = json.dumps(json_request()).encode()
        head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(text)}\r\n\r\n".encode()
        for body in (text, text[:10]):
            with socket.create_connection(("127.0.0.1", client.port)) as killed:
                killed.sendall(head + body)
                while client.metric(pending) < 2:
                    pass
            while client.metric(pending) > 1:
                pass
        executor.gate.set()
        assert running.result().status == 200
        assert executor.num_runs == 1


def test_many_clients_get_their_own_answers() -> None:
    executor = open_executor(max_in_flight=2)
    start = threading.Barrier(NUM_CLIENTS)

    def call(number: int) -> list[Any]:
        own = HttpClient(client.port)
        start.wait()
        bodies = (json_request([number * 10 + k] * 6) for k in range(3))
        values = [own.infer(body).json["outputs"][0]["data"][0] for body in bodies]
        own.close()
        return values

    with server(executor, max_waiting=NUM_CLIENTS) as client:
        with ThreadPoolExecutor(NUM_CLIENTS) as threads:
            answers = list(threads.map(call, range(NUM_CLIENTS)))
        served = client.metric('heteroplace_requests_total{model="model",status="200"}')
    assert answers == [[2 * (number * 10 + k) for k in range(3)] for number in range(NUM_CLIENTS)]
    assert served == executor.num_runs == 3 * NUM_CLIENTS


def test_metrics_name_only_models_that_exist(client: HttpClient) -> None:
    client.call("POST", "/v2/models/invented/infer", b"")
    assert client.infer(*binary_request(np.zeros(6, "float32"))).status == 200
    page = client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"invented" not in page.body
    assert client.metric('heteroplace_requests_total{model="",status="404"}') >= 1
    assert client.metric('heteroplace_run_seconds_count{model="model"}') >= 1


def test_outputs_that_json_lacks_are_told_and_come_as_bytes(client: HttpClient) -> None:
    body, json_bytes = binary_request(np.full(6, np.inf, "float32"))
    as_json = client.infer(body.replace(b"true", b"null"), json_bytes)
    assert as_json.status == 400
    as_json = client.infer(body.replace(b": true", b":false"), json_bytes)
    assert "NaN or infinite" in as_json.error
    assert client.infer(body, json_bytes).body[-24:] == np.full(6, np.inf, "float32").tobytes()
