"""The pass `HeteroPlace(cluster)`: a Relay module in, the same module placed over a cluster out.

The whole pipeline in one readable function (`place`): prepare the module without regard to any
target, cut it into tasks along TVM's own fusion, cost each task on each device, solve placement
and order, write the plan into the module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch

import numpy as np
import tvm
from tvm import relay

from heteroplace.codegen.executable import Executable, build_annotated
from heteroplace.costs.predict import predict_costs
from heteroplace.costs.roofline import estimate_costs
from heteroplace.costs.store import CostStore
from heteroplace.errors import (
    ClusterError,
    CostMismatchError,
    LoweringError,
    PlanError,
    SolverError,
)
from heteroplace.files.cluster import load_cluster
from heteroplace.files.costs import load_costs
from heteroplace.machine.local import local_cluster
from heteroplace.measure.interference import measure_interference
from heteroplace.measure.options import ProfileOptions, Progress
from heteroplace.measure.profile import measure_costs, with_workspaces
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import Task, TaskGraph
from heteroplace.model.solution import Solution
from heteroplace.relay.annotate.writer import annotate, read_solution
from heteroplace.relay.tasks.extract import Extraction, extract, neutral_module
from heteroplace.relay.tasks.prepare import prepare
from heteroplace.run.executor import missing_devices
from heteroplace.solve.expected import choose_expected
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.registry import get_solver
from heteroplace.solve.solution import make_solution

_MEASURED = ("measure", "isolated", "predict")
"""Values of the option `costs` that run kernels on this machine."""

CostSource = CostTable | str | os.PathLike[str] | Callable[[TaskGraph, Cluster], CostTable]


@dataclass(frozen=True)
class HeteroPlaceOptions:
    """Options of the pass; every field is a keyword of `HeteroPlace`."""

    solver: str = "auto"
    """Name of a solver (`heteroplace.solve.base.SOLVERS`)."""
    objective: str = "latency"
    """What is minimised."""
    time_limit: float = 10.0
    """Seconds that the solver may take."""
    seed: int = 0
    """Seed of everything random in the solver."""
    costs: CostSource = "measure"
    """"measure": run the network on each device of this machine, with a clock around every kernel.
    "isolated": run each distinct kernel alone, which is quicker and less exact. "predict": measure
    on the devices that are here, and predict the others from that and from their figures, or the
    known ones of their model (`heteroplace costs devices`). "estimate": from sizes and the peak
    speeds in the cluster, or else those of known `model`s. Or a cost table, the path of one, or a
    function that makes one."""
    store: str | os.PathLike[str] | None = None
    """Path of a store of measured kernels (`heteroplace.costs.store`): what it knows is not
    measured again, and what is measured goes into it. None: all is measured, for this build alone.
    """
    pin: Mapping[str, str] = field(default_factory=dict)
    """Pattern (`fnmatch`) of task names, ops or layers of the imported model -> name of the
    device that must run them."""
    exclude: Sequence[str] = ()
    """Names of devices that must not be used."""
    params: Mapping[str, tvm.nd.NDArray] | None = None
    """Weights to bind into the module first; None: they are bound already."""
    progress: Progress | None = None
    """Called with a line of text whenever something long begins."""


class _HeteroPlacePass:
    """Implementation of the pass for TVM's decorator; one object for one set of options."""

    def __init__(self, cluster: Cluster, options: HeteroPlaceOptions) -> None:
        self.cluster = cluster
        self.options = options

    def transform_module(
        self, mod: tvm.IRModule, context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Place `mod`, unless it is placed on this cluster already."""
        del context  # the opt level is read by the passes inside
        placed = read_solution(mod)
        if placed is None:
            return annotate(*place(mod, self.cluster, self.options))
        if placed.cluster.digest() != self.cluster.digest():
            raise PlanError(
                f"the module is placed on cluster {placed.cluster.name!r} already; to place it on "
                f"{self.cluster.name!r}, start from the module before the first HeteroPlace"
            )
        return mod


def HeteroPlace(  # noqa: N802  (TVM's passes are factories named like classes)
    cluster: Cluster | str | os.PathLike[str], **options: object
) -> tvm.transform.ModulePass:
    """Place every op of a module on a device of `cluster`, to run as fast as can be.

    Parameters
    ----------
    cluster
        A cluster, the path of a cluster file, the name of a ready-made one, or "local": the CPU
        of this machine.
    options
        Fields of `HeteroPlaceOptions`.

    Returns
    -------
    pass
        A Relay module pass. Its result is an ordinary Relay module with `on_device` and
        `device_copy`; the plan travels along as an attribute of `main`. Running the pass on its
        own output changes nothing.

    Raises
    ------
    ClusterError
        The cluster file is wrong.
    SolverError
        There is no such option.

    Examples
    --------
    >>> seq = tvm.transform.Sequential([relay.transform.HeteroPlace(cluster)])  # doctest: +SKIP
    """
    known = HeteroPlaceOptions.__dataclass_fields__
    unknown = [name for name in options if name not in known]
    if unknown:
        raise SolverError(
            f"HeteroPlace has no option {', '.join(unknown)}; it has: {', '.join(known)}"
        )
    if cluster == "local":
        cluster = local_cluster()
    elif not isinstance(cluster, Cluster):
        cluster = load_cluster(cluster)
    make = tvm.transform.module_pass(_HeteroPlacePass, opt_level=0, name="HeteroPlace")
    return make(cluster, HeteroPlaceOptions(**options))  # type: ignore[arg-type]


def place(
    mod: tvm.IRModule, cluster: Cluster, options: HeteroPlaceOptions
) -> tuple[Extraction, Solution]:
    """Cut `mod` into tasks and place them; the steps of the pass before annotation.

    Raises
    ------
    UnsupportedRelayError
        The module has control flow or dynamic shapes.
    ClusterError, InfeasibleError, MissingCostError, SolverError
        See the steps.
    """
    say = options.progress or (lambda line: None)
    _check_reachable(cluster)
    solver = get_solver(options.solver)
    # Made first: wrong options are told before minutes of measuring.
    limits = SolveOptions(
        objective=options.objective, time_limit_s=options.time_limit, seed=options.seed
    )
    if options.params:
        main = relay.build_module.bind_params_by_name(mod["main"], dict(options.params))
        mod = tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main})
    say("optimising the network")
    extraction = extract(prepare(mod))
    graph = _with_pins(extraction.graph, cluster, options)
    neutral = neutral_module(extraction)
    if options.costs in _MEASURED:
        say(f"compiling {len(graph.tasks)} tasks")
        skips_absent = options.costs == "predict"
        graph = with_workspaces(neutral, graph, cluster, skips_absent=skips_absent)
    elif isinstance(options.costs, (str, os.PathLike)) and options.costs != "estimate":
        graph = _graph_of_file(options.costs, neutral, graph, cluster)
    extraction = replace(extraction, graph=graph)
    costs = _costs(neutral, graph, cluster, options)
    say(f"solving: {len(graph.tasks)} tasks on {len(cluster.devices)} devices")
    problem = Problem(graph, cluster, costs)
    result = solver.solve(problem, limits)
    if options.costs != "measure" or len(set(problem.native.placement(result.plan.steps))) == 1:
        return extraction, make_solution(problem, result)
    interference = measure_interference(neutral, graph, cluster, options.progress)
    chosen, expected = choose_expected(problem, result, interference, limits.min_gain_ratio)
    return extraction, make_solution(problem, chosen, expected)


def _check_reachable(cluster: Cluster) -> None:
    """Raise ClusterError unless data can go from the host memory to every device and back."""
    if cluster.host is None:
        raise ClusterError(
            f"cluster {cluster.name!r} names no host memory, so a model could neither be fed nor "
            f'read; add "host" to the cluster'
        )
    for device in cluster.devices:
        ways = ((cluster.host, device.memory), (device.memory, cluster.host))
        if not all(cluster.is_reachable(src, dst) for src, dst in ways):
            raise ClusterError(
                f"cluster {cluster.name!r}: no links lead from the host memory to device "
                f"{device.name!r} and back; add them, or leave the device out"
            )


def _graph_of_file(
    path: str | os.PathLike[str], neutral: tvm.IRModule, graph: TaskGraph, cluster: Cluster
) -> TaskGraph:
    """The graph that a cost file is for: `graph`, or what `heteroplace profile` makes of it.

    That notes the scratch memory of compiled kernels, which only the machine it is for can tell.
    """
    try:
        load_costs(path, graph, cluster)
    except CostMismatchError:
        names = [device.name for device in cluster.devices]
        if missing_devices(cluster, names):
            raise
        return with_workspaces(neutral, graph, cluster)
    return graph


def _costs(
    neutral: tvm.IRModule, graph: TaskGraph, cluster: Cluster, options: HeteroPlaceOptions
) -> CostTable:
    source = options.costs
    if isinstance(source, CostTable):
        source.check(graph, cluster)
        return source
    if source in _MEASURED:
        with nullcontext() if options.store is None else CostStore(options.store) as store:
            chosen = ProfileOptions(store=store, skips_absent=source == "predict")
            is_in_place = source != "isolated"
            table = measure_costs(neutral, graph, cluster, options.progress, is_in_place, chosen)
        return predict_costs(graph, cluster, table) if source == "predict" else table
    if source == "estimate":
        return estimate_costs(graph, cluster)
    if isinstance(source, (str, os.PathLike)):
        return load_costs(source, graph, cluster)
    table = source(graph, cluster) if callable(source) else source
    if not isinstance(table, CostTable):
        raise SolverError(
            f"costs must be 'measure', 'isolated', 'predict', 'estimate', a CostTable, the path of "
            f"one, or a function (graph, cluster) that returns one; got {table!r}"
        )
    table.check(graph, cluster)
    return table


def _with_pins(graph: TaskGraph, cluster: Cluster, options: HeteroPlaceOptions) -> TaskGraph:
    """Restrict the devices of tasks as `pin` and `exclude` say."""
    if isinstance(options.exclude, str):
        raise SolverError(f"exclude takes a list of names: exclude=[{options.exclude!r}]")
    for name in (*options.pin.values(), *options.exclude):
        cluster.device_id(name)  # raises ClusterError, which lists the names there are
    for pattern, name in options.pin.items():
        if name in options.exclude:
            raise SolverError(f"pin: {pattern!r} goes to {name!r}, which is excluded; drop one")
    allowed = tuple(d.name for d in cluster.devices if d.name not in options.exclude)
    if not allowed:
        raise SolverError("every device is excluded; leave at least one")
    matched: set[str] = set()
    tasks = []
    for task in graph.tasks:
        devices = allowed if options.exclude else None
        for pattern, device in options.pin.items():
            if any(fnmatch(name, pattern) for name in _names(task)):
                matched.add(pattern)
                devices = (device,)
        tasks.append(replace(task, devices=devices))
    unmatched = [pattern for pattern in options.pin if pattern not in matched]
    if unmatched:
        names = ", ".join(task.name for task in graph.tasks[:8])
        raise SolverError(
            f"pin: no task matches {', '.join(unmatched)}; tasks are called like: {names}"
        )
    return replace(graph, tasks=tuple(tasks))


def _names(task: Task) -> list[str]:
    """All names that a pin may mean: the task's, its ops', and those of the layers inside."""
    layers = [member.rpartition(":")[0] for member in task.members]
    return [task.name, *task.op.split("+"), *filter(None, layers)]


def build(
    mod: tvm.IRModule,
    cluster: Cluster | str | os.PathLike[str] | None = None,
    params: Mapping[str, tvm.nd.NDArray | np.ndarray] | None = None,
    **options: object,
) -> Executable:
    """Place a module, unless it is placed already, and compile it into one executable.

    Parameters
    ----------
    mod
        A Relay module, placed by `HeteroPlace` or not.
    cluster
        Where to place it; may be left out if the module is placed.
    params
        Weights, if they are not bound into the module.
    options
        Options of `HeteroPlace`.

    Raises
    ------
    LoweringError
        No cluster for a module that is not placed; weights for one that was placed without them.
    """
    placed = read_solution(mod)
    if placed is not None:
        names = [parameter.name_hint for parameter in mod["main"].params]
        unbound = [name for name in names if params is not None and name in params]
        if unbound:
            raise LoweringError(
                f"the module was placed before its weights ({', '.join(unbound[:4])}, ...) were "
                f"bound: pass params= to HeteroPlace, or bind them before"
            )
    elif cluster is None:
        raise LoweringError("the module is not placed; give build() a cluster, or run HeteroPlace")
    if cluster is not None:
        mod = HeteroPlace(cluster, params=params, **options)(mod)
    return build_annotated(mod)
