"""What was measured of a model: its graph, its cost table, and what that is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from heteroplace.costs.measurement import Measurement
from heteroplace.files.measurements import KernelKey
from heteroplace.measure.profile import Profile
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.simulate.interference import Interference


@dataclass(frozen=True)
class ModelProfile:
    """What was found out about a model."""

    graph: TaskGraph
    costs: CostTable
    profiles: dict[int, Profile]
    """By batch size."""
    interference: Interference | None = None
    """None: not asked for."""
    estimated_peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """What the estimated batch needs on each device that was measured, by its name."""

    @property
    def measurements(self) -> dict[KernelKey, Measurement]:
        """Of all batch sizes."""
        measurements: dict[KernelKey, Measurement] = {}
        for profile in self.profiles.values():
            measurements.update(profile.measurements)
        return measurements

    def sources(self) -> dict[str, int]:
        """Return how many cells of the cost table come from where, e.g. "measured, in place"."""
        counts: Counter[str] = Counter()
        for row in self.costs.rows:
            for cost in row:
                is_explained = cost.source == "measured"
                counts[f"{cost.source}, {cost.reason}" if is_explained else cost.source] += 1
        return dict(counts)
