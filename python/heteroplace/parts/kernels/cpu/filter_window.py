"""How the filters of a convolution go over a map, from the attributes of its op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class FilterWindow(NamedTuple):
    """Each pair is of rows and columns."""

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    """Above, left, below, right."""
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, attrs: Any) -> FilterWindow:
        """Return the window that an op of convolutions has as attributes of these names."""
        values = ([int(each) for each in attrs[name]] for name in cls._fields)
        strides, padding, dilation = map(tuple, values)
        return cls(strides, padding, dilation)

    def result_size(self, size: Sequence[int], extent: Sequence[int]) -> tuple[int, int]:
        """Return height and width of the result, of a map and filters of such sizes."""
        height, width = (
            (size[axis] + self.padding[axis] + self.padding[axis + 2] - self._seen(axis, extent))
            // self.strides[axis]
            + 1
            for axis in range(2)
        )
        return height, width

    def _seen(self, axis: int, extent: Sequence[int]) -> int:
        """What a filter sees along an axis."""
        return (extent[axis] - 1) * self.dilation[axis] + 1
