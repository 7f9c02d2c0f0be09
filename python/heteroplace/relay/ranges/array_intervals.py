"""The inputs of a function -> seeded arrays of numbers that are legal for it."""

from __future__ import annotations

import numpy as np
from tvm import relay

from heteroplace.relay.expressions import static_shape
from heteroplace.relay.ranges.drawn import array_in
from heteroplace.relay.ranges.legal import legal_inputs


def legal_arrays(main: relay.Function, seed: int = 0) -> dict[str, np.ndarray]:
    """Return an array for each parameter of a function whose types are inferred.

    Parameters
    ----------
    main
        Its weights are bound: every parameter is an input.
    seed
        Equal seeds give equal arrays.
    """
    legal = legal_inputs(main)
    random = np.random.default_rng(seed)
    arrays = {}
    for parameter in main.params:
        shape, dtype = static_shape(parameter.checked_type), parameter.checked_type.dtype
        arrays[parameter.name_hint] = array_in(legal.get(parameter), shape, dtype, random)
    return arrays
