"""`run --loading`: seconds to the first result of a model, and of a compiled file.

`heteroplace run` is timed three times: from empty caches, for a network with the same shapes and
other weights, and for the first file again. Then one process loads the compiled file and runs it
once, and another does so with a session of onnxruntime, in turns. Both have default settings, and
their imports count. The first turn, which fills the system's cache of files, does not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.row_table import row_table
from benchmarks.run.placing import NETWORKS, SMALL, caches_in, heteroplace_run
from benchmarks.run.trained_models import input_options
from heteroplace.native.compiled_file import read_manifest
from heteroplace.progress import prefixed
from zoo.models.catalogue import SMALLEST, matching_names, onnx_model_of
from zoo.trained import TRAINED, trained_model

_OF_ZOO = (
    *("shufflenet", "mobilenet_v3_large", "efficientnet_b0", "resnet50"),
    *("bert_base", "lstm_tagger"),
)
_PLACED = ("squeezenet", "inception_v1", "nudenet")
_NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    SMALLEST: SMALL,
    **{name: partial(onnx_model_of, name) for name in _OF_ZOO},
    **{name: NETWORKS[name] for name in _PLACED},
    "captcha_slider": partial(trained_model, "captcha_slider"),
}
_LONG, _SHORT = (3, 9), (1, 2)
"""How many first results, and how many turns of loading."""
_STAGES = ("start", "import", "prepare", "compile", "cost", "solve", "verify")
"""The columns of the table of stages."""
_OTHER_WEIGHTS = np.float32(1.01)
"""Factor from the weights of a network to those of another one with the same shapes."""
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
    for name in matching_names(only, tuple(_NETWORKS)):
        with tempfile.TemporaryDirectory() as folder:
            yield _row(name, Path(folder), prefixed(say, name))


def _row(name: str, folder: Path, say: Callable[[str], None]) -> dict[str, object]:
    """Measure one network: median seconds, processor seconds, and MiB after a run."""
    model = _NETWORKS[name]()
    num_first, num_turns = _SHORT if name == SMALLEST else _LONG
    options = input_options(name) if name in TRAINED else []
    path, other, inputs = folder / "model.onnx", folder / "other.onnx", folder / "inputs.npz"
    onnx.save(model, path)
    _change_weights(model)
    onnx.save(model, other)
    firsts: list[dict[str, float]] = []
    for number in range(num_first):
        say("compiling from empty caches")
        caches = caches_in(folder, str(number))
        first_s, cpu_s, ran = _timed_run(path, options, caches)
        same_shapes_s, _, _ = _timed_run(other, options, caches)
        again_s, _, _ = _timed_run(path, options, caches)
        stages = {stage["name"]: stage["wall_s"] or 0.0 for stage in ran["stages"]}
        firsts.append(
            {
                "first_s": first_s,
                "first_cpu_s": cpu_s,
                **{f"{name}_s": stages[name] for name in _STAGES},
                "same_shapes_s": same_shapes_s,
                "again_s": again_s,
            }
        )
    file = Path(str(ran["file"]))
    ports = read_manifest(file).inputs
    arrays: dict[str, Any] = {port: np.ones(shape, dtype) for port, shape, dtype in ports}
    np.savez(inputs, **arrays)
    say("measuring")
    turns: dict[str, list[list[float]]] = {"ours": [], "onnxruntime": []}
    for _ in range(num_turns):
        turns["ours"].append(_measured(_OURS, file))
        turns["onnxruntime"].append(_measured(_PEER, path, inputs))
    row: dict[str, object] = {"name": name}
    row |= {key: round(median(each[key] for each in firsts), 2) for key in firsts[0]}
    row |= {"file_mib": file.stat().st_size >> 20}
    for who, measured in turns.items():
        wall_s, cpu_s, peak_kib = (median(values) for values in zip(*measured[1:], strict=True))
        row |= {
            f"{who}_wall_s": round(wall_s, 3),
            f"{who}_cpu_s": round(cpu_s, 3),
            f"{who}_mib": round(peak_kib / 1024),
        }
    return row


def _change_weights(model: onnx.ModelProto) -> None:
    """Change the numbers of each float matrix and filter."""
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1:
            array = numpy_helper.to_array(tensor) * _OTHER_WEIGHTS
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _timed_run(
    path: Path, options: Sequence[str], caches: Mapping[str, str]
) -> tuple[float, float, dict[str, Any]]:
    """Return the seconds and processor seconds of a command, and its JSON."""
    begin, before = time.monotonic(), os.times()
    ran = heteroplace_run(path, [*options, "--runs", "1", "--stages"], caches)
    wall_s, after = time.monotonic() - begin, os.times()
    user_s = after.children_user - before.children_user
    return wall_s, user_s + after.children_system - before.children_system, ran


def _measured(program: str, *arguments: Path) -> list[float]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    numbers: list[float] = json.loads(done.stdout)
    return numbers


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text: first results with their stages, and loading."""
    firsts = {
        "name": "network",
        "first_s": "s to the first result",
        "first_cpu_s": "CPU s",
        **{f"{name}_s": name for name in _STAGES},
        "same_shapes_s": "s, known shapes",
        "again_s": "s, again",
    }
    loads = {"name": "network", "file_mib": "file MiB"}
    loads |= {
        f"{who}_{key}": f"{who} {title}"
        for key, title in (("wall_s", "s"), ("cpu_s", "CPU s"), ("mib", "MiB"))
        for who in ("ours", "onnxruntime")
    }
    return f"{row_table(rows, firsts, num_names=1)}\n\n{row_table(rows, loads, num_names=1)}"
