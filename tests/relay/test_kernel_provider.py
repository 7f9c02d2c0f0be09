"""Kernel providers: without any, TVM's own kernels run; with one, its passes have their places."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
from relay_models import conv, cpu_cluster, module, random_inputs, stock_outputs, var, weights
from tvm import relay

import heteroplace as hp
from heteroplace import forked_jobs, registry
from heteroplace.lower.kernel_provider import SegmentPasses
from heteroplace.relay.expressions import function_pass
from tests.package_copy import copy_package, run_python

pytestmark = pytest.mark.relay

WITHOUT_THE_PART = """
import sys
import numpy as np
import tvm
import heteroplace as hp
from heteroplace.errors import PluginError
from relay_models import cpu_cluster, random_inputs, stock_outputs
from test_kernel_provider import small_network

mod = small_network()
inputs = random_inputs(mod)
for options in ({}, {"kernels": "tvm"}, {"kernels": "best"}):
    with tvm.transform.PassContext(opt_level=3):
        built = hp.build(mod, cpu_cluster(), costs="estimate", **options)
    (output,) = hp.Executor(built).run(**inputs)
    (expected,) = stock_outputs(mod, inputs)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    assert b"heteroplace_packed_matmul" not in built.library.image
try:
    hp.tune
except PluginError as err:
    print(err)
print(*sys.modules)
"""


def small_network() -> tvm.IRModule:
    """A convolution that Winograd's algorithm suits, and products of matrices."""
    x = var("x", (1, 32, 20, 22))
    pooled = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(relay.nn.relu(conv(x, 32, 32))))
    product = relay.nn.matmul(pooled, relay.transpose(weights(8, 32)))
    return module([x], relay.nn.softmax(relay.exp(product)))


@pytest.mark.costly(20)
def test_without_the_part_networks_have_the_kernels_of_tvm(tmp_path: Path) -> None:
    here = Path(__file__).parent
    folders = [copy_package(tmp_path, "parts/kernels"), here, here.parents[1]]
    done = run_python(folders, ["-c", WITHOUT_THE_PART], tmp_path)
    assert done.returncode == 0, done.stderr
    message, modules = done.stdout.splitlines()
    assert message.startswith("no installed package registers 'tune' in the group")
    assert not [name for name in modules.split() if name.startswith("heteroplace.parts.kernels.")]


class NoisyProvider:
    """A provider without kernels, which records the kernels that it is asked for."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def register(self) -> None:
        self.events.append("register")

    def segment_passes(
        self,
        target: tvm.target.Target,
        shared: dict[Any, Any] | None,
        own_targets: Mapping[str, tvm.target.Target],
    ) -> SegmentPasses:
        def step(name: str) -> tuple[tvm.transform.Pass]:
            def run(function: relay.Function) -> relay.Function:
                ops = ",".join(
                    sorted(relay.analysis.list_op_freqs(tvm.IRModule.from_expr(function)))
                )
                self.events.append(f"{name}: {ops}")
                return function

            return (function_pass(name, run),)

        return SegmentPasses(step("before_legalize"), step("before_layouts"), step("after_layouts"))

    def finish(self, functions: tvm.IRModule, function: relay.Function) -> tvm.IRModule:
        self.events.append("finish")
        return functions

    def with_held_weights(self, network: Any, cluster: Any) -> Any:
        self.events.append("held")
        return network


def test_the_passes_of_a_provider_run_at_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_jobs, "usable_cores", lambda: 1)  # a fork's events are not seen
    provider = NoisyProvider()
    plugins = registry.plugins

    def only_noisy(seam: str, **options: bool) -> Mapping[str, Any]:
        entry = SimpleNamespace(load=lambda: provider, module="noisy", value="noisy:PROVIDER")
        return {"noisy": entry} if seam == "kernel_providers" else plugins(seam, **options)

    monkeypatch.setattr(registry, "plugins", only_noisy)
    x = var("x", (1, 16, 8, 8))
    mod = module([x], relay.nn.relu(conv(x, 16, 16)))
    inputs = random_inputs(mod)
    with tvm.transform.PassContext(opt_level=3):
        built = hp.build(mod, cpu_cluster(), costs="estimate")
    (output,) = hp.Executor(built).run(**inputs)
    np.testing.assert_allclose(output, stock_outputs(mod, inputs)[0], rtol=1e-5, atol=1e-6)
    events = provider.events
    assert events[0] == "held"
    first = events.index("register")
    blocked = "layout_transform,nn.contrib_conv2d_NCHWc,nn.relu"
    assert events[first : first + 5] == [
        "register",
        "before_legalize: nn.conv2d,nn.relu",
        "before_layouts: nn.conv2d,nn.relu",
        f"after_layouts: {blocked}",
        "finish",
    ]
