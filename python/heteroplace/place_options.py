"""What the pass `HeteroPlace` can be told: its options and where costs may come from. No TVM."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heteroplace.errors import SolverError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.options import Option, by_attribute, option, options_of, pair, seconds
from heteroplace.solve import SOLVERS, SolveOptions

CostSource = CostTable | str | os.PathLike[str] | Callable[[TaskGraph, Cluster], CostTable]
"""How a caller says where costs come from: the name of a model, a table, a file, or a function."""

COST_MODELS = {
    "measure": "heteroplace.measure.cost_models.measured:MeasuredCosts",
    "isolated": "heteroplace.measure.cost_models.isolated:IsolatedCosts",
    "predict": "heteroplace.measure.cost_models.predicted:PredictedCosts",
    "estimate": "heteroplace.measure.cost_models.estimated:EstimatedCosts",
}
"""By name; a new one is one more line. Tables and files have no name: see `choose_cost_model`."""


@dataclass(frozen=True)
class PlaceOptions:
    """What the stages up to the plan are told beside `SolveOptions`."""

    solver: str = option("auto", "the solver", choices=lambda: list(SOLVERS))
    costs: CostSource = option(
        "measure",
        "measure: run the model on each device of this machine, a clock around every kernel; "
        "isolated: each distinct kernel alone, quicker and less exact; predict: measure on the "
        "devices that are here and predict the others; estimate: from sizes and peak speeds; or a "
        "cost table (JSON)",
        metavar=f"{'|'.join(COST_MODELS)}|FILE",
    )
    store: str | os.PathLike[str] | None = option(
        None,
        "store of measured kernels: what it knows is not measured again, and what is measured goes "
        "into it",
        metavar="FILE",
    )
    pin: Mapping[str, str] = option(
        dict,
        "tasks, ops or layers of the imported model that must run on DEVICE, e.g. "
        "'nn.conv2d=gpu.0'",
        metavar="PATTERN=DEVICE",
        parse=pair,
        join=dict,
    )
    exclude: Sequence[str] = option(
        (), "device that must not be used", metavar="DEVICE", join=tuple
    )
    inputs: Mapping[str, Any] | str | os.PathLike[str] | None = option(
        None,
        "arrays by the name of an input (a file of numpy), with which kernels are measured; "
        "default: made-up ones that are legal for the ops that read them",
        metavar="FILE.npz",
    )
    params: Mapping[str, Any] | None = None
    """Weights to bind into the module first; None: they are bound already."""
    progress: Callable[[str], None] | None = None
    """Called with a line of text whenever a stage or another long step begins."""


OPTION_CLASSES = (PlaceOptions, SolveOptions)
"""The dataclasses whose options are keywords of the pass."""

_CALLER_ONLY = ("params", "progress")
"""Keywords that are no options of a configuration or a command line."""

CONFIG_PREFIX = "relay.HeteroPlace."
"""Of the keys of the pass in a PassContext."""


def read_options(given: Mapping[str, Any]) -> tuple[PlaceOptions, SolveOptions]:
    """Return keywords as options.

    Raises
    ------
    SolverError
        There is no such option, or a value is wrong.
    """
    extra = {name: given[name] for name in _CALLER_ONLY if name in given}
    rest = {name: value for name, value in given.items() if name not in extra}
    place, limits = by_attribute(OPTION_CLASSES, rest, "HeteroPlace", SolverError)
    if not isinstance(place.get("pin", {}), Mapping):  # as a PassContext has it
        try:
            place["pin"] = dict(map(pair, place["pin"]))
        except ValueError as err:
            raise SolverError(f"pin {list(place['pin'])}: {err}") from err
    return PlaceOptions(**place, **extra), SolveOptions(**limits)


def pass_config_types() -> dict[str, str]:
    """Return the keys of the pass in a PassContext's config, each with TVM's type of its values."""
    entries = [entry for cls in OPTION_CLASSES for entry in options_of(cls)]
    return {CONFIG_PREFIX + entry.name: _type_key(entry) for entry in entries}


def _type_key(entry: Option) -> str:
    """TVM's type of an option's values in a PassContext."""
    if entry.join is not None:
        return "Array"  # TVM would make an object of the fields of a map
    numbers = {int: "IntImm", float: "FloatImm", seconds: "FloatImm"}
    return numbers.get(entry.parse, "runtime.String")
