"""Two small networks from Relay to the program, every form as text in tests/golden."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import tvm
from relay_models import extraction_of, module, solution_of, two_branches, var
from tvm import relay

from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.solution import Solution
from heteroplace.model.text import print_cluster, print_graph, print_plan
from heteroplace.pipeline import build_module
from heteroplace.relay.annotate.writer import annotate
from heteroplace.relay.tasks.extract import neutral_module

Golden = Callable[..., None]

LLVM = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64"
"""The same kernels on every machine."""
CORES = Cluster(
    "cores",
    (Memory("ram", 2**30),),
    (Device("cpu.0", "cpu", LLVM, 0, 0, (0,)), Device("cpu.1", "cpu", LLVM, 0, 0, (1,))),
    (),
    0,
)
MIXED = Cluster(
    "mixed",
    (Memory("ram", 2**33), Memory("gram", 2**33)),
    (Device("cpu.0", "cpu", LLVM, 0, 0, (0,)), Device("gpu0", "cuda", "cuda -arch=sm_80", 0, 1)),
    (Link("up", 0, 1, 10**10, 1000, "up"), Link("down", 1, 0, 10**10, 1000, "down")),
    0,
)


def text_of(mod: tvm.IRModule) -> str:
    """The function without types and TVM's note on metadata; spans say which task a call is of."""
    text = mod["main"].astext(show_meta_data=False).partition("/* For debugging")[0]
    text = re.sub(r" /\* ty=[^*]*?(?:(span=[^*]*))?\*/", _only_span, text)
    return f"{text.rstrip()}\n"


def _only_span(comment: re.Match[str]) -> str:
    return f" /* {comment[1]}*/" if comment[1] else ""


def check(golden: Golden, name: str, mod: tvm.IRModule, solution: Solution) -> None:
    """Every form before the program."""
    graph, cluster = solution.graph, solution.cluster
    golden(f"{name}/input.relay", text_of(mod))
    golden(f"{name}/graph.txt", print_graph(graph), f"{name}/input.relay")
    golden(f"{name}/cluster.txt", print_cluster(cluster))
    golden(f"{name}/plan.txt", print_plan(graph, cluster, solution.plan), f"{name}/graph.txt")


def test_a_chain_over_a_core_and_a_gpu(golden: Golden) -> None:
    x = var("x", (4,))
    mod = module([x], relay.nn.softmax(relay.nn.softmax(x)))
    extraction = extraction_of(mod)
    solution = solution_of(extraction, MIXED, [0, 1])
    check(golden, "chain", neutral_module(extraction), solution)
    golden("chain/annotated.relay", text_of(annotate(extraction, solution)), "chain/input.relay")


@pytest.mark.costly
def test_two_branches_on_two_cores(golden: Golden) -> None:
    extraction = extraction_of(two_branches())
    solution = solution_of(extraction, CORES, [0, 1, 0, 0])
    check(golden, "branches", neutral_module(extraction), solution)
    placed = annotate(extraction, solution)
    golden("branches/annotated.relay", text_of(placed), "branches/input.relay")
    with tvm.transform.PassContext(opt_level=3):
        program = build_module(placed).manifest.program_text
    # TVM numbers kernels of one name through all that a process compiles.
    program = re.sub(r"^(kernel .*?)_\d+$", r"\1", program, flags=re.MULTILINE)
    golden("branches/program.txt", program, "branches/plan.txt")
