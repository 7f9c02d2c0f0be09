"""split_repeated: kernels of long elementwise chains whose values have several consumers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, module, random_costs, var
from tvm import relay

import heteroplace as hp
from heteroplace.relay.expressions import is_primitive_call, post_order
from heteroplace.relay.tasks.prepare import fuse
from heteroplace.relay.tasks.split_repeated import num_expanded_calls

pytestmark = pytest.mark.relay

X = np.linspace(-1, 1, 8, dtype="float32").reshape(1, 8)


def shared_values(x: relay.Expr, num_levels: int) -> relay.Expr:
    """Levels of sigmoid(x) * x + x."""
    for _ in range(num_levels):
        x = relay.add(relay.multiply(relay.sigmoid(x), x), x)
    return x


def shared_fields(x: relay.Expr, num_levels: int) -> relay.Expr:
    """Levels whose value is read through the fields of a split."""
    for _ in range(num_levels):
        left, right = relay.split(x, 2, axis=1)
        x = relay.concatenate([left + right, left * right], axis=1)
    return x


def repeated_op(op: Callable[[relay.Expr], relay.Expr]) -> Callable[..., relay.Expr]:
    """Levels of an op whose TE expression reads its operand several times."""

    def levels(x: relay.Expr, num_levels: int) -> relay.Expr:
        for _ in range(num_levels):
            x = op(x)
        return x

    return levels


LEVELS = {
    "values": shared_values,
    "fields of a tuple": shared_fields,
    "sign": repeated_op(relay.sign),
    "leaky relu": repeated_op(lambda x: relay.nn.leaky_relu(x, 0.1)),
    "conditions": repeated_op(
        lambda x: relay.where(relay.less(x, relay.const(0.0)), relay.exp(x), x)
    ),
}


def expanded_sizes(body: Callable[[relay.Expr], relay.Expr]) -> list[int]:
    """Number of calls in the expression of each kernel."""
    x = var("x", X.shape)
    with tvm.transform.PassContext(opt_level=3):
        fused = fuse(module([x], body(x)))["main"]
    calls = [node for node in post_order(fused.body) if is_primitive_call(node)]
    return [num_expanded_calls(call.op.body) for call in calls]


@pytest.mark.parametrize("name", LEVELS)
def test_the_work_of_compiling_grows_in_proportion_to_the_levels(name: str) -> None:
    work = {n: sum(expanded_sizes(lambda x, n=n: LEVELS[name](x, n))) for n in (6, 12, 24)}
    assert work[12] < 3 * work[6]
    assert work[24] < 3 * work[12]


SMALL: dict[str, Callable[[relay.Expr], relay.Expr]] = {
    "square": lambda x: relay.multiply(x, x),
    "swish of a sum": lambda x: shared_values(relay.add(x, x), 1),
    "gelu": lambda x: (
        x * relay.const(0.5) * (relay.erf(x * relay.const(0.7071)) + relay.const(1.0))
    ),
    "four levels": lambda x: shared_values(x, 4),
    "no repetition": lambda x: repeated_op(relay.exp)(x, 200),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_repetitions_stay_in_one_kernel(name: str) -> None:
    assert len(expanded_sizes(SMALL[name])) == 1


def test_a_value_read_before_and_after_a_cut_is_computed_once() -> None:
    def body(x: relay.Expr) -> relay.Expr:
        first = relay.exp(relay.negative(x))
        return relay.add(shared_values(first, 6), first)

    x = var("x", X.shape)
    with tvm.transform.PassContext(opt_level=3):
        fused = fuse(module([x], body(x)))["main"]
    num_exps = sum(
        isinstance(node, relay.Call) and node.op == tvm.ir.Op.get("exp")
        for call in post_order(fused.body)
        if is_primitive_call(call)
        for node in post_order(call.op.body)
    )
    assert num_exps == 1


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", LEVELS)
def test_twelve_levels_compute_what_numpy_computes(name: str) -> None:
    x = var("x", X.shape)
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(
            module([x], LEVELS[name](x, 12)), cpu_cluster(), {}, costs=random_costs, solver="heft"
        )
    (actual,) = hp.Executor(executable).run(x=X)
    np.testing.assert_allclose(actual, NUMPY[name](X.astype("float64")), rtol=1e-4, atol=1e-6)


def _numpy_levels(level: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    def levels(x: np.ndarray) -> np.ndarray:
        for _ in range(12):
            x = level(x)
        return x

    return levels


def _numpy_fields(x: np.ndarray) -> np.ndarray:
    left, right = np.split(x, 2, axis=1)
    return np.concatenate([left + right, left * right], axis=1)


NUMPY = {
    "values": _numpy_levels(lambda x: x / (1 + np.exp(-x)) + x),
    "fields of a tuple": _numpy_levels(_numpy_fields),
    "sign": _numpy_levels(np.sign),
    "leaky relu": _numpy_levels(lambda x: np.where(x > 0, x, 0.1 * x)),
    "conditions": _numpy_levels(lambda x: np.where(x < 0, np.exp(x), x)),
}
