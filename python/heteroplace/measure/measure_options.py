"""What is measured and how long, and what is reported meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

from heteroplace.costs.sampling import SamplingOptions
from heteroplace.costs.store import CostStore
from heteroplace.measure.rounds import LEAST_ROUNDS, ROUND_NS
from heteroplace.stage_log import Progress


@dataclass(frozen=True)
class ProfileOptions:
    """What is measured, and how long."""

    is_in_place: bool = True
    """Measure within a run of the whole network where that fits; else each kernel alone."""
    modes: tuple[str, ...] = ("hot",)
    """How kernels are measured alone; costs come from the first one."""
    skips_absent: bool = False
    """Leave costs on devices that cannot be measured on unknown; else they are an error."""
    batch: int = 1
    """Items that the inputs of the module hold; only noted."""
    store: CostStore | None = None
    """Where measurements are looked up and kept; None: everything is measured anew."""
    budget_s: float | None = None
    """Time for all measuring, compilation not included: samples become fewer, but never fewer than
    the least number. None: as long as the precision needs."""
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    """Of kernels alone."""
    least_rounds: int = LEAST_ROUNDS
    """Of the network in place; without a budget more, until others rested and times agree."""
    round_ns: int = ROUND_NS
    """A round of one device takes about this long: at least 3 runs, at most 100."""
    finishes_each: bool = False
    """Devices are measured in place one after the other, and each is kept before the next begins:
    who is killed loses one. Else in turns, so that they are measured in the same minutes."""
    progress: Progress | None = None
    """Takes stages as text; a `StageLog` takes counts too."""
