"""`run --placing`: what placing gains: our plan, the best single device, other runtimes, in turns.

Each network is an ONNX file that `heteroplace run --compare` runs in a process of its own, with all
cores. OpenVINO computes in its default precision, and in float32.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import onnx

from benchmarks.row_table import row_table
from heteroplace.costs.store import PATH_VARIABLE
from heteroplace.errors import HeteroPlaceError
from heteroplace.parts.onnx.prepare.onnx_weights import light_model
from zoo.models.catalogue import SMALLEST, matching_names
from zoo.models.wired import wired_onnx
from zoo.trained import trained_model

_TRAINED = (
    *("ppocr_direction", "ppocr_detection", "ppocr_recognition", "magika", "nudenet"),
    *("ddddocr_common", "tashkeel_bilstm"),
)
_LIGHT = ("inception_v1", "inception_v2", "shufflenet", "squeezenet", "resnet50")
NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "wired": wired_onnx,
    **{name: partial(light_model, name) for name in _LIGHT},
    **{name: partial(trained_model, name) for name in _TRAINED},
}
"""A randomly wired network, some of the onnx wheel with random weights, and trained ones."""
SMALL = partial(wired_onnx, nodes=6, channels=4, size=4)
_RUNTIMES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "openvino-float32": "openvino"}
"""Their packages by the names that --compare takes."""


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    is_installed = {name: importlib.util.find_spec(name) is not None for name in _RUNTIMES.values()}
    peers = [name for name, package in _RUNTIMES.items() if is_installed[package]]
    for name in matching_names(only, tuple(NETWORKS)):
        say(f"{name}: compiling and measuring")
        make = SMALL if name == SMALLEST else NETWORKS[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.onnx"
            onnx.save(make(), path)
            words = ["--compare", ",".join(["single", *peers])]
            yield row_of(name, heteroplace_run(path, words))


def heteroplace_run(
    path: Path, words: Sequence[str], variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the JSON of `heteroplace run`.

    Parameters
    ----------
    variables
        Of the environment, in addition to this process's.

    Raises
    ------
    HeteroPlaceError
        The command failed; the text is its own.
    """
    command = [sys.executable, "-m", "heteroplace.cli.main", "run", str(path), *words]
    finished = subprocess.run(
        [*command, "--json", "--quiet"],
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise HeteroPlaceError(f"{path.stem}: {finished.stderr.strip()}")
    value: dict[str, Any] = json.loads(finished.stdout)
    return value


def caches_in(folder: Path, name: str = "caches") -> dict[str, str]:
    """Return variables by which the store of costs and all compiled models lie in a folder, under
    a name."""
    return {
        PATH_VARIABLE: str(folder / f"{name}.sqlite"),
        "HETEROPLACE_MODELS": str(folder / name),
    }


def compared_times(value: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what a run was compared with, by name."""
    return {each["name"].partition(",")[0]: each for each in value["compared"]}


def row_of(name: str, value: Mapping[str, Any]) -> dict[str, object]:
    """Return the figures of one network; times in ms, all measured but `predicted_ms`.

    `gain` is the time of the best single device over that of the plan. `possible` is the largest
    gain that the lower bound allows, by prediction.
    """
    solution, times = value["solution"], compared_times(value)
    single = times["the best single device"]
    singles = solution["expected_singles_ns"]
    row: dict[str, object] = {
        "name": name,
        "devices_used": solution["devices_used"],
        "plan_ms": milliseconds(single["ours_ns"]),
        "predicted_ms": milliseconds(solution["expected_ns"]),
        "single_ms": milliseconds(single["peer_ns"]),
        "gain": round(single["speedup"], 3),
        "possible": None,
        "others_cores": round(float(str(value["others_cores"])), 2),
    }
    if singles and solution["objective_bound_ns"]:
        left = solution["objective_ns"] / solution["objective_bound_ns"]
        row["possible"] = round(min(singles.values()) / solution["expected_ns"] * left, 3)
    for runtime in _RUNTIMES:
        peer, key = times.get(runtime), runtime.replace("-", "_")
        row[f"{key}_ms"] = peer and milliseconds(peer["peer_ns"])
        row[f"{key}_speedup"] = peer and round(peer["speedup"], 3)
        row[f"{key}_precision"] = peer and (peer["precision"] or "f32")
    return row


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text, and the geometric means of the gains."""
    columns = {
        "name": "network",
        "devices_used": "devices used",
        "single_ms": "best device",
        "plan_ms": "plan",
        "predicted_ms": "predicted",
        "gain": "gain",
        "possible": "possible",
        "onnxruntime_ms": "onnxruntime",
        "onnxruntime_speedup": "over it",
        "openvino_ms": "OpenVINO",
        "openvino_precision": "in",
        "openvino_speedup": "over it",
        "openvino_float32_ms": "OpenVINO f32",
        "openvino_float32_speedup": "over it",
        "others_cores": "busy cores",
    }
    lines = [row_table(rows, columns, num_names=2)]
    for key, what in (
        ("gain", "the best single device"),
        ("onnxruntime_speedup", "onnxruntime"),
        ("openvino_speedup", "OpenVINO"),
        ("openvino_float32_speedup", "OpenVINO in float32"),
    ):
        values = [float(str(row[key])) for row in rows if row[key] is not None]
        if values:
            lines.append(f"{geometric_mean(values):.2f}x as fast as {what} (geometric mean)")
    return "\n".join(lines)


def milliseconds(ns: float) -> float:
    """Return a time in ms, in steps of 0.1 us."""
    return round(ns / 1e6, 4)
