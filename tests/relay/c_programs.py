"""`heteroplace-run`, the C interface as it is installed, and networks for their tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import tvm
from relay_models import (
    cpu_cluster,
    extraction_of,
    fire_modules,
    module,
    random_devices,
    random_inputs,
    solution_of,
    var,
)
from tvm import relay

from heteroplace.hetero_place import build
from heteroplace.relay.annotate.writer import annotate
from tests.compiled_files import read_parts

PREFIX = Path(sys.prefix)
PROGRAM = Path(sysconfig.get_path("scripts")) / "heteroplace-run"
_TIME_LIMIT_S = 240


def export(
    mod: tvm.IRModule, path: Path, device: int | None = None, key: Path | None = None
) -> Path:
    """Compile a module, placed by chance on two cores, or on one device; sign it by a key."""
    cluster = cpu_cluster()
    extraction = extraction_of(mod)
    devices = random_devices(extraction, cluster, 1)
    if device is not None:
        devices = [device for _ in devices]
    with tvm.transform.PassContext(opt_level=3):
        placed = annotate(extraction, solution_of(extraction, cluster, devices))
        build(placed).export_library(path, sign_with=key)
    return path


def convolutions(
    folder: Path, device: int | None = None, key: Path | None = None
) -> tuple[Path, dict[str, np.ndarray]]:
    """A network in the manner of SqueezeNet, and inputs for it."""
    mod = fire_modules()
    return export(mod, folder / "convolutions.so", device, key), random_inputs(mod)


def sorting(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A network whose kernel calls a function of TVM."""
    mod = module([x := var("x", (2, 9), "float32")], relay.argsort(x, dtype="int32"))
    return export(mod, folder / "sorting.so"), random_inputs(mod)


def all_types(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """An output of each type of numpy, most of an input of that type; one is a scalar."""
    types = ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64")
    random = np.random.default_rng(0)
    inputs, values, results = [], {}, []
    for number, dtype in enumerate(types):
        shape = (2, 3) if number else ()
        x = var(dtype, shape, dtype)
        inputs.append(x)
        values[dtype] = np.asarray(random.integers(0, 2, shape)).astype(dtype)
        is_bool = dtype == "bool"
        results.append(relay.logical_not(x) if is_bool else relay.add(x, x))
    return export(module(inputs, relay.Tuple(results)), folder / "all_types.so"), values


def slow_steps(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """The same network on one device, which takes at least 20 ms for each step."""
    path, inputs = convolutions(folder, device=0)
    assert make_slow(path, step_ns=20_000_000) == 1
    return path, inputs


def make_slow(path: Path, step_ns: int) -> int:
    """Let each step of a compiled file take so long at least; return how many cores have steps."""
    parts = read_parts(path)
    queue = rb'queue 0 ("[^"]+") cpu 1 0 0 \d+'
    slow = rb"queue 0 \1 fake 1 0 0 %d" % step_ns
    program, count = re.subn(queue, slow, parts.program)
    program = re.sub(rb"\nworkspace [^\n]*", b"", program)  # only processors' cores have one
    path.write_bytes(replace(parts, program=program).sealed().to_bytes())
    return count


def make_state(path: Path) -> None:
    """Let runs of a compiled file replace its input `x` in place, as they do with weights."""
    parts = read_parts(path)
    found = re.search(rb"\ninput (\"?x\"?) (\d+)\n", parts.program)
    assert found is not None
    state = b"\\1output %s %s\n" % found.groups()
    program, count = re.subn(rb"(\noutput [^\n]*\n)", state, parts.program)
    assert count == 1
    path.write_bytes(replace(parts, program=program).sealed().to_bytes())


def save_inputs(folder: Path, inputs: Mapping[str, np.ndarray]) -> list[str]:
    """Write .npy files; return the options that name them."""
    options = []
    for name, array in inputs.items():
        np.save(folder / f"{name}.npy", array)
        options += ["--input", f"{name}={folder / f'{name}.npy'}"]
    return options


def run_program(
    *arguments: str | Path, program: Path = PROGRAM, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program with no environment but the given one: no PATH, so no interpreter."""
    return subprocess.run(
        [program, *map(os.fspath, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=_TIME_LIMIT_S,
    )
