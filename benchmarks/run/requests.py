"""`run --requests`: concurrent calls, and two networks in one process, against onnxruntime.

First, threads call a network as fast as they can: 1, 2, 4 or 8 threads call one network, or two
threads call a network each. Then calls of one network arrive at random moments, at 80 % of a peak
rate: the lower one of our file and of onnxruntime at its defaults. Eight threads make these calls.
The latency of a call starts at its arrival, so it includes the wait for a thread.

Four programs take turns: the compiled file, the same file without adapting, onnxruntime at its
defaults, and onnxruntime with one thread for each call. All threads share one session of
onnxruntime.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx

import heteroplace
from benchmarks.row_table import row_table
from benchmarks.run.busy import NETWORKS, Turns, inputs_of
from benchmarks.run.placing import SMALL, heteroplace_run
from heteroplace.parts.onnx.prepare.onnx_child import load_onnxruntime
from zoo.models.catalogue import SMALLEST, matching_names

_NAMES = (
    "wired",
    "shufflenet",
    "squeezenet",
    "mobilenet_v3_large",
    "inception_v1",
    "resnet50",
)
_SECOND = "squeezenet"
"""The second network of a process."""
IN_FLIGHT = (1, 2, 4, 8)
_SHARE_OF_PEAK = 0.8
_Call: TypeAlias = Callable[[], object]


class Network(NamedTuple):
    """An ONNX model and its compiled file."""

    name: str
    model: Path
    file: Path


_Load: TypeAlias = Callable[[Network, int, ExitStack], _Call]


_LONG, _SHORT = Turns(4, 1_000_000_000), Turns(1, 50_000_000)


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    with tempfile.TemporaryDirectory() as folder:
        for name in matching_names(only, _NAMES):
            is_small = name == SMALLEST
            say(f"{name}: compiling")
            network = _compiled(name, Path(folder))
            second = network if is_small else _compiled(_SECOND, Path(folder))
            say(f"{name}: measuring")
            yield from _rows(network, second, _SHORT if is_small else _LONG)


def _compiled(name: str, folder: Path) -> Network:
    path = folder / f"{name}.onnx"
    onnx.save(SMALL() if name == SMALLEST else NETWORKS[name](), path)
    ran = heteroplace_run(path, ["--runs", "1"], {"HETEROPLACE_MODELS": str(folder)})
    return Network(name, path, Path(str(ran["file"])))


def _rows(network: Network, second: Network, turns: Turns) -> Iterator[dict[str, object]]:
    rows: list[dict[str, Any]] = []
    for in_flight in IN_FLIGHT:
        figures = _closed([network], in_flight, turns)
        rows.append({"name": network.name, "calls": f"{in_flight} at once", **figures})
    yield from rows
    figures = _closed([network, second], 1, turns)
    yield {"name": f"{network.name} and {second.name}", "calls": "1 each", **figures}
    peaks = (max(row[f"{who}_per_second"] for row in rows) for who in ("ours", "onnxruntime"))
    rate = _SHARE_OF_PEAK * min(peaks)
    yield {"name": network.name, "calls": f"{rate:.4g}/s", **_open(network, rate, turns)}


def _closed(networks: Sequence[Network], in_flight: int, turns: Turns) -> dict[str, object]:
    """Let `in_flight` threads call each network over and over."""
    turn_s = turns.turn_ns / 1e9

    def turn(calls: Sequence[_Call]) -> list[float]:
        end = time.perf_counter() + turn_s

        def call_until_end(call: _Call) -> list[float]:
            times = []
            while (start := time.perf_counter()) < end:
                call()
                times.append(time.perf_counter() - start)
            return times

        with ThreadPoolExecutor(len(calls) * in_flight) as pool:
            return [
                each for times in pool.map(call_until_end, [*calls] * in_flight) for each in times
            ]

    times = _times(networks, in_flight, turns, turn)
    rates = {
        f"{who}_per_second": round(len(seconds) / (turns.rounds * turn_s), 2)
        for who, seconds in times.items()
    }
    return {**rates, **_percentiles(times)}


def _open(network: Network, rate: float, turns: Turns) -> dict[str, object]:
    """Let calls arrive at random moments, at a mean rate per second."""
    random_gaps = random.Random(0)
    num_calls = max(2, int(rate * turns.turn_ns / 1e9))
    moments = list(accumulate(random_gaps.expovariate(rate) for _ in range(num_calls)))

    def turn(calls: Sequence[_Call]) -> list[float]:
        (call,) = calls
        origin = time.perf_counter()

        def call_at(moment: float) -> float:
            time.sleep(max(0.0, origin + moment - time.perf_counter()))
            call()
            return time.perf_counter() - origin - moment

        with ThreadPoolExecutor(IN_FLIGHT[-1]) as pool:
            return list(pool.map(call_at, moments))

    return _percentiles(_times([network], IN_FLIGHT[-1], turns, turn))


def _times(
    networks: Sequence[Network],
    in_flight: int,
    turns: Turns,
    turn: Callable[[Sequence[_Call]], list[float]],
) -> dict[str, list[float]]:
    """Let the programs take turns; return the latencies of each in s."""
    times: dict[str, list[float]] = {who: [] for who in _PROGRAMS}
    with ExitStack() as stack:
        calls = {
            who: [load(network, in_flight, stack) for network in networks]
            for who, load in _PROGRAMS.items()
        }
        for round_number in range(1 + turns.rounds):
            for who in _PROGRAMS:
                seconds = turn(calls[who])
                if round_number:
                    times[who] += seconds
    return times


def _percentiles(times: Mapping[str, Sequence[float]]) -> dict[str, object]:
    return {
        f"{who}_p{percent}_ms": round(float(np.percentile(seconds, percent)) * 1e3, 3)
        for who, seconds in times.items()
        for percent in (50, 99)
    }


def _ours(network: Network, in_flight: int, stack: ExitStack, *, adapt: bool = True) -> _Call:
    executor = heteroplace.load(network.file, max_in_flight=in_flight, adapt=adapt)
    return partial(stack.enter_context(executor).run, inputs_of(network.file))


def _theirs(network: Network, _in_flight: int, _stack: ExitStack, *, num_threads: int = 0) -> _Call:
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = num_threads
    session = onnxruntime.InferenceSession(str(network.model), options, ["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    inputs = dict(zip(names, inputs_of(network.file).values(), strict=True))
    return partial(session.run, None, inputs)


_PROGRAMS: Mapping[str, _Load] = {
    "ours": _ours,
    "planned": partial(_ours, adapt=False),
    "onnxruntime": _theirs,
    "one_thread": partial(_theirs, num_threads=1),
}
"""Functions that load a network for a number of concurrent calls; the stack closes the program."""


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text, and below them the ratios of our figures to the others."""
    titles = {
        "ours": "ours",
        "planned": "as planned",
        "onnxruntime": "onnxruntime",
        "one_thread": "with one thread",
    }
    columns = {"name": "network", "calls": "calls"}
    for who, title in titles.items():
        columns[f"{who}_per_second"] = f"{title}, 1/s"
    for who in titles:
        columns[f"{who}_p99_ms"] = "p99 ms"
    lines = [row_table(rows, columns, num_names=2)]
    for what, key in (("calls per second", "per_second"), ("p99", "p99_ms")):
        for peer in ("onnxruntime", "one_thread", "planned"):
            ratios = [
                float(str(row[f"ours_{key}"])) / float(str(row[f"{peer}_{key}"]))
                for row in rows
                if f"ours_{key}" in row
            ]
            mean = f"{geometric_mean(ratios):.2f} (geometric mean)"
            lines.append(f"{what}, ours / {peer}: {mean}, {min(ratios):.2f} to {max(ratios):.2f}")
    return "\n".join(lines)
