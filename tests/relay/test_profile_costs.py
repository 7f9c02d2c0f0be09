"""costs: every task has a time on every device that it may run on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from relay_models import (
    TARGET,
    compiled_of,
    conv,
    cores,
    cpu_cluster,
    extraction_of,
    mixed_cluster,
    module,
    two_branches,
    var,
)
from routed_models import Shape, switch_layer
from tvm import relay

from heteroplace.costs.sampling import SamplingOptions
from heteroplace.errors import InfeasibleError, MissingCostError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.kernels import Value
from heteroplace.lower.lower import lower
from heteroplace.measure import plan_program
from heteroplace.measure.batches import of_batch
from heteroplace.measure.cost_models.cost_model import CostOptions
from heteroplace.measure.cost_models.isolated_costs import IsolatedCosts
from heteroplace.measure.example_inputs import input_arrays
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.plan_program import serial_plan
from heteroplace.measure.profile import profile_network, with_workspaces
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.relay.tasks.extract import Extraction
from heteroplace.relay.tasks.network import cut_network

QUICK = ProfileOptions(round_ns=1, sampling=SamplingOptions(max_ns=1))
"""A hundredth of the usual time for each device."""


@pytest.fixture(scope="module")
def extraction() -> Extraction:
    return extraction_of(two_branches())


def measured(extraction: Extraction, graph: TaskGraph, cluster: Cluster) -> CostTable:
    with tvm.transform.PassContext(opt_level=3):
        table = profile_network(compiled_of(extraction, graph), cluster, QUICK).costs
    table.check(graph, cluster)
    return table


def restricted(graph: TaskGraph, devices: dict[str, tuple[str, ...]]) -> TaskGraph:
    """The graph with some tasks allowed on some devices only."""
    return replace(
        graph,
        tasks=tuple(
            replace(task, devices=devices[task.name]) if task.name in devices else task
            for task in graph.tasks
        ),
    )


@pytest.mark.costly
def test_every_task_is_measured_on_every_device(extraction: Extraction) -> None:
    table = measured(extraction, extraction.graph, cpu_cluster())
    assert len(table.rows) == len(extraction.graph.tasks)
    for row in table.rows:
        assert len(row) == len(cpu_cluster().devices)
        assert all(cost.source == "measured" and cost.ns > 0 for cost in row)


@pytest.mark.costly
def test_devices_that_are_alike_have_equal_times(extraction: Extraction) -> None:
    lines: list[str] = []
    with tvm.transform.PassContext(opt_level=3):
        options = replace(QUICK, progress=lines.append)
        table = profile_network(compiled_of(extraction), cpu_cluster(), options).costs
    assert [row[0].ns for row in table.rows] == [row[1].ns for row in table.rows]
    measured_on = {len(device.cores): device.name for device in reversed(cpu_cluster().devices)}
    names = ", ".join(measured_on[count] for count in sorted(measured_on))
    assert [line for line in lines if not line.startswith("other programs")] == [
        "Compiling kernels",
        f"Measuring on {names}",
    ]


def test_a_device_that_is_not_here_is_named(extraction: Extraction) -> None:
    far = Device("far", "cpu", TARGET, 0, 0, (997,))
    base = cpu_cluster()
    cluster = Cluster("far", base.memories, (base.devices[0], far), (), 0)
    with pytest.raises(MissingCostError, match=r"far \(core 997.*Give costs="):
        measured(extraction, extraction.graph, cluster)


def test_a_device_that_no_task_may_use_need_not_be_here(extraction: Extraction) -> None:
    cluster = mixed_cluster()
    only_cpu = {task.name: ("cpu.0",) for task in extraction.graph.tasks}
    table = measured(extraction, restricted(extraction.graph, only_cpu), cluster)
    assert all(row[0].source == "measured" for row in table.rows)
    assert all(row[1].source == "excluded" for row in table.rows)


@pytest.mark.costly
def test_a_task_is_measured_only_where_it_may_run(extraction: Extraction) -> None:
    devices = (
        Device("fast", "cpu", TARGET, 0, 0, cores()[:1]),
        Device("plain", "cpu", "llvm", 0, 0, cores()[:1]),
    )
    cluster = Cluster("two", (Memory("ram", 2**33),), devices, (), 0)
    name = extraction.graph.tasks[0].name
    table = measured(extraction, restricted(extraction.graph, {name: ("plain",)}), cluster)
    assert [cost.source for cost in table.rows[0]] == ["excluded", "measured"]
    assert table.rows[0][1].ns > 0
    for row in table.rows[1:]:
        assert all(cost.source == "measured" and cost.ns > 0 for cost in row)


def big_and_small() -> Extraction:
    """A chain whose values fit one after the other, but hardly all at once."""
    x = var("x", (64, 64))
    value = x
    for axis in (0, 1, 0):
        value = relay.nn.softmax(value, axis=axis)
    wide = relay.concatenate([value, relay.nn.softmax(x, 0), relay.cumsum(x, 0)], axis=0)
    return extraction_of(module([x], relay.Tuple([wide, value])))


def test_kernels_are_measured_one_by_one_where_the_network_does_not_fit() -> None:
    extraction = big_and_small()
    graph, cluster = extraction.graph, cpu_cluster()
    with tvm.transform.PassContext(opt_level=3):
        calls = compiled_of(extraction).calls(cluster, [0] * len(graph.tasks))
    plan = serial_plan(graph, cluster, [0] * len(graph.tasks))
    (needed,) = lower(calls, graph, cluster, plan, None).memory_bytes
    tight = cpu_cluster(needed - 1)
    try:
        lower(calls, graph, tight, serial_plan(graph, tight, [0] * len(graph.tasks)), None)
    except InfeasibleError:
        pass
    else:
        pytest.fail("the network fits; the case tests nothing")
    table = measured(extraction, graph, tight)
    assert all(cost.source == "measured" and cost.ns > 0 for row in table.rows for cost in row)


def test_kernels_can_be_measured_one_by_one(extraction: Extraction) -> None:
    cluster = cpu_cluster()
    with tvm.transform.PassContext(opt_level=3):
        options = replace(QUICK, is_in_place=False)
        table = profile_network(compiled_of(extraction), cluster, options).costs
    assert all(cost.source == "measured" and cost.ns > 0 for row in table.rows for cost in row)


def test_a_kernel_that_does_not_fit_alone_is_infeasible() -> None:
    extraction = big_and_small()
    with pytest.raises(InfeasibleError, match="the compiled program does not fit: memory 'ram'"):
        measured(extraction, extraction.graph, cpu_cluster(1000))


def test_a_reshape_costs_nothing() -> None:
    x = var("x", (8, 8))
    flat = relay.nn.softmax(relay.reshape(relay.nn.softmax(x), (1, 64)))
    extraction = extraction_of(module([x], flat))
    table = measured(extraction, extraction.graph, cpu_cluster())
    by_op = {t.op: row for t, row in zip(extraction.graph.tasks, table.rows, strict=True)}
    assert [cost.ns for cost in by_op["reshape"]] == [0] * len(cpu_cluster().devices)


@pytest.mark.parametrize("dtype", ["int64", "bool", "bfloat16", "float16", "uint8"])
def test_inputs_of_any_type_are_measured(dtype: str) -> None:
    x = var("x", (4, 4), dtype)
    extraction = extraction_of(module([x], relay.transpose(x)))
    table = measured(extraction, extraction.graph, cpu_cluster())
    assert table.rows[0][0].ns > 0


def test_indices_are_measured_within_bounds() -> None:
    ids = var("ids", (6,), "int64")
    rows = relay.take(relay.const(np.ones((3, 4), "float32")), ids, axis=0)
    extraction = extraction_of(module([ids], relay.nn.softmax(rows)))
    assert measured(extraction, extraction.graph, cpu_cluster()).rows[0][0].ns > 0


def test_workspaces_of_compiled_kernels_are_noted_on_their_tasks() -> None:
    data = var("data", (1, 16, 12, 12))
    extraction = extraction_of(module([data], conv(data, 16, 16)))
    graph = extraction.graph
    assert [task.workspace_bytes for task in graph.tasks] == [0]
    with tvm.transform.PassContext(opt_level=3):
        noted = with_workspaces(compiled_of(extraction), cpu_cluster()).graph
    # A padded copy of the input: 16 channels of 14 x 14 floats.
    assert noted.tasks[0].workspace_bytes >= 16 * 14 * 14 * 4
    assert replace(noted, tasks=graph.tasks) == graph


@pytest.mark.costly
def test_more_targets_than_are_kept_are_measured(extraction: Extraction) -> None:
    targets = ("llvm", "llvm -mcpu=haswell", "llvm -mcpu=core2", "llvm -mcpu=skylake")
    devices = tuple(
        Device(f"cpu.{index}", "cpu", target, 0, 0, cores()[:1])
        for index, target in enumerate(targets)
    )
    cluster = Cluster("four", (Memory("ram", 2**33),), devices, (), 0)
    table = measured(extraction, extraction.graph, cluster)
    assert all(cost.ns > 0 for row in table.rows for cost in row)


@pytest.mark.costly
def test_calls_of_one_kernel_are_measured_each_with_its_own_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that lie together and rows that lie anywhere take unlike times."""
    table = relay.const(np.ones((64, 4), "float32"))
    names = ("together", "anywhere")
    rows = [var(name, (16,), "int32") for name in names]
    taken = [relay.take(table, each, axis=0, mode="clip") for each in rows]
    examples = {name: np.full(16, index, "int32") for index, name in enumerate(names)}
    seen: set[bytes] = set()

    def noted(values: tuple[Value, ...]) -> dict[str, np.ndarray]:
        made = input_arrays(values)
        seen.update(each.tobytes() for each in made.values())
        return made

    monkeypatch.setattr(plan_program, "input_arrays", noted)
    with tvm.transform.PassContext(opt_level=3):
        network = cut_network(module(rows, relay.Tuple(taken))).with_examples(examples)
        options = replace(QUICK, is_in_place=False)
        cluster = replace(cpu_cluster(), devices=cpu_cluster().devices[:1])
        profile_network(CompiledNetwork.of(network), cluster, options)
    assert seen == {each.tobytes() for each in examples.values()}


@pytest.mark.costly
@pytest.mark.parametrize("top_k", [1, 2])
def test_a_router_is_measured_alone_with_masks_that_it_takes(top_k: int) -> None:
    cluster = replace(cpu_cluster(), devices=cpu_cluster().devices[:1])
    with tvm.transform.PassContext(opt_level=3):
        network = CompiledNetwork.of(cut_network(switch_layer(Shape(top_k=top_k))))
        options = replace(QUICK, is_in_place=False)
        table = profile_network(of_batch(network, 4), cluster, options).costs
    assert table.is_measured


@pytest.mark.costly
def test_below_its_smallest_capacity_a_branch_costs_what_it_does_there() -> None:
    """So a given table of batch 1 alone can be filled in, too."""
    cluster = replace(cpu_cluster(), devices=cpu_cluster().devices[:1])
    with tvm.transform.PassContext(opt_level=3):
        network = CompiledNetwork.of(cut_network(switch_layer(Shape(capacities=(8, 16)))))
        model = IsolatedCosts(CostOptions())
        table = model.costs(network, cluster, (1,))
        assert table.batches == (1,) and table.is_measured
        both = model.costs(network, cluster, (1, 8))
    assert both.ns[0] == both.ns[1]
