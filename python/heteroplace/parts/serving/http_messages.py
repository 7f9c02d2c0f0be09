"""HTTP requests and responses as an ASGI server hands them over and takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import msgspec

Message = MutableMapping[str, Any]
Scope = Message
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = "application/json"
_DISCONNECT = "http.disconnect"
_MAX_ERROR = 1000
"""Characters of an error: names in it are those of the client."""


class DisconnectedError(Exception):
    """The client has closed its connection, and nobody waits for the answer."""


class RefusedRequestError(Exception):
    """A request that gets an error as its answer.

    Parameters
    ----------
    status
        The HTTP status.
    text
        What is wrong, for the client.
    headers
        Further headers of the response.
    """

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers or {}

    def response(self) -> HttpResponse:
        """Return the error as a response: `{"error": "..."}`."""
        text = str(self)[:_MAX_ERROR]
        return json_response({"error": text}, self.status, self.headers)


@dataclass(frozen=True)
class HttpResponse:
    """A whole response."""

    status: int
    body: bytes
    media_type: str
    headers: Mapping[str, str]

    async def send(self, send: Send) -> None:
        """Write it to the connection."""
        headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", self.media_type.encode("latin-1")),
        ]
        for name, value in self.headers.items():
            headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    """Return a response with a value in JSON."""
    return HttpResponse(status, msgspec.json.encode(value), JSON, headers or {})


def header(scope: Scope, name: str) -> str | None:
    """Return the value of a request's header; None: the request does not have it."""
    key = name.lower().encode("latin-1")
    for each, value in scope["headers"]:
        if each == key:
            text: str = value.decode("latin-1")
            return text
    return None


async def read_body(receive: Receive, max_bytes: int, left_s: float) -> bytes | None:
    """Return the body of a request; None: it is larger than `max_bytes`.

    Raises
    ------
    TimeoutError, asyncio.TimeoutError
        It has not ended within `left_s` seconds.
    DisconnectedError
        The client is gone.
    """
    first = await receive()
    if first["type"] == _DISCONNECT:
        raise DisconnectedError
    chunks: list[bytes] = [first.get("body", b"")]
    if first.get("more_body", False):
        is_whole = await asyncio.wait_for(_read_rest(receive, chunks, max_bytes), left_s)
        if not is_whole:
            return None
    body = b"".join(chunks)
    return body if len(body) <= max_bytes else None


async def _read_rest(receive: Receive, chunks: list[bytes], max_bytes: int) -> bool:
    """Read chunks to the end of a body; False: it is too large."""
    num_bytes = len(chunks[0])
    has_more = True
    while has_more and num_bytes <= max_bytes:
        message = await receive()
        if message["type"] == _DISCONNECT:
            raise DisconnectedError
        chunk: bytes = message.get("body", b"")
        num_bytes += len(chunk)
        chunks.append(chunk)
        has_more = message.get("more_body", False)
    return num_bytes <= max_bytes


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed its connection, or has its response."""
    while (await receive())["type"] != _DISCONNECT:
        pass
