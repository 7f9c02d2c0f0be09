"""Links between two CPU memories of this machine, measured by real copies."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from heteroplace.cli.main import WRONG_INPUT, main
from heteroplace.errors import ClusterError, ExecutionError
from heteroplace.files.cluster_file import load_cluster, save_cluster
from heteroplace.measure.transfers import links as probe_links
from heteroplace.measure.transfers.link_programs import Trip, contention, ports, round_trips
from heteroplace.measure.transfers.link_report import LinkReport, with_measured_links
from heteroplace.measure.transfers.links import (
    QUICK,
    LinkProbeOptions,
    core_latencies,
    measure_links,
    ordinary_copies,
    trip_times,
)
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.native.execute import Executor
from heteroplace.tvm_bridge import library_path

BOTH_AND_ONE = (("both", 0, (0, 1)), ("one", 1, (0,)))
LINKS = {"up": (0, 1), "down": (1, 0)}
BRIEF = LinkProbeOptions((4, 4096, 1 << 24), 5, 1, 1 << 20)


def memories(count: int) -> Cluster:
    """A cluster of CPU memories, each with a core of this machine (the same, if there is one)."""
    cores = sorted(os.sched_getaffinity(0))
    names = ("near", "far", "other")[:count]
    return Cluster(
        "box",
        tuple(Memory(name, 1 << 30) for name in names),
        tuple(
            Device(f"cpu.{name}", "cpu", "llvm", 0, index, (cores[index % len(cores)],))
            for index, name in enumerate(names)
        ),
        host=0,
    )


def load(program: str) -> Executor:
    return Executor(str(library_path()), "", program)


@pytest.fixture(scope="module")
def report() -> LinkReport:
    """Of three memories."""
    return measure_links(memories(3), options=BRIEF)


def test_every_ordered_pair_has_all_sizes(report: LinkReport) -> None:
    pairs = [(link.src, link.dst) for link in report.links]
    assert pairs == [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
    for link in report.links:
        for times in (link.handed, link.alone):
            assert [size for size, _ in times.samples] == list(BRIEF.sizes)
            assert times.latency_ns >= 0
            assert times.bytes_per_second > 0
            assert times.error_ratio >= 0
        assert link.pageable is None


def test_handing_over_takes_longer_than_the_copy(report: LinkReport) -> None:
    for link in report.links:
        for (_, handed_ns), (_, copy_ns) in zip(
            link.handed.samples, link.alone.samples, strict=True
        ):
            assert handed_ns >= copy_ns > 0


def test_links_with_a_memory_in_common_are_timed_together(report: LinkReport) -> None:
    for one, first in enumerate(report.links):
        for two, second in enumerate(report.links):
            has_common = bool({first.src, first.dst} & {second.src, second.dst})
            slowdown = report.slowdowns[one][two]
            assert (slowdown is not None) is (has_common and one != two)
            assert slowdown is None or slowdown > 0
    assert all((report.duplex_ratio(link) or 0) > 0 for link in range(len(report.links)))


def test_the_cluster_can_be_saved(report: LinkReport, tmp_path: Path) -> None:
    cluster = with_measured_links(memories(3), report)
    save_cluster(cluster, tmp_path / "here.json")
    assert load_cluster(tmp_path / "here.json") == cluster
    assert [link.latency_ns for link in cluster.links] == [
        link.handed.latency_ns for link in report.links
    ]


def test_one_memory_has_no_links() -> None:
    assert measure_links(memories(1), options=BRIEF) == LinkReport((), ())


def test_progress_is_told() -> None:
    lines: list[str] = []
    measure_links(memories(2), lines.append, BRIEF)
    assert [line for line in lines if not line.startswith("Other programs")] == [
        "Timing copies of up to 16.0 MiB between 2 memories",
        "Timing 2 links against each other",
    ]


class Busy:
    """Sees other programs on so many cores, a number for each round."""

    def __init__(self, *others_cores: float) -> None:
        self._others_cores = list(others_cores)

    def now(self) -> Busy:
        return self

    def others_since(self, before: Busy) -> float:
        return self._others_cores.pop(0)


@pytest.mark.parametrize(
    ("others_cores", "told"),
    [
        ([0.05], []),
        ([1.5, 0.75, 0.0], ["used 1.5 cores", "used 0.8 cores"]),
        ([2.0] * 4, [*["used 2.0 cores"] * 4, "never rested: the shortest copies"]),
    ],
)
def test_copies_are_timed_again_until_other_programs_rest(
    others_cores: list[float], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(probe_links, "Usage", Busy(*others_cores))
    report = measure_links(memories(2), lines.append, BRIEF)
    others = [line for line in lines if line.startswith("Other programs")]
    assert len(others) == len(told)
    assert all(part in line for part, line in zip(told, others, strict=True))
    assert [len(link.handed.samples) for link in report.links] == [len(BRIEF.sizes)] * 2


def test_devices_that_are_not_here_are_refused() -> None:
    cluster = Cluster(
        "box",
        (Memory("ram", 1 << 30), Memory("vram", 1 << 30)),
        (
            Device("cpu", "cpu", "llvm", 0, 0, (10**6,)),
            Device("gpu", "cuda", "cuda", 99, 1),
        ),
    )
    with pytest.raises(ClusterError, match=r"lacks cpu \(core 1000000; .*gpu \(cuda:99"):
        measure_links(cluster)


def test_a_memory_without_a_device_is_refused() -> None:
    cluster = memories(2)
    lonely = Cluster("box", (*cluster.memories, Memory("lonely", 1)), cluster.devices, host=0)
    with pytest.raises(ClusterError, match="memory 'lonely' has no device"):
        measure_links(lonely, options=BRIEF)


def test_ordinary_copies_go_both_ways() -> None:
    for times in ordinary_copies(memories(2), 1, BRIEF):
        assert [size for size, _ in times.samples] == list(BRIEF.sizes)
        assert times.bytes_per_second > 0


def test_what_is_set_comes_out_of_ports() -> None:
    executor = load(ports(memories(2), 1, (4, 16)).to_text())
    executor.set_input("in4", np.zeros(4, np.uint8))
    executor.set_input("in16", np.arange(16, dtype=np.uint8))
    executor.run()
    assert executor.get_output("out16").tolist() == list(range(16))


def test_memories_of_one_core_share_its_worker() -> None:
    program, _ = round_trips(memories(3), (4,))
    cores = [queue.core for queue in program.queues if queue.kind == "cpu"]
    assert len(set(cores)) == len(cores) == min(3, len(os.sched_getaffinity(0)))


def test_a_memory_of_few_cores_chooses_its_worker_first() -> None:
    both, one = (
        Device(name, "cpu", "llvm", 0, index, cores) for name, index, cores in BOTH_AND_ONE
    )
    cluster = Cluster("box", (Memory("a", 1), Memory("b", 1)), (both, one), host=0)
    program, _ = round_trips(cluster, (4,))
    assert {queue.space: queue.core for queue in program.queues if queue.kind == "cpu"} == {
        0: 1,
        1: 0,
    }


def test_trips_follow_each_other() -> None:
    program, trips = round_trips(memories(3), (4, 1024))
    executor = load(program.to_text())
    starts, finishes = executor.run_timed()
    steps = {instruction.step: i for i, instruction in enumerate(executor.instructions)}
    assert [(trip.low, trip.high, trip.bytes) for trip in trips] == [
        (0, 1, 4), (0, 1, 1024), (0, 2, 4), (0, 2, 1024), (1, 2, 4), (1, 2, 1024)
    ]  # fmt: skip
    for trip in trips:
        copy_bytes = {trip.there, trip.back}
        names = {executor.queues[executor.instructions[steps[step]].queue] for step in copy_bytes}
        assert len(names) == 2
        order = [trip.low_done, trip.there, trip.high_begin, trip.high_done, trip.back]
        for earlier, later in zip(order, [*order[1:], trip.low_begin], strict=True):
            if (earlier, later) != (trip.high_begin, trip.high_done):
                assert finishes[steps[earlier]] <= starts[steps[later]]


@pytest.mark.parametrize("offset_ns", [0, -1_000_000, 12_345])
def test_clocks_of_devices_need_not_agree(offset_ns: int) -> None:
    # low: done at 100, begins again at 220; the copies take 10 and 20; high works for 50.
    trip = Trip(0, 1, 4, low_done=0, there=1, high_begin=2, high_done=3, back=4, low_begin=5)
    starts = [0, 110, 150 + offset_ns, 170 + offset_ns, 195, 220]
    finishes = [100, 120, 160 + offset_ns, 200 + offset_ns, 215, 230]
    assert trip_times(trip, starts, finishes) == (10, 20, 20)


@pytest.mark.skipif(tvm.cuda(0).exist, reason="this machine has a GPU")
def test_programs_for_gpus_are_complete() -> None:
    cpus = memories(1)
    gpus = [Device(f"gpu{i}", "cuda", "cuda -arch=sm_80", i, 1 + i) for i in range(2)]
    cluster = Cluster(
        "box",
        (*cpus.memories, Memory("gpu0", 1 << 30), Memory("gpu1", 1 << 30)),
        (*cpus.devices, *gpus),
        host=0,
    )
    links = [(0, 1), (1, 0), (1, 2)]
    programs = [
        round_trips(cluster, (4, 64))[0],
        contention(cluster, links, [[1, 2], [1, 1]], [(0, 1), (1, 2)], 4096)[0],
        ports(cluster, 2, (4, 64)),
    ]
    for program in programs:
        # The text is read and checked (for deadlocks, too) before any device is asked for.
        with pytest.raises(ExecutionError, match="the program needs cuda:0"):
            load(program.to_text())
    copies = {queue.name: queue.dl_device for queue in programs[0].queues if queue.kind == "copy"}
    assert copies["near->gpu1"] == copies["gpu1->near"] == (2, 1)
    assert copies["gpu0->gpu1"] == copies["gpu1->gpu0"] == (2, 0)


def test_phases_do_not_overlap_and_links_have_bytes_of_their_own() -> None:
    links = [(0, 1), (1, 0)]
    program, phases = contention(memories(2), links, [[2], [1, 3]], [(0,), (0, 1)], 4096)
    executor = load(program.to_text())
    starts, finishes = executor.run_timed()
    steps = {instruction.step: i for i, instruction in enumerate(executor.instructions)}
    (alone, both) = phases
    assert (alone.links, both.links) == ((0,), (0, 1))
    assert finishes[steps[alone.last[0]]] <= min(starts[steps[step]] for step in both.first)
    places = {(tensor.space, tensor.place) for tensor in program.tensors}
    assert places == {(0, 0), (0, 4096), (1, 0), (1, 4096)}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_core_to_core_latency() -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    ((one, other, core_to_core_ns),) = core_latencies(cores)
    assert ([one, other], core_to_core_ns > 0) == (cores, True)
    assert core_latencies(cores[:1]) == []


def test_the_command_measures_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, found = tmp_path / "given.json", tmp_path / "found.json"
    links = tuple(Link(name, *ends, 10**9, 1000, name) for name, ends in LINKS.items())
    save_cluster(replace(memories(2), links=links), given)
    arguments = ["probe", "--quick", "--cluster", str(given), "-o", str(found)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "up " in out
    assert "both ways" in out
    written = load_cluster(str(found)).links
    assert [link.name for link in written] == list(LINKS)
    assert [size for size, _ in written[0].measured] == list(QUICK.sizes)
    assert main(arguments) == WRONG_INPUT
    assert main(["check", str(found)]) == 0


def test_a_core_without_a_copy_engine_copies_itself() -> None:
    cluster = memories(2)
    devices = tuple(replace(device, copy_engines=0) for device in cluster.devices)
    for program in (
        round_trips(replace(cluster, devices=devices), (4, 8))[0],
        contention(replace(cluster, devices=devices), [(0, 1), (1, 0)], [[1, 1]], [(0, 1)], 8)[0],
    ):
        assert {queue.kind for queue in program.queues} == {"cpu"}
    threads = round_trips(cluster, (4, 8))[0]
    assert [queue.kind for queue in threads.queues].count("copy") == 2
