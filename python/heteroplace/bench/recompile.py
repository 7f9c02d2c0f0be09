"""`bench recompile`: the second `tvmc compile` of a model, against the first.

Each round begins with an empty store of costs and compiles the model twice for the CPU of this
machine, each time in a new process as a user would: the first run measures all kernels, the second
finds them in the store. Wall and processor times are of whole processes, from start to end; ratios
are medians over the rounds. What the second run measured is counted in the store itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import onnx

from heteroplace.bench.models.catalogue import SMALLEST, matching_names, onnx_model_of
from heteroplace.bench.row_table import row_table
from heteroplace.costs.store import PATH_VARIABLE, CostStore
from heteroplace.costs.store_values import Row
from heteroplace.errors import HeteroPlaceError
from heteroplace.parts.onnx.prepare.onnx_weights import light_model_names

DEFAULT = "^(resnet50|squeezenet)$"
"""What is compiled without --only."""
NUM_ROUNDS = 3
"""Of every network but the smallest, which has one."""
_ERROR_LINES = 3


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    names = matching_names(only or DEFAULT, light_model_names())
    with tempfile.TemporaryDirectory(prefix="heteroplace-recompile-") as folder:
        for name in names:
            path = Path(folder, f"{name}.onnx")
            onnx.save(onnx_model_of(name), str(path))
            rounds = []
            num_rounds = 1 if name == SMALLEST else NUM_ROUNDS
            for index in range(num_rounds):
                say(f"{name}: round {index + 1} of {num_rounds}")
                rounds.append(_round(path))
            yield _row(name, rounds)


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text; times in seconds."""
    columns = {
        "name": "network",
        "kept": "measured by the first",
        "remeasured": "by the second",
        "first_wall_s": "first wall",
        "second_wall_s": "second wall",
        "wall_ratio": "ratio",
        "first_cpu_s": "first CPU",
        "second_cpu_s": "second CPU",
        "cpu_ratio": "ratio",
    }
    return row_table(rows, columns)


def _row(name: str, rounds: list[dict[str, float]]) -> dict[str, object]:
    row: dict[str, object] = {"name": name, "rounds": len(rounds)}
    row["kept"] = round(median(each["kept"] for each in rounds))
    row["remeasured"] = round(max(each["remeasured"] for each in rounds))
    for clock in ("wall", "cpu"):
        for which in ("first", "second"):
            row[f"{which}_{clock}_s"] = round(
                median(each[f"{which}_{clock}_s"] for each in rounds), 2
            )
        ratios = [each[f"second_{clock}_s"] / each[f"first_{clock}_s"] for each in rounds]
        row[f"{clock}_ratio"] = round(median(ratios), 3)
    return row


def _round(model: Path) -> dict[str, float]:
    """Compile twice with a new store."""
    store = model.with_suffix(".sqlite")
    for suffix in ("", "-wal", "-shm"):
        store.with_name(store.name + suffix).unlink(missing_ok=True)
    found: dict[str, float] = {}
    kept: list[list[Row]] = []
    for which in ("first", "second"):
        found |= {f"{which}_{clock}_s": value for clock, value in _compile(model, store).items()}
        with CostStore(store, is_made=False) as opened:
            kept.append(list(opened.rows()))
    # A kernel that is measured again has another row: at least its date is another one.
    found["kept"], found["remeasured"] = len(kept[0]), len(set(kept[1]) - set(kept[0]))
    return found


def _compile(model: Path, store: Path) -> dict[str, float]:
    """Run `tvmc compile`; return its wall and processor seconds.

    Raises
    ------
    HeteroPlaceError
        It failed.
    """
    output = model.with_suffix(".so")
    tvmc = Path(sys.executable).with_name("tvmc")
    command = [str(tvmc), "compile", str(model), "--placement", "local", "-o", str(output)]
    wall, cpu = time.perf_counter(), _children_cpu_s()
    done = subprocess.run(
        command,
        env=os.environ | {PATH_VARIABLE: str(store)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = " / ".join(done.stderr.strip().splitlines()[-_ERROR_LINES:])
        raise HeteroPlaceError(f"{' '.join(command)} failed: {last}")
    return {"wall": time.perf_counter() - wall, "cpu": _children_cpu_s() - cpu}


def _children_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system
