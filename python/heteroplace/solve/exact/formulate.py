"""Problem -> Formulation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.solve.bounds.paths import find_paths
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.exact.formulation import (
    NOWHERE,
    Arrival,
    AtMost,
    Formulation,
    Homes,
    MemoryRow,
    Mode,
    Transfer,
)
from heteroplace.solve.problem import Problem


def formulate(
    problem: Problem,
    bound_ns: int = 0,
    *,
    dedup: bool = True,
    charges_tensors: bool = True,
    deadline: Deadline = NEVER,
) -> Formulation:
    """Return the model of `problem`. O(choices * memories).

    Parameters
    ----------
    bound_ns
        A proven lower bound on the makespan.
    dedup
        One transfer per tensor and memory. False: one per tensor and reader, as in Moirai; the
        optimum is then never shorter, and no bound for our plans, which copy once.
    charges_tensors
        Memory by the static rule: what fits fits by lifetime, but some that fits is missed. False:
        what every plan needs: nothing is missed, but some does not fit (`memory_rules`).

    Raises
    ------
    TimeUpError
        The deadline came first: there is a choice for each tensor and pair of memories.
    """
    choices = _runs(problem)
    homes = _homes(problem, choices)
    transfers: list[Transfer] = []
    exclusions: dict[AtMost, None] = {}
    for candidate in _transfers(problem, homes, dedup):
        deadline.check()
        ways = _ways(problem, homes, candidate, exclusions)
        activity = len(problem.graph.tasks) + len(transfers)
        if ways:
            transfers.append(candidate)
            for src, dst in ways:
                choices.append(_channel(problem, candidate.tensor, activity, src, dst))
    head_ns, tail_ns = _heads_and_tails(problem, transfers)
    return Formulation(
        problem,
        dedup,
        charges_tensors,
        homes,
        tuple(choices),
        tuple(transfers),
        tuple(exclusions),
        _colocated(problem),
        _memory_rows(problem, choices, transfers, charges_tensors),
        head_ns,
        tail_ns,
        bound_ns,
    )


def memory_rules(problem: Problem) -> tuple[bool, ...]:
    """Return the values of `charges_tensors` to solve `problem` by, one after the other.

    Where the static rule may be short, first what every plan needs, which proves bounds and may
    find a plan that fits as it is; then the static rule, of which only plans are taken.
    """
    return (False, True) if problem.native.counts_lifetimes else (True,)


def _runs(problem: Problem) -> list[Mode]:
    """A choice for each task and device that can run it."""
    modes = []
    for task, times in enumerate(problem.native.run_ns.tolist()):
        for device, time_ns in enumerate(times):
            if time_ns != IMPOSSIBLE:
                units = problem.cluster.unit_ids[device]
                modes.append(Mode(task, NOWHERE, device, time_ns, units))
    return modes


def _homes(problem: Problem, runs: list[Mode]) -> Homes:
    homes: dict[tuple[int, int], tuple[int, ...]] = {}
    for index, run in enumerate(runs):
        key = (run.activity, problem.cluster.devices[run.where].memory)
        homes[key] = (*homes.get(key, ()), index)
    return Homes(problem.cluster.host, homes)


def _transfers(problem: Problem, homes: Homes, dedup: bool) -> Iterator[Transfer]:
    """Yield all that have readers; some can never be needed."""
    graph, host = problem.graph, problem.cluster.host
    outputs = set(graph.outputs) if host is not None else set()
    for tensor, value in enumerate(graph.tensors):
        if value.producer is None and host is None:
            continue
        if not dedup:
            for task in value.consumers:
                yield Transfer(tensor, value.producer, (task,), None, False)
            if tensor in outputs:
                yield Transfer(tensor, value.producer, (), host, True)
            continue
        for dst in range(len(problem.cluster.memories)):
            readers = tuple(task for task in value.consumers if (task, dst) in homes.runs)
            is_output = dst == host and tensor in outputs
            if readers or is_output:
                yield Transfer(tensor, value.producer, readers, dst, is_output)


def _ways(
    problem: Problem, homes: Homes, transfer: Transfer, exclusions: dict[AtMost, None]
) -> list[tuple[int, int]]:
    """(src, dst) memories between which it may be needed; where no link leads, an exclusion."""
    memories = range(len(problem.cluster.memories))
    ways = []
    for dst in memories if transfer.dst is None else (transfer.dst,):
        reads = homes.reads(transfer, dst)
        for src in memories:
            home = homes.home(transfer, src)
            if src == dst or home.is_never or not reads:
                continue
            if problem.cluster.is_reachable(src, dst):
                ways.append((src, dst))
                continue
            for read in reads:
                limit = 1 - home.constant - read.constant
                exclusions[AtMost((*home.choices, *read.choices), limit)] = None
    return ways


def _channel(problem: Problem, tensor: int, activity: int, src: int, dst: int) -> Mode:
    route = problem.cluster.route(src, dst)
    time_ns = problem.cluster.transfer_ns(route, problem.graph.tensors[tensor].bytes)
    resources = tuple(sorted(problem.cluster.route_resources(route)))
    return Mode(activity, src, dst, time_ns, resources)


def _heads_and_tails(
    problem: Problem, transfers: list[Transfer]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Heads and tails of all activities, with transfers taking no time."""
    paths = find_paths(problem.native)
    heads, tails = paths.head_ns.tolist(), paths.tail_ns.tolist()
    runs = paths.fastest_ns.tolist()
    first, last = list(heads), list(tails)
    for transfer in transfers:
        producer = transfer.producer
        first.append(0 if producer is None else heads[producer] + runs[producer])
        after = [runs[task] + tails[task] for task in transfer.readers]
        last.append(0 if transfer.is_output else min(after))
    return tuple(first), tuple(last)


def _colocated(problem: Problem) -> tuple[tuple[int, int], ...]:
    first: dict[int, int] = {}
    pairs = []
    for task, group in enumerate(problem.native.task_group):
        if group >= 0 and first.setdefault(group, task) != task:
            pairs.append((first[group], task))
    return tuple(pairs)


def _memory_rows(
    problem: Problem, choices: list[Mode], transfers: list[Transfer], charges_tensors: bool
) -> tuple[MemoryRow, ...]:
    """The static rule of `heteroplace.model.memory_use.memory`, linear in what is chosen; without
    tensors what every plan needs, whatever it frees when."""
    graph, cluster = problem.graph, problem.cluster
    num_tasks = len(graph.tasks)
    staying: set[int] = set() if cluster.host is None else {*graph.inputs, *graph.outputs}
    sizes = np.array([tensor.bytes for tensor in graph.tensors], dtype=object)

    def charged(tensor: int, memory: int) -> int:
        is_free = not charges_tensors or (memory == cluster.host and tensor in staying)
        return 0 if is_free else int(sizes[tensor])

    runs: list[list[tuple[int, int]]] = [[] for _ in cluster.memories]
    workspaces: list[list[tuple[int, int]]] = [[] for _ in cluster.devices]
    ways: list[dict[int, dict[int, list[int]]]] = [{} for _ in cluster.memories]
    for index, choice in enumerate(choices):
        if choice.activity >= num_tasks:
            tensor = transfers[choice.activity - num_tasks].tensor
            if charged(tensor, choice.where):
                of_tensor = ways[choice.where].setdefault(tensor, {})
                of_tensor.setdefault(choice.activity, []).append(index)
            continue
        task = graph.tasks[choice.activity]
        memory = cluster.devices[choice.where].memory
        output_bytes = sum(
            charged(tensor, memory) for tensor in graph.task_outputs[choice.activity]
        )
        if task.weight_bytes + output_bytes:
            runs[memory].append((index, task.weight_bytes + output_bytes))
        if task.workspace_bytes:
            workspaces[choice.where].append((index, task.workspace_bytes))
    rows = []
    for memory, space in enumerate(cluster.memories):
        arrivals = tuple(
            Arrival(int(sizes[tensor]), tuple(tuple(ids) for ids in of_tensor.values()))
            for tensor, of_tensor in ways[memory].items()
        )
        always = sum(int(sizes[tensor]) for tensor in staying) if memory == cluster.host else 0
        spaces = tuple(
            tuple(sizes_of)
            for device, sizes_of in zip(cluster.devices, workspaces, strict=True)
            if device.memory == memory and sizes_of
        )
        rows.append(MemoryRow(memory, space.bytes - always, tuple(runs[memory]), arrivals, spaces))
    return tuple(rows)
