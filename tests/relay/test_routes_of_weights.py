"""Routes are of a model with its weights, whether these are bound or given beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, module, random_inputs, var
from tvm import relay

import heteroplace
from benchmarks.conformance.worker import turn_by_turn
from heteroplace import routing
from heteroplace.errors import RoutingError
from heteroplace.relay.tasks.network import bound_module, cut_network
from heteroplace.run.executor import Executor

pytestmark = pytest.mark.costly
Params = dict[str, tvm.nd.NDArray]


def choice() -> tvm.IRModule:
    """An If of which a branch reads a weight that is a parameter."""
    x, w, c = var("x", (2, 8)), var("w", (8, 8)), var("c", (), "bool")
    return module([x, w, c], relay.If(c, relay.nn.dense(x, w), relay.nn.relu(x)))


def routed() -> tvm.IRModule:
    """A router over a whole tensor, a branch with a weight that is a parameter."""
    x, w, mask = var("x", (1, 8)), var("w", (8, 8)), var("mask", (1, 2), "int32")
    cells = routing.annotate_cell(x, dims=(0,), shape=(1, 8))
    branches = [lambda rows: relay.nn.dense(rows, w), relay.nn.relu]
    y = routing.route(cells, routing.from_mask(mask, 1), branches, name="r")
    return module([x, w, mask], y)


def params(seed: int) -> Params:
    values = np.random.default_rng(seed).standard_normal((8, 8)).astype("float32")
    return {"w": tvm.nd.array(values)}


def recorded(executable: heteroplace.Executable, mod: tvm.IRModule, path: Path) -> Path:
    """A recording of some runs."""
    executor = Executor(executable)
    given = {**random_inputs(mod), "c": np.array(True), "mask": np.array([[1, 0]], "int32")}
    names = {each.name_hint for each in mod["main"].params} - {"w"}
    with executor.record(path):
        for _ in range(3):
            executor.run({name: given[name] for name in sorted(names)})
    return path


@pytest.mark.parametrize("make", [choice, routed])
def test_routes_are_taken_with_the_weights_of_the_recording_only(
    make: object, tmp_path: Path
) -> None:
    mod, cluster = make(), cpu_cluster()  # type: ignore[operator]
    asked = {"costs": turn_by_turn, "solver": "heft"}
    given = heteroplace.build(mod, cluster, params=params(0), **asked)
    bound = heteroplace.build(bound_module(mod, params(0)), cluster, **asked)
    for name, executable in (("given", given), ("bound", bound)):
        path = recorded(executable, mod, tmp_path / f"{name}.jsonl")
        heteroplace.build(mod, cluster, params=params(0), routes=path, **asked)
        heteroplace.build(bound_module(mod, params(0)), cluster, routes=path, **asked)
        with pytest.raises(RoutingError, match="is of a model with digest"):
            heteroplace.build(mod, cluster, params=params(1), routes=path, **asked)


def test_the_digest_is_that_of_the_weights() -> None:
    mod = routed()
    digests = [cut_network(mod, params(seed)).model_digest for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]
    assert cut_network(bound_module(mod, params(0))).model_digest == digests[0]
