"""Sums over stages are what the simulation of every step finds, to the nanosecond and the byte."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given

from benchmarks.distir.gpt2 import Gpt2
from benchmarks.distir.machine import MachineFigures, machine_cluster, machine_collectives
from heteroplace.costs.prediction.op_costs import OpCosts
from heteroplace.costs.prediction.op_regression import LinearCost, OpRegression
from heteroplace.errors import ShardingError
from heteroplace.model.cluster import Cluster, Link
from heteroplace.model.graph import Task
from heteroplace.parts.parallel.transforms.builder import ShardedBuilder, TaskEntry
from heteroplace.parts.parallel.transforms.degrees import Degrees, enumerate_degrees
from heteroplace.parts.parallel.transforms.mlp import Mlp
from heteroplace.parts.parallel.transforms.recompute import recompute
from heteroplace.parts.parallel.transforms.search_evaluator import (
    Evaluator,
    SearchProblem,
    sum_replicas,
)
from heteroplace.parts.parallel.transforms.search_rows import REFUSED, STAGES, WHOLE
from heteroplace.parts.parallel.transforms.stages.stage_clock import (
    bound_ns,
    makespan_ns,
    stage_order,
)
from heteroplace.parts.parallel.transforms.stages.stage_layout import CopyGroup, StageLayout
from heteroplace.parts.parallel.transforms.stages.stage_times import AffineSizes, StageTimes
from heteroplace.parts.parallel.transforms.zero import shard_states
from tests.corpus import corpus
from tests.strategies import num_cases

# Times of all kinds matter: launches, bytes, flops, exchange.
FIGURES = MachineFigures(10**12, 3 * 10**9, 10**9, 700, 900, 10**9)


def mlp(num_layers=4, width=64, momentum=None):
    def source(lanes, rows, batch):
        return Mlp(num_layers, width, rows, lanes).training(batch, momentum=momentum)

    return source


def gpt2(num_layers=4, width=64, heads=4):
    def source(lanes, rows, batch):
        return Gpt2(num_layers, width, heads, rows, lanes).inference()

    return source


def problem(source, num_devices, figures=FIGURES, collectives=True, **options):
    cluster = machine_cluster(figures, num_devices)
    fitted = machine_collectives(figures, num_devices) if collectives else None
    return SearchProblem("test", source, cluster, OpCosts(cluster), fitted, **options)


def assert_equal(found, expected):
    assert (found.method, expected.method) == (STAGES, WHOLE), found.reason
    assert found.makespan_ns == expected.makespan_ns
    assert found.peak_bytes == expected.peak_bytes
    assert found.limit_bytes == expected.limit_bytes
    assert found.bubble == pytest.approx(expected.bubble, abs=1e-9)
    assert found.communication == pytest.approx(expected.communication, abs=1e-9)
    assert found.bound_ns <= found.makespan_ns


def assert_all_equal(search_problem, batch, degrees):
    evaluator = Evaluator(search_problem)
    for each in degrees:
        assert_equal(evaluator.row(batch, each), evaluator.simulated(batch, each))


@pytest.mark.parametrize(("schedule", "collectives"), [("1f1b", True), ("gpipe", False)])
def test_training_of_a_perceptron(schedule, collectives):
    chosen = [d for d in enumerate_degrees(8, 32) if d.micro_batches in (1, 2, 8)]
    assert len(chosen) > 15
    search_problem = problem(mlp(8), 8, collectives=collectives, schedule=schedule)
    assert_all_equal(search_problem, 32, chosen)


def test_training_with_momentum_and_an_odd_number_of_layers():
    """Seven layers end with one by columns, whose outputs are gathered; stages are unequal."""
    chosen = [d for d in enumerate_degrees(4, 16) if d.micro_batches <= 4]
    assert_all_equal(problem(mlp(7, momentum=0.9), 4), 16, chosen)


def test_inference_of_gpt2():
    chosen = [d for d in enumerate_degrees(8, 32) if d.micro_batches in (1, 4)]
    chosen = [d for d in chosen if d.tensor <= 4 and d.pipeline <= 4]
    assert_all_equal(problem(gpt2(), 8), 32, chosen)


def test_heads_that_lanes_do_not_divide():
    """Lanes wait for each other at the sum behind attention: the slower ones count."""
    assert_all_equal(problem(gpt2(2, 72, 9), 8), 16, [Degrees(1, 4, 2, 2), Degrees(2, 4, 1, 1)])


def test_recomputation_is_summed_as_well():
    def rewrite(sharded, degrees):
        return sum_replicas(recompute(sharded, 2, degrees.pipeline), degrees)

    chosen = [Degrees(1, 1, 4, 4), Degrees(2, 2, 1, 1), Degrees(2, 1, 2, 2)]
    assert_all_equal(problem(mlp(8), 4, rewrite=rewrite), 16, chosen)


def test_unlike_stages_are_summed_each_by_its_device():
    search_problem = problem(mlp(8), 4)
    cluster = search_problem.cluster
    slow = replace(cluster.devices[1], flops_per_second=10**11, launch_ns=2000)
    links = [replace(link, latency_ns=100 * link.dst) for link in cluster.links]
    devices = (cluster.devices[0], slow, *cluster.devices[2:])
    unlike = Cluster("unlike", cluster.memories, devices, tuple(links))
    search_problem = replace(search_problem, cluster=unlike, costs=OpCosts(unlike))
    assert_all_equal(search_problem, 16, [Degrees(1, 1, 4, 2), Degrees(1, 1, 4, 8)])
    inference = replace(search_problem, source=gpt2())
    assert_all_equal(inference, 16, [Degrees(2, 1, 2, 2), Degrees(4, 1, 1, 1)])
    # Replicas of a training step wait for each other.
    row = Evaluator(search_problem).row(16, Degrees(2, 1, 2, 2))
    assert (row.method, "replicas that are not alike" in row.reason) == (WHOLE, True)


def test_equal_devices_that_were_measured_to_differ_are_unlike():
    search_problem = problem(gpt2(), 4)
    fits = {
        device.name: {"": OpRegression(LinearCost(1e-3 * i, 0.3, 700.0), 9, 1, 0, (0, 9), (0, 9))}
        for i, device in enumerate(search_problem.cluster.devices, 1)
    }
    costs = OpCosts(search_problem.cluster, fitted=fits)
    measured = replace(search_problem, costs=costs)
    assert_all_equal(measured, 16, [Degrees(2, 1, 2, 2), Degrees(4, 1, 1, 1), Degrees(1, 1, 4, 4)])
    row = Evaluator(measured).row(16, Degrees(1, 4, 1, 1))
    assert row.extrapolation > 1000


def test_what_runs_once_before_its_use_is_simulated_whole():
    def rewrite(sharded, degrees):
        return shard_states(sharded, 3, degrees.data)

    evaluator = Evaluator(problem(mlp(), 4, rewrite=rewrite))
    row = evaluator.row(16, Degrees(2, 1, 2, 2))
    assert row.method == WHOLE
    assert row.reason
    assert row.makespan_ns == evaluator.simulated(16, Degrees(2, 1, 2, 2)).makespan_ns


def test_devices_with_copy_engines_are_simulated_whole():
    search_problem = problem(mlp(), 4)
    cluster = search_problem.cluster
    devices = tuple(replace(device, copy_engines=1) for device in cluster.devices)
    beside = replace(cluster, devices=devices)
    evaluator = Evaluator(replace(search_problem, cluster=beside, costs=OpCosts(beside)))
    row = evaluator.row(16, Degrees(1, 2, 2, 4))
    blocking = Evaluator(search_problem).row(16, Degrees(1, 2, 2, 4))
    assert (row.method, blocking.method) == (WHOLE, STAGES)
    assert row.bound_ns <= row.makespan_ns <= blocking.makespan_ns


def test_links_of_one_channel_are_simulated_whole():
    search_problem = problem(mlp(), 4)
    bus = [replace(link, channel="bus") for link in search_problem.cluster.links]
    cluster = replace(search_problem.cluster, links=tuple(bus))
    evaluator = Evaluator(replace(search_problem, cluster=cluster, costs=OpCosts(cluster)))
    assert evaluator.row(16, Degrees(2, 1, 2, 4)).method == WHOLE


def test_degrees_that_cannot_be_are_refused_by_name():
    evaluator = Evaluator(problem(mlp(4, 66), 16))
    for batch, degrees, text in (
        (16, Degrees(1, 4, 4, 2), "width 66 cannot be cut into 4 equal lanes"),
        (16, Degrees(1, 1, 16, 2), "4 layers cannot be cut into 16 stages"),
        (15, Degrees(2, 2, 4, 2), "a batch of 15 rows cannot be cut"),
        (64, Degrees(32, 1, 1, 1), "need 32 devices"),
    ):
        row = evaluator.row(batch, degrees)
        assert (row.method, row.fits, row.makespan_ns) == (REFUSED, False, None)
        assert text in row.reason


def test_degrees_that_need_a_missing_link_are_refused_and_others_are_not():
    search_problem = problem(gpt2(), 4)
    links = tuple(
        link for link in search_problem.cluster.links if {link.src, link.dst} in ({0, 1}, {2, 3})
    )
    cluster = replace(search_problem.cluster, links=links)
    evaluator = Evaluator(replace(search_problem, cluster=cluster, costs=OpCosts(cluster)))
    assert evaluator.row(16, Degrees(2, 1, 2, 2)).method == WHOLE
    row = evaluator.row(16, Degrees(1, 1, 4, 2))
    assert row.method == REFUSED
    assert "no link leads from memory" in row.reason


def test_sizes_follow_only_where_the_tasks_are_the_same():
    def source(lanes, rows, batch):
        return Mlp(4 if rows == 2 else 6, 64, rows, lanes).training(batch)

    row = Evaluator(problem(source, 2)).row(16, Degrees(2, 1, 1, 1))
    assert row.method == WHOLE
    assert "have other tasks" in row.reason


def test_lanes_that_copy_from_each_other_are_not_summed():
    sharded = Mlp(2, 8, 4, 2).training(4)
    task = sharded.graph.tasks.index(next(t for t in sharded.graph.tasks if t.op == "relu"))
    lanes = tuple(1 if index == task else lane for index, lane in enumerate(sharded.lane))
    with pytest.raises(ShardingError, match="is copied from one lane to another"):
        StageLayout(replace(sharded, lane=lanes), sharded.stages(1))


def test_the_link_of_a_pair_is_enough():
    """Links that no two ranks use may be missing only if nothing is summed."""
    search_problem = problem(mlp(), 4)
    chain = tuple(
        Link(f"{a}-{b}", a, b, 10**9, 0, f"{a}-{b}") for a in range(4) for b in range(4) if a != b
        if abs(a - b) == 1
    )  # fmt: skip
    cluster = replace(search_problem.cluster, links=chain)
    evaluator = Evaluator(replace(search_problem, cluster=cluster, costs=OpCosts(cluster)))
    assert evaluator.row(16, Degrees(1, 1, 4, 2)).method == WHOLE


def bound_and_makespan(num_stages, micro_batches, ways, phases=(10, 0, 0)):
    """Of equal stages and copies (src, dst) -> ns, forward; the better of two schedules."""
    groups = [CopyGroup(src, False, number, dst) for number, (src, dst) in enumerate(ways)]
    run_ns = (phases,) * num_stages
    times = StageTimes(run_ns, run_ns, run_ns, run_ns, tuple(ways.values()))
    order = stage_order("1f1b", num_stages, micro_batches, phases[1] > 0, groups)
    return bound_ns(times, groups, micro_batches, False), makespan_ns(order, times)


def test_copies_past_a_stage_come_while_it_computes():
    assert bound_and_makespan(3, 1, {(0, 1): 5, (0, 2): 5, (1, 2): 5}) == (40, 40)
    skip = {(0, 1): 1, (0, 3): 8, (1, 2): 1, (2, 3): 1}
    bound, makespan = bound_and_makespan(4, 2, skip)
    assert bound <= makespan == 64


def test_a_chain_is_bounded_by_its_busiest_stage():
    chain = {(0, 1): 3, (1, 2): 3}
    assert bound_and_makespan(3, 4, chain) == (84, 84)
    assert bound_and_makespan(3, 1, {}, (10, 20, 5)) == (35, 35)


@corpus
def stages_and_copies(random: Random):
    """Stages in a chain or with copies from any to any other, for inference or training."""
    num_stages, is_training = random.randint(1, 5), random.random() < 0.6
    groups = [
        CopyGroup(src, is_backward, number, dst)
        for src in range(num_stages)
        for is_backward in (False, True)[: 1 + is_training]
        for number, dst in enumerate(range(num_stages))
        if dst > src or (is_training and dst < src)
        if random.random() < 0.4
    ]
    run_ns = tuple(
        (random.randint(0, 9), *(random.randint(0, 9) * is_training for _ in range(2)))
        for _ in range(num_stages)
    )
    copy_ns = tuple(random.randint(0, 9) for _ in groups)
    times = StageTimes(run_ns, run_ns, run_ns, run_ns, copy_ns)
    return times, groups, random.randint(1, 5), is_training


@given(stages_and_copies())
@num_cases(300)
def test_no_order_takes_less_than_the_bound(case):
    times, groups, micro_batches, is_training = case
    bound = bound_ns(times, groups, micro_batches, False)
    for schedule in ("1f1b", "gpipe"):
        order = stage_order(schedule, len(times.pass_ns), micro_batches, is_training, groups)
        assert bound <= makespan_ns(order, times)


def towers(is_linked):
    """Two layers of equal work; the second reads what the first makes at its beginning, or not."""

    def source(lanes, rows, batch):
        builder = ShardedBuilder("towers", lanes, 2)
        shape = (rows, 4)
        x = builder.add_input("x", shape, "float32")
        builder.add_whole("x", [x])
        early = builder.add_op(TaskEntry(Task("early", "relu"), (x,), 0, 0), shape, "float32", "e")
        read = {"first": early, "second": early if is_linked else x}
        builder.outputs = [
            builder.add_op(
                TaskEntry(Task(name, "relu", flops=10**6 * rows), (tensor,), layer, 0),
                shape,
                "float32",
                f"{name}.out",
            )
            for layer, (name, tensor) in enumerate(read.items())
        ]
        return builder.finalize()

    return source


@pytest.mark.parametrize("engines", [0, 1])
@pytest.mark.parametrize("is_linked", [False, True])
def test_stages_that_work_beside_each_other_are_not_excluded(is_linked, engines):
    search_problem = problem(towers(is_linked), 2)
    devices = tuple(
        replace(device, copy_engines=engines) for device in search_problem.cluster.devices
    )
    cluster = replace(search_problem.cluster, devices=devices)
    search_problem = replace(search_problem, cluster=cluster, costs=OpCosts(cluster))
    evaluator = Evaluator(search_problem)
    row = evaluator.row(1, Degrees(1, 1, 2, 1))
    assert row.bound_ns <= row.makespan_ns
    assert evaluator.row(1, Degrees(1, 1, 2, 1), row.makespan_ns) == row


def tied(lanes, rows, batch):
    """Two layers of one weight, which is updated in the stage of the first."""
    builder = ShardedBuilder("tied", 1, 2)
    builder.add_input("w", (64, 64), "float32", shared=True)
    for name in "xy":
        builder.add_input(name, (rows, 64), "float32")

    def op(name, kind, reads, shape, layer, is_backward=False, is_shared=False, **fields):
        task = Task(f"{kind}.{name}", kind, flops=rows * 64, **fields)
        entry = TaskEntry(task, reads, layer, 0, is_backward)
        return builder.add_op(entry, shape, "float32", name, shared=is_shared)

    first = op("z0", "matmul", ("w", "x"), (rows, 64), 0)
    second = op("z1", "matmul", ("w", first), (rows, 64), 1)
    slope = op("d1", f"loss_grad[{batch}]", ("y", second), (rows, 64), 2, True)
    gradient = op("g", "matmul_dw", (first, slope), (64, 64), 0, True, True, adds=True)
    builder.updates["w"] = op("new", "sgd[0.1]", ("w", gradient), (64, 64), 0, True, True)
    for name in "wxy":
        builder.add_whole(name, [name])
    return builder.finalize()


def test_a_weight_of_two_stages_is_simulated_whole():
    evaluator = Evaluator(problem(tied, 2))
    degrees = Degrees(1, 1, 2, 2)
    row, whole = evaluator.row(16, degrees), evaluator.simulated(16, degrees)
    assert row.method == WHOLE
    assert "state 'w' is updated in stage 0 and read in stage 1" in row.reason
    assert row.makespan_ns == whole.makespan_ns


def test_sizes_follow_for_models_of_several_rows():
    """Graphs are asked for at multiples of the unit only."""

    def source(lanes, rows, batch):
        assert rows % 4 == 0
        return mlp()(lanes, rows, batch)

    several = Evaluator(problem(source, 2, row_unit=4))
    single = Evaluator(problem(mlp(), 2))
    degrees = Degrees(1, 1, 2, 2)
    assert several.row(16, degrees) == single.row(16, degrees)
    with pytest.raises(ShardingError, match="expected a multiple of 4 rows"):
        AffineSizes((8, 12), (source(1, 8, 16), source(1, 12, 16))).at(6)
