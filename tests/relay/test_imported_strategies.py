"""Steps of imported networks under any strategy: those of the whole network, and of ranks alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from random import Random

import numpy as np
import pytest
import tvm
from numpy_relay import Array, executor_by_numpy, run_by_numpy
from relay_models import stock_executor
from training_models import Arrays, examples, imported, mlp
from tvm import relay

from heteroplace.model.check import check_plan
from heteroplace.model.collectives import collective_kind
from heteroplace.parts.parallel.shard.sharded_graphs import ShardedNetwork, shard_training
from heteroplace.parts.parallel.training import SGD, TrainingStep, training_step
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.strategy import Strategy, plan_strategy
from heteroplace.relay.tasks.extract import Extraction
from heteroplace.relay.tasks.rebatch import rebatch
from tests.reference.distir.domain_numpy import (
    NumpyDomain,
    cut_inputs,
    joined_outputs,
    joined_state,
)
from tests.reference.distir.interpret import interpret
from tests.reference.ranks import Ranks
from tests.unit.transforms.sharded_cases import costs_by_op, ranks
from zoo.models.transformers import bert_onnx, gpt_onnx

pytestmark = pytest.mark.relay

BATCH = 8
SMALL = {"layers": 2, "hidden": 16, "heads": 4, "tokens": 5, "vocabulary": 24}
NUMBERS = (1, 2, 4)


Executor = Callable[[tvm.IRModule], Callable[[Arrays], list[Array]]]
TaskFunction = Callable[[Sequence[Array]], list[Array]]


@cache
def step_of(name: str, rows: int) -> TrainingStep:
    """A step for so many rows of the batch, in float64 but where the name says otherwise."""
    if name.startswith("mlp"):
        mod, params = mlp(4, rows, dtype="float32" if name == "mlp in float32" else "float64")
        return training_step(mod, params, "mse", SGD(lr=0.1), batch=BATCH)
    mod, params = imported({"bert": bert_onnx, "gpt2": gpt_onnx}[name](**SMALL, seed=0))
    if rows > 1:
        inputs = [p.name_hint for p in mod["main"].params if p.name_hint not in params]
        mod = rebatch(mod, rows, inputs)
    loss, rate, output = ("mse", 0.01, 1) if name == "bert" else ("cross_entropy", 0.3, 0)
    return training_step(mod, params, loss, SGD(lr=rate), output=output, batch=BATCH)


@cache
def sharded_step(name: str, rows: int, lanes: int) -> ShardedNetwork:
    with tvm.transform.PassContext(opt_level=3):
        return shard_training(step_of(name, rows), tensor=lanes, uneven=True)


@cache
def whole_step(name: str) -> tuple[Arrays, float, Arrays]:
    """Inputs and state; the loss and the new state of the network that is not cut."""
    step = step_of(name, BATCH)
    arrays = examples(step.module, (*step.inputs, "labels"))
    arrays |= {state: value.numpy() for state, value in step.values.items()}
    loss, *new = run_by_numpy(step.module, arrays)
    return arrays, float(loss), dict(zip(step.state, new, strict=True))


def task_functions(extraction: Extraction, executor: Executor) -> dict[str, TaskFunction]:
    """What each task does, but collectives."""
    return {
        task.name: task_function(extraction, call, executor)
        for task, call in zip(extraction.graph.tasks, extraction.calls, strict=True)
        if collective_kind(task.op) is None
    }


def task_function(extraction: Extraction, call: relay.Call, executor: Executor) -> TaskFunction:
    """The fused function, of what the task reads in the order of tensors."""
    plain = relay.Function(call.op.params, call.op.body, call.op.ret_type)
    run = executor(tvm.IRModule.from_expr(plain))
    pairs = list(zip(call.op.params, call.args, strict=True))
    constants = {p.name_hint: a.data.numpy() for p, a in pairs if isinstance(a, relay.Constant)}
    read = {p.name_hint: extraction.tensors[a] for p, a in pairs if p.name_hint not in constants}
    order = sorted({tensor for ids in read.values() for tensor in ids if tensor is not None})

    def function(arguments: Sequence[Array]) -> list[Array]:
        values = dict(zip(order, arguments, strict=True))
        inputs = {
            parameter.name_hint: [values[tensor] for tensor in read[parameter.name_hint]]
            if isinstance(parameter.checked_type, relay.TupleType)
            else values[read[parameter.name_hint][0]]
            for parameter in call.op.params
            if parameter.name_hint in read
        }
        return run(inputs | constants)

    return function


def check_strategy(
    name: str,
    strategy: Strategy,
    seed: int,
    executor: Executor = executor_by_numpy,
    tolerance: float = 1e-12,
) -> None:
    arrays, loss, new = whole_step(name)
    degrees = strategy.degrees
    network = sharded_step(name, degrees.rows(BATCH), degrees.tensor)
    assert network.network is not None
    assert network.network.extraction is not None
    cluster = ranks(degrees.num_devices)
    sharded, plan = plan_strategy(network.sharded, strategy, cluster)
    check_plan(sharded.graph, cluster, costs_by_op(sharded.graph, cluster, {}), plan)
    given = cut_inputs(sharded, arrays, plan.items)
    functions = task_functions(network.network.extraction, executor)
    domain = NumpyDomain(sharded.graph, given, functions=functions)
    made = interpret(sharded.graph, cluster, plan, domain)
    (own_loss,) = joined_outputs(sharded.graph, plan, made)
    assert float(np.sum(own_loss)) == pytest.approx(loss, rel=tolerance)
    state = joined_state(sharded, made)
    assert state.keys() == new.keys()
    for key, value in state.items():
        np.testing.assert_allclose(value, new[key], rtol=0, atol=tolerance, err_msg=key)
    values = Ranks(sharded.graph, cluster, plan, domain, seed, is_buffered=seed % 2 == 0).run()
    for place, value in made.values.items():
        assert np.array_equal(np.asarray(value), values[place])


def random_strategy(seed: int, numbers: tuple[int, ...] = NUMBERS, stages: int = 4) -> Strategy:
    random = Random(seed)
    while True:
        degrees = Degrees(*(random.choice(numbers) for _ in range(4)))
        if BATCH % degrees.num_items == 0 and degrees.pipeline <= stages:
            break
    schedule = random.choice(("gpipe", "1f1b"))
    return Strategy(degrees, schedule, random.randrange(4), random.randrange(3))


@pytest.mark.costly(5)
@pytest.mark.parametrize("seed", range(4))
def test_mlp_under_any_strategy_equals_the_whole(seed: int) -> None:
    check_strategy("mlp", random_strategy(seed, (1, 2)), seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_kernels_one_after_the_other_give_the_same() -> None:
    """In single precision."""
    for seed in range(8):
        strategy = random_strategy(seed, (1, 2))
        check_strategy("mlp in float32", strategy, seed, stock_executor, 1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mlp_under_every_strategy_equals_the_whole() -> None:
    degrees = [Degrees(*found) for found in product(NUMBERS, repeat=4) if found[0] * found[3] <= 8]
    for seed, (found, schedule, zero, every) in enumerate(
        product(degrees, ("gpipe", "1f1b"), range(4), (0, 2))
    ):
        check_strategy("mlp", Strategy(found, schedule, zero, every), seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_transformers_under_any_strategy_equal_the_whole(name: str) -> None:
    stages = sharded_step(name, 1, 1).sharded.num_layers
    for seed in range(20):
        check_strategy(name, random_strategy(seed, stages=stages), seed)
