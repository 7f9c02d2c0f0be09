"""Instances whose optima are known from exhaustive search, by every exact engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heteroplace.errors import InfeasibleError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.exact.formulate import formulate
from heteroplace.solve.exact.formulation import Formulation
from tests.exact_engines import Engine, every_engine, optimum
from tests.instances import cpu, diamond, given_costs, gpus, instance, problem_of
from tests.strategies import Instance


def in_mode(case: Instance, mode: str) -> Instance:
    cluster = replace(case.cluster, congestion=mode)
    costs = replace(case.costs, devices=cluster.identities)
    return Instance(case.graph, cluster, costs)


def fork() -> Instance:
    """One sender, two receivers; transfers take 2."""
    run_ns = {"r": (1, None, None), "x": (None, 5, None), "y": (None, None, 5)}
    return instance([("r", "x"), ("r", "y")], run_ns, gpus({(0, 1): 5, (0, 2): 5}, 3))


def join() -> Instance:
    """Two senders, one receiver; transfers take 2."""
    run_ns = {"x": (3, None, None), "y": (None, 3, None), "j": (None, None, 1)}
    return instance([("x", "j"), ("y", "j")], run_ns, gpus({(0, 2): 5, (1, 2): 5}, 3))


def two_modules() -> Instance:
    """Two diamonds joined by a bridge; transfers take 1 inside, 5 between."""
    run_ns = {
        **{"a1": (1, 2), "b1": (3, 1), "c1": (1, 1), "d1": (2, 4)},
        **{"a2": (4, 3), "b2": (4, 4), "c2": (3, 3), "d2": (2, 2)},
    }
    edges = []
    for module in "12":
        for src, dst in ("ab", "ac", "bd", "cd"):
            edges.append((f"{src}{module}", f"{dst}{module}"))
    sizes = {"d1": 50}
    cluster = gpus({(0, 1): 10, (1, 0): 10}, 2)
    return instance([*edges, ("d1", "a2")], run_ns, cluster, num_bytes=10, tensor_bytes=sizes)


def two_channels() -> Instance:
    """Two channels between two modules; all transfers take 1, devices are equal."""
    times = {"s": 1, "o1": 1, "o2": 6, "i1": 6, "i2": 1, "t": 1}
    edges = [("s", "o1"), ("s", "o2"), ("o1", "i1"), ("o2", "i2"), ("i1", "t"), ("i2", "t")]
    run_ns = {name: (time, time) for name, time in times.items()}
    return instance(edges, run_ns, gpus({(0, 1): 10, (1, 0): 10}, 2))


@every_engine
@pytest.mark.parametrize("mode", ["none", "channel", "port"])
def test_diamond_takes_10_in_every_mode(engine: Engine, mode: str) -> None:
    assert optimum(problem_of(in_mode(diamond(), mode)), engine) == 10


@every_engine
def test_diamond_with_two_tasks_per_memory_takes_11(engine: Engine) -> None:
    assert optimum(problem_of(diamond(2100, 1000)), engine) == 11


@every_engine
def test_each_direction_has_its_own_bandwidth(engine: Engine) -> None:
    cluster = gpus({(0, 1): 10, (1, 0): 5}, 2)
    chain = {"a": (1, None), "b": (None, 1), "c": (1, None)}
    both = instance([("a", "b"), ("b", "c")], chain, cluster)
    down = instance([("a", "b")], {"a": (1, None), "b": (None, 1)}, cluster)
    up = instance([("a", "b")], {"a": (None, 1), "b": (1, None)}, cluster)
    found = [optimum(problem_of(case), engine) for case in (both, down, up)]
    assert found == [6, 3, 4]


@every_engine
def test_a_route_has_the_bandwidth_of_its_narrowest_link(engine: Engine) -> None:
    widths = {(0, 1): 10, (1, 2): 5, (2, 1): 5, (1, 0): 10}
    run_ns = {"a": (0, None, None), "b": (None, None, 0)}
    case = instance([("a", "b")], run_ns, gpus(widths, 3), num_bytes=100)
    assert optimum(problem_of(case), engine) == 20


@every_engine
@pytest.mark.parametrize(("mode", "expected"), [("none", 8), ("channel", 8), ("port", 10)])
def test_fork_takes_longer_when_copies_leave_by_one_port(
    engine: Engine, mode: str, expected: int
) -> None:
    assert optimum(problem_of(in_mode(fork(), mode)), engine) == expected


@every_engine
@pytest.mark.parametrize(("mode", "expected"), [("none", 6), ("channel", 6), ("port", 8)])
def test_join_takes_longer_when_copies_enter_by_one_port(
    engine: Engine, mode: str, expected: int
) -> None:
    assert optimum(problem_of(in_mode(join(), mode)), engine) == expected


@every_engine
@pytest.mark.parametrize(("mode", "per_edge"), [("none", 4), ("channel", 6), ("port", 6)])
def test_transfers_per_edge_wait_for_each_other(engine: Engine, mode: str, per_edge: int) -> None:
    # Two cores read one tensor of the GPU; a transfer takes 2.
    run_ns = {"r": (1, None, None), "x": (None, 1, None), "y": (None, None, 1)}
    case = instance([("r", "x"), ("r", "y")], run_ns, cpu_beside_gpu())
    problem = problem_of(in_mode(case, mode))
    assert optimum(problem, engine) == 4
    assert optimum(problem, engine, dedup=False) == per_edge


def cpu_beside_gpu() -> Cluster:
    """A GPU, and two cores in one other memory; transfers take 2."""
    cores = tuple(replace(device, memory=1) for device in cpu().devices[:2])
    gpu = gpus({(0, 1): 5}, 2)
    return replace(gpu, devices=(gpu.devices[0], *cores))


@every_engine
def test_two_modules_are_joined_where_both_are_good(engine: Engine) -> None:
    # The best of each alone, glued together, takes 21.
    assert optimum(problem_of(in_mode(two_modules(), "none")), engine) == 17


@every_engine
def test_a_chain_leaves_a_memory_that_holds_half_of_it(engine: Engine) -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {"a": (1, 5), "b": (1, 5)}
    cluster = gpus({(0, 1): 10, (1, 0): 10}, 2)
    sizes = (replace(cluster.memories[0], bytes=120), replace(cluster.memories[1], bytes=230))
    case = instance([("a", "b")], run_ns, replace(cluster, memories=sizes), weight_bytes=100)
    assert optimum(problem_of(case), engine) == 7


@every_engine
def test_two_channels_take_10(engine: Engine) -> None:
    assert optimum(problem_of(in_mode(two_channels(), "none")), engine) == 10


@every_engine
def test_threads_are_chosen_together_with_the_place(engine: Engine) -> None:
    # Single cores in the middle, all cores at the ends: 6 + 10 + 6.
    run_ns: dict[str, tuple[int | None, ...]] = {
        name: (10, 10, 6) for name in ("first", "l", "r", "last")
    }
    edges = [("first", "l"), ("first", "r"), ("l", "last"), ("r", "last")]
    assert optimum(problem_of(instance(edges, run_ns, cpu())), engine) == 22


@every_engine
def test_memory_that_holds_nothing_is_proven_infeasible(engine: Engine) -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {"a": (5, 5), "b": (5, 5), "c": (5, 5)}
    case = instance([], run_ns, gpus({}, 2, 150), weight_bytes=100)
    assert optimum(problem_of(case), engine) is None


def test_moirai_reports_what_does_not_fit_as_infeasible() -> None:
    run_ns: dict[str, tuple[int | None, ...]] = {"a": (5, 5), "b": (5, 5), "c": (5, 5)}
    case = instance([], run_ns, gpus({}, 2, 150), weight_bytes=100)
    with pytest.raises(InfeasibleError, match="It needs 300 B of weights and 30 B of tensors"):
        get_solver("moirai").solve(problem_of(case), SolveOptions(threads=1))


SAMPLE_RUNS: dict[str, tuple[int | None, ...]] = {
    "v1": (8, 9, 7),
    "v2": (7, 6, 8),
    "v3": (8, 5, 6),
    "v4": (5, 8, 6),
    "v5": (5, 4, 3),
    "v6": (3, 3, 5),
    "v7": (6, 7, 8),
    "v8": (1, 2, 4),
    "v9": (7, 9, 6),
    "v10": (2, 5, 4),
    "v11": (7, 5, 8),
    "v12": (6, 7, 5),
}
"""The first of the samples that Moirai's authors have published; its source and sink take no time
and are left out."""
SAMPLE_MEMORY = dict(zip(SAMPLE_RUNS, (5, 2, 4, 5, 3, 4, 2, 1, 4, 6, 5, 3), strict=True))
SAMPLE_TRANSFERS = {
    ("v1", "v3"): (3, 4, 2),
    ("v2", "v3"): (1, 3, 2),
    ("v3", "v6"): (2, 4, 2),
    ("v4", "v6"): (1, 3, 2),
    ("v5", "v6"): (2, 1, 1),
    ("v6", "v8"): (4, 3, 1),
    ("v7", "v10"): (4, 2, 3),
    ("v8", "v10"): (1, 2, 4),
    ("v8", "v12"): (3, 2, 3),
    ("v9", "v11"): (2, 2, 4),
    ("v10", "v11"): (1, 3, 2),
}
"""Between devices 0 and 1, 0 and 2, 1 and 2, either way."""


def sample() -> Formulation:
    """Its transfer times are those of no sizes and bandwidths: they are put into the model."""
    builder = TaskGraphBuilder("sample")
    for name in SAMPLE_RUNS:
        reads = [f"{src}.0" for src, dst in SAMPLE_TRANSFERS if dst == name]
        builder.add_task(Task(name, "op", weight_bytes=SAMPLE_MEMORY[name]), reads)
        builder.add_tensor(name, num_bytes=0)
    graph = builder.finalize(["v11.0", "v12.0"])
    links = {(src, dst): 1 for src in range(3) for dst in range(3) if src != dst}
    cluster = replace(gpus(links, 3), congestion="port")
    sizes = (14, 14, 16)
    memories = tuple(replace(m, bytes=n) for m, n in zip(cluster.memories, sizes, strict=True))
    cluster = replace(cluster, memories=memories)
    costs = given_costs(graph, cluster, SAMPLE_RUNS)
    formulation = formulate(Problem(graph, cluster, costs), dedup=False)
    choices = list(formulation.choices)
    for activity, transfer in enumerate(formulation.transfers, start=formulation.num_tasks):
        assert transfer.producer is not None
        ends = (graph.tasks[transfer.producer].name, graph.tasks[transfer.readers[0]].name)
        for index in formulation.of_activity[activity]:
            way = choices[index]
            pair = way.src + way.where - 1
            choices[index] = replace(way, duration_ns=SAMPLE_TRANSFERS[ends][pair])
    return replace(formulation, choices=tuple(choices))


@pytest.mark.costly
@every_engine
def test_the_published_sample_takes_30(engine: Engine) -> None:
    end = engine(sample(), None)
    assert end.schedule is not None
    assert (end.schedule.makespan_ns, end.bound_ns) == (30, 30)
