"""A step of training: numpy's numbers, and networks that learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from numpy_relay import executor_by_numpy
from onnx_models import make_model, node
from relay_models import cpu_cluster, module, random_costs, stock_executor, var
from training_models import Arrays, Trainer, mlp, slopes, transformer_step
from tvm import relay

import heteroplace as hp
from heteroplace.errors import TrainingError, UnsupportedRelayError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.parallel.training import (
    LOSSES,
    OPTIMIZERS,
    SGD,
    MeanSquaredError,
    Momentum,
    TrainingStep,
    parse_optimizer,
    training_step,
)
from heteroplace.parts.parallel.training.step_spans import forward_name, span_name, updated_weight
from heteroplace.relay.expressions import post_order
from heteroplace.relay.tasks.extract import extract
from heteroplace.relay.tasks.prepare import prepare

pytestmark = pytest.mark.relay

RATE = 0.1


def numpy_step(weights: list[np.ndarray], x: np.ndarray, labels: np.ndarray) -> float:
    """One step of gradient descent on the MLP, in place; the loss before it."""
    values = [x]
    for weight in weights:
        values.append(np.maximum(values[-1] @ weight.T, 0))
    slope = (values[-1] - labels) / len(x)
    loss = np.sum((values[-1] - labels) ** 2) / (2 * len(x))
    for layer in reversed(range(len(weights))):
        slope = slope * (values[layer + 1] > 0)
        gradient = slope.T @ values[layer]
        slope = slope @ weights[layer]
        weights[layer] -= RATE * gradient
    return float(loss)


def placed(mod: tvm.IRModule):  # type: ignore[no-untyped-def]
    """The module placed and compiled by ours, over the cores of this machine."""
    with tvm.transform.PassContext(opt_level=3):
        annotated = relay.transform.HeteroPlace(cpu_cluster(), costs=random_costs, solver="heft")(
            mod
        )
        executor = hp.Executor(hp.build(annotated))
    return lambda inputs: list(executor.run(**inputs))


def calls(mod: tvm.IRModule) -> list[relay.Call]:
    return [node for node in post_order(mod["main"].body) if isinstance(node, relay.Call)]


@pytest.fixture(scope="module")
def mlp_step() -> TrainingStep:
    mod, params = mlp()
    return training_step(mod, params, loss="mse", optimizer=SGD(lr=RATE))


def mlp_examples(seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    return {"x": random.standard_normal((16, 8)), "labels": random.standard_normal((16, 8))}


@pytest.mark.costly(4)
@pytest.mark.parametrize("compiled", [stock_executor, placed], ids=["stock", "placed"])
def test_three_steps_of_an_mlp_are_those_of_numpy(mlp_step, compiled) -> None:  # type: ignore[no-untyped-def]
    trainer = Trainer(mlp_step, compiled)
    weights = [trainer.state[name].copy() for name in mlp_step.weights]
    for step in range(3):
        inputs = mlp_examples(step)
        expected = numpy_step(weights, inputs["x"], inputs["labels"])
        assert trainer.train(inputs) == pytest.approx(expected, rel=1e-12)
    for name, weight in zip(mlp_step.weights, weights, strict=True):
        np.testing.assert_allclose(trainer.state[name], weight, rtol=0, atol=1e-12)


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    whole_mod, params = mlp(layers=2)
    part_mod, _ = mlp(layers=2, rows=4)
    whole = training_step(whole_mod, params)
    part = training_step(part_mod, params, batch=16)
    assert (part.rows, part.batch) == (4, 16)
    inputs = mlp_examples()
    weights = {name: value.numpy() for name, value in params.items()}
    run = executor_by_numpy(part.backward)
    found = [
        run({name: array[at : at + 4] for name, array in inputs.items()} | weights)
        for at in range(0, 16, 4)
    ]
    sums = [sum(outputs) for outputs in zip(*found, strict=True)]
    loss, *state = executor_by_numpy(whole.module)(inputs | weights)
    updated = executor_by_numpy(part.update)(
        weights | dict(zip(part.gradients, sums[1:], strict=True))
    )
    np.testing.assert_allclose(sums[0], loss, rtol=1e-12)
    for ours, expected in zip(updated, state, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_gradients_are_those_of_the_pass_of_tvm() -> None:
    mod, params = mlp(layers=2)
    labels = var("labels", (16, 8), "float64")
    main = mod["main"]
    difference = main.body - labels
    total = relay.sum(difference * difference) / relay.const(32.0, "float64")
    step = training_step(mod, params)
    whole = relay.transform.FirstOrderGradient()(module([*main.params, labels], total))
    stock = relay.create_executor(
        "vm", mod=relay.transform.InferType()(whole), target="llvm"
    ).evaluate()
    inputs = mlp_examples()
    weights = {name: value.numpy() for name, value in params.items()}
    loss, gradients = stock(inputs["x"], *weights.values(), inputs["labels"])
    found = executor_by_numpy(step.backward)(inputs | weights)
    expected = [loss, *(gradients[1 + index] for index in range(len(weights)))]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12, atol=1e-14)


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def transformer(request):  # type: ignore[no-untyped-def]
    return transformer_step(request.param)


@pytest.mark.costly
def test_gradients_of_a_transformer_equal_finite_differences(transformer) -> None:  # type: ignore[no-untyped-def]
    step, inputs = transformer
    run = executor_by_numpy(step.backward)
    inputs = inputs | {name: value.numpy() for name, value in step.values.items()}
    gradients = dict(zip(step.weights, run(inputs)[1:], strict=True))
    for seed, names in enumerate([step.weights, *((name,) for name in step.weights[::3])]):
        measured, along = slopes(run, inputs, names, 0, seed, step=1e-4)
        predicted = sum(float(np.sum(gradients[name] * along[name])) for name in names)
        assert measured == pytest.approx(predicted, rel=1e-5, abs=1e-8), names[:1]


@pytest.mark.costly
def test_transformer_learns(transformer) -> None:  # type: ignore[no-untyped-def]
    step, inputs = transformer
    trainer = Trainer(step, executor_by_numpy)
    losses = [trainer.train(inputs) for _ in range(8)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]


def test_transformer_trains_all_its_weights(transformer) -> None:  # type: ignore[no-untyped-def]
    step, _ = transformer
    assert step.state == step.weights
    assert not step.untrained


@pytest.mark.costly
def test_tasks_of_a_step_are_forward_backward_or_update() -> None:
    step, _ = transformer_step("gpt2")
    forward = {span_name(call) for call in calls(step.module)}
    forward = {name for name in forward if not name.startswith(("gradient:", "update:"))}
    with tvm.transform.PassContext(opt_level=3):
        graph = extract(prepare(step.module_with_gradients)).graph
    updated = set()
    for task in graph.tasks:
        names = {member.rpartition(":")[0] for member in task.members} - {""}
        backward = {forward_name(name) for name in names} - {None}
        weights = {updated_weight(name) for name in names} - {None}
        assert backward <= forward
        if weights:
            assert len(weights) == len(names) == 1, task.members
            updated |= weights
    assert updated == set(step.weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_transformer_placed_and_compiled_by_ours_trains_as_by_tvm(name: str) -> None:
    step, inputs = transformer_step(name)
    trainers = [Trainer(step, compiled) for compiled in (placed, stock_executor, executor_by_numpy)]
    for _ in range(3):
        ours, stock, expected = (trainer.train(inputs) for trainer in trainers)
        assert ours == pytest.approx(stock, rel=1e-9)
        assert stock == pytest.approx(expected, rel=1e-6)  # erf is computed in float32 by TVM
    for weight in step.weights:
        states = [trainer.state[weight] for trainer in trainers]
        np.testing.assert_allclose(states[0], states[1], rtol=0, atol=1e-9)
        np.testing.assert_allclose(states[1], states[2], rtol=0, atol=1e-6)


def test_small_weights_of_a_file_are_trained_if_they_are_kept() -> None:
    random = np.random.default_rng(0)
    sizes = {"w": (8, 5), "b": (5,)}
    arrays = {name: random.standard_normal(size, "float32") for name, size in sizes.items()}
    nodes = [node("MatMul", "x w", "p"), node("Add", "p b", "s"), node("Tanh", "s", "y")]
    model = make_model(nodes, {"x": [2, 8]}, ["y"], arrays)
    given, kept = from_onnx(model), from_onnx(model, keep_weights=True)
    step = training_step(given.mod, given.params)
    assert step.weights == ("w",)
    assert [text.partition(" of ")[0] for text in step.untrained] == ["constant [5]"]
    step = training_step(kept.mod, kept.params)
    assert step.weights == ("w", "b")
    assert not step.untrained


def test_weights_that_are_not_to_be_trained_stay() -> None:
    mod, params = mlp(layers=2)
    step = training_step(mod, params, trainable=["w1"])
    assert (step.inputs, step.weights) == (("x",), ("w1",))
    by_name = training_step(mod, list(params), trainable=["w1"])
    assert (by_name.inputs, by_name.weights) == (("x", "w0"), ("w1",))
    assert not by_name.values


def test_momentum_keeps_a_velocity_for_each_weight() -> None:
    mod, params = mlp(layers=1)
    step = training_step(mod, params, optimizer=Momentum(lr=0.1, momentum=0.5))
    assert step.state == ("w0", "velocity.w0")
    run = executor_by_numpy(step.update)
    state = {name: value.numpy() for name, value in step.values.items()}
    gradient = np.random.default_rng(0).standard_normal((8, 8))
    weight, velocity = state["w0"], state["velocity.w0"]
    assert not velocity.any()
    for _ in range(2):
        velocity = 0.5 * velocity + gradient
        weight = weight - 0.1 * velocity
        found = run(state | {step.gradients[0]: gradient})
        state = dict(zip(step.state, found, strict=True))
    np.testing.assert_allclose(state["w0"], weight, rtol=1e-14)
    np.testing.assert_allclose(state["velocity.w0"], velocity, rtol=1e-14)


def test_step_reads_no_tensor_for_its_shape_alone(mlp_step: TrainingStep) -> None:
    assert not [call.op.name for call in calls(mlp_step.module) if "like" in call.op.name]


def test_each_call_says_what_it_belongs_to(mlp_step: TrainingStep) -> None:
    names = {span_name(call) for call in calls(mlp_step.module)}
    forward = {f"{kind}.{layer}" for kind in ("dense", "relu") for layer in range(4)}
    assert names == {
        *forward,
        *(f"gradient:{name}" for name in forward),
        *(f"update:w{layer}" for layer in range(4)),
        *("loss", "gradient:loss"),
    }


def test_no_weight_is_transposed_but_for_its_product() -> None:
    """Of layers that hold their weights [in, out], as ONNX has them."""
    x, w = var("x", (2, 3)), var("w", (3, 4))
    mod = module([x, w], relay.nn.dense(x, relay.transpose(w)))
    step = training_step(mod, ["w"])
    transposed = [
        [int(extent) for extent in call.args[0].checked_type.shape]
        for call in calls(step.module)
        if call.op.name == "transpose"
    ]
    assert sorted(transposed) == [[2, 3], [2, 4], [3, 4]]


def refused(mod: tvm.IRModule, params=("w",), **options) -> str:  # type: ignore[no-untyped-def]
    with pytest.raises((TrainingError, UnsupportedRelayError)) as caught:
        training_step(mod, params, **options)
    return str(caught.value)


def linear(labels: str = "x") -> tvm.IRModule:
    x, w = var(labels, (2, 3)), var("w", (4, 3))
    return module([x, w], relay.nn.dense(x, w))


def test_batch_statistics_are_refused_by_name() -> None:
    x, w = var("x", (2, 3, 4, 4)), var("w", (3,))
    ones = relay.const(np.ones(3, "float32"))
    mod = module([x, w], relay.nn.batch_norm(x, w, ones, ones, ones)[0])
    assert "nn.batch_norm cannot be trained: its statistics" in refused(mod)


def centred(rows: int) -> tvm.IRModule:
    """Without the mean over all items."""
    x, w = var("x", (rows, 3)), var("w", (4, 3))
    made = relay.nn.dense(x, w)
    return module([x, w], made - relay.mean(made, axis=0))


def test_statistics_of_a_part_of_the_batch_are_refused() -> None:
    message = refused(centred(2), batch=4)
    assert "cannot be trained on parts of a batch" in message
    assert "'mean.0' cannot run for 2 items together: it mixes the items" in message
    assert training_step(centred(4), ["w"], batch=4).rows == 4


def test_dropout_is_refused_by_name() -> None:
    x, w = var("x", (2, 3)), var("w", (4, 3))
    mod = module([x, w], relay.nn.dropout(relay.nn.dense(x, w)))
    assert "nn.dropout cannot be trained: it is random" in refused(mod)


def test_wrong_requests_are_refused() -> None:
    x, n = var("x", (2, 3)), var("n", (2, 3), "int32")
    two = module([x, var("w", (4, 3))], relay.Tuple([x + x, x * x]))
    assert "there is no loss 'hinge'; there are mse, cross_entropy" in refused(
        linear(), loss="hinge"
    )
    assert "the network has no weight v; its parameters are x, w" in refused(linear(), ("v",))
    assert "no weight v" in refused(linear(), trainable=["v"])
    assert "a batch of 1 items, of which the network predicts 2" in refused(linear(), batch=1)
    assert "a batch of 5 items, of which the network reads 2 at once; expected a multiple" in (
        refused(linear(), batch=5, items=2)
    )
    assert "has 2 outputs; say by output=" in refused(two)
    assert "there is no output 3; the network has 1" in refused(linear(), output=3)
    assert "the network has an input 'labels' itself" in refused(linear("labels"))
    assert "nothing to train: the loss depends on none of w" in refused(two, output=0, loss="mse")
    assert "weights of integers cannot be trained: n" in refused(
        module([x, n], x + x), ("n",), trainable=["n"]
    )


class Adagrad:
    """Duchi et al., "Adaptive Subgradient Methods": an optimiser of somebody else."""

    slots = ("squares",)

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def update(
        self, weight: relay.Expr, gradient: relay.Expr, kept: Sequence[relay.Expr], dtype: str
    ) -> tuple[relay.Expr, ...]:
        squares = kept[0] + gradient * gradient
        step = relay.const(self._rate, dtype) * gradient
        return weight - step / relay.sqrt(squares + relay.const(1e-8, dtype)), squares


class SumOfAll(MeanSquaredError):
    """A loss of somebody else, whose gradient is the same everywhere."""

    def value(self, prediction: relay.Expr, labels: relay.Expr, batch: int) -> relay.Expr:
        return relay.sum(prediction) / relay.const(batch, "float64")

    def gradient(self, prediction: relay.Expr, labels: relay.Expr, batch: int) -> relay.Expr:
        return relay.ones_like(prediction) / relay.const(batch, "float64")


def test_optimisers_and_losses_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "adagrad", Adagrad)
    monkeypatch.setitem(LOSSES, "sum", SumOfAll())
    mod, params = mlp(layers=2)
    step = training_step(mod, params, "sum", parse_optimizer("adagrad:0.1"))
    assert step.state == ("w0", "w1", "squares.w0", "squares.w1")
    trainer = Trainer(step, executor_by_numpy)
    inputs = mlp_examples()
    first, *_, last = [trainer.train(inputs) for _ in range(3)]
    assert last < first
    measured, along = slopes(
        executor_by_numpy(step.backward), inputs | trainer.state, step.weights, 0
    )
    _, *gradients = executor_by_numpy(step.backward)(inputs | trainer.state)
    pairs = zip(gradients, along.values(), strict=True)
    assert measured == pytest.approx(sum(float(np.sum(g * d)) for g, d in pairs), rel=1e-6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("adam:0.1", "no optimiser 'adam'; there are sgd, momentum"),
        ("sgd", "optimiser 'sgd'"),
        ("sgd:0.1,2", "optimiser 'sgd:0.1,2'"),
        ("sgd:fast", "could not convert"),
        ("sgd:-1", "the learning rate is -1.0"),
        ("sgd:nan", "the learning rate is nan"),
        ("momentum:0.1,1", "momentum is 1.0"),
    ],
)
def test_unknown_optimisers_are_refused(text: str, expected: str) -> None:
    with pytest.raises(TrainingError, match=expected):
        parse_optimizer(text)


def test_optimisers_are_read_from_text() -> None:
    assert parse_optimizer("sgd:0.1") == SGD(lr=0.1)
    assert parse_optimizer("momentum:0.1,0.5") == Momentum(lr=0.1, momentum=0.5)
