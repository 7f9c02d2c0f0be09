"""How many of our own modules a plain Relay network loads, and which parts it leaves alone.

Empty files, which only mark a folder as a package, do not count.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from c_programs import convolutions

PROGRAM = """
import os
import sys
import numpy as np
import tvm
from tvm import relay
import heteroplace
import heteroplace.pipeline
own = lambda: {
    name for name, module in sys.modules.items()
    if name.startswith("heteroplace") and os.path.getsize(module.__file__)
}
imported = own()
x = relay.var("x", shape=(1, 8))
weight = relay.const(np.ones((8, 8), "float32"))
body = relay.nn.relu(relay.nn.dense(relay.nn.relu(relay.nn.dense(x, weight)), weight))
heteroplace.build(tvm.IRModule.from_expr(relay.Function([x], body)), "local", costs="estimate")
print(len(imported), len(own()), *sorted(own()))
"""
MAX_IMPORTED, MAX_BUILT = 236, 298
"""Lower them when a change loads fewer modules. The aim is 250 for both."""
NOT_LOADED = (
    "heteroplace.cli",
    "benchmarks",
    "heteroplace.parts.onnx.verify",
    "heteroplace.parts.hosts.ranked_executor",
    "heteroplace.parts.parallel.sharding",
    "heteroplace.parts.kernels.tuned",
    "heteroplace.parts.kernels.nvidia",
    "heteroplace.parts.onnx.importer",
    "heteroplace.parts.onnx.converters",
    "heteroplace.solve.solve_report",
    "heteroplace.solve.coarsened",
    "heteroplace.parts.throughput.batched.list_solver",
    "heteroplace.parts.throughput.steady_state",
    "heteroplace.solve.lp",
    "heteroplace.costs.store",
    "heteroplace.measure.profile",
    "heteroplace.lower.items",
    "heteroplace.report",
    "heteroplace.parts.routing",
)
"""Modules and packages of parts that a plain network does not use."""
LOADED = {"heteroplace.parts.routing.added_stages"}
"""The list of stages that a part adds, which says when they apply."""


def test_a_plain_network_loads_no_part_that_it_does_not_use() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    imported, built, *names = done.stdout.split()
    loaded = [name for name in names if name.startswith(NOT_LOADED) and name not in LOADED]
    assert not loaded, loaded
    assert int(imported) <= MAX_IMPORTED
    assert int(built) <= MAX_BUILT


def test_the_version_is_printed_without_any_command() -> None:
    program = """
import sys
from heteroplace.cli.main import main
try:
    main(["--version"])
finally:
    print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    version, modules = done.stdout.splitlines()
    assert version.startswith("heteroplace ")
    assert not {"numpy", "heteroplace.solve", "heteroplace.place_options"} & set(modules.split())
    assert sum(name.startswith("heteroplace") for name in modules.split()) <= 30


RUNS = """
import sys
import numpy as np
import heteroplace
executor = heteroplace.load(sys.argv[1])
executor.run({name: np.ones(shape, dtype) for name, shape, dtype in executor.inputs})
print(*sys.modules)
"""
MAX_LOADED = 50
"""Of our own modules, to load a file and run it."""


def test_a_compiled_file_is_run_without_tvm_and_without_what_compiles(tmp_path: Path) -> None:
    file, _ = convolutions(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", RUNS, file], capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.split())
    packages = ("tvm", "psutil", "heteroplace.pipeline", "heteroplace.lower", "heteroplace.solve")
    loaded = [name for name in modules if name.startswith(packages)]
    assert not loaded, loaded
    assert sum(name.startswith("heteroplace.") for name in modules) <= MAX_LOADED
