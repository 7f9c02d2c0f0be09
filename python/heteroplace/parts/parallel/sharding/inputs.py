"""A model that is shared by several devices -> made-up inputs of a whole batch, to run it with."""

from __future__ import annotations

import numpy as np

from heteroplace.lower.executable import Executable
from heteroplace.parts.parallel.sharding.sharded_plan import ShardedModel
from heteroplace.relay.ranges.drawn import array_in
from heteroplace.relay.ranges.legal import legal_inputs


def made_up_inputs(
    model: ShardedModel, executable: Executable, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return random inputs of a whole batch that are legal for the ops that read them.

    Parameters
    ----------
    executable
        What was built of the model: it says their shapes.
    """
    main = model.module["main"]
    legal = {parameter.name_hint: interval for parameter, interval in legal_inputs(main).items()}
    random = np.random.default_rng(seed)
    return {
        name: array_in(legal.get(name), shape, dtype, random)
        for name, shape, dtype in executable.manifest.inputs
    }
