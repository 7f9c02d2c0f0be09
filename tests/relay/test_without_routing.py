"""The core without the part `routing`: plain networks are placed and built, routed ones refused."""

from __future__ import annotations

from tests.programs import run_python

PROGRAM = """
import sys

class Hidden:
    '''Finds everything but the part, as where its folder was left out.'''

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.startswith("heteroplace.parts.routing"):
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path = [Hidden(finder) for finder in sys.meta_path]

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
    assert "'without-ifs' of the group 'heteroplace.routers' cannot be loaded" in build_fault
    assert "'routing' of the group 'heteroplace.public_names' cannot be loaded" in name_fault
