"""What the paper on DistIR prints: models, grids, their times, best configurations, correlations.

"DistIR: An Intermediate Representation and Simulator for Efficient Neural Network Distribution"
(arXiv 2111.05426), section 6: a DGX-2 with 16 V100 of 32 GB, simulated on a Xeon Gold 6132 of 56
cores at 2.6 GHz, float16. Nothing here was measured by us. GPT-2 13B is printed with a width of
5140, which its 40 heads do not divide; what they published with the paper has 5120, and so have we.
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.parts.parallel.transforms.degrees import Degrees

NUM_DEVICES = 16
ELEMENT_BYTES = 2


@dataclass(frozen=True)
class PublishedModel:
    """A model with its grid, and the minutes that it took."""

    name: str
    kind: str
    """"mlp", trained, or "gpt2", run forward."""
    layers: int
    width: int
    """d_model; the width of every layer of an MLP."""
    heads: int
    """0 for an MLP; not printed for all models."""
    gigabytes: float
    """Of the weights as printed, 1e9 bytes."""
    grid: int
    """Number of configurations."""
    trial_minutes: int
    """To run one configuration."""
    simulated_minutes: int
    """To simulate the grid, on 56 cores; 0: less than one."""
    total_minutes: int
    """To simulate the grid and run the ten best."""
    configurations: int
    """That were both simulated and run."""
    spearman: float
    """Rank correlation of their simulated with their real throughput."""
    p_below: float
    """Printed bound of the p-value of the correlation."""

    @property
    def is_training(self) -> bool:
        """Whether it is trained; else it is run forward."""
        return self.kind == "mlp"


MODELS = (
    PublishedModel("MLP 1B", "mlp", 16, 8192, 0, 2.2, 75, 2, 0, 20, 94, 0.97, 1e-56),
    PublishedModel("MLP 17B", "mlp", 64, 16384, 0, 34.4, 75, 6, 1, 61, 94, 0.98, 1e-62),
    PublishedModel("MLP 103B", "mlp", 96, 32768, 0, 206.2, 75, 19, 2, 192, 71, 0.99, 1e-64),
    PublishedModel("GPT-2 1.6B", "gpt2", 24, 2048, 16, 3.2, 1035, 3, 35, 65, 94, 0.98, 1e-62),
    PublishedModel("GPT-2 13B", "gpt2", 40, 5120, 40, 25.8, 1035, 6, 58, 118, 75, 0.94, 1e-34),
    PublishedModel("GPT-2 175B", "gpt2", 96, 12288, 96, 394.4, 1035, 19, 138, 328, 78, 0.84, 1e-21),
)

INFERENCE_BATCHES = tuple(2**power for power in range(7, 21))
"""Batches of the grids of GPT-2."""


@dataclass(frozen=True)
class PublishedBest:
    """The best configuration of a model and batch, and by how much pure ones were slower."""

    model: str
    batch: int
    degrees: Degrees
    over_data: float | None
    """Its speed over that of the best pure data parallelism; None: not runnable, or not printed."""
    over_tensor: float | None
    over_pipeline: float | None


# Batch: D, T, P, K; speed over pure D, T, P.
_MLP_1B = {
    128: (1, 16, 1, 1, 7.5, 1.1, 21.7),
    256: (1, 16, 1, 1, 6.3, 1.1, 21.2),
    512: (1, 16, 1, 1, 4.1, 1.0, 12.9),
    1024: (1, 16, 1, 1, 2.9, 1.0, 9.5),
    2048: (2, 8, 1, 1, 2.2, 1.2, 7.2),
    4096: (4, 4, 1, 1, 1.7, 1.4, 5.1),
    8192: (4, 4, 1, 1, 1.3, 1.6, 3.6),
    16384: (8, 2, 1, 1, 1.1, 1.9, 2.7),
    32768: (8, 2, 1, 1, 1.0, 2.1, 2.3),
    65536: (16, 1, 1, 1, 1.0, None, 2.3),
    131072: (16, 1, 1, 1, 1.0, None, 2.4),
    262144: (16, 1, 1, 1, 1.0, None, 2.4),
}
_MLP_17B = {
    128: (1, 16, 1, 1, None, 1.1, 43.8),
    256: (1, 16, 1, 1, None, 1.0, 35.3),
    512: (1, 16, 1, 1, None, 1.0, 22.4),
    1024: (1, 16, 1, 1, None, 1.0, 15.6),
    2048: (1, 16, 1, 1, None, 1.0, 10.0),
    4096: (2, 8, 1, 1, None, 1.1, 6.1),
    8192: (4, 4, 1, 1, None, 1.2, 3.7),
    16384: (4, 4, 1, 1, None, None, 2.4),
    32768: (2, 4, 2, 8, None, None, 1.5),
    65536: (4, 2, 2, 8, None, None, 1.3),
    131072: (4, 2, 2, 32, None, None, None),
}
_MLP_103B = {
    128: (1, 16, 1, 1, None, 1.0, 61.7),
    256: (1, 16, 1, 1, None, 1.0, None),
    512: (1, 16, 1, 1, None, 1.0, None),
    1024: (1, 16, 1, 1, None, 1.0, None),
}
_GPT2 = {
    "GPT-2 1.6B": (32768, (16, 1, 1, 1, 1.0, 3.7, 2.9)),
    "GPT-2 13B": (16384, (16, 1, 1, 1, 1.0, 2.6, 2.0)),
    "GPT-2 175B": (1024, (1, 8, 2, 2, None, 1.3, 5.6)),
}

_Row = tuple[int, int, int, int, float | None, float | None, float | None]


def _best(model: str, batch: int, row: _Row) -> PublishedBest:
    data, tensor, pipeline, micro_batches, *over = row
    return PublishedBest(model, batch, Degrees(data, tensor, pipeline, micro_batches), *over)


MLP_BEST = tuple(
    _best(model, batch, row)
    for model, rows in (("MLP 1B", _MLP_1B), ("MLP 17B", _MLP_17B), ("MLP 103B", _MLP_103B))
    for batch, row in rows.items()
)
"""27 rows."""
GPT2_BEST = tuple(_best(model, batch, row) for model, (batch, row) in _GPT2.items())
"""Three rows."""


def published_model(name: str) -> PublishedModel:
    """Return the model of that name, which is one of MODELS."""
    return next(model for model in MODELS if model.name == name)
