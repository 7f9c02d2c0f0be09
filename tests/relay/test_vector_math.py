"""vector_math: exp, tanh, erf and sigmoid of floats, beside the same in 64 bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tvm
from own_kernels import lowered_for_avx2
from relay_models import (
    TARGET,
    cpu_cluster,
    module,
    random_costs,
    random_inputs,
    stock_outputs,
    var,
)
from scipy import special
from tvm import relay, te

import heteroplace as hp
from heteroplace.errors import SolverError
from heteroplace.parts.kernels.cpu.vector_math import vector_math
from heteroplace.place_options import KERNELS

pytestmark = pytest.mark.relay

_NUM = 1 << 20
"""Numbers of a call."""
_STEP = 4099
"""Of the bits of all numbers of 32 bits, for a quick look; a prime."""
_MAX_ULP, _MAX_RELATIVE = {"exp": 2, "sigmoid": 3}, {"tanh": 1e-6, "erf": 1e-6}
"""Units in the last place; parts of the value, beside one unit."""
EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "tanh": np.tanh,
    "erf": special.erf,
    "sigmoid": special.expit,
}


def _kernel(name: str, num: int, dtype: str = "float32", is_own: bool = True) -> tvm.runtime.Module:
    """A kernel of one function, with a loop over vectors."""
    x = te.placeholder((num,), dtype, "x")
    y = te.compute((num,), lambda i: getattr(te, name)(x[i]))
    schedule = te.create_schedule(y.op)
    _, inner = schedule[y].split(y.op.axis[0], 16)
    schedule[y].vectorize(inner)
    functions = tvm.lower(schedule, [x, y])
    changed = vector_math(functions)
    assert changed.same_as(functions) == (dtype != "float32")
    return tvm.build(changed if is_own else functions, target=TARGET)


def _numbers(step: int) -> Iterator[np.ndarray]:
    """All numbers of 32 bits, but for every `step`-th of their bits, in parts of `_NUM`."""
    for first in range(0, 2**32, step * _NUM):
        bits = first + step * np.arange(_NUM, dtype="uint64")
        yield (bits % 2**32).astype("uint32").view("float32")


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("step", [_STEP, pytest.param(1, marks=pytest.mark.slow)])
def test_all_numbers_are_near(name: str, step: int) -> None:
    kernel = _kernel(name, _NUM)
    y = tvm.nd.empty((_NUM,))
    for numbers in _numbers(step):
        kernel(tvm.nd.array(numbers), y)
        found = y.numpy().astype("float64")
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            exact = EXACT[name](numbers.astype("float64"))
            rounded = exact.astype("float32")
            unit = np.spacing(np.abs(rounded)).astype("float64")
            allowed = unit * _MAX_ULP.get(name, 1) + np.abs(exact) * _MAX_RELATIVE.get(name, 0)
            is_near = (found == rounded) | (np.abs(found - exact) <= allowed)
        is_near |= np.isnan(found) & np.isnan(exact)
        wrong = np.flatnonzero(~is_near)
        assert not len(wrong), (numbers[wrong[0]], found[wrong[0]], exact[wrong[0]])


@pytest.mark.parametrize("name", EXACT)
def test_what_is_no_number_or_has_no_end(name: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38] * 2, "float32")
    y = tvm.nd.empty((len(x),))
    _kernel(name, len(x))(tvm.nd.array(x), y)
    with np.errstate(over="ignore"):
        exact = EXACT[name](x.astype("float64"))
    np.testing.assert_allclose(y.numpy(), exact, rtol=1e-6, atol=1e-45)
    is_number = ~np.isnan(x)
    assert (np.signbit(y.numpy()) == np.signbit(exact))[is_number].all()


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_types_stay(dtype: str) -> None:
    _kernel("exp", 16, dtype)


@pytest.mark.costly
def test_tvm_kernels_have_the_bits_of_stock_tvm() -> None:
    x = var("x", (4, 37))
    mod = module([x], relay.nn.softmax(relay.erf(relay.tanh(relay.sigmoid(x)))))
    inputs = random_inputs(mod)
    (expected,) = stock_outputs(mod, inputs)
    found = {}
    for kernels in KERNELS:
        with tvm.transform.PassContext(opt_level=3):
            executable = hp.build(
                mod, cpu_cluster(), costs=random_costs, solver="heft", kernels=kernels
            )
        (found[kernels],) = hp.Executor(executable).run(**inputs)
        np.testing.assert_allclose(found[kernels], expected, rtol=1e-6)
    assert found["tvm"].tobytes() == expected.tobytes() != found["auto"].tobytes()
    with pytest.raises(SolverError, match="kernels='stock'; expected one of auto, tvm"):
        hp.build(mod, cpu_cluster(), kernels="stock")


@pytest.mark.costly
def test_a_softmax_of_masked_values_has_no_denormals() -> None:
    x = var("x", (4, 37))
    mask = np.where(np.arange(37) % 3, 0.0, -100.0).astype("float32")
    mod = module([x], relay.nn.softmax(relay.add(x, relay.const(mask))))
    inputs = random_inputs(mod)
    (expected,) = stock_outputs(mod, inputs)
    least = np.finfo("float32").tiny
    assert ((expected > 0) & (expected < least)).any()
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod, cpu_cluster(), costs=random_costs, solver="heft")
    (found,) = hp.Executor(executable).run(**inputs)
    assert not ((found > 0) & (found < least)).any()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-30)


@pytest.mark.costly
def test_a_softmax_has_all_terms_that_are_normal_numbers() -> None:
    x = var("x", (2, 16))
    mod = module([x], relay.Tuple([relay.nn.softmax(x), relay.nn.softmax(x, axis=0)]))
    rows = np.zeros((2, 16), "float32")
    rows[1] = [0, -2, -5, -79, -81, -84, -85, -86, -87, -87.3, *[-88, -90, -100, -103, -105], -1e30]
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod, cpu_cluster(), costs=random_costs, solver="heft")
    for axis, found in zip((1, 0), hp.Executor(executable).run(x=rows), strict=True):
        expected = special.softmax(rows.astype("float64"), axis)[1]
        is_normal = expected > np.finfo("float32").tiny
        assert is_normal.sum() >= 9
        np.testing.assert_allclose(found[1][is_normal], expected[is_normal], rtol=1e-5)
        assert not found[1][-6:].any()


@pytest.mark.parametrize(
    ("dtype", "disabled", "expected"),
    [
        ("float32", [], "heteroplace_erf_float32x16"),
        ("float64", [], "heteroplace_erf_float32x16"),
        ("float64", ["Legalize"], "erf"),
    ],
)
def test_erf_stays_in_vectors(dtype: str, disabled: list[str], expected: str) -> None:
    x = relay.var("x", shape=(16, 64), dtype=dtype)
    (kernel,) = lowered_for_avx2(x * relay.erf(x), x, disabled)
    calls = set[str]()

    def look(node: tvm.runtime.Object) -> None:
        if isinstance(node, tvm.tir.Call):
            is_extern = node.op.name == "tir.call_pure_extern"
            calls.add(node.args[0].value if is_extern else node.op.name.removeprefix("tir."))

    assert kernel.functions is not None
    for function in kernel.functions.functions.values():
        tvm.tir.stmt_functor.post_order_visit(function.body, look)
    assert {each for each in calls if "erf" in each} == {expected}


def test_rows_that_are_not_whole_vectors_are_vectors_and_a_rest() -> None:
    x = var("x", (3, 55))
    (kernel,) = lowered_for_avx2(relay.exp(x) + relay.const(1.0), x)
    (function,) = kernel.functions.functions.values()
    lanes = re.findall(r"heteroplace_exp_float32(\w*)", str(function))
    assert sorted(lanes) == ["x16", "x7"]


@pytest.mark.parametrize("width", [7, 16, 55])
def test_numbers_of_such_rows(width: int) -> None:
    x = var("x", (3, width))
    mod = module([x], relay.exp(x) + relay.const(1.0))
    inputs = random_inputs(mod)
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod, cpu_cluster(), costs=random_costs, solver="heft")
    (actual,) = hp.Executor(executable).run(**inputs)
    np.testing.assert_allclose(actual, np.exp(inputs["x"].astype("float64")) + 1, rtol=1e-6)
