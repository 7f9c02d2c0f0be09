"""rebatch: a batch gives what its items give one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import tvm
from onnx_models import make_model, node
from relay_models import TARGET, conv, module, var, weights
from tvm import relay
from tvm.contrib import graph_executor

from heteroplace.demo.networks import randomly_wired, small_cnn
from heteroplace.errors import UnsupportedRelayError
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.relay.tasks.extract import extract
from heteroplace.relay.tasks.prepare import prepare
from heteroplace.relay.tasks.rebatch import rebatch
from zoo.models.transformers import gpt_onnx


def outputs(mod: tvm.IRModule, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    """By TVM alone, at the level that compiles soonest."""
    with tvm.transform.PassContext(opt_level=0):
        library = relay.build(mod, target=TARGET)
    executor = graph_executor.GraphModule(library["default"](tvm.cpu(0)))
    for name, value in values.items():
        executor.set_input(name, value)
    executor.run()
    return [executor.get_output(index).numpy() for index in range(executor.get_num_outputs())]


def check_items(mod: tvm.IRModule, batch: int = 2) -> tvm.IRModule:
    """Run a batch, and its last item alone; return the rebatched module."""
    batched = rebatch(mod, batch)
    random = np.random.default_rng(0)
    values = {}
    for parameter in batched["main"].params:
        shape = tuple(int(extent) for extent in parameter.checked_type.shape)
        values[parameter.name_hint] = (
            random.standard_normal(shape).astype("float32")
            if parameter.checked_type.dtype == "float32"
            else random.integers(0, 5, shape).astype(parameter.checked_type.dtype)
        )
    found = outputs(batched, values)
    one = {name: value[batch - 1 :] for name, value in values.items()}
    for whole, alone in zip(found, outputs(mod, one), strict=True):
        np.testing.assert_allclose(whole[batch - 1 :], alone, rtol=1e-4, atol=1e-5)
    return batched


def residual_block() -> tvm.IRModule:
    data = var("data", (1, 4, 8, 8))
    left = relay.nn.relu(conv(data, 4, 4))
    pooled = relay.nn.global_avg_pool2d(relay.add(conv(left, 4, 4), data))
    flat = relay.reshape(pooled, (1, -1))
    return module([data], relay.nn.softmax(relay.nn.dense(flat, weights(10, 4))))


def inception_block() -> tvm.IRModule:
    data = var("data", (1, 4, 8, 8))
    branches = [
        conv(data, 4, 4, kernel=1),
        conv(data, 8, 4),
        relay.nn.avg_pool2d(data, (3, 3), padding=(1, 1)),
    ]
    joined = relay.nn.lrn(relay.concatenate(branches, axis=1))
    return module([data], relay.nn.batch_flatten(relay.nn.max_pool2d(joined, (2, 2), (2, 2))))


def attention() -> tvm.IRModule:
    """Heads of one axis with the items, a class token that is joined, a slice of each item."""
    data = var("data", (1, 5, 8))
    token = weights(1, 1, 8)
    tokens = relay.concatenate([token, data], axis=1)
    flat = relay.reshape(tokens, (6, 8))
    parts = relay.split(relay.nn.dense(flat, weights(24, 8, seed=1)), 3, axis=1)
    query, key, value = (
        relay.reshape(relay.transpose(relay.reshape(part, (1, 6, 2, 4)), (0, 2, 1, 3)), (2, 6, 4))
        for part in parts
    )
    scores = relay.nn.softmax(relay.nn.batch_matmul(query, key))
    mixed = relay.nn.batch_matmul(scores, relay.transpose(value, (0, 2, 1)))
    joined = relay.reshape(
        relay.transpose(relay.reshape(mixed, (1, 2, 6, 4)), (0, 2, 1, 3)), (1, 6, 8)
    )
    normed = relay.nn.layer_norm(relay.add(joined, tokens), weights(8), weights(8, seed=2))
    return module([data], relay.strided_slice(normed, [0, 0, 0], [1, 1, 8]))


@pytest.mark.costly
@pytest.mark.parametrize("network", [residual_block, inception_block, attention])
def test_batch_equals_its_items(network: Callable[[], tvm.IRModule]) -> None:
    batched = check_items(network(), batch=3)
    assert int(batched["main"].ret_type.shape[0]) == 3


@pytest.mark.slow
def test_gpt_from_onnx_equals_its_items() -> None:
    model = gpt_onnx(layers=1, hidden=16, heads=2, tokens=6, vocabulary=11, seed=0)
    check_items(from_onnx(model).bind_params())


def test_weights_that_are_parameters_stay_as_they_are() -> None:
    network = small_cnn()
    batched = rebatch(network.mod, 3, inputs=["image"])
    for old, new in zip(network.mod["main"].params, batched["main"].params, strict=True):
        first = 3 if old.name_hint == "image" else int(old.checked_type.shape[0])
        assert int(new.checked_type.shape[0]) == first


@pytest.mark.costly
def test_tasks_of_all_batches_correspond() -> None:
    network = randomly_wired(nodes=6, channels=8, size=8)
    graphs = []
    for size in (1, 5):
        main = rebatch(network.mod, size, inputs=["image"])["main"]
        bound = relay.build_module.bind_params_by_name(main, network.params)
        with tvm.transform.PassContext(opt_level=3):
            graphs.append(extract(prepare(tvm.IRModule.from_expr(bound))).graph)
    one, several = graphs
    assert [(t.name, t.op, t.members) for t in one.tasks] == [
        (t.name, t.op, t.members) for t in several.tasks
    ]
    assert one.task_inputs == several.task_inputs


def test_batch_of_one_is_the_module_itself() -> None:
    mod = residual_block()
    tvm.ir.assert_structural_equal(rebatch(mod, 1), mod)


def test_spans_stay() -> None:
    network = small_cnn()
    batched = rebatch(network.mod, 2, inputs=["image"])
    assert batched["main"].body.span.source_name.name == "last.relu"


def refused(mod: tvm.IRModule, words: str, batch: int = 2) -> None:
    with pytest.raises(UnsupportedRelayError, match=words):
        rebatch(mod, batch)


def test_items_that_are_repeated_are_refused() -> None:
    x = var("x", (1, 3))
    refused(module([x], relay.broadcast_to(x, (2, 3))), "repeats the items, axis 0 of .2, 3.")


def test_what_mixes_items_is_refused_by_name() -> None:
    data = var("data", (1, 4))
    refused(module([data], relay.nn.softmax(data, axis=0)), "nn.softmax.*axis 0")
    refused(module([data], relay.sum(data)), "sum.*not grow|sum.*one part")
    refused(module([data], relay.sum(data, axis=0, keepdims=True)), "sum.*not grow")
    refused(module([data], relay.concatenate([data, data], axis=0)), "concatenate.*axis 0")
    refused(module([data], relay.cumsum(data, axis=0)), "cumsum.*axis 0")
    refused(module([data], relay.squeeze(data)), "squeeze.*one part")
    refused(module([data], relay.tile(data, (2, 1))), "tile.*not known|tile.*no broadcast")


def test_broadcast_against_another_axis_is_refused_even_if_sizes_agree() -> None:
    data, mask = var("data", (1, 2, 4)), var("mask", (1, 4))
    refused(module([data, mask], relay.add(data, mask)), "add.*different axes")


def test_constant_of_the_size_of_the_batch_is_not_taken_for_items() -> None:
    data = var("data", (1, 4))
    refused(module([data], relay.add(data, weights(2, 4))), "add.*not grow")


def test_joining_the_items_with_other_axes_is_refused() -> None:
    data = var("data", (1, 2, 4))
    turned = relay.transpose(data, (1, 0, 2))
    refused(module([data], relay.reshape(turned, (8,))), "reshape.*joins the items")


def test_input_without_a_batch_is_refused() -> None:
    data = var("data", (4, 4))
    refused(module([data], relay.nn.relu(data)), "'data'.*first dimension is 1")


def test_batch_below_one_and_unknown_inputs_are_refused() -> None:
    refused(residual_block(), "1 or more", batch=0)
    with pytest.raises(UnsupportedRelayError, match="no input image"):
        rebatch(residual_block(), 2, inputs=["image"])


def test_op_is_named_as_in_the_imported_model() -> None:
    model = make_model(
        [node("Softmax", "x", "y", axis=0)],
        inputs={"x": (1, 4)},
        outputs=["y"],
    )
    assert isinstance(model, onnx.ModelProto)
    with pytest.raises(UnsupportedRelayError, match="of 'n_y'"):
        rebatch(from_onnx(model, simplify=False).mod, 2)


def test_a_slice_that_reverses_an_item_is_refused() -> None:
    """Part by part it would be right to reverse each; as one axis it would reverse the items."""
    data = var("data", (1, 6))
    flat = relay.reshape(data, (6,))
    turned = relay.strided_slice(flat, [5], [-7], [-1])
    with pytest.raises(UnsupportedRelayError, match=r"strided_slice.* reverses axis 0"):
        rebatch(module([data], relay.reshape(turned, (1, 6))), 2)
