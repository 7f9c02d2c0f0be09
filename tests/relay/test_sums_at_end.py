"""Transformers that sum gradients at the end, in stages, train as one device does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from relay_models import cores
from shard_models import built_by_degrees

import heteroplace
from heteroplace.model.plan import Run
from heteroplace.parts.onnx.importer import from_onnx
from zoo.models.transformers import bert_onnx, gpt_onnx

BATCH, TOKENS, VOCABULARY = 8, 16, 128
SMALL = {"layers": 2, "hidden": 64, "heads": 4, "tokens": TOKENS, "vocabulary": VOCABULARY}
NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "bert": (bert_onnx, {"loss": "mse", "prediction": 1}),
    "gpt2": (gpt_onnx, {"loss": "cross_entropy"}),
}


def trained(found: Any, name: str, **options: Any) -> tuple[list[float], dict[str, Any], int]:
    """Losses of two steps, the weights behind them, and how many tasks sum several microbatches."""
    executable, record, state = built_by_degrees(
        *(found.mod, found.params),
        batch=BATCH,
        optimizer="sgd:0.01",
        **NETWORKS[name][1],
        **options,
    )
    executor = heteroplace.Executor(executable)
    losses = [float(np.sum(executor.run(examples(executable, seed))[0])) for seed in range(2)]
    weights = {name: executor.state(name) for name in state}
    runs = [each for each in record.solution.plan.steps if isinstance(each, Run)]
    joined = {each.task for each in runs if 1 < len(each.items) < BATCH + 1}
    graph = record.solution.graph
    return losses, weights, sum(graph.tasks[task].adds for task in joined)


def examples(executable: heteroplace.Executable, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape, dtype in executable.manifest.inputs:
        if dtype.startswith("int"):
            most = 2 if name in ("kinds", "mask") else VOCABULARY
            found[name] = rng.integers(0, most, shape).astype(dtype)
        else:
            found[name] = rng.standard_normal(shape).astype(dtype)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(len(cores()) < 2, reason="two ranks need two cores")
@pytest.mark.parametrize("name", NETWORKS)
def test_transformers_train_alike_whenever_gradients_are_summed(name: str) -> None:
    found = from_onnx(NETWORKS[name][0](**SMALL, seed=0), keep_weights=True)
    losses, weights, joined = trained(found, name, degrees="1,1,1,1")
    assert joined == 0
    for degrees in ("1,1,2,4", "2,1,1,2", "1,2,1,4"):
        own, state, joined = trained(found, name, degrees=degrees, weight_gradients="end")
        assert joined > 10, degrees
        assert own == pytest.approx(losses, rel=1e-5)
        for weight, value in weights.items():
            if weight in state:
                np.testing.assert_allclose(state[weight], value, rtol=1e-4, atol=1e-5)
