"""Routers that differ by their names, and their ops, share kernels; errors say which it was."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, module, var
from routed_models import routed_executable
from tvm import relay

from heteroplace.errors import ExecutionError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.nameless import nameless
from heteroplace.parts.routing.relay import ops
from heteroplace.parts.routing.relay.router import RouterOptions
from heteroplace.relay.tasks.network import cut_network
from heteroplace.run.executor import Executor

pytestmark = pytest.mark.relay


def _chosen(x: relay.Expr, mask: relay.Expr, name: str) -> relay.Expr:
    """x or twice x, as the mask says."""
    _, loads, _ = ops.router(mask, RouterOptions(name, ((1,),) * 2, 1))
    plain, twice = [ops.enter_branch(x, loads, name, branch) for branch in range(2)]
    return ops.select([relay.tanh(plain), relay.sigmoid(twice)], loads, name)


def _two_routers() -> tvm.IRModule:
    x, first, second = var("x", (4, 3)), var("a", (1, 2), "int32"), var("b", (1, 2), "int32")
    return module([x, first, second], _chosen(_chosen(x, first, "one"), second, "two"))


def test_two_routers_and_their_selects_are_one_kernel_each() -> None:
    network = cut_network(_two_routers())
    calls = CompiledNetwork.of(network).calls(cpu_cluster(), [0] * len(network.graph.tasks))
    texts = [calls.kernels[call.kernel].op for call in calls.calls]
    selects = {call.kernel for call in calls.calls if "select" in call.kernel}
    routers = {call.kernel for call in calls.calls if "router" in call.kernel}
    assert sum("heteroplace.select" in text for text in texts) == 2
    assert (len(selects), len(routers)) == (1, 1)


def test_a_router_of_a_shared_kernel_decides_and_refuses_by_its_own_name() -> None:
    executor = Executor(routed_executable(_two_routers()))
    x = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
    one = [np.eye(2, dtype="int32")[[taken]] for taken in range(2)]
    for first in range(2):
        for second in range(2):
            expected = x
            for taken in (first, second):
                expected = 1 / (1 + np.exp(-expected)) if taken else np.tanh(expected)
            (found,) = executor.run({"x": x, "a": one[first], "b": one[second]})
            np.testing.assert_allclose(found, expected, rtol=1e-5)
    good, wrong = one[0], np.array([[1, 1]], "int32")
    for name, masks in (("two", {"a": good, "b": wrong}), ("one", {"a": wrong, "b": good})):
        said = f"of router '{name}': Assert fail: .*, its mask gives a cell more than 1 branches"
        with pytest.raises(ExecutionError, match=said):
            executor.run({"x": x, **masks})


def test_other_functions_stay_as_they_are() -> None:
    x = relay.var("x", shape=(4,))
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x], relay.exp(x))))
    assert nameless(mod["main"]).same_as(mod["main"])
