"""Tasks -> the column *layer* of a table: the nodes of the imported model that they came from."""

from __future__ import annotations

from collections.abc import Sequence

from heteroplace.model.demands import layers_of
from heteroplace.model.graph import Task

_MAX_LAYER = 28
"""Characters of a layer in a table; tables stay readable on 120 columns."""


def layer_label(tasks: Sequence[Task]) -> str:
    """Return the layers of some tasks as a cell of a table: the first one, and how many follow.

    A task without layers, as of a module that was not imported, gives "".

    >>> from heteroplace.model.graph import Task
    >>> layer_label([Task("conv2d.1", "nn.conv2d", ("stem/conv:nn.conv2d", "stem/relu:nn.relu"))])
    'stem/conv +1'
    """
    layers = list(dict.fromkeys(layer for task in tasks for layer in layers_of(task)))
    if not layers:
        return ""
    return layers[0] + (f" +{len(layers) - 1}" if len(layers) > 1 else "")


def without_empty_layers(
    heads: Sequence[str], rows: Sequence[Sequence[str]], align: str
) -> tuple[Sequence[str], Sequence[Sequence[str]], str]:
    """Return a table's parts without the column *layer* if no row has one; long names are cut.

    The end of a name says most, so a name loses its beginning.
    """
    column = heads.index("layer")
    if not any(row[column] for row in rows):
        remaining = [index for index in range(len(heads)) if index != column]
        rows = [[row[index] for index in remaining] for row in rows]
        return (
            [heads[index] for index in remaining],
            rows,
            "".join(align[index] for index in remaining),
        )
    cut = [[*row[:column], _end_of(row[column]), *row[column + 1 :]] for row in rows]
    return heads, cut, align


def _end_of(layer: str) -> str:
    return layer if len(layer) <= _MAX_LAYER else "..." + layer[3 - _MAX_LAYER :]
