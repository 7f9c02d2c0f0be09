"""All stages from a Relay module to an executable, once: each takes values and returns one.

    prepare   module, weights           -> Network (tasks, neutral module)
    compile   Network, cluster          -> CompiledNetwork (kernels, scratch memory of tasks)
    cost      CompiledNetwork, cluster  -> CostedNetwork (cost table, interference)
    solve     CostedNetwork             -> Solution (plan, bound, expected time, reasons)
    annotate  CompiledNetwork, Solution -> annotated module, which carries plan and kernels
    build     annotated module          -> Executable (verified, if it was imported from ONNX)

The pass, the command line, the benchmarks and the demo call these and repeat none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import tvm

from heteroplace.codegen.carried import carried_kernels, with_kernels
from heteroplace.codegen.compile import CompiledNetwork, task_targets
from heteroplace.codegen.executable import Executable, write_programs
from heteroplace.codegen.held_weights import with_held_weights
from heteroplace.codegen.loaded_weights import weight_sizes
from heteroplace.codegen.targets import with_stock_kernels
from heteroplace.errors import LoweringError
from heteroplace.measure.batches import batches_of
from heteroplace.measure.cost_models import CostModel, CostOptions, choose_cost_model
from heteroplace.measure.cost_models.model import known_interference
from heteroplace.measure.example_inputs import read_examples
from heteroplace.measure.implementations import with_asked_makers, with_makers, without_unused_twins
from heteroplace.measure.interference import measure_interference
from heteroplace.measure.weights_file import with_weights_file
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable, table_from_rows
from heteroplace.model.demands import check_reachable, check_routed, with_max_memory
from heteroplace.model.graph import TaskGraph
from heteroplace.model.hosts import with_devices
from heteroplace.model.plan import Plan
from heteroplace.model.route_profile import RouteProfile
from heteroplace.model.solution import Solution
from heteroplace.place_options import PlaceOptions, check_gain, check_options, demanded_graph
from heteroplace.relay.annotate.moved import solution_of_module
from heteroplace.relay.annotate.sharded import read_sharded
from heteroplace.relay.annotate.tunings import with_tunings
from heteroplace.relay.annotate.writer import annotate as annotate_plan
from heteroplace.relay.frontend.onnx_source import read_source
from heteroplace.relay.routing.passes import with_routes
from heteroplace.relay.source import Source
from heteroplace.relay.tasks.branch_options import (
    branch_weights,
    has_weights_budget,
    predictions_of,
    with_branch_memories,
)
from heteroplace.relay.tasks.network import Network, cut_network, network_under, sharded_network
from heteroplace.relay.tasks.rebatch import rebatch
from heteroplace.simulate.decisions import typical_capacity
from heteroplace.simulate.interference import Interference
from heteroplace.solve import Problem, SolveOptions, solve_network
from heteroplace.solve.feasibility import check_demands
from heteroplace.solve.judge import num_items
from heteroplace.solve.plan_in import read_plan_in
from heteroplace.solve.routed_network import solve_routed
from heteroplace.solve.routed_replay import replay_routed
from heteroplace.stage_log import StageLog
from heteroplace.verify.executable import check_can_verify, verify_executable


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
        Whose devices the annotations of `mod` name, if it has any.
    digest
        `Network.model_digest` where it is known.

    Raises
    ------
    UnsupportedRelayError
        The module has control flow or dynamic shapes.
    LoweringError
        Its annotations contradict each other, or name devices that the cluster does not have.
    """
    with (log or StageLog()).stage("prepare", "optimising the network") as figures:
        network = cut_network(mod, params, cluster=cluster, digest=digest)
        figures["tasks"] = len(network.graph.tasks)
    return network


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
    count = len(network.graph.tasks)
    with (log or StageLog()).stage("compile", f"compiling {count} tasks") as figures:
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
            log.stage("interference", "measuring how tasks disturb each other"),
            model.options.open_store() as store,
        ):
            return measure_interference(measured, cluster, log.say, store)

    known: Callable[[], Interference] | None = interference
    if not model.has_interference:
        known = known_interference(model, measured, cluster, costs)
    return CostedNetwork(compiled, cluster, costs, known, profile)


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
    names = ", ".join(device.name for device in cluster.devices)
    with (log or StageLog()).stage(
        "solve", f"placing {len(graph.tasks)} tasks on {names}"
    ) as found:
        if graph.routers:
            solution = _solve_routed(costed, options, solver, plan)
        else:
            problem, asked = Problem(graph, cluster, costed.costs), costed.interference_known
            known = None if costed.measure_interference is None else asked
            solution = solve_network(problem, options, known, solver=solver, plan=plan)
        name = "predicted_ns" if solution.item_ns is None else "item_ns"
        found |= {name: solution.objective_ns, "bound_ns": solution.bound_ns}
    return solution


def _solve_routed(
    costed: CostedNetwork, options: SolveOptions, solver: str, plan: Plan | None
) -> Solution:
    asked, compiled = (costed.graph, costed.cluster, costed.costs, options), costed.compiled
    predictions = predictions_of(compiled.network)
    weights = branch_weights(compiled.network, lambda: weight_sizes(compiled, costed.cluster))
    known = None if costed.measure_interference is None else costed.interference_known
    if plan is not None:
        return replay_routed(*asked, plan, costed.profile, predictions, weights, known)
    return solve_routed(*asked, solver, costed.profile, predictions, weights, known)


def place(
    mod: tvm.IRModule,
    cluster: Cluster,
    options: PlaceOptions,
    limits: SolveOptions,
    log: StageLog | None = None,
) -> tuple[CompiledNetwork, Solution]:
    """Run the stages from a module to its solution.

    Parameters
    ----------
    mod
        A Relay module that carries no plan. What it is annotated with (`on_device`,
        `device_copy`) holds, as far as ops have annotations: only the order is solved for then.
    cluster
        Must have a host memory, from which every device can be reached.
    limits
        How long to solve, and what for.

    Raises
    ------
    UnsupportedRelayError, ClusterError, InfeasibleError, MissingCostError, SolverError
        See the stages.
    VerificationError
        `verify="on"` cannot be done.
    """
    log = log or StageLog(options.progress)
    check_reachable(cluster)
    # What is wrong with the options is told before minutes of measuring.
    check_options(options, limits)
    check_can_verify(options.verify, read_source(mod), cluster, options.exclude)
    saved = None if options.plan_in is None else read_plan_in(options.plan_in)
    cluster = with_max_memory(cluster, options.max_memory)
    if options.kernels == "tvm":
        cluster = with_stock_kernels(cluster)
    asked = CostOptions(options.store, options.progress, options.missing)
    model = choose_cost_model(options.costs, asked)
    examples = read_examples(options.inputs)
    profile = None
    if options.routes is not None:
        mod, profile = with_routes(mod, options.params, options.routes, options.weights_bytes)
    if has_weights_budget(mod):
        cluster = with_weights_file(cluster)
    digest = "" if profile is None else profile.model_digest
    network = prepare(mod, options.params, log, cluster, digest).with_examples(examples)
    network = network.with_graph(demanded_graph(network.graph, cluster, options))
    network = with_branch_memories(with_held_weights(network, cluster), cluster)
    plain = network.graph, cluster
    if saved is not None:  # its tasks may be on twins, which must be there again
        network, cluster = with_makers(network, cluster, saved.makers, asked)
    early = None if saved is None else saved.plan_for(network.graph, cluster)
    items = limits.items if early is None else num_items(early, limits)
    check_demands(network.graph, cluster, early)
    check_routed(network.graph, cluster, items)
    if items > 1:
        rebatch(network.mod, 2)  # an op that could mix items is told at once
    network, cluster = with_asked_makers(network, cluster, options, asked, items)
    compiled = compile(network, cluster, model, log)
    batches = batches_of(cluster, items, network.graph)
    costed = cost(compiled, cluster, model, log, batches, profile)
    check_gain(costed.costs, limits)
    plan = None if saved is None else saved.plan_for(costed.graph, cluster)
    solution = without_unused_twins(solve(costed, limits, options.solver, log, plan), *plain)
    return compiled.with_graph(solution.graph), solution.with_others_cores(asked.others_cores)


def annotate(compiled: CompiledNetwork, solution: Solution) -> tvm.IRModule:
    """Write a plan into the module, with its kernels if costing has lowered them."""
    extraction = compiled.network.extraction
    assert extraction is not None  # what is placed was cut here
    mod = annotate_plan(extraction, solution, compiled.network.model_digest)
    mod = with_tunings(mod, solution.cluster, compiled.network.tunings)
    placement = solution.plan.placement(len(compiled.graph.tasks))
    kernels = compiled.known_kernels(solution.cluster, placement)
    # Those of batches are compiled to be built.
    if kernels is None or solution.plan.items > 1:
        return mod
    targets = task_targets(compiled.graph, solution.cluster, placement)
    return with_kernels(mod, compiled.network.digest, targets, kernels)


def build(compiled: CompiledNetwork, solution: Solution) -> Executable:
    """Compile what is not compiled yet, and write the program of a plan.

    Raises
    ------
    LoweringError, InfeasibleError
        See `write_programs`.
    """
    kernels = compiled.kernels_of(solution.cluster, solution.plan)
    source = Source(compiled.network.mod, tvm.transform.PassContext.current().opt_level)
    (found,) = write_programs(kernels, [solution], (), compiled.network.output_names)
    manifest = replace(found.manifest, model_digest=compiled.network.model_digest)
    return replace(found, source=source, manifest=manifest)


def build_module(
    mod: tvm.IRModule, verify: str | None = None, log: StageLog | None = None
) -> Executable:
    """Build a module that is placed; its annotations say where every op runs.

    Parameters
    ----------
    verify
        "auto", "on" or "off", as the option of the pass; None: as the module was placed.

    Raises
    ------
    LoweringError
        The module is not annotated, or its annotations contradict each other; an op has no
        implementation on the target of its device.
    InfeasibleError
        The compiled program does not fit in some memory.
    VerificationError
        It was imported from ONNX, and its outputs are not those of onnxruntime on that model.
    """
    log = log or StageLog()
    sharded = read_sharded(mod)
    solution = solution_of_module(mod) if sharded is None else sharded[0].solution
    if solution is None:
        raise LoweringError(
            "the module carries no plan; run relay.transform.HeteroPlace(cluster) on it first, "
            "or relay.transform.Shard(cluster, batch=...)"
        )
    source = read_source(mod)
    mode = verify or ("off" if source is None else source.verify)
    check_can_verify(mode, source, solution.cluster, solution.devices_not_used)
    if sharded is None:
        network = network_under(mod, solution.graph)
        compiled = CompiledNetwork.of(network)
        carried = carried_kernels(mod, network.digest, network.graph.routers)
        if carried is not None:
            compiled.add(*carried)
    else:
        compiled = CompiledNetwork.of(sharded_network(mod, solution.graph, sharded[1]))
    with log.stage("build", "writing the program"):
        executable = build(compiled, solution)
    if sharded is not None:  # placed again, the module of a microbatch would not be the model
        executable = replace(executable, source=None)
    if source is None or mode == "off":
        return executable
    with log.stage("verify", "comparing a run with onnxruntime"):
        found = verify_executable(executable, compiled.network.mod, source, mode)
    return executable.verified(found)
