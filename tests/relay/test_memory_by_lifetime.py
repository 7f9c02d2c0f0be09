"""A deep network that fits its memories only because tensors are freed: placed, built and run."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relay_models import (
    TARGET,
    conv,
    cores,
    module,
    random_costs,
    random_inputs,
    stock_outputs,
    var,
)
from tvm import relay

import heteroplace
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.memory_use.memory import plan_memory_use
from heteroplace.run.executor import Executor

NUM_LAYERS = 12
LIMIT_BYTES = 250_000

needs_two_cores = pytest.mark.skipif(len(cores()) < 2, reason="two devices need two cores")


def two_memories(num_bytes: int) -> Cluster:
    """Two cores, each with a memory of its own."""
    devices = tuple(
        Device(f"cpu.{n}", "cpu", TARGET, 0, n, (core,)) for n, core in enumerate(cores())
    )
    memories = (Memory("ram0", num_bytes), Memory("ram1", num_bytes))
    links = (Link("up", 0, 1, 10**10, 100, "up"), Link("down", 1, 0, 10**10, 100, "down"))
    return Cluster("numa", memories, devices, links, 0)


def deep_network() -> tvm.IRModule:
    """Layers of 64 KiB each: together more than both memories, two at a time far less."""
    x = var("x", (1, 4, 64, 64))
    value = x
    for _ in range(NUM_LAYERS):
        value = relay.nn.relu(conv(value, 4, 4, 1)) * relay.const(0.3)
    return module([x], value)


@pytest.mark.costly(5)
@pytest.mark.parametrize(
    "options",
    [
        {"solver": "heft"},
        pytest.param({"solver": "search", "iterations": 2000}, marks=pytest.mark.slow),
        pytest.param({"solver": "single"}, marks=pytest.mark.slow),
    ],
    ids=lambda options: options["solver"],
)
@needs_two_cores
def test_a_network_that_fits_by_lifetime_only_is_placed_built_and_run(
    options: dict[str, object],
) -> None:
    mod, cluster = deep_network(), two_memories(LIMIT_BYTES)
    with tvm.transform.PassContext(opt_level=3):
        placed = relay.transform.HeteroPlace(cluster, costs=random_costs, **options)(mod)
        executable = heteroplace.build(placed)
    solution = executable.solution
    used = plan_memory_use(solution.graph, cluster, solution.plan)
    assert any(num_bytes > LIMIT_BYTES for num_bytes in used)
    executor = Executor(executable)
    inputs = random_inputs(mod)
    (output,) = executor.run(**inputs)
    (expected,) = stock_outputs(mod, inputs)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)
    for use in executor.memory().values():
        assert use.total_bytes <= LIMIT_BYTES
