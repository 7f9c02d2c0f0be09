"""`run --loading`: seconds to the first result of a model, and of a compiled file.

`heteroplace run` gives the first result of a model: from empty caches, and once more, when it finds
the compiled file. Then a process loads that file and runs it once, in turns with one that makes a
session of onnxruntime: each with its default settings, and with all that it imports. Files are in
the system's cache of files from the first turn on, which is not counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

from benchmarks.row_table import row_table
from benchmarks.run.placing import SMALL, caches_in, heteroplace_run
from heteroplace.native.compiled_file import read_manifest
from heteroplace.progress import prefixed
from zoo.models.catalogue import SMALLEST, matching_names, onnx_model_of

_NETWORKS = (SMALLEST, "shufflenet", "mobilenet_v3_large", "resnet50", "bert_base")
_LONG, _SHORT = (3, 9), (1, 2)
"""How many first results, and how many turns of loading."""
_LOADS = """
import json, pathlib, re, sys, time
started = time.perf_counter(), time.process_time()
import numpy as np
{load}
loaded = time.perf_counter(), time.process_time()
{run}
status = pathlib.Path("/proc/self/status").read_text()
peak_kib = int(re.search(r"VmHWM:\\s*(\\d+)", status)[1])
print(json.dumps([*(after - before for before, after in zip(started, loaded)), peak_kib]))
"""
_OURS = _LOADS.format(
    load="import heteroplace\nexecutor = heteroplace.load(sys.argv[1])",
    run="executor.run({name: np.ones(shape, dtype) for name, shape, dtype in executor.inputs})",
)
_PEER = _LOADS.format(
    load="import onnxruntime\nsession = onnxruntime.InferenceSession(sys.argv[1])",
    run="session.run(None, dict(np.load(sys.argv[2])))",
)


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    for name in matching_names(only, _NETWORKS):
        with tempfile.TemporaryDirectory() as folder:
            yield _row(name, Path(folder), prefixed(say, name))


def _row(name: str, folder: Path, say: Callable[[str], None]) -> dict[str, object]:
    """Measure one network: medians of seconds of loading, and of MiB after a run."""
    is_small = name == SMALLEST
    model = SMALL() if is_small else onnx_model_of(name)
    num_first, num_turns = _SHORT if is_small else _LONG
    path, inputs = folder / "model.onnx", folder / "inputs.npz"
    onnx.save(model, path)
    firsts, file = [], path
    for number in range(num_first):
        say("compiling from empty caches")
        caches = caches_in(folder, str(number))
        first_s, ran = _first_result(path, caches)
        again_s, _ = _first_result(path, caches)
        firsts.append((first_s, again_s))
        file = Path(str(ran["file"]))
    ports = read_manifest(file).inputs
    arrays: dict[str, Any] = {port: np.ones(shape, dtype) for port, shape, dtype in ports}
    np.savez(inputs, **arrays)
    say("measuring")
    taken: dict[str, list[list[float]]] = {"ours": [], "onnxruntime": []}
    for _ in range(num_turns):
        taken["ours"].append(_measured(_OURS, file))
        taken["onnxruntime"].append(_measured(_PEER, path, inputs))
    first_s, again_s = (median(values) for values in zip(*firsts, strict=True))
    row: dict[str, object] = {
        "name": name,
        "first_s": round(first_s, 1),
        "again_s": round(again_s, 2),
        "file_mib": file.stat().st_size >> 20,
    }
    for who, turns in taken.items():
        wall_s, cpu_s, peak_kib = (median(values) for values in zip(*turns[1:], strict=True))
        row |= {
            f"{who}_wall_s": round(wall_s, 3),
            f"{who}_cpu_s": round(cpu_s, 3),
            f"{who}_mib": round(peak_kib / 1024),
        }
    return row


def _first_result(path: Path, caches: dict[str, str]) -> tuple[float, dict[str, Any]]:
    begin = time.monotonic()
    ran = heteroplace_run(path, ["--runs", "1"], caches)
    return time.monotonic() - begin, ran


def _measured(program: str, *arguments: Path) -> list[float]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    numbers: list[float] = json.loads(done.stdout)
    return numbers


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text."""
    columns = {
        "name": "network",
        "first_s": "s to the first result",
        "again_s": "and again",
        "file_mib": "file MiB",
        "ours_wall_s": "ours s",
        "onnxruntime_wall_s": "onnxruntime s",
        "ours_cpu_s": "ours CPU s",
        "onnxruntime_cpu_s": "onnxruntime CPU s",
        "ours_mib": "ours MiB",
        "onnxruntime_mib": "onnxruntime MiB",
    }
    return row_table(rows, columns, num_names=1)
