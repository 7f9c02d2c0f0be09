"""The stages that add kernel variants to a cluster, and remove those without use."""

from __future__ import annotations

from dataclasses import replace

from heteroplace.measure.kernel_variants import (
    with_makers,
    with_requested_makers,
    without_unused_twins,
)
from heteroplace.pipeline.place_state import PlaceState


def add_saved(state: PlaceState) -> PlaceState:
    """Add the variants of the saved plan, which names their devices."""
    assert state.saved is not None  # else the stage does not apply
    network, cluster = with_makers(
        state.known_network, state.cluster, state.saved.makers, state.request.cost_options
    )
    return replace(state, network=network, cluster=cluster)


def add_requested(state: PlaceState) -> PlaceState:
    """Add the variants that the options name."""
    network, cluster = with_requested_makers(
        state.known_network,
        state.cluster,
        state.options,
        state.request.cost_options,
        state.items,
    )
    return replace(state, network=network, cluster=cluster)


def drop_unused(state: PlaceState) -> PlaceState:
    """Return to the plain tasks and cluster, if the plan uses no variant."""
    assert state.plain is not None  # set by the stage `weights`
    solution = without_unused_twins(state.known_solution, *state.plain)
    return replace(state, solution=solution)
