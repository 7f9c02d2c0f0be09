"""What sharding a model can be told: one description for keywords, passes and command lines.

No TVM is needed here, so that a command line is checked before it is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from heteroplace.errors import ShardingError
from heteroplace.option_types import check_types
from heteroplace.options import NEEDED, by_attribute, count, option
from heteroplace.parts.parallel.transforms.degrees import Degrees, parse_degrees
from heteroplace.parts.parallel.transforms.schedules import SCHEDULES
from heteroplace.parts.parallel.transforms.strategy import SHARDED_GRADIENTS
from heteroplace.place_options import STORE_ON

AUTO = "auto"
MEASURE, ESTIMATE = COSTS = ("measure", "estimate")
"""Kernels are run on the devices of this machine; or sizes are divided by peak speeds."""
EACH: Literal["each"] = "each"
END: Literal["end"] = "end"
WEIGHT_GRADIENTS = (AUTO, EACH, END)
"""When gradients of weights are summed over microbatches: as each of them is computed, or at once
behind the last one; or what is faster."""
LOSS = "mse"
"""What is minimised where nothing else is said."""
_PARTS = ("data", "tensor", "pipeline", "micro_batches")
_ZERO_LEVELS = range(4)
RUN_BEST = 5
"""So many of the best plans are run by default, where costs are measured."""


def _degrees(text: str) -> Degrees | str:
    return AUTO if text == AUTO else parse_degrees(text)


def _given_degrees(given: Any) -> Any:
    """Degrees as (D, T, P[, K]) or as a text, read; anything else as it is."""
    if isinstance(given, str):
        return _degrees(given)
    if isinstance(given, (tuple, list)):
        return parse_degrees(",".join(map(str, given)))
    return given


def _natural(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ValueError(f"expected a whole number >= 0, got {text!r}")
    return int(text)


def _level(text: str) -> int:
    if text not in map(str, _ZERO_LEVELS):
        raise ValueError(f"expected 0, 1, 2 or 3, got {text!r}")
    return int(text)


def _cuts(text: str) -> tuple[int, ...]:
    return tuple(map(count, text.split(",")))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


@dataclass(frozen=True)
class ShardOptions:
    """How a model is shared by several devices."""

    batch: int = option(NEEDED, "rows of the whole batch", metavar="N", parse=count)
    degrees: Degrees | str = option(
        AUTO,
        "replicas, lanes, stages and microbatches, or auto: the fastest that fit",
        metavar="auto|D,T,P[,K]",
        parse=_degrees,
    )
    schedule: str = option(
        "1f1b", "the order of the microbatches of a stage", choices=lambda: list(SCHEDULES)
    )
    zero: int = option(
        0,
        "level of ZeRO: state of the optimiser (1), gradients too (2), weights too (3) lie at one "
        "replica each",
        metavar="0|1|2|3",
        parse=_level,
    )
    recompute_every: int = option(
        0,
        "compute so many layers together again before their backward passes, instead of keeping "
        "what they made; 0: none",
        name="recompute",
        metavar="N",
        parse=_natural,
    )
    cuts: tuple[int, ...] | None = option(
        None,
        "the first layer of each stage but the first one; default: as many layers in each",
        metavar="N,N",
        parse=_cuts,
    )
    devices: tuple[str, ...] | None = option(
        None,
        "the device of each rank; default: devices of different memories first",
        metavar="NAME,NAME",
        parse=_names,
    )
    optimizer: str | None = option(
        None,
        "train, and update weights so: sgd:RATE, momentum:RATE,MOMENTUM",
        metavar="NAME:NUMBERS",
    )
    loss: str = option(LOSS, "what is minimised when training", metavar="NAME")
    prediction: int | None = option(
        None,
        "position of the output that is trained; needed where there are several",
        metavar="N",
        parse=_natural,
    )
    weight_gradients: str = option(
        AUTO,
        "when gradients of weights are summed over microbatches: each: as each is computed; end: "
        "all at once behind the last one, which is less work and keeps more; auto: what fits and "
        "is faster",
        choices=lambda: WEIGHT_GRADIENTS,
    )
    costs: str = option(
        MEASURE,
        "measure: kernels are run on the devices, which must be in this machine; estimate: from "
        "sizes and peak speeds, which are measured on cores that are here if the cluster has none",
        choices=lambda: COSTS,
    )
    store: str | os.PathLike[str] | None = option(
        STORE_ON, "the store of measured kernels: on, off, or a file", metavar="on|off|FILE"
    )
    run_best: int | None = option(
        None,
        "build and run so many of the best here too, and take the fastest; default: "
        f"{RUN_BEST} by measured costs if there are several, else 0",
        metavar="N",
        parse=_natural,
    )
    uneven: bool = option(
        False, "share heads unevenly where the lanes do not divide them", name="uneven"
    )
    progress: Callable[[str], None] | None = field(default=None, compare=False)
    """Called with a line of text whenever something long begins."""

    @property
    def is_training(self) -> bool:
        """Whether a step of training is planned; else inference."""
        return self.optimizer is not None

    @property
    def most_run(self) -> int:
        """How many plans are built and run, at most, to take the fastest."""
        if self.run_best is not None:
            return self.run_best
        return RUN_BEST if self.costs == MEASURE else 0

    def say(self, text: str) -> None:
        """Tell what begins."""
        if self.progress is not None:
            self.progress(text)


def read_shard_options(given: Mapping[str, Any]) -> ShardOptions:
    """Return the options that keywords give; degrees also as data, tensor, pipeline, micro_batches.

    >>> str(read_shard_options({"batch": 8, "data": 2}).degrees)
    '2/1/1/1'
    >>> str(read_shard_options({"batch": 8, "degrees": (1, 1, 2), "cuts": [2]}).degrees)
    '1/1/2/1'

    Raises
    ------
    ShardingError
        There is no such option, or a value is wrong.
    """
    rest = {name: value for name, value in given.items() if name not in (*_PARTS, "progress")}
    parts = {name: given[name] for name in _PARTS if name in given}
    if parts and "degrees" in rest:
        raise ShardingError(
            f"degrees={rest['degrees']!r} and {', '.join(parts)} say the same twice; leave one out"
        )
    if parts:
        rest["degrees"] = Degrees(**parts)
    if "batch" not in rest:
        raise ShardingError("the rows of the whole batch are missing: say batch=64, for example")
    (fields,) = by_attribute([ShardOptions], rest, "Shard", ShardingError)
    if "degrees" in fields:
        fields["degrees"] = _given_degrees(fields["degrees"])
    check_types(ShardOptions, fields, "Shard", ShardingError)
    listed = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    options = ShardOptions(**{**fields, **listed}, progress=given.get("progress"))
    check_shard_options(options)
    return options


def check_shard_options(options: ShardOptions) -> None:
    """Raise ShardingError, with all that is wrong, unless the options go together."""
    faults = []
    if options.batch < 1:
        faults.append(f"batch is {options.batch}; expected 1 row or more")
    if options.schedule not in SCHEDULES:
        faults.append(f"schedule {options.schedule!r}; there are {', '.join(SCHEDULES)}")
    if options.costs not in COSTS:
        faults.append(f"costs {options.costs!r}; expected {' or '.join(COSTS)}")
    if options.weight_gradients not in WEIGHT_GRADIENTS:
        expected = ", ".join(WEIGHT_GRADIENTS)
        faults.append(f"weight_gradients {options.weight_gradients!r}; expected one of {expected}")
    if options.weight_gradients == END and options.zero >= SHARDED_GRADIENTS:
        faults.append(
            f"weight_gradients 'end' sums gradients at once, and ZeRO of level {options.zero} as "
            f"each is computed, to keep none; say level 0 or 1, or weight_gradients 'each'"
        )
    if options.zero not in _ZERO_LEVELS:
        faults.append(f"zero is {options.zero}; expected 0, 1, 2 or 3")
    if options.recompute_every < 0:
        faults.append(f"recompute is {options.recompute_every}; expected 0 layers or more")
    if options.run_best is not None and options.run_best < 0:
        faults.append(f"run_best is {options.run_best}; expected 0 plans or more")
    of_training = options.zero or options.recompute_every or options.weight_gradients == END
    is_loss_said = options.loss != LOSS or options.prediction is not None
    if not options.is_training and (of_training or is_loss_said):
        faults.append(
            "loss, prediction, zero, recompute and weight_gradients are about training; say "
            "optimizer, or leave them out"
        )
    if isinstance(options.degrees, Degrees):
        num_stages = options.degrees.pipeline
        if options.cuts is not None and len(options.cuts) + 1 != num_stages:
            faults.append(
                f"{len(options.cuts)} cuts make {len(options.cuts) + 1} stages; degrees "
                f"{options.degrees} have {num_stages}"
            )
        if options.zero and options.degrees.data == 1:
            faults.append(
                f"ZeRO shares state between replicas, and degrees {options.degrees} have one"
            )
    elif options.cuts is not None:
        faults.append("cuts need degrees: auto tries several numbers of stages, all of equal ones")
    if faults:
        raise ShardingError("; ".join(faults))
