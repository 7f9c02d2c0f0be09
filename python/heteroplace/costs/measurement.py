"""One measured kernel: what was measured, where and how, and what came out."""

from __future__ import annotations

from dataclasses import dataclass

NEAR_CORES_NS = 100
"""A cache line goes from core to core in less than this where they share a cache."""


@dataclass(frozen=True)
class Conditions:
    """The state of the machine during a measurement."""

    measured_at: str
    """Date and time in UTC, ISO 8601, to the second."""
    tvm: str
    """Version of TVM."""
    hop_ns: int | None = None
    """Time of a cache line from core to core (`Executor.core_to_core_ns`); None: unknown."""
    others_cores: float = 0.0
    """How many cores other programs used meanwhile."""


@dataclass(frozen=True)
class Measurement:
    """What was measured of one kernel."""

    wall_ns: int
    """Median over the samples."""
    spread_ns: int
    """Half of the interquartile range of the wall times."""
    cpu_ns: int
    """Median processor time of a call, all its threads together."""
    num_samples: int
    op: str
    """What it computes, e.g. "nn.conv2d+add+nn.relu"."""
    shapes: str
    """Its arguments, e.g. "float32[1,64,56,56] float32[64,64,3,3] -> float32[1,64,56,56]"."""
    flops: int
    """Floating-point operations of a call; 0: none or unknown."""
    bytes: int
    """Bytes of all arguments, each once."""
    conditions: Conditions
