"""Roofline: worked numbers, calibration, and what is missing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.costs.roofline import (
    MEASURED_PEAKS,
    Calibration,
    RatioSums,
    Speeds,
    device_speeds,
    estimate_costs,
    roofline_ns,
)
from heteroplace.costs.work import ALL_OPS, TaskWork, main_dtype, task_work
from heteroplace.errors import MissingCostError
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.graph import Task, TaskGraphBuilder
from tests.routed_plans import layer_graph


@pytest.fixture
def graph():
    """One product: 2000 flops, 600 bytes of weights, 400 in, 1000 out."""
    builder = TaskGraphBuilder("one")
    x = builder.add_input("x", (100,), "float32")
    builder.add_task(Task("a", "nn.dense", flops=2000, weight_bytes=600), [x])
    return builder.finalize([builder.add_tensor("a", (250,), "float32")])


def cluster_of(**values):
    return Cluster("box", (Memory("ram", 10**9),), (Device("d", "cpu", "llvm", 0, 0, **values),))


def test_bytes_are_weights_inputs_and_outputs(graph):
    assert task_work(graph, 0) == TaskWork(2000, 2000)
    assert task_work(graph, 0, batch=3) == TaskWork(6000, 600 + 3 * 1400)


@pytest.mark.parametrize(
    ("op", "num_bytes"), [("take", 4 + 2 * 64), ("take+nn.dense", 4 + 64 + 4096)]
)
def test_of_a_table_only_the_rows_that_are_looked_up_are_moved(op: str, num_bytes: int) -> None:
    builder = TaskGraphBuilder("lookup")
    place = builder.add_input("place", shape=(1,), dtype="int32")
    builder.add_task(Task("rows", op, weight_bytes=4096), [place])
    graph = builder.finalize([builder.add_tensor("rows", shape=(1, 16), dtype="float32")])
    assert task_work(graph, 0).bytes == num_bytes


def test_a_branch_computes_the_share_of_its_capacity_and_other_tasks_all():
    routed = layer_graph(capacities=((2, 6), (3, 6)), num_cells=6)
    routed = replace(routed, tasks=tuple(replace(task, flops=60) for task in routed.tasks))
    dense = replace(
        routed, routers=(), tasks=tuple(replace(task, branch=None) for task in routed.tasks)
    )
    for task_id, task in enumerate(routed.tasks):
        whole = task_work(dense, task_id)
        assert task_work(routed, task_id, 6) == whole
        if task.branch is None:
            assert task_work(routed, task_id, 2) == whole
    branch = [task.name for task in routed.tasks].index("r.1.0")
    loads = routed.tensors[routed.routers[0].loads].bytes
    whole = task_work(routed, branch, 6)
    rows = whole.bytes - loads - routed.tasks[branch].weight_bytes
    # At a size between its capacities, and below them, a branch is at the next of its own.
    half = TaskWork(whole.flops // 2, whole.bytes - rows // 2)
    assert [task_work(routed, branch, size) for size in (1, 2, 3, 4)] == [half] * 3 + [whole]


def test_the_larger_of_computing_and_moving_plus_the_launch(graph):
    compute = cluster_of(flops_per_second=10**9, memory_bytes_per_second=10**10, launch_ns=5)
    assert estimate_costs(graph, compute).rows[0][0].ns == 2005
    memory = cluster_of(flops_per_second=10**10, memory_bytes_per_second=3 * 10**9)
    cost = estimate_costs(graph, memory).rows[0][0]
    assert (cost.ns, cost.source, cost.error) == (667, "roofline", None)


def test_a_known_model_gives_the_peaks(graph):
    speeds = device_speeds(cluster_of(model="Tesla T4").devices[0])
    assert speeds == Speeds(8_100_000_000_000, 320_000_000_000, 0)
    assert estimate_costs(graph, cluster_of(model="Tesla T4")).rows[0][0].ns == 7


def test_unknown_peaks_are_named(graph):
    with pytest.raises(MissingCostError, match="cannot estimate costs on d: flops_per_second and"):
        estimate_costs(graph, cluster_of(flops_per_second=1))


def test_unknown_peaks_are_measured_where_they_can_be(graph):
    def measure(cluster, names):
        assert names == ["d"]
        return {"d": Speeds(10**9, 10**9, 5)}

    cost = estimate_costs(graph, cluster_of(), measure=measure).rows[0][0]
    assert (cost.ns, cost.source, cost.reason) == (2005, "roofline", MEASURED_PEAKS)
    with pytest.raises(MissingCostError, match="cannot estimate costs on d"):
        estimate_costs(graph, cluster_of(), measure=lambda cluster, names: {})


def test_half_precision_is_seen_by_bytes(graph):
    assert main_dtype(graph) == "float32"
    builder = TaskGraphBuilder("half")
    builder.add_input("x", (100,), "float16")
    builder.add_input("y", (10,), "float32")
    assert main_dtype(builder.finalize([])) == "float16"


@given(
    st.integers(0, 10**12),
    st.integers(0, 10**9),
    st.integers(1, 10**13),
    st.integers(1, 10**12),
    st.integers(1, 10**12),
)
def test_more_bandwidth_is_never_slower(flops, num_bytes, peak, bandwidth, more):
    work = TaskWork(flops, num_bytes)
    before = roofline_ns(work, Speeds(peak, bandwidth, 7))
    assert roofline_ns(work, Speeds(peak, bandwidth + more, 7)) <= before


def calibration_of(*samples):
    """Of (op, roofline / time)."""
    calibration = Calibration()
    for op, ratio in samples:
        calibration.add(op, sums_of(ratio))
    return calibration


def sums_of(*ratios):
    return RatioSums(sum(ratios), sum(ratio**2 for ratio in ratios), len(ratios))


def test_the_factor_minimises_the_relative_error():
    # Rooflines 100, 100 and times 200, 400: a = 1/2, 1/4; f = (3/4) / (5/16) = 2.4.
    factor = calibration_of(("conv", 0.5), ("conv", 0.25)).factor("conv")
    assert factor == (pytest.approx(2.4), 2, "conv")

    def loss(f):
        return (f * 0.5 - 1) ** 2 + (f * 0.25 - 1) ** 2

    assert loss(2.4) < min(loss(2.39), loss(2.41))


def test_factors_fall_back_from_the_op_to_its_first_part_to_all():
    calibration = calibration_of(("conv+relu", 0.5), ("conv+add", 0.5), ("dense", 0.1))
    assert calibration.factor("conv+relu") == (2.0, 1, "conv+relu")
    assert calibration.factor("conv+tanh") == (2.0, 2, "conv+...")
    assert calibration.factor("softmax") == (pytest.approx(1.1 / 0.51), 3, ALL_OPS)
    assert Calibration().factor("conv") is None


def test_what_is_left_out_does_not_count():
    calibration = calibration_of(("conv", 0.5), ("conv", 0.25), ("dense", 0.2))
    assert calibration.factor("conv", sums_of(0.5)) == (pytest.approx(4.0), 1, "conv")
    assert calibration.factor("conv", sums_of(0.5, 0.25)) == (pytest.approx(5.0), 1, ALL_OPS)
    assert calibration_of(("conv", 0.5)).factor("conv", sums_of(0.5)) is None
