"""A tensor that another memory reads in two layouts goes there once."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from relay_models import TARGET, cores
from shard_models import built_by_degrees
from sharded_plans import apart_cluster
from test_convolution_memory import residual

import heteroplace
from heteroplace.lower.kernels import Kernel, KernelCall, KernelCalls, Value
from heteroplace.lower.order.duplicate_layouts import with_remade_layouts
from heteroplace.lower.workspace import Workspace
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Plan, Run
from tests.strategies import num_cases

BATCH, STEPS = 8, 3
Moved = dict[tuple[str, str], int]


def trained(degrees: str) -> tuple[list[float], Moved, Moved]:
    """Losses of some steps; what they copy between memories, and what their plan says."""
    mod = residual()
    random = np.random.default_rng(0)
    shapes = {p.name_hint: [int(n) for n in p.checked_type.shape] for p in mod["main"].params[1:]}
    params = {
        name: tvm.nd.array(random.standard_normal(shape).astype("float32") / 8)
        for name, shape in shapes.items()
    }
    step = {"batch": BATCH, "degrees": degrees, "optimizer": "sgd:0.1"}
    executable, record, _ = built_by_degrees(mod, params, weight_gradients="each", **step)
    executor = heteroplace.Executor(executable)
    losses = []
    for _ in range(STEPS):
        x = random.standard_normal((BATCH, 3, 16, 16)).astype("float32")
        (loss,) = executor.run(x=x, labels=random.standard_normal((BATCH, 10)).astype("float32"))
        losses.append(float(loss))
    graph, cluster = record.solution.graph, record.solution.cluster
    planned: Counter[tuple[str, str]] = Counter()
    for copy in record.solution.plan.copies:
        pair = cluster.memories[copy.src].name, cluster.memories[copy.dst].name
        planned[pair] += STEPS * graph.tensors[copy.tensor].bytes
    return losses, executor.copied_bytes(), dict(planned)


@pytest.mark.costly(24)
@pytest.mark.skipif(len(cores()) < 2, reason="two ranks need two cores")
def test_what_is_read_in_two_layouts_is_sent_once() -> None:
    whole, _, _ = trained("1,1,1,1")
    losses, copied, planned = trained("1,1,2,2")
    assert losses == pytest.approx(whole, rel=1e-4)
    forward = {pair: num_bytes for pair, num_bytes in planned.items() if pair[0] == "ram0"}
    assert forward and forward.items() <= copied.items()


KERNELS = {
    symbol: Kernel(symbol, None, tvm.target.Target(TARGET), Workspace(), op)
    for symbol, op in (
        *(("layout", "layout_transform"), ("turned", "transpose+layout_transform")),
        *(("sum", "add"), ("relu", "nn.relu")),
    )
}
Made = tuple[str, int, tuple[int, ...]]
"""(kernel, device, values that it reads); call n makes value n + 1, value 0 is the input."""


def remade(made: list[Made], order: list[int], outputs: list[int]) -> KernelCalls:
    """The calls of some devices, each with a memory of its own, listed in an order."""
    cluster = apart_cluster(3)
    builder = TaskGraphBuilder("one task")
    builder.add_input("x", (8,), "float32", 32)
    builder.add_tensor("t", (8,), "float32", 32, "y")
    builder.add_task(Task("t", "op"), ["x"])
    graph = builder.finalize(["y"])
    steps = tuple(Run(0, device) for device in range(len(cluster.devices)))
    plan = Plan(graph.digest(), cluster.digest(), steps, "by hand")
    calls = [
        KernelCall(kernel, 0, "t", reads, (number,), at=(device, device))
        for number, (kernel, device, reads) in enumerate(made, 1)
    ]
    values = (Value((8,), "float32", "x"), *[Value((8,), "float32") for _ in made])
    listed = tuple(calls[number] for number in order)
    before = KernelCalls(values, listed, tuple(outputs), KERNELS)
    found = with_remade_layouts(before, graph, cluster, plan)
    for output in outputs:
        assert computed(found, output) == computed(before, output)
    for call in found.calls:
        assert all(computed(found, read) for read in call.reads)
    return found


def computed(calls: KernelCalls, value: int) -> str:
    """How a value is computed; what nobody makes is an error."""
    if value == 0:
        return "x"
    ((kernel, reads),) = [(c.kernel, c.reads) for c in calls.calls if value in c.writes]
    return f"{kernel}({', '.join(computed(calls, read) for read in reads)})"


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6], [0, 2, 1, 3, 4, 5, 6]])
def test_of_two_changes_in_a_row_one_is_made_again(order: list[int]) -> None:
    """Every memory reads all three layouts, or what they are made of."""
    made: list[Made] = [
        *(("relu", 0, (0,)), ("layout", 0, (1,)), ("turned", 1, (2,))),
        *(("relu", 1, (1,)), ("relu", 2, (1,)), ("relu", 2, (2,)), ("relu", 2, (3,))),
    ]
    kernels = Counter(call.kernel for call in remade(made, order, [4, 5, 6, 7]).calls)
    first = {"layout": 2, "turned": 1} if order[1] == 1 else {"layout": 1, "turned": 1}
    assert kernels == {"relu": 5} | first


@given(st.integers(0, 2**32 - 1))
@num_cases(100)
def test_what_is_computed_stays(seed: int) -> None:
    """Of any calls, listed in any order, as those of several targets are."""
    random = Random(seed)
    made: list[Made] = []
    for value in range(random.randint(1, 30)):
        kernel = random.choice(("layout", "turned", "layout", "relu", "relu", "sum"))
        # Of few values, so that several memories read each.
        reads = tuple(random.randint(0, min(4, value)) for _ in range(1 + (kernel == "sum")))
        made.append((kernel, random.randrange(3), reads))
    count = len(made)
    read = {value for _, _, reads in made for value in reads}
    outputs = [n for n in range(1, 1 + count) if n not in read or random.random() < 0.02]
    remade(made, random.sample(range(count), count), outputs)
