"""Text tables: what they say, and that columns line up."""

from dataclasses import replace

import pytest

from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.model.plan import Plan, Run
from heteroplace.model.timeline import Span, Timeline
from heteroplace.model.units import format_bytes, format_ns
from heteroplace.report.headline import headline
from heteroplace.report.tables import (
    Candidate,
    candidates_table,
    channel_table,
    cost_sources_line,
    device_table,
    format_table,
    memory_text,
    placement_table,
)


def test_columns_are_aligned():
    text = format_table(["name", "time"], [["a", "5 ms"], ["longer", "15 ms"]], "<>")
    assert text.splitlines() == ["name     time", "a        5 ms", "longer  15 ms"]


def test_placement_has_one_row_per_task(graph, cluster, plan, predicted):
    text = placement_table(graph, cluster, plan, predicted)
    assert text.splitlines() == [
        "task  op         device    start     time  reason",
        "a     nn.conv2d  cpu        0 ns  1.00 us  critical",
        "b     nn.b       gpu     3.10 us   500 ns  faster there",
        "c     nn.c       cpu     1.00 us  2.00 us  no copy",
    ]


def test_memories_in_use_have_a_line_each_with_parts_and_what_was_measured(cluster):
    predicted = [MemoryUse(0, 0, 0) for _ in cluster.memories]
    assert memory_text(cluster, predicted) == ""
    predicted[0] = MemoryUse(3 * 2**20, 2**20, 2**19)
    name = cluster.memories[0].name
    expected = (
        f"memory {name}: predicted {format_bytes(9 * 2**19)} (weights {format_bytes(3 * 2**20)}, "
        f"values {format_bytes(2**20)}, scratch {format_bytes(2**19)})"
    )
    assert memory_text(cluster, predicted) == expected
    measured = {name: MemoryUse(3 * 2**20, 2**20, 0)}
    told = f"{expected}, measured {format_bytes(4 * 2**20)}"
    assert memory_text(cluster, predicted, measured) == told


def test_long_placement_groups_neighbours_on_one_device(cluster):
    builder = TaskGraphBuilder("row")
    for index in range(6):
        builder.add_task(Task(f"t{index}", "nn.relu" if index else "nn.dense"), [])
    graph = builder.finalize([])
    devices = [0, 0, 0, 1, 1, 0]
    steps = tuple(Run(task, device) for task, device in enumerate(devices))
    reasons = ("first", "longest", "last", "r", "r", "r")
    plan = Plan(graph.digest(), cluster.digest(), steps, "by hand", reasons)
    spans = tuple(
        Span(step, cluster.devices[device].name, 10 * step, 10 * step + (15 if step == 1 else 5))
        for step, device in enumerate(devices)
    )
    timeline = Timeline(spans, "simulated", (), 55)
    text = placement_table(graph, cluster, plan, timeline, max_rows=5)
    assert text.splitlines() == [
        "task          op                device  start   time  reason",
        "t0 .. t2 (3)  nn.relu (2 of 3)  cpu      0 ns  25 ns  longest",
        "t3 .. t4 (2)  nn.relu           gpu     30 ns  10 ns  r",
        "t5            nn.relu           cpu     50 ns   5 ns  r",
    ]
    assert placement_table(graph, cluster, plan, timeline, max_rows=2).splitlines()[-1] == (
        "... and 1 more tasks"
    )


def test_step_without_a_measurement_is_dashed(graph, cluster, plan, measured):
    partial = replace(measured, spans=measured.spans[1:])
    row = placement_table(graph, cluster, plan, partial).splitlines()[1]
    assert row.split() == ["a", "nn.conv2d", "cpu", "-", "-", "critical"]


def test_device_load(graph, cluster, plan, predicted):
    assert device_table(graph, cluster, plan, predicted).splitlines() == [
        "device  tasks     busy  share  memory       used / limit",
        "cpu         2  3.00 us   75 %  ram     3.9 KiB / 1.0 GiB",
        "gpu         1   500 ns   12 %  gram    2.0 KiB / 1.0 MiB",
    ]


def test_unknown_peak_is_a_question_mark(graph, cluster, plan, measured):
    assert "? / 1.0 GiB" in device_table(graph, cluster, plan, measured)


def test_channel_load(graph, cluster, plan, predicted):
    assert channel_table(graph, cluster, plan, predicted).splitlines() == [
        "channel  copies     data     busy  share",
        "h2d           1  2.0 KiB  2.10 us   52 %",
        "d2h           1      8 B   400 ns   10 %",
    ]


def test_no_copies_no_channel_table(graph, cluster, plan):
    local = replace(plan, steps=tuple(Run(task, 0) for task in range(3)))
    assert channel_table(graph, cluster, local, Timeline((), "simulated")) == ""


def test_candidates_are_ranked_and_the_impossible_last():
    text = candidates_table(
        [Candidate("gpu only", None, "does not fit"), Candidate("b", 30), Candidate("a", 20)]
    )
    assert text.splitlines() == [
        "candidate  simulated  of best  note",
        "a              20 ns    1.00x",
        "b              30 ns    1.50x",
        "gpu only           -        -  does not fit",
    ]


def test_of_many_candidates_the_best_are_shown():
    many = [Candidate(f"c{index}", 1000 - index) for index in range(300)]
    lines = candidates_table(many).splitlines()
    assert len(lines) == 42
    assert lines[1].startswith("c299 ") and lines[-1] == "... and 260 more"


def test_headline_names_devices_single_device_and_gap(cluster, plan):
    text = headline(cluster, plan, 3_040_000, ("cpu", 3_310_000), 2_830_000)
    assert text == (
        "predicted 1.09x as fast as the best single device: 3.04 ms on cpu+gpu, "
        "3.31 ms on cpu (at most 1.17x is possible, gap 7 %)"
    )


def test_headline_keeps_the_expected_time_apart_from_simulated_ones(cluster, plan):
    text = headline(cluster, plan, 3_040_000, ("cpu", 3_310_000), 2_830_000, 3_200_000)
    assert text == (
        "predicted 1.03x as fast as the best single device: 3.20 ms on cpu+gpu, "
        "3.31 ms on cpu (at most 1.11x is possible, gap 7 %)"
    )
    same = headline(cluster, plan, 4000, None, 4000, expected_ns=4000)
    assert same == headline(cluster, plan, 4000, None, 4000)


def test_headline_says_when_no_single_device_can(cluster, plan):
    text = headline(cluster, plan, 4000)
    assert text == "predicted 4.00 us on cpu+gpu (no device alone can run everything)"


def test_headline_says_when_one_device_is_best(cluster, plan):
    local = replace(plan, steps=tuple(Run(task, 1) for task in range(3)))
    text = headline(cluster, local, 4000, ("gpu", 4000), 4000)
    assert text == (
        "one device is best: everything runs on gpu, predicted 4.00 us (no plan is faster)"
    )


def test_headline_calls_one_device_best_only_if_no_other_is_better(cluster, plan):
    local = replace(plan, steps=tuple(Run(task, 1) for task in range(3)))
    assert headline(cluster, local, 4000, ("cpu", 2000), 2000) == (
        "predicted 0.50x as fast as the best single device: 4.00 us on gpu, 2.00 us on cpu "
        "(at most 1.00x is possible, gap 50 %)"
    )
    assert headline(cluster, local, 4000, ("cpu", 2000), expected_ns=5000) == (
        "predicted 0.40x as fast as the best single device: 5.00 us on gpu, 2.00 us on cpu"
    )
    assert headline(cluster, local, 4000) == "predicted 4.00 us on gpu"
    assert headline(cluster, local, 8000, ("cpu", 2000), item_ns=4000) == (
        "predicted 0.50x as fast as the best single device: one item every 4.00 us on gpu, "
        "one item every 2.00 us on cpu (a run of one item takes 8.00 us)"
    )


@pytest.mark.parametrize(
    ("objective_ns", "gap"),
    [(996_001, "< 1 %"), (1_000_000, "< 1 %"), (1_003_000, "1 %")],
)
def test_only_a_proven_optimum_has_no_gap(cluster, plan, objective_ns, gap):
    text = headline(cluster, plan, objective_ns, ("cpu", 2_000_000), 996_000)
    assert text.endswith(f"(at most 2.01x is possible, gap {gap})")
    assert headline(cluster, plan, 996_000, ("cpu", 2_000_000), 996_000).endswith(
        "(no plan is faster)"
    )


def test_numbers_for_people():
    assert [format_ns(ns) for ns in (0, 999, 1000, 99_940, 123_456_789, 2 * 10**9)] == [
        "0 ns",
        "999 ns",
        "1.00 us",
        "99.9 us",
        "123 ms",
        "2.00 s",
    ]
    assert [format_bytes(size) for size in (0, 1023, 1024, 2**40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 TiB",
    ]


def sources_line(costs, cluster):
    builder = TaskGraphBuilder("many")
    for index in range(len(costs) // 2):
        builder.add_task(Task(f"t{index}", "op"), [])
    graph = builder.finalize([])
    table = build_table(graph, cluster, lambda task, device: costs[2 * task + device])
    return cost_sources_line(table)


def test_cost_sources_are_shares_of_the_times_there_are(cluster):
    costs = [Cost.measured(9, 1)] * 12 + [Cost.unsupported("no")]
    costs += [Cost.scaled(5, "", 0.1), Cost.scaled(5, "", 0.14), Cost.scaled(5, "", 0.3)]
    assert sources_line(costs, cluster) == "costs: 80 % measured, 20 % scaled (error about 14 %)"


def test_cost_sources_without_an_error_say_so(cluster):
    costs = [Cost.given(1), Cost.roofline(2), Cost.regressed(1, "", 0.02), Cost.unknown()]
    assert sources_line(costs, cluster) == (
        "costs: 25 % given, 25 % regressed (error about 2 %), 25 % roofline (error unknown), "
        "25 % unknown"
    )
    assert sources_line([], cluster) == "costs: none"
