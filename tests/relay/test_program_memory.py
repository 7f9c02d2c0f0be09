"""What programs of networks and of steps of training hold in each memory, and what is predicted."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import tvm
from item_plans import batch_costs
from relay_models import module, var
from sharded_plans import far_cluster, near_cluster, taking_batches
from tvm import relay

from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.items.items import lower_items
from heteroplace.lower.lower import lower
from heteroplace.model.check import check_plan
from heteroplace.model.memory_use.live_memory import live_peaks
from heteroplace.model.solution import Solution
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.parallel.collectives.joined_sums import JoinableSums
from heteroplace.parts.parallel.shard.sharded_graphs import ShardedNetwork, shard_training
from heteroplace.parts.parallel.sharding.model_source import ModelSource
from heteroplace.parts.parallel.sharding.shard_costs import compiled_alone, with_scratch_of
from heteroplace.parts.parallel.sharding.shard_memory import program_peaks, view_tasks
from heteroplace.parts.parallel.sharding.shard_options import read_shard_options
from heteroplace.parts.parallel.training import SGD, training_step
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.strategy import Strategy, plan_strategy
from heteroplace.relay.expressions import task_span
from heteroplace.relay.tasks.rebatch import rebatch
from heteroplace.simulate.simulator import simulate
from zoo.models.transformers import bert_onnx, gpt_onnx

BATCH = 8
MAX_ERROR = 1.05
MAX_BLOCKS = 1.15
SMALL = {"layers": 2, "hidden": 64, "heads": 4, "tokens": 32, "vocabulary": 128}


def wide_mlp(columns: int = 256) -> tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]:
    """Layers whose values are large beside the pages that memory comes in."""
    value, inputs, params = var("x", (1, 256)), [], {}
    inputs.append(value)
    for layer in range(4):
        shape = (columns if layer == 3 else 256, 256)
        inputs.append(var(f"w{layer}", shape))
        params[f"w{layer}"] = tvm.nd.array(np.full(shape, 0.01 + layer, "float32"))
        value = relay.nn.relu(relay.nn.dense(value, inputs[-1]))
    return module(inputs, value), params


@cache
def sharded_step(name: str, rows: int, lanes: int) -> tuple[ShardedNetwork, CompiledNetwork]:
    if name == "mlp":
        mod, params = wide_mlp()
        loss, output = "mse", None
    else:
        found = from_onnx({"bert": bert_onnx, "gpt2": gpt_onnx}[name](**SMALL, seed=0))
        mod, params = found.mod, found.params
        loss, output = ("mse", 1) if name == "bert" else ("cross_entropy", 0)
    inputs = [p.name_hint for p in mod["main"].params if p.name_hint not in params]
    with tvm.transform.PassContext(opt_level=3):
        step = training_step(
            rebatch(mod, rows, inputs), params, loss, SGD(lr=0.1), batch=BATCH, output=output
        )
        network = shard_training(step, tensor=lanes)
        return network, compiled_alone(network, near_cluster(1))


def check_memory(name: str, strategy: Strategy, num_hosts: int = 1) -> None:
    degrees = strategy.degrees
    network, alone = sharded_step(name, degrees.rows(BATCH), degrees.tensor)
    assert network.network is not None
    cluster = far_cluster(degrees.num_devices, num_hosts, engines=0)
    cluster = taking_batches(cluster, degrees.micro_batches)
    joinable = JoinableSums(network.network.mod, network.sharded.graph).names
    scratch = with_scratch_of(network.sharded, alone)
    sharded, plan = plan_strategy(scratch, strategy, cluster, joinable=joinable)
    graph, costs, mod = sharded.graph, batch_costs(sharded.graph, cluster), network.network.mod
    check_plan(graph, cluster, costs, plan)
    with tvm.transform.PassContext(opt_level=3):
        calls = lower_items(mod, graph, cluster, plan)
    assert not any("layout_transform" in kernel.op for kernel in calls.kernels.values())
    held = lower(calls, graph, cluster, plan, simulate(graph, cluster, costs, plan)).memory
    predicted = program_peaks(Solution(graph, cluster, costs, plan, 0, 0), mod)
    for use, peak, live in zip(
        held, predicted, live_peaks(graph, cluster, costs, plan), strict=True
    ):
        assert use.total_bytes <= peak <= MAX_ERROR * use.total_bytes, (held, predicted)
        # What a sum reads of all microbatches lies side by side from the first of them on.
        most = MAX_BLOCKS if strategy.sums_at_end else MAX_ERROR
        assert use.weights_bytes + use.values_bytes <= most * live.num_bytes


def forward_source(batch: int, columns: int) -> ModelSource:
    """A network that is not trained; its last layer has other columns."""
    mod, params = wide_mlp(columns)
    return ModelSource(mod, params, read_shard_options({"batch": batch}), "mlp")


def strategy(degrees: str, schedule: str, zero: int, again: int) -> Strategy:
    return Strategy(Degrees(*map(int, degrees.split("/"))), schedule, zero, again)


STRATEGIES = [
    ("1/1/2/4", "1f1b", 0, 1),
    ("2/1/1/2", "gpipe", 3, 0),
    ("2/1/1/1", "1f1b", 0, 0),  # members' gradients stay until all updates have read them
    ("1/1/1/1", "gpipe", 0, 0),
    ("1/2/1/1", "gpipe", 0, 0),
    ("1/1/2/4", "gpipe", 0, 0),
    ("2/1/1/2", "1f1b", 1, 0),
    ("2/1/1/2", "1f1b", 2, 0),
    ("2/1/1/4", "gpipe", 0, 2),
]


@pytest.mark.parametrize(
    ("degrees", "schedule", "zero", "again"),
    [
        *(pytest.param(*each, marks=pytest.mark.costly) for each in STRATEGIES[:3]),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in STRATEGIES[3:]),
    ],
)
def test_programs_of_an_mlp_hold_what_is_predicted(
    degrees: str, schedule: str, zero: int, again: int
) -> None:
    check_memory("mlp", strategy(degrees, schedule, zero, again))


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        pytest.param("mlp", "1/1/2/4", marks=pytest.mark.costly),
        pytest.param("mlp", "2/2/1/2", marks=pytest.mark.slow),
        pytest.param("bert", "1/1/2/4", marks=pytest.mark.slow),
        pytest.param("gpt2", "1/1/2/4", marks=pytest.mark.slow),
    ],
)
def test_programs_that_sum_gradients_at_the_end_hold_what_is_predicted(
    name: str, degrees: str
) -> None:
    given = Strategy(Degrees(*map(int, degrees.split("/"))), "1f1b", sums_at_end=True)
    check_memory(name, given)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("degrees", "batch", "columns"),
    [
        ("1/1/1/1", 64, 500),
        ("1/1/2/4", 1024, 256),  # the output has the bytes of all microbatches from the first on
        ("1/1/2/8", 512, 250),  # microbatches that are not side by side at once
        ("2/1/1/2", 1024, 256),
        ("1/2/1/1", 64, 256),
    ],
)
def test_programs_of_inference_hold_what_is_predicted(
    degrees: str, batch: int, columns: int
) -> None:
    source = forward_source(batch, columns)
    given = strategy(degrees, "gpipe", 0, 0)
    key = given.degrees.tensor, given.degrees.rows(batch), batch
    cluster = far_cluster(given.degrees.num_devices, 1, engines=0)
    with tvm.transform.PassContext(opt_level=3):
        network = source.network(*key)
        assert network.network is not None
        sharded = source.with_scratch(*key, near_cluster(1))
        rewritten, plan = plan_strategy(sharded, given, cluster)
        graph, mod = rewritten.graph, network.network.mod
        calls = lower_items(mod, graph, cluster, plan)
    costs = batch_costs(graph, cluster)
    held = lower(calls, graph, cluster, plan, simulate(graph, cluster, costs, plan)).memory
    memories = source.task_memories(*key, near_cluster(1))
    predicted = program_peaks(Solution(graph, cluster, costs, plan, 0, 0), mod, memories)
    for use, peak in zip(held, predicted, strict=True):
        assert use.total_bytes <= peak <= MAX_ERROR * use.total_bytes, (held, predicted)
    weights = dict(each for memory in memories.values() for each in memory.weights)
    if given.degrees.num_devices == 1:
        assert sum(weights.values()) == held[0].weights_bytes  # in the layouts of the kernels


@pytest.mark.parametrize(
    "degrees",
    [
        pytest.param("1/2/1/1", marks=pytest.mark.costly),
        pytest.param("2/1/1/1", marks=pytest.mark.slow),
    ],
)
def test_programs_of_hosts_hold_what_they_are_sent(degrees: str) -> None:
    check_memory("mlp", strategy(degrees, "gpipe", 0, 0), num_hosts=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize(("degrees", "schedule", "zero", "again"), STRATEGIES)
def test_programs_of_transformers_hold_what_is_predicted(
    name: str, degrees: str, schedule: str, zero: int, again: int
) -> None:
    check_memory(name, strategy(degrees, schedule, zero, again))


def test_a_task_of_other_shapes_alone_is_a_view() -> None:
    x = var("x", (4, 6))
    flat = of_task(relay.reshape(x, (24,)), "reshape.1")
    turned = of_task(relay.transpose(x), "transpose.1")
    moved = of_task(relay.reshape(of_task(relay.tanh(turned), "tanh.1"), (24,)), "tanh.1")
    mod = module([x], of_task(relay.add(flat, moved), "add.1"))
    assert view_tasks(mod) == {"reshape.1"}


def of_task(call: relay.Call, task: str) -> relay.Call:
    return relay.Call(call.op, call.args, call.attrs, None, task_span(task))
