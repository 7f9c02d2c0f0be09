"""Relay network -> one step of training it, in Relay."""

from heteroplace.relay.training.losses import LOSSES, CrossEntropy, Loss, MeanSquaredError
from heteroplace.relay.training.optimizers import (
    OPTIMIZERS,
    SGD,
    Momentum,
    Optimizer,
    parse_optimizer,
)
from heteroplace.relay.training.step import TrainingStep, training_step

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
