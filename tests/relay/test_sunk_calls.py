"""What only a branch needs of a task before it is done in the branch."""

from __future__ import annotations

import re

import numpy as np
import pytest
from relay_models import cpu_cluster, stock_outputs
from routed_models import costs_by_capacity

import heteroplace
from benchmarks.peers.stock import in_pass_context
from heteroplace.run.executor import Executor
from zoo.models.routed_vision import msdnet


def is_layout(kernel: str) -> bool:
    return re.fullmatch(r"tvmgen_default_fused_layout_transform(_\d+)?", kernel) is not None


@pytest.mark.costly(13)
def test_layouts_for_what_is_behind_an_exit_are_made_behind_it() -> None:
    network = msdnet((2, 2), size=8, width=16, classes=3)
    cluster = cpu_cluster()
    options = {"params": network.params, "costs": costs_by_capacity}
    with in_pass_context():
        executable = heteroplace.build(network.mod, cluster, **options)
    lines = [line.split() for line in executable.manifest.program_text.splitlines()]
    kernels = [fields[2] for fields in lines if fields[0] == "kernel"]
    before = [kernels[int(fields[3])] for fields in lines if fields[0] == "call"]
    behind = [
        kernels[int(fields[7].partition("=")[2].partition("(")[0])]
        for fields in lines
        if fields[0] == "branch_call" and fields[3:5] == ["0", "1"]
    ]
    # Before the exit that of the input; behind it back from the first block, and to the second.
    assert [sum(map(is_layout, names)) for names in (before, behind)] == [1, 2]
    assert is_layout(behind[0])
    executor = Executor(executable)
    for leaves in (False, True):
        inputs = network.inputs(3)
        inputs["steer.exit0"][0, 0] = 1000.0 if leaves else -1000.0
        (found,) = executor.run(inputs)
        params = {name: value.numpy() for name, value in network.params.items()}
        (expected,) = stock_outputs(network.mod, inputs | params)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
