"""`run --requests`: several calls at once, and two networks in one process, beside onnxruntime.

Threads call a program as fast as they can: 1, 2, 4 or 8 of them one network, or two of them one
network each. The figures are calls per second and the time that 99 of 100 calls stay below. After
that, calls come at random moments, at 80 % of the lower of the highest rates of ours and of
onnxruntime's. A call then lasts from its moment on, and may wait for one of eight threads.

Four programs take turns: the compiled file, the same file without adapting, and onnxruntime at its
defaults and with one thread for each call. onnxruntime has one session for all threads.
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
from benchmarks.run.placing import NETWORKS as PLACED
from benchmarks.run.placing import SMALL, heteroplace_run
from heteroplace.cli.models.model_arrays import make_inputs
from heteroplace.native.compiled_file import read_manifest
from heteroplace.parts.onnx.prepare.onnx_child import load_onnxruntime
from zoo.models.catalogue import SMALLEST, matching_names, onnx_model_of

_NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    **{name: PLACED[name] for name in ("wired", "shufflenet", "squeezenet")},
    "mobilenet_v3_large": partial(onnx_model_of, "mobilenet_v3_large"),
    **{name: PLACED[name] for name in ("inception_v1", "resnet50")},
}
_COMPANION = "squeezenet"
"""What runs beside each network in the same process."""
IN_FLIGHT = (1, 2, 4, 8)
_SHARE_OF_PEAK = 0.8
_Call: TypeAlias = Callable[[], object]


class Network(NamedTuple):
    """A model and what it was compiled to."""

    name: str
    model: Path
    file: Path


_Load: TypeAlias = Callable[[Network, int, ExitStack], _Call]


class Turns(NamedTuple):
    """How much is measured: of each turn, of which the first is not counted."""

    rounds: int
    seconds: float


_LONG, _SHORT = Turns(4, 1.0), Turns(1, 0.05)


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    with tempfile.TemporaryDirectory() as folder:
        for name in matching_names(only, tuple(_NETWORKS)):
            turns = _SHORT if name == SMALLEST else _LONG
            companion = name if name == SMALLEST else _COMPANION
            say(f"{name}: compiling")
            network, other = (_compiled(each, Path(folder)) for each in (name, companion))
            say(f"{name}: measuring")
            yield from _rows(network, other, turns)


def _compiled(name: str, folder: Path) -> Network:
    path = folder / f"{name}.onnx"
    onnx.save(SMALL() if name == SMALLEST else _NETWORKS[name](), path)
    ran = heteroplace_run(path, ["--runs", "1"], {"HETEROPLACE_MODELS": str(folder)})
    return Network(name, path, Path(str(ran["file"])))


def _rows(network: Network, other: Network, turns: Turns) -> Iterator[dict[str, object]]:
    peaks: dict[str, float] = {}
    for in_flight in IN_FLIGHT:
        figures = _closed([network] * in_flight, turns)
        for who, per_second in _rates(figures).items():
            peaks[who] = max(peaks.get(who, 0.0), per_second)
        yield {"name": network.name, "calls": f"{in_flight} at once", **figures}
    figures = _closed([network, other], turns)
    yield {"name": f"{network.name} and {other.name}", "calls": "1 each", **figures}
    rate = _SHARE_OF_PEAK * min(peaks["ours"], peaks["onnxruntime"])
    yield {"name": network.name, "calls": f"{rate:.4g}/s", **_open(network, rate, turns)}


def _rates(figures: Mapping[str, object]) -> dict[str, float]:
    end = "_per_second"
    return {key.removesuffix(end): float(str(figures[key])) for key in figures if key.endswith(end)}


def _closed(networks: Sequence[Network], turns: Turns) -> dict[str, object]:
    """Let a thread for each network, which may be one and the same, call it over and over."""

    def turn(calls: Sequence[_Call]) -> list[float]:
        end = time.perf_counter() + turns.seconds

        def call_until_end(call: _Call) -> list[float]:
            times = []
            while (start := time.perf_counter()) < end:
                call()
                times.append(time.perf_counter() - start)
            return times

        with ThreadPoolExecutor(len(calls)) as pool:
            return [each for times in pool.map(call_until_end, calls) for each in times]

    return _figures(networks, turns, turn, is_closed=True)


def _open(network: Network, rate: float, turns: Turns) -> dict[str, object]:
    """Let calls come at random moments, so many a second."""
    gaps = random.Random(0)
    moments = list(
        accumulate(gaps.expovariate(rate) for _ in range(max(2, int(rate * turns.seconds))))
    )

    def turn(calls: Sequence[_Call]) -> list[float]:
        origin = time.perf_counter()

        def call_at(moment: float) -> float:
            time.sleep(max(0.0, origin + moment - time.perf_counter()))
            calls[0]()
            return time.perf_counter() - origin - moment

        with ThreadPoolExecutor(IN_FLIGHT[-1]) as pool:
            return list(pool.map(call_at, moments))

    return _figures([network] * IN_FLIGHT[-1], turns, turn, is_closed=False)


def _figures(
    networks: Sequence[Network],
    turns: Turns,
    turn: Callable[[Sequence[_Call]], list[float]],
    *,
    is_closed: bool,
) -> dict[str, object]:
    """Let the programs take turns; return their figures over all turns that count."""
    times: dict[str, list[float]] = {who: [] for who in _PROGRAMS}
    with ExitStack() as stack:
        calls = {}
        for who, load in _PROGRAMS.items():
            loaded = {each: load(each, networks.count(each), stack) for each in set(networks)}
            calls[who] = [loaded[each] for each in networks]
        for round_number in range(1 + turns.rounds):
            for who in _PROGRAMS:
                seconds = turn(calls[who])
                if round_number:
                    times[who] += seconds
    figures: dict[str, object] = {}
    for who, seconds in times.items():
        if is_closed:
            figures[f"{who}_per_second"] = round(len(seconds) / (turns.rounds * turns.seconds), 2)
        figures[f"{who}_p50_ms"], figures[f"{who}_p99_ms"] = (
            round(float(value) * 1e3, 3) for value in np.percentile(seconds, (50, 99))
        )
    return figures


def _ours(network: Network, in_flight: int, stack: ExitStack, *, adapt: bool = True) -> _Call:
    executor = heteroplace.load(network.file, max_in_flight=in_flight, adapt=adapt)
    return partial(stack.enter_context(executor).run, _inputs(network))


def _theirs(network: Network, _in_flight: int, _stack: ExitStack, *, num_threads: int = 0) -> _Call:
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = num_threads
    session = onnxruntime.InferenceSession(str(network.model), options, ["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    inputs = dict(zip(names, _inputs(network).values(), strict=True))
    return partial(session.run, None, inputs)


def _inputs(network: Network) -> dict[str, Any]:
    return make_inputs(read_manifest(network.file).inputs, {}, {}, seed=0)


_PROGRAMS: Mapping[str, _Load] = {
    "ours": _ours,
    "planned": partial(_ours, adapt=False),
    "onnxruntime": _theirs,
    "one_thread": partial(_theirs, num_threads=1),
}
"""Functions that load a network for so many calls at once; the stack closes what they load."""


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text, and below them means of ratios to onnxruntime at its defaults."""
    names = {"name": "network", "calls": "calls"}
    titles = {
        "ours": "ours",
        "planned": "as planned",
        "onnxruntime": "onnxruntime",
        "one_thread": "with one thread",
    }
    columns = dict(names)
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
