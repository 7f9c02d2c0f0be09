"""Programs over hosts by hand: relays, GPUs, idle hosts, targets, and what a host needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tvm
from program_oracle import Oracle
from relay_models import (
    CUDA,
    TARGET,
    compiled_of,
    cores,
    extraction_of,
    mixed_cluster,
    random_costs,
    solution_of,
    two_branches,
)
from tvm import relay

import heteroplace as hp
from heteroplace.errors import ArtifactError, LoweringError, MissingDeviceError
from heteroplace.files.cluster_file import cluster_from_json
from heteroplace.lower.executable import write_programs
from heteroplace.lower.kernels import KernelCall, KernelCalls, Value
from heteroplace.lower.lower import lower
from heteroplace.lower.lowered import Lowered
from heteroplace.lower.needs import needs_text
from heteroplace.lower.order.clocks import Clocks
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.native.compiled_file import CompiledFile
from heteroplace.native.transports import check_programs
from heteroplace.relay.targets import cluster_targets

MEMORIES = tuple(Memory(f"ram.{name}", 10**6) for name in "abc")
DEVICES = tuple(
    Device(f"cpu.{name}", "cpu", TARGET, 0, at, (0,), host=name) for at, name in enumerate("abc")
)
LINE = Cluster(
    "line",
    MEMORIES,
    DEVICES,
    tuple(
        Link(f"{src}-{dst}", src, dst, 10**9, 100, "eth")
        for src, dst in ((0, 1), (1, 0), (1, 2), (2, 1))
    ),
    0,
)


def one_task() -> tuple[TaskGraph, KernelCalls]:
    builder = TaskGraphBuilder("one")
    x = builder.add_input("x", (64,), "int8")
    builder.add_task(Task("t", "op"), [x])
    graph = builder.finalize([builder.add_tensor("t", (64,), "int8")])
    values = (Value((64,), "int8", input_name="x"), Value((64,), "int8"))
    return graph, KernelCalls(values, (KernelCall("k", 0, "t", (0,), (1,)),), (1,), {})


def lowered_on(cluster: Cluster, device: int) -> Lowered:
    """The program of the task on one device."""
    graph, calls = one_task()
    memory = cluster.devices[device].memory
    home = cluster.host or 0
    steps = [
        Copy(0, home, memory, cluster.route(home, memory)),
        Run(0, device),
        Copy(1, memory, home, cluster.route(memory, home)),
    ]
    if memory == home:
        steps = [Run(0, device)]
    plan = Plan(graph.digest(), cluster.digest(), tuple(steps), "by hand")
    lowered = lower(calls, graph, cluster, plan, None)
    oracle = Oracle(calls, lowered)
    oracle.check_races()
    oracle.check_values()
    return lowered


def work(lowered: Lowered) -> list[list[str]]:
    """For each host its queues with their instructions, in words."""
    return [
        [
            f"{queue.name} {queue.kind}: {', '.join(each.kind for each in queue.instructions)}"
            for queue in program.queues
        ]
        for program in lowered.programs
    ]


def test_a_route_through_a_third_host_relays_there() -> None:
    assert work(lowered_on(LINE, 2)) == [
        ["to b send: send", "from b recv: recv", "core0 cpu: "],
        [
            "from a recv: recv",
            "to c send: send",
            "from c recv: recv",
            "to a send: send",
            "core0 cpu: ",
        ],
        ["from b recv: recv", "core0 cpu: call", "to b send: send"],
    ]


def test_the_text_of_a_bundle_names_ranks_tags_and_peers() -> None:
    text = lowered_on(LINE, 1).text
    assert text.startswith(
        'heteroplace-programs 2 3\nheteroplace-program 2 0 3 "a"\nspace 0 "ram.a" 1 0 '
    )
    second = text.split("heteroplace-program 2 ")[2]
    assert second.splitlines() == [
        '1 3 "b"',
        'space 0 "ram.b" 1 0 256',
        'queue 0 "from a" recv 1 0 -1 0',
        'queue 1 "core0" cpu 1 0 0 0',
        'queue 2 "to a" send 1 0 -1 0',
        "tensor 0 0 arena 0 0 8 64",
        "tensor 1 0 arena 128 0 8 64",
        "kernel 0 k",
        "recv 0 0 0 0 -",
        "call 1 1 0 1 0,1 0:1",
        "send 2 2 1 1 1:1",
        "end",
    ]
    assert check_programs(text) == ("a", "b", "c")


def test_a_host_without_work_has_a_queue_and_no_instruction() -> None:
    lowered = lowered_on(LINE, 0)
    assert work(lowered) == [["core0 cpu: call"], ["core0 cpu: "], ["core0 cpu: "]]
    assert lowered.alone().to_text().startswith("heteroplace-program 1\n")


def test_one_process_runs_only_what_is_on_one_host() -> None:
    with pytest.raises(LoweringError, match=r"over the hosts 'a', 'b' cannot run in one process"):
        lowered_on(LINE, 1).alone()


def with_gpu(*links: tuple[int, int]) -> Cluster:
    """Hosts a and b of a core each, and a GPU on b."""
    return Cluster(
        "gpu far away",
        (*MEMORIES[:2], Memory("gram.b", 10**6)),
        (*DEVICES[:2], Device("gpu.b", "cuda", CUDA, 0, 2, host="b")),
        tuple(Link(f"{src}-{dst}", src, dst, 10**9, 100, f"{src}-{dst}") for src, dst in links),
        0,
    )


STAGED = [
    ["to b send: send", "from b recv: recv", "core0 cpu: "],
    [
        "from a recv: recv",
        "{0} copy: copy",
        "b/cuda0 cuda: call",
        "{1} copy: copy",
        "to a send: send",
    ],
]


@pytest.mark.parametrize(
    ("links", "channels"),
    [
        (((0, 1), (1, 0), (1, 2), (2, 1)), ("1-2", "2-1")),
        # The copies that a link of the GPU's own calls for take its channel, or one of the host.
        (((0, 2), (2, 0)), ("0-2", "2-0")),
        (((0, 2), (2, 0), (1, 2), (2, 1)), ("1-2", "2-1")),
    ],
)
def test_what_a_gpu_reads_and_makes_is_staged_in_memory_of_its_host(links, channels) -> None:
    lowered = lowered_on(with_gpu(*links), 2)
    expected = [[line.format(*channels) for line in lines] for lines in STAGED]
    assert [sorted(lines) for lines in work(lowered)] == [sorted(lines) for lines in expected]
    check_programs(lowered.text)


def test_a_gpu_on_a_host_without_a_cpu_is_refused() -> None:
    cluster = with_gpu((0, 2), (2, 0))
    memories = (*cluster.memories[:2], replace(cluster.memories[2], host="c"))
    devices = (*cluster.devices[:2], replace(cluster.devices[2], host="c"))
    with pytest.raises(LoweringError, match=r"memory 'gram\.b' of a GPU on host 'c'.*add one on"):
        lowered_on(replace(cluster, memories=memories, devices=devices), 2)


def test_a_host_without_a_device_is_refused() -> None:
    cluster = replace(LINE, memories=(*MEMORIES, Memory("disk", 10)))
    assert cluster.hosts == ("a", "b", "c", "")
    with pytest.raises(LoweringError, match=r"memory 'disk' is on host '', which has no device"):
        lowered_on(cluster, 0)


def test_what_is_near_already_is_not_sent_again() -> None:
    """Two memories of host b: the plan sends x to one, and copies it from there to the other."""
    memories = (MEMORIES[0], Memory("ram.b", 10**6), Memory("far.b", 10**6))
    devices = (DEVICES[0], DEVICES[1], replace(DEVICES[1], name="far", memory=2, cores=(1,)))
    pairs = ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1))
    links = tuple(Link(f"{src}-{dst}", src, dst, 10**9, 100, f"{src}-{dst}") for src, dst in pairs)
    cluster = Cluster("near", memories, devices, links, 0)
    builder = TaskGraphBuilder("two")
    x = builder.add_input("x", (64,), "int8")
    for name in ("t", "u"):
        builder.add_task(Task(name, "op"), [x])
        builder.add_tensor(name, (64,), "int8")
    graph = builder.finalize(["t.0", "u.0"])
    values = (Value((64,), "int8", input_name="x"), *[Value((64,), "int8")] * 2)
    rows = tuple(KernelCall(f"k{n}", 0, "tu"[n], (0,), (1 + n,)) for n in range(2))
    calls = KernelCalls(values, rows, (1, 2), {})
    steps = (
        Copy(0, 0, 1, (0,)),
        Run(0, 1),
        Copy(0, 1, 2, (4,)),
        Run(1, 2),
        Copy(1, 1, 0, (1,)),
        Copy(2, 2, 0, (3,)),
    )
    plan = Plan(graph.digest(), cluster.digest(), steps, "by hand")
    lowered = lower(calls, graph, cluster, plan, None)
    kinds = [each.kind for q in lowered.programs[1].queues for each in q.instructions]
    assert (kinds.count("recv"), kinds.count("copy"), kinds.count("send")) == (1, 1, 2)
    Oracle(calls, lowered).check_values()


def test_an_answer_does_not_say_that_its_question_may_be_overwritten() -> None:
    """Queues: 0 computes on a; 1 sends to b, 2 takes it, 3 computes, 4 answers, 5 takes that."""
    clocks = Clocks(6, {1, 2, 4, 5})
    clocks.add(0, 0)
    assert clocks.wait(1, [0]) == ((0, 1),)
    clocks.add(1, 1)
    clocks.add(2, 2, sent=1)
    assert clocks.wait(3, [2]) == ((2, 1),)
    clocks.add(3, 3)
    assert clocks.wait(4, [3]) == ((3, 1),)
    clocks.add(4, 4)
    clocks.add(5, 5, sent=4)
    assert clocks.wait(0, [5]) == ((5, 1),)
    assert clocks.knows(0, 3)
    assert not clocks.knows(0, 1)
    assert clocks.wait(0, [1]) == ((1, 1),)


def test_a_message_that_starts_does_not_know_that_the_one_before_has_ended() -> None:
    clocks = Clocks(3, {1, 2})
    clocks.add(0, 1)
    clocks.add(1, 2, sent=0)
    assert not clocks.knows(2, 1)
    assert clocks.wait(0, [1]) == ((2, 1),)


def test_kernels_of_each_host_are_launched_by_its_own_cpu() -> None:
    base = mixed_cluster()
    other = "llvm -mcpu=x86-64"
    devices = [
        replace(each, name=f"{each.name}.{host}", memory=each.memory + shift, host=host,
                target=other if host and each.kind == "cpu" else each.target)
        for shift, host in ((0, ""), (2, "b"))
        for each in base.devices
    ]  # fmt: skip
    memories = (*base.memories, Memory("ram.b", 10), Memory("gram.b", 10))
    cluster = Cluster("two", memories, tuple(devices), (), 0)
    targets, positions = cluster_targets(cluster)
    assert positions == (0, 1, 2, 3)
    assert [target.kind.name for target in targets] == ["llvm", "cuda", "llvm", "cuda"]
    assert [str(targets[at].host.attrs.get("mcpu")) for at in (1, 3)] != ["x86-64", "x86-64"]
    assert str(targets[3].host.attrs["mcpu"]) == "x86-64"
    assert cluster_targets(replace(cluster, memories=base.memories, devices=base.devices))[1] == (
        0,
        1,
    )


@pytest.mark.costly
def test_a_file_says_what_each_host_needs() -> None:
    value = {
        "schema_version": 1,
        "name": "two kinds",
        "host": "ram.a",
        "memories": [{"name": f"ram.{host}", "size": "1 GiB", "host": host} for host in "ab"],
        "devices": [
            {"name": f"cpu.{host}", "target": target, "device": "cpu", "memory": f"ram.{host}",
             "cores": [cores()[0]], "host": host}
            for host, target in (("a", "llvm -mcpu=haswell"), ("b", "llvm -mcpu=x86-64"))
        ],
        "links": [{"src": "ram.a", "dst": "ram.b", "bandwidth": "1 GB/s", "latency": "25 us",
                   "bidirectional": True}],
    }  # fmt: skip
    cluster = cluster_from_json(value)
    extraction = extraction_of(two_branches())
    count = len(extraction.graph.tasks)
    solution = solution_of(extraction, cluster, [n % 2 for n in range(count)])
    kernels = compiled_of(extraction).kernels(cluster, [n % 2 for n in range(count)])
    (executable,) = write_programs(kernels, [solution])
    assert check_programs(executable.manifest.program_text) == ("a", "b")
    assert {str(kernel.target.attrs["mcpu"]) for kernel in kernels.calls.kernels.values()} == {
        "haswell",
        "x86-64",
    }
    lines = needs_text(solution, {"code": "c"}).splitlines()
    assert lines[0] == "heteroplace-needs 2"
    first, second = lines.index("host 0"), lines.index("host 1")
    assert "feature avx2" in lines[first:second]
    assert "feature avx2" not in lines[second:]
    assert lines[second + 1] == "code c"  # what every x86-64 has is not said
    for program in executable.lowered.programs:
        assert 0 < len(program.kernels) < len(kernels.calls.kernels)
    # The weights of both convolutions, which are on the first host, and no others.
    assert [len(program.constants) for program in executable.lowered.programs] == [2, 0]


@pytest.mark.costly
def test_the_pass_places_over_hosts_and_build_writes_a_program_for_each() -> None:
    with tvm.transform.PassContext(opt_level=3):
        placed = relay.transform.HeteroPlace(
            replace(LINE, memories=tuple(replace(each, bytes=2**30) for each in MEMORIES)),
            costs=random_costs,
            solver="heft",
            pin={"nn.conv2d": "cpu.c"},
        )(two_branches())
        executable = hp.build(placed, verify="off")
    programs = executable.lowered.programs
    assert check_programs(executable.manifest.program_text) == ("a", "b", "c")
    assert [bool(program.inputs) for program in programs] == [True, False, False]
    assert "send" in executable.manifest.program_text
    assert "cpu.c" in executable.solution.devices_used
    with pytest.raises(MissingDeviceError, match=r"cpu\.c \(on host 'c'"):
        hp.Executor(executable)


@pytest.mark.costly
def test_a_file_for_hosts_is_read_and_checked_whole(tmp_path: Path) -> None:
    with tvm.transform.PassContext(opt_level=3):
        cluster = replace(LINE, memories=tuple(replace(each, bytes=2**30) for each in MEMORIES))
        extraction = extraction_of(two_branches())
        count = len(extraction.graph.tasks)
        solution = solution_of(extraction, cluster, [n % 3 for n in range(count)])
        kernels = compiled_of(extraction).kernels(cluster, [0] * count)
        (executable,) = write_programs(kernels, [solution])
    path = tmp_path / "model.so"
    executable.export_library(path)
    file = CompiledFile(path)
    file.check()
    assert file.program_text == executable.manifest.program_text
    assert [file.missing(rank) for rank in range(3)] == [[], [], []]
    with pytest.raises(ArtifactError, match="is for 3 hosts, and has none of rank 3"):
        file.missing(3)
