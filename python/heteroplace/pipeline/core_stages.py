"""The four stages that do the work, each from one value to the next.

    prepare   module, weights           -> Network (tasks, neutral module)
    compile   Network, cluster          -> CompiledNetwork (kernels, scratch memory of tasks)
    cost      CompiledNetwork, cluster  -> CostedNetwork (cost table, interference)
    solve     CostedNetwork             -> Solution (plan, bound, expected time, reasons)

`place_stages.py` calls them between smaller stages; benchmarks call them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import tvm

from heteroplace.entries import load_entry
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.cost_models import CostModel
from heteroplace.measure.cost_models.cost_model import known_interference
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable, table_from_rows
from heteroplace.model.graph import TaskGraph
from heteroplace.model.hosts import with_devices
from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.model.plan import Plan
from heteroplace.model.routed.route_profile import RouteProfile
from heteroplace.model.solution import Solution
from heteroplace.registry import load_plugin
from heteroplace.relay.expressions import element_types
from heteroplace.relay.tasks.network import Network, cut_network
from heteroplace.simulate.decisions import typical_capacity
from heteroplace.solve import Problem, SolveOptions, solve_network
from heteroplace.stage_log import StageLog

if TYPE_CHECKING:
    from heteroplace.simulate.interference import Interference

_HALF_TYPES = ("float16", "bfloat16")
_COMPUTES_IN_FLOAT32 = "heteroplace.relay.half_precision:computes_in_float32"
_IN_FLOAT32 = "heteroplace.relay.half_precision:InFloat32"
"""Loaded for modules in half precision."""
_UNROLLED = "heteroplace.relay.recurrent.unrolled:unrolled_for"
"""Loaded for modules with recurrent layers."""
_EXPANDED = "heteroplace.relay.cache.expanded:expanded_for"
"""Loaded for modules with caches of fixed capacity."""
_MEASURE_INTERFERENCE = "heteroplace.measure.measured_interference:measure_interference"
"""Loaded when costs are measured."""


@dataclass(frozen=True)
class CostedNetwork:
    """A network that is compiled and costed for a cluster, but not placed."""

    compiled: CompiledNetwork
    cluster: Cluster
    costs: CostTable
    measure_interference: Callable[[], Interference] | None
    """None: the costs were not measured here, and the store does not know it."""
    profile: RouteProfile | None = None
    """Of a network with routers, what is known of their decisions; None: nothing."""

    @property
    def graph(self) -> TaskGraph:
        """The tasks."""
        return self.compiled.graph

    @cached_property
    def interference(self) -> Interference | None:
        """How tasks slow each other, measured when it is first asked for."""
        return None if self.measure_interference is None else self.measure_interference()

    def interference_known(self) -> Interference:
        """Return `interference` where it can be measured."""
        assert self.interference is not None  # else it is not asked for
        return self.interference

    def on(self, names: Sequence[str]) -> CostedNetwork:
        """Return the same for the part of the cluster with only these devices."""
        ids = [self.cluster.device_id(name) for name in names]
        part = with_devices(self.cluster, ids)
        rows = tuple(tuple(row[index] for index in ids) for row in self.costs.rows)
        costs = table_from_rows(self.graph, part, rows)

        def interference() -> Interference:
            return self.interference_known().on(ids, part)

        measure = None if self.measure_interference is None else interference
        return CostedNetwork(self.compiled, part, costs, measure)


_RoutedSolver = Callable[[CostedNetwork, SolveOptions, str, Plan | None], Solution]


def prepare(
    mod: tvm.IRModule,
    params: Mapping[str, tvm.nd.NDArray] | None = None,
    log: StageLog | None = None,
    cluster: Cluster | None = None,
    digest: str = "",
) -> Network:
    """Optimise a module without regard to any target, and cut it into tasks.

    Parameters
    ----------
    params
        Weights to bind; None: they are bound already.
    cluster
        Whose devices the annotations of `mod` name, if it has any. If these are CPUs, half
        precision is computed in float32 (`relay/half_precision.py`); if not, recurrent layers
        are unrolled (`relay/recurrent`), and caches computed as a whole (`relay/cache`).
    digest
        `Network.model_digest` where it is known.

    Raises
    ------
    UnsupportedRelayError
        The module has control flow or dynamic shapes.
    LoweringError
        Its annotations contradict each other, or name devices that the cluster does not have.
    """
    with (log or StageLog()).stage("prepare", "Optimising the network") as figures:
        if cluster is not None:
            mod = _unrolled(_in_float32(mod, cluster), cluster)
        network = cut_network(mod, params, cluster=cluster, digest=digest)
        figures["tasks"] = len(network.graph.tasks)
    return network


def _in_float32(mod: tvm.IRModule, cluster: Cluster) -> tvm.IRModule:
    """Return a module that computes in float32 what no device computes in half precision."""
    mod = tvm.relay.transform.InferType()(mod)
    if element_types(mod).isdisjoint(_HALF_TYPES) or not load_entry(_COMPUTES_IN_FLOAT32)(cluster):
        return mod
    return load_entry(_IN_FLOAT32)()(mod)


def _unrolled(mod: tvm.IRModule, cluster: Cluster) -> tvm.IRModule:
    """Return a module whose recurrent layers and caches are ops that all devices have kernels
    for."""
    kinds = {traits_of(name).kind for name in tvm.relay.analysis.list_op_freqs(mod)}
    for kind, entry in (("recurrent", _UNROLLED), ("cache", _EXPANDED)):
        mod = load_entry(entry)(mod, cluster) if kind in kinds else mod
    return mod


def compile(
    network: Network, cluster: Cluster, model: CostModel, log: StageLog | None = None
) -> CompiledNetwork:
    """Lower a network as far as its cost model needs it, and note what tasks take of memory.

    Parameters
    ----------
    cluster, model
        Its devices say the targets; how costs will be had.

    Raises
    ------
    MissingCostError, LoweringError
        See `CostModel.prepare`.
    """
    with (log or StageLog()).stage("compile", "Compiling kernels") as figures:
        compiled = model.prepare(CompiledNetwork.of(network), cluster)
        figures["workspace_bytes"] = sum(task.workspace_bytes for task in compiled.graph.tasks)
    return compiled


def cost(
    compiled: CompiledNetwork,
    cluster: Cluster,
    model: CostModel,
    log: StageLog | None = None,
    batches: Sequence[int] = (1,),
    profile: RouteProfile | None = None,
) -> CostedNetwork:
    """Find out what each task costs on each device; parameters as of `compile`, `CostModel.costs`.

    Parameters
    ----------
    profile
        Of a network with routers: at which capacity interference is measured, and what its plans
        are made for.

    Raises
    ------
    MissingCostError, CostMismatchError, LoweringError, ExecutionError, CostStoreError
        See `CostModel.costs`.
    """
    log = log or StageLog()
    with log.stage("cost") as figures:
        costs = model.costs(compiled, cluster, batches)
        figures["devices"] = len(cluster.devices)

    measured, graph = compiled, compiled.graph
    if graph.routers:  # Which branches run shows in a run: here all do, as large as most are.
        measured = compiled.at_capacity(typical_capacity(graph, profile))

    def interference() -> Interference:
        with (
            log.stage("interference", "Measuring how tasks slow each other"),
            model.options.open_store() as store,
        ):
            measured_now: Interference = load_entry(_MEASURE_INTERFERENCE)(
                measured, cluster, log, store
            )
            return measured_now

    measure: Callable[[], Interference] | None = interference
    if not model.has_interference:
        measure = known_interference(model, measured, cluster, costs)
    return CostedNetwork(compiled, cluster, costs, measure, profile)


def solve(
    costed: CostedNetwork,
    options: SolveOptions,
    solver: str = "auto",
    log: StageLog | None = None,
    plan: Plan | None = None,
) -> Solution:
    """Find a plan, compare it with the best single device, and explain it.

    Parameters
    ----------
    solver
        Name of a solver.
    plan
        A plan that is taken as it is; None: the solver finds one.

    Raises
    ------
    InfeasibleError, SolverLimitError, SolverError
        See `Solver.solve`.
    """
    graph, cluster = costed.graph, costed.cluster
    with (log or StageLog()).stage("solve", "Placing", options.time_limit_s) as figures:
        if graph.routers:
            solve_routed: _RoutedSolver = load_plugin("routers", "solve-stage")
            solution = solve_routed(costed, options, solver, plan)
        else:
            problem = Problem(graph, cluster, costed.costs)
            can_measure = costed.measure_interference is not None
            interference = costed.interference_known if can_measure else None
            solution = solve_network(problem, options, interference, solver=solver, plan=plan)
        name = "predicted_ns" if solution.item_ns is None else "item_ns"
        figures |= {name: solution.objective_ns, "bound_ns": solution.bound_ns}
    return solution
