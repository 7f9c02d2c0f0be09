"""A model and its strategy -> a plan with its costs: what is written to files, and built.

What is planned by hand or found by a search is simulated here by the costs of its own kernels,
checked, and must fit into all memories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Literal

import numpy as np
import tvm

from heteroplace.costs.coverage import Coverage
from heteroplace.errors import InfeasibleError, PlanError
from heteroplace.files.sharding import ShardingRecord, Told
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.digests import first_difference
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.live_memory import live_peaks
from heteroplace.model.memory_use.memory import short_memories
from heteroplace.model.plan import Collective, Plan, Run, devices_of
from heteroplace.model.solution import Solution
from heteroplace.model.step_values import is_async
from heteroplace.model.units import format_bytes
from heteroplace.parts.parallel.collectives.sums_in_updates import sums_in_updates
from heteroplace.parts.parallel.sharding.collective_groups import groups_of_plan
from heteroplace.parts.parallel.sharding.in_plan import PlanTimer, costs_in_plans
from heteroplace.parts.parallel.sharding.inner_values import TaskMemory
from heteroplace.parts.parallel.sharding.model_source import ModelSource
from heteroplace.parts.parallel.sharding.rank_candidates import candidate_names
from heteroplace.parts.parallel.sharding.shard_costs import estimated_costs
from heteroplace.parts.parallel.sharding.shard_memory import program_peaks
from heteroplace.parts.parallel.sharding.shard_options import (
    EACH,
    END,
    MEASURE,
    ShardOptions,
    check_shard_options,
)
from heteroplace.parts.parallel.sharding.strategies import (
    PlannedStrategy,
    plan_to_time,
    planned_strategies,
    shorter_plan,
    strategy_of,
)
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.strategy import Strategy, rewrite
from heteroplace.relay.annotate.sharded_attribute import annotate_sharded
from heteroplace.relay.module_source import with_source_attribute
from heteroplace.relay.output_names import with_output_names
from heteroplace.simulate.simulator import simulate


@dataclass(frozen=True)
class ShardedModel:
    """A model that is shared by the devices of a cluster, with its plan."""

    solution: Solution
    """Graph of one replica and microbatch, cluster, costs, plan and its simulated time. No order of
    the plan's steps takes less than its bound, the time of the busiest device."""
    strategy: Strategy
    coverage: Coverage
    """What the costs rest on."""
    module: tvm.IRModule
    """The neutral module of a microbatch; its spans name the tasks."""
    state: Mapping[str, np.ndarray]
    """Of inputs that a step of training replaces, what they are at first."""
    options: ShardOptions
    source: tvm.relay.Expr | None = field(default=None, compare=False)
    """The noted source of the imported module; None: there is none, or the model is trained."""
    compiled: CompiledNetwork | None = field(default=None, repr=False, compare=False)
    """With the kernels that were measured; None: it is made of a file."""
    memories: Mapping[str, TaskMemory] | None = field(default=None, repr=False, compare=False)
    """What its tasks hold beside their tensors, by name; None: no kernels are known."""
    output_names: tuple[str, ...] = ()
    """Those of the imported model's outputs; empty: it has none, or is trained."""

    @cached_property
    def peak_bytes(self) -> tuple[int, ...]:
        """What the program will hold in each memory of the cluster, scratch memory of kernels
        included where costs are measured."""
        return program_peaks(self.solution, self.module, self.memories)

    @property
    def weight_gradients(self) -> Literal["each", "end"]:
        """When gradients of weights are summed: of each microbatch, or some of them at the end.

        What the plan does: none is summed at the end if no task is proven to be such a sum."""
        tasks = self.solution.graph.tasks
        runs = (step for step in self.solution.plan.steps if isinstance(step, Run))
        is_at_end = any(len(run.items) > 1 and tasks[run.task].adds for run in runs)
        return END if self.strategy.sums_at_end and is_at_end else EACH

    @property
    def record(self) -> ShardingRecord:
        """All of it that a file holds: everything but the network."""
        degrees, strategy = self.strategy.degrees, self.strategy
        description = Told(
            self.options.batch,
            (degrees.data, degrees.tensor, degrees.pipeline, degrees.micro_batches),
            strategy.schedule,
            strategy.zero,
            strategy.recompute_every,
            strategy.cuts,
            self.options.optimizer,
            self.options.loss,
            self.options.prediction,
            self.options.uneven,
            self.weight_gradients,
        )
        return ShardingRecord(description, self.solution)

    def to_module(self) -> tvm.IRModule:
        """Return the Relay module that `heteroplace.build` takes."""
        mod = annotate_sharded(self.module, self.record, self.state)
        return with_source_attribute(with_output_names(mod, self.output_names), self.source)


def plan_model(
    source: ModelSource, degrees: Degrees, cluster: Cluster, options: ShardOptions
) -> ShardedModel:
    """Plan a model with given degrees.

    Raises
    ------
    ShardingError
        Degrees do not divide the batch, or need more devices, lanes or layers than there are.
    ClusterError
        Devices that have to exchange something are not connected.
    InfeasibleError
        It does not fit into some memory; the message says by how much.
    HeteroPlaceError
        As `costs_of`.
    """
    return plan_models(source, [degrees], cluster, options)[0]


def plan_models(
    source: ModelSource, several: Sequence[Degrees], cluster: Cluster, options: ShardOptions
) -> list[ShardedModel]:
    """Plan a model with each of several degrees; where costs are measured, the plans take turns.

    Returns
    -------
    models
        Of each degrees in turn one for each strategy that fits, the fastest by its costs first.

    Raises
    ------
    HeteroPlaceError
        As `plan_model`.
    """
    planned = [planned_strategies(source, degrees, cluster, options) for degrees in several]
    every = [each for models_of in planned for each in models_of]
    if options.costs == MEASURE:
        costs = [(table, Coverage()) for table in _measured_costs(source, every, options)]
    else:
        costs, measured = [], source.peak_speeds(cluster)
        names = candidate_names(cluster, options)
        for each in every:
            estimates = estimated_costs(each.cluster, each.sharded.graph, names, measured)
            sizes = each.cluster.devices[0].batch_sizes
            costs.append(estimates.table(each.compiled.graph, sizes))
    models_of = iter(costs)
    models = [
        _that_fit(source, each, options, list(islice(models_of, len(each)))) for each in planned
    ]
    return [model for each in models for model in each]


def _that_fit(
    source: ModelSource,
    planned: Sequence[PlannedStrategy],
    options: ShardOptions,
    costs: Sequence[tuple[CostTable, Coverage]],
) -> list[ShardedModel]:
    """The plans of one model that fit, the fastest first; raises as the first one did."""
    models: list[ShardedModel] = []
    faults: list[InfeasibleError] = []
    for each, (table, coverage) in zip(planned, costs, strict=True):
        try:
            models.append(_model(source, each, options, table, coverage))
        except InfeasibleError as err:
            faults.append(err)
    if not models:
        raise faults[0]
    return sorted(models, key=lambda model: model.solution.predicted_ns)


def _measured_costs(
    source: ModelSource, several: Sequence[PlannedStrategy], options: ShardOptions
) -> list[CostTable]:
    """What the tasks of plans take in them, and their collectives by themselves."""
    for degrees in dict.fromkeys(each.strategy.degrees for each in several):
        options.say(f"Measuring the kernels of {degrees}")
    tables = []
    timed = costs_in_plans([each.timed for each in several])
    for each, table in zip(several, timed, strict=True):
        groups = groups_of_plan(each.compiled.graph, each.plan)
        collectives = source.collective_times.of(each.cluster, groups, options)
        if collectives is not None:
            graph = each.compiled.graph
            inside = sums_in_updates(graph, each.timed.cluster, each.timed.plan)
            names = frozenset(graph.tasks[task].name for task in inside)
            collectives = replace(collectives, in_updates=names)
        tables.append(replace(table, collectives=collectives))
    return tables


def plan_timer(source: ModelSource, model: ShardedModel, cluster: Cluster) -> PlanTimer:
    """Return what times the kernels of a model again, whose costs were measured.

    Raises
    ------
    HeteroPlaceError
        As `plan_model`.
    """
    assert model.compiled is not None  # it was measured
    degrees, options = model.strategy.degrees, model.options
    rows = degrees.rows(options.batch)
    sharded = source.with_scratch(degrees.tensor, rows, options.batch, cluster)
    base = shorter_plan(model.compiled, sharded, model.strategy, cluster, options)
    solution = model.solution
    return PlanTimer(plan_to_time(base, solution.plan, solution.cluster, model.strategy))


def _model(
    source: ModelSource,
    planned: PlannedStrategy,
    options: ShardOptions,
    table: CostTable,
    coverage: Coverage,
) -> ShardedModel:
    graph, cluster = planned.compiled.graph, planned.cluster
    try:
        check_plan(graph, cluster, table, planned.plan)
    except PlanError as err:
        peaks = live_peaks(graph, cluster, table, planned.plan)
        short = [
            f"memory {memory.name!r} needs {format_bytes(peak.num_bytes)} and has "
            f"{format_bytes(memory.bytes)}"
            for memory, peak in short_memories(cluster, peaks)
        ]
        if not short:
            raise  # something else is wrong with it
        raise InfeasibleError(
            f"degrees {planned.strategy.degrees} for {options.batch} rows do not fit: "
            f"{'; '.join(short)}; take a smaller batch or more devices, or leave the degrees to "
            f"be found (auto)"
        ) from err
    return ShardedModel(
        _solution(graph, cluster, table, planned.plan),
        planned.strategy,
        coverage,
        planned.mod,
        planned.state,
        options,
        source.imported_from,
        planned.compiled,
        planned.memories,
        source.output_names,
    )


def replayed_model(source: ModelSource, record: ShardingRecord, where: str) -> ShardedModel:
    """Return a model with the plan that a file holds; nothing is measured or searched.

    Parameters
    ----------
    source
        Made with `options_of(record)`.
    where
        Path of the file, for messages.

    Raises
    ------
    PlanError
        The file is for another model.
    HeteroPlaceError
        As `ModelSource.network`.
    """
    options = options_of(record)
    degrees = Degrees(*record.told.degrees)
    rows = degrees.rows(options.batch)
    network = source.network(degrees.tensor, rows, options.batch)
    graph = rewrite(network.sharded, strategy_of(options, degrees)).graph
    difference = first_difference(record.solution.graph, graph)
    if difference:
        raise PlanError(
            f"{where}: the plan's graph {difference}; it is the plan of another model, or another "
            f"heteroplace has made it: run `heteroplace shard` again"
        )
    assert network.network is not None  # weights are bound, or state
    state = source.state(degrees.tensor, rows, options.batch)
    strategy = strategy_of(options, degrees)
    mod = network.network.mod
    return ShardedModel(
        *(record.solution, strategy, Coverage(), mod, state, options, source.imported_from),
        output_names=source.output_names,
    )


def options_of(record: ShardingRecord) -> ShardOptions:
    """Return the options that make the model of a file again.

    Raises
    ------
    ShardingError
        They do not go together.
    """
    description = record.told
    options = ShardOptions(
        batch=description.batch,
        degrees=Degrees(*description.degrees),
        schedule=description.schedule,
        zero=description.zero,
        recompute_every=description.recompute,
        cuts=description.cuts,
        optimizer=description.optimizer,
        loss=description.loss,
        prediction=description.prediction,
        uneven=description.uneven,
        weight_gradients=description.weight_gradients,
    )
    check_shard_options(options)
    return options


def _solution(graph: TaskGraph, cluster: Cluster, table: CostTable, plan: Plan) -> Solution:
    """The plan with its simulated time, and that of its busiest device as the bound."""
    timeline = simulate(graph, cluster, table, plan)
    busy = [0] * len(cluster.devices)
    for index, (start, finish) in timeline.step_times.items():
        step = plan.steps[index]
        if isinstance(step, Collective) and is_async(graph, cluster, step):
            continue  # its devices compute meanwhile
        for device in devices_of(step):
            busy[device] += finish - start
    solution = Solution(graph, cluster, table, plan, timeline.makespan_ns, max(busy))
    return solution.with_timeline(timeline)
