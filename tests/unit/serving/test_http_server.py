"""The socket of a server, and the names of its models."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

pytest.importorskip("httptools")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from heteroplace.errors import HeteroPlaceError
from heteroplace.parts.serving.http_server import bound_socket
from heteroplace.parts.serving.serve_command import named_files
from heteroplace.parts.serving.serving_options import ServingOptions


def test_the_port_is_taken_before_anybody_can_connect() -> None:
    with bound_socket(ServingOptions(port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # else asyncio delays answers by 40 ms
        port = listener.getsockname()[1]
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) != 0
        listener.listen()
        with pytest.raises(HeteroPlaceError, match=rf"127.0.0.1:{port}: .*another --port"):
            bound_socket(ServingOptions(port=port))


def test_models_are_named_by_their_files_or_by_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert named_files(["a.so", "x/b.so", "c=x/a.so", "d.v2=x=y.so"]) == {
        "a": "a.so",
        "b": "x/b.so",
        "c": "x/a.so",
        "d.v2": "x=y.so",
    }
    Path("c=d.so").touch()  # a file whose name has the sign
    assert named_files(["c=d.so"]) == {"c=d": "c=d.so"}
    with pytest.raises(HeteroPlaceError, match=r"both called 'a'; name one: OTHER=y/a.so"):
        named_files(["a.so", "y/a.so"])
