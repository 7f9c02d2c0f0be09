"""What comparing a compiled network with its model's own reference found, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verification:
    """The outcome for one input: how far the outputs are from the reference's, or why nobody knows.

    Made by the part that imported the model; above the tolerance it raises VerificationError.
    """

    reference: str = ""
    """What it was compared with, e.g. "onnxruntime 1.22.1"; empty: it was not compared."""
    max_difference: float = 0.0
    """Largest absolute difference of an output value."""
    max_relative_difference: float = 0.0
    """Largest difference in an output, divided by the largest absolute value of that output."""
    tolerance: float = 0.0
    """What `max_relative_difference` may be."""
    note: str = ""
    """Why it was not compared, or what else is to be said."""

    @property
    def is_verified(self) -> bool:
        """Say whether outputs were compared."""
        return bool(self.reference)

    @property
    def text(self) -> str:
        """As one line.

        >>> Verification("ort 1.22", 2e-06, 5e-07, 1e-04).text
        'verified: at most 2e-06 from ort 1.22, 5e-07 of the largest output (allowed 0.0001)'
        """
        if not self.is_verified:
            return f"not verified: {self.note}"
        text = (
            f"verified: at most {_short(self.max_difference)} from {self.reference}, "
            f"{_short(self.max_relative_difference)} of the largest output "
            f"(allowed {_short(self.tolerance)})"
        )
        return f"{text}; {self.note}" if self.note else text


def _short(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}"
