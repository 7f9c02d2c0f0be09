"""A plan with a copy, its simulated timeline and a measured one."""

import pytest

from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.timeline import Span, Timeline


@pytest.fixture
def cluster():
    return Cluster(
        "pair",
        (Memory("ram", 2**30), Memory("gram", 2**20)),
        (Device("cpu", "cpu", "llvm", 0, 0), Device("gpu", "cuda", "cuda", 0, 1)),
        (Link("up", 0, 1, 10**9, 100, "h2d"), Link("down", 1, 0, 10**9, 100, "d2h")),
        0,
    )


@pytest.fixture
def graph():
    """a on the CPU feeds b on the GPU and c on the CPU."""
    builder = TaskGraphBuilder("fork")
    x = builder.add_input("x", (4,), "float32")
    builder.add_task(Task("a", "nn.conv2d", ("conv1",)), [x])
    a = builder.add_tensor("a", num_bytes=2000)
    for name in ("b", "c"):
        builder.add_task(Task(name, f"nn.{name}"), [a])
    outputs = [builder.add_tensor(name, num_bytes=8) for name in ("b", "c")]
    return builder.finalize(outputs)


@pytest.fixture
def plan(graph, cluster):
    steps = (Run(0, 0), Copy(1, 0, 1, (0,)), Run(1, 1), Run(2, 0), Copy(2, 1, 0, (1,)))
    reasons = ("critical", "faster there", "no copy")
    return Plan(graph.digest(), cluster.digest(), steps, "by hand", reasons)


@pytest.fixture
def predicted():
    spans = (
        Span(0, "cpu", 0, 1000),
        Span(1, "h2d", 1000, 3100),
        Span(2, "gpu", 3100, 3600),
        Span(3, "cpu", 1000, 3000),
        Span(4, "d2h", 3600, 4000),
    )
    return Timeline(spans, "simulated", (4024, 2008), 4000, used_bytes=(4024, 2008))


@pytest.fixture
def measured():
    """The last copy is missing: it has no kernel of its own."""
    spans = (
        Span(0, "cpu", 10, 1210),
        Span(1, "h2d", 1210, 3210),
        Span(2, "gpu", 3210, 4000),
        Span(3, "cpu", 1210, 5000),
    )
    return Timeline(spans, "measured", (), 5000)
