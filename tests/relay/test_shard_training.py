"""A step of training for several shards computes what the step does, and exchanges as little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import relay_models
import tvm
from numpy_relay import executor_by_numpy
from onnx_models import make_model, node
from shard_models import built_by_degrees, perceptron, rank_cluster
from training_models import Arrays, examples, mlp, transformer_step
from tvm import relay

import heteroplace
from heteroplace.errors import ShardingError, UnsupportedRelayError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.parallel.shard.module import ShardedModule
from heteroplace.parts.parallel.shard.sharded_graphs import ShardedNetwork, shard_training
from heteroplace.parts.parallel.training import Momentum, TrainingStep, training_step
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.relay.expressions import is_op_call, post_order
from heteroplace.relay.shard_spans import tag_of

pytestmark = pytest.mark.relay

SHAPES_OF_GATE = {"x": (1, 4), "w": (4, 4), "least": (4,)}


def sharded_step(step: TrainingStep, tensor: int) -> ShardedNetwork:
    with tvm.transform.PassContext(opt_level=3):
        return shard_training(step, tensor=tensor, uneven=True)


def check_equal(step: TrainingStep, module: ShardedModule, inputs: Arrays) -> None:
    """Loss, new state and gradients, each put together again, are those of the step."""
    state = {name: value.numpy() for name, value in step.values.items()}
    expected = executor_by_numpy(step.module_with_gradients)(inputs | state)
    parts = {
        name: weight.part(state[weight.name], shard)
        for weight in module.weights
        for shard, name in enumerate(weight.parts)
    }
    found = executor_by_numpy(module.mod)(inputs | parts)
    weights = {weight.name: weight for weight in module.weights}
    named = [None, *step.state, *step.weights]
    for name, whole, places in zip(named, expected, module.outputs, strict=True):
        each = [found[place] for place in places]
        joined = each[0] if name is None else weights[name].joined(each)
        np.testing.assert_allclose(joined, whole, rtol=0, atol=1e-12, err_msg=str(name))


def all_reduces(module: ShardedModule) -> Counter[bool]:
    """How many there are forward and backward, but of the loss."""
    found: Counter[bool] = Counter()
    for call in post_order(module.mod["main"].body):
        if is_op_call(call, "heteroplace.all_reduce") and call.checked_type.shape:
            tag = tag_of(call)
            assert tag is not None
            found[tag.backward] += 1
    return found


@pytest.mark.costly(5)
@pytest.mark.parametrize("tensor", [2, 4])
@pytest.mark.parametrize("layers", [2, 3, 4])
def test_mlp_has_an_all_reduce_for_each_layer_but_the_first(layers: int, tensor: int) -> None:
    mod, params = mlp(layers)
    step = training_step(mod, params, optimizer=Momentum(0.1))
    module = sharded_step(step, tensor).module
    check_equal(step, module, examples(step.module, ["x", "labels"]))
    # Forward after rows, backward after columns but those that read the input.
    found = all_reduces(module)
    assert (found[False], found[True]) == (layers // 2, (layers - 1) // 2)


@pytest.mark.costly
@pytest.mark.parametrize("tensor", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["bert", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_sharded_transformer_trains_as_the_whole(name: str, tensor: int) -> None:
    step, inputs = transformer_step(name)
    module = sharded_step(step, tensor).module
    check_equal(step, module, inputs)
    if tensor == 2:  # the heads; of the attention, of the products after it, of the last product
        assert all_reduces(module)[True] == 3


def normalised_onnx() -> tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]:
    """A norm over the batch, which ONNX has for training."""
    ones, random = np.ones(8, "float32"), np.random.default_rng(0)
    arrays = {"w": random.standard_normal((8, 8)).astype("float32"), "one": ones, "zero": 0 * ones}
    nodes = [
        node("MatMul", "x w", "made"),
        node("BatchNormalization", "made one zero zero one", "y mean var", training_mode=1),
    ]
    found = from_onnx(make_model(nodes, {"x": [2, 8]}, ["y"], arrays))
    return found.mod, found.params


def centred(rows_of_result: int) -> tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]:
    """Without the mean over all items, which a result may have several rows of."""
    x, w = (relay_models.var(name, shape) for name, shape in (("x", (2, 8)), ("w", (8, 8))))
    made = relay.nn.dense(x, w)
    rows = relay.reshape(made - relay.mean(made, axis=0), (rows_of_result, -1))
    return relay_models.module([x, w], rows), {"w": tvm.nd.array(np.eye(8, dtype="float32"))}


@pytest.mark.parametrize(
    "make", [normalised_onnx, lambda: centred(2), lambda: centred(4)], ids=["onnx", "2", "4"]
)
def test_statistics_of_a_batch_are_not_those_of_microbatches_or_replicas(
    make: Callable[[], tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]],
) -> None:
    mod, params = make()
    for degrees in ((1, 1, 1, 2), (2, 1, 1, 1)):
        with pytest.raises(UnsupportedRelayError, match="cannot be trained on parts of a batch"):
            built_by_degrees(mod, params, batch=4, optimizer="sgd:0.1", degrees=degrees)
    assert training_step(mod, params).weights == ("w",)  # of all items at once


def test_backward_tasks_lie_in_the_layers_of_their_forward_tasks() -> None:
    step = training_step(*mlp(4))
    sharded = sharded_step(step, 2).sharded
    backward = {
        layer for layer, is_back in zip(sharded.layer, sharded.backward, strict=True) if is_back
    }
    assert backward == set(sharded.layer)
    assert len(set(sharded.stages(sharded.num_layers))) == sharded.num_layers
    adding = [task for task in sharded.graph.tasks if task.adds]
    assert len(adding) >= 2 * len(step.weights)  # of two shards each
    assert len(sharded.graph.updates) == 2 * len(step.weights)


def test_a_module_of_two_rows_is_shared_by_degrees_that_it_allows() -> None:
    mod, params = perceptron(rows=2)
    _, record, _ = built_by_degrees(mod, params, batch=8)
    assert Degrees(*record.told.degrees).rows(8) % 2 == 0
    with pytest.raises(ShardingError, match="holds 2 rows, and a batch of 7 is no multiple"):
        built_by_degrees(mod, params, batch=7)


@pytest.mark.parametrize("degrees", ["1,1,1,1", "1,1,1,2", "2,1,1,1", "1,1,1,4"])
def test_tokens_in_rows_of_the_prediction_train_alike_by_all_degrees(degrees: str) -> None:
    x, w = relay.var("x", shape=(1, 2, 4)), relay.var("w", shape=(4, 4))
    tokens = relay.nn.dense(relay.reshape(x, (-1, 4)), w)
    mod = tvm.IRModule.from_expr(relay.Function([x, w], tokens))
    random = np.random.default_rng(0)
    weight = random.standard_normal((4, 4)).astype("float32")
    options = {"optimizer": "sgd:1", "loss": "cross_entropy", "degrees": degrees}
    executable, _, _ = built_by_degrees(mod, {"w": tvm.nd.array(weight)}, batch=4, **options)
    inputs = random.standard_normal((4, 2, 4)).astype("float32")
    labels = random.integers(0, 4, 8)
    executor = heteroplace.Executor(executable)
    (loss,) = executor.run(x=inputs, labels=labels)
    flat = inputs.reshape(8, 4)
    likely = np.exp(flat @ weight.T)
    likely /= likely.sum(-1, keepdims=True)
    assert float(loss) == pytest.approx(-np.log(likely[range(8), labels]).mean(), rel=1e-5)
    gradient = (likely - np.eye(4)[labels]).T @ flat / 8
    np.testing.assert_allclose(executor.state("w"), weight - gradient, atol=1e-6)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_weight_without_a_gradient_keeps_its_value(micro_batches: int) -> None:
    x, w, least = (relay.var(name, shape=of) for name, of in SHAPES_OF_GATE.items())
    gated = relay.where(relay.greater(x, least), x, relay.const(0.0))
    mod = tvm.IRModule.from_expr(relay.Function([x, w, least], relay.nn.dense(gated, w)))
    values = {"w": np.eye(4, dtype="float32"), "least": np.full(4, 0.5, "float32")}
    params = {name: tvm.nd.array(value) for name, value in values.items()}
    options = {"optimizer": "sgd:0.1", "degrees": f"1,1,1,{micro_batches}"}
    executable, _, state = built_by_degrees(mod, params, batch=2, **options)
    assert {name for name, *_ in executable.manifest.inputs} == {"x", "labels"}
    assert list(state) == ["w"]
    step = training_step(mod, params)
    assert step.untrained == ("least: the loss has no gradient with respect to it",)
    # By name alone it stays an input.
    assert training_step(mod, list(params)).inputs == ("x", "least")


@pytest.mark.costly(4)
@pytest.mark.parametrize("when", ["each", "end"])
def test_the_pass_takes_its_own_output_wherever_gradients_are_summed(when: str) -> None:
    mod, params = perceptron()
    cluster, degrees = rank_cluster(), {"pipeline": 2, "micro_batches": 4}
    options = {"optimizer": "sgd:0.1", "costs": "estimate", "weight_gradients": when, **degrees}
    step = relay.transform.Shard(cluster, params=params, batch=8, **options)
    with tvm.transform.PassContext(opt_level=3):
        once = step(mod)
        assert tvm.ir.structural_equal(step(once), once)
        heteroplace.build(once, cluster)


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_gradients_of_halves_are_no_zeros_in_large_batches(loss: str) -> None:
    x, w = (relay.var(name, shape=(1, 4) if name == "x" else (4, 4), dtype="float16")
            for name in "xw")  # fmt: skip
    mod = tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.dense(x, w)))
    step = training_step(mod, ["w"], loss, batch=100_000)
    inputs = {"x": np.full((1, 4), 64, "float16"), "w": np.eye(4, dtype="float16")}
    labels = np.zeros((1, 4), "float16") if loss == "mse" else np.zeros(1, "int64")
    _, gradient = executor_by_numpy(step.backward)(inputs | {"labels": labels})
    assert np.abs(gradient).max() > 0


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_that_is_no_class_makes_loss_and_gradients_nan(label: int) -> None:
    x, w = relay.var("x", shape=(2, 3)), relay.var("w", shape=(4, 3))
    mod = tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.dense(x, w)))
    step = training_step(mod, ["w"], "cross_entropy")
    inputs = {"x": np.ones((2, 3), "float32"), "w": np.ones((4, 3), "float32")}
    run = executor_by_numpy(step.backward)
    assert all(np.isfinite(found).all() for found in run(inputs | {"labels": np.array([0, 3])}))
    assert all(np.isnan(found).all() for found in run(inputs | {"labels": np.array([0, label])}))
