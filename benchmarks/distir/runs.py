"""Degrees of small networks on one-core ranks of this machine: predicted, built and run in rounds.

Each rank is a core with a memory of its own. `heteroplace.shard` plans all degrees for one and two
ranks by measured costs; all programs of a network and batch are loaded into this process and take
turns, together with two independent programs of one core each, side by side, which do half of the
batch each. So ratios are those of the same rounds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.distir.rank_models import (
    MODES,
    RANK_MODELS,
    RankModel,
    matching_rank_models,
)
from benchmarks.distir.run_table import run_table
from benchmarks.peers.stock import in_pass_context
from benchmarks.peers.turns import (
    NearCores,
    balanced_rounds,
    side_by_side,
)
from benchmarks.run.comparison import core_to_core_probe
from heteroplace.costs.measurement import NEAR_CORES_NS
from heteroplace.errors import ClusterError
from heteroplace.measure.timed_runs import (
    TimedRuns,
    Timer,
    time_in_turns,
)
from heteroplace.measure.transfers.link_programs import load_program, two_cores
from heteroplace.measure.transfers.link_report import with_measured_links
from heteroplace.measure.transfers.links import QUICK, LinkProbeOptions, measure_links
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.plan import Collective
from heteroplace.model.solution import Solution
from heteroplace.model.step_values import collective_step_ns
from heteroplace.parts.parallel.sharding.degree_search import Grid, search_degrees
from heteroplace.parts.parallel.sharding.in_plan import PlanTimer
from heteroplace.parts.parallel.sharding.model_source import ModelSource
from heteroplace.parts.parallel.sharding.plan_trials import NUM_ROUNDS, load_model, run_times
from heteroplace.parts.parallel.sharding.shard_options import ShardOptions, read_shard_options
from heteroplace.parts.parallel.sharding.sharded_plan import (
    ShardedModel,
    plan_model,
    plan_models,
    plan_timer,
)
from heteroplace.parts.parallel.transforms.degrees import Degrees, enumerate_degrees
from heteroplace.parts.parallel.transforms.strategy import Strategy
from heteroplace.run.executor import Executor
from heteroplace.simulate.simulator import simulate
from heteroplace.stats import half_spread, median
from heteroplace.tvm_bridge import llvm_cpu_target

Say = Callable[[str], None]
Row = dict[str, object]

NUM_RANKS = 2
MAX_MICRO_BATCHES = 16
INDEPENDENT = "independent"
"""Name of the two programs of one core each, side by side."""
ONE = Degrees(1, 1, 1, 1)
_MEMORY_BYTES = 2**33
_MIN_RUNS = 2


@dataclass(frozen=True)
class RunOptions:
    """What is run, and how often."""

    models: tuple[RankModel, ...] = RANK_MODELS
    modes: tuple[str, ...] = MODES
    batches: tuple[int, ...] = ()
    """Empty: those of each model."""
    rounds: int = 15
    turn_ns: int = 100_000_000
    """See `time_in_turns`."""
    near_s: float = 60.0
    """Seconds that are waited for near cores at most, in all: where cores are never near, no batch
    waits again. Far ones take ten times as long for what one of them hands to the other."""
    is_quick: bool = False
    """Measure links with fewer and smaller copies, do not wait for near cores, and run the plans of
    the search in one round."""


def run(arguments: argparse.Namespace, say: Say) -> Iterator[Row]:
    """Run what the command line asks for; see `run_all`."""
    return run_all(
        RunOptions(
            matching_rank_models(arguments.only or ""),
            batches=arguments.batches,
            rounds=arguments.rounds,
            is_quick=arguments.quick,
        ),
        say,
    )


def run_all(options: RunOptions, say: Say) -> Iterator[Row]:
    """Run all degrees of all models, modes and batches; yield a row for each.

    Raises
    ------
    HeteroPlaceError
        This process may run on one core only, or something cannot be planned, compiled or run.
    """
    if not options.models:
        return
    near = near_cores(options, say)
    near.wait()
    cluster = rank_cluster(say=say, is_quick=options.is_quick)
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            for mode in options.modes:
                yield from _Runs(model, mode, cluster, options, Path(folder), near, say).rows()


def near_cores(options: RunOptions, say: Say) -> NearCores:
    """Return what waits until the ranks' cores are near, and tells if it takes long."""
    cores = rank_cores()
    probe = load_program(two_cores((cores[0], cores[1])))

    def core_to_core_ns() -> int | None:
        latency_ns = probe.core_to_core_ns()
        if latency_ns is not None and latency_ns >= NEAR_CORES_NS:
            say(f"cores are far from each other, {latency_ns} ns")
        return latency_ns

    return NearCores(core_to_core_ns, 0.0 if options.is_quick else options.near_s)


def rank_cores() -> list[int]:
    """Return the first cores that this process may run on, one for each rank.

    Raises
    ------
    ClusterError
        There are fewer.
    """
    found = sorted(os.sched_getaffinity(0))[:NUM_RANKS]
    if len(found) < NUM_RANKS:
        raise ClusterError(
            f"{NUM_RANKS} ranks need as many cores, and this process may run on core {found[0]} "
            f"alone; allow it another one"
        )
    return found


def rank_cluster(
    cores: Sequence[int] | None = None,
    say: Say = lambda line: None,
    is_quick: bool = False,
) -> Cluster:
    """Return cores of this machine as ranks with a memory each, and measured links between them.

    Parameters
    ----------
    cores
        None: those of `rank_cores`; errors as there.
    is_quick
        Whether links are measured with fewer and smaller copies.
    """
    found = rank_cores() if cores is None else list(cores)
    target = llvm_cpu_target()
    devices = tuple(
        Device(f"cpu.{rank}", "cpu", target, 0, rank, (core,), copy_engines=0)
        for rank, core in enumerate(found)
    )
    memories = tuple(Memory(f"ram.{rank}", _MEMORY_BYTES) for rank in range(len(found)))
    cluster = Cluster("ranks", memories, devices, host=0)
    probe = QUICK if is_quick else LinkProbeOptions()
    return with_measured_links(cluster, measure_links(cluster, say, probe))


@dataclass(frozen=True)
class _Run:
    """Degrees, planned and loaded."""

    model: ShardedModel
    executor: Executor

    @property
    def degrees(self) -> Degrees:
        return self.model.strategy.degrees


@dataclass
class _Beside:
    """Degrees, and what they would take with their kernels as they are in each round."""

    run: _Run
    timer: PlanTimer
    times_ns: list[int] = field(default_factory=list)

    def sample(self) -> None:
        """Time the kernels once more, and simulate the plan with that."""
        solution = self.run.model.solution
        costs = replace(self.timer.sample(), collectives=solution.costs.collectives)
        timeline = simulate(solution.graph, solution.cluster, costs, solution.plan)
        self.times_ns.append(timeline.makespan_ns)


class _Runs:
    """All degrees of one model in one mode."""

    def __init__(
        self,
        model: RankModel,
        mode: str,
        cluster: Cluster,
        options: RunOptions,
        folder: Path,
        near: NearCores,
        say: Say,
    ) -> None:
        self._model, self._mode, self._cluster, self._options = model, mode, cluster, options
        self._near, self._say = near, say
        self._given = model.options(mode) | {"store": str(folder / "costs.db"), "progress": say}
        mod, params = model.module(mode)
        with in_pass_context():
            self._source = ModelSource(mod, params, self._shard_options(1), model.name)

    def _shard_options(self, batch: int) -> ShardOptions:
        return read_shard_options({"batch": batch, **self._given})

    def rows(self) -> Iterator[Row]:
        """Yield a row for each batch and degrees."""
        for batch in self._options.batches or self._model.batches:
            with in_pass_context():
                rows = self._rows_of(batch)
            yield from rows

    def _rows_of(self, batch: int) -> list[Row]:
        options, cluster = self._shard_options(batch), self._cluster
        near = self._near
        near.wait()
        self._say(f"{self._model.name}, {self._mode}, batch {batch}: planning")
        grid = search_degrees(self._source, cluster, replace(options, run_best=0))
        ran = self._run_times(grid.models[: options.most_run], options)
        grid = replace(grid, measured_ns=ran)
        chosen = grid.best.strategy.degrees
        every = enumerate_degrees(NUM_RANKS, batch, MAX_MICRO_BATCHES, allow_fewer=True)
        found = {model.strategy.degrees for model in grid.models}
        near.wait()
        left = [degrees for degrees in every if degrees not in found]
        grid = replace(
            grid, models=(*grid.models, *plan_models(self._source, left, cluster, options))
        )
        runs = []
        for degrees in dict.fromkeys((*every, chosen)):
            self._say(f"building {degrees}")
            runs.append(_loaded(self._taken(grid, degrees, options)))
        beside = self._independent(batch // NUM_RANKS)
        with_kernels = [_Beside(run, plan_timer(self._source, run.model, cluster)) for run in runs]

        def time_kernels(_: int) -> None:
            for each in with_kernels:
                each.sample()

        self._say(f"running {len(runs)} degrees in {self._options.rounds} rounds")
        timed = time_in_turns(
            {str(run.degrees): run.executor.benchmark for run in runs} | {INDEPENDENT: beside},
            num_rounds=self._options.rounds,
            turn_ns=self._options.turn_ns,
            min_runs=_MIN_RUNS,
            core_to_core_ns=core_to_core_probe({str(run.degrees): run.executor for run in runs}),
            on_round=time_kernels,
            before_turn=near.wait,
        )
        rows = [
            self._row(each.run, batch, timed, each.run.degrees == chosen)
            | {"beside_ms": _ms(median(each.times_ns))}
            for each in with_kernels
        ]
        self._say(run_table(rows))
        return rows

    def _taken(self, grid: Grid, degrees: Degrees, options: ShardOptions) -> ShardedModel:
        """The plan that users get: of several for the same degrees that which runs faster."""
        models = [model for model in grid.models if model.strategy.degrees == degrees]
        if len(models) > 1 and grid.measured_of(degrees) is None:
            grid = replace(grid, measured_ns=self._run_times(models, options))
        return grid.best_of(degrees)

    def _run_times(
        self, models: Sequence[ShardedModel], options: ShardOptions
    ) -> dict[Strategy, int]:
        num_rounds = 1 if self._options.is_quick else NUM_ROUNDS
        return run_times(models, options, helping=False, num_rounds=num_rounds)

    def _independent(self, batch: int) -> Timer:
        """Two programs of one core, each with half of the batch, at once."""
        options, executors = self._shard_options(batch), []
        for device in self._cluster.devices:
            alone = rank_cluster(device.cores)
            self._say(f"building a program for {batch} rows on core {device.cores[0]} alone")
            executors.append(_loaded(plan_model(self._source, ONE, alone, options)).executor)
        return side_by_side([executor.benchmark for executor in executors])

    def _row(self, run: _Run, batch: int, timed: TimedRuns, is_chosen: bool) -> Row:
        degrees, name = run.degrees, str(run.degrees)
        strategy, solution = run.model.strategy, run.model.solution
        peaks = run.model.peak_bytes
        use = run.executor.memory()
        held = [use[memory.name].total_bytes if memory.name in use else 0
                for memory in self._cluster.memories]  # fmt: skip
        fullest = max(range(len(held)), key=lambda memory: held[memory])
        turns = timed.counted_turns(name)
        times = balanced_rounds(timed)[name]
        return {
            "model": self._model.name,
            "mode": self._mode,
            "batch": batch,
            "D": degrees.data,
            "T": degrees.tensor,
            "P": degrees.pipeline,
            "K": degrees.micro_batches,
            "schedule": strategy.schedule,
            "zero": strategy.zero,
            "recompute": strategy.recompute_every or None,
            "weight_gradients": run.model.weight_gradients,
            "simulated_ms": _ms(solution.predicted_ns),
            "measured_ms": _ms(median(times)),
            "predicted_peak_bytes": peaks[fullest],
            "measured_peak_bytes": held[fullest],
            "fits": fits(peaks, solution.cluster),
            "published": False,
            "grid_s": None,
            "chosen": is_chosen,
            "over_one_core": round(timed.ratio(str(ONE), name), 4),
            "over_independent": round(timed.ratio(INDEPENDENT, name), 4),
            "exchange_ms": _ms(exchange_ns(solution)),
            "rounds_counted": len(turns),
            "rounds_undisturbed": sum(turn.is_undisturbed for turn in turns),
            "spread_ms": _ms(half_spread(times)),
            "core_to_core_ns": timed.median_core_to_core_ns,
            "others_cores": round(median([turn.others_cores for turn in turns]), 3),
        }


def fits(peak_bytes: Sequence[int], cluster: Cluster) -> bool:
    """Say whether so many bytes of each memory are there."""
    sizes = [memory.bytes for memory in cluster.memories]
    return all(peak <= size for peak, size in zip(peak_bytes, sizes, strict=True))


def exchange_ns(solution: Solution) -> int:
    """Return what the collectives of a plan take by the links alone, one after the other, in ns.

    No rank gets what is the others' in less: a ring is optimal in bytes (see `collectives`), and
    without copy engines the cores move them, which do nothing else meanwhile.
    """
    collectives = [step for step in solution.plan.steps if isinstance(step, Collective)]
    graph, cluster = solution.graph, solution.cluster
    return sum(collective_step_ns(graph, cluster, None, step) for step in collectives)


def _loaded(model: ShardedModel) -> _Run:
    # Costs are those of cores that do what is planned for them, and nothing else.
    return _Run(model, load_model(model, helping=False))


def _ms(ns: float) -> float:
    return round(ns / 1e6, 5)
