"""The paths of the Open Inference Protocol (version 2) over HTTP -> calls of served models.

There is one of OpenAI's interface, too. An ASGI application without a framework: there are nine
paths, and Starlette's layers took a fifth of the event loop's processor time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import heteroplace
from heteroplace.errors import ExecutionError
from heteroplace.model.units import format_bytes
from heteroplace.parts.serving.completions import CompletionRequest, send_completion
from heteroplace.parts.serving.http_messages import (
    JSON,
    DisconnectedError,
    HttpResponse,
    Receive,
    RefusedRequestError,
    Scope,
    Send,
    header,
    json_response,
    read_body,
    wait_for_disconnect,
)
from heteroplace.parts.serving.inference_messages import MODEL_VERSION, InferenceRequest
from heteroplace.parts.serving.served_model import Outputs, ServedModel
from heteroplace.parts.serving.serving_metrics import CONTENT_TYPE, ServingMetrics
from heteroplace.parts.serving.serving_options import ServingOptions

JSON_LENGTH_HEADER = "Inference-Header-Content-Length"
_BINARY = "application/octet-stream"
_INLINE_JSON_BYTES = 16 << 10
"""Longer JSON is read in a thread, so that the event loop goes on."""
_INLINE_ELEMENTS = 1000
"""Of a response in JSON: longer ones are written in a thread."""
_GONE = 499
"""The status that is counted where a client has gone; nobody sees it."""
_MODELS, _VERSIONS, _INFER, _READY = "models", "versions", "infer", "ready"
_COMPLETIONS = "/v1/completions"
_LOG = logging.getLogger("heteroplace")


class ServingRoutes:
    """The ASGI application of a server.

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
        self._pages: Mapping[tuple[str, ...], Callable[[], HttpResponse]] = {
            ("v2",): self._server_metadata,
            ("v2", "health", "live"): lambda: json_response({"live": True}),
            ("v2", "health", "ready"): self._server_ready,
            ("metrics",): lambda: HttpResponse(200, metrics.page(), CONTENT_TYPE, {}),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            if scope["path"] == _COMPLETIONS:
                await self._complete(scope, receive, send)
                return
            response = await self._respond(scope, receive)
        except RefusedRequestError as fault:
            response = fault.response()
        except Exception as fault:  # the client gets an answer, whatever it is
            _LOG.exception("%s %s", scope["method"], scope["path"])
            text = f"unexpected {type(fault).__name__}; see the log"
            response = json_response({"error": text}, 500)
        await response.send(send)

    async def _respond(self, scope: Scope, receive: Receive) -> HttpResponse:
        parts = scope["path"].strip("/").split("/")
        if parts[:2] != ["v2", _MODELS] or len(parts) < 3:
            page = self._pages.get(tuple(parts))
            if page is None:
                raise RefusedRequestError(404, f"there is no {scope['path']}")
            _check_method(scope, "GET")
            return page()
        name, action = parts[2], parts[3:]
        version = MODEL_VERSION
        if action[:1] == [_VERSIONS] and len(action) > 1:
            version, action = action[1], action[2:]
        if action == [_INFER]:
            _check_method(scope, "POST")
            return await self._infer(name, version, scope, receive)
        if action not in ([], [_READY]):
            raise RefusedRequestError(404, f"there is no {scope['path']}")
        _check_method(scope, "GET")
        model = self._model_of(name, version)
        if not action:
            return json_response(model.messages.metadata())
        self._check_ready()
        return json_response({"name": name, "ready": True})

    def _server_metadata(self) -> HttpResponse:
        return json_response(
            {
                "name": "heteroplace",
                "version": heteroplace.__version__,
                "extensions": ["binary_tensor_data", "sequence"],
            }
        )

    def _server_ready(self) -> HttpResponse:
        self._check_ready()
        return json_response({"ready": True})

    def _check_ready(self) -> None:
        if not self._is_ready():
            raise RefusedRequestError(503, "the server is ending")

    def _model_of(self, name: str, version: str) -> ServedModel:
        model = self._models.get(name)
        if model is None:
            names = ", ".join(map(repr, self._models))
            raise RefusedRequestError(404, f"there is no model {name!r}; there are {names}")
        if version != MODEL_VERSION:
            raise RefusedRequestError(
                404, f"model {name!r} has no version {version!r}; its only version is 1"
            )
        return model

    async def _infer(self, name: str, version: str, scope: Scope, receive: Receive) -> HttpResponse:
        began_s = time.monotonic()
        try:
            model = self._model_of(name, version)
        except RefusedRequestError as fault:
            self._metrics.count_unknown(fault.status)
            raise
        status = 500
        try:
            response = await self._answer(model, scope, receive, began_s + self._options.timeout_s)
            status = response.status
        except RefusedRequestError as fault:
            status = fault.status
            raise
        finally:
            model.metrics.count(status, time.monotonic() - began_s)
        return response

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the text of one request to the connection."""
        _check_method(scope, "POST")
        began_s = time.monotonic()
        end_s = began_s + self._options.timeout_s
        request = CompletionRequest.read(await self._body(scope, receive, end_s))
        model = self._model_of(request.model, MODEL_VERSION)
        status = 500
        try:
            with self._faults(model), model.place():
                completion = model.completion(request, end_s)
                status = await send_completion(
                    completion, model.submit, lambda: wait_for_disconnect(receive), send
                )
        except RefusedRequestError as fault:
            status = fault.status
            raise
        except DisconnectedError:
            status = _GONE
        finally:
            model.metrics.count(status, time.monotonic() - began_s)

    async def _answer(
        self, model: ServedModel, scope: Scope, receive: Receive, end_s: float
    ) -> HttpResponse:
        """Run one request; every fault that has a status of its own is raised with it."""
        try:
            with self._faults(model), model.place():
                inference = await _decoded(model, scope, await self._body(scope, receive, end_s))
                outputs = await model.run(inference, end_s, lambda: wait_for_disconnect(receive))
                return await _encoded(model, inference, outputs)
        except DisconnectedError:
            return HttpResponse(_GONE, b"", JSON, {})

    @contextmanager
    def _faults(self, model: ServedModel) -> Iterator[None]:
        """Give faults of a run the statuses that they have as answers."""
        try:
            yield
        except asyncio.QueueFull as err:
            raise RefusedRequestError(
                429,
                f"the queue of model {model.name!r} is full ({self._options.max_waiting} requests "
                f"wait); try again",
                {"Retry-After": "1"},
            ) from err
        except (TimeoutError, asyncio.TimeoutError) as err:  # one type from Python 3.11 on
            raise RefusedRequestError(
                504, f"the request took longer than {self._options.timeout_s:g} s"
            ) from err
        except ExecutionError as err:
            raise RefusedRequestError(500, str(err)) from err

    async def _body(self, scope: Scope, receive: Receive, end_s: float) -> bytes:
        """Return the body; the limits of its size and time are kept while it arrives."""
        encoding = header(scope, "content-encoding") or "identity"
        if encoding.lower() != "identity":
            raise RefusedRequestError(415, f"Content-Encoding {encoding!r} is not supported")
        limit = self._options.max_body_bytes
        length = header(scope, "content-length") or ""
        body = None
        if not (length.isdecimal() and int(length) > limit):
            body = await read_body(receive, limit, end_s - time.monotonic())
        if body is None:
            text = f"the body is larger than {format_bytes(limit)}; see --max-body"
            raise RefusedRequestError(413, text)
        return body


def _check_method(scope: Scope, method: str) -> None:
    allowed = ("GET", "HEAD") if method == "GET" else (method,)
    if scope["method"] not in allowed:
        raise RefusedRequestError(
            405, f"{scope['path']} takes {' and '.join(allowed)}", {"Allow": ", ".join(allowed)}
        )


async def _decoded(model: ServedModel, scope: Scope, body: bytes) -> InferenceRequest:
    """Read the body of a request, or refuse it."""
    text = header(scope, JSON_LENGTH_HEADER)
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise RefusedRequestError(
            400, f"{JSON_LENGTH_HEADER} is {text!r}; expected a number of bytes"
        )
    json_bytes = None if text is None else int(text)
    try:
        if (len(body) if json_bytes is None else json_bytes) <= _INLINE_JSON_BYTES:
            return model.messages.read(body, json_bytes)
        return await asyncio.to_thread(model.messages.read, body, json_bytes)
    except ExecutionError as err:
        raise RefusedRequestError(400, str(err)) from err


async def _encoded(
    model: ServedModel, inference: InferenceRequest, outputs: Outputs
) -> HttpResponse:
    """Write the body of a response."""
    try:
        if model.messages.num_output_elements(inference) <= _INLINE_ELEMENTS:
            body, json_bytes = model.messages.write(inference, outputs)
        else:
            body, json_bytes = await asyncio.to_thread(model.messages.write, inference, outputs)
    except ExecutionError as err:
        raise RefusedRequestError(400, str(err)) from err
    if json_bytes is None:
        return HttpResponse(200, body, JSON, {})
    return HttpResponse(200, body, _BINARY, {JSON_LENGTH_HEADER: str(json_bytes)})
