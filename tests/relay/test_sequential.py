"""sequential: a model that no device can hold is measured on several, or in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import tvm
from few_rounds import few_rounds
from relay_models import TARGET, compiled_of, conv, cores, extraction_of, module, var, weights
from tvm import relay

from heteroplace.errors import CostMismatchError, InfeasibleError, MissingCostError
from heteroplace.measure import sequential
from heteroplace.measure.kernels.kernel_calls import only_calls
from heteroplace.measure.sequential import measure_sequential
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.relay.targets import with_stock_kernels
from heteroplace.relay.tasks.extract import Extraction
from heteroplace.solve.list.sequential_placement import SEQUENTIAL_ORDERS


@pytest.fixture(scope="module", autouse=True)
def few_runs() -> Iterator[None]:
    with few_rounds(sequential):
        yield


@pytest.fixture(scope="module")
def extraction() -> Extraction:
    """Four convolutions in a row, a reshape, and a dense layer: weights of 160 KB each."""
    data = var("data", (1, 64, 8, 8))
    value = data
    for _ in range(4):
        value = relay.nn.relu(conv(value, 64, 64))
    flat = relay.nn.batch_flatten(value)
    return extraction_of(module([data], relay.nn.dense(flat, weights(8, 4096))))


def two_memories(first_bytes: int, second_bytes: int) -> Cluster:
    """A core with each of two memories, as on a machine of two nodes."""
    ids = cores()
    return Cluster(
        "nodes",
        (Memory("near", first_bytes), Memory("far", second_bytes)),
        (
            Device("cpu.0", "cpu", TARGET, 0, 0, ids[:1]),
            Device("cpu.1", "cpu", TARGET, 0, 1, ids[-1:]),
        ),
        (Link("out", 0, 1, 10**10, 100, "out"), Link("back", 1, 0, 10**10, 100, "back")),
        0,
    )


def rough(graph: TaskGraph, cluster: Cluster) -> CostTable:
    return build_table(graph, cluster, lambda task, device: Cost.roofline(1000 + device, "rough"))


def measured(
    extraction: Extraction, cluster: Cluster, order: str = "cpd"
) -> sequential.SequentialMeasurement:
    graph = extraction.graph
    with tvm.transform.PassContext(opt_level=3):
        return measure_sequential(compiled_of(extraction), cluster, rough(graph, cluster), order)


@pytest.mark.costly
@pytest.mark.parametrize("order", SEQUENTIAL_ORDERS)
def test_model_too_large_for_one_device_is_measured_on_two(
    extraction: Extraction, order: str
) -> None:
    # With TVM's kernels, whose filters are as large as the model's.
    cluster = with_stock_kernels(two_memories(600_000, 900_000))
    result = measured(extraction, cluster, order)
    assert set(result.placement.devices) == {0, 1}
    assert not result.placement.excess_bytes and not result.in_groups
    assert all(ns > 0 for ns in result.times)
    result.costs.check(extraction.graph, cluster)
    for task, device in enumerate(result.placement.devices):
        assert result.costs.cost(task, device).source == "measured"
        assert result.costs.run_ns(task, device) == result.times[task]


@pytest.mark.costly
def test_model_too_large_for_all_devices_is_measured_in_groups(extraction: Extraction) -> None:
    cluster = with_stock_kernels(two_memories(260_000, 260_000))
    result = measured(extraction, cluster)
    assert result.placement.excess_bytes
    assert result.in_groups
    assert all(ns > 0 for ns in result.times)


def test_task_too_large_for_any_device_is_named(extraction: Extraction) -> None:
    with pytest.raises(InfeasibleError, match="cannot be measured even alone"):
        measured(extraction, two_memories(50_000, 50_000))


def test_unlike_device_gets_the_rough_time_times_its_factor(extraction: Extraction) -> None:
    """One core runs what fits, both cores the rest; times of the one say something of its other
    tasks."""
    ids = cores()
    near = two_memories(600_000, 900_000)
    devices = (near.devices[0], replace(near.devices[1], name="cpu.all", cores=ids))
    cluster = replace(near, devices=devices)
    result = measured(extraction, cluster)
    for task, used in enumerate(result.placement.devices):
        other = 1 - used
        cost = result.costs.cost(task, other)
        if len(ids) == 1:  # the devices are alike
            assert cost.ns == result.times[task]
        else:
            assert cost.source == "roofline"
            assert cost.ns == round((1000 + other) * result.factors[other])


@pytest.mark.costly
def test_group_reads_what_others_make_as_inputs(extraction: Extraction) -> None:
    graph, cluster = extraction.graph, two_memories(2**30, 2**30)
    with tvm.transform.PassContext(opt_level=3):
        calls = compiled_of(extraction).calls(cluster, [0] * len(graph.tasks))
    middle = {graph.tasks[1].name, graph.tasks[2].name}
    part = only_calls(calls, [call for call in calls.calls if call.task in middle])
    assert {call.task for call in part.calls} == middle
    inputs = [value for value in part.values if value.input_name is not None]
    assert len(inputs) == 1
    whole = calls.values[calls.outputs[0]]
    assert np.prod(inputs[0].shape) == 64 * 8 * 8 != np.prod(whole.shape)


def test_device_that_is_not_here_is_refused(extraction: Extraction) -> None:
    cluster = two_memories(600_000, 900_000)
    far = replace(cluster.devices[1], cores=(10_000,))
    with pytest.raises(MissingCostError, match="not in this machine"):
        measured(extraction, replace(cluster, devices=(cluster.devices[0], far)))


def test_table_of_another_graph_is_refused(extraction: Extraction) -> None:
    cluster = two_memories(2**30, 2**30)
    first = replace(extraction.graph.tasks[0], flops=12345)
    other = replace(extraction.graph, tasks=(first, *extraction.graph.tasks[1:]))
    with pytest.raises(CostMismatchError):
        measure_sequential(compiled_of(extraction), cluster, rough(other, cluster))
