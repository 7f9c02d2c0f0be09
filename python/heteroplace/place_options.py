"""What the pass `HeteroPlace` can be told: its options and where costs may come from. No TVM."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from heteroplace.effort_option import EFFORT_HELP, EFFORTS, NORMAL, with_effort
from heteroplace.errors import SolverError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.demands import memory_limit, with_layers, with_no_split, with_pins
from heteroplace.model.graph import TaskGraph
from heteroplace.option_types import budget_bytes, check_types, memory_pair
from heteroplace.options import (
    by_attribute,
    option,
    options_of,
    pair,
    pairs,
)
from heteroplace.precision_option import (
    VERIFY_MODES,
    Precision,
    check_has_use,
    check_precision,
    check_verify,
    precision_entry,
)
from heteroplace.registry import added_plugins
from heteroplace.solve import SOLVERS, SolveOptions, get_solver
from heteroplace.state_option import (
    StateNames,
    check_max_sessions,
    check_state,
    joined_state,
    state_entry,
)

CostSource = CostTable | str | os.PathLike[str] | Callable[[TaskGraph, Cluster], CostTable]
"""How a caller says where costs come from: the name of a model, a table, a file, or a function."""

Arrays = Mapping[str, object] | str | os.PathLike[str]
"""Arrays by the name of an input, or a file of them (.npz)."""

COST_MODELS = {
    "measure": "heteroplace.measure.cost_models.measured:MeasuredCosts",
    "isolated": "heteroplace.measure.cost_models.isolated_costs:IsolatedCosts",
    "predict": "heteroplace.measure.cost_models.predicted:PredictedCosts",
    "estimate": "heteroplace.measure.cost_models.estimated:EstimatedCosts",
}
"""Ours by name; a new one is one more line. Tables and files have no name: see
`choose_cost_model`."""


def cost_model_names() -> tuple[str, ...]:
    """Return the names of our cost models, then of those that packages register.

    Raises
    ------
    PluginError
        A package registers a name of ours, or two packages register one name.
    """
    return (*COST_MODELS, *added_plugins("cost_models", COST_MODELS))


MISSING = ("refuse", "measure", "predict", "estimate")
"""What to do about tasks and devices that a given cost table does not know."""

KERNELS = ("auto", "tvm", "best")
"""Values of the option `kernels`."""

LIBRARY_PRECISIONS = ("off", "float32", "tf32", "half")
"""Values of the options `cublas` and `cudnn`."""

STORE_ON, STORE_OFF = "on", "off"
"""Values of the option `store` that are no paths."""

_MEASURING = ("measure", "isolated", "predict")
"""Models that run kernels."""


@dataclass(frozen=True)
class PlaceOptions:
    """What the stages up to the plan are told beside `SolveOptions`."""

    solver: str = option(
        "auto",
        "the solver; `heteroplace solvers` lists them",
        choices=lambda: list(SOLVERS),
        metavar="SOLVER",
    )
    effort: str = option(NORMAL, EFFORT_HELP, choices=lambda: EFFORTS)
    costs: CostSource = option(
        "measure",
        "measure: run the model on each device of this machine, a clock around every kernel; "
        "isolated: each distinct kernel alone, quicker and less exact; predict: measure on the "
        "devices that are here and predict the others; estimate: from sizes and peak speeds, "
        "which are measured where the cluster has none and the cores are here; or a "
        "cost table (JSON)",
        metavar=lambda: f"{'|'.join(cost_model_names())}|FILE",
    )
    missing: str = option(
        "refuse",
        "what to do about tasks and devices that the cost table does not know: refuse, and name "
        "them; measure them on the devices that are here; predict them from the others; estimate "
        "them from sizes and peak speeds",
        choices=lambda: MISSING,
    )
    store: str | os.PathLike[str] | None = option(
        STORE_ON,
        "store of measured kernels: what it knows is not measured again, and what is measured goes "
        "into it; on: the user's, see `heteroplace costs`; off: everything is measured anew",
        metavar=f"{STORE_ON}|{STORE_OFF}|FILE",
    )
    kernels: str = option(
        "auto",
        "auto: ours where there are any (matrix products, plain, depthwise, 8-bit and Winograd "
        "convolutions, exp, tanh, ...); tvm: TVM's schedules, with the same bits as without "
        "placement but for NaN, integers divided by 0 or shifted too far, indices out of range, "
        "maxima of nothing but -inf, and float64 cast to float16; best: where the two differ both "
        "are measured, and each task has the one that makes the plan quicker",
        choices=lambda: KERNELS,
    )
    tuned: str = option(
        "on",
        "on: kernels that `heteroplace tune` found are used where they make the plan quicker, if "
        "the store has any of this model and processor, costs are measured and kernels are not "
        "TVM's alone; off: never",
        choices=lambda: ("on", "off"),
    )
    cublas: str = option(
        "off",
        "what NVIDIA's cuBLASLt multiplies in on the GPUs of this machine: each product of "
        "matrices that it can compute has its kernel where that makes the plan quicker; float32: "
        "exactly; tf32, half: numbers are rounded before they are multiplied, and added in "
        "float32; off: it is not used",
        choices=lambda: LIBRARY_PRECISIONS,
    )
    cudnn: str = option(
        "off",
        "what NVIDIA's cuDNN multiplies in on the GPUs of this machine: each convolution that it "
        "can compute has its kernel where that makes the plan quicker; values as of cublas",
        choices=lambda: LIBRARY_PRECISIONS,
    )
    precision: Precision = option(
        "float32",
        "what CPUs multiply in: float32; bf16: bfloat16 with float32 sums; int8: 8 bits, where "
        "weights have 4 or 8 bits; auto: bf16 where it is faster, as long as outputs stay within "
        "max_error; or PATTERN=bf16 for tasks, ops or layers; the last pattern that matches holds",
        metavar="PRECISION|PATTERN=PRECISION",
        parse=precision_entry,
        join=pairs,
    )
    max_error: float = option(
        0.01,
        "below float32, how far outputs may be from the reference, by their largest absolute value",
        metavar="RATIO",
        parse=float,
    )
    verify_inputs: Arrays | Sequence[Arrays] = option(
        (),
        "arrays by the name of an input (a file of numpy), on which outputs are compared as on "
        "made-up ones, and by which precision=auto judges",
        metavar="FILE.npz",
        join=tuple,
    )
    state: StateNames = option(
        dict,
        "which output replaces which input from call to call of a session; auto: found by names, "
        "such as past.0.key and present.0.key, or h and hn",
        metavar="auto|INPUT=OUTPUT",
        parse=state_entry,
        join=joined_state,
    )
    max_sessions: int = option(
        1,
        "sessions that are open at once: there must be memory for the state of so many; with state",
        metavar="N",
        parse=int,
    )
    pin: Mapping[str, str] = option(
        dict,
        "tasks, ops or layers of the imported model that must run on DEVICE, e.g. 'nn.conv2d=gpu0'",
        metavar="PATTERN=DEVICE",
        parse=pair,
        join=pairs,
    )
    exclude: Sequence[str] = option(
        (), "device that must not be used", metavar="DEVICE", join=tuple
    )
    inputs: Arrays | None = option(
        None,
        "arrays by the name of an input (a file of numpy), with which kernels are measured; "
        "default: made-up ones that are legal for the ops that read them",
        metavar="FILE.npz",
    )
    no_split: Sequence[str] = option(
        (),
        "tasks, ops or layers of the imported model that stay on one device together, e.g. "
        "'encoder.0.*'",
        metavar="PATTERN",
        join=tuple,
    )
    layers: Mapping[str, str] = option(
        dict,
        "layer of the imported model, with all below it (as in 'encoder.0'), or task, that must "
        "run on DEVICE; solution.layers() is such a map",
        metavar="LAYER=DEVICE",
        parse=pair,
        join=pairs,
    )
    max_memory: Mapping[str, str | int] = option(
        dict,
        "most memory that a device (or memory) may use, e.g. gpu0=10GiB; devices of one memory "
        "share it",
        metavar="DEVICE=SIZE",
        parse=memory_pair,
        join=pairs,
    )
    plan_in: str | os.PathLike[str] | None = option(
        None,
        "plan, solution or compiled model to take the plan from, of this graph: nothing is solved",
        metavar="FILE",
    )
    routes: str | os.PathLike[str] | None = option(
        None,
        "profile of the route decisions of this model, or records of them: capacities are chosen "
        "by them, and branches expected to cost accordingly (default: all of a router are alike)",
        metavar="FILE",
    )
    weights_budget: int | str | None = option(
        None,
        "most memory for the weights of branches, in each memory where branches run: with routes, "
        "of a model with routers; the others are loaded when they are used, or ahead (default: all "
        "stay)",
        metavar="SIZE",
    )
    verify: str = option(
        "auto",
        "compare one run of what was built with onnxruntime on the ONNX model, and fail where they "
        "differ; auto: if that can be done here, on: fail if it cannot",
        choices=lambda: list(VERIFY_MODES),
    )
    params: Mapping[str, Any] | None = None
    """Weights to bind into the module first; None: they are bound already."""
    progress: Callable[[str], None] | None = None
    """Called with a line of text whenever a stage or another long step begins."""

    def __post_init__(self) -> None:
        if self.progress is not None and not callable(self.progress):
            raise SolverError(f"progress is {self.progress!r}; expected a function of one text")
        for each in options_of(PlaceOptions):
            value, choices = getattr(self, each.attribute), each.choices and each.choices()
            if choices and each.name not in ("solver", "verify") and value not in choices:
                raise SolverError(f"{each.name}={value!r}; expected one of {', '.join(choices)}")
        for name, value in (("cublas", self.cublas), ("cudnn", self.cudnn)):
            if value != "off" and self.kernels == "tvm":
                raise SolverError(
                    f"{name}={value!r} and kernels='tvm' exclude each other: with the latter all "
                    f"kernels are TVM's; give one of them"
                )
        if self.weights_bytes is not None and self.routes is None:
            raise SolverError(
                f"weights_budget={self.weights_budget!r} is given without routes, which say what "
                f"is likely to be used: give routes=FILE, or run relay.transform.PreloadWeights"
            )
        is_model = isinstance(self.costs, str) and self.costs in cost_model_names()
        if self.missing != "refuse" and is_model:
            raise SolverError(
                f"missing={self.missing!r} says what to do about what a given cost table does not "
                f"know, and costs={self.costs!r} is none; leave it out, or give costs=FILE"
            )
        measures = is_model and self.costs != "estimate"
        if self.inputs is not None and not measures and self.missing != "measure":
            raise SolverError(
                f"inputs are what kernels are measured with, and costs={self.costs!r} measures "
                f"nothing; leave them out, or give costs={' or '.join(_MEASURING)}"
            )
        check_verify(self.verify)
        if self.verify_inputs:
            check_has_use(self.verify, self.precision)
        check_precision(self.precision, self.max_error, self.kernels)
        check_state(self.state)
        check_max_sessions(self.max_sessions, self.state)

    @property
    def may_be_tuned(self) -> bool:
        """Kernels that the store has of tuning may be used."""
        is_measured = isinstance(self.costs, str) and self.costs in ("measure", "isolated")
        has_store = self.store is not None and self.store != STORE_OFF
        return self.tuned == "on" and self.kernels != "tvm" and is_measured and has_store

    @property
    def weights_bytes(self) -> int | None:
        """The option `weights_budget` in bytes."""
        return budget_bytes(self.weights_budget)


OPTION_CLASSES = (PlaceOptions, SolveOptions)
"""The dataclasses whose options are keywords of the pass."""

GRAPH_OPTIONS = (
    *("solver", "missing", "pin", "exclude", "no_split", "layers", "max_memory", "plan_in"),
)
"""Of `PlaceOptions`, those of any task graph, wherever its costs come from."""

MODEL_OPTIONS = (
    *("effort", "store", "kernels", "tuned", "cublas", "cudnn", "precision", "max_error"),
    *("verify_inputs", "inputs", "routes", "weights_budget", "state", "max_sessions"),
)
"""Those that ask for a model: its kernels, what they are measured with, and its routers."""

_CALLER_ONLY = ("params", "progress", "solver_progress")
"""Keywords that are no options of a configuration or a command line; the last one is called with
what the solver reports (`SolveOptions.progress`)."""

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
    solver_progress = extra.pop("solver_progress", None)
    place, limits = by_attribute(OPTION_CLASSES, with_effort(rest), "HeteroPlace", SolverError)
    for entry in options_of(PlaceOptions):
        value = place.get(entry.attribute)
        if entry.join not in (None, tuple) and _is_list_of_texts(value):
            try:  # as a PassContext has it
                place[entry.attribute] = entry.join([entry.parse(each) for each in value])
            except ValueError as err:
                raise SolverError(f"{entry.name} {list(value)}: {err}") from err
    for cls, values in zip(OPTION_CLASSES, (place, limits), strict=True):
        check_types(cls, values, "HeteroPlace", SolverError)
    options = PlaceOptions(**place, **extra), SolveOptions(**limits, progress=solver_progress)
    check_options(*options)
    return options


def _is_list_of_texts(value: Any) -> TypeGuard[Sequence[str]]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and all(isinstance(each, str) for each in value)


def check_options(place: PlaceOptions, limits: SolveOptions) -> None:
    """Raise SolverError for a value that is wrong for every graph, or for options that clash."""
    for name, size in place.max_memory.items():
        memory_limit(name, size)
    if place.plan_in is None:
        get_solver(place.solver).check(limits)
        return
    default, defaults = PlaceOptions(), SolveOptions()
    clashes = [
        name
        for name, given, unset in (
            ("solver", place.solver, default.solver),
            ("coarsening", limits.coarsening, defaults.coarsening),
            ("engine", limits.engine, defaults.engine),
            ("list_parts", limits.list_parts, defaults.list_parts),
            ("kernels", place.kernels == "best", False),
        )
        if given != unset
    ]
    if clashes:
        raise SolverError(
            f"plan_in takes the plan of {os.fspath(place.plan_in)} and solves nothing; leave out "
            f"{' and '.join(clashes)}"
        )


def demanded_graph(graph: TaskGraph, cluster: Cluster, options: PlaceOptions) -> TaskGraph:
    """Return the graph whose tasks go only where the options let them: `pin`, `exclude`, `layers`
    and `no_split`.

    Raises
    ------
    ClusterError, SolverError, LoweringError
        See `with_pins`, `with_layers` and `with_no_split`.
    """
    pinned = with_pins(graph, cluster, options.pin, options.exclude)
    return with_no_split(with_layers(pinned, cluster, options.layers), options.no_split)
