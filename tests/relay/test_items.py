"""A plan of several items gives, bit for bit, what stock TVM gives of each item alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
import tvm
from item_plans import (
    batch_costs,
    item_solution,
    random_item_steps,
    with_batch_sizes,
    with_second_memory,
)
from relay_models import (
    TARGET,
    compiled_of,
    conv,
    extraction_of,
    module,
    random_inputs,
    solution_of,
    stock_cluster,
    var,
    weights,
)
from tvm import relay
from tvm.contrib import graph_executor

import heteroplace as hp
from heteroplace.errors import ExecutionError, LoweringError, UnsupportedRelayError
from heteroplace.files.plan_file import save_plan
from heteroplace.lower.executable import Executable
from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Run
from heteroplace.pipeline import build
from heteroplace.relay.annotate.annotation_reader import read_solution
from heteroplace.relay.annotate.writer import PLAN_ATTRIBUTE, annotate


def perceptron() -> tvm.IRModule:
    """Layers of sizes that no kernel may start at, and a skip connection."""
    x = var("x", (1, 7))
    first = relay.nn.relu(relay.nn.bias_add(relay.nn.dense(x, weights(10, 7)), weights(10)))
    second = relay.tanh(relay.nn.dense(first, weights(10, 10, seed=1)))
    skip = relay.nn.dense(relay.add(first, second), weights(32, 10, seed=2))
    return module([x], relay.nn.softmax(relay.nn.dense(skip, weights(5, 32, seed=3))))


def small_conv_net() -> tvm.IRModule:
    """Convolutions in two branches, and two outputs."""
    x = var("x", (1, 3, 8, 8))
    first = relay.nn.relu(conv(x, 16, 3))
    left = relay.nn.max_pool2d(conv(first, 16, 16), (2, 2), (2, 2))
    right = relay.nn.avg_pool2d(relay.nn.relu(conv(first, 16, 16, 1)), (2, 2), (2, 2))
    flat = relay.nn.batch_flatten(relay.concatenate([left, right], axis=1))
    scores = relay.nn.dense(flat, weights(10, 512))
    return module([x], relay.Tuple([relay.nn.softmax(scores), relay.sigmoid(left)]))


def lstm() -> tvm.IRModule:
    """Two steps in time, with the items on the second axis; the sequence of states comes out."""
    size = 6
    x = var("x", (1, 2, 5))
    by_time = relay.transpose(x, (1, 0, 2))
    steps = relay.split(by_time, 2, axis=0)
    hidden = cell = relay.const(np.zeros((1, size), "float32"))
    states = []
    for time in range(2):
        now = relay.squeeze(steps[time], axis=[0])
        both = relay.add(
            relay.nn.dense(now, weights(4 * size, 5)),
            relay.nn.dense(hidden, weights(4 * size, size)),
        )
        i, o, f, g = relay.split(both, 4, axis=1)
        cell = relay.add(
            relay.multiply(relay.sigmoid(f), cell),
            relay.multiply(relay.sigmoid(i), relay.tanh(g)),
        )
        hidden = relay.multiply(relay.sigmoid(o), relay.tanh(cell))
        states.append(hidden)
    return module([x], relay.Tuple([relay.stack(states, axis=0), cell]))


NETWORKS: dict[str, Callable[[], tvm.IRModule]] = {
    "perceptron": perceptron,
    "conv net": small_conv_net,
    "lstm": lstm,
}


def clusters() -> tuple[Cluster, Cluster]:
    """One memory for all devices, and two."""
    near = with_batch_sizes(stock_cluster(), (1, 2, 3, 4))
    return near, with_second_memory(near)


class Reference:
    """A network by stock TVM, item by item."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        with tvm.transform.PassContext(opt_level=3):
            self.library = relay.build(mod, target=TARGET)

    def run(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        executor = graph_executor.GraphModule(self.library["default"](tvm.cpu(0)))
        executor.run(**inputs)
        return [executor.get_output(index).numpy() for index in range(executor.get_num_outputs())]

    def items(self, count: int) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        """Inputs of several items, and the outputs of each alone, joined by its axis of 1."""
        each = [random_inputs(self.mod, seed) for seed in range(count)]
        inputs = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
        outputs = zip(*map(self.run, each), strict=True)
        return inputs, [np.concatenate(parts, parts[0].shape.index(1)) for parts in outputs]


def check_same(
    executable: Executable, inputs: dict[str, np.ndarray], expected: list[np.ndarray]
) -> None:
    """Run twice, as inputs stay where they are; compare, and what is held with what was told."""
    executor = hp.Executor(executable)
    for _ in range(2):
        for actual, wanted in zip(executor.run(**inputs), expected, strict=True):
            np.testing.assert_array_equal(actual, wanted)
    held = executor.memory()
    for memory, use in zip(executable.solution.cluster.memories, executable.memory, strict=True):
        if memory.name in held:
            assert held[memory.name] == use


def check_random_plans(name: str, seeds: Sequence[int], num_items: int | None = None) -> None:
    mod = NETWORKS[name]()
    reference = Reference(mod)
    extraction = extraction_of(mod)
    compiled = compiled_of(extraction)
    for seed in seeds:
        random = Random(f"{name} {seed}")
        items = num_items or random.randint(2, 4)
        inputs, expected = reference.items(items)
        cluster = clusters()[seed % 2]
        steps = random_item_steps(random, extraction.graph, cluster, items)
        solution = item_solution(extraction.graph, cluster, items, steps)
        with tvm.transform.PassContext(opt_level=3):
            executable = build(compiled, solution)
        check_same(executable, inputs, expected)


@pytest.mark.costly(4)
@pytest.mark.parametrize(("name", "items"), [("perceptron", 4), ("conv net", 3), ("lstm", 2)])
def test_a_random_plan_equals_the_items_alone(name: str, items: int) -> None:
    check_random_plans(name, [sorted(NETWORKS).index(name)], items)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_random_plans_equal_the_items_alone(name: str) -> None:
    check_random_plans(name, range(1, 13))


@pytest.mark.costly
def test_the_pass_builds_what_several_items_are_asked_for(tmp_path: Path) -> None:
    """By a solver, from the saved plan, and from a file."""
    mod = perceptron()
    inputs, expected = Reference(mod).items(4)
    cluster = clusters()[0]
    options = {"costs": batch_costs, "store": "off"}
    with tvm.transform.PassContext(opt_level=3):
        placed = hp.HeteroPlace(cluster, items=4, solver="bheft", **options)(mod)
        executable = hp.build(placed)
    solution = executable.solution
    assert solution.plan.items == 4
    assert any(isinstance(step, Run) and len(step.items) > 1 for step in solution.plan.steps)
    check_same(executable, inputs, expected)
    executor = hp.Executor(executable)
    executor.run(**inputs)
    assert executor.timeline(3).items == 4
    save_plan(solution.plan, solution.graph, cluster, tmp_path / "plan.json")
    with tvm.transform.PassContext(opt_level=3):
        again = hp.HeteroPlace(cluster, plan_in=tmp_path / "plan.json", **options)(mod)
    assert read_solution(again).plan.steps == solution.plan.steps
    executable.export_library(tmp_path / "model.so")
    loaded = hp.load(tmp_path / "model.so")
    np.testing.assert_array_equal(loaded.run(**inputs)[0], expected[0])
    one = {name: array[:1] for name, array in inputs.items()}
    with pytest.raises(ExecutionError, match=r"expected float32 \(4, 7\)"):
        loaded.run(**one)


def mixes(body: Callable[[relay.Var], relay.Expr], shape: Sequence[int] = (1, 8)) -> tvm.IRModule:
    x = var("x", shape)
    return module([x], relay.nn.dense(body(x), weights(4, 8)))


MIXING: dict[str, tuple[tvm.IRModule, str]] = {
    "softmax": (mixes(lambda x: relay.nn.softmax(x, axis=0)), "nn.softmax"),
    "mean": (mixes(lambda x: relay.add(x, relay.mean(x, axis=0, keepdims=True))), "mean"),
    "reshape": (
        mixes(lambda x: relay.reshape(relay.transpose(x, (1, 0, 2)), (1, -1)), (1, 2, 4)),
        "reshape",
    ),
    "constant": (mixes(lambda x: relay.multiply(x, weights(3, 8))), "multiply"),
    "input": (mixes(lambda x: x, (2, 8)), "first dimension is 1"),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_could_mix_items_is_refused_by_name_before_it_is_compiled(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mod, named = MIXING[name]

    def compiled(*_: object) -> None:
        raise AssertionError("compiled before it was refused")

    monkeypatch.setattr("heteroplace.lower.compile.compile_kernels", compiled)
    with pytest.raises(UnsupportedRelayError, match=named):
        hp.HeteroPlace(clusters()[0], items=2, solver="bheft", costs=batch_costs, store="off")(mod)


def test_an_op_moved_by_hand_in_a_plan_of_several_items_is_refused() -> None:
    mod = perceptron()
    cluster = clusters()[0]
    placed = hp.HeteroPlace(cluster, items=2, solver="bheft", costs=batch_costs, store="off")(mod)
    solution = read_solution(placed)
    extraction = extraction_of(mod)
    devices = solution.plan.placement(len(solution.graph.tasks))
    other = [(device + 1) % len(cluster.devices) for device in devices]
    moved = annotate(extraction, solution_of(extraction, cluster, other))
    main = moved["main"].with_attr(PLAN_ATTRIBUTE, placed["main"].attrs[PLAN_ATTRIBUTE])
    with pytest.raises(LoweringError, match="moved by hand, and the plan is for 2 items"):
        hp.build(tvm.IRModule.from_expr(main))
