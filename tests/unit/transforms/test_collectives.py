"""Identities of collectives (property 6), on arrays and for their costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import GraphError
from heteroplace.model.collectives import collective_kind, collective_ns, collective_op
from heteroplace.model.graph import Task, Tensor
from tests.reference.distir.dispatch import Array, OpCall, TensorType, type_of
from tests.reference.distir.operations import OPERATIONS
from tests.strategies import exact_cases
from tests.unit.transforms.sharded_cases import ranks


def run(kind: str, parts: Sequence[Array], *shapes: tuple[int, ...]) -> list[Array]:
    """What a collective makes; its types are checked on the way."""
    op = collective_op(kind)
    made = tuple(Tensor(f"out{i}", 0, i, shape, "float64", 0) for i, shape in enumerate(shapes))
    call = OpCall(Task(kind, op), op, (), made)
    found = [np.asarray(value) for value in OPERATIONS.call(call, list(parts))]
    types = OPERATIONS.call(call, [type_of(part) for part in parts])
    assert list(types) == [TensorType(shape, "float64") for shape in shapes]
    assert [array.shape for array in found] == list(shapes)
    return found


def parts_of(number: int, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 1, (2 * number, 3)) for _ in range(number)]


def same(found: Sequence[Array], expected: Sequence[Array]) -> bool:
    return all(map(np.array_equal, found, expected)) and len(found) == len(expected)


@given(st.integers(2, 5), st.integers(0, 2**32 - 1))
@exact_cases(30)
def test_collectives_are_made_of_each_other(number: int, seed: int) -> None:
    parts = parts_of(number, seed)
    whole, part, joined = (2 * number, 3), (2, 3), (2 * number * number, 3)
    (total,) = run("all_reduce", parts, whole)
    assert same(run("broadcast", run("reduce", parts, whole), whole), [total])
    scattered = run("reduce_scatter", parts, *[part] * number)
    assert same(run("all_gather", scattered, whole), [total])
    gathered = run("gather", parts, joined)
    assert same(run("broadcast", gathered, joined), run("all_gather", parts, joined))
    assert same(run("scatter", gathered, *[whole] * number), parts)
    # Twice to all is there and back: rows are exchanged for columns, and these for rows.
    wide = (2, 3 * number)
    there = run("all_to_all", parts, *[wide] * number)
    assert same(run("all_to_all", there, *[whole] * number), parts)
    assert np.array_equal(there[0], np.concatenate([p[:2] for p in parts], axis=1))


def test_sums_are_in_rank_order() -> None:
    parts = [np.array([value]) for value in (1e16, 1.0, -1e16, 1.0)]
    assert run("all_reduce", parts, (1,)) == [((1e16 + 1.0) - 1e16) + 1.0]


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(GraphError, match=r"no parts of .* along one axis"):
        run("all_gather", parts_of(2, 0), (4, 3))
    with pytest.raises(GraphError, match="one axis that becomes shorter"):
        run("all_to_all", parts_of(2, 0), (4, 3), (4, 3))
    op = collective_op("all_reduce")
    call = OpCall(Task("sum", op), op, (), ())
    with pytest.raises(GraphError, match=r"it adds up float64\[2\], float64\[3\]"):
        OPERATIONS.call(call, [TensorType((2,), "float64"), TensorType((3,), "float64")])


def test_costs_obey_the_same_identities() -> None:
    cluster = ranks(4, latency_ns=100)
    links = tuple(type(link)(link.name, link.src, link.dst, 10**9, 100, link.channel)
                  for link in cluster.links)  # fmt: skip
    cluster = type(cluster)(cluster.name, cluster.memories, cluster.devices, links)

    def cost(kind: str, num_bytes: int) -> int:
        found = collective_kind(collective_op(kind))
        assert found is not None
        return collective_ns(cluster, found, num_bytes, (0, 1, 2, 3))

    for num_bytes in (0, 4, 1024, 10**9):
        total = cost("all_reduce", num_bytes)
        assert total <= cost("reduce", num_bytes) + cost("broadcast", num_bytes)
        parts = cost("reduce_scatter", num_bytes) + cost("all_gather", num_bytes)
        assert total <= parts <= total + 2
        assert cost("scatter", num_bytes) <= cost("broadcast", num_bytes)
        assert cost("gather", num_bytes) <= cost("reduce", num_bytes)
