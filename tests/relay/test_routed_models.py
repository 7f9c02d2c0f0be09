"""The networks with routers of bench: they are what they say, and decide as they are steered."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy_relay import run_by_numpy
from tvm import relay

from heteroplace import routing
from heteroplace.bench.models.routed import RoutedNetwork
from heteroplace.bench.models.routed_catalogue import ROUTED
from heteroplace.bench.models.routed_experts import swin_moe, switch, switch_layer, task_moe
from heteroplace.bench.models.routed_vision import dynamic_routing, live_sr, msdnet
from heteroplace.dynamic.traces import TraceOptions, synthesise
from heteroplace.relay.routing.rewrite import routers_of

pytestmark = pytest.mark.relay

TINY: dict[str, Callable[[], RoutedNetwork]] = {
    "switch layer": lambda: switch_layer(tokens=6, width=4, hidden=8, experts=3, k=2),
    "switch": lambda: switch(layers=2, tokens=6, width=8, hidden=8, experts=3, heads=2),
    "swin": lambda: swin_moe(blocks=2, windows=2, window=3, width=8, experts=3, heads=2),
    "task": lambda: task_moe(layers=2, sentences=2, length=3, width=8, hidden=8, experts=4),
    "live": lambda: live_sr(patches=3, size=4, widths=(2, 3), depth=1),
    "msdnet": lambda: msdnet(exits=3, size=8, width=2, classes=3),
    "dynamic": lambda: dynamic_routing(layers=2, scales=2, size=4, width=2),
}


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


def test_published_sizes() -> None:
    main = dynamic_routing(size=8, width=1).mod["main"]
    assert isinstance(main, relay.Function)
    assert len(dynamic_routing(size=8, width=1).routers) == 186
    assert set(ROUTED) >= {"switch_layer", "swin_moe", "task_moe", "live_sr", "msdnet"}
