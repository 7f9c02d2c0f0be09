"""Worked instances: plans whose times are known, with congestion, engines, batches and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.plan import Copy, Plan, Run, Step
from heteroplace.model.timeline import Timeline
from heteroplace.simulate.simulator import simulate
from tests.instances import cpu, gpus, instance
from tests.strategies import Instance


def run(case: Instance, plan: Plan) -> Timeline:
    return simulate(case.graph, case.cluster, case.costs, plan)


def with_cluster(case: Instance, plan: Plan, cluster: Cluster) -> tuple[Instance, Plan]:
    """The same tasks, costs and steps on a cluster with other rules."""
    costs = replace(case.costs, devices=cluster.identities)
    return Instance(case.graph, cluster, costs), replace(plan, cluster_digest=cluster.digest())


def makespan(case: Instance, *steps: Step, items: int = 1) -> int:
    """Of a plan that passes the check."""
    plan = Plan(case.graph.digest(), case.cluster.digest(), steps, "by hand", items=items)
    check_plan(case.graph, case.cluster, case.costs, plan)
    return run(case, plan).makespan_ns


FORK_NS = {"none": 8, "channel": 8, "port": 10, "bus": 10}
JOIN_NS = {"none": 6, "channel": 6, "port": 8, "bus": 8}


def fork(mode: str) -> Instance:
    """Instance B: r on device 0 feeds x on 1 and y on 2; transfers take 2."""
    wires = {(0, 1): 5, (0, 2): 5}
    times = {"r": (1, None, None), "x": (None, 5, None), "y": (None, None, 5)}
    return instance([("r", "x"), ("r", "y")], times, replace(gpus(wires, 3), congestion=mode))


def join(mode: str) -> Instance:
    """The mirror: x on device 0 and y on 1 feed j on 2."""
    wires = {(0, 2): 5, (1, 2): 5}
    times = {"x": (3, None, None), "y": (None, 3, None), "j": (None, None, 1)}
    return instance([("x", "j"), ("y", "j")], times, replace(gpus(wires, 3), congestion=mode))


@pytest.mark.parametrize(("mode", "expected"), list(FORK_NS.items()))
def test_fork_takes_longer_when_copies_share_a_port(mode: str, expected: int) -> None:
    steps = (Run(0, 0), Copy(0, 0, 1, (0,)), Copy(0, 0, 2, (1,)), Run(1, 1), Run(2, 2))
    assert makespan(fork(mode), *steps) == expected


@pytest.mark.parametrize(("mode", "expected"), list(JOIN_NS.items()))
def test_join_takes_longer_when_copies_share_a_port(mode: str, expected: int) -> None:
    steps = (Run(0, 0), Run(1, 1), Copy(0, 0, 2, (0,)), Copy(1, 1, 2, (1,)), Run(2, 2))
    assert makespan(join(mode), *steps) == expected


@pytest.mark.parametrize(
    ("engines", "expected"), [((None,) * 3, 6), ((None, None, 2), 8), ((0, None, None), 6)]
)
def test_one_engine_for_incoming_copies_serves_them_in_turn(
    engines: tuple[int | None, ...], expected: int
) -> None:
    case = join("none")
    devices = tuple(
        replace(device, copy_engines=count)
        for device, count in zip(case.cluster.devices, engines, strict=True)
    )
    steps = (Run(0, 0), Run(1, 1), Copy(0, 0, 2, (0,)), Copy(1, 1, 2, (1,)), Run(2, 2))
    plan = Plan("", "", steps, "by hand")
    plan = replace(plan, graph_digest=case.graph.digest())
    case, plan = with_cluster(case, plan, replace(case.cluster, devices=devices))
    assert run(case, plan).makespan_ns == expected


def test_a_device_without_copy_engine_does_not_run_while_it_copies() -> None:
    cluster = gpus({(0, 1): 5}, 2)
    case = instance([("a", "c")], {"a": (1, None), "b": (4, None), "c": (None, 1)}, cluster)
    steps = (Run(0, 0), Copy(0, 0, 1, (0,)), Run(1, 0), Run(2, 1))
    assert makespan(case, *steps) == 5
    devices = (replace(cluster.devices[0], copy_engines=0), cluster.devices[1])
    plan = Plan(case.graph.digest(), "", steps, "by hand")
    busy = run(*with_cluster(case, plan, replace(cluster, devices=devices)))
    assert [(span.start_ns, span.finish_ns) for span in busy.spans] == [
        (0, 1),
        (1, 3),
        (3, 7),
        (3, 4),
    ]


@pytest.mark.parametrize(
    ("engines", "hosts", "copying", "run_of_b"),
    [
        ((0, 0), ("", ""), 1, (1, 5)),  # the one that gets it; the other goes on
        ((0, None), ("", ""), 0, (3, 7)),
        ((None, 0), ("", ""), 1, (1, 5)),
        ((None, None), ("", ""), None, (1, 5)),
        ((0, 0), ("left", "right"), None, (3, 7)),  # both ends of a message
    ],
)
def test_one_of_two_cpus_does_the_copy(
    engines: tuple[int | None, ...],
    hosts: tuple[str, ...],
    copying: int | None,
    run_of_b: tuple[int, int],
) -> None:
    cluster = gpus({(0, 1): 5}, 2)
    devices = tuple(
        replace(device, kind="cpu", index=0, cores=(at,), host=hosts[at], copy_engines=engines[at])
        for at, device in enumerate(cluster.devices)
    )
    cluster = replace(cluster, devices=devices, host=None)
    costs = {"a": (1, None), "b": (4, None), "c": (None, 1), "d": (None, 3)}
    case = instance([("a", "c")], costs, cluster)
    assert cluster.copying_device(0, 1) == copying
    steps = (Run(0, 0), Copy(0, 0, 1, (0,)), Run(1, 0), Run(3, 1), Run(2, 1))
    plan = Plan(case.graph.digest(), cluster.digest(), steps, "by hand")
    spans = [(span.start_ns, span.finish_ns) for span in run(case, plan).spans]
    assert spans[1] == (1, 3)
    assert spans[2] == run_of_b
    is_receiver_busy = copying == 1 or hosts[0] != hosts[1]
    assert spans[3] == ((3, 6) if is_receiver_busy else (0, 3))


@pytest.mark.parametrize("mode", ["none", "channel", "port"])
def test_diamond_optimum_in_every_mode(diamond: Instance, mode: str) -> None:
    """Instance A: a, b, d on device 0 and c on 1 take 10; all on 0 takes 12."""
    route = diamond.cluster.route
    copies = Copy(0, 0, 1, route(0, 1)), Copy(2, 1, 0, route(1, 0))
    spread = (Run(0, 0), copies[0], Run(1, 0), Run(2, 1), copies[1], Run(3, 0))
    cluster = replace(diamond.cluster, congestion=mode)
    for steps, expected in ((spread, 10), (tuple(Run(task, 0) for task in range(4)), 12)):
        plan = Plan(diamond.graph.digest(), "", steps, "by hand")
        assert run(*with_cluster(diamond, plan, cluster)).makespan_ns == expected


def test_each_direction_has_its_own_bandwidth() -> None:
    """Instance A2: forth takes 1, back takes 2."""
    wires = {(0, 1): 10, (1, 0): 5}
    chain = instance([("a", "b"), ("b", "c")], dict.fromkeys("abc", (1, 1)), gpus(wires, 2))
    forth, back = Copy(0, 0, 1, (0,)), Copy(1, 1, 0, (1,))
    assert makespan(chain, Run(0, 0), forth, Run(1, 1), back, Run(2, 0)) == 6
    pair = instance([("a", "b")], dict.fromkeys("ab", (1, 1)), gpus(wires, 2))
    assert makespan(pair, Run(0, 0), forth, Run(1, 1)) == 3
    assert makespan(pair, Run(0, 1), Copy(0, 1, 0, (1,)), Run(1, 0)) == 4


def test_a_route_has_the_bandwidth_of_its_narrowest_link() -> None:
    """Instance A3: 100 over links of 10 and 5 take 20, not 30."""
    cluster = gpus({(0, 1): 10, (1, 2): 5}, 3)
    case = instance([("a", "b")], dict.fromkeys("ab", (0, 0, 0)), cluster, num_bytes=100)
    assert makespan(case, Run(0, 0), Copy(0, 0, 2, (0, 1)), Run(1, 2)) == 20


def batched(
    times: dict[str, tuple[tuple[int, ...], ...]],
    sizes: tuple[int, ...],
    edges: Sequence[tuple[str, str]] = (),
) -> Instance:
    """Tasks on two devices; times by task, device and batch size; transfers take 100."""
    cluster = gpus({(0, 1): 1, (1, 0): 1}, 2)
    devices = tuple(replace(device, batch_sizes=sizes) for device in cluster.devices)
    wide = tuple(replace(link, bytes_per_second=10**8) for link in cluster.links)
    cluster = replace(cluster, devices=devices, links=wide)
    case = instance(edges, dict.fromkeys(times, (1, 1)), cluster)
    names = list(times)
    batches = tuple(sorted({1, *sizes}))

    def cost(task: int, device: int, batch: int = 1) -> Cost:
        if batch not in sizes:
            return Cost.unsupported("no such batch")
        return Cost.given(times[names[task]][device][sizes.index(batch)])

    return Instance(case.graph, cluster, build_table(case.graph, cluster, cost, batches))


def test_items_that_share_no_device_do_not_wait_for_each_other() -> None:
    """Instance D: one item per device takes 5."""
    case = batched({"i": ((1,), (4,)), "j": ((4,), (1,))}, (1,), [("i", "j")])
    steps = [Run(task, item, (item,)) for task in (0, 1) for item in (0, 1)]
    assert makespan(case, *steps, items=2) == 5
    items_together = [Run(0, 0, (item,)) for item in (0, 1)] + [
        Run(1, 0, (item,)) for item in (0, 1)
    ]
    assert makespan(case, *items_together, items=2) == 10


@pytest.mark.parametrize(
    ("sizes", "steps", "items", "expected"),
    [
        ((1, 2, 4), (Run(0, 0, (0, 1)), Run(0, 1, (2, 3))), 4, 5),
        ((2,), (Run(0, 0, (0, 1)), Run(0, 1, (2, 3))), 4, 5),
        ((4,), (Run(0, 0, (0, 1, 2, 3)),), 4, 6),
        ((1,), (Run(0, 0, (0,)), Run(0, 1, (1,))), 2, 3),
    ],
)
def test_a_batch_takes_the_time_of_its_size(
    sizes: tuple[int, ...], steps: tuple[Run, ...], items: int, expected: int
) -> None:
    """Instance D2."""
    by_size = ({1: 2, 2: 3, 4: 6}, {1: 3, 2: 5, 4: 9})
    times = {"t": tuple(tuple(column[size] for size in sizes) for column in by_size)}
    assert makespan(batched(times, sizes), *steps, items=items) == expected


def test_a_copy_of_several_items_has_one_latency_and_all_bytes() -> None:
    case = batched({"a": ((1,), (1,)), "b": ((1,), (1,))}, (1,), [("a", "b")])
    links = tuple(replace(link, latency_ns=7) for link in case.cluster.links)
    runs = [Run(0, 0, (0,)), Run(0, 0, (1,))], [Run(1, 1, (0,)), Run(1, 1, (1,))]
    together = [Copy(0, 0, 1, (0,), (0, 1))]
    apart = [Copy(0, 0, 1, (0,), (0,)), Copy(0, 0, 1, (0,), (1,))]
    found = []
    for copies in (together, apart):
        steps = (*runs[0], *copies, *runs[1])
        plan = Plan(case.graph.digest(), "", steps, "by hand", items=2)
        cluster = replace(case.cluster, links=links)
        found.append(run(*with_cluster(case, plan, cluster)).makespan_ns)
    assert found == [2 + 7 + 200 + 2, 1 + 107 + 107 + 1]


def test_weights_are_charged_once_for_each_device_that_runs_the_task() -> None:
    case = instance([], {"t": (1, 1)}, gpus({}, 2), num_bytes=10, weight_bytes=1000)
    steps = (Run(0, 0, (0,)), Run(0, 0, (1,)), Run(0, 1, (2,)))
    plan = Plan(case.graph.digest(), case.cluster.digest(), steps, "by hand", items=3)
    assert run(case, plan).used_bytes == (1020, 1010)


def test_a_tensor_is_freed_after_its_last_reader() -> None:
    """A chain on one core holds two tensors at most, though five are made."""
    names = "abcde"
    case = instance(list(pairwise(names)), dict.fromkeys(names, (3,) * 3), cpu())
    plan = Plan(
        case.graph.digest(), case.cluster.digest(), tuple(Run(i, 0) for i in range(5)), "by hand"
    )
    timeline = run(case, plan)
    assert (timeline.peak_bytes, timeline.used_bytes) == ((20,), (50,))
    assert (timeline.peaks[0].time_ns, timeline.peaks[0].step) == (3, 1)


def test_a_peak_before_any_step_has_no_step() -> None:
    case = instance([], {"t": (1,) * 3}, cpu(), num_bytes=0, weight_bytes=9)
    plan = Plan(case.graph.digest(), case.cluster.digest(), (Run(0, 0),), "by hand")
    timeline = run(case, plan)
    assert (timeline.peak_bytes, timeline.peaks[0].step) == ((9,), None)


def test_throughput_counts_items(diamond: Instance) -> None:
    steps = tuple(Run(task, 0, (item,)) for item in (0, 1) for task in range(4))
    plan = Plan(diamond.graph.digest(), diamond.cluster.digest(), steps, "by hand", items=2)
    timeline = run(diamond, plan)
    assert (timeline.makespan_ns, timeline.throughput) == (24, 2e9 / 24)
