"""The core without the part `routing`: plain networks are placed and built, routed ones refused."""

from __future__ import annotations

from tests.programs import run_python

PROGRAM = """
from heteroplace import registry

left = tuple(each for each in registry._of_parts() if "parts.routing" not in each.value)
registry._of_parts = lambda: left  # as where its folder was left out

import numpy as np
import tvm
from tvm import relay
import heteroplace
from heteroplace.errors import PluginError

data = relay.var("x", shape=(1, 8))
weight = relay.const(np.ones((8, 8), "float32"))
layer = relay.nn.relu(relay.nn.dense(data, weight))
plain = tvm.IRModule.from_expr(relay.Function([data], layer))
with tvm.transform.PassContext(opt_level=3):
    executable = heteroplace.build(plain, "local", costs="estimate")
(output,) = heteroplace.Executor(executable).run({"x": np.ones((1, 8), "float32")})
print(output.sum())

chooses = relay.var("chooses", shape=(), dtype="bool")
branching = tvm.IRModule.from_expr(relay.Function([data, chooses], relay.If(chooses, layer, data)))
for fails in (lambda: heteroplace.build(branching, "local"), lambda: heteroplace.routing):
    try:
        fails()
    except PluginError as fault:
        print(fault)
"""


def test_only_networks_with_branches_need_the_part() -> None:
    total, build_fault, name_fault = run_python(PROGRAM, "-W", "ignore").splitlines()
    assert float(total) == 64.0
    assert "registers 'without-ifs' in the group 'heteroplace.routers'" in build_fault
    assert "registers 'routing' in the group 'heteroplace.public_names'" in name_fault
