"""Programs of one network -> the same programs over one array of weights.

Each program lays its weights out in its own order. Many plans of one network in one process would
hold as many copies; and runs that are compared would each read other pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heteroplace.lower.lowered import Lowered
from heteroplace.lower.weight_blob import WeightLayout


def share_weights(programs: Sequence[Lowered], layout: WeightLayout | None = None) -> list[Lowered]:
    """Return the programs with the weights of all of them, each once, at the same offsets.

    So one blob, of any of them, serves all.

    Parameters
    ----------
    layout
        Where the weights lie; None: as the programs first use them.
    """
    layout = layout or WeightLayout()
    moved = [
        {offset: layout.offset(value) for offset, value in lowered.weights.items()}
        for lowered in programs
    ]
    return [
        replace(
            lowered,
            program=replace(
                lowered.program,
                constants=tuple(
                    replace(constant, blob_offset=offsets[constant.blob_offset])
                    for constant in lowered.program.constants
                ),
            ),
            initial={name: offsets[offset] for name, offset in lowered.initial.items()},
            weights=layout.weights,
            blob_bytes=layout.blob_bytes,
        )
        for lowered, offsets in zip(programs, moved, strict=True)
    ]
