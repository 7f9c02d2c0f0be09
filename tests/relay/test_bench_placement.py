"""Experts over several memories: what is counted of a replayed trace is what was predicted."""

from __future__ import annotations

import pytest

from benchmarks.dynamic.placement import rows_of
from zoo.models.routed_exchange import ExpertLayers


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_replayed_trace_moves_what_the_placement_says(count: int) -> None:
    sizes = ExpertLayers(
        *(2, 32, 16, 32, 2 * count),
        has_one_message_size=count > 4,
    )
    rows = {row["variant"]: row for row in rows_of(count, sizes, "coactive", num_rounds=1)}
    assert list(rows) == ["halves", "placed", *(["dense", "timed"] if count == 2 else [])]
    for row in rows.values():
        assert row["cross_bytes"] == row["cross_predicted"]
        assert row["row_bytes"] == row["row_predicted"]
        assert row["between_bytes"] >= row["bound_bytes"] * (1 - 1e-9)
    assert rows["placed"]["between_bytes"] < rows["halves"]["between_bytes"]
