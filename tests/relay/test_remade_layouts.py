"""A tensor that another memory reads in two layouts goes there once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tvm
from relay_models import cores
from shard_models import built_by_degrees
from test_convolution_memory import residual

import heteroplace

BATCH, STEPS = 8, 3
Moved = dict[tuple[str, str], int]


def trained(degrees: str) -> tuple[list[float], Moved, Moved]:
    """Losses of some steps; what they copy between memories, and what their plan says."""
    mod = residual()
    random = np.random.default_rng(0)
    shapes = {p.name_hint: [int(n) for n in p.checked_type.shape] for p in mod["main"].params[1:]}
    params = {
        name: tvm.nd.array(random.standard_normal(shape).astype("float32") / 8)
        for name, shape in shapes.items()
    }
    step = {"batch": BATCH, "degrees": degrees, "optimizer": "sgd:0.1"}
    executable, record, _ = built_by_degrees(mod, params, weight_gradients="each", **step)
    executor = heteroplace.Executor(executable)
    losses = []
    for _ in range(STEPS):
        x = random.standard_normal((BATCH, 3, 16, 16)).astype("float32")
        (loss,) = executor.run(x=x, labels=random.standard_normal((BATCH, 10)).astype("float32"))
        losses.append(float(loss))
    graph, cluster = record.solution.graph, record.solution.cluster
    planned: Counter[tuple[str, str]] = Counter()
    for copy in record.solution.plan.copies:
        pair = cluster.memories[copy.src].name, cluster.memories[copy.dst].name
        planned[pair] += STEPS * graph.tensors[copy.tensor].bytes
    return losses, executor.copied_bytes(), dict(planned)


@pytest.mark.costly
@pytest.mark.skipif(len(cores()) < 2, reason="two ranks need two cores")
def test_what_is_read_in_two_layouts_is_sent_once() -> None:
    whole, _, _ = trained("1,1,1,1")
    losses, copied, planned = trained("1,1,2,2")
    assert losses == pytest.approx(whole, rel=1e-4)
    forward = {pair: num_bytes for pair, num_bytes in planned.items() if pair[0] == "ram0"}
    assert forward and forward.items() <= copied.items()
