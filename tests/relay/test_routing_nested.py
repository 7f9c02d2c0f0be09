"""A router in a branch decides by what is in that branch: its rows are not all the cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from relay_models import var, weights
from tvm import relay

from heteroplace import routing
from heteroplace.errors import RoutingError

X, SCORES, OF_CELLS = var("x", (6, 4)), var("s", (6, 3)), var("of_cells", (6, 2))


def tokens(rows: relay.Expr) -> routing.Cells:
    return routing.annotate_cell(rows, dims=(0,), shape=(1, 4))


def in_branches(decide: Callable[[relay.Expr], routing.Decision], **options: Any) -> relay.Expr:
    """A router of two branches in each branch of another one."""

    def nested(rows: relay.Expr) -> relay.Expr:
        branches = [relay.nn.relu, relay.negative]
        return routing.route(tokens(rows), decide(rows), branches, name="in", **options)

    return routing.route(tokens(X), routing.top_k(SCORES), [nested] * 3, name="out")


def own(rows: relay.Expr) -> routing.Decision:
    return routing.capacity_factor(relay.nn.dense(rows, weights(2, 4)), 1, 1.0)


@pytest.mark.parametrize(
    ("what", "decide", "options"),
    [
        ("mask", lambda rows: routing.top_k(OF_CELLS), {}),
        ("mask", lambda rows: routing.from_mask(np.eye(2)[[0, 1, 0, 1, 0, 1]]), {}),
        ("mask, priority", lambda rows: routing.batch_prioritised(OF_CELLS, 1, 1.0), {}),
        ("priority", lambda rows: replace(own(rows), priority=var("p", (6,))), {}),
        ("gates", lambda rows: replace(own(rows), gates=OF_CELLS), {"gate": "combine"}),
        ("residual", own, {"residual": X}),
    ],
)
def test_what_is_of_all_cells_is_not_of_the_rows_of_a_branch(
    what: str, decide: Callable[[relay.Expr], routing.Decision], options: dict[str, Any]
) -> None:
    words = f"router 'in' is in branch 0 of router 'out', and its {what}: not in that branch"
    with pytest.raises(RoutingError, match=words):
        in_branches(decide, **options)


def test_what_is_the_same_for_all_rows_may_be_made_anywhere() -> None:
    in_branches(lambda rows: routing.from_routes(np.ones(6, int), 2))
    in_branches(own, residual=relay.zeros((6, 4), "float32"))
    in_branches(own, gate="dispatch")
