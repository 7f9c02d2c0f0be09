"""A table that lacks cells is completed for all batch sizes that it has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from heteroplace.costs.complete import complete_costs
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder


@pytest.mark.parametrize("missing", ["estimate", "measure"])
def test_every_batch_of_a_device_that_is_not_known(missing: str) -> None:
    builder = TaskGraphBuilder("one")
    x = builder.add_input("x", (100,), "float32")
    builder.add_task(Task("a", "nn.dense", flops=2000, weight_bytes=600), [x])
    graph = builder.finalize([builder.add_tensor("a", (250,), "float32")])
    speeds = {"flops_per_second": 10**9, "memory_bytes_per_second": 10**12}
    devices = tuple(
        Device(name, "cpu", "llvm", 0, 0, (core,), batch_sizes=(1, 4), **speeds)
        for core, name in enumerate("de")
    )
    cluster = Cluster("box", (Memory("ram", 10**9),), devices)

    def known(task: int, device: int, batch: int = 1) -> Cost:
        return Cost.given(10 * batch) if device == 0 else Cost.unknown()

    def measure(part: Cluster, batches: Sequence[int]) -> CostTable:
        assert [device.name for device in part.devices] == ["e"]
        return build_table(
            graph, part, lambda task, device, batch=1: Cost.measured(2000 * batch), tuple(batches)
        )

    table = build_table(graph, cluster, known, (1, 4))
    found = complete_costs(table, graph, cluster, missing, "", measure)
    times = {(d, b): found.run_ns(0, d, b) for d in (0, 1) for b in (1, 4)}
    assert times == {(0, 1): 10, (0, 4): 40, (1, 1): 2000, (1, 4): 8000}
