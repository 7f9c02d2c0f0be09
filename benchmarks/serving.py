"""`benchmarks serving`: requests per second over HTTP, against calls of an executor, in turns.

`heteroplace serve` runs in a process of its own, with binary tensors and keep-alive connections.
Its clients run in a second process, on the same cores: what they take of them is part of the
figures, and is in a column of its own. The executor of this process is called by as many threads as
requests may be in flight. The rounds that count are those in which other programs left the cores
alone, but at least a third of all. The ratio of processor times is what the ratio of throughputs
would be on cores that never idle; other programs disturb it less.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import numpy as np
import psutil
import tvm
from tvm import relay

import heteroplace
from benchmarks.row_table import row_table
from heteroplace.machine.usage import QUIET_CORES, Usage
from heteroplace.parts.serving.tensor_codec import DATATYPES
from heteroplace.run.executor import Executor
from heteroplace.stats import median
from zoo.models.catalogue import SMALLEST, load_model, matching_names

NETWORKS = ("mobilenet_v3_large", "randomly_wired", "resnet50")
"""Of about 5, 10 and 50 ms on two cores."""
NUM_CLIENTS = 8
IN_FLIGHT = 2
NUM_ROUNDS = 40
TURN_S = 0.5
BUDGET_S = 10.0
_SMALLEST_ROUNDS, _SMALLEST_TURN_S = 1, 0.1
_MIN_SHARE = 1 / 3


@dataclass(frozen=True)
class _Turn:
    """One turn of one side."""

    requests: int
    seconds: float
    cpu_s: float
    """Processor time of this process, or of the server."""
    clients_cpu_s: float = 0.0
    others_cores: float = 0.0
    """How many cores all other programs used."""

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    for name in matching_names(only, NETWORKS):
        with tempfile.TemporaryDirectory() as folder:
            say(f"{name}: place and build")
            file = Path(folder) / f"{name}.so"
            inputs = _compile(name, file)
            is_small = name == SMALLEST
            rounds = _SMALLEST_ROUNDS if is_small else NUM_ROUNDS
            say(f"{name}: {rounds} rounds")
            yield _row(name, file, inputs, rounds, _SMALLEST_TURN_S if is_small else TURN_S)


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text; times in ms of one core."""
    columns = {
        "name": "network",
        "devices_used": "devices used",
        "clients": "clients",
        "run_ms": "one run",
        "direct_per_s": "direct /s",
        "http_per_s": "HTTP /s",
        "ratio": "ratio",
        "direct_cpu_ms": "CPU direct",
        "server_cpu_ms": "CPU server",
        "clients_cpu_ms": "CPU clients",
        "cpu_ratio": "CPU ratio",
        "others_cores": "other cores",
    }
    return row_table(rows, columns, num_names=2)


def _compile(name: str, file: Path) -> Mapping[str, np.ndarray]:
    """Write the compiled network, and return an input."""
    model = load_model(name)
    budget_s = 1.0 if name == SMALLEST else BUDGET_S
    cluster = heteroplace.local_cluster(has_gpus=False)
    with tvm.transform.PassContext(opt_level=3):
        place = relay.transform.HeteroPlace(
            cluster, params=dict(model.params), time_limit=budget_s, objective="throughput"
        )
        heteroplace.build(place(model.mod)).export_library(str(file))
    return model.inputs


def _row(
    name: str, file: Path, inputs: Mapping[str, np.ndarray], num_rounds: int, turn_s: float
) -> dict[str, object]:
    executor = heteroplace.load(file, max_in_flight=IN_FLIGHT)
    rounds: list[tuple[_Turn, _Turn]] = []
    with _server(file) as (server, url), _clients(url, file, inputs) as clients:
        process = psutil.Process(server.pid)
        for _ in range(1 + num_rounds):
            own = _direct_turn(executor, inputs, turn_s)
            rounds.append((own, _http_turn(process, clients, turn_s)))
    counted = _counted(rounds[1:])  # the first one warms up
    direct, over_http = ([pair[side] for pair in counted] for side in (0, 1))
    ratios = [http.per_second / own.per_second for own, http in counted]
    direct_ms, server_ms = _cpu_ms(direct), _cpu_ms(over_http)
    clients_ms = 1e3 * median([turn.clients_cpu_s / max(turn.requests, 1) for turn in over_http])
    return {
        "name": name,
        "devices_used": list(executor.solution.devices_used),
        "clients": NUM_CLIENTS,
        "in_flight": IN_FLIGHT,
        "input_bytes": sum(array.nbytes for array in inputs.values()),
        "rounds": len(counted),
        "run_ms": round(median(executor.benchmark(20)) / 1e6, 3),
        "direct_per_s": round(median([turn.per_second for turn in direct]), 1),
        "http_per_s": round(median([turn.per_second for turn in over_http]), 1),
        "ratio": round(median(ratios), 3),
        "ratios": [round(each, 3) for each in ratios],
        "direct_cpu_ms": round(direct_ms, 3),
        "server_cpu_ms": round(server_ms, 3),
        "clients_cpu_ms": round(clients_ms, 3),
        "cpu_ratio": round(direct_ms / (server_ms + clients_ms), 3),
        "others_cores": round(median([max(_others(pair)) for pair in counted]), 2),
    }


def _counted(rounds: Sequence[tuple[_Turn, _Turn]]) -> list[tuple[_Turn, _Turn]]:
    """Return the rounds that other programs disturbed least."""
    ranked = sorted(rounds, key=lambda pair: max(_others(pair)))
    num_quiet = sum(max(_others(pair)) <= QUIET_CORES for pair in rounds)
    return ranked[: max(num_quiet, math.ceil(len(rounds) * _MIN_SHARE))]


def _others(pair: tuple[_Turn, _Turn]) -> list[float]:
    return [turn.others_cores for turn in pair]


def _cpu_ms(turns: Sequence[_Turn]) -> float:
    """Return the processor time of a request in this process, or in the server."""
    return median([1e3 * turn.cpu_s / max(turn.requests, 1) for turn in turns])


def _direct_turn(executor: Executor, inputs: Mapping[str, np.ndarray], turn_s: float) -> _Turn:
    counts = [0] * IN_FLIGHT
    before = Usage.now()

    def call(index: int) -> None:
        while time.perf_counter() < before.wall + turn_s:
            executor.run(inputs)
            counts[index] += 1

    threads = [threading.Thread(target=call, args=(index,)) for index in range(IN_FLIGHT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = Usage.now()
    seconds, cpu_s = after.wall - before.wall, after.own - before.own
    return _Turn(sum(counts), seconds, cpu_s, others_cores=after.others_since(before))


def _http_turn(server: psutil.Process, clients: subprocess.Popen[str], turn_s: float) -> _Turn:
    before, server_before_s = Usage.now(), _cpu_s(server)
    assert clients.stdin is not None and clients.stdout is not None
    print(turn_s, file=clients.stdin, flush=True)
    answer = json.loads(clients.stdout.readline())
    after, cpu_s = Usage.now(), _cpu_s(server) - server_before_s
    own_cores = (cpu_s + answer["cpu_s"]) / (after.wall - before.wall)
    others_cores = max(0.0, after.others_since(before) - own_cores)
    return _Turn(answer["requests"], answer["seconds"], cpu_s, answer["cpu_s"], others_cores)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def _server(file: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve a file; give the process and its address."""
    command = [sys.executable, "-m", "heteroplace.cli.main", "serve", f"model={file}"]
    options = ["--port", "0", "--in-flight", str(IN_FLIGHT), "--json"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, json.loads(_line(process.stdout))["url"]
        finally:
            process.terminate()


@contextmanager
def _clients(
    url: str, file: Path, inputs: Mapping[str, np.ndarray]
) -> Iterator[subprocess.Popen[str]]:
    """Start the process of the clients."""
    address = urlsplit(url)
    request = file.with_suffix(".http")
    request.write_bytes(_request(f"{address.hostname}:{address.port}", inputs))
    command = [sys.executable, "-m", "benchmarks.serving_clients"]
    arguments = [str(address.hostname), str(address.port), str(NUM_CLIENTS), str(request)]
    with subprocess.Popen(
        [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _request(host: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """Return one HTTP request with binary tensors, for binary outputs."""
    tensors = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": DATATYPES[array.dtype.name],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in inputs.items()
    ]
    text = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    body = text + b"".join(array.tobytes() for array in inputs.values())
    head = (
        f"POST /v2/models/model/infer HTTP/1.1\r\nHost: {host}\r\n"
        f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()
