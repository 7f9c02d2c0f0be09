"""extract: tasks are TVM's own fused groups, with their sizes; other forms are typed errors."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relay_models import (
    conv,
    extracted_anew,
    extraction_of,
    fire_modules,
    module,
    two_branches,
    var,
    weights,
)
from tvm import relay

from heteroplace.demo.networks import small_cnn
from heteroplace.errors import UnsupportedRelayError
from heteroplace.relay.expressions import is_primitive_call, post_order_of_function, task_of_span
from heteroplace.relay.tasks.extract import neutral_module
from heteroplace.relay.tasks.prepare import fuse, prepare


def fused_groups(mod: tvm.IRModule) -> list[list[str]]:
    """The ops of each group that stock FuseOps makes of the prepared module."""
    with tvm.transform.PassContext(opt_level=3):
        main = fuse(prepare(mod))["main"]
    groups: list[list[str]] = []

    def visit(node: relay.Expr) -> None:
        if is_primitive_call(node):
            body = post_order_of_function(node.op)
            groups.append([call.op.name for call in body if isinstance(call, relay.Call)])

    relay.analysis.post_order_visit(main.body, visit)
    return groups


def bound_small_cnn() -> tvm.IRModule:
    mod, params, _ = small_cnn()
    return tvm.IRModule.from_expr(relay.build_module.bind_params_by_name(mod["main"], params))


@pytest.mark.costly(5)
@pytest.mark.parametrize("make", [bound_small_cnn, fire_modules, two_branches])
def test_tasks_are_the_groups_of_fuse_ops(make) -> None:
    mod = make()
    graph = extraction_of(mod).graph
    assert sorted(task.op for task in graph.tasks) == sorted("+".join(g) for g in fused_groups(mod))
    assert all(len(task.members) == len(task.op.split("+")) for task in graph.tasks)


def test_tasks_are_named_after_their_heaviest_op() -> None:
    names = [task.name for task in extraction_of(two_branches()).graph.tasks]
    assert sorted(names) == ["conv2d.1", "conv2d.2", "max_pool2d.1", "softmax.1"]


@pytest.mark.costly
def test_names_and_digest_are_equal_from_run_to_run() -> None:
    first, second = (extracted_anew(fire_modules()).graph for _ in range(2))
    assert first == second
    assert first.digest() == second.digest()


def test_weights_and_tensors_are_counted_in_bytes() -> None:
    x = var("x", (1, 8, 8, 8))
    graph = extraction_of(module([x], relay.nn.relu(conv(x, 16, 8)))).graph
    (task,) = graph.tasks
    assert task.weight_bytes == 16 * 8 * 3 * 3 * 4
    assert [tensor.bytes for tensor in graph.tensors] == [8 * 8 * 8 * 4, 16 * 8 * 8 * 4]
    assert task.flops == 2 * 16 * 8 * 8 * 8 * 3 * 3 + 16 * 8 * 8


def test_a_shared_weight_is_counted_once_in_each_task() -> None:
    x = var("x", (2, 4))
    shared = weights(4, 4)
    body = relay.nn.dense(relay.nn.softmax(relay.nn.dense(x, shared)), shared)
    dense = [t for t in extraction_of(module([x], body)).graph.tasks if "dense" in t.name]
    assert [task.weight_bytes for task in dense] == [64, 64]


def test_each_result_of_a_split_is_a_tensor() -> None:
    x = var("x")
    parts = relay.split(relay.nn.softmax(x), 2, axis=1)
    graph = extraction_of(module([x], relay.Tuple([parts[1], relay.exp(parts[0])]))).graph
    split = next(index for index, task in enumerate(graph.tasks) if "split" in task.op)
    made = graph.task_outputs[split]
    assert [graph.tensors[tensor].index for tensor in made] == list(range(len(made)))
    assert len({graph.tensors[tensor].name for tensor in made}) == len(made)
    assert all(graph.tensors[tensor].shape == (1, 2, 8, 8) for tensor in graph.outputs)


def test_a_tuple_of_results_that_is_the_body_itself_is_flattened() -> None:
    x = var("x")
    extraction = extraction_of(module([x], relay.split(relay.nn.relu(x), 2, axis=1).astuple()))
    assert len(extraction.graph.outputs) == 2
    body = neutral_module(extraction)["main"].body
    assert isinstance(body, relay.Tuple) and len(body.fields) == 2


def test_nested_results_are_flattened_in_order() -> None:
    x = var("x")
    a, b = relay.nn.softmax(x), relay.nn.relu(x)
    body = relay.Tuple([relay.Tuple([b, a]), x, b])
    graph = extraction_of(module([x], body)).graph
    names = [graph.tensors[tensor].name for tensor in graph.outputs]
    assert names == ["relu.1.0", "softmax.1.0", "x", "relu.1.0"]


def test_inputs_keep_their_order_and_unused_ones_stay() -> None:
    x, y, z = var("x"), var("y"), var("z", (3,))
    graph = extraction_of(
        module([z, x, y], relay.subtract(relay.exp(y), relay.nn.softmax(x)))
    ).graph
    assert [graph.tensors[tensor].name for tensor in graph.inputs] == ["z", "x", "y"]
    assert graph.tensors[graph.inputs[0]].consumers == ()


def test_a_tensor_read_twice_by_one_task_has_one_consumer() -> None:
    x = var("x")
    graph = extraction_of(module([x], relay.multiply(x, x))).graph
    assert graph.tensors[graph.inputs[0]].consumers == (0,)


def test_the_neutral_module_names_a_task_on_every_call_and_has_no_fused_function() -> None:
    extraction = extraction_of(fire_modules())
    main = neutral_module(extraction)["main"]
    found = set()

    def visit(node: relay.Expr) -> None:
        if isinstance(node, relay.Call):
            assert isinstance(node.op, tvm.ir.Op)
            found.add(task_of_span(node))

    relay.analysis.post_order_visit(main.body, visit)
    assert found == {task.name for task in extraction.graph.tasks}


def test_the_neutral_module_fused_again_has_the_same_groups() -> None:
    extraction = extraction_of(fire_modules())
    with tvm.transform.PassContext(opt_level=3):
        again = fuse(neutral_module(extraction))["main"]
    assert tvm.ir.structural_equal(again, extraction.main)


def control_flow() -> tvm.IRModule:
    flag, x = var("flag", (), "bool"), var("x")
    return module([flag, x], relay.If(flag, relay.nn.relu(x), relay.exp(x)))


def let_binding() -> tvm.IRModule:
    x, bound = var("x"), relay.var("z")
    return module([x], relay.Let(bound, relay.nn.relu(x), relay.exp(bound)))


def function_call() -> tvm.IRModule:
    mod, inner = tvm.IRModule(), var("inner")
    mod["helper"] = relay.Function([inner], relay.nn.relu(inner))
    mod = relay.transform.InferType()(mod)
    x = var("x")
    mod["main"] = relay.Function([x], relay.exp(mod.get_global_var("helper")(x)))
    return relay.transform.InferType()(mod)


def closure() -> tvm.IRModule:
    x, inner = var("x"), var("inner")
    return module([x], relay.Call(relay.Function([inner], relay.nn.relu(inner)), [x]))


def dynamic_shape() -> tvm.IRModule:
    x = relay.var("x", shape=(relay.Any(), 4), dtype="float32")
    return module([x], relay.nn.relu(x))


def constant_output() -> tvm.IRModule:
    x = var("x")
    return module([x], relay.Tuple([relay.nn.relu(x), relay.const(np.ones(3, "float32"))]))


def tuple_input() -> tvm.IRModule:
    type_ = relay.TupleType([relay.TensorType((2, 2)), relay.TensorType((2, 2))])
    pair = relay.var("pair", type_annotation=type_)
    return module([pair], relay.nn.relu(relay.TupleGetItem(pair, 0)))


def nothing() -> tvm.IRModule:
    x = var("x")
    return module([x], x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (control_flow, "a If expression; only dataflow"),
        (let_binding, "variable 'z' by `let`"),
        (function_call, "calls function 'helper'"),
        (closure, "calls a function"),
        (dynamic_shape, r"dynamic shape Tensor\[\(\?, 4\), float32\]; give every input a fixed"),
        (tuple_input, "input 'pair' of the model has type"),
    ],
)
def test_what_cannot_be_cut_into_tasks_is_a_typed_error(make, message: str) -> None:
    with pytest.raises(UnsupportedRelayError, match=message):
        extraction_of(make())


def only_reshaped() -> tvm.IRModule:
    x = var("x")
    return module([x], relay.reshape(x, (1, -1)))


def only_constant() -> tvm.IRModule:
    return module([var("x")], relay.const(np.array([np.nan, -0.0], "float32")))


@pytest.mark.parametrize(
    ("make", "ops"),
    [
        (constant_output, ["nn.relu", "zeros+where"]),
        (nothing, ["copy"]),
        (only_reshaped, ["reshape+copy"]),
        (only_constant, ["zeros+where"]),
    ],
)
def test_an_output_without_a_kernel_gets_one(make, ops: list[str]) -> None:
    assert [task.op for task in extraction_of(make()).graph.tasks] == ops
