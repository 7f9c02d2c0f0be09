"""What cuBLASLt can compute of a fused function, by its Relay pattern."""

from __future__ import annotations

import math

import pytest
import tvm
from tvm import relay

from heteroplace.lower.library_symbols import is_library_kernel, library_workspace_bytes
from heteroplace.parts.kernels.nvidia.cublas_products import Product, product_of

pytestmark = pytest.mark.relay

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


def var(name: str, *shape: int, dtype: str = "float32") -> relay.Var:
    return relay.var(name, shape=shape, dtype=dtype)


X, W, BIAS, SUM = var("x", 8, 64), var("w", 32, 64), var("b", 32), var("s", 8, 32)
DENSE = relay.nn.dense(X, W)


def found(body: relay.Expr) -> Product | None:
    """What the function of a body is, its parameters in the order of their first use."""
    function = relay.Function(relay.analysis.free_vars(body), body)
    return product_of(relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"])


def name_of(body: relay.Expr) -> str | None:
    product = found(body)
    return None if product is None else product.name


def gelu_by_tanh(x: relay.Expr) -> relay.Expr:
    cubed = relay.power(x, relay.const(3.0))
    inner = relay.const(SQRT_2_OVER_PI) * (x + relay.const(0.044715) * cubed)
    return relay.const(0.5) * x * (relay.const(1.0) + relay.tanh(inner))


def gelu_by_products(x: relay.Expr) -> relay.Expr:
    """The same with other ops in another order."""
    inner = x * relay.const(SQRT_2_OVER_PI) * (relay.const(1.0) + relay.const(0.044715) * x * x)
    return x * (relay.tanh(inner) + relay.const(1.0)) / relay.const(2.0)


def gelu_by_erf(x: relay.Expr) -> relay.Expr:
    return x * relay.const(0.5) * (relay.const(1.0) + relay.erf(x * relay.const(2**-0.5)))


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (DENSE, "1x8x32x64:ntss:none:0,1,-,-"),
        (DENSE + BIAS, "1x8x32x64:ntss:none:0,1,2,-"),
        (BIAS + DENSE, "1x8x32x64:ntss:none:1,2,0,-"),
        (relay.nn.bias_add(DENSE, BIAS, axis=1), "1x8x32x64:ntss:none:0,1,2,-"),
        (relay.nn.relu(DENSE + BIAS), "1x8x32x64:ntss:relu:0,1,2,-"),
        (relay.nn.relu(DENSE + BIAS + SUM), "1x8x32x64:ntss:relu:0,1,2,3"),
        (DENSE + SUM, "1x8x32x64:ntss:none:0,1,-,2"),
        (gelu_by_tanh(DENSE + BIAS), "1x8x32x64:ntss:gelu:0,1,2,-"),
        (gelu_by_products(DENSE), "1x8x32x64:ntss:gelu:0,1,-,-"),
        (relay.reshape(DENSE, (2, 4, 32)) + BIAS, "1x8x32x64:ntss:none:0,1,2,-"),
        (relay.nn.relu(relay.reshape(DENSE + BIAS, (1, 8, 32))), "1x8x32x64:ntss:relu:0,1,2,-"),
        (relay.reshape(relay.nn.relu(DENSE), (256,)), "1x8x32x64:ntss:relu:0,1,-,-"),
        (relay.nn.dense(var("x", 3, 3), var("x2", 3, 3)), "1x3x3x3:ntss:none:0,1,-,-"),
        (relay.nn.dense(X, X), "1x8x8x64:ntss:none:0,0,-,-"),
        (relay.nn.matmul(X, var("w", 64, 32)), "1x8x32x64:nnss:none:0,1,-,-"),
        (
            relay.nn.matmul(var("x", 64, 8), W, transpose_a=True, transpose_b=True),
            "1x8x32x64:ttss:none:0,1,-,-",
        ),
        (
            relay.nn.batch_matmul(var("x", 6, 8, 64), var("y", 6, 32, 64)),
            "6x8x32x64:ntbb:none:0,1,-,-",
        ),
        (
            relay.nn.batch_matmul(var("x", 6, 8, 64), var("y", 1, 64, 32), transpose_b=False),
            "6x8x32x64:nnbs:none:0,1,-,-",
        ),
        (
            relay.nn.batch_matmul(
                var("x", 1, 64, 8), var("y", 6, 64, 32), transpose_a=True, transpose_b=False
            )
            + BIAS,
            "6x8x32x64:tnsb:none:0,1,2,-",
        ),
        (relay.nn.dense(var("x", 1, 64), W) + var("b", 1, 32), "1x1x32x64:ntss:none:0,1,2,-"),
    ],
    ids=str,
)
def test_products_and_their_epilogues_are_found(body: relay.Expr, name: str) -> None:
    assert name_of(body) == name


@pytest.mark.parametrize(
    "body",
    [
        relay.nn.relu(X),
        gelu_by_erf(DENSE + BIAS),
        relay.tanh(DENSE),
        relay.nn.relu(DENSE) + BIAS,
        relay.nn.relu(DENSE) + SUM,
        DENSE + BIAS + BIAS,
        DENSE + var("c", 8, 1),
        DENSE + var("d", 2, 8, 32),
        DENSE + relay.const(1.0),
        DENSE * BIAS,
        relay.nn.dense(relay.nn.relu(X), W),
        relay.nn.dense(X, W) + relay.nn.dense(X, var("v", 32, 64)),
        DENSE + DENSE,
        relay.reshape(DENSE, (16, 16)) + var("b", 16),
        relay.nn.bias_add(DENSE, var("b", 8), axis=0),
        relay.nn.dense(var("x", 8, 64, dtype="float16"), var("w", 32, 64, dtype="float16")),
        relay.nn.dense(var("x", 8, 64, dtype="int8"), var("w", 4, 64, dtype="int8"), 4, "int32"),
        relay.cast(DENSE, "float16"),
        relay.nn.batch_matmul(var("x", 6, 8, 64), var("y", 6, 32, 64)) + var("z", 6, 1, 32),
        relay.split(DENSE, 2, axis=1).astuple(),
        relay.transpose(DENSE),
    ],
    ids=str,
)
def test_what_it_cannot_compute_is_left_to_tvm(body: relay.Expr) -> None:
    assert found(body) is None


def test_a_symbol_says_what_it_needs() -> None:
    product = found(relay.nn.relu(DENSE + BIAS))
    assert product is not None
    symbol = product.head("tf32", 120903) + "4096:" + "1" * 128
    assert is_library_kernel(symbol)
    assert is_library_kernel(product.unchosen("float32"))
    assert not is_library_kernel("nn_dense_0123456789abcdef")
    assert library_workspace_bytes(symbol) == 4096
    assert library_workspace_bytes(product.unchosen("half")) == 0


def test_keys_differ_by_precision_and_architecture() -> None:
    product = found(DENSE)
    assert product is not None
    targets = [tvm.target.Target(f"cuda -arch={arch}") for arch in ("sm_80", "sm_90")]
    keys = {product.key(name, each) for name in ("float32", "tf32", "half") for each in targets}
    assert len(keys) == 6
