"""A plan of several items gives, bit for bit, what stock TVM gives of each item alone."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
import tvm
from item_plans import random_item_solution, with_batch_sizes, with_second_memory
from relay_models import (
    TARGET,
    compiled_of,
    conv,
    cpu_cluster,
    extraction_of,
    module,
    random_inputs,
    var,
    weights,
)
from tvm import relay
from tvm.contrib import graph_executor

import heteroplace as hp
from heteroplace.codegen.executable import Executable
from heteroplace.model.cluster import Cluster
from heteroplace.pipeline import build


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
    near = with_batch_sizes(cpu_cluster(), (1, 2, 3, 4))
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


def check_same(executable: Executable, inputs: dict[str, np.ndarray], expected: list) -> None:
    executor = hp.Executor(executable)
    for _ in range(2):
        for actual, wanted in zip(executor.run(**inputs), expected, strict=True):
            np.testing.assert_array_equal(actual, wanted)
    held = {use.total_bytes for use in executable.memory}
    assert held


@pytest.mark.parametrize("name", NETWORKS)
def test_random_plans_equal_the_items_alone(name: str) -> None:
    mod = NETWORKS[name]()
    reference = Reference(mod)
    extraction = extraction_of(mod)
    compiled = compiled_of(extraction)
    random = Random(name)
    for seed in range(4):
        items = random.randint(2, 4)
        cluster = clusters()[seed % 2]
        inputs, expected = reference.items(items)
        solution = random_item_solution(random, extraction.graph, cluster, items)
        with tvm.transform.PassContext(opt_level=3):
            executable = build(compiled, solution)
        check_same(executable, inputs, expected)
