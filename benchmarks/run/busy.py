"""`run --busy`: compiles and runs while other programs keep none, one or two cores busy.

The benchmark starts these programs itself. `heteroplace run` compiles each network from an empty
store of costs, once for each number of busy threads. The files are then timed in turns on the quiet
machine, which shows what compiling on a busy one costs. After that, the quiet file is timed beside
each number of busy threads. It takes turns with the same file without adapting, with our plan for
one core, and with other runtimes on all cores. A turn makes calls from arrays to arrays for a third
of a second. Its figure is their mean: a median hides the calls that waited for a core. The table
has the median of the turns.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any, NamedTuple, TypeAlias

import onnx

import heteroplace
from benchmarks.row_table import row_table
from benchmarks.run.placing import NETWORKS as PLACED
from benchmarks.run.placing import SMALL, caches_in, heteroplace_run, milliseconds
from heteroplace.cli.models.model_arrays import make_inputs
from heteroplace.errors import FrontendError
from heteroplace.machine.local import local_cluster
from heteroplace.measure.timed_runs import Timer, on_cores, time_runs
from heteroplace.native.compiled_file import read_manifest
from heteroplace.parts.onnx.peer_runtimes import MnnExecutor, OnnxExecutor, RuntimeExecutor
from heteroplace.progress import prefixed
from zoo.models.catalogue import SMALLEST, matching_names, onnx_model_of

_FULL = ("mobilenet_v3_large", "bert_base")
NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    **{name: partial(onnx_model_of, name) for name in _FULL},
    **{
        name: PLACED[name]
        for name in (
            *("wired", "inception_v1", "inception_v2", "shufflenet", "squeezenet", "resnet50"),
            *("ppocr_recognition", "nudenet"),
        )
    },
}
"""Ten: eight convolutional networks, a randomly wired one and a transformer."""
LOADS = (0, 1, 2)
"""Numbers of busy threads."""
_Make: TypeAlias = Callable[[onnx.ModelProto, dict[str, Any], list[int]], RuntimeExecutor]
_PEERS: Mapping[str, _Make] = {"onnxruntime": OnnxExecutor, "MNN": MnnExecutor}
_MIN_CALLS = 2
_START_S = 0.3
_Programs: TypeAlias = Mapping[str, Callable[[ExitStack], Timer]]
"""Functions that load a program; the stack closes it."""


class Turns(NamedTuple):
    """How much is measured."""

    rounds: int
    """One more comes first and is not counted: programs may adapt in it."""
    turn_ns: int


_LONG, _SHORT = Turns(5, 330_000_000), Turns(1, 10_000_000)


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    for name in matching_names(only, tuple(NETWORKS)):
        turns = _SHORT if name == SMALLEST else _LONG
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(SMALL() if name == SMALLEST else NETWORKS[name](), path)
            yield {"name": name, **_row(path, turns, prefixed(say, name))}


def _row(path: Path, turns: Turns, say: Callable[[str], None]) -> dict[str, object]:
    """Measure one network: ms of calls, by who was timed and the number of busy threads."""
    row: dict[str, object] = {}
    files = []
    for load in LOADS:
        say(f"compiling beside {load} busy threads")
        with busy_threads(load):
            ran = _compiled(path, f"costs{load}")
        files.append(Path(str(ran["file"])))
        row[f"devices_used_{load}"] = ran["solution"]["devices_used"]
    say("compiling for one core")
    _, *others = (device.name for device in local_cluster(has_gpus=False).devices)
    excluded = [word for other in others for word in ("--exclude", other)]
    one_core = Path(str(_compiled(path, "costs0", *excluded)["file"]))
    say("measuring")
    compiled = {str(load): partial(_ours, file) for load, file in zip(LOADS, files, strict=True)}
    for beside, ms in _times(compiled, turns).items():
        row[f"compiled_{beside}_ms"] = ms
    programs: _Programs = {
        "ours": partial(_ours, files[0]),
        "planned": partial(_ours, files[0], adapt=False),
        "one_core": partial(_ours, one_core),
        **_peers(path, files[0], say),
    }
    for load in LOADS:
        with busy_threads(load):
            for who, ms in _times(programs, turns).items():
                row[f"{who.lower()}_{load}_ms"] = ms
    return row


def _peers(path: Path, file: Path, say: Callable[[str], None]) -> _Programs:
    """Return the other runtimes that are installed and run the model."""
    programs = {}
    for name, make in _PEERS.items():
        if importlib.util.find_spec(name) is None:
            continue
        programs[name] = partial(_theirs, make, path, file)
        try:
            with ExitStack() as stack:
                programs[name](stack)
        except FrontendError as fault:
            say(f"left out: {fault}")
            del programs[name]
    return programs


@contextmanager
def busy_threads(number: int) -> Iterator[None]:
    """Keep so many processes of one thread busy inside the block."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(number)]
    try:
        time.sleep(_START_S if processes else 0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _compiled(path: Path, store: str, *words: str) -> dict[str, Any]:
    """Compile a model, and keep the measured costs beside it."""
    return heteroplace_run(path, ["--runs", "1", *words], caches_in(path.parent, store))


def _times(programs: _Programs, turns: Turns) -> dict[str, float]:
    """Time calls of programs in turns; return for each the median of the means in ms."""
    means: dict[str, list[float]] = {name: [] for name in programs}
    with ExitStack() as stack:
        timers = {name: load(stack) for name, load in programs.items()}
        warm_ns = {name: mean(timer(3)[1:]) for name, timer in timers.items()}
        for _ in range(1 + turns.rounds):
            for name, timer in timers.items():
                num_calls = max(_MIN_CALLS, int(turns.turn_ns / warm_ns[name]))
                means[name].append(mean(timer(num_calls + 1)[1:]))
    return {name: milliseconds(median(values[1:])) for name, values in means.items()}


def _ours(file: Path, stack: ExitStack, *, adapt: bool = True) -> Timer:
    executor = stack.enter_context(heteroplace.load(file, adapt=adapt))
    cores = sorted(os.sched_getaffinity(0))
    return on_cores(partial(time_runs, partial(executor.run, inputs_of(file))), cores)


def _theirs(make: _Make, path: Path, file: Path, stack: ExitStack) -> Timer:
    program = make(onnx.load(path), inputs_of(file), sorted(os.sched_getaffinity(0)))
    stack.callback(program.close)
    return program.time_calls


def inputs_of(file: Path) -> dict[str, Any]:
    """Return random arrays for the inputs of a compiled file."""
    return make_inputs(read_manifest(file).inputs, {}, {}, seed=0)


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text, times in ms, and below them ratios of times."""
    compiled = {"name": "network"}
    for load in LOADS:
        compiled[f"devices_used_{load}"] = f"compiled beside {load}"
        compiled[f"compiled_{load}_ms"] = "ms"
    beside = {
        "name": "network",
        "load": "busy threads",
        "ours": "ours",
        "planned": "as planned",
        "one_core": "one core",
        "onnxruntime": "onnxruntime",
        "mnn": "MNN",
    }
    runs = [
        {"name": row["name"], "load": load}
        | {who: row[key] for who in beside if (key := f"{who}_{load}_ms") in row}
        for row in rows
        for load in LOADS
    ]
    lines = [row_table(rows, compiled, num_names=2), "", row_table(runs, beside, num_names=1)]
    for load in LOADS[1:]:
        lines.append(_ratios(rows, f"compiled_{load}", ("compiled_0",)))
    for load in LOADS:
        lines.append(_ratios(rows, f"ours_{load}", (f"onnxruntime_{load}", f"mnn_{load}")))
        lines.append(_ratios(rows, f"ours_{load}", (f"one_core_{load}",)))
    return "\n".join(lines)


def _ratios(rows: list[dict[str, object]], one: str, others: Sequence[str]) -> str:
    """Return a line: the time of one over the shortest time of the others, mean and worst."""
    ratios = {}
    for row in rows:
        times = [float(str(row[f"{other}_ms"])) for other in others if row.get(f"{other}_ms")]
        ratios[str(row["name"])] = float(str(row[f"{one}_ms"])) / min(times)
    worst = max(ratios, key=lambda name: ratios[name])
    middle = geometric_mean(ratios.values())
    what = " or ".join(others)
    return f"{one} / {what}: {middle:.2f} (geometric mean), at most {ratios[worst]:.2f} ({worst})"
