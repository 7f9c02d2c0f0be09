"""A function -> places where the routing of one example seems to be written into the model.

A tracer that runs a routed model once records which rows each expert took, as constant indices: the
file then sends every other input the same way. Nothing can be mended here; the report says it.
"""

from __future__ import annotations

import numpy as np
from tvm import relay

from heteroplace.parts.routing.find.find_graph import Graph, is_call_of, shown

_MIN_PARTS = 2


def baked_routing(graph: Graph) -> list[str]:
    """Return a line for each tensor of which different rows are taken by constant indices.

    Equal or evenly spaced parts are a split, and overlapping ones a look-up; neither is reported.
    """
    taken: dict[tuple[relay.Expr, int], list[np.ndarray]] = {}
    for node in graph.order:
        if is_call_of(node, "take") and isinstance(node.args[1], relay.Constant):
            indices = node.args[1].data.numpy()
            if indices.ndim and node.attrs.axis is not None and not int(node.attrs.batch_dims):
                key = (node.args[0], int(node.attrs.axis))
                taken.setdefault(key, []).append(indices.reshape(-1))
    lines = []
    for (source, axis), parts in taken.items():
        rows = np.concatenate(parts)
        is_apart = len(set(rows.tolist())) == rows.size and len(parts) >= _MIN_PARTS
        if is_apart and any(len(set(np.diff(part).tolist())) > 1 for part in parts):
            extent = int(source.checked_type.shape[axis])
            lines.append(
                f"{shown(source)}: {len(parts)} parts of axis {axis} ({rows.size} of {extent}) are "
                f"taken by constant indices, as if one example's routing were written into the "
                f"model. Export it so that the choice is computed (by masks, or without tracing)"
            )
    return lines
