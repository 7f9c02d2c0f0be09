"""`exact --symmetry`: what symmetry of equal devices and equal nodes saves (DiviML IV-F).

Two ways to the optimum of two items on equal nodes of equal devices, each with symmetry and
without, in turns in one process. `work` does not depend on the machine.

    splits      pairs of splits that are searched for a chain of modules; `order` is "symmetry" or
                "none"
    programme   nodes of HiGHS for DiviML's programme on a random graph; `order` is
                `BatchRules.symmetry`
    value_ns, bound_ns
                makespan, and what is proven of the programme; the limit of time can be in between
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, pairwise
from random import Random
from threading import Event

from benchmarks.row_table import row_table
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, table_from_rows
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.parts.throughput.batched.device_symmetry import DeviceSymmetry, device_symmetry
from heteroplace.parts.throughput.batched.divi_milp import solve_batched_milp
from heteroplace.parts.throughput.batched.divi_rules import BatchRules, Measure
from heteroplace.parts.throughput.decompose.narrow_cuts import single_channel_modules
from heteroplace.parts.throughput.decompose.serial_modules import module_chain
from heteroplace.parts.throughput.split.batched_chain import BatchedChain, ChainBudget
from heteroplace.solve import Problem
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.lp.highs import HighsEngine
from heteroplace.solve.lp.linear_program import FloatArray, MipAnswer, MipLimits, MixedProgram

Row = dict[str, object]
ITEMS = 2
ORDERS: tuple[Measure, ...] = ("none", "first", "time")
CHAINS = ((2, 2), (3, 2), (2, 3))
"""Nodes, and devices of each, for chains of modules."""
_EVALUATIONS = 1000
"""Of layouts for each task and pair."""
_BYTES_PER_NS = 10**9
_MAX_TRANSFER_BYTES = 3


def symmetry_rows(
    say: Callable[[str], None], *, tasks: int = 5, seeds: int = 6, time_limit_s: float = 60.0
) -> Iterator[Row]:
    """Yield a row for each instance and order.

    Parameters
    ----------
    tasks, seeds
        Of the random graphs of the programme: tasks of each, and how many.
    time_limit_s
        For one solve of the programme.
    """
    for row in chain(_split_rows(), _programme_rows(tasks, seeds, time_limit_s)):
        say(f"{row['what']}: {row['graph']}: {row['order']}: {row['work']}")
        yield row


def symmetry_table(rows: list[Row]) -> str:
    """Return the rows as text."""
    return row_table(rows, num_names=3)


def equal_nodes_problem(
    random: Random, tasks: int, nodes: int, devices: int, density: float
) -> Problem:
    """Return tasks of 3 to 20 ns on equal nodes of equal devices, without contention.

    Links are five times as fast within a node. A batch of two takes 1.6 times as long as one.

    Parameters
    ----------
    density
        Probability of an edge between two tasks; 0: a chain.
    """
    whole = range(nodes * devices)
    cluster = Cluster(
        f"{nodes} nodes of {devices}",
        tuple(Memory(f"m{i}", 10**6) for i in whole),
        tuple(
            Device(f"gpu{i}", "cuda", "", i, i, host=f"node{i // devices}", batch_sizes=(1, ITEMS))
            for i in whole
        ),
        tuple(
            Link(f"{a}-{b}", a, b, speed * _BYTES_PER_NS, 1, f"{a}-{b}")
            for a in whole
            for b in whole
            if a != b
            for speed in [5 if a // devices == b // devices else 1]
        ),
        congestion="none",
    )
    single = [random.randint(3, 20) for _ in range(tasks)]
    builder = TaskGraphBuilder("random" if density else "chain")
    edges = [
        (i, j) for j in range(tasks) for i in range(j) if density and random.random() < density
    ] or list(pairwise(range(tasks)))
    for task in range(tasks):
        builder.add_task(Task(f"t{task}", "op"), [f"t{i}.0" for i, j in edges if j == task])
        builder.add_tensor(f"t{task}", num_bytes=_MAX_TRANSFER_BYTES)
    read = {i for i, _ in edges}
    graph = builder.finalize([f"t{task}.0" for task in range(tasks) if task not in read])
    one, two = (
        tuple((Cost.given(int(factor * ns)),) * len(whole) for ns in single)
        for factor in (1.0, 1.6)
    )
    return Problem(graph, cluster, table_from_rows(graph, cluster, one, {ITEMS: two}))


def _split_rows() -> Iterator[Row]:
    for nodes, devices in CHAINS:
        problem = equal_nodes_problem(Random(0), 6, nodes, devices, 0.0)
        alone = DeviceSymmetry((), tuple((device,) for device in range(nodes * devices)))
        for order, symmetry in (("none", alone), ("symmetry", device_symmetry(problem))):
            path = single_channel_modules(problem.graph, 2)
            chain = BatchedChain(
                problem, module_chain(problem.graph, path=path), ITEMS, 1, symmetry
            )
            chain.find_states([])
            begin = time.process_time()
            chain.improve(ChainBudget(Deadline.after(600.0), _EVALUATIONS, 0, 1, Event()))
            cpu_s = time.process_time() - begin
            yield {
                "what": "splits",
                "graph": problem.cluster.name,
                "order": order,
                "work": chain.num_searches,
                "value_ns": chain.best_ns(),
                "bound_ns": None,
                "cpu_s": cpu_s,
            }


class _CountingEngine:
    """HiGHS, with the nodes of its latest search."""

    name = "HiGHS"

    def __init__(self) -> None:
        self.nodes = 0

    def solve(
        self, program: MixedProgram, limits: MipLimits, start: FloatArray | None = None
    ) -> MipAnswer:
        """See `MipEngine.solve`."""
        answer = HighsEngine().solve(program, limits, start)
        self.nodes = answer.num_nodes
        return answer


def _programme_rows(tasks: int, seeds: int, time_limit_s: float) -> Iterator[Row]:
    for seed in range(seeds):
        problem = equal_nodes_problem(Random(seed), tasks, 3, 2, 0.35)
        for order in ORDERS:
            engine, rules = _CountingEngine(), replace(BatchRules(), symmetry=order)
            begin = time.process_time()
            end = solve_batched_milp(
                problem, ITEMS, rules, time_limit_s=time_limit_s, engine=engine
            )
            yield {
                "what": "programme",
                "graph": f"{problem.cluster.name}, seed {seed}",
                "order": order,
                "work": engine.nodes,
                "value_ns": end.value_ns,
                "bound_ns": end.bound_ns,
                "cpu_s": time.process_time() - begin,
            }
