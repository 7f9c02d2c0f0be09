"""Servers in a thread whose models do what a test says, and requests to them. Needs no TVM."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from heteroplace.files.call_lengths import CallLengths
from heteroplace.parts.serving.http_routes import JSON_LENGTH_HEADER, ServingRoutes
from heteroplace.parts.serving.http_server import bound_socket
from heteroplace.parts.serving.served_model import ServedModel
from heteroplace.parts.serving.serving_metrics import ServingMetrics
from heteroplace.parts.serving.serving_options import ServingOptions
from heteroplace.run.executor import CallModes

Ports = tuple[tuple[str, tuple[int, ...], str], ...]
INFER = "/v2/models/model/infer"
_WAIT_S = 30
_AS_PLANNED = CallModes(is_serial=False, num_serial=0, num_changes=0)


@dataclass
class ModelExecutor:
    """Stands for an executor: its outputs are its inputs, doubled. Any thread may call it."""

    inputs: Ports = (("x", (2, 3), "float32"),)
    outputs: Ports = (("y", (2, 3), "float32"),)
    max_in_flight: int = 1
    session_state: tuple[tuple[str, str], ...] = ()
    lengths: CallLengths | None = None
    fault: Exception | None = None
    """What a run raises."""
    gate: threading.Event = field(default_factory=threading.Event)
    """A run waits until it is set."""
    began: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released by each run that begins."""
    num_runs: int = 0
    call_modes: CallModes = _AS_PLANNED

    def run(
        self, arrays: Mapping[str, npt.NDArray[Any]], *, timeout_s: float
    ) -> list[npt.NDArray[Any]]:
        """Return the outputs once the gate is open."""
        copies = {name: array.copy() for name, array in arrays.items()}
        self.num_runs += 1
        self.began.release()
        assert self.gate.wait(_WAIT_S)
        if self.fault is not None:
            raise self.fault
        return [copies[name] * 2 for name, _, _ in self.inputs]

    def session(self) -> SummingSession:
        """Return one that runs as this executor."""
        return SummingSession(self)

    def wait_for_run(self) -> None:
        """Wait until one more run has begun."""
        assert self.began.acquire(timeout=_WAIT_S)


class SummingSession:
    """Stands for a session: its output is the sum of all inputs since it began."""

    def __init__(self, executor: ModelExecutor) -> None:
        self.inputs, self.outputs = executor.inputs, executor.outputs
        self._executor = executor
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self._sum = np.zeros((2, 3), "float32")

    def run(
        self, arrays: Mapping[str, npt.NDArray[Any]], *, timeout_s: float
    ) -> list[npt.NDArray[Any]]:
        """Add the input, unless the executor fails."""
        (doubled,) = self._executor.run(arrays, timeout_s=timeout_s)
        self._sum = self._sum + doubled / 2
        return [self._sum]


def stateful_executor(**fields: Any) -> ModelExecutor:
    """Return one with state that never waits."""
    return open_executor(session_state=(("s", "t"),), **fields)


def open_executor(**fields: Any) -> ModelExecutor:
    """Return one that never waits."""
    executor = ModelExecutor(**fields)
    executor.gate.set()
    return executor


@dataclass(frozen=True)
class Answer:
    """A response over HTTP."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        """The JSON of the body, which raw bytes may follow."""
        length = self.headers.get(JSON_LENGTH_HEADER.lower())
        return json.loads(self.body[: int(length)] if length else self.body)

    @property
    def error(self) -> str:
        """What the server says is wrong."""
        assert list(self.json) == ["error"]
        return cast(str, self.json["error"])


class HttpClient:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_WAIT_S)

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and return the response."""
        self._connection.request(method, path, body, dict(headers or {}))
        response = self._connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, response.read(), names)

    def get(self, path: str) -> Answer:
        """Send a GET."""
        return self.call("GET", path)

    def infer(self, body: bytes | object, json_bytes: int | None = None) -> Answer:
        """Send an inference request: bytes, or a value that becomes JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {} if json_bytes is None else {JSON_LENGTH_HEADER: str(json_bytes)}
        return self.call("POST", INFER, data, headers)

    def metric(self, name: str) -> float:
        """Return the value of one metric, with its labels as the page has them."""
        lines = self.get("/metrics").body.decode().splitlines()
        (line,) = (line for line in lines if line.startswith(f"{name} "))
        return float(line.split()[-1])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def infer_once(port: int, body: object) -> Answer:
    """Send one inference request over a connection of its own."""
    client = HttpClient(port)
    try:
        return client.infer(body)
    finally:
        client.close()


@contextmanager
def server(
    *executors: ModelExecutor, names: Sequence[str] = ("model",), **options: Any
) -> Iterator[HttpClient]:
    """Serve executors by names on a free port; yield a client."""
    settings = ServingOptions(port=0, **options)
    metrics = ServingMetrics()
    models = {
        name: ServedModel(name, cast(Any, executor), settings, metrics.of_model(name))
        for name, executor in zip(names, executors, strict=True)
    }
    running: list[uvicorn.Server] = []
    app = ServingRoutes(models, settings, metrics, lambda: not running[0].should_exit)
    config = uvicorn.Config(
        app, http=HttpToolsProtocol, ws="none", lifespan="off", log_config=None, access_log=False
    )
    running.append(uvicorn.Server(config))
    with bound_socket(settings) as listener:
        listener.listen()  # a client may connect before the thread has begun
        thread = threading.Thread(target=running[0].run, args=([listener],))
        thread.start()
        client = HttpClient(listener.getsockname()[1])
        try:
            yield client
        finally:
            client.close()
            for executor in executors:
                executor.gate.set()
            running[0].should_exit = True
            thread.join(_WAIT_S)
            for model in models.values():
                model.close()
    assert not thread.is_alive()


def json_request(values: object = None, **fields: object) -> dict[str, object]:
    """Return a right request for the input of a `ModelExecutor`, with some fields changed."""
    data = [1, 2, 3, 4, 5, 6] if values is None else values
    tensor = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": data}
    return {"inputs": [{**tensor, **fields}]}


def binary_request(array: npt.NDArray[Any] | None = None) -> tuple[bytes, int]:
    """Return a right request with raw bytes, and the length of its JSON."""
    values = np.arange(6, dtype="float32") if array is None else array
    tensor = {
        "name": "x",
        "shape": [2, 3],
        "datatype": "FP32",
        "parameters": {"binary_data_size": values.nbytes},
    }
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return text + values.tobytes(), len(text)
