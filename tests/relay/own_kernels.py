"""Networks with our kernels, held against numpy in 64 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import tvm
from numpy_relay import run_by_numpy
from relay_models import TARGET, compiled_of, cpu_cluster, extraction_of, module, random_costs
from tvm import relay
from tvm.contrib import graph_executor

import heteroplace as hp
from heteroplace.lower.kernels import Kernel
from heteroplace.parts.kernels.cpu.own_schedules import register_schedules
from heteroplace.place_options import KERNELS
from heteroplace.relay.targets import kernel_target

MAX_ERROR = 1e-5
"""Of the largest output."""
AVX2 = "llvm -mcpu=haswell"
"""The target of processors with vectors of 8 numbers."""


def check_schedules(
    mod: tvm.IRModule, inputs: Mapping[str, np.ndarray], least_scale: float = 0.0
) -> None:
    """Compile a module with our schedules by TVM alone; its outputs are near those of numpy, and
    the same bits in a second run.

    `least_scale`: what the largest of an output counts as at least.
    """
    register_schedules()
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target=kernel_target(tvm.target.Target(TARGET)))
    running = graph_executor.GraphModule(library["default"](tvm.cpu()))
    for index, expected in enumerate(run_by_numpy(mod, _in_64_bits(inputs))):
        running.run(**inputs)
        found = running.get_output(index).numpy()
        check_near(found, expected, least_scale)
        running.run(**inputs)
        assert running.get_output(index).numpy().tobytes() == found.tobytes()


def check_by_all_kernels(mod: tvm.IRModule, inputs: Mapping[str, np.ndarray]) -> None:
    """Build a network of one output with each of KERNELS; it is near that of numpy."""
    (expected,) = run_by_numpy(mod, _in_64_bits(inputs))
    for kernels in KERNELS:
        with tvm.transform.PassContext(opt_level=3):
            executable = hp.build(
                mod, cpu_cluster(), costs=random_costs, solver="heft", kernels=kernels
            )
        (found,) = hp.Executor(executable).run(**inputs)
        check_near(found, expected)


def lowered_for_avx2(
    body: relay.Expr, x: relay.Var, disabled_pass: Sequence[str] = ()
) -> Sequence[Kernel]:
    """The lowered kernels of a network of one input for processors with vectors of 8 numbers."""
    target = str(kernel_target(tvm.target.Target(AVX2)))
    cluster = cpu_cluster()
    devices = tuple(replace(device, target=target) for device in cluster.devices)
    compiled = compiled_of(extraction_of(module([x], body)))
    placement = [0] * len(compiled.graph.tasks)
    with tvm.transform.PassContext(opt_level=3, disabled_pass=disabled_pass):
        return list(compiled.calls(replace(cluster, devices=devices), placement).kernels.values())


def check_near(found: np.ndarray, expected: np.ndarray, least_scale: float = 0.0) -> None:
    """Fail where an output is further from what is expected than MAX_ERROR."""
    scale = max(least_scale, np.abs(expected).max())
    assert np.abs(found - expected).max() <= MAX_ERROR * scale


def _in_64_bits(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.astype("float64") for name, array in inputs.items()}
