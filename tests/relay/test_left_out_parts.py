"""A network written in Relay compiles and runs where the folders of parts are missing."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

class Without:
    # A finder that does not find the parts.
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("heteroplace.parts.onnx", "heteroplace.parts.hosts")):
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import numpy as np
import tvm
from tvm import relay
import heteroplace
from heteroplace.errors import HeteroPlaceError
from heteroplace.frontends import frontend_of
from heteroplace.run.transport import host_transport, launched_transport

x = relay.var("x", shape=(1, 8))
weight = relay.const(np.eye(8, dtype="float32") * 2)
mod = tvm.IRModule.from_expr(relay.Function([x], relay.nn.relu(relay.nn.dense(x, weight))))
executable = heteroplace.build(mod, "local", costs="estimate")
executable.export_library("model.so")
for executor in (heteroplace.Executor(executable), heteroplace.load("model.so")):
    (output,) = executor.run(x=np.full((1, 8), 3.0, "float32"))
    assert (output == 6).all()
assert launched_transport() is None
for refused in (
    lambda: heteroplace.build(mod, "local", costs="estimate", verify="on"),
    lambda: frontend_of("model.onnx"),
    host_transport,
    lambda: heteroplace.frontend,
):
    try:
        refused()
    except HeteroPlaceError as error:
        print(type(error).__name__, error)
assert not any(name.startswith(("heteroplace.parts.onnx", "onnx")) for name in sys.modules)
"""


def test_a_relay_network_runs_without_the_parts_onnx_and_hosts(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    verify, frontend, transport, public = done.stdout.splitlines()
    assert verify.startswith("VerificationError verify='on' cannot be done: no installed package")
    assert frontend.startswith("MissingPackageError model.onnx: no installed package reads models")
    assert transport.startswith("MissingPackageError several hosts need a transport")
    assert public.startswith("PluginError the entry point 'frontend'")
