"""A Relay dataflow -> which cells of its inputs reach which cells of its result.

Cui et al., "Optimizing Dynamic Neural Networks with Brainstorm" (OSDI 2023), static cell-level
dataflow: all elements of a cell share one symbol, the symbols are pushed through every op, and
those that reach an output cell are what it is made of. Between two routers this tells whether a
cell keeps its identity (`keep`), is moved as a whole (`reorder`), or meets others (`mix`), which
then must be in one memory.

Unlike Brainstorm, which traces tensor expressions, each op has a rule (`cell_rules.py`,
`cell_windows.py`) over bit sets, one set for each element, or for all along an axis at once. An op
without a rule mixes all that it reads, which is sound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relay

from heteroplace.errors import RoutingError
from heteroplace.parts.routing.cell_analysis.cell_rules import transfer
from heteroplace.parts.routing.cell_analysis.cell_sets import (
    CellOperand,
    Sets,
    empty_sets,
    everywhere,
    num_words,
    to_integer,
    union,
)
from heteroplace.parts.routing.relay.layout import cell_layout
from heteroplace.relay.expressions import post_order, static_shape, tensor_types
from heteroplace.relay.tasks.fold import children


class CellLayout(NamedTuple):
    """How a tensor is cut into cells, in the words of `annotate_cell`."""

    dims: tuple[int, ...]
    """Axes along which cells lie."""
    shape: tuple[int, ...]
    """Extent of one cell."""

    def ids(self, tensor_shape: Sequence[int]) -> np.ndarray:
        """Return for each element of a tensor the cell it is in; cells count row by row.

        Raises
        ------
        RoutingError
            The tensor cannot be cut so.

        Examples
        --------
        >>> CellLayout((0, 1), (2, 2)).ids((2, 4))
        array([[0, 0, 1, 1],
               [0, 0, 1, 1]])
        """
        layout, cell = cell_layout(tuple(tensor_shape), self.dims, self.shape)
        ids = np.zeros(tensor_shape, dtype=np.int64)
        for dim, count in zip(self.dims, layout, strict=True):
            places = np.arange(tensor_shape[dim]) // cell[dim]
            ids = ids * count + np.expand_dims(
                places, [axis for axis in range(ids.ndim) if axis != dim]
            )
        return ids


@dataclass(frozen=True)
class Relation:
    """Which cells of the sources each cell of a result is made of."""

    reached: tuple[int, ...]
    """For each cell of the result a bit set: bit j stands for cell j of the sources."""
    num_sources: int
    """Cells of the sources."""

    @property
    def kind(self) -> str:
        """ "keep": cell i of nothing but cell i; "reorder": of at most one cell; else "mix"."""
        if any(cells & (cells - 1) for cells in self.reached):
            return "mix"
        is_square = len(self.reached) == self.num_sources
        if is_square and all(cells in (0, 1 << i) for i, cells in enumerate(self.reached)):
            return "keep"
        return "reorder"

    def after(self, first: Relation) -> Relation:
        """Return what this relation makes of the results of another (a boolean product).

        Raises
        ------
        ValueError
            The other has not as many result cells as this one has sources.
        """
        if len(first.reached) != self.num_sources:
            raise ValueError(
                f"a relation of {self.num_sources} source cells comes after one of "
                f"{len(first.reached)} result cells"
            )
        composed = tuple(
            reduce(or_, (first.reached[j] for j in members(cells)), 0) for cells in self.reached
        )
        return Relation(composed, first.num_sources)

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Return the sets of source cells that meet, ascending: each must be in one memory.

        Cells that meet no other are in none.
        """
        members_of: list[int] = []
        for cells in self.reached:
            if cells & (cells - 1):
                apart = [group for group in members_of if not group & cells]
                joined = reduce(or_, (group for group in members_of if group & cells), cells)
                members_of = [*apart, joined]
        return tuple(sorted(tuple(members(group)) for group in members_of))


def members(cells: int) -> list[int]:
    """Return the numbers of the bits that are set, ascending."""
    return [j for j in range(cells.bit_length()) if cells >> j & 1]


def cell_flow(
    result: relay.Expr, sources: Mapping[relay.Expr, CellLayout], layout: CellLayout
) -> Relation:
    """Return which cells of the sources reach each cell of a result.

    Parameters
    ----------
    result
        A tensor; its type is inferred, and so are those of all that it is made of.
    sources
        Expressions that hold cells, with how. Cells of one number in several sources count as one
        cell, so that all have equally many. What depends on no source holds no cell.
    layout
        How the result is cut.

    Returns
    -------
    The relation, sound for every op; exact for those that have a rule. It takes time and memory
    in proportion to elements x cells / 64 where an op looks at single elements.

    Raises
    ------
    RoutingError
        A tensor cannot be cut as its layout says, or the sources have different numbers of cells.
    """
    ids = {node: cells.ids(static_shape(node.checked_type)) for node, cells in sources.items()}
    counts = {int(cells.max(initial=-1)) + 1 for cells in ids.values()}
    if len(counts) != 1:
        raise RoutingError(
            f"the sources of a cell flow have {sorted(counts) or 'no'} cells; expected one or more "
            f"sources of equally many"
        )
    (num_cells,) = counts
    words = num_words(num_cells)
    sets = {node: [_symbols(cells, words)] for node, cells in ids.items()}
    for node in post_order(result):
        if node not in sets and not isinstance(node, (relay.Function, tvm.ir.Op)):
            sets[node] = _sets_of(node, sets, words)
    return _relation(sets[result][0], result, layout, num_cells)


def _symbols(ids: np.ndarray, words: int) -> Sets:
    """A set of one cell for each element; one entry along axes that no cell border crosses."""
    for axis in range(ids.ndim):
        first = ids.take([0], axis)
        if (ids == first).all():
            ids = first
    sets = np.zeros((*ids.shape, words), dtype=np.uint64)
    flat = sets.reshape(-1, words)
    numbers = ids.reshape(-1)
    flat[np.arange(numbers.size), numbers // 64] = np.uint64(1) << (numbers % 64).astype(np.uint64)
    return sets


def _sets_of(node: relay.Expr, sets_of: Mapping[relay.Expr, list[Sets]], words: int) -> list[Sets]:
    """The sets of every tensor of a value whose operands have theirs."""
    if isinstance(node, relay.Tuple):
        return [sets for field in node.fields for sets in sets_of[field]]
    if isinstance(node, relay.TupleGetItem):
        fields = node.tuple_value.checked_type.fields
        first = sum(len(tensor_types(field)) for field in fields[: node.index])
        return sets_of[node.tuple_value][first : first + len(tensor_types(node.checked_type))]
    ranks = [len(type_.shape) for type_ in tensor_types(node.checked_type)]
    if isinstance(node, (relay.Var, relay.Constant)):  # of no source
        return [empty_sets(rank, words) for rank in ranks]
    operands = []
    for child in children(node):
        value = child.data.numpy() if isinstance(child, relay.Constant) else None
        for sets, type_ in zip(sets_of[child], tensor_types(child.checked_type), strict=True):
            operands.append(CellOperand(static_shape(type_), sets, value))
    if isinstance(node, relay.Call) and isinstance(node.op, tvm.ir.Op):
        return transfer(node, operands, words)
    return [everywhere(operands, rank, words) for rank in ranks]


def _relation(sets: Sets, result: relay.Expr, layout: CellLayout, num_sources: int) -> Relation:
    """The union of the sets of the elements of each cell."""
    shape = static_shape(result.checked_type)
    counts, cell = cell_layout(shape, layout.dims, layout.shape)
    words = sets.shape[-1]
    sets = union(sets, [axis for axis in range(len(shape)) if axis not in layout.dims])
    for dim, count in zip(layout.dims, counts, strict=True):
        extents = [*sets.shape[:-1], words]
        extents[dim] = shape[dim]
        whole = np.broadcast_to(sets, extents)
        parts = whole.reshape(*extents[:dim], count, cell[dim], *extents[dim + 1 :])
        sets = np.squeeze(union(parts, [dim + 1]), axis=dim + 1)
    order = [*layout.dims, *(axis for axis in range(len(shape)) if axis not in layout.dims)]
    reached = sets.transpose(*order, len(shape)).reshape(-1, words)
    return Relation(tuple(to_integer(cells) for cells in reached), num_sources)
