"""Strategies of a Relay network, run: inference is that of the whole network, training numpy's SGD,
and both are to the bit what their kernels give one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tvm
from item_plans import batch_costs
from kernels_alone import Arrays, KernelsAlone, loaded
from relay_models import module, var
from sharded_plans import apart_cluster, near_cluster, taking_batches
from training_plans import sgd
from tvm import relay

from heteroplace.lower.compile import CompiledKernels, CompiledNetwork
from heteroplace.lower.lower import lower
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run, Step
from heteroplace.model.solution import Solution
from heteroplace.parts.parallel.collectives.joined_sums import JoinableSums
from heteroplace.parts.parallel.shard.sharded_graphs import (
    ShardedNetwork,
    shard_network,
    shard_training,
)
from heteroplace.parts.parallel.training import SGD, training_step
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.parts.parallel.transforms.strategy import Strategy, plan_strategy
from heteroplace.relay.tasks.network import Network
from heteroplace.simulate.simulator import simulate

WIDTHS = (8, 16, 8, 16, 8)
ROWS = 2
NUM_STEPS = 2


def mlp(weights: Arrays) -> tvm.IRModule:
    x = var("x", (ROWS, WIDTHS[0]))
    parameters = [var(name, array.shape) for name, array in weights.items()]
    value = x
    for number, parameter in enumerate(parameters):
        value = relay.nn.dense(value, parameter)
        if number < len(parameters) - 1:
            value = relay.nn.relu(value)
    return module([x, *parameters], value)


@dataclass(frozen=True)
class StrategyCase:
    """An MLP under a strategy."""

    strategy: Strategy
    is_training: bool

    @property
    def degrees(self) -> Degrees:
        return self.strategy.degrees

    @property
    def batch(self) -> int:
        return ROWS * self.degrees.num_items

    @cached_property
    def weights(self) -> Arrays:
        rng = np.random.default_rng(0)
        return {
            f"w{n}": 0.3 * rng.standard_normal((out, into)).astype("float32")
            for n, (into, out) in enumerate(pairwise(WIDTHS))
        }

    @cached_property
    def inputs(self) -> Arrays:
        rng = np.random.default_rng(1)
        x = rng.standard_normal((self.batch, WIDTHS[0])).astype("float32")
        labels = rng.standard_normal((self.batch, WIDTHS[-1])).astype("float32")
        return {"x": x, "labels": labels} if self.is_training else {"x": x}

    @cached_property
    def sharded(self) -> ShardedNetwork:
        lanes = self.degrees.tensor
        params = {name: tvm.nd.array(array) for name, array in self.weights.items()}
        with tvm.transform.PassContext(opt_level=3):
            if not self.is_training:
                return shard_network(mlp(self.weights), params, tensor=lanes)
            step = training_step(mlp(self.weights), params, "mse", SGD(lr=0.1), batch=self.batch)
            return shard_training(step, tensor=lanes)

    @cached_property
    def planned(self) -> tuple[ShardedGraph, Plan]:
        assert self.sharded.network is not None
        joinable = JoinableSums(self.sharded.network.mod, self.sharded.sharded.graph).names
        return plan_strategy(self.sharded.sharded, self.strategy, self.cluster, joinable=joinable)

    @cached_property
    def cluster(self) -> Cluster:
        return taking_batches(apart_cluster(self.degrees.num_devices), self.degrees.micro_batches)

    @cached_property
    def solution(self) -> Solution:
        sharded, plan = self.planned
        apart = self.cluster
        costs = batch_costs(sharded.graph, apart)
        check_plan(sharded.graph, apart, costs, plan)
        makespan = simulate(sharded.graph, apart, costs, plan).makespan_ns
        return Solution(sharded.graph, apart, costs, plan, makespan, 0)

    @cached_property
    def kernels(self) -> CompiledKernels:
        assert self.sharded.network is not None
        network = Network(self.solution.graph, self.sharded.network.mod)
        with tvm.transform.PassContext(opt_level=3):
            return CompiledNetwork.of(network).kernels_of(self.solution.cluster, self.solution.plan)

    def parts(self, arrays: Arrays) -> Arrays:
        """What each lane has of the weights."""
        return {
            name: np.ascontiguousarray(weight.part(arrays[weight.name], lane))
            for weight in self.sharded.module.weights
            for lane, name in enumerate(weight.parts)
        }


def check_strategy(case: StrategyCase, folder: Path) -> None:
    solution, cluster = case.solution, near_cluster(case.degrees.num_devices)
    program, states = loaded(
        case.kernels, lower(case.kernels.calls, solution.graph, cluster, solution.plan, None)
    )
    alone = KernelsAlone(case.kernels, folder)
    state = case.parts(case.weights) if case.is_training else {}
    for name, array in state.items():
        states.write(name, array)
    wide = {name: array.astype("float64") for name, array in case.weights.items()}
    x = case.inputs["x"].astype("float64")
    for _ in range(NUM_STEPS if case.is_training else 1):
        outputs = program.run(case.inputs)
        expected, state = alone.run(case.inputs, state)
        for output, own in zip(outputs, expected, strict=True):
            assert output.tobytes() == own.tobytes()
        for name, array in state.items():
            assert states.read(name).tobytes() == array.tobytes()
        if not case.is_training:
            np.testing.assert_allclose(outputs[0], forward(wide, x), rtol=1e-5, atol=1e-5)
            continue
        loss, new = sgd(list(wide.values()), x, case.inputs["labels"].astype("float64"))
        wide = dict(zip(wide, new, strict=True))
        assert float(np.sum(outputs[0])) == pytest.approx(loss, rel=1e-5)
        for name, array in case.parts(wide).items():
            np.testing.assert_allclose(states.read(name), array, rtol=1e-5, atol=1e-5)


def forward(weights: Arrays, x: np.ndarray) -> np.ndarray:
    """The whole network."""
    for number, weight in enumerate(weights.values()):
        x = x @ weight.T
        if number < len(weights) - 1:
            x = np.maximum(x, 0)
    return x


def strategy(
    degrees: str,
    schedule: str = "gpipe",
    zero: int = 0,
    again: int = 0,
    sums_at_end: bool = False,
) -> Strategy:
    """E.g. "2/1/2/4" for D/T/P/K."""
    found = Degrees(*map(int, degrees.split("/")))
    return Strategy(found, schedule, zero, again, sums_at_end=sums_at_end)


def test_inference_in_lanes_and_stages_is_that_of_the_whole_network(tmp_path: Path) -> None:
    check_strategy(StrategyCase(strategy("1/2/2/2"), is_training=False), tmp_path)


@pytest.mark.costly
def test_training_by_everything_at_once_is_that_of_the_whole_network(tmp_path: Path) -> None:
    check_strategy(StrategyCase(strategy("2/2/1/2", "1f1b", 3, 2), is_training=True), tmp_path)


@pytest.mark.costly(4)
@pytest.mark.parametrize("degrees", ["1/1/2/4", "2/2/1/2"])
def test_gradients_summed_at_the_end_train_the_whole_network(degrees: str, tmp_path: Path) -> None:
    case = StrategyCase(strategy(degrees, "1f1b", sums_at_end=True), is_training=True)
    graph, micro_batches = case.solution.graph, case.degrees.micro_batches
    sums = [step for step in case.solution.plan.steps if is_sum(graph, step)]
    assert sums and {len(step.items) for step in sums} == {micro_batches}
    check_strategy(case, tmp_path)


def is_sum(graph: TaskGraph, step: Step) -> bool:
    """Whether a step makes a part of the gradient of a weight."""
    if not isinstance(step, Run):
        return False
    task = graph.tasks[step.task]
    return task.adds and task.op == "nn.matmul"


SOME = [
    *((degrees, "gpipe", 0, 0) for degrees in ("1/1/1/1", "2/1/1/1", "1/2/1/1", "1/4/1/1")),
    *((degrees, "1f1b", 0, 0) for degrees in ("1/1/2/2", "1/1/4/4", "2/2/2/2", "4/1/2/2")),
    *(("2/1/1/2", "gpipe", zero, 0) for zero in (1, 2, 3)),
    *(("2/2/2/4", schedule, 3, 1) for schedule in ("gpipe", "1f1b")),
    ("1/2/4/4", "1f1b", 0, 1),
    ("4/2/1/1", "gpipe", 2, 0),
]


@pytest.mark.slow
@pytest.mark.parametrize("is_training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("degrees", "schedule", "zero", "again"), SOME)
def test_strategies_are_the_whole_network(
    degrees: str, schedule: str, zero: int, again: int, is_training: bool, tmp_path: Path
) -> None:
    if is_training or not (zero or again):
        check_strategy(
            StrategyCase(strategy(degrees, schedule, zero, again), is_training), tmp_path
        )
