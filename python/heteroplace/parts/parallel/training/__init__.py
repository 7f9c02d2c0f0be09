"""Relay network -> one step of training it, in Relay."""

from heteroplace.parts.parallel.training.losses import LOSSES, CrossEntropy, Loss, MeanSquaredError
from heteroplace.parts.parallel.training.optimizers import (
    OPTIMIZERS,
    SGD,
    Momentum,
    Optimizer,
    parse_optimizer,
)
from heteroplace.parts.parallel.training.step import TrainingStep, training_step

__all__ = [
    "LOSSES",
    "OPTIMIZERS",
    "SGD",
    "CrossEntropy",
    "Loss",
    "MeanSquaredError",
    "Momentum",
    "Optimizer",
    "TrainingStep",
    "parse_optimizer",
    "training_step",
]
