"""A report with everything on it: layers, shapes, copies, peaks, a measured run, a peer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.solution import Solution
from heteroplace.report.html.content import Measured, MeasuredTime
from heteroplace.solve import Problem, SolveOptions, solve_network
from heteroplace.solve.solve_report import write_report

SHAPE = (1, 64, 56, 56)


def two_branches(length: int = 5) -> TaskGraph:
    """A convolution, two branches of convolutions, and their sum, with layers of a model."""
    builder = TaskGraphBuilder("two-branches")
    image = builder.add_input("image", SHAPE, "float32")

    def add(name: str, op: str, layer: str, reads: list[str], flops: int) -> str:
        members = tuple(f"{layer}:{part}" for part in op.split("+"))
        builder.add_task(Task(name, op, members, flops=flops), reads)
        return builder.add_tensor(name, SHAPE, "float32")

    conv = "nn.conv2d+nn.relu"
    long = "multiply+nn.conv2d+add+add+multiply+add+multiply+add+multiply+add+nn.relu"
    stem = add("conv2d.1", long, "stem/conv", [image], 2 * 10**8)
    ends = []
    for branch in range(2):
        value = stem
        for number in range(length):
            name = f"conv2d.{2 + number + branch * length}"
            layer = f"branch{branch}/block{number}/conv"
            value = add(name, conv, layer, [value], 10**8 * (1 + number))
        ends.append(value)
    return builder.finalize([add("add.1", "add", "join/add", ends, 200_704)])


def two_devices(*, has_peaks: bool = True) -> Cluster:
    cpu = Device("cpu.0", "cpu", "llvm", 0, 0, (0, 1), model="Xeon(R) Test 1")
    gpu = Device("gpu0", "cuda", "cuda", 0, 1, model="Test GPU")
    if has_peaks:
        cpu = replace(cpu, flops_per_second=10**12, memory_bytes_per_second=10**11)
        gpu = replace(gpu, flops_per_second=4 * 10**12, memory_bytes_per_second=10**12)
    links = (
        Link("up", 0, 1, 10**10, 5000, "pcie.up"),
        Link("down", 1, 0, 10**10, 5000, "pcie.down"),
    )
    return Cluster("pc", (Memory("ram", 2**34), Memory("vram", 2**33)), (cpu, gpu), links, 0)


def two_branch_solution(*, has_peaks: bool = True, objective: str = "latency") -> Solution:
    """Both devices run a branch; a copy leads to the GPU, and one back."""
    graph, cluster = two_branches(), two_devices(has_peaks=has_peaks)
    costs = build_table(
        graph,
        cluster,
        lambda task, device: Cost.measured(
            max(20_000, graph.tasks[task].flops // (500, 800)[device]), 900
        ),
    )
    options = SolveOptions(iterations=50, objective=objective)
    return solve_network(Problem(graph, cluster, costs), options, solver="heft")


def measured_run(solution: Solution) -> Measured:
    """A run in which each step takes 1.1 times as long, and one of onnxruntime."""
    timeline = solution.timeline
    spans = tuple(
        replace(span, start_ns=span.start_ns * 11 // 10, finish_ns=span.finish_ns * 11 // 10)
        for span in timeline.spans
    )
    makespan_ns = timeline.makespan_ns * 11 // 10
    return Measured(
        replace(timeline, spans=spans, source="measured", makespan_ns=makespan_ns),
        MeasuredTime("this plan", makespan_ns, makespan_ns - 9000, makespan_ns + 9000, "runs"),
        (MeasuredTime("onnxruntime 1.32.0", makespan_ns * 3, makespan_ns, makespan_ns * 4),),
        others_cores=0.4,
    )


def write_full_page(path: Path) -> Solution:
    solution = two_branch_solution()
    write_report(solution, path, measured=measured_run(solution), command="make", file="net.onnx")
    return solution
