"""What is measured and how long, and what is told meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from heteroplace.costs.sampling import SamplingOptions
from heteroplace.costs.store import CostStore

Progress = Callable[[str], None]
"""Called with a line of text whenever something long begins."""


@dataclass(frozen=True)
class Step:
    """How far a profiling is: told before each measurement and after the last."""

    name: str
    """What is measured next: the ops of a kernel and the device, or the network and the device;
    "" at the end."""
    done: int
    """Measurements made so far."""
    total: int
    """Measurements to make, those that the store knew not among them."""
    remaining_s: float | None
    """Expected time to the end, from the time that the measurements so far took; None: none is."""


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
    num_rounds: int = 5
    """Of the network in place; without a budget up to three times as many, until others rest."""
    round_ns: int = 200_000_000
    """A round of one device takes about this long: at least 9 runs, at most 100."""
    finishes_each: bool = False
    """Devices are measured in place one after the other, and each is kept before the next begins:
    who is killed loses one. Else in turns, so that they are measured in the same minutes."""
    on_step: Callable[[Step], None] | None = None
    """Called before each measurement and after the last."""
    progress: Progress | None = None
