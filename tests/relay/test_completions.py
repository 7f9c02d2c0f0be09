"""Text over HTTP in OpenAI's form, whole and as a stream, from a decoder that really runs."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
from relay_models import cpu_cluster, random_costs

pytest.importorskip("uvicorn")
pytest.importorskip("httptools")
pytest.importorskip("prometheus_client")
pytest.importorskip("tokenizers")

import heteroplace as hp
from heteroplace.files.manifest import TokenizerText
from heteroplace.parts.serving.completions import until_stop
from heteroplace.parts.text.decoder_session import SessionDecoder
from heteroplace.parts.text.text_tokenizer import TextTokenizer
from heteroplace.run.executor import Executor
from tests.http_servers import HttpClient, open_executor, server
from tests.tiny_decoders import byte_tokenizer, greedy_tokens, onnx_decoder

pytestmark = pytest.mark.relay

PROMPT, COUNT = "Grüße", 9


@pytest.fixture(scope="module")
def executor() -> Executor:
    options: Any = {"costs": random_costs, "solver": "heft", "state": "auto", "verify": "off"}
    executable = hp.compile(onnx_decoder(1), cpu_cluster(), **options)
    return Executor(executable.with_tokenizer(TokenizerText(byte_tokenizer())), max_in_flight=2)


@pytest.fixture(scope="module")
def expected(executor: Executor) -> str:
    tokenizer = TextTokenizer(executor.tokenizer, "")
    return "".join(tokenizer.texts(greedy_tokens(tokenizer.encode(PROMPT), COUNT)))


@pytest.fixture
def client(executor: Executor) -> Iterator[HttpClient]:
    executor.gate = type("Gate", (), {"set": lambda _: None})()  # type: ignore[attr-defined]
    with server(cast(Any, executor)) as connected:
        yield connected


def complete(client: HttpClient, **fields: Any) -> Any:
    request = {"model": "model", "prompt": PROMPT, "max_tokens": COUNT, "temperature": 0, **fields}
    return client.call("POST", "/v1/completions", json.dumps(request).encode())


@pytest.mark.costly
def test_a_whole_text(client: HttpClient, expected: str) -> None:
    answer = complete(client)
    assert answer.status == 200
    assert answer.json["object"] == "text_completion"
    (choice,) = answer.json["choices"]
    assert choice == {"index": 0, "text": expected, "logprobs": None, "finish_reason": "length"}
    numbers = {"prompt_tokens": 7, "completion_tokens": COUNT, "total_tokens": 7 + COUNT}
    assert answer.json["usage"] == numbers


def test_a_stream(client: HttpClient, expected: str) -> None:
    answer = complete(client, stream=True)
    assert answer.headers["content-type"] == "text/event-stream"
    *events, last, rest = answer.body.decode().split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert len(choices) > 3
    assert "".join(choice["text"] for choice in choices) == expected
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == [None] * (len(choices) - 1) + ["length"]


def test_a_stop_and_a_seed(client: HttpClient, expected: str) -> None:
    stop = expected[3:5]
    (choice,) = complete(client, stop=[stop, "never"]).json["choices"]
    assert choice["text"] == expected[: expected.index(stop)]
    assert choice["finish_reason"] == "stop"
    drawn = [complete(client, temperature=30, seed=seed).json["choices"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"prompt": 3}, 400, "no request for a completion"),
        ({"model": "other"}, 404, "there is no model 'other'"),
        ({"top_p": 2}, 400, "top_p=2.0; expected above 0"),
        ({"max_tokens": 0}, 400, "max_new_tokens=0"),
        ({"prompt": "a" * 30}, 400, "the cache holds 24 tokens, and there are 30"),
        ({"max_tokens": 30}, 500, "the cache holds 24 tokens, and there are 25"),
    ],
)
def test_wrong_requests(
    client: HttpClient, fields: dict[str, Any], status: int, message: str
) -> None:
    answer = complete(client, **fields)
    assert answer.status == status
    assert message in answer.error
    assert complete(client).status == 200


def test_an_error_in_a_stream_is_its_last_event(client: HttpClient) -> None:
    *_, error, last, _ = complete(client, max_tokens=30, stream=True).body.decode().split("\n\n")
    assert "the cache holds 24 tokens" in json.loads(error.removeprefix("data: "))["error"]
    assert last == "data: [DONE]"


def test_a_client_that_leaves_frees_its_place(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, lengths = SessionDecoder.run, []

    def run_slowly(self: SessionDecoder, length: int, inputs: Any) -> Any:
        lengths.append(length)
        time.sleep(0.1)
        return run(self, length, inputs)

    monkeypatch.setattr(SessionDecoder, "run", run_slowly)
    request = {"model": "model", "prompt": "a", "max_tokens": 23, "stream": True}
    leaving = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
    leaving.request("POST", "/v1/completions", json.dumps(request).encode())
    assert leaving.getresponse().read(5) == b"data:"
    leaving.close()
    while client.metric('heteroplace_requests_pending{model="model"}'):
        time.sleep(0.01)
    assert 1 <= len(lengths) < 20


@pytest.mark.costly
def test_a_text_that_takes_too_long(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionDecoder, "run", lambda *_: time.sleep(0.4))
    with server(cast(Any, executor), timeout_s=0.2) as client:
        assert complete(client).status == 504
        assert "took too long" in complete(client, stream=True).body.decode()


def test_other_models_write_no_text() -> None:
    executor: Any = open_executor()
    executor.tokenizer = None
    with server(executor) as client:
        answer = complete(client)
        assert answer.status == 400
        assert "model 'model': holds no tokenizer" in answer.error
        assert client.get("/v1/completions").status == 405


def test_a_stop_may_come_in_parts() -> None:
    assert list(until_stop(["a", "b", "c", "d"], ["bcx", "cd"])) == ["a", "", "", "b"]
    assert "".join(until_stop(["a", "b", "c"], ["bcx"])) == "abc"
    assert "".join(until_stop(["abc"], [])) == "abc"
