"""The names of `heteroplace.routing`: cells, routers and branches, in Relay."""

from heteroplace.relay.routing.api import route
from heteroplace.relay.routing.cells import Cells, annotate_cell
from heteroplace.relay.routing.decision import Decision
from heteroplace.relay.routing.dense import dense_masked
from heteroplace.relay.routing.loops import loop
from heteroplace.relay.routing.protocols import (
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
