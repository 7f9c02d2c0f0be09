"""The networks with routers that are measured, and the traces of their decisions, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heteroplace.bench.models.routed import RoutedNetwork
from heteroplace.bench.models.routed_experts import swin_moe, switch, switch_layer, task_moe
from heteroplace.bench.models.routed_vision import dynamic_routing, live_sr, msdnet
from heteroplace.dynamic.traces import TraceOptions

ROUTED: Mapping[str, Callable[[], RoutedNetwork]] = {
    "switch_layer": lambda: switch_layer(256, 768, 3072, 32, 1),
    "switch_layer_top2": lambda: switch_layer(256, 768, 3072, 32, 2),
    "switch_layer_128": lambda: switch_layer(256, 256, 1024, 128, 1),
    "switch_layer_small": lambda: switch_layer(64, 64, 128, 8, 1),
    "switch": lambda: switch(experts=16),
    "swin_moe": swin_moe,
    "task_moe": task_moe,
    "live_sr": live_sr,
    "msdnet": msdnet,
    "dynamic_routing": dynamic_routing,
    "dynamic_routing_small": lambda: dynamic_routing(layers=6, scales=3, size=32),
}
"""By name; the small ones are for quick looks."""

_RUNS = 64
TRACES: Mapping[str, TraceOptions] = {
    "zipf0.5": TraceOptions(num_runs=_RUNS, skew=0.5),
    "zipf1": TraceOptions(num_runs=_RUNS, skew=1.0),
    "zipf1.5": TraceOptions(num_runs=_RUNS, skew=1.5),
    "coactive": TraceOptions(num_runs=_RUNS, skew=1.0, coactivation=0.9),
}
"""By name: the popularity of branches by Zipf's law, and cells that follow a partner."""
