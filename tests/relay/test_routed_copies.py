"""Copies of routed programs: the executor counts just the bytes that the route decisions say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from relay_models import cpu_cluster, random_inputs
from routed_models import Shape, routed_executable, switch_layer

from heteroplace.dynamic.profile import read_profile
from heteroplace.files.routes import RoutesReader
from heteroplace.model.cluster import Cluster, Link, Memory
from heteroplace.run.executor import Executor
from heteroplace.simulate.copied import copied_bytes, mean_copied_bytes
from heteroplace.simulate.decisions import decisions_of_records


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


@pytest.mark.costly
@pytest.mark.parametrize("count", [2, 4])
def test_copied_bytes_are_those_of_the_recorded_routes(count: int, tmp_path: Path) -> None:
    shape = Shape(branches=4, top_k=2, capacities=(1, 4), overflow="drop")
    mod, cluster, random = switch_layer(shape), with_memories(count), Random(count)
    num_tasks = len(routed_executable(mod).solution.graph.tasks)
    devices = [random.randrange(count) for _ in range(num_tasks)]
    executable = routed_executable(mod, cluster, devices)
    solution = executable.solution
    executor = Executor(executable)
    path = tmp_path / "routes.jsonl"
    with executor.record(path):
        for seed in range(5):
            executor.run(random_inputs(mod, seed))
    of = solution.graph, solution.cluster, solution.plan
    expected: Counter[tuple[str, str]] = Counter()
    for decision in decisions_of_records(solution.graph, RoutesReader(path).records()):
        expected.update(copied_bytes(*of, decision))
    counted = executor.copied_bytes()
    assert len(counted) > 1
    assert counted == dict(expected)
    # A profile knows the means of the same runs.
    mean = mean_copied_bytes(*of, read_profile(path))
    assert {way: pytest.approx(5 * size) for way, size in mean.items()} == expected
    text = executor.routing_text(read_profile(path))
    assert "switch     16         4  1,4 " in text
    assert "copied between memories so far: ram0 -> ram1 " in text
