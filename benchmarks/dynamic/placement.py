"""Experts over several memories: placed by what a trace's tokens take, against members in order.

Labels are placement/task_moe_N/TRACE, of layers of experts over N memories of this machine
(`bench.models.routed_exchange`), each beside a core; cores are used in turn where there are fewer.
Variants: "halves", experts in order, as many in each memory; "placed", with the fewest cells that
change their memory (`dynamic.placement`); of two memories also "dense", placed, and memories
exchange all of their rows, and "timed", with the least time of devices and cells by the speeds of
the cluster, as `PlaceBranches` by "coactivation". All are timed in turns over the runs of the
trace; `ratio` is the time over that of halves.

Figures beyond those of all rows, per run of the trace:

- cross_bytes: what the executor has counted while the trace was replayed;
- cross_predicted: what plan and decisions say, which must be the same;
- row_bytes, row_predicted: of that, rows of tokens: by the counter, and by the placement alone;
- between_bytes, bound_bytes: of those, rows between layers, and what no placement is below;
- saved: the part of between_bytes that halves have and this variant has not;
- gathered_bytes: rows to the experts and back, if all tokens met in the first memory between
  layers, as they do where an op mixes them (what `PlaceBranches` by "homes" places for);
- sparse_bytes, dense_bytes: an exchange as it is here, with its counts; and one that moves as much
  for every pair of memories as for the largest one (Brainstorm, 4.2).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.dynamic.row import new_row
from benchmarks.dynamic.trace_runs import TraceRuns, time_trace, timer_of
from benchmarks.peers.stock import in_pass_context
from heteroplace import pipeline
from heteroplace.errors import HeteroPlaceError
from heteroplace.files.routes_file import RoutesReader
from heteroplace.lower.executable import Executable
from heteroplace.machine.local import local_cluster
from heteroplace.measure.cost_models.cost_model import CostOptions, choose_cost_model
from heteroplace.model.cluster import Cluster, Link, Memory
from heteroplace.model.cost import batches_of
from heteroplace.model.plan import Copy
from heteroplace.model.routed.route_profile import Cells, RouteProfile
from heteroplace.parts.routing.dynamic.all_to_all import (
    Counts,
    dense_cells,
    sparse_bytes,
    sparse_cells,
)
from heteroplace.parts.routing.dynamic.gather import gather_cost
from heteroplace.parts.routing.dynamic.placement import BranchPlacement, place_branches, replay
from heteroplace.parts.routing.dynamic.placement_problem import (
    BranchMemories,
    PlacementProblem,
    in_order,
    problem_of_profile,
)
from heteroplace.parts.routing.relay.branches.branch_times import memory_speeds
from heteroplace.parts.routing.report.router_figures import copied_bytes
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from heteroplace.simulate.decisions import decisions_of_records
from heteroplace.solve.problem import SolveOptions
from zoo.models.routed import RoutedNetwork
from zoo.models.routed_catalogue import TRACES
from zoo.models.routed_exchange import (
    EXPERTS,
    ExpertLayers,
    memories_of_tasks,
    spread_experts,
)

SIZES: Mapping[int, ExpertLayers] = {
    2: ExpertLayers(),
    4: ExpertLayers(),
    8: ExpertLayers(layers=2, has_one_message_size=True),
}
"""By memories: eight have 56 messages between two layers and 7 behind them, each a router."""
NUM_ROUNDS = 9
_LINK_BYTES_PER_SECOND = 5 * 10**9
_FLOPS_PER_SECOND = 5 * 10**10

Say = Callable[[str], None]


def rows(only: re.Pattern[str], say: Say) -> Iterator[dict[str, object]]:
    """Measure the labels that match; yield the rows."""
    for count, sizes in SIZES.items():
        for trace in TRACES:
            label = f"placement/task_moe_{count}/{trace}"
            if only.search(label):
                with in_pass_context():
                    yield from rows_of(count, sizes, trace, prefixed(say, label))


def rows_of(
    count: int,
    sizes: ExpertLayers,
    trace: str,
    say: Say = lambda line: None,
    num_rounds: int = NUM_ROUNDS,
) -> list[dict[str, object]]:
    """Return the figures of a number of memories and a trace, a row for each variant."""
    cluster = spread_cluster(count)
    halves = (
        tuple(expert * count // sizes.experts for expert in range(sizes.experts)),
    ) * sizes.layers
    say("building halves")
    built = {"halves": Spread.of(halves, sizes, cluster)}
    runs = TraceRuns(built["halves"].network, TRACES[trace])
    names = [f"{EXPERTS}.{layer}" for layer in range(sizes.layers)]
    problem = problem_of_profile(runs.profile, names, count)
    assert in_order(problem) == halves  # what `default_cells` counts
    found = place_branches(problem, SolveOptions(time_limit_s=10))
    say(found.text())
    built["placed"] = Spread.of(found.memories, sizes, cluster)
    if count == 2:
        built["dense"] = Spread.of(found.memories, sizes, cluster, is_sparse=False)
        timed_problem = with_times(problem, runs.profile, sizes, cluster)
        timed_placement = place_branches(timed_problem, SolveOptions(time_limit_s=10))
        say(timed_placement.text())
        built["timed"] = Spread.of(timed_placement.memories, sizes, cluster)
    inputs = runs.inputs()
    executors = {name: Executor(each.executable) for name, each in built.items()}
    first = [executor.run(inputs[0]) for executor in executors.values()]
    for outputs in first:
        np.testing.assert_array_equal(outputs[0], first[0][0])
    counted = {name: count_bytes(each, executors[name], runs) for name, each in built.items()}
    say("measuring")
    timers = {name: timer_of(executor, inputs) for name, executor in executors.items()}
    timed = time_trace(timers, len(inputs), num_rounds=num_rounds)
    return [
        new_row(
            f"task_moe_{count}",
            trace,
            name,
            "+".join(each.executable.solution.devices_used),
            ours_ms=timed.median_ns(name) / 1e6,
            ratio=timed.ratio(name, "halves"),
            **counted[name].figures(found, counted["halves"], sizes),
        )
        for name, each in built.items()
    ]


def with_times(
    problem: PlacementProblem, profile: RouteProfile, sizes: ExpertLayers, cluster: Cluster
) -> PlacementProblem:
    """Return the problem with the times of experts and of cells that change their memory, ns."""
    speeds = memory_speeds(cluster, range(problem.num_memories))
    row_flops = 4 * sizes.width * sizes.hidden

    def times(name: str) -> tuple[tuple[float, ...], ...]:
        seen = profile.router(name)
        loads = (seen.mean_load(branch) for branch in range(seen.num_branches))
        return tuple(tuple(load * row_flops / one for one in speeds.flops_per_ns) for load in loads)

    return replace(
        problem,
        layers=tuple(replace(layer, load_ns=times(layer.name)) for layer in problem.layers),
        cell_ns=speeds.cell_ns(_cell_bytes(sizes)),
    )


def spread_cluster(count: int) -> Cluster:
    """Return a cluster of memories of this machine, all linked, a core beside each."""
    cluster = local_cluster(has_gpus=False)
    cores = [device for device in cluster.devices if len(device.cores) == 1]
    memories = tuple(Memory(f"ram{n}", cluster.memories[0].bytes // count) for n in range(count))
    devices = tuple(
        replace(
            cores[n % len(cores)],
            name=f"cpu.{n}",
            memory=n,
            flops_per_second=_FLOPS_PER_SECOND,
            memory_bytes_per_second=_LINK_BYTES_PER_SECOND,
            copy_engines=0,  # no core is to spare for copies, as in a machine that is probed
        )
        for n in range(count)
    )
    links = tuple(
        Link(f"{src}-{dst}", src, dst, _LINK_BYTES_PER_SECOND, 1000, f"{src}-{dst}")
        for src in range(count)
        for dst in range(count)
        if src != dst
    )
    return Cluster(f"{count} memories", memories, devices, links, 0)


@dataclass(frozen=True)
class Spread:
    """A network over memories, built as it says where everything is."""

    memories: BranchMemories
    sizes: ExpertLayers
    is_sparse: bool
    network: RoutedNetwork
    executable: Executable

    @staticmethod
    def of(
        memories: BranchMemories, sizes: ExpertLayers, cluster: Cluster, *, is_sparse: bool = True
    ) -> Spread:
        """Build it; memory n is that of device n."""
        network = spread_experts(memories, sizes, is_sparse=is_sparse)
        cut = pipeline.prepare(network.mod, network.params, cluster=cluster)
        places = memories_of_tasks(cut.graph)
        tasks = tuple(
            replace(task, devices=(cluster.devices[place].name,))
            for task, place in zip(cut.graph.tasks, places, strict=True)
        )
        cut = cut.with_graph(replace(cut.graph, tasks=tasks))
        model = choose_cost_model("estimate", CostOptions())
        compiled = pipeline.compile(cut, cluster, model)
        batches = batches_of(cluster, 1, cut.graph)
        costed = pipeline.cost(compiled, cluster, model, batches=batches)
        solution = pipeline.solve(costed, SolveOptions(), "heft")
        executable = pipeline.build(compiled, solution)
        return Spread(memories, sizes, is_sparse, network, executable)


@dataclass(frozen=True)
class Counted:
    """Bytes of some runs."""

    is_sparse: bool
    num_runs: int
    counted: int
    predicted: int
    unguarded: int
    """Of copies that are made in every run."""
    row_predicted: int
    between: int
    gathered: int
    exchanges: tuple[Counts, ...]
    """Of each run and each two layers, tokens from memory to memory."""

    def figures(
        self, placed: BranchPlacement, halves: Counted, sizes: ExpertLayers
    ) -> dict[str, object]:
        """The figures of a row; means of a run."""
        cell = _cell_bytes(sizes)
        dense = sum(map(dense_cells, self.exchanges)) * cell
        sparse = sum(sparse_bytes(counts, cell) for counts in self.exchanges)
        return {
            "cross_bytes": self.counted / self.num_runs,
            "cross_predicted": self.predicted / self.num_runs,
            "row_bytes": (self.counted - self.unguarded) / self.num_runs,
            "row_predicted": self.row_predicted / self.num_runs,
            "between_bytes": self.between / self.num_runs,
            "bound_bytes": placed.bound * cell,
            "saved": 1 - self.between / halves.between if self.is_sparse else None,
            "gathered_bytes": self.gathered / self.num_runs,
            "sparse_bytes": sparse / self.num_runs,
            "dense_bytes": dense / self.num_runs,
        }


def count_bytes(spread: Spread, executor: Executor, runs: TraceRuns) -> Counted:
    """Replay a trace, and count what is copied.

    Raises
    ------
    HeteroPlaceError
        The counter is not what plan and decisions, or placement and decisions, say.
    """
    solution, sizes = spread.executable.solution, spread.sizes
    before = sum(executor.copied_bytes().values())
    inputs = runs.inputs()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "routes.jsonl"
        with executor.record(path):
            for each in inputs:
                executor.run(each)
        decisions = decisions_of_records(solution.graph, RoutesReader(path).records())
    of = solution.graph, solution.cluster, solution.plan
    predicted = sum(round(sum(copied_bytes(*of, decision).values())) for decision in decisions)
    unguarded = len(inputs) * sum(
        solution.graph.tensors[step.tensor].bytes
        for step in solution.plan.steps
        if isinstance(step, Copy) and step.guard is None
    )
    counted = sum(executor.copied_bytes().values()) - before
    ways = [_ways(spread, cells) for cells in _decisions(runs)]
    # What all memories send to all in a dense exchange is no row of a router.
    routed = [each if spread.is_sparse else each[:1] for each in ways]
    between = tuple(counts for each in ways for counts in each[1:-1])
    cell = _cell_bytes(sizes)
    num_memories = len(solution.cluster.memories)
    dense_tokens = num_memories * (num_memories - 1) * sizes.tokens
    found = Counted(
        spread.is_sparse,
        len(inputs),
        counted,
        predicted,
        unguarded,
        sum(sparse_cells(counts) for each in routed for counts in each) * cell,
        sum(map(sparse_cells, between)) * cell
        if spread.is_sparse
        else len(between) * dense_tokens * cell,
        sum(_gathered(spread, layers) for layers in _decisions(runs)) * cell,
        between,
    )
    if (found.counted, found.counted - unguarded) != (predicted, found.row_predicted):
        raise HeteroPlaceError(
            f"copied {counted} bytes, {counted - unguarded} of them rows; expected {predicted} and "
            f"{found.row_predicted} by the route decisions: the counter, or the plan, is wrong"
        )
    return found


def _decisions(runs: TraceRuns) -> list[list[Cells]]:
    """Of each run the branches of each layer's cells."""
    by_run: dict[int, list[Cells]] = {}
    for record in runs.records:
        assert record.cells is not None  # traces are of level 2
        by_run.setdefault(record.run, []).append(record.cells)
    return [by_run[run] for run in sorted(by_run)]


def _ways(spread: Spread, layers: Sequence[Cells]) -> tuple[Counts, ...]:
    """Tokens from memory to memory: from the first one to the experts, on, and back to it."""
    home: Cells = ((0,),) * len(layers[0])
    memories = ((0,), *spread.memories, (0,))
    num_memories = len(spread.executable.solution.cluster.memories)
    return replay([home, *layers, home], memories, num_memories)


def _gathered(spread: Spread, layers: Sequence[Cells]) -> int:
    """Tokens that are sent in a run if all of them are one group, at home in the first memory."""
    routes = [[branches[0] for branches in cells] for cells in layers]
    num_memories = len(spread.executable.solution.cluster.memories)
    return gather_cost(
        routes,
        [0] * len(routes[0]),
        spread.memories,
        num_memories,
        is_movable=False,
        first_homes=(0,),
    )


def _cell_bytes(sizes: ExpertLayers) -> int:
    return 4 * sizes.width
