"""Optimisers: a weight and its gradient -> the new weight, in Relay."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tvm import relay

from heteroplace.errors import TrainingError


class Optimizer(Protocol):
    """How weights follow their gradients."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of what it keeps for each weight: a tensor like the weight, at first zeros."""

    def update(
        self, weight: relay.Expr, gradient: relay.Expr, slots: Sequence[relay.Expr], dtype: str
    ) -> tuple[relay.Expr, ...]:
        """Return the new weight, and what is kept next (in the order of `slots`)."""


@dataclass(frozen=True)
class SGD:
    """Gradient descent: w - lr g."""

    lr: float
    "Learning rate, > 0."

    def __post_init__(self) -> None:
        _check_rate(self.lr)

    @property
    def slots(self) -> tuple[str, ...]:
        return ()

    def update(
        self, weight: relay.Expr, gradient: relay.Expr, slots: Sequence[relay.Expr], dtype: str
    ) -> tuple[relay.Expr, ...]:
        return (_descend(weight, gradient, self.lr, dtype),)


@dataclass(frozen=True)
class Momentum:
    """Gradient descent along a velocity v = momentum v + g: w - lr v.

    Sutskever et al., "On the importance of initialization and momentum in deep learning"
    (section 2, classical momentum), with the rate outside of the velocity, as frameworks have it.
    """

    lr: float
    "Learning rate, > 0."
    momentum: float = 0.9
    "From 0 to below 1."

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        if not 0 <= self.momentum < 1:
            raise TrainingError(f"momentum is {self.momentum}; expected 0 <= momentum < 1")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",)

    def update(
        self, weight: relay.Expr, gradient: relay.Expr, slots: Sequence[relay.Expr], dtype: str
    ) -> tuple[relay.Expr, ...]:
        velocity = relay.add(relay.multiply(slots[0], relay.const(self.momentum, dtype)), gradient)
        return _descend(weight, velocity, self.lr, dtype), velocity


OPTIMIZERS: MutableMapping[str, Callable[..., Optimizer]] = {"sgd": SGD, "momentum": Momentum}
"""By name, as functions of numbers; more may be added."""


def parse_optimizer(text: str) -> Optimizer:
    """Return the optimiser that a text names: "sgd:0.1", "momentum:0.1,0.9".

    Raises
    ------
    TrainingError
        There is none of this name, or it does not take these numbers.
    """
    name, _, numbers = text.partition(":")
    if name not in OPTIMIZERS:
        raise TrainingError(f"there is no optimiser {name!r}; there are {', '.join(OPTIMIZERS)}")
    try:
        return OPTIMIZERS[name](*(float(number) for number in numbers.split(",")))
    except (TypeError, ValueError) as err:
        raise TrainingError(
            f"optimiser {text!r}: {err}; write its numbers after a colon, as in 'sgd:0.1'"
        ) from err


def _check_rate(rate: float) -> None:
    if not 0 < rate < float("inf"):
        raise TrainingError(f"the learning rate is {rate}; expected a finite number above 0")


def _descend(weight: relay.Expr, direction: relay.Expr, rate: float, dtype: str) -> relay.Expr:
    return relay.subtract(weight, relay.multiply(direction, relay.const(rate, dtype)))
