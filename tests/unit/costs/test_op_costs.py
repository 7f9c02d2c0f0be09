"""Cost functions of ops: DistIR's four exact costs, what is not covered, what is far outside."""

from dataclasses import replace

import numpy as np
import pytest

from heteroplace.costs.prediction.op_costs import (
    OP_COSTS,
    OpCosts,
    OpWork,
    computes,
    cost_function,
    graph_work,
    launches,
    views,
)
from heteroplace.costs.prediction.op_regression import LinearCost, OpRegression
from heteroplace.costs.roofline import Speeds
from heteroplace.costs.work import task_work
from heteroplace.errors import MissingCostError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.collectives import collective_kind, collective_ns, collective_op
from heteroplace.model.graph import Task, TaskGraphBuilder

MIB = 2**20


def machine(count=1, launch_ns=10_000, **speeds):
    """DistIR's machine: 1.25e14 flop/s, 9e11 B/s, 10 us, links of 25e9 B/s."""
    speeds = {"flops_per_second": 125 * 10**12, "memory_bytes_per_second": 9 * 10**11} | speeds
    memories = tuple(Memory(f"m{i}", 10**12) for i in range(count))
    devices = tuple(
        Device(f"d{i}", "gpu", "", i, i, launch_ns=launch_ns, copy_engines=0, **speeds)
        for i in range(count)
    )
    links = tuple(
        Link(f"{a}-{b}", a, b, 25 * 10**9, 0, f"{a}-{b}")
        for a in range(count)
        for b in range(count)
        if a != b
    )
    return Cluster("machine", memories, devices, links)


def one_task(op, reads, makes, flops=0, weight_bytes=0):
    builder = TaskGraphBuilder("one")
    names = [builder.add_input(f"x{i}", shape, "float16") for i, shape in enumerate(reads)]
    builder.add_task(Task("t", op, flops=flops, weight_bytes=weight_bytes), names)
    return builder.finalize([builder.add_tensor("t", makes, "float16")])


def time_ns(graph, cluster=None):
    table, coverage = OpCosts(cluster or machine()).table(graph)
    assert not coverage.text()
    return table.run_ns(0, 0)


def test_product_of_matrices_of_distir():
    m, k, n = 4096, 8192, 8192
    graph = one_task("matmul", [(m, k), (k, n)], (m, n), flops=2 * m * k * n)
    assert time_ns(graph) == 4_631_743


def test_a_product_with_a_constant_reads_its_weights():
    m, k, n = 4096, 8192, 8192
    graph = one_task("nn.dense", [(m, k)], (m, n), 2 * m * k * n, weight_bytes=2 * k * n)
    assert time_ns(graph) == 4_631_743


def test_weights_that_tasks_share_are_read_by_each():
    m, k, n = 4096, 8192, 8192
    builder = TaskGraphBuilder("tied")
    x = builder.add_input("x", (m, k), "float16")
    weights = (("w", 2 * k * n),)
    for name in ("a", "b"):
        builder.add_task(Task(name, "nn.dense", flops=2 * m * k * n, weights=weights), [x])
    graph = builder.finalize([builder.add_tensor(name, (m, n), "float16") for name in ("a", "b")])
    assert time_ns(graph) == 4_631_743
    assert task_work(graph, 1).bytes == 2 * (m * k + k * n + m * n)


def test_elementwise_op_of_distir():
    assert time_ns(one_task("nn.relu", [(4096, 8192)], (4096, 8192), 4096 * 8192)) == 84_834


def test_all_reduce_and_send_of_distir():
    cluster = machine(8, launch_ns=0, memory_bytes_per_second=None)
    kind = collective_kind(collective_op("all_reduce"))
    # Rounded up to whole nanoseconds, each of the 14 rounds' bytes to whole bytes.
    found = collective_ns(cluster, kind, 64 * MIB, tuple(range(8)))
    assert found == pytest.approx(4_697_620, abs=1)
    assert cluster.transfer_ns(cluster.route(0, 1), 64 * MIB) == 2_684_355


def test_views_take_nothing_and_slices_a_launch():
    assert time_ns(one_task("reshape", [(8, 8)], (64,))) == 0
    assert time_ns(one_task("split[1]", [(8, 8)], (8, 4))) == 10_000


def test_a_fused_task_is_one_launch_of_all_its_flops():
    graph = one_task("reshape+nn.dense+add", [(9, 10**6)], (9, 5), 9 * 10**9, 10**7)
    bytes_ns = (18 * 10**6 + 10**7) / 900
    assert time_ns(graph) == round(10_000 + bytes_ns + 9 * 10**9 / 125_000)


def test_a_fused_task_has_the_function_of_what_it_mainly_does():
    assert cost_function("reshape+nn.dense") == (computes, ())
    assert cost_function("reshape+split") == (launches, ())
    assert cost_function("reshape+squeeze") == (views, ())
    assert cost_function("lost+nn.relu") == (computes, ("lost",))
    assert cost_function("lost") == (None, ("lost",))


def test_ops_without_a_function_take_a_launch_and_are_counted():
    builder = TaskGraphBuilder("two")
    x = builder.add_input("x", (10**6,), "float16")
    for name in ("a", "b"):
        builder.add_task(Task(name, "my.op+nn.relu" if name == "a" else "my.op", flops=7), [x])
    graph = builder.finalize([builder.add_tensor(name, (1,), "float16") for name in ("a", "b")])
    table, coverage = OpCosts(machine()).table(graph)
    assert table.run_ns(1, 0) == 10_000
    assert coverage.uncovered == {"my.op": 2}
    assert "without a cost function" in coverage.text()
    assert "my.op (2)" in coverage.text()


def test_a_function_is_registered_from_outside(monkeypatch):
    def tenfold(task, inputs, outputs):
        return OpWork(10 * task.flops, sum(tensor.bytes for tensor in outputs), 3)

    monkeypatch.setitem(OP_COSTS, "my.op", tenfold)
    graph = one_task("my.op", [(5,)], (9, 10**6), 10**9)
    assert time_ns(graph) == round(30_000 + 18 * 10**6 / 900 + 10**10 / 125_000)


def test_collectives_are_no_tasks_of_one_device():
    builder = TaskGraphBuilder("sum")
    parts = [builder.add_input(f"x{i}", (4,), "float16") for i in range(2)]
    builder.add_task(Task("t", collective_op("all_reduce"), flops=8), parts)
    work = graph_work(builder.finalize([builder.add_tensor("t", (4,), "float16")]))
    assert work.is_collective.tolist() == [True]
    assert (work.flops.sum(), work.bytes.sum(), work.launches.sum()) == (0, 0, 0)
    assert not work.uncovered


FIT = OpRegression(LinearCost(0.5, 0.25, 100.0), 9, 0.99, 0.02, (10**6, 10**9), (10**3, 10**6))


def test_fitted_ops_take_their_line_and_others_the_device():
    fits = {"d0": {"nn.relu": FIT}}
    relu = one_task("nn.relu", [(10**3,)], (10**3,), 2 * 10**6)
    table, coverage = OpCosts(machine(), fitted=fits).table(relu)
    assert table.run_ns(0, 0) == round(10**6 + 0.25 * 2000 + 100)
    assert table.cost(0, 0).source == "regressed"
    assert not coverage.beyond
    tanh = one_task("tanh", [(10**3,)], (10**3,), 2 * 10**6)
    table, _ = OpCosts(machine(), fitted=fits).table(tanh)
    assert table.run_ns(0, 0) == round(10_000 + 2000 / 900 + 2 * 10**6 / 125_000)


def test_extrapolation_beyond_four_times_is_said():
    graph = one_task("nn.relu", [(10**3,)], (10**3,), 5 * 10**9)
    _, coverage = OpCosts(machine(), fitted={"d0": {"nn.relu": FIT}}).table(graph)
    (beyond,) = coverage.beyond
    assert (beyond.op, beyond.num_tasks, beyond.most) == ("nn.relu", 1, 5.0)
    assert "1 tasks of nn.relu are up to 5 times outside" in coverage.text()
    graph = one_task("nn.relu", [(10**3,)], (10**3,), 4 * 10**9)
    assert not OpCosts(machine(), fitted={"d0": {"nn.relu": FIT}}).table(graph)[1].beyond


def test_a_device_without_speeds_needs_fits():
    cluster = machine(flops_per_second=None)
    relu = one_task("nn.relu", [(10**3,)], (10**3,), 2 * 10**6)
    with pytest.raises(MissingCostError, match=r"no cost of 'nn\.relu' on d0: neither its peak"):
        OpCosts(cluster).table(relu)
    table, _ = OpCosts(cluster, fitted={"d0": {"nn.relu": FIT}}).table(relu)
    assert table.run_ns(0, 0) == round(10**6 + 0.25 * 2000 + 100)


def test_a_device_that_no_task_runs_on_needs_no_speeds():
    cluster = machine(2)
    unknown = replace(cluster.devices[1], flops_per_second=None, model="")
    cluster = replace(cluster, devices=(cluster.devices[0], unknown))
    relu = one_task("nn.relu", [(10**3,)], (10**3,), 2 * 10**6)
    table, _ = OpCosts(cluster, names=["d0"]).table(relu)
    assert table.run_ns(0, 0) == OpCosts(machine(2)).table(relu)[0].run_ns(0, 0)
    assert table.cost(0, 1).source == "excluded"
    with pytest.raises(MissingCostError, match="on d1"):
        OpCosts(cluster, names=["d0", "d1"]).table(relu)


def test_measured_speeds_count_where_the_cluster_says_none():
    cluster = machine(flops_per_second=None)
    relu = one_task("nn.relu", [(10**3,)], (10**3,), 2 * 10**6)
    costs = OpCosts(cluster, measured={"d0": Speeds(10**9, 10**9, 0)})
    table, _ = costs.table(relu)
    assert table.run_ns(0, 0) == 2 * 10**6 + 2000
    assert "measured" in table.cost(0, 0).reason
    other = OpCosts(cluster, measured={"d0": Speeds(2 * 10**9, 10**9, 0)})
    assert other.digest() == costs.digest()


def test_times_of_one_task_do_not_depend_on_those_beside_it():
    costs = OpCosts(machine(2))
    graph = one_task("nn.relu", [(10**3,)], (10**3,), 2 * 10**6)
    alone, _ = costs.times(["nn.relu"], graph_work(graph))
    builder = TaskGraphBuilder("many")
    x = builder.add_input("x", (10**3,), "float16")
    for index in range(9):
        builder.add_task(Task(f"t{index}", "nn.relu", flops=2 * 10**6), [x])
    many = builder.finalize([builder.add_tensor(f"t{i}", (1,), "float16") for i in range(9)])
    times, _ = costs.times(["nn.relu"] * 9, graph_work(many))
    assert np.unique(times).tolist() == np.unique(alone).tolist()
