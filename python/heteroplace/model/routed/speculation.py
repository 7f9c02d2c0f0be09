"""What a router is expected to decide, and what a branch that is begun before it saves or costs.

Cui et al., Optimizing Dynamic Neural Networks with Brainstorm (OSDI 2023), speculative routing.
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.model.units import format_ns


@dataclass(frozen=True)
class Prediction:
    """What a router is expected to decide."""

    router: str
    branches: tuple[int, ...]
    """Active ones, ascending."""
    probability: float | None
    """That all branches that are active are among them; None: unknown, and taken as it is."""


@dataclass(frozen=True)
class SpeculationGain:
    """What a prediction saves where it is right, and costs where it is wrong."""

    saved_ns: float
    miss_ns: float
    """What was begun in vain and stood in the way."""

    @property
    def least_share(self) -> float:
        """The prediction pays if it is right in more than this share of the runs; 1.0: never.

        >>> SpeculationGain(30.0, 10.0).least_share
        0.25
        """
        if self.saved_ns <= 0:
            return 1.0
        return self.miss_ns / (self.saved_ns + self.miss_ns)

    def is_worth_it(self, probability: float) -> bool:
        """Tell whether a prediction that is right so often saves time."""
        return probability * self.saved_ns > (1 - probability) * self.miss_ns

    def text(self, probability: float) -> str:
        """Return the inequality with its numbers."""
        sign = ">" if self.is_worth_it(probability) else "<="
        return (
            f"{probability:.3f} x {format_ns(self.saved_ns)} {sign} {1 - probability:.3f} x "
            f"{format_ns(self.miss_ns)}"
        )


@dataclass(frozen=True)
class PlannedPrediction:
    """A prediction that a plan has work of."""

    prediction: Prediction
    gain: SpeculationGain
    """By the costs of the plan, simulated."""

    @property
    def is_on(self) -> bool:
        """Whether it is expected to pay; one that is taken as it is always does."""
        share = self.prediction.probability
        return share is None or self.gain.is_worth_it(share)

    def text(self) -> str:
        """Return it as a line."""
        prediction, gain = self.prediction, self.gain
        branches = ", ".join(map(str, prediction.branches))
        if prediction.probability is None:
            saved, miss = format_ns(gain.saved_ns), format_ns(gain.miss_ns)
            why = f"saves {saved}, a miss costs {miss}; as asked"
        else:
            why = gain.text(prediction.probability)
        return f"router {prediction.router!r}: branches {branches} predicted: {why}: " + (
            "yes" if self.is_on else "no"
        )
