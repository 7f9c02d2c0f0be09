"""`heteroplace serve` as a process, with compiled networks and clients of other makers."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("httptools")
pytest.importorskip("prometheus_client")

import tvm
from tvm import relay

import heteroplace
from heteroplace.cli.main import MISSING_PACKAGE, WRONG_INPUT, main
from heteroplace.relay.output_names import with_output_names
from tests.http_servers import HttpClient
from tests.programs import environment

ROOT = Path(__file__).resolve().parents[2]
TYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
SIZE = 512
NUM_REQUESTS = 300
MAX_GROWTH_BYTES = 48 << 20
"""Of a server: less than a sixth of the bodies of `NUM_REQUESTS` requests."""
_LIMIT_S = 60

Served = tuple[subprocess.Popen[str], int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two compiled networks: many types, and an image with a scalar."""
    where = tmp_path_factory.mktemp("served")
    inputs = [relay.var(dtype, shape=(2, 3), dtype=dtype) for dtype in (*TYPES, *FLOATS)]
    outputs = [relay.logical_not(inputs[0]), *(each + each for each in inputs[1:])]
    image = relay.var("image", shape=(1, 1, SIZE, SIZE))
    scale = relay.var("scale", shape=())
    scaled = relay.sum(image, axis=[2, 3]) * scale
    row, before = relay.var("x", shape=(1, 4)), relay.var("h", shape=(1, 4))
    after, two = before + row, relay.const(2.0)
    for name, function in (
        ("many", relay.Function(inputs, relay.Tuple(outputs))),
        ("image", relay.Function([image, scale], scaled)),
        ("model", relay.Function([row], row + row)),  # what the guide presumes
        ("sum", relay.Function([row, before], relay.Tuple([after * two, after]))),
    ):
        mod = tvm.IRModule.from_expr(function)
        names = {"model": ["y"], "sum": ["y", "hn"]}
        mod = with_output_names(mod, names.get(name, []))
        with tvm.transform.PassContext(opt_level=3):
            state = {"h": "hn"} if name == "sum" else {}
            executable = heteroplace.build(mod, "local", costs="estimate", state=state)
        executable.export_library(where / f"{name}.so")
    return where


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Served]:
    """Run `heteroplace serve` on a free port; give the process and the port."""
    command = [sys.executable, "-m", "heteroplace.cli.main", "serve", *arguments]
    with subprocess.Popen(
        [*command, "--port", "0", "--json"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            yield process, urlsplit(started["url"]).port or 0
        finally:
            process.kill()


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving(folder, "many.so", "picture=image.so", "model.so", "sum.so") as process:
        yield process


@pytest.fixture(scope="module")
def triton() -> ModuleType:
    """NVIDIA's client of the protocol."""
    return pytest.importorskip("tritonclient.http")


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """Inputs of the network of many types."""
    generator = np.random.default_rng(0)
    integers = {name: generator.integers(0, 60, (2, 3)).astype(name) for name in TYPES[1:]}
    floats = {name: generator.standard_normal((2, 3)).astype(name) for name in FLOATS}
    return {"bool": generator.integers(0, 2, (2, 3)).astype(bool), **integers, **floats}


@pytest.mark.costly(4)
def test_metadata_names_both_models(served: Served, triton: ModuleType) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{served[1]}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata()["version"] == heteroplace.__version__
    assert all(client.is_model_ready(name) for name in ("many", "picture"))
    assert not client.is_model_ready("image")
    names = [port["datatype"] for port in client.get_model_metadata("many")["inputs"]]
    assert names[:2] == ["BOOL", "INT8"]
    assert client.get_model_metadata("picture", "1")["inputs"] == [
        {"name": "image", "datatype": "FP32", "shape": [1, 1, SIZE, SIZE]},
        {"name": "scale", "datatype": "FP32", "shape": []},
    ]
    client.close()


def test_sequences_of_the_client_of_triton(served: Served, triton: ModuleType) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{served[1]}")
    assert [port["name"] for port in client.get_model_metadata("sum")["inputs"]] == ["x"]
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), "float32"))
    for sequence in (7, "named"):
        for number in range(3):
            places = {"sequence_start": number == 0, "sequence_end": number == 2}
            answer = client.infer("sum", [tensor], sequence_id=sequence, **places)
            expected = np.full((1, 4), 2.0 * (number + 1), "float32")
            np.testing.assert_array_equal(answer.as_numpy("y"), expected)
    with pytest.raises(triton.InferenceServerException, match="sequence 7 is not known"):
        client.infer("sum", [tensor], sequence_id=7)
    client.close()


@pytest.mark.parametrize("is_binary", [False, True], ids=["json", "binary"])
def test_the_client_of_triton_gets_the_outputs_of_an_executor(
    folder: Path,
    served: Served,
    triton: ModuleType,
    arrays: dict[str, np.ndarray],
    is_binary: bool,
) -> None:
    executor = heteroplace.load(folder / "many.so")
    expected = executor.run(arrays)
    inputs = []
    for name, shape, dtype in executor.inputs:
        inputs.append(triton.InferInput(name, shape, triton.np_to_triton_dtype(np.dtype(dtype))))
        # It sends FP16 as bytes only.
        inputs[-1].set_data_from_numpy(arrays[name], binary_data=is_binary or dtype == "float16")
    outputs = [
        triton.InferRequestedOutput(name, binary_data=is_binary) for name, _, _ in executor.outputs
    ]
    client = triton.InferenceServerClient(f"127.0.0.1:{served[1]}")
    for requested in (None, outputs):
        result = client.infer("many", inputs, outputs=requested, request_id="7")
        assert result.get_response()["id"] == "7"
        for (name, _, dtype), array in zip(executor.outputs, expected, strict=True):
            assert result.as_numpy(name).dtype == dtype
            assert np.array_equal(result.as_numpy(name), array)
    client.close()


def test_the_client_of_triton_shows_our_errors(served: Served, triton: ModuleType) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{served[1]}")
    with pytest.raises(Exception, match="inputs that the request lacks: image, scale"):
        client.infer("picture", [])
    with pytest.raises(
        Exception, match="there is no model 'image'; there are 'many', 'picture', 'model'"
    ):
        client.infer("image", [])
    client.close()


def picture_request(value: float) -> tuple[bytes, int]:
    """Return a request of 1 MB for the network `image`, and the length of its JSON."""
    image = np.full((1, 1, SIZE, SIZE), value, "float32")
    tensors = [
        {
            "name": "image",
            "shape": image.shape,
            "datatype": "FP32",
            "parameters": {"binary_data_size": image.nbytes},
        },
        {"name": "scale", "shape": [], "datatype": "FP32", "data": [0.5]},
    ]
    text = json.dumps({"inputs": tensors}).encode()
    return text + image.tobytes(), len(text)


def picture_result(client: HttpClient, value: float) -> Any:
    body, json_bytes = picture_request(value)
    headers = {"Inference-Header-Content-Length": str(json_bytes)}
    answer = client.call("POST", "/v2/models/picture/infer", body, headers)
    assert answer.status == 200, answer.error
    return answer.json["outputs"][0]["data"]


@pytest.mark.costly(3)
def test_memory_of_a_server_stays_where_it_is(served: Served) -> None:
    client = HttpClient(served[1])
    for value in range(50):
        assert picture_result(client, value) == [value * SIZE * SIZE / 2]
    before = client.metric("process_resident_memory_bytes")
    for value in range(NUM_REQUESTS):
        assert picture_result(client, value % 8) == [value % 8 * SIZE * SIZE / 2]
    growth = client.metric("process_resident_memory_bytes") - before
    client.close()
    assert growth < MAX_GROWTH_BYTES


@pytest.mark.costly(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_a_signal_ends_a_server_after_its_requests(folder: Path, number: signal.Signals) -> None:
    body, json_bytes = picture_request(2)
    head = (
        f"POST /v2/models/image/infer HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
        f"Content-Length: {len(body)}\r\nInference-Header-Content-Length: {json_bytes}\r\n\r\n"
    )
    with serving(folder, "image.so") as (process, port):
        with socket.create_connection(("127.0.0.1", port), _LIMIT_S) as client:
            client.sendall(head.encode())
            assert b"100 Continue" in client.recv(1000)  # from here on it is in flight
            client.sendall(body[:1000])
            process.send_signal(number)
            while is_open(port):
                pass
            client.sendall(body[1000:])
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b'"data":[%.1f]}]}' % (SIZE * SIZE))
        _, errors = process.communicate(timeout=_LIMIT_S)
        assert (process.returncode, errors) == (0, "")


def is_open(port: int) -> bool:
    """Tell whether a port takes connections."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_clients_that_are_killed_leave_a_server_as_it_was(served: Served) -> None:
    program = (
        "import os, socket, sys\n"
        "client = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "client.sendall(b'POST /v2/models/picture/infer HTTP/1.1\\r\\nHost: a\\r\\n"
        "Expect: 100-continue\\r\\nContent-Length: 1000000\\r\\n\\r\\n')\n"
        "assert client.recv(100)\n"
        "client.sendall(bytes(1000))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    client = HttpClient(served[1])
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program, str(served[1])], check=False)
        assert done.returncode == -signal.SIGKILL
        while client.metric('heteroplace_requests_pending{model="picture"}'):
            pass
    assert picture_result(client, 1) == [SIZE * SIZE / 2]
    client.close()


def test_files_and_names_that_cannot_be_served_are_told(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.so").write_text("no program")
    types, other = folder / "many.so", tmp_path / "many.so"
    other.symlink_to(types)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, words in (
            ([tmp_path / "text.so"], "text.so"),
            ([tmp_path / "nothing.so"], "nothing.so"),
            ([types, other], "are both called 'many'; name one: OTHER="),
            ([f"a/b={types}"], "a name has no slash"),
            ([f"={types}"], "a name has no slash"),
            ([types, "--host", "host.invalid"], "cannot listen on host.invalid:"),
            ([types, "--port", port], f"cannot listen on 127.0.0.1:{port}: Address already in use"),
            ([types, "--trusted-key", tmp_path / "key.pem"], "key.pem"),
        ):
            port_option = [] if "--port" in arguments else ["--port", "0"]
            assert main(["serve", *map(str, arguments), *port_option]) == WRONG_INPUT
            assert words in capsys.readouterr().err


def test_a_server_without_its_packages_says_how_to_get_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "heteroplace.parts.serving.http_server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(folder / "many.so")]) == MISSING_PACKAGE
    error = capsys.readouterr().err
    assert 'uvicorn, which is not installed; run: pip install "heteroplace[serve]"' in error
    assert "[HP301]" in error


def test_program_and_commands_of_the_guide_run(served: Served, triton: ModuleType) -> None:
    text = (ROOT / "docs" / "guide" / "serving.md").read_text().replace(":8000", f":{served[1]}")
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[[2. 4. 6. 8.]]\n", "")
    commands = re.findall(r"^curl .*", text, flags=re.MULTILINE)
    assert len(commands) == 3
    if shutil.which("curl") is None:
        pytest.skip("this machine has no curl")
    printed = [
        subprocess.run(shlex.split(command), capture_output=True, text=True, check=True).stdout
        for command in commands
    ]
    assert json.loads(printed[0])["name"] == "model"
    assert json.loads(printed[1])["outputs"][0]["data"] == [2, 4, 6, 8]
    page = " ".join(re.findall(r"`((?:heteroplace|process)_\w+)`", text))
    assert all(name in printed[2] for name in page.split())
