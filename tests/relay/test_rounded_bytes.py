"""Numbers rounded to bytes by the bits of a sum: the bytes are those of the longer form."""

from __future__ import annotations

import numpy as np
import onnx_models as om
import pytest
import tvm
import tvm.contrib.graph_executor
from relay_models import cpu_cluster, random_costs
from tvm import te, tir

import heteroplace as hp
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.tir.exact_floats import exact_floats
from heteroplace.tir.rounded_bytes import rounded_bytes

pytestmark = pytest.mark.relay

SHIFT = 3 * 2**22
WIDE = SHIFT // 8


def _stored(
    zero: float = 0.0,
    dtype: str = "uint8",
    most: float = 255.0,
    wide: float = WIDE,
    is_active: bool = False,
) -> tir.PrimExpr:
    """What is stored of rounded numbers, after the rewrite."""
    x, y = tir.decl_buffer((8,), "float32", "x"), tir.decl_buffer((8,), dtype, "y")
    index = tir.Var("i", "int32")

    def number(value: float) -> tir.FloatImm:
        return tir.FloatImm("float32", value)

    value = tir.Max(x[index], number(0.0)) if is_active else x[index]
    aligned = tir.Add(value, number(SHIFT))
    within = tir.Max(tir.Min(aligned, number(SHIFT + wide)), number(SHIFT - wide))
    steps: tir.PrimExpr = tir.Sub(within, number(SHIFT))
    if zero:
        steps = tir.Add(steps, number(zero))
    clipped = tir.Max(tir.Min(steps, number(most)), number(0.0))
    body = tir.BufferStore(y, tir.Cast(dtype, clipped), [index])
    function = tir.PrimFunc([x, y], tir.For(index, 0, 8, 0, body))
    found: list[tir.PrimExpr] = []

    def look(node: object) -> None:
        if isinstance(node, tir.BufferStore):
            found.append(node.value)

    after = rounded_bytes(tvm.IRModule({"f": function}))["f"]
    tir.stmt_functor.post_order_visit(after.body, look)
    return found[0]


@pytest.mark.parametrize("zero", [0.0, 3.0, 128.0])
def test_bytes_are_read_from_the_bits_of_the_sum(zero: float) -> None:
    text = str(_stored(zero))
    assert "reinterpret" in text
    assert text.count("T.max") == text.count("T.min") == 1
    assert str(float(SHIFT + 255 - zero)).removesuffix(".0") in text


@pytest.mark.parametrize(
    "form",
    [{"dtype": "int8"}, {"most": 254.0}, {"zero": 0.5}, {"wide": 2**24}, {"wide": 100.0}],
)
def test_other_forms_stay(form: dict[str, float]) -> None:
    assert "reinterpret" not in str(_stored(**form))


def test_a_sum_that_is_kept_from_the_simplifier_is_read_from_its_bits_too() -> None:
    """`exact_floats` writes the difference with the shift in another form."""
    x = te.placeholder((32,), "float32", "x")

    def stored(i: tir.Var) -> tir.PrimExpr:
        shift, zero = tir.const(SHIFT, "float32"), tir.const(3, "float32")
        least, most = (tir.const(SHIFT + each, "float32") for each in (-WIDE, WIDE))
        within = tir.max(tir.min(tir.max(x[i], tir.const(0, "float32")) + shift, most), least)
        limits = [tir.const(each, "float32") for each in (0, 255)]
        return tir.max(tir.min(within - shift + zero, limits[1]), limits[0]).astype("uint8")

    y = te.compute(x.shape, stored, "y")
    schedule = te.create_schedule(y.op)
    schedule[y].vectorize(schedule[y].split(y.op.axis[0], 16)[1])
    with exact_floats():
        functions = tvm.lower(schedule, [x, y])
    text = str(rounded_bytes(functions)["main"])
    assert text.count("T.max") == 2 and text.count("T.min") == 1  # of the ReLU, and of the clip
    assert 'T.reinterpret("int32x16"' in text


@pytest.mark.parametrize("zero", [0.0, 3.0])
def test_a_relu_before_the_sum_goes_where_the_clip_does_its_work(zero: float) -> None:
    text = str(_stored(zero, is_active=True))
    assert text.count("T.max") == (1 if zero == 0 else 2)


@pytest.mark.costly(6)
@pytest.mark.parametrize(("scale", "zero"), [(0.5, 0), (0.04, 128), (0.3, 7), (1.0, 255)])
def test_bytes_are_those_of_onnxruntime(scale: float, zero: int) -> None:
    """Ties, limits and far beyond; a NaN, of which ONNX says nothing, is 0."""
    ties = (np.arange(-300, 300) + 0.5) * scale
    far = np.array([0.0, -0.0, 1e9, -1e9, 1e38, -1e38, np.inf, -np.inf, 1e-40])
    whole = np.arange(-300, 300) * scale
    x = np.concatenate([ties, np.nextafter(ties, 1e9), whole, far]).astype(np.float32)
    x = x[: x.size // 8 * 8].reshape(8, -1)
    model = om.make_model(
        [om.node("QuantizeLinear", "x scale zero", "b"), om.node("Cast", "b", "y", to=1)],
        {"x": x.shape},
        ["y"],
        {"scale": np.float32(scale), "zero": np.uint8(zero)},
    )
    (expected,) = om.run_onnxruntime(model, {"x": x})
    found = {kernels: _run(model, x, kernels) for kernels in ("own", "tvm")}
    assert len(np.unique(expected)) == 256
    np.testing.assert_array_equal(found["own"], found["tvm"])
    # A product by 1 / scale may be on the other side of a tie than the quotient.
    is_exact = scale in (0.5, 1.0)
    assert np.abs(found["own"].astype(int) - expected).max() <= (0 if is_exact else 1)
    x[0, :3] = np.nan
    np.testing.assert_array_equal(_run(model, x, "own")[0, :3], _run(model, x, "tvm")[0, :3])


def _run(model: object, x: np.ndarray, kernels: str) -> np.ndarray:
    imported = from_onnx(model, simplify=False)
    options = {"kernels": kernels} if kernels == "tvm" else {}
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(imported.mod, cpu_cluster(), {}, costs=random_costs, **options)
    (found,) = hp.Executor(executable).run(x=x)
    return np.asarray(found)
