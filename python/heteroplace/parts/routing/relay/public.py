"""The names of `heteroplace.routing`: cells, routers and branches, in Relay."""

from heteroplace.parts.routing.relay.api import route
from heteroplace.parts.routing.relay.cells import Cells, annotate_cell
from heteroplace.parts.routing.relay.decision_ops import Decision
from heteroplace.parts.routing.relay.dense import dense_masked
from heteroplace.parts.routing.relay.loops import loop
from heteroplace.parts.routing.relay.protocols import (
    batch_prioritised,
    capacity_factor,
    early_exit,
    from_mask,
    from_routes,
    hashed,
    host,
    label,
    threshold,
    top_k,
)

__all__ = [
    "Cells",
    "Decision",
    "annotate_cell",
    "batch_prioritised",
    "capacity_factor",
    "dense_masked",
    "early_exit",
    "from_mask",
    "from_routes",
    "hashed",
    "host",
    "label",
    "loop",
    "route",
    "threshold",
    "top_k",
]
