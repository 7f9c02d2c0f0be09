"""`heteroplace-run`, the C interface as it is installed, and networks for their tests."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tvm
from relay_models import cpu_cluster, fire_modules, module, placed_randomly, random_inputs, var
from tvm import relay

from heteroplace.hetero_place import build

PREFIX = Path(sys.prefix)
PROGRAM = Path(sysconfig.get_path("scripts")) / "heteroplace-run"
_TIME_LIMIT_S = 240


def export(mod: tvm.IRModule, path: Path) -> Path:
    """Compile a module, placed by chance on two cores."""
    with tvm.transform.PassContext(opt_level=3):
        build(placed_randomly(mod, cpu_cluster(), 1)).export_library(path)
    return path


def convolutions(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A network in the manner of SqueezeNet, and inputs for it."""
    return export(fire_modules(), folder / "convolutions.so"), random_inputs(fire_modules())


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


def long_chain(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Sixty steps of some milliseconds each: it does not end in the time that a test gives it."""
    size = 640
    x = var("x", (size, size))
    value: relay.Expr = x
    weight = relay.const(np.full((size, size), 1 / size, "float32"))
    for _ in range(60):
        value = relay.nn.dense(value, weight)
    return export(module([x], value), folder / "long.so"), {"x": np.ones((size, size), "float32")}


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
