"""Copies of routed programs: the executor counts just the bytes that the route decisions say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from relay_models import cpu_cluster
from routed_models import Shape, routed_executable, switch_layer

from heteroplace.files.routes_file import RoutesReader
from heteroplace.lower.executable import Executable
from heteroplace.model.cluster import Cluster, Link, Memory
from heteroplace.model.plan import Copy
from heteroplace.parts.routing.dynamic.gather import gather_cost
from heteroplace.parts.routing.dynamic.recorded_routes import read_profile
from heteroplace.parts.routing.report.router_figures import copied_bytes, mean_copied_bytes
from heteroplace.relay.tasks.network import cut_network
from heteroplace.run.executor import Executor
from heteroplace.simulate.decisions import decisions_of_records

NUM_RUNS = 5


def with_memories(count: int) -> Cluster:
    """One core in each memory; all are linked."""
    cluster = cpu_cluster()
    memories = tuple(Memory(f"ram{n}", cluster.memories[0].bytes) for n in range(count))
    links = tuple(
        Link(f"{a}-{b}", a, b, 10**9, 1000, f"{a}-{b}")
        for a in range(count)
        for b in range(count)
        if a != b
    )
    core = cluster.devices[0]
    devices = tuple(replace(core, name=f"cpu{n}", memory=n) for n in range(count))
    return replace(cluster, memories=memories, devices=devices, links=links)


def replayed(executable: Executable, path: Path, level: int) -> Executor:
    """An executor that has recorded some runs."""
    executor = Executor(executable)
    with executor.record(path, level):
        for seed in range(NUM_RUNS):
            random = np.random.default_rng(seed)
            executor.run(x=random.standard_normal((16, 16)).astype("float32"))
    return executor


@pytest.mark.costly
def test_copied_bytes_are_those_of_the_recorded_routes(tmp_path: Path) -> None:
    shape = Shape(branches=4, top_k=2, capacities=(1, 4), overflow="drop")
    mod, cluster, random = switch_layer(shape), with_memories(2), Random(2)
    devices = [random.randrange(2) for _ in cut_network(mod).graph.tasks]
    executable = routed_executable(mod, cluster, devices)
    solution = executable.solution
    path = tmp_path / "routes.jsonl"
    executor = replayed(executable, path, 1)
    of = solution.graph, solution.cluster, solution.plan
    expected: Counter[tuple[str, str]] = Counter()
    for decision in decisions_of_records(solution.graph, RoutesReader(path).records()):
        expected.update(copied_bytes(*of, decision))
    counted = executor.copied_bytes()
    assert len(counted) == 2
    assert counted == dict(expected)
    # A profile knows the means of the same runs.
    mean = mean_copied_bytes(*of, read_profile(path))
    assert {way: pytest.approx(NUM_RUNS * size) for way, size in mean.items()} == expected
    text = executor.routing_text(path)
    assert text == executor.routing_text(read_profile(path))
    assert executable.summary(profile=path) == executable.summary(profile=read_profile(path))
    assert "switch     16         4  1,4 " in text
    assert "copied between memories so far: ram0 -> ram1 " in text


@pytest.mark.costly
def test_rows_leave_their_home_and_come_back_as_the_placement_says(tmp_path: Path) -> None:
    """All but the branches is in the first of three memories."""
    mod, cluster, members = switch_layer(), with_memories(3), (2, 0, 1, 2)
    graph = cut_network(mod).graph
    devices = [0 if task.branch is None else members[task.branch[1]] for task in graph.tasks]
    executable = routed_executable(mod, cluster, devices)
    path = tmp_path / "routes.jsonl"
    counted = sum(replayed(executable, path, 2).copied_bytes().values())
    always = sum(
        executable.solution.graph.tensors[step.tensor].bytes
        for step in executable.solution.plan.steps
        if isinstance(step, Copy) and step.guard is None
    )
    cells = [record.cells for record in RoutesReader(path).records()]
    sent = sum(
        gather_cost(
            [[branches[0] for branches in each or ()]],
            [0] * 16,
            [members],
            3,
            is_movable=False,
            first_homes=(0,),
        )
        for each in cells
    )
    assert sent > 0
    assert counted - NUM_RUNS * always == 16 * 4 * sent
