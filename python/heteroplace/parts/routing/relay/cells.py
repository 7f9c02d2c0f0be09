"""A tensor and the cells that it consists of -> one row for each cell, and the way back.

    x[3, 768]        dims (0,), shape (1, 768)     ==>  3 rows of [768]     (tokens)
    x[192, 128]      dims (0, 1), shape (32, 32)   ==>  24 rows of [32, 32] (patches, 6 x 4)
    x[8, 3, 64, 64]  dims (0,), shape (1, 3, 64, 64)  ==>  8 rows of [3, 64, 64] (images)

Source: Cui et al., "Optimizing Dynamic Neural Networks with Brainstorm" (OSDI 2023), 3.1. An axis
that is cut in cells must be a multiple of their extent there; nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import relay

from heteroplace.errors import RoutingError
from heteroplace.parts.routing.relay.layout import cell_layout
from heteroplace.relay.expressions import static_shape
from heteroplace.relay.local_types import write_types


@dataclass(frozen=True)
class Cells:
    """The cells of a tensor. Made by `annotate_cell`."""

    rows: relay.Expr
    """[C, cell..]: cell after cell, along the first of `dims` slowest."""
    tensor: relay.Expr
    """What they are of."""
    dims: tuple[int, ...]
    """Axes of the tensor along which cells lie."""
    layout: tuple[int, ...]
    """How many cells lie along each of them."""
    shape: tuple[int, ...]
    """Extent of a cell along each axis of the tensor."""
    is_by_branch: bool = False
    """Rows are [C, B, ..]: of each cell there is a part for each branch."""

    @property
    def num_cells(self) -> int:
        """How many there are."""
        return prod(self.layout)

    @property
    def kept(self) -> tuple[int, ...]:
        """Axes of the tensor that a row has: all but those along which a cell is 1 wide."""
        axes = range(len(self.shape))
        return tuple(axis for axis in axes if axis not in self.dims or self.shape[axis] > 1)

    def restored(self, rows: relay.Expr) -> relay.Expr:
        """Return what was made of the cells, [C, out..], as a tensor.

        It lies as the tensor does if a row has as many axes as one of the cells; their extents may
        differ (an enlarged patch). Otherwise it is [layout.., out..].
        """
        out = shape_of(rows)[1:]
        if len(out) != len(self.kept):
            return _reshaped(rows, (*self.layout, *out))
        extents = dict(zip(self.kept, out, strict=True))
        count = len(self.dims)
        places, shape = [], []
        for axis in range(len(self.shape)):
            if axis in self.dims:
                places.append(self.dims.index(axis))
            if axis in extents:
                places.append(count + self.kept.index(axis))
            cells = self.layout[self.dims.index(axis)] if axis in self.dims else 1
            shape.append(cells * extents.get(axis, 1))
        whole = _reshaped(rows, (*self.layout, *out))
        return _reshaped(_transposed(whole, places), shape)

    def rows_of(self, tensor: relay.Expr, out: Sequence[int]) -> relay.Expr:
        """Return the rows [C, out..] of a tensor as `restored` returns it."""
        shape = shape_of(tensor)
        if len(out) != len(self.kept):
            expected = (*self.layout, *out)
            if shape != expected:
                raise RoutingError(f"residual {name_of(tensor)} is {shape}, expected {expected}")
            return _reshaped(tensor, (self.num_cells, *out))
        extents = dict(zip(self.kept, out, strict=True))
        cell = [extents.get(axis, 1) for axis in range(len(self.shape))]
        layout, _ = cell_layout(shape, self.dims, cell, f"residual {name_of(tensor)}")
        if layout != self.layout:
            raise RoutingError(
                f"residual {name_of(tensor)} {shape} has {layout} cells of {tuple(cell)}, expected "
                f"{self.layout}"
            )
        return annotate_cell(tensor, self.dims, cell).rows


def annotate_cell(
    x: relay.Expr, dims: Sequence[int], shape: Sequence[int], is_by_branch: bool = False
) -> Cells:
    """Say of which cells a tensor consists.

    Parameters
    ----------
    x
        A tensor of static shape.
    dims
        Axes along which cells lie, e.g. (0,) for tokens, (1, 2) for patches of an image.
    shape
        Extent of a cell along each axis of `x`, or, if it is shorter, along each of `dims`; cells
        then cover all other axes.
    is_by_branch
        Of each cell there is a part for each branch: the first axis that is not in `dims`.

    Raises
    ------
    RoutingError
        An axis that does not exist or is named twice, an extent that does not divide that of the
        tensor, an axis that is not in `dims` and that a cell does not cover.
    """
    whole, dims = shape_of(x), tuple(dims)
    layout, extents = cell_layout(whole, dims, shape, name_of(x))
    cells = Cells(x, x, dims, layout, extents, is_by_branch)
    split: list[int] = []
    places: dict[tuple[int, str], int] = {}
    for axis, extent in enumerate(extents):
        if axis in dims:
            places[axis, "cells"] = len(split)
            split.append(whole[axis] // extent)
        if axis in cells.kept:
            places[axis, "cell"] = len(split)
            split.append(extent)
    order = [places[axis, "cells"] for axis in dims]
    order += [places[axis, "cell"] for axis in cells.kept]
    apart = _transposed(_reshaped(x, split), order)
    rows = _reshaped(apart, (prod(layout), *(extents[axis] for axis in cells.kept)))
    return Cells(rows, x, dims, layout, extents, is_by_branch)


def shape_of(expr: relay.Expr) -> tuple[int, ...]:
    """Return the shape of a tensor, whose type is inferred if it is not known."""
    return static_shape(type_of(expr))


def type_of(expr: relay.Expr) -> relay.TensorType:
    """Return the type of an expression; written on it, and on what it is made of, if missing.

    Raises
    ------
    RoutingError
        It is no tensor.
    """
    write_types(expr)
    if not isinstance(expr.checked_type, relay.TensorType):
        raise RoutingError(f"{name_of(expr)} has type {expr.checked_type}; expected a tensor")
    return expr.checked_type


def name_of(expr: relay.Expr) -> str:
    """Return what messages call an expression."""
    if isinstance(expr, relay.Var):
        return f"tensor {expr.name_hint!r}"
    if isinstance(expr, relay.Call):
        return f"a result of {getattr(expr.op, 'name', 'a function')}"
    return f"a {type(expr).__name__}"


def _reshaped(x: relay.Expr, shape: Sequence[int]) -> relay.Expr:
    return x if shape_of(x) == tuple(shape) else relay.reshape(x, list(shape))


def _transposed(x: relay.Expr, order: Sequence[int]) -> relay.Expr:
    return x if list(order) == list(range(len(order))) else relay.transpose(x, list(order))
