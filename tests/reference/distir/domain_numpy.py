"""Each value an array: the reference executor, and the way from a whole batch to items and back.

DistIR (arXiv 2111.05426, section 3.4): the global program is run in sequence, with collectives
computed on the spot. Sums are in rank order, and over microbatches ascending, so that ranks that
run by themselves (`project`) get the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from heteroplace.errors import GraphError, ShardingError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from tests.reference.distir.dispatch import AnyValue, Array, Operations, TensorType
from tests.reference.distir.domain_mixed import MixedDomain, TaskFunction
from tests.reference.distir.interpret import (
    Interpretation,
    Key,
    interpret,
    values_of,
)
from tests.reference.distir.operations import OPERATIONS


class NumpyDomain(MixedDomain):
    """A domain of `interpret` in which everything is concrete.

    Parameters
    ----------
    given, constants, functions
        As for `MixedDomain`; every input that is read must be given.
    """

    def __init__(
        self,
        graph: TaskGraph,
        given: Mapping[int, Sequence[Array]],
        constants: Mapping[str, Sequence[Array]] | None = None,
        operations: Operations = OPERATIONS,
        functions: Mapping[str, TaskFunction] | None = None,
    ) -> None:
        super().__init__(graph, given, constants, operations, functions)

    def given(self, key: Key) -> AnyValue:
        """See `Domain.given`; raises GraphError for an input that is not given."""
        value = super().given(key)
        if isinstance(value, TensorType):
            raise GraphError(f"input {self._graph.tensors[key[0]].name!r} is not given")
        return value


def cut_inputs(
    sharded: ShardedGraph, arrays: Mapping[str, Array], num_items: int
) -> dict[int, tuple[Array, ...]]:
    """Cut the inputs of the unsharded network into those of a sharded graph.

    State is cut over the lanes; what differs from item to item is cut along its first axis.

    Parameters
    ----------
    arrays
        By the names in `sharded.whole`, the batch as a whole.

    Returns
    -------
    For each input, by tensor id, its items, or the only value of a shared one.

    Raises
    ------
    ShardingError
        An input is missing, or does not have as many rows or columns as its parts together.
    """
    graph = sharded.graph
    found: dict[int, tuple[Array, ...]] = {}
    for whole in sharded.whole:
        if whole.name not in arrays:
            known = ", ".join(arrays) or "none"
            raise ShardingError(f"input {whole.name!r} is not given; there are: {known}")
        parts = [arrays[whole.name]] * len(whole.tensors)
        if whole.axis is not None:
            extents = [graph.tensors[tensor].shape[whole.axis] for tensor in whole.tensors]
            shape = arrays[whole.name].shape
            if shape[whole.axis : whole.axis + 1] != (sum(extents),):
                raise ShardingError(
                    f"input {whole.name!r} has shape {list(shape)}; expected {sum(extents)} along "
                    f"axis {whole.axis}, for {len(extents)} parts"
                )
            parts = _cut(arrays[whole.name], whole.axis, extents, whole.blocks)
        for tensor, part in zip(whole.tensors, parts, strict=True):
            declared = graph.tensors[tensor]
            rows = 1 if declared.shared else num_items
            expected = declared.shape
            if rows > 1:
                if not expected:
                    raise ShardingError(
                        f"input {whole.name!r} is a single number for each of {rows} items, which "
                        f"are cut along a first axis; declare it with one, or shared"
                    )
                expected = (expected[0] * rows, *expected[1:])
            if part.shape != expected:
                raise ShardingError(
                    f"input {whole.name!r} has a part of shape {list(part.shape)} for tensor "
                    f"{declared.name!r}; expected {list(expected)}"
                )
            found[tensor] = tuple(np.split(part, rows)) if rows > 1 else (part,)
    return found


def joined_state(sharded: ShardedGraph, made: Interpretation[AnyValue]) -> dict[str, Array]:
    """Return the state of the unsharded network after a plan, from all lanes.

    Raises
    ------
    ShardingError
        Replicas hold different values of one state.
    """
    found: dict[str, Array] = {}
    for whole in sharded.whole:
        if whole.tensors[0] not in made.state:
            continue
        parts = []
        for tensor in whole.tensors:
            copies = [np.asarray(value) for _, value in made.state[tensor]]
            if any(not np.array_equal(copies[0], copy, equal_nan=True) for copy in copies):
                name = sharded.graph.tensors[tensor].name
                raise ShardingError(f"replicas hold different values of {name!r}")
            parts.append(copies[0])
        axis = whole.axis
        found[whole.name] = parts[0] if axis is None else _join(parts, axis, whole.blocks)
    return found


def _cut(whole: Array, axis: int, extents: Sequence[int], num_blocks: int) -> list[Array]:
    """Parts of so many rows in all, each from every block."""
    ends = np.cumsum([extent // num_blocks for extent in extents])[:-1]
    blocks = [np.split(block, ends, axis=axis) for block in np.split(whole, num_blocks, axis=axis)]
    return [np.concatenate(rows, axis=axis) for rows in zip(*blocks, strict=True)]


def _join(parts: Sequence[Array], axis: int, num_blocks: int) -> Array:
    """What `_cut` cuts into the parts."""
    blocks = [np.split(part, num_blocks, axis=axis) for part in parts]
    return np.concatenate([rows[at] for at in range(num_blocks) for rows in blocks], axis=axis)


def joined_outputs(
    graph: TaskGraph, plan: Plan, made: Interpretation[AnyValue]
) -> tuple[Array, ...]:
    """Return the outputs of a plan for the whole batch: those of its items along the first axis, or
    along a new one where they are single numbers."""
    found = []
    for tensor in graph.outputs:
        shared = graph.tensors[tensor].shared
        of_item = values_of(made, tensor, (0,) if shared else range(plan.items))
        parts = [np.asarray(of_item[item][0]) for item in sorted(of_item)]
        joined = np.concatenate([np.atleast_1d(part) for part in parts])
        found.append(parts[0] if shared else joined)
    return tuple(found)


def run_reference(
    sharded: ShardedGraph,
    cluster: Cluster,
    plan: Plan,
    arrays: Mapping[str, Array],
    constants: Mapping[str, Sequence[Array]] | None = None,
    operations: Operations = OPERATIONS,
    functions: Mapping[str, TaskFunction] | None = None,
) -> tuple[dict[str, Array], tuple[Array, ...]]:
    """Run a plan by the reference executor on a whole batch.

    Returns
    -------
    The new state by the names in `sharded.whole`, and the outputs of the whole batch.

    Raises
    ------
    ShardingError, GraphError, PlanError
        As `cut_inputs`, `NumpyDomain` and `interpret`.
    """
    given = cut_inputs(sharded, arrays, plan.items)
    domain = NumpyDomain(sharded.graph, given, constants, operations, functions)
    made = interpret(sharded.graph, cluster, plan, domain)
    return joined_state(sharded, made), joined_outputs(sharded.graph, plan, made)
