"""`run --efforts`: what `--effort quick`, `normal` and `best` take, and how fast what they make is.

Each network is compiled by `heteroplace run` in processes of its own, from empty caches. The three
files then run in turns in this process.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import onnx

import heteroplace
from benchmarks.row_table import row_table
from benchmarks.run.placing import NETWORKS, SMALL, caches_in, heteroplace_run, milliseconds
from heteroplace.effort_option import EFFORTS, NORMAL
from heteroplace.measure.timed_runs import Timer, time_in_turns, time_runs
from heteroplace.progress import prefixed
from zoo.models.catalogue import SMALLEST, matching_names, onnx_model_of

_PLACED = ("wired", "inception_v1", "inception_v2", "shufflenet", "squeezenet", "resnet50")
_OTHERS = ("mobilenet_v3_large", "efficientnet_b0", "bert_base", "lstm_tagger")
_NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    **{name: NETWORKS[name] for name in _PLACED},
    **{name: partial(onnx_model_of, name) for name in _OTHERS},
}


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    for name in matching_names(only, tuple(_NETWORKS)):
        make = SMALL if name == SMALLEST else _NETWORKS[name]
        with tempfile.TemporaryDirectory() as folder:
            yield _row(name, make(), Path(folder), prefixed(say, name))


def _row(
    name: str, model: onnx.ModelProto, folder: Path, say: Callable[[str], None]
) -> dict[str, object]:
    path = folder / "model.onnx"
    onnx.save(model, path)
    row: dict[str, object] = {"name": name}
    timers: dict[str, Timer] = {}
    for effort in EFFORTS:
        say(f"compiling, effort {effort}")
        caches, begin = caches_in(folder, effort), time.monotonic()
        ran = heteroplace_run(path, ["--effort", effort, "--runs", "1"], caches)
        row |= {
            f"{effort}_s": round(time.monotonic() - begin, 1),
            f"{effort}_devices": len(ran["solution"]["devices_used"]),
        }
        timers[effort] = _timer(Path(str(ran["file"])))
    say("measuring in turns")
    timed = time_in_turns(timers)
    times = {effort: timed.median_ns(effort) for effort in EFFORTS}
    for effort in EFFORTS:
        row[f"{effort}_ms"] = milliseconds(times[effort])
    row["quick_to_normal"] = round(times["quick"] / times[NORMAL], 3)
    row["normal_to_best"] = round(times[NORMAL] / times["best"], 3)
    return row


def _timer(file: Path) -> Timer:
    executor = heteroplace.load(file)
    inputs = {name: np.ones(shape, dtype) for name, shape, dtype in executor.inputs}
    return partial(time_runs, partial(executor.run, inputs))


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text, and the geometric means of the ratios."""
    columns = {"name": "network"}
    for effort in EFFORTS:
        columns |= {f"{effort}_s": f"{effort} s", f"{effort}_ms": "ms"}
        columns[f"{effort}_devices"] = "devices"
    ratios = {"quick_to_normal": "quick / normal", "normal_to_best": "normal / best"}
    text = row_table(rows, {**columns, **ratios})
    means = [
        f"{head}: {geometric_mean(float(str(row[key])) for row in rows):.3f}"
        for key, head in ratios.items()
    ]
    return f"{text}\n\ngeometric means: {', '.join(means)}"
