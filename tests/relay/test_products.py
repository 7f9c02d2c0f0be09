"""Products of matrices that are read as they lie: their numbers, and where they stand in for dense
layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
import tvm
from numpy_relay import run_by_numpy
from relay_models import TARGET, module, random_inputs, stock_executor, var, weights
from tvm import relay, te, tir
from tvm.relay.backend import te_compiler

from heteroplace.lower.dense_products import DenseProducts
from heteroplace.lower.in_place import may_run_in_place
from heteroplace.lower.kernels import Kernel
from heteroplace.lower.workspace import kernel_workspace
from heteroplace.parts.kernels.cpu.matmul_op import MATMUL_OP, matmul
from heteroplace.parts.kernels.rewrites.unpacked import ReadWeightsInPlace
from heteroplace.relay.expressions import post_order, task_span
from heteroplace.relay.products import without_transposes
from heteroplace.relay.tasks.prepare import fuse

FORMS = list(product((False, True), repeat=2))
SIZES = [(1, 8, 16), (6, 20, 24), (5, 7, 3), (64, 33, 96)]
"""Rows, depth, columns."""


def operands(rows: int, depth: int, columns: int, form: tuple[bool, bool]) -> list[relay.Var]:
    turns_a, turns_b = form
    shapes = [(depth, rows) if turns_a else (rows, depth)]
    shapes.append((columns, depth) if turns_b else (depth, columns))
    return [var(name, shape) for name, shape in zip("ab", shapes, strict=True)]


def by_numpy(a: np.ndarray, b: np.ndarray, form: tuple[bool, bool]) -> np.ndarray:
    turns_a, turns_b = form
    return (a.T if turns_a else a) @ (b.T if turns_b else b)


@pytest.mark.parametrize(
    "sizes",
    [
        SIZES[0],
        *(pytest.param(sizes, marks=pytest.mark.costly) for sizes in SIZES[1:]),
        *(
            pytest.param(sizes, marks=pytest.mark.slow)
            for sizes in [(128, 256, 512), (7, 64, 1), (1, 1, 1), (256, 31, 20), (14, 48, 1024)]
        ),
    ],
    ids=str,
)
def test_products_in_all_forms_are_those_of_numpy(sizes: tuple[int, int, int]) -> None:
    pairs = [operands(*sizes, form) for form in FORMS]
    variables = [
        relay.Var(f"{each.name_hint}{n}", each.type_annotation)
        for n, pair in enumerate(pairs)
        for each in pair
    ]
    made = [
        matmul(*variables[2 * n : 2 * n + 2], transpose_a=turns_a, transpose_b=turns_b)
        for n, (turns_a, turns_b) in enumerate(FORMS)
    ]
    made[1] = relay.nn.relu(relay.add(made[1], relay.const(np.float32(0.5))))
    made[2] = relay.tanh(made[2])
    mod = module(variables, relay.Tuple(made))
    inputs = random_inputs(mod)
    expected = [by_numpy(inputs[f"a{n}"], inputs[f"b{n}"], form) for n, form in enumerate(FORMS)]
    expected[1] = np.maximum(expected[1] + 0.5, 0)
    expected[2] = np.tanh(expected[2])
    for actual, wanted in zip(stock_executor(mod)(inputs), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


def test_products_of_doubles_are_those_of_numpy() -> None:
    a, b = var("a", (6, 20), "float64"), var("b", (10, 20), "float64")
    c = var("c", (20, 10), "float64")
    mod = module([a, b, c], relay.Tuple([matmul(a, b, transpose_b=True), matmul(a, c)]))
    inputs = random_inputs(mod)
    expected = [inputs["a"] @ inputs["b"].T, inputs["a"] @ inputs["c"]]
    for actual, wanted in zip(stock_executor(mod)(inputs), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-12)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_is_added_to_takes_the_sum_in_its_place(form: tuple[bool, bool]) -> None:
    """As gradients of several microbatches are: no buffer, and no copy."""
    a, b = operands(16, 24, 32, form)
    before = var("before", (16, 32))
    added = relay.add(before, matmul(a, b, transpose_a=form[0], transpose_b=form[1]))
    main = fuse(module([before, a, b], added))["main"]
    with tvm.target.Target(TARGET) as target:
        cached = te_compiler.get().lower(main.body.op, target)
    ranges = (None,) * 3
    kernel = Kernel("added", cached.funcs, target, kernel_workspace(cached.funcs), ranges=ranges)
    (place,) = (n for n, arg in enumerate(main.body.args) if arg.name_hint == "before")
    assert may_run_in_place(kernel, place, 0)
    assert not any(may_run_in_place(kernel, other, 0) for other in {0, 1, 2} - {place})


def stored_in_halves(*values: Callable[[tir.PrimExpr], tir.PrimExpr]) -> Kernel:
    """A kernel of one input that stores each value to a half of its output."""
    x = te.placeholder((16,), "float32", "x")

    def body(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        builder = tir.ir_builder.create()
        for half, value in enumerate(values):
            with builder.for_range(0, 8) as i:
                at = i + 8 * half
                builder.emit(outs[0].vstore([at], value(ins[0].vload([at]))))
        return builder.get()

    y = te.extern(x.shape, [x], body, dtype="float32")
    functions = tvm.lower(te.create_schedule(y.op), [x, y])
    target = tvm.target.Target(TARGET)
    return Kernel("halves", functions, target, kernel_workspace(functions), ranges=(None,))


def test_several_statements_may_store_where_each_reads_its_own_place() -> None:
    assert may_run_in_place(stored_in_halves(lambda x: x + 1.0, lambda x: x * 2.0), 0, 0)
    zero = tir.const(0.0, "float32")
    assert not may_run_in_place(stored_in_halves(lambda x: x + 1.0, lambda _: zero), 0, 0)


def ops_of(mod: tvm.IRModule) -> list[str]:
    return [node.op.name for node in post_order(mod["main"].body) if isinstance(node, relay.Call)]


def in_place(mod: tvm.IRModule, target: str = TARGET) -> tvm.IRModule:
    step = ReadWeightsInPlace(tvm.target.Target(target))
    return tvm.transform.Sequential([step, relay.transform.InferType()])(mod)


def of_task(call: relay.Call, task: str) -> relay.Call:
    return relay.Call(call.op, call.args, call.attrs, None, task_span(task))


def test_only_weights_that_are_not_known_ahead_are_read_in_place() -> None:
    x, w = var("x", (4, 8)), var("w", (6, 8))
    mod = module([x, w], relay.nn.dense(relay.nn.dense(x, w), weights(5, 6)))
    assert ops_of(in_place(mod)) == [MATMUL_OP, "nn.dense"]
    integers = module([x := var("x", (4, 8), "int8"), w := var("w", (6, 8), "int8")],
                      relay.nn.dense(x, w, out_dtype="int32"))  # fmt: skip
    assert ops_of(in_place(integers)) == ["nn.dense"]


def test_a_library_for_products_is_left_to_do_them() -> None:
    x, w = var("x", (4, 8)), var("w", (6, 8))
    mod = module([x, w], relay.nn.dense(x, w))
    assert ops_of(in_place(mod, f"{TARGET} -libs=cblas")) == ["nn.dense"]


def test_a_transpose_of_another_task_is_not_taken_away_from_it() -> None:
    x, w = var("x", (4, 8)), var("w", (8, 6))
    turned = relay.transpose(w)
    own = of_task(relay.nn.dense(x, of_task(turned, "dense.1")), "dense.1")
    other = of_task(relay.nn.dense(x, of_task(turned, "transpose.1")), "dense.1")
    assert ops_of(in_place(module([x, w], own))) == [MATMUL_OP]
    assert ops_of(in_place(module([x, w], other))) == ["transpose", MATMUL_OP]


def test_a_transpose_that_leaves_axes_alone_is_none() -> None:
    x, w = var("x", (4, 8)), var("w", (8, 8))
    mod = module([x, w], relay.nn.dense(x, relay.transpose(w, (0, 1))))
    inputs = random_inputs(mod)
    (expected,) = run_by_numpy(mod, inputs)
    assert ops_of(without_transposes(mod)) == ["nn.dense"]
    for changed in (in_place(mod), without_transposes(mod)):
        (found,) = stock_executor(changed)(inputs)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_gpus_get_dense_layers_of_transposes() -> None:
    """For which TVM has kernels."""
    x, w = var("x", (4, 8)), var("w", (8, 6))
    mod = module([x, w], relay.nn.matmul(x, w))
    inputs = random_inputs(mod)
    changed = tvm.transform.Sequential([DenseProducts(), relay.transform.InferType()])(mod)
    assert ops_of(changed) == ["transpose", "nn.dense"]
    np.testing.assert_allclose(
        run_by_numpy(changed, inputs)[0], inputs["x"] @ inputs["w"], rtol=1e-5
    )


def gradients() -> tvm.IRModule:
    """A layer and its gradients, as TVM's registry writes them, and a transpose of a transpose."""
    x, w, g = var("x", (4, 8)), var("w", (6, 8)), var("g", (4, 6))
    to_x = relay.nn.dense(g, relay.transpose(w))
    to_w = relay.nn.dense(relay.transpose(g), relay.transpose(x))
    twice = relay.nn.dense(x, relay.transpose(relay.transpose(w)))
    return module([x, w, g], relay.Tuple([relay.nn.dense(x, w), to_x, to_w, twice]))


def test_gradients_of_dense_layers_need_no_transposes() -> None:
    mod = gradients()
    changed = without_transposes(mod)
    assert ops_of(changed) == ["nn.dense", "nn.matmul", "nn.matmul", "nn.dense"]
    flags = [
        (bool(node.attrs.transpose_a), bool(node.attrs.transpose_b))
        for node in post_order(changed["main"].body)
        if isinstance(node, relay.Call) and node.op.name == "nn.matmul"
    ]
    assert flags == [(False, False), (True, False)]
    assert tvm.ir.structural_equal(changed, without_transposes(changed))
    inputs = random_inputs(mod)
    for one, other in zip(run_by_numpy(mod, inputs), run_by_numpy(changed, inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
