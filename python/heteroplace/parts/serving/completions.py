"""Requests for text in OpenAI's form (`/v1/completions`) -> text, at once or as it is written."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from heteroplace.errors import ExecutionError, HeteroPlaceError
from heteroplace.files.manifest import TokenizerText
from heteroplace.parts.serving.http_messages import (
    DisconnectedError,
    RefusedRequestError,
    Send,
    json_response,
)
from heteroplace.parts.text.decoder_session import SessionDecoder
from heteroplace.parts.text.generator import generate
from heteroplace.parts.text.sampling import TokenSampling
from heteroplace.parts.text.text_tokenizer import TextTokenizer

Submit = Callable[[Callable[[], Any]], "asyncio.Future[Any]"]
"""`RunThreads.submit`."""


class DecoderExecutor(Protocol):
    """What an executor is asked for."""

    @property
    def tokenizer(self) -> TokenizerText | None:
        """The tokenizer of the program."""

    def session(self) -> Any:
        """Return a new session."""


class CompletionRequest(msgspec.Struct, frozen=True):
    """The fields that change an answer; others are ignored."""

    model: str
    prompt: str
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False

    @classmethod
    def read(cls, body: bytes) -> CompletionRequest:
        """Read the body of a request, or refuse it."""
        try:
            return msgspec.json.decode(body, type=cls)
        except msgspec.DecodeError as err:
            raise RefusedRequestError(400, f"no request for a completion: {err}") from err

    @property
    def stops(self) -> list[str]:
        """Texts that end the answer."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in stops if stop]


@dataclass
class Completion:
    """The answer to one request, while it is written by a thread."""

    executor: DecoderExecutor
    request: CompletionRequest
    end_s: float
    """When the time is up, by `time.monotonic`."""
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    _is_given_up: threading.Event = field(default_factory=threading.Event)
    _id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    _began: int = field(default_factory=lambda: int(time.time()))

    async def texts(
        self, submit: Submit, disconnected: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[str]:
        """Yield the text as a thread writes it; first "", when nothing is wrong with the request.

        Raises
        ------
        RefusedRequestError
            The model writes no text, or the request is wrong.
        DisconnectedError
            The client is gone.
        TimeoutError
            The time is up.
        ExecutionError
            A call fails, or the cache is full.
        """
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[str | None] = asyncio.Queue()

        def write() -> None:
            self._check_time()
            texts = self._written()  # in its turn: a session has memory of its own
            loop.call_soon_threadsafe(queue.put_nowait, "")
            for text in filter(None, texts):
                loop.call_soon_threadsafe(queue.put_nowait, text)

        future = submit(write)
        future.add_done_callback(lambda _: queue.put_nowait(None))
        watcher = loop.create_task(self._watch(disconnected))
        try:
            while True:
                left_s = self.end_s - time.monotonic()
                text = await asyncio.wait_for(queue.get(), max(left_s, 0))
                if text is None:
                    break
                yield text
            await future
        finally:
            self._is_given_up.set()
            future.cancel()
            watcher.cancel()

    def _written(self) -> Iterator[str]:
        request = self.request
        try:
            tokenizer = TextTokenizer(self.executor.tokenizer, f"model {request.model!r}")
            sampling = TokenSampling(
                temperature=request.temperature, top_p=request.top_p, seed=request.seed
            )
            prompt = tokenizer.encode(request.prompt)
            self.num_prompt_tokens = len(prompt)
            ids = generate(
                SessionDecoder(self.executor.session()),
                prompt,
                max_new_tokens=request.max_tokens,
                sampling=sampling,
                stop_ids=tokenizer.stop_ids,
            )
        except HeteroPlaceError as err:
            raise RefusedRequestError(400, str(err)) from err
        return until_stop(tokenizer.texts(self._counted(ids)), request.stops)

    def _counted(self, ids: Iterator[int]) -> Iterator[int]:
        for token in ids:
            self._check_time()
            self.num_tokens += 1
            yield token

    def _check_time(self) -> None:
        if self._is_given_up.is_set():
            raise DisconnectedError
        if time.monotonic() >= self.end_s:
            raise TimeoutError

    async def _watch(self, disconnected: Callable[[], Awaitable[None]]) -> None:
        await disconnected()
        self._is_given_up.set()

    def message(self, text: str, *, is_end: bool) -> dict[str, object]:
        """Return a text as the protocol has it."""
        is_cut = self.num_tokens >= self.request.max_tokens
        reason = ("length" if is_cut else "stop") if is_end else None
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._began,
            "model": self.request.model,
            "choices": [choice],
        }

    @property
    def usage(self) -> dict[str, int]:
        """How many tokens were read and written."""
        numbers = self.num_prompt_tokens, self.num_tokens
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        return dict(zip(names, (*numbers, sum(numbers)), strict=True))


def until_stop(texts: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """Yield texts up to the first stop; an end that may begin one waits for the next text.

    >>> "".join(until_stop(["ab", "c\\n", "\\nd"], ["\\n\\n"]))
    'abc'
    """
    held = ""
    for text in texts:
        held += text
        ends = [held.index(stop) for stop in stops if stop in held]
        if ends:
            yield held[: min(ends)]
            return
        begun = [n for stop in stops for n in range(1, len(stop)) if held.endswith(stop[:n])]
        end = len(held) - max(begun, default=0)
        yield held[:end]
        held = held[end:]
    yield held


async def send_completion(
    completion: Completion, submit: Submit, disconnected: Callable[[], Awaitable[None]], send: Send
) -> int:
    """Write the answer to the connection; return its status. Errors: see `Completion.texts`.

    Once a stream has begun, an error is its last event.
    """
    texts = completion.texts(submit, disconnected)
    if not completion.request.stream:
        text = "".join([text async for text in texts])
        answer = {**completion.message(text, is_end=True), "usage": completion.usage}
        await json_response(answer).send(send)
        return 200
    await anext(texts)
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def send_event(value: object, *, is_last: bool = False) -> None:
        data = value if isinstance(value, bytes) else msgspec.json.encode(value)
        body = b"data: " + data + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": not is_last})

    status = 200
    try:
        async for text in texts:
            await send_event(completion.message(text, is_end=False))
        await send_event(completion.message("", is_end=True))
    except (TimeoutError, asyncio.TimeoutError, ExecutionError) as err:
        status = 500 if isinstance(err, ExecutionError) else 504
        await send_event({"error": str(err) or "the request took too long; see --timeout"})
    await send_event(b"[DONE]", is_last=True)
    return status
