"""The paths of the Open Inference Protocol (version 2) over HTTP -> calls of served models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

import heteroplace
from heteroplace.errors import ExecutionError
from heteroplace.model.units import format_bytes
from heteroplace.parts.serving.inference_messages import MODEL_VERSION, InferenceRequest
from heteroplace.parts.serving.served_model import DisconnectedError, Outputs, ServedModel
from heteroplace.parts.serving.serving_metrics import CONTENT_TYPE, ServingMetrics
from heteroplace.parts.serving.serving_options import ServingOptions

JSON_LENGTH_HEADER = "Inference-Header-Content-Length"
_JSON = "application/json"
_BINARY = "application/octet-stream"
_MAX_MESSAGE = 1000
_INLINE_JSON_BYTES = 16 << 10
"""Longer JSON is read in a thread, so that the event loop goes on."""
_INLINE_ELEMENTS = 1000
"""Of a response in JSON: longer ones are written in a thread."""
_GONE = 499
"""The status that is counted where a client has gone; nobody sees it."""


class ServingRoutes:
    """Answers every request of a server.

    Parameters
    ----------
    is_ready
        Tells whether new requests are welcome; False while the server ends.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        options: ServingOptions,
        metrics: ServingMetrics,
        is_ready: Callable[[], bool],
    ) -> None:
        self._models = models
        self._options = options
        self._metrics = metrics
        self._is_ready = is_ready

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = []
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            # The most frequent first: paths are compared in order.
            routes.append(Route(f"{path}/infer", self._infer, methods=["POST"]))
            routes.append(Route(path, self._model_metadata))
            routes.append(Route(f"{path}/ready", self._model_ready))
        routes += [
            Route("/v2", self._server_metadata),
            Route("/v2/health/live", self._live),
            Route("/v2/health/ready", self._ready),
            Route("/metrics", self._metrics_page),
        ]
        return Starlette(
            routes=routes,
            exception_handlers={HTTPException: _error_response, Exception: _unexpected_error},
        )

    async def _live(self, _request: Request) -> Response:
        return _json_response({"live": True})

    async def _ready(self, _request: Request) -> Response:
        self._check_ready()
        return _json_response({"ready": True})

    def _check_ready(self) -> None:
        if not self._is_ready():
            raise HTTPException(503, "the server is ending")

    async def _server_metadata(self, _request: Request) -> Response:
        return _json_response(
            {
                "name": "heteroplace",
                "version": heteroplace.__version__,
                "extensions": ["binary_tensor_data"],
            }
        )

    async def _metrics_page(self, _request: Request) -> Response:
        return Response(self._metrics.page(), media_type=CONTENT_TYPE)

    async def _model_metadata(self, request: Request) -> Response:
        return _json_response(self._model_of(request).messages.metadata())

    async def _model_ready(self, request: Request) -> Response:
        name = self._model_of(request).name
        self._check_ready()
        return _json_response({"name": name, "ready": True})

    async def _infer(self, request: Request) -> Response:
        began_s = time.monotonic()
        try:
            model = self._model_of(request)
        except HTTPException as fault:
            self._metrics.count_unknown(fault.status_code)
            raise
        status = 500
        try:
            response = await self._answer(model, request, began_s + self._options.timeout_s)
            status = response.status_code
        except HTTPException as fault:
            status = fault.status_code
            raise
        finally:
            model.metrics.count(status, time.monotonic() - began_s)
        return response

    async def _answer(self, model: ServedModel, request: Request, end_s: float) -> Response:
        """Run one request; every fault becomes an HTTPException with its status."""
        try:
            with model.place():
                body = await self._read_body(request, end_s)
                inference = await _decoded(model, request, body)
                del body  # the arrays keep what they need of it
                outputs = await model.run(inference.arrays, end_s, lambda: _disconnected(request))
                return await _encoded(model, inference, outputs)
        except asyncio.QueueFull as err:
            raise HTTPException(
                429,
                f"the queue of model {model.name!r} is full ({self._options.max_waiting} requests "
                f"wait); try again",
                {"Retry-After": "1"},
            ) from err
        except (TimeoutError, asyncio.TimeoutError) as err:  # one type from Python 3.11 on
            raise HTTPException(
                504, f"the request took longer than {self._options.timeout_s:g} s"
            ) from err
        except (ClientDisconnect, DisconnectedError):
            return Response(status_code=_GONE)
        except ExecutionError as err:
            raise HTTPException(500, str(err)) from err

    async def _read_body(self, request: Request, end_s: float) -> bytes:
        """Return the body; the limits of its size and time are kept while it arrives."""
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise HTTPException(415, f"Content-Encoding {encoding!r} is not supported")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._options.max_body_bytes:
            raise self._too_large()
        return await asyncio.wait_for(self._collect(request), end_s - time.monotonic())

    async def _collect(self, request: Request) -> bytes:
        chunks: list[bytes] = []
        num_bytes = 0
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes > self._options.max_body_bytes:
                raise self._too_large()
            chunks.append(chunk)
        return b"".join(chunks)

    def _too_large(self) -> HTTPException:
        limit = format_bytes(self._options.max_body_bytes)
        return HTTPException(413, f"the body is larger than {limit}; see --max-body")

    def _model_of(self, request: Request) -> ServedModel:
        name = request.path_params["name"]
        model = self._models.get(name)
        if model is None:
            names = ", ".join(map(repr, self._models))
            raise HTTPException(404, f"there is no model {name!r}; there are {names}")
        version = request.path_params.get("version", MODEL_VERSION)
        if version != MODEL_VERSION:
            raise HTTPException(
                404, f"model {name!r} has no version {version!r}; its only version is 1"
            )
        return model


async def _decoded(model: ServedModel, request: Request, body: bytes) -> InferenceRequest:
    """Read the body of a request, or raise the HTTPException that says what is wrong with it."""
    text = request.headers.get(JSON_LENGTH_HEADER)
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise HTTPException(400, f"{JSON_LENGTH_HEADER} is {text!r}; expected a number of bytes")
    json_bytes = None if text is None else int(text)
    try:
        if (len(body) if json_bytes is None else json_bytes) <= _INLINE_JSON_BYTES:
            return model.messages.read(body, json_bytes)
        return await asyncio.to_thread(model.messages.read, body, json_bytes)
    except ExecutionError as err:
        raise HTTPException(400, str(err)) from err


async def _encoded(model: ServedModel, inference: InferenceRequest, outputs: Outputs) -> Response:
    """Write the body of a response."""
    try:
        if model.messages.num_output_elements(inference) <= _INLINE_ELEMENTS:
            body, json_bytes = model.messages.write(inference, outputs)
        else:
            body, json_bytes = await asyncio.to_thread(model.messages.write, inference, outputs)
    except ExecutionError as err:
        raise HTTPException(400, str(err)) from err
    if json_bytes is None:
        return Response(body, media_type=_JSON)
    return Response(body, media_type=_BINARY, headers={JSON_LENGTH_HEADER: str(json_bytes)})


async def _disconnected(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=_JSON)


async def _error_response(_request: Request, fault: Exception) -> Response:
    assert isinstance(fault, HTTPException)
    response = _json_response({"error": fault.detail[:_MAX_MESSAGE]}, fault.status_code)
    response.headers.update(fault.headers or {})
    return response


async def _unexpected_error(_request: Request, fault: Exception) -> Response:
    return _json_response({"error": f"unexpected {type(fault).__name__}; see the log"}, 500)
