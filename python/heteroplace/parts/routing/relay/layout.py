"""A tensor's extents, axes and the extent of a cell -> how many cells lie along which axis.

Cui et al., "Optimizing Dynamic Neural Networks with Brainstorm" (OSDI 2023), 3.1: tokens are cells
of (1, 768) along axis 0, patches of an image cells of (32, 32) along two axes.
"""

from __future__ import annotations

from collections.abc import Sequence

from heteroplace.errors import RoutingError


def cell_layout(
    tensor_shape: Sequence[int],
    dims: Sequence[int],
    shape: Sequence[int],
    what: str = "the annotated tensor",
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the number of cells along each of `dims`, and the extents of a cell on all axes.

    Parameters
    ----------
    tensor_shape
        Extents of the tensor.
    dims
        Axes along which cells lie, each once.
    shape
        Extents of a cell, on every axis or only along `dims` in their order; then a cell has the
        other axes whole.
    what
        Name of the tensor, for messages.

    Raises
    ------
    RoutingError
        An axis that the tensor does not have, or twice; cells that do not fill the tensor. All
        faults are told, each with axis and both numbers.

    Examples
    --------
    >>> cell_layout((3, 768), (0,), (1, 768))
    ((3,), (1, 768))
    >>> cell_layout((192, 128, 3), (0, 1), (32, 32))
    ((6, 4), (32, 32, 3))
    """
    rank = len(tensor_shape)
    wrong = [dim for dim in dims if not 0 <= dim < rank]
    if wrong or len(set(dims)) != len(dims) or not dims:
        raise RoutingError(
            f"{what} of shape {tuple(tensor_shape)} has cells along axes {tuple(dims)}; expected "
            f"one or more different axes from 0 to {rank - 1}"
        )
    if len(shape) == rank:
        cell = [int(extent) for extent in shape]
    elif len(shape) == len(dims):
        cell = list(tensor_shape)
        for dim, extent in zip(dims, shape, strict=True):
            cell[dim] = int(extent)
    else:
        raise RoutingError(
            f"{what} of shape {tuple(tensor_shape)}: a cell has {len(shape)} extents "
            f"{tuple(shape)}; expected {rank}, or {len(dims)} for the axes {tuple(dims)}"
        )
    faults = []
    for axis, (whole, part) in enumerate(zip(tensor_shape, cell, strict=True)):
        if axis in dims and (part < 1 or whole % part):
            faults.append(f"axis {axis} has {whole}, which cells of {part} do not fill exactly")
        elif axis not in dims and part != whole:
            faults.append(f"axis {axis} has {whole} and cells have {part}, but it is not in `dims`")
    if faults:
        raise RoutingError(f"{what} of shape {tuple(tensor_shape)}: {'; '.join(faults)}")
    return tuple(tensor_shape[dim] // cell[dim] for dim in dims), tuple(cell)
