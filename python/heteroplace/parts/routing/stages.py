"""The stages that only networks with routers need."""

from __future__ import annotations

from dataclasses import replace

from heteroplace.model.plan import Plan
from heteroplace.model.solution import Solution
from heteroplace.parts.routing.lower.loaded_weights import weight_sizes
from heteroplace.parts.routing.relay.passes import with_routes
from heteroplace.parts.routing.solve.routed_network import solve_routed
from heteroplace.parts.routing.solve.routed_replay import replay_routed
from heteroplace.parts.routing.tasks.branch_options import (
    branch_weights,
    has_weights_budget,
    predictions_of,
    with_branch_memories,
)
from heteroplace.parts.routing.weights_file import with_weights_file
from heteroplace.pipeline.core_stages import CostedNetwork
from heteroplace.pipeline.place_state import PlaceState
from heteroplace.solve.problem import SolveOptions


def rewrite(state: PlaceState) -> PlaceState:
    """Apply the rewrites that pay off for the recorded route decisions."""
    options = state.options
    assert options.routes is not None  # else the stage does not apply
    mod, profile = with_routes(state.mod, options.params, options.routes, options.weights_bytes)
    return replace(state, mod=mod, profile=profile)


def add_weights_file(state: PlaceState) -> PlaceState:
    """Add a memory for weights in the compiled file, if a router has a budget for them."""
    if not has_weights_budget(state.mod):
        return state
    return replace(state, cluster=with_weights_file(state.cluster))


def restrict_branches(state: PlaceState) -> PlaceState:
    """Restrict branches to the memories that their routers name."""
    network = with_branch_memories(state.known_network, state.cluster)
    return replace(state, network=network, plain=(network.graph, state.cluster))


def solve(costed: CostedNetwork, options: SolveOptions, solver: str, plan: Plan | None) -> Solution:
    """Find a plan of a routed network; parameters as of `core_stages.solve`."""
    given, compiled = (costed.graph, costed.cluster, costed.costs, options), costed.compiled
    predictions = predictions_of(compiled.network)
    weights = branch_weights(compiled.network, lambda: weight_sizes(compiled, costed.cluster))
    interference = None if costed.measure_interference is None else costed.interference_known
    if plan is not None:
        return replay_routed(*given, plan, costed.profile, predictions, weights, interference)
    return solve_routed(*given, solver, costed.profile, predictions, weights, interference)
