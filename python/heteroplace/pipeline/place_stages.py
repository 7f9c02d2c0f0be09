"""A Relay module, a cluster and options -> the module's plan, stage by stage; or its executable.

The pass, `heteroplace.place`, `heteroplace.compile` and the commands call the same functions here.

README.md says why the stages have this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tvm

from heteroplace.entries import load_entry
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.executable import Executable
from heteroplace.lower.kernel_provider import with_held_weights
from heteroplace.measure.cost_models import CostOptions, choose_cost_model
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import batches_of
from heteroplace.model.demands import check_reachable, check_routed, with_max_memory
from heteroplace.model.solution import Solution
from heteroplace.pipeline import core_stages
from heteroplace.pipeline.build_stages import annotate_as, check_verifier, run_build
from heteroplace.pipeline.build_state import BuildState
from heteroplace.pipeline.module_contents import ModuleContents
from heteroplace.pipeline.place_state import PlaceRequest, PlaceState
from heteroplace.pipeline.stage import Stage, run_stages, with_added_stages
from heteroplace.place_options import (
    CONFIG_PREFIX,
    PlaceOptions,
    check_options,
    demanded_graph,
    read_options,
)
from heteroplace.precision_option import is_auto, network_precision, precision_by_pattern
from heteroplace.relay.annotate.requested_options import with_requested_options
from heteroplace.relay.module_source import (
    read_input_sets,
    read_verify,
    source_attribute,
    with_input_sets,
    with_source_of,
)
from heteroplace.relay.opt_level import default_opt_level, warn_of_low_level
from heteroplace.relay.output_names import read_output_names
from heteroplace.relay.targets import with_precision, with_stock_kernels
from heteroplace.solve.feasibility import check_demands
from heteroplace.solve.problem import SolveOptions, check_gain
from heteroplace.stage_log import StageLog
from heteroplace.tvm_bridge import pass_config

_READ_PLAN_IN = "heteroplace.solve.plan_in:read_plan_in"
_NUM_ITEMS = "heteroplace.solve.judge:num_items"
"""Loaded for a saved plan."""
_READ_EXAMPLES = "heteroplace.measure.example_inputs:read_examples"
"""Loaded for inputs that are given."""
_REBATCH = "heteroplace.relay.tasks.rebatch:rebatch"
"""Loaded for several items."""
_RESIDENT_GRAPH = "heteroplace.pipeline.state_stages:resident_graph"
"""Loaded for models with state."""

_HERE = "heteroplace.pipeline.place_stages"

PLACE_STAGES: tuple[Stage[PlaceState], ...] = (
    Stage("check", "Refuse contradictory options and unreachable devices.", f"{_HERE}:check"),
    Stage("read", "Read the saved plan, the costs and the example inputs.", f"{_HERE}:read"),
    Stage("limit", "Apply max_memory, kernels='tvm' and precision.", f"{_HERE}:limit"),
    Stage("prepare", "Optimise the network and cut it into tasks.", f"{_HERE}:prepare"),
    Stage(
        "verify-inputs",
        "Read the inputs on which outputs are to be compared, too.",
        "heteroplace.pipeline.verify_inputs:add",
        lambda state: bool(state.options.verify_inputs or read_input_sets(state.mod)),
    ),
    Stage(
        "state",
        "Refuse pairs of the option state that the model does not have.",
        "heteroplace.pipeline.state_stages:check_pairs",
        lambda state: bool(state.options.state),
    ),
    Stage("demand", "Apply pin, exclude, layers and no_split to the tasks.", f"{_HERE}:demand"),
    Stage("weights", "Find the bytes of weights that each kernel holds.", f"{_HERE}:weigh"),
    Stage(
        "saved-kernels",
        "Add the kernel variants that the saved plan uses.",
        "heteroplace.pipeline.variant_stages:add_saved",
        lambda state: state.saved is not None,
    ),
    Stage("feasible", "Refuse a network that no plan can hold.", f"{_HERE}:check_feasible"),
    Stage(
        "kernels",
        "Add the kernel variants that the options ask for.",
        "heteroplace.pipeline.variant_stages:add_requested",
        lambda state: state.saved is None,
    ),
    Stage("compile", "Make the kernels that the cost model needs.", f"{_HERE}:compile_kernels"),
    Stage("cost", "Measure or predict each task on each device.", f"{_HERE}:cost"),
    Stage(
        "resident-state",
        "Keep the state of sessions where it is used.",
        "heteroplace.pipeline.state_stages:keep_resident",
        lambda state: bool(state.options.state),
    ),
    Stage("solve", "Find a plan, or take a finished one.", f"{_HERE}:solve"),
    Stage(
        "precision",
        "Return layers to float32 until the outputs are within max_error.",
        "heteroplace.pipeline.precision_stage:keep_within_error",
        lambda state: is_auto(state.options.precision),
    ),
    Stage(
        "drop-kernels",
        "Remove kernel variants that the plan does not use.",
        "heteroplace.pipeline.variant_stages:drop_unused",
        lambda state: len(state.known_solution.cluster.devices) > len(state.plain_cluster.devices),
    ),
)
"""The core's stages, in the order in which a module is placed."""


def place_stages() -> tuple[Stage[PlaceState], ...]:
    """Return the stages of the core and of the parts."""
    return with_added_stages(PLACE_STAGES, "place_stages")


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
    state = _run(mod, cluster, options, limits, log or StageLog.of(options.progress))
    return state.known_compiled, state.known_solution


def _run(
    mod: tvm.IRModule,
    cluster: Cluster,
    options: PlaceOptions,
    limits: SolveOptions,
    log: StageLog,
) -> PlaceState:
    """Return the last state; parameters and errors as of `place`."""
    request = PlaceRequest(options, limits, log, CostOptions(options.store, log, options.missing))
    return outcome(run_stages(place_stages(), PlaceState(request, mod, cluster), log))


def outcome(state: PlaceState) -> PlaceState:
    """Return the state after the last stage with what was noted meanwhile."""
    solution = state.known_solution.with_others_cores(state.request.cost_options.others_cores)
    compiled = state.known_compiled.with_graph(solution.graph)
    return replace(state, compiled=compiled, solution=solution)


def build_placed(
    mod: tvm.IRModule,
    state: PlaceState,
    keywords: Mapping[str, Any],
    log: StageLog | None = None,
) -> Executable:
    """Build a module that was just placed, without writing its plan and kernels into it.

    The executable is that of `build_module` on the annotated module.

    Parameters
    ----------
    mod
        The module as it was given.
    state
        The state after the last stage of placing.
    keywords
        Those that the options were read from.
    log
        Notes the time of each stage.

    Raises
    ------
    HeteroPlaceError
        See `build_module`.
    """
    given = _with_input_sets(mod, state)
    given = with_requested_options(with_source_of(given, given, state.options.verify), keywords)
    compiled = state.known_compiled
    network = replace(compiled.network, output_names=read_output_names(given))
    contents = ModuleContents(
        state.known_solution,
        replace(compiled, network=network),
        source_attribute(given),
        read_verify(given),
        is_sharded=False,
    )
    log = log or StageLog()
    return run_build(BuildState(given, keywords.get("verify"), log, contents=contents))


@default_opt_level()
def place_network(mod: tvm.IRModule, cluster: Cluster, keywords: Mapping[str, Any]) -> Solution:
    """Return the plan of a module that carries none; only kernels are compiled, for their costs.

    Parameters
    ----------
    keywords
        Those of `HeteroPlace`; they replace options of the PassContext.

    Raises
    ------
    HeteroPlaceError
        See `pipeline.place`.
    """
    return _placed(mod, cluster, requested_keywords(keywords)).known_solution


@default_opt_level()
def annotate_network(
    mod: tvm.IRModule, cluster: Cluster, keywords: Mapping[str, Any]
) -> tvm.IRModule:
    """Place a module that carries no plan, and annotate it; arguments as of `place_network`.

    The module carries the keywords, so that a later pass with other options is refused.
    """
    requested = requested_keywords(keywords)
    state = _placed(mod, cluster, requested)
    # The output names and the source of the module as it was given.
    given, verify = _with_input_sets(mod, state), state.options.verify
    with state.request.log.timed("annotate", "Write the plan and its kernels into the module."):
        placed = annotate_as(given, state.known_compiled, state.known_solution, verify)
    return with_requested_options(placed, requested)


@default_opt_level()
def compile_network(
    mod: tvm.IRModule,
    cluster: Cluster,
    keywords: Mapping[str, Any],
    log: StageLog | None = None,
) -> Executable:
    """Place and compile a module that carries no plan; arguments as of `place_network`.

    Parameters
    ----------
    log
        Notes the time of each stage that follows the plan.
    """
    requested = requested_keywords(keywords)
    return build_placed(mod, _placed(mod, cluster, requested), requested, log)


def _placed(mod: tvm.IRModule, cluster: Cluster, keywords: Mapping[str, Any]) -> PlaceState:
    """Return the state after the last stage of placing, by the options of `keywords`."""
    options, limits = read_options(keywords)
    return _run(mod, cluster, options, limits, StageLog.of(options.progress))


def _with_input_sets(mod: tvm.IRModule, state: PlaceState) -> tvm.IRModule:
    """Return the module with the inputs of the option `verify_inputs`."""
    return with_input_sets(mod, state.input_sets) if state.input_sets else mod


def requested_keywords(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the PassContext, and the keywords that replace them."""
    context = tvm.transform.PassContext.current()
    warn_of_low_level(context)
    return pass_config(context, CONFIG_PREFIX) | dict(keywords)


def check(state: PlaceState) -> PlaceState:
    """Raise if the request cannot be met: minutes of measuring come later."""
    check_reachable(state.cluster)
    check_options(state.options, state.request.limits)
    check_verifier(state.options.verify)
    return state


def read(state: PlaceState) -> PlaceState:
    """Read the files that the options name."""
    options = state.options
    saved = None if options.plan_in is None else load_entry(_READ_PLAN_IN)(options.plan_in)
    model = choose_cost_model(options.costs, state.request.cost_options)
    examples = {} if options.inputs is None else load_entry(_READ_EXAMPLES)(options.inputs)
    return replace(state, saved=saved, cost_model=model, examples=examples)


def limit(state: PlaceState) -> PlaceState:
    """Apply `max_memory`, `kernels="tvm"` and the precision of a whole network to the cluster."""
    cluster = with_max_memory(state.cluster, state.options.max_memory)
    if state.options.kernels == "tvm":
        cluster = with_stock_kernels(cluster)
    precision = state.options.precision
    whole = network_precision(precision)
    if whole in ("bf16", "int8"):
        cluster = with_precision(cluster, whole)
    elif "bf16" in precision_by_pattern(precision).values():
        with_precision(cluster, "bf16")  # raises where no device can
    return replace(state, cluster=cluster)


def prepare(state: PlaceState) -> PlaceState:
    """Cut the module into tasks."""
    digest = "" if state.profile is None else state.profile.model_digest
    log, params = state.request.log, state.options.params
    network = core_stages.prepare(state.mod, params, log, state.cluster, digest)
    return replace(state, network=network.with_examples(state.examples))


def demand(state: PlaceState) -> PlaceState:
    """Restrict tasks to the devices that the options allow."""
    network = state.known_network
    graph = demanded_graph(network.graph, state.cluster, state.options)
    return replace(state, network=network.with_graph(graph))


def weigh(state: PlaceState) -> PlaceState:
    """Replace the bytes of half-precision weights by those that kernels hold."""
    network = with_held_weights(state.known_network, state.cluster)
    return replace(state, network=network, plain=(network.graph, state.cluster))


def check_feasible(state: PlaceState) -> PlaceState:
    """Raise if the network fits no plan, or cannot be batched, before anything is compiled."""
    network, limits = state.known_network, state.request.limits
    saved, graph = state.saved, network.graph
    if state.options.state:
        graph = load_entry(_RESIDENT_GRAPH)(state)
    plan = None if saved is None else saved.plan_for(graph, state.cluster)
    items = limits.items if plan is None else load_entry(_NUM_ITEMS)(plan, limits)
    check_demands(graph, state.cluster, plan)
    check_routed(graph, state.cluster, items)
    if items > 1:
        load_entry(_REBATCH)(network.mod, 2)
    return replace(state, items=items)


def compile_kernels(state: PlaceState) -> PlaceState:
    """Lower the network as far as the cost model needs it."""
    model, log = state.known_cost_model, state.request.log
    compiled = core_stages.compile(state.known_network, state.cluster, model, log)
    return replace(state, compiled=compiled)


def cost(state: PlaceState) -> PlaceState:
    """Cost each task on each device, and check that a gain can be judged by these costs."""
    batches = batches_of(state.cluster, state.items, state.known_network.graph)
    costed = core_stages.cost(
        state.known_compiled,
        state.cluster,
        state.known_cost_model,
        state.request.log,
        batches,
        state.profile,
    )
    check_gain(costed.costs, state.request.limits)
    return replace(state, costed=costed)


def solve(state: PlaceState) -> PlaceState:
    """Find a plan; or check and explain the saved one, or that of an entry."""
    costed, request = state.known_costed, state.request
    saved = state.saved
    plan = state.entry_plan
    if saved is not None:
        plan = saved.plan_for(costed.graph, costed.cluster)
    solver = request.options.solver
    solution = core_stages.solve(costed, request.limits, solver, request.log, plan)
    return replace(state, solution=solution)
