"""What is known of how far outputs are off, as values: from the model's own reference, and from
float32 where layers were chosen for bfloat16."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InputDifference:
    """How far outputs are from the reference's on one of the option `verify_inputs`."""

    name: str
    """The file, or the position in the option."""
    max_relative_difference: float
    """As of `Verification`."""


@dataclass(frozen=True)
class Verification:
    """The outcome for all inputs: how far outputs are from the reference's, or why nobody knows.

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
    given_inputs: tuple[InputDifference, ...] = ()
    """What the caller gave to compare on, in addition to seeded inputs."""

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
        return "; ".join(filter(None, (text, self._given_text, self.note)))

    @property
    def _given_text(self) -> str:
        """On which inputs; "": on seeded ones alone."""
        if not self.given_inputs:
            return ""
        worst = max(self.given_inputs, key=lambda each: each.max_relative_difference)
        return (
            f"compared on seeded inputs and {len(self.given_inputs)} of verify_inputs, of which "
            f"{worst.name} is furthest off: {_short(worst.max_relative_difference)}"
        )


NOT_FASTER = "not faster"
"""A run with its kernel in bfloat16 would take as long, or longer."""
TOO_FAR_OFF = "too far off"
"""With it in bfloat16, beside the others, the outputs would differ by too much."""
NOT_MEASURED = "not measured"
"""A device of the plan is not in this machine."""


@dataclass(frozen=True)
class LayerPrecision:
    """What a task multiplies in that has a kernel in bfloat16 where it runs."""

    task: str
    """Its name; `Task.layers` has those of the imported model."""
    precision: str
    """"bf16" or "float32"."""
    reason: str = ""
    """Why it is in float32: NOT_FASTER, TOO_FAR_OFF or NOT_MEASURED; "": it is not."""
    error: float | None = None
    """Largest difference of an output from float32, divided by the largest absolute value of that
    output, with `together` tasks in bfloat16; None: not measured, or some value is no number."""
    together: int = 0
    """How many tasks were in bfloat16 for `error`, this one among them; 1: it alone; 0: it was
    never tried."""
    float32_ns: int | None = None
    bf16_ns: int | None = None
    """The costs of both kernels; None: not known."""


@dataclass(frozen=True)
class PrecisionChoice:
    """Which tasks `precision="auto"` has put into bfloat16, and why not the others."""

    max_error: float
    """The option: what `Verification.max_relative_difference` may be."""
    error: float | None
    """Of the plan, as `LayerPrecision.error`, on seeded inputs and `verify_inputs`; 0: it is in
    float32; None: it was not run."""
    layers: tuple[LayerPrecision, ...]
    """Each task that has a kernel in bfloat16 where it runs, in the order of the graph."""

    @property
    def num_bf16(self) -> int:
        """How many tasks are in bfloat16."""
        return sum(layer.precision == "bf16" for layer in self.layers)


def _short(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}"
