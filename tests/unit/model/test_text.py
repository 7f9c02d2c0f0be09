"""Text forms of graphs and plans: round trips, golden text, errors that name the line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import ClusterError, GraphError, PlanError
from heteroplace.files.cluster_file import load_cluster, ready_made_clusters
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Collective, Copy, Plan, Run
from heteroplace.model.text import (
    parse_cluster,
    parse_graph,
    parse_plan,
    print_cluster,
    print_graph,
    print_plan,
    quote_step,
)
from tests.explicit_plans import explicit_plans
from tests.strategies import Instance, described_clusters, exact_cases, graphs, instances_with_plan
from tests.unit.model.test_check_explicit import good_steps, on_two_devices, step_graph

Golden = Callable[..., None]
AWKWARD = st.text(max_size=6)


@given(graphs(max_tasks=8))
@exact_cases(50)
def test_graph_survives_print_and_parse(graph) -> None:  # type: ignore[no-untyped-def]
    assert parse_graph(print_graph(graph)) == graph


@given(instances_with_plan(max_items=3, has_modes=True), st.text(max_size=20), st.text(max_size=20))
@exact_cases(100)
def test_plan_survives_print_and_parse(
    case: tuple[Instance, Plan], origin: str, reason: str
) -> None:
    instance, plan = case
    explained = replace(plan, origin=origin, reasons=(reason,) * len(instance.graph.tasks))
    text = print_plan(instance.graph, instance.cluster, explained)
    assert parse_plan(text, instance.graph, instance.cluster) == explained


@given(explicit_plans())
@exact_cases(50)
def test_explicit_plan_and_its_graph_survive_print_and_parse(case: tuple[Instance, Plan]) -> None:
    instance, plan = case
    graph, cluster = instance.graph, instance.cluster
    assert parse_graph(print_graph(graph)) == graph
    assert parse_plan(print_plan(graph, cluster, plan), graph, cluster) == plan


@given(st.lists(AWKWARD, min_size=1, max_size=3, unique=True), AWKWARD)
@exact_cases(100)
def test_graph_with_awkward_names_survives(names: list[str], label: str) -> None:
    builder = TaskGraphBuilder(label)
    read = builder.add_input(label + "!", (1,), "float32")
    for name in names:
        devices = tuple(names) if len(name) % 2 else ()
        builder.add_task(Task(name, label, (label, name), 1, 2, 3, devices, label), [read])
        read = builder.add_tensor(name, (2, 3), "float16", name=f"{name},out")
    graph = builder.finalize([read, read])
    assert parse_graph(print_graph(graph)) == graph


def test_golden_text_of_the_diamond(diamond: Instance, golden: Golden) -> None:
    steps = (Run(0, 0), Copy(0, 0, 1, diamond.cluster.route(0, 1)), Run(2, 1))
    plan = Plan("0f", "1e", steps, "by hand", ("first", 'the "widest" memory'))
    golden("diamond/graph.txt", print_graph(diamond.graph))
    golden("diamond/cluster.txt", print_cluster(diamond.cluster))
    golden("diamond/plan.txt", print_plan(diamond.graph, diamond.cluster, plan))


def test_golden_text_of_two_items(diamond: Instance, golden: Golden) -> None:
    steps = (Run(0, 0, (0, 1)), Copy(0, 0, 1, (0,), (1,)), Run(2, 1, (1,)), Run(2, 0))
    plan = Plan("0f", "1e", steps, "by hand", items=2)
    text = print_plan(diamond.graph, diamond.cluster, plan)
    golden("diamond/plan_of_two_items.txt", text)
    assert parse_plan(text, diamond.graph, diamond.cluster) == plan


def test_golden_text_of_a_training_step(golden: Golden) -> None:
    case = on_two_devices(step_graph(), weights=(("table of 4", 4),))
    send = Collective(2, (1, 0), (0, 1), 1)
    plan = Plan("0f", "1e", (*good_steps(), send), "by hand", items=2)
    golden("training_step/graph.txt", print_graph(case.graph))
    text = print_plan(case.graph, case.cluster, plan)
    golden("training_step/plan.txt", text)
    assert parse_plan(text, case.graph, case.cluster) == plan
    assert parse_graph(print_graph(case.graph)) == case.graph


def test_a_faulty_collective_is_quoted(diamond: Instance) -> None:
    steps = (Collective(9, (0, 7)), Collective(0, (), (), 3))
    plan = Plan("0f", "1e", steps, "by hand")
    quoted = [quote_step(plan, index, diamond.graph, diamond.cluster) for index in range(2)]
    assert quoted[0] == "step 0: collective ?9 @ gpu0,?7"
    assert quoted[1] == "step 1: collective a @ () root ?3 items ()"


def test_golden_text_of_a_cluster_with_everything(golden: Golden) -> None:
    cpu = Device("cpu.all", "cpu", "llvm -mcpu=native", 0, 0, (0, 1), launch_ns=1500)
    gpu = Device(
        "gpu0",
        "cuda",
        "cuda -arch=sm_80",
        1,
        1,
        host="box 2",
        flops_per_second=19_500 * 10**9,
        memory_bytes_per_second=1_555 * 10**9,
        copy_engines=2,
        batch_sizes=(1, 4),
        launch_ns=5000,
        model="NVIDIA A100",
        part=3,
    )
    memories = (Memory("ram", 64 * 2**30), Memory("gram", 40 * 2**30 - 1))
    measured = ((1024, 300), (2**20, 95_000))
    links = (
        Link("up", 0, 1, 12 * 10**9, 10_000, "pcie", measured),
        Link("down", 1, 0, 5_532_500_000, 0, "pcie"),
    )
    cluster = Cluster("the box", memories, (cpu, gpu), links, 0, "port")
    golden("box/cluster.txt", print_cluster(cluster))
    assert parse_cluster(print_cluster(cluster)) == cluster
    # Older texts have times without the latency, which is 10 us.
    whole, payload = "timed 1 KiB in 10300 ns, 1 MiB in 105 us", "1 KiB in 300 ns, 1 MiB in 95 us"
    assert whole in print_cluster(cluster)
    older = print_cluster(cluster).replace(whole, f"measured {payload}")
    assert parse_cluster(older) == cluster


@pytest.mark.parametrize("name", ready_made_clusters())
def test_ready_made_cluster_survives_print_and_parse(name: str) -> None:
    cluster = load_cluster(name)
    assert parse_cluster(print_cluster(cluster)) == cluster


@given(described_clusters())
@exact_cases(50)
def test_cluster_survives_print_and_parse(cluster: Cluster) -> None:
    assert parse_cluster(print_cluster(cluster)) == cluster


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("memory m2 16 GB", "line 2: expected a line 'memory ...'"),
        ("device d cpu:0 memory ram target llvm cores", "line 2: expected a line 'device ...'"),
        ("device d cpu:0 memory ram target llvm", "no memory is called 'ram'"),
        ("link l a => b 1 GB/s", "line 2: expected a line 'link ...'"),
        ("disk d 1 GiB", "line 2: expected the end"),
        ("memory m2 0 B", "memory 'm2': bytes must be > 0"),
    ],
)
def test_wrong_cluster_line_is_named(line: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        parse_cluster(f"cluster box\n{line}\n")


def test_a_quoted_step_is_its_line_with_its_number(diamond: Instance) -> None:
    steps = (Run(0, 0), Copy(0, 0, 1, diamond.cluster.route(0, 1)), Copy(9, 7, 1, (5,)))
    plan = Plan("0f", "1e", steps, "by hand")
    lines = print_plan(diamond.graph, diamond.cluster, replace(plan, steps=steps[:2])).splitlines()
    quoted = [quote_step(plan, index, diamond.graph, diamond.cluster) for index in range(3)]
    assert quoted[:2] == [f"step 0: {lines[-2]}", f"step 1: {lines[-1]}"]
    assert quoted[2] == "step 2: copy ?9 ?7 => m1 via ?5"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run a on gpu0", "line 4: expected a line 'run ...'"),
        ("run nobody @ gpu0", "no task is called 'nobody'; there are: a, b, c, d"),
        ("run a @ tpu", "no device is called 'tpu'; there are: gpu0, gpu1"),
        ("run a @ gpu0 items one", "line 4: expected a line 'run ...'"),
        ("walk a @ gpu0", "line 4: expected the end"),
        ("all_reduce a on gpu0", "line 4: expected a line '.* as printed"),
        ("broadcast a @ gpu0 root gpu1", "the root 'gpu1' is none of the devices gpu0"),
    ],
)
def test_wrong_plan_line_is_named(diamond: Instance, line: str, message: str) -> None:
    text = f'plan worked on gpus\ndigests 0f 1e\norigin "x"\n{line}\n'
    with pytest.raises(PlanError, match=message):
        parse_plan(text, diamond.graph, diamond.cluster)


def test_wrong_graph_line_is_named() -> None:
    with pytest.raises(GraphError, match="line 2: expected a line 'tensor"):
        parse_graph("graph g\nsomething else\noutputs ()\n")


def test_graph_text_with_unknown_tensor_is_an_error() -> None:
    with pytest.raises(GraphError, match="no tensor is called 'x'"):
        parse_graph("graph g\noutputs x\n")
