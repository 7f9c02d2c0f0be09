"""Predicted cost tables: known laws are recovered, and what was measured stays."""

import pytest
from hypothesis import given

from heteroplace.costs.methods import samples_of
from heteroplace.costs.prediction.predict import predict_costs
from heteroplace.errors import CostMismatchError, MissingCostError
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.cost import PREDICTED, Cost, build_table, table_from_rows
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.routed.routers import Router
from tests.corpus import corpus
from tests.strategies import exact_cases
from tests.unit.costs.synthetic import layers, machine, measured_table, true_ns

GRAPH, CLUSTER = layers(), machine()
NAMES = [device.name for device in CLUSTER.devices]
TASKS = {task.name: index for index, task in enumerate(GRAPH.tasks)}


def predicted(unknown, batches=(1,)):
    table = measured_table(GRAPH, CLUSTER, unknown, batches)
    return table, predict_costs(GRAPH, CLUSTER, table)


def column(table, device):
    return [row[NAMES.index(device)] for row in table.rows]


def truth(device):
    return [true_ns(GRAPH, CLUSTER, task, NAMES.index(device)) for task in range(len(GRAPH.tasks))]


def test_a_device_that_is_like_a_measured_one_takes_its_times():
    table, filled = predicted({("*", "twin.1")})
    assert [cost.ns for cost in column(filled, "twin.1")] == truth("twin.0")
    cost = column(filled, "twin.1")[0]
    assert (cost.source, cost.spread_ns) == ("measured", 3)
    assert cost.error == column(table, "twin.0")[0].error
    assert cost.reason == "as on twin.0, which is like it"


def test_an_absent_gpu_is_scaled_from_the_measured_one():
    _, filled = predicted({("*", "h200"), ("*", "v100")})
    costs = column(filled, "h200")
    assert {cost.source for cost in costs} == {"scaled"}
    assert [cost.ns for cost in costs] == truth("h200")
    assert costs[0].reason.startswith("wave scaling from t4, time x0.")
    # Nothing says how well that works: there is no second GPU to try it on.
    assert {cost.error for cost in costs} == {None}
    assert costs[0].reason.endswith("error unknown")


def test_of_two_measured_gpus_the_more_similar_is_scaled_from():
    """The law starts at the T4. From the V100 it is a little off, as `gamma` is each GPU's own."""
    _, filled = predicted({("*", "h200")})
    costs = column(filled, "h200")
    assert [cost.ns for cost in costs] == [pytest.approx(ns, rel=0.05) for ns in truth("h200")]
    assert costs[0].reason.startswith("wave scaling from v100, time x0.")
    assert 0 < costs[0].error < 0.03
    assert costs[0].reason.endswith("such predictions")


def test_an_absent_cpu_is_the_roofline_calibrated_by_the_others():
    _, filled = predicted({("*", "new")})
    costs = column(filled, "new")
    assert {cost.source for cost in costs} == {"roofline"}
    # Rooflines are rounded up to whole nanoseconds.
    assert [cost.ns for cost in costs] == [pytest.approx(ns, rel=0.01) for ns in truth("new")]
    assert costs[0].reason.startswith("roofline x2, by 12 kernels of nn.dense+add+nn.relu on dev")
    assert 0 <= costs[0].error < 0.02


def test_a_gap_on_a_measured_device_is_filled_by_regression():
    gap = ("dense3", "npu")
    _, filled = predicted({gap})
    cost = filled.cost(TASKS["dense3"], NAMES.index("npu"))
    assert cost.source == "regressed"
    assert cost.ns == pytest.approx(true_ns(GRAPH, CLUSTER, TASKS["dense3"], 7), rel=1e-3)
    assert cost.reason.startswith("fitted to 3 sizes of nn.dense+add (R2 1.000, worst 0%)")
    assert cost.error == pytest.approx(0, abs=0.01)


def test_far_beyond_the_measured_sizes_the_next_method_is_taken_and_says_so():
    graph = layers((64, 96, 128, 112, 80, 4096, 4096))
    table = measured_table(graph, CLUSTER, {("dense6", "old")})
    cost = predict_costs(graph, CLUSTER, table).cost(12, 0)
    assert cost.source == "roofline"
    # Weights of 4096 x 4096 after 80 x 4096, the largest that is left.
    assert cost.reason == (
        "roofline x2, by 3 kernels of nn.dense+add+nn.relu on this device; no regression: 51.2 "
        "times beyond the measured sizes of nn.dense+..., at most 4; error of 3 such predictions"
    )


def test_equal_tasks_take_as_long():
    graph = layers((64, 64, 64, 64, 64, 64))
    table = measured_table(graph, CLUSTER, {("dense3", "npu")})
    cost = predict_costs(graph, CLUSTER, table).cost(6, 7)
    assert cost.ns == true_ns(graph, CLUSTER, 6, 7)
    assert cost.source == "scaled"
    assert cost.reason.startswith("as 'dense1', which has the same op and sizes")


def test_a_task_of_a_branch_takes_less_at_a_capacity_than_an_equal_one_of_all_rows():
    builder = TaskGraphBuilder("routed")
    x = builder.add_input("x", (4, 8), "float32")
    builder.add_task(Task("route", "heteroplace.router"), [x])
    loads = builder.add_tensor("route", (1,), "int32")
    builder.add_buffer("r.in", 128)
    builder.add_task(Task("dispatch", "heteroplace.dispatch"), [x])
    rows = builder.add_tensor("dispatch", (4, 8), "float32", buffer="r.in")
    whole = builder.add_tensor("dispatch", (4, 8), "float32")
    dense = {"op": "nn.dense", "flops": 4096, "weight_bytes": 256}
    builder.add_task(Task("all", **dense), [whole, loads])
    builder.add_task(Task("part", **dense, branch=("r", 0)), [rows, loads])
    outputs = [builder.add_tensor("all", (4, 8), "float32")]
    builder.add_buffer("r.out", 128)
    rows = builder.add_tensor("part", (4, 8), "float32", buffer="r.out")
    builder.add_task(Task("join", "heteroplace.join"), [rows, loads])
    outputs.append(builder.add_tensor("join", (4, 8), "float32"))
    builder.add_router(Router("r", -1, -1, 4, 1, ((1, 4),)), loads)
    graph = builder.finalize(outputs)
    names = [task.name for task in graph.tasks]
    device = Device("d", "cpu", "llvm", 0, 0, (0,), "h", model="EPYC 7763")
    cluster = Cluster("box", (Memory("ram", 2**30),), (device,))
    unknown = names.index("part")

    def cost(task, device, batch=1):
        return Cost.unknown() if task == unknown else Cost.measured(1000)

    filled = predict_costs(graph, cluster, build_table(graph, cluster, cost, (1, 4)))
    assert 0 < filled.run_ns(unknown, 0, 1) < filled.run_ns(unknown, 0, 4)


def test_without_measurements_the_plain_roofline_is_all():
    table = measured_table(GRAPH, CLUSTER, {("*", name) for name in NAMES if name != "npu"})
    costs = column(predict_costs(GRAPH, CLUSTER, table), "old")
    speeds_ns = [round(ns / factor) for ns, factor in zip(truth("old"), [2, 5] * 8, strict=True)]
    assert [cost.ns for cost in costs] == [pytest.approx(ns, abs=1) for ns in speeds_ns]
    assert costs[0].reason == "peak speeds, not calibrated; error unknown"


def test_larger_batches_are_predicted_too():
    _, filled = predicted({("*", "h200"), ("*", "v100")}, (1, 4))
    assert filled.cost(0, 6, 4).ns == true_ns(GRAPH, CLUSTER, 0, 6, 4)
    assert filled.cost(0, 6, 4).ns != filled.cost(0, 6).ns


def test_a_full_table_is_returned_as_it_is():
    table = measured_table(GRAPH, CLUSTER, set())
    assert predict_costs(GRAPH, CLUSTER, table) is table


def test_a_device_of_which_nothing_is_known_is_an_error():
    table = measured_table(GRAPH, CLUSTER, {("*", "npu")})
    with pytest.raises(
        MissingCostError,
        match=r"cost of dense0, add0, dense1, add1, .* and 8 more: neither peak speeds nor a known "
        "model are given for npu; give flops_per_second",
    ):
        predict_costs(GRAPH, CLUSTER, table)


def test_a_foreign_table_is_refused():
    with pytest.raises(CostMismatchError):
        predict_costs(layers((8, 8)), CLUSTER, measured_table(GRAPH, CLUSTER, set()))


def test_predictions_are_not_learned_from():
    table = measured_table(GRAPH, CLUSTER, {("*", "new")})
    filled = predict_costs(GRAPH, CLUSTER, table)
    assert samples_of(GRAPH, CLUSTER, filled) == samples_of(GRAPH, CLUSTER, table)


def test_unlike_planning_devices_are_not_taken_for_one_another():
    """Without target and model nothing says that two devices are alike."""
    devices = tuple(Device(f"d{i}", "cuda", "", i, 0, (), "", 10**9, 10**9) for i in range(2))
    cluster = Cluster("plan", (Memory("ram", 10**9),), devices)
    builder = TaskGraphBuilder("one")
    builder.add_task(Task("a", "conv", flops=1000), [])
    graph = builder.finalize([builder.add_tensor("a", (4,), "float32")])
    table = table_from_rows(graph, cluster, ((Cost.given(3000), Cost.unknown()),))
    cost = predict_costs(graph, cluster, table).cost(0, 1)
    assert (cost.ns, cost.source) == (3000, "roofline")
    assert cost.reason.startswith("roofline x3, by 1 kernels of conv on devices of kind cuda")


@corpus
def kinds_of_cells(random):
    """What is known of each task on each device."""
    kinds = ["unknown"] * 3 + ["measured", "given", "no", "old"]
    return tuple(tuple(random.choices(kinds, k=len(CLUSTER.devices))) for _ in GRAPH.tasks)


@exact_cases(50)
@given(kinds_of_cells())
def test_every_cell_says_where_it_is_from_and_known_ones_stay(kinds):
    cells = {}

    def cost(task, device):
        ns = true_ns(GRAPH, CLUSTER, task, device)
        kind = kinds[task][device]
        made = {
            "unknown": Cost.unknown(),
            "measured": Cost.measured(ns, 2),
            "given": Cost.given(ns),
            "no": Cost.unsupported("no kernel"),
            "old": Cost.regressed(ns + 1, "before", 0.2),
        }[kind]
        if kind == "unknown" and device == 7:
            made = Cost.given(ns)  # nothing else is known about it
        cells[task, device] = made
        return made

    table = build_table(GRAPH, CLUSTER, cost)
    filled = predict_costs(GRAPH, CLUSTER, table)
    for (task, device), before in cells.items():
        after = filled.cost(task, device)
        if before.source != "unknown":
            assert after == before
        else:
            assert after.ns is not None and after.ns > 0
            assert after.reason
            assert after.source in (*PREDICTED, "measured", "given")
            assert after.error is None or after.error >= 0
    assert predict_costs(GRAPH, CLUSTER, filled) is filled
