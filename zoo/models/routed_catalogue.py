"""The networks with routers that are measured, and the traces of their decisions, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from heteroplace.parts.routing.dynamic.traces import TraceOptions
from zoo.models.routed import RoutedNetwork
from zoo.models.routed_experts import (
    swin_moe,
    switch,
    switch_layer,
    switch_layer_part,
    task_moe,
)
from zoo.models.routed_vision import dynamic_routing, live_sr, msdnet

_SWITCH_LAYERS = {
    "switch_layer": (256, 768, 3072, 32, 1),
    "switch_layer_top2": (256, 768, 3072, 32, 2),
    "switch_layer_128": (256, 256, 1024, 128, 1),
    "switch_layer_128_top2": (256, 256, 1024, 128, 2),
    "switch_layer_small": (64, 64, 128, 8, 1),
}
"""Tokens, width, hidden layer, experts, experts of a token."""

ROUTED: Mapping[str, Callable[[], RoutedNetwork]] = {
    **{name: partial(switch_layer, *sizes) for name, sizes in _SWITCH_LAYERS.items()},
    "switch": lambda: switch(experts=16),
    "swin_moe": swin_moe,
    "task_moe": task_moe,
    "live_sr": live_sr,
    "msdnet": msdnet,
    "dynamic_routing": dynamic_routing,
    "dynamic_routing_small": lambda: dynamic_routing(layers=6, scales=3, size=32),
}
"""By name; the small ones are for quick looks."""

SMALLEST = "smallest"
"""A network that `dynamic` gets through in seconds; only `--only` with its name takes it."""
_SMALLEST_LAYER = (8, 8, 16, 2, 1)


def matching_labels(only: re.Pattern[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the networks of which a trace's label, network/trace, matches, with these traces."""
    for name in (*ROUTED, SMALLEST) if SMALLEST in only.pattern else ROUTED:
        traces = [trace for trace in TRACES if only.search(f"{name}/{trace}")]
        if traces:
            yield name, traces


def routed_network(name: str) -> RoutedNetwork:
    """Make one of `ROUTED`, or the smallest."""
    return switch_layer(*_SMALLEST_LAYER) if name == SMALLEST else ROUTED[name]()


HALVES: Mapping[str, Callable[[Sequence[int]], RoutedNetwork]] = {
    name: partial(switch_layer_part, *sizes) for name, sizes in _SWITCH_LAYERS.items()
}
"""By name: the network with some of its branches alone."""

_RUNS = 64
TRACES: Mapping[str, TraceOptions] = {
    "zipf0.5": TraceOptions(num_runs=_RUNS, skew=0.5),
    "zipf1": TraceOptions(num_runs=_RUNS, skew=1.0),
    "zipf1.5": TraceOptions(num_runs=_RUNS, skew=1.5),
    "coactive": TraceOptions(num_runs=_RUNS, skew=1.0, coactivation=0.9),
}
"""By name: the popularity of branches by Zipf's law, and cells that follow a partner."""
