"""The stages that networks with routers add to the placing of a module, and where they stand.

Every network loads this file, so it imports only what the core loads anyway.
"""

from __future__ import annotations

from heteroplace.pipeline.place_state import PlaceState
from heteroplace.pipeline.stage import AddedStage, Stage
from heteroplace.relay.router_ops import has_routers

_STAGES = "heteroplace.parts.routing.stages"

PLACE_STAGES: tuple[AddedStage[PlaceState], ...] = (
    AddedStage(
        Stage(
            "routes",
            "Rewrite the routed network as its recorded route decisions suggest.",
            f"{_STAGES}:rewrite",
            lambda state: state.options.routes is not None,
        ),
        before="prepare",
    ),
    AddedStage(
        Stage(
            "weights-file",
            "Add the compiled file as a memory for branch weights.",
            f"{_STAGES}:add_weights_file",
            lambda state: has_routers(state.mod),
        ),
        before="prepare",
    ),
    AddedStage(
        Stage(
            "branches",
            "Restrict branches to the memories that their routers name.",
            f"{_STAGES}:restrict_branches",
            lambda state: bool(state.known_network.graph.routers),
        ),
        before="saved-kernels",
    ),
)
