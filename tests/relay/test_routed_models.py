"""The networks with routers of bench: they are what they say, and decide as they are steered."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from numpy_relay import run_by_numpy

from benchmarks.dynamic.bounds import active_bytes, branch_bytes, halves_of, is_bounded
from benchmarks.dynamic.trace_runs import TraceRuns
from heteroplace import routing
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.routing.dynamic.traces import TraceOptions, synthesise
from heteroplace.parts.routing.find.find_routers import find_routers
from heteroplace.parts.routing.relay.rewrite import routers_of
from heteroplace.pipeline import prepare
from heteroplace.relay.tasks.network import cut_network
from heteroplace.simulate.decisions import decisions_of_records
from zoo.models.routed import STEER, RoutedNetwork
from zoo.models.routed_catalogue import ROUTED
from zoo.models.routed_chain import routed_chain
from zoo.models.routed_experts import (
    swin_moe,
    switch,
    switch_layer,
    switch_layer_part,
    task_moe,
)
from zoo.models.routed_onnx import exits, masked_experts
from zoo.models.routed_vision import dynamic_routing, live_sr, msdnet

pytestmark = [pytest.mark.relay, pytest.mark.costly]

TINY: dict[str, Callable[[], RoutedNetwork]] = {
    "switch layer": lambda: switch_layer(tokens=6, width=4, hidden=8, experts=3, k=2),
    "switch": lambda: switch(layers=2, tokens=6, width=8, hidden=8, experts=3, heads=2),
    "swin": lambda: swin_moe(blocks=2, windows=2, window=3, width=8, experts=3, heads=2),
    "task": lambda: task_moe(layers=2, sentences=2, length=3, width=8, hidden=8, experts=4),
    "live": lambda: live_sr(patches=3, size=4, widths=(2, 3), depth=1),
    "msdnet": lambda: msdnet(size=8, width=2, classes=3),
    "dynamic": lambda: dynamic_routing(layers=2, scales=2, size=4, width=2),
}


@tvm.instrument.pass_instrument
class CountPasses:
    """How often each pass was run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def run_before_pass(self, _: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        self.counts[info.name] += 1


def num_python_calls(work: Callable[[], object]) -> int:
    """Calls of functions of Python: what is done, whatever the machine."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("name", TINY)
def test_networks_with_routers_equal_their_dense_form(name: str) -> None:
    network = TINY[name]()
    assert [router.options.name for router in routers_of(network.mod)] == [
        router.name for router in network.routers
    ]
    dense = routing.dense_masked(network.mod)
    options = TraceOptions(num_runs=2, top_k=network.top_k)
    params = {key: value.numpy() for key, value in network.params.items()}
    records = list(synthesise(network.routers, options))
    for run in range(2):
        given = network.steered([record for record in records if record.run == run], run)
        with np.errstate(all="ignore"):
            ours, expected = (run_by_numpy(mod, given | params) for mod in (network.mod, dense))
        np.testing.assert_allclose(ours[0], expected[0], rtol=1e-4, atol=1e-4)


def test_halves_of_a_layer_add_up_to_it() -> None:
    sizes = (6, 4, 8, 5, 2)
    whole = switch_layer(*sizes)
    runs = TraceRuns(whole, TraceOptions(num_runs=1))
    halves = halves_of(runs)
    assert sorted((*halves[0], *halves[1])) == list(range(5))
    params = {key: value.numpy() for key, value in whole.params.items()}
    (given,) = runs.inputs()
    found = np.zeros((6, 4))
    for branches in halves:
        half = switch_layer_part(*sizes, branches=branches)
        own = {key: params[key] for key in half.params}
        found += run_by_numpy(half.mod, given | own)[0] - given["x"]
    (expected,) = run_by_numpy(whole.mod, given | params)
    np.testing.assert_allclose(found + given["x"], expected, rtol=1e-4, atol=1e-4)


def test_weights_are_of_the_branches_that_are_active() -> None:
    runs = TraceRuns(switch_layer(8, 4, 8, 3, 1), TraceOptions(num_runs=4))
    each = 4 * (2 * 4 * 8 + 8 + 4)
    assert branch_bytes(runs.network) == [each] * 3
    active = sum(len(record.active) for record in runs.records) / 4
    assert active_bytes(runs) == round(active * each)


@pytest.mark.parametrize(("name", "expected"), [("switch_layer_small", True), ("live_sr", False)])
def test_bounds_are_told_of_equal_branches_alone(name: str, expected: bool) -> None:
    """A row of an unlike branch is no fixed part of the dense network."""
    assert is_bounded(TraceRuns(ROUTED[name](), TraceOptions(num_runs=1))) is expected


def test_the_grid_has_as_many_routers_as_that_of_its_source() -> None:
    assert len(dynamic_routing(size=8, width=1).routers) == 186


@pytest.mark.parametrize(
    "make",
    [
        lambda count: routed_chain(count, 2, 4),
        lambda count: dynamic_routing(count, 2, 4, 2),
    ],
    ids=["chain", "grid"],
)
def test_making_and_preparing_a_network_is_linear_in_its_routers(
    make: Callable[[int], RoutedNetwork],
) -> None:
    def made(count: int) -> None:
        network = make(count)
        cut_network(network.mod, network.params)

    made(8)  # types that are remembered
    small, medium, large = (num_python_calls(lambda n=n: made(n)) for n in (2, 4, 8))
    assert large - medium < 2.1 * (medium - small)


def test_types_are_inferred_as_often_for_many_routers_as_for_few() -> None:
    counts = []
    for count in (2, 6):
        network = routed_chain(count, 2, 4)
        passes = CountPasses()
        with tvm.transform.PassContext(opt_level=3, instruments=[passes]):
            cut_network(network.mod, network.params)
        counts.append(passes.counts["InferType"])
    assert counts[0] == counts[1] > 0


def test_all_networks_are_in_the_catalogue() -> None:
    assert set(ROUTED) >= {"switch_layer", "swin_moe", "task_moe", "live_sr", "msdnet"}


@pytest.mark.parametrize("k", [1, 2])
def test_the_onnx_form_of_experts_is_the_relay_form(k: int) -> None:
    network = switch_layer(tokens=6, width=4, hidden=8, experts=3, k=k)
    imported = from_onnx(masked_experts(network), simplify=False)
    found = find_routers(imported.bind_params(), imported.inputs)
    (line,) = found.found
    assert f"3 branches of 5, 5, 5 ops, at most {k} for each cell" in line
    given = network.inputs(1)
    params = {key: value.numpy() for key, value in network.params.items()}
    with np.errstate(all="ignore"):
        ours = run_by_numpy(network.mod, given | params)
        read = run_by_numpy(found.mod, given)
    np.testing.assert_allclose(ours[0], read[0], rtol=1e-4, atol=1e-4)


def test_the_onnx_form_of_exits_is_the_relay_form() -> None:
    network = msdnet(size=8, width=2, classes=3)
    imported = from_onnx(exits(network), simplify=False)
    found = find_routers(imported.bind_params(), imported.inputs)
    assert len(found.found) == 2
    params = {key: value.numpy() for key, value in network.params.items()}
    for leaves in ((0, 0), (0, 1), (1, 0)):
        given = network.inputs(1)
        for index, leave in enumerate(leaves):
            given[f"steer.exit{index}"][0, 0] = STEER if leave else -STEER
        with np.errstate(all="ignore"):
            ours = run_by_numpy(network.mod, given | params)
            read = run_by_numpy(found.mod, given)
        np.testing.assert_allclose(ours[0], read[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", TINY)
def test_traces_hold_only_decisions_that_are_made(name: str) -> None:
    """What a plan is simulated over must be possible: a nested router is not always reached."""
    network = TINY[name]()
    runs = TraceRuns(network, TraceOptions(num_runs=20))
    graph = prepare(network.mod, network.params).graph
    assert len(decisions_of_records(graph, runs.records)) == 20
    nested = any(router.parent is not None for router in graph.routers)
    assert (len(runs.records) < 20 * len(graph.routers)) == nested
