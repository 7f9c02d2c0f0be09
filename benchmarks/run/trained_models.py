"""`run --trained`: trained models from wheels, as a user has them, beside onnxruntime.

`heteroplace run` compiles each file by default options in a process of its own, with empty stores:
these are the seconds to the first result. A second process times calls in turns with those of
onnxruntime, which has its default settings and as many threads, and of the best single device.
Outputs are those that were verified against onnxruntime when the file was compiled.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean

import onnx

from benchmarks.row_table import row_table
from benchmarks.run.placing import SMALL, caches_in, compared_times, heteroplace_run, milliseconds
from heteroplace.errors import HeteroPlaceError
from heteroplace.native.compiled_file import CompiledFile
from heteroplace.progress import prefixed
from zoo.models.catalogue import SMALLEST, matching_names
from zoo.trained import TRAINED

_RIGHT = "equal"


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the models whose name matches the regular expression `only`; yield the rows."""
    for name in matching_names(only, tuple(TRAINED)):
        with tempfile.TemporaryDirectory() as folder:
            try:
                yield _row(name, Path(folder), prefixed(say, name))
            except HeteroPlaceError as fault:
                yield {"name": name, "result": str(fault).splitlines()[-1]}


def _row(name: str, folder: Path, say: Callable[[str], None]) -> dict[str, object]:
    """Measure one model; times in ms but `first_result_s`."""
    path = folder / f"{name}.onnx"
    if name == SMALLEST:
        onnx.save(SMALL(), path)
        words: list[str] = []
    else:
        say("downloading")
        path.write_bytes(TRAINED[name].content())
        words = input_options(name)
    caches = caches_in(folder)
    say("compiling")
    begin = time.monotonic()
    ran = heteroplace_run(path, [*words, "--runs", "1"], caches)
    row: dict[str, object] = {"name": name, "first_result_s": round(time.monotonic() - begin, 1)}
    verified = CompiledFile(Path(str(ran["file"]))).manifest().verification
    assert verified is not None  # commands verify by default
    row["result"] = verified.note or _RIGHT
    row |= {"difference": verified.max_relative_difference, "tolerance": verified.tolerance}
    say("measuring")
    value = heteroplace_run(path, [*words, "--compare", "single,onnxruntime"], caches)
    times = compared_times(value)
    peer = times["onnxruntime"]
    return row | {
        "ours_ms": milliseconds(peer["ours_ns"]),
        "onnxruntime_ms": milliseconds(peer["peer_ns"]),
        "ratio": round(1 / peer["speedup"], 3),
        "difference_measured": peer["max_difference"],
        "gain": round(times["the best single device"]["speedup"], 3),
        "devices_used": value["solution"]["devices_used"],
        "onnxruntime": peer["version"],
        "others_cores": round(float(str(value["others_cores"])), 2),
    }


def input_options(name: str) -> list[str]:
    """Return the options that fix open sizes, and inputs that decide a branch."""
    model, words = TRAINED[name], []
    for key, shape in model.shapes.items():
        words += ["--input", f"{key}={','.join(map(str, shape))}"]
    for key, number in model.values.items():
        words += ["--fix", f"{key}={number}"]
    return words


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text, and the geometric mean of the ratios."""
    columns = {
        "name": "model",
        "devices_used": "devices used",
        "ours_ms": "ours",
        "onnxruntime_ms": "onnxruntime",
        "ratio": "ours / onnxruntime",
        "gain": "gain of placing",
        "first_result_s": "s to the first result",
        "difference": "difference",
        "tolerance": "allowed",
        "others_cores": "busy cores",
        "result": "result",
    }
    lines = [row_table(rows, columns, num_names=2)]
    ratios = [float(str(row["ratio"])) for row in rows if "ratio" in row]
    if ratios:
        lines.append(
            f"{len(ratios)} of {len(rows)} run; ours / onnxruntime: {geometric_mean(ratios):.3f} "
            f"(geometric mean), at worst {max(ratios):.3f}"
        )
    return "\n".join(lines)
