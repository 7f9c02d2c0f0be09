"""Weights below the smallest normal number are zeros in our kernels, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_models as om
import pytest
import tvm
from relay_models import cpu_cluster, random_costs
from tvm import relay

import heteroplace as hp
from heteroplace.parts.kernels.rewrites.denormal_weights import without_denormal_weights

pytestmark = pytest.mark.relay

TINY = np.finfo(np.float32).smallest_normal
EXAMPLE = np.float32([TINY, TINY / 2, -TINY, -TINY / 2, 1e-45, -1e-45, 0, -0.0, 1, np.inf, np.nan])
FLUSHED = np.float32([TINY, 0, -TINY, 0, 0, 0, 0, -0.0, 1, np.inf, np.nan])


def constants_of(expression: relay.Expr) -> list[np.ndarray]:
    """The constants of a function of x with this result, after the rewrite."""
    function = relay.Function(relay.analysis.free_vars(expression), expression)
    typed = relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"]
    new = without_denormal_weights(typed)
    constants: list[np.ndarray] = []

    def visit(node: relay.Expr) -> None:
        if isinstance(node, relay.Constant):
            constants.append(node.data.numpy())

    relay.analysis.post_order_visit(new.body, visit)
    return constants


def x(*shape: int) -> relay.Var:
    return relay.var("x", shape=shape)


MATRIX = np.tile(EXAMPLE, (2, 1))


@pytest.mark.parametrize(
    "product",
    [
        lambda weights: relay.nn.dense(x(3, 11), relay.const(weights)),
        lambda weights: relay.nn.batch_matmul(x(1, 3, 11), relay.const(weights[np.newaxis])),
        lambda weights: relay.nn.conv2d(
            x(1, 11, 4, 4), relay.const(weights.reshape(2, 11, 1, 1)), kernel_size=(1, 1)
        ),
        lambda weights: relay.nn.conv2d_transpose(
            x(1, 2, 4, 4),
            relay.const(weights.reshape(2, 11, 1, 1)),
            channels=11,
            kernel_size=(1, 1),
        ),
        lambda weights: relay.multiply(x(2, 11), relay.const(weights)),
        lambda weights: relay.add(x(2, 11), relay.const(weights)),
        lambda weights: relay.subtract(relay.const(weights), x(2, 11)),
    ],
)
def test_denormal_factors_and_summands_become_zeros(product: Any) -> None:
    (weights,) = constants_of(product(MATRIX))
    assert weights.reshape(-1).tobytes() == np.tile(FLUSHED, 2).tobytes()


@pytest.mark.parametrize(
    "expression",
    [
        lambda: relay.add(x(2, 11), relay.const(np.float32(1e-40))),
        lambda: relay.maximum(x(2, 11), relay.const(MATRIX)),
        lambda: relay.divide(x(2, 11), relay.const(MATRIX)),
        lambda: relay.greater(x(2, 11), relay.const(MATRIX)),
    ],
)
def test_other_constants_stay(expression: Any) -> None:
    before = expression().args[1].data.numpy()
    (after,) = constants_of(expression())
    assert after.tobytes() == before.tobytes()


def test_a_function_without_denormal_weights_stays_the_same() -> None:
    weights = relay.const(np.float32([[TINY, 0, 1]]))
    function = relay.Function([variable := x(1, 3)], relay.nn.dense(variable, weights))
    typed = relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"]
    assert without_denormal_weights(typed).same_as(typed)


def layers() -> Any:
    """Two layers, most of whose weights are denormal."""
    rng = np.random.default_rng(0)
    weights = {
        name: np.where(rng.random((64, 64)) < 0.7, 1e-40, rng.standard_normal((64, 64)))
        for name in ("v", "w")
    }
    nodes = [
        om.node("MatMul", "x v", "h"),
        om.node("Relu", "h", "r"),
        om.node("MatMul", "r w", "y"),
    ]
    typed = {name: array.astype("float32") for name, array in weights.items()}
    return om.make_model(nodes, {"x": [8, 64]}, ["y"], typed)


@pytest.mark.parametrize("kernels", ["auto", "tvm"])
def test_outputs_are_those_of_onnxruntime(kernels: str) -> None:
    model = layers()
    executable = hp.compile(
        model, cpu_cluster(), costs=random_costs, kernels=kernels, solver="heft"
    )
    inputs = om.random_inputs(model)
    (output,) = hp.Executor(executable).run(inputs)
    (expected,) = om.run_onnxruntime(model, inputs)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)
