"""fold_starts: maxima and minima over several elements begin from infinity, their places at 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_models as om
import pytest
import tvm
from onnx import TensorProto
from relay_models import CUDA, TARGET, cpu_cluster, module, random_costs, var
from tvm import relay, tir
from tvm.relay.backend import te_compiler

import heteroplace as hp
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.tir.fold_starts import start_folds
from heteroplace.tvm_bridge import require_tvm

pytestmark = pytest.mark.relay

LOWEST = np.finfo(np.float32).min
LANES = 16
CORNERS = np.array([[0, 1, 3], [6, 7, 9], [18, 19, 21]])
"""First elements of windows of 3 x 3 at steps of 2, from -1 on, in a map of 6 x 6."""


def built(mod: tvm.IRModule, inputs: Mapping[str, Any]) -> list[np.ndarray]:
    with tvm.transform.PassContext(opt_level=3):
        executable = hp.build(mod, cpu_cluster(), {}, costs=random_costs, solver="heft")
    return list(hp.Executor(executable).run(**inputs))


def run(
    nodes: list[onnx.NodeProto], x: np.ndarray, weights: Mapping[str, Any] | None = None
) -> dict[str, np.ndarray]:
    """All that the nodes make of `x`, by name."""
    outputs = [name for node in nodes for name in node.output]
    model = om.make_model(nodes, {"x": x.shape}, outputs, weights)
    found = built(from_onnx(model, simplify=False).mod, {"x": x})
    return dict(zip(outputs, found, strict=True))


# --- places -----------------------------------------------------------------------------------

ROWS = np.full((6, LANES), -np.inf, np.float32)
ROWS[1:] = 0
ROWS[2, [3, 9]] = [-np.inf, 7]
ROWS[3] = [-np.inf, LOWEST, LOWEST, *[-np.inf] * (LANES - 3)]
ROWS[4] = 255
ROWS[5] = np.linspace(-1, 1, LANES)
FIRST, LAST = {"axis": 1}, {"axis": 1, "select_last_index": 1}


@pytest.mark.costly
def test_places_are_within_the_axis_whatever_is_there() -> None:
    nodes = [
        om.node("ArgMax", "x", "first", **FIRST),
        om.node("ArgMax", "x", "last", **LAST),
        om.node("GatherElements", "x first", "best", axis=1),
        om.node("Hardmax", "x", "hard"),
        om.node("Neg", "x", "minus"),
        om.node("ArgMin", "minus", "first_low", **FIRST),
        om.node("ArgMin", "minus", "last_low", **LAST),
        om.node("Clip", "x zero most", "within"),
        om.node("Cast", "within", "bytes", to=TensorProto.UINT8),
        om.node("ArgMax", "bytes", "first_byte", **FIRST),
        om.node("ArgMin", "bytes", "last_low_byte", **LAST),
        om.node("Cast", "x", "half", to=TensorProto.FLOAT16),
        om.node("ArgMax", "half", "first_half", **FIRST),
    ]
    found = run(nodes, ROWS, {"zero": np.float32(0), "most": np.float32(255)})

    def last(rows: np.ndarray) -> np.ndarray:
        return LANES - 1 - rows[:, ::-1].argmax(1)

    first, integers = ROWS.argmax(1), found["bytes"].astype(int)
    expected = {
        "first": first,
        "last": last(ROWS),
        "best": ROWS.max(1),
        "first_low": first,
        "last_low": last(ROWS),
        "first_byte": integers.argmax(1),
        "last_low_byte": last(-integers),
        "first_half": found["half"].argmax(1),
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name][:, 0], values, err_msg=name)
    np.testing.assert_array_equal(found["hard"], np.eye(LANES)[first])


# --- pools ------------------------------------------------------------------------------------


def maps() -> np.ndarray:
    """[1, channels, 6, 6]: the corner of a map is -inf, and so is all of another one."""
    x = np.random.default_rng(0).standard_normal((1, LANES, 6, 6)).astype(np.float32)
    x[0, 0, :4, :4] = -np.inf
    x[0, 1] = -np.inf
    return x


def pooled(x: np.ndarray, lowest: float) -> np.ndarray:
    """The largest of windows of 3 x 3 at steps of 2, one element around the map."""
    wide = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=lowest)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))[:, :, ::2, ::2]
    return np.asarray(windows.max((4, 5)))


@pytest.mark.costly
def test_the_largest_of_nothing_but_minus_infinity_is_minus_infinity() -> None:
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [
        om.node("MaxPool", "x", "plain", **attributes),
        om.node("MaxPool", "x", "most place", **attributes),
        om.node("Conv", "x one", "blocks", group=LANES),
        om.node("MaxPool", "blocks", "in_blocks", **attributes),
        om.node("GlobalMaxPool", "x", "whole"),
        om.node("Cast", "x", "half", to=TensorProto.FLOAT16),
        om.node("MaxPool", "half", "of_half", **attributes),
        om.node("Clip", "x lowest high", "within"),
        om.node("Cast", "within", "bytes", to=TensorProto.INT8),
        om.node("MaxPool", "bytes", "of_bytes", **attributes),
        om.node("MaxPool", "bytes", "most_byte byte_place", **attributes),
    ]
    weights = {
        "one": np.ones((LANES, 1, 1, 1), np.float32),
        "lowest": np.float32(-128),
        "high": np.float32(127),
    }
    x = maps()
    found = run(nodes, x, weights)
    expected = pooled(x, -np.inf)
    assert np.isneginf(expected).sum() > 9
    for name in ("plain", "most", "in_blocks"):
        np.testing.assert_array_equal(found[name], expected, err_msg=name)
    np.testing.assert_array_equal(found["of_half"], pooled(x.astype(np.float16), -np.inf))
    np.testing.assert_array_equal(found["whole"][..., 0, 0], x.max((2, 3)))
    of_bytes = pooled(found["bytes"], -128)
    for name in ("of_bytes", "most_byte"):
        np.testing.assert_array_equal(found[name], of_bytes, err_msg=name)
    # Each place is of an element of its own window that is as large as the largest.
    np.testing.assert_array_equal(x.reshape(-1)[found["place"]], expected)
    np.testing.assert_array_equal(found["bytes"].reshape(-1)[found["byte_place"]], of_bytes)
    np.testing.assert_array_equal(found["place"][0, 1], 36 + CORNERS)


# --- the form ---------------------------------------------------------------------------------


def lowered(body: relay.Expr, parameter: relay.Var, target: str) -> str:
    """The text of its one kernel, after the rewrite; that compiles."""
    require_tvm()
    function = relay.transform.InferType()(relay.transform.FuseOps(2)(module([parameter], body)))[
        "main"
    ].body.op
    made = tvm.target.Target(target, host="llvm")
    with made:
        cached = te_compiler.get().lower(function, made)
    functions = start_folds(cached.funcs, function, is_cpu=made.kind.name == "llvm")
    tvm.build({made: functions})  # whatever compiles for the target knows all that is in it
    return "\n".join(str(each) for each in functions.functions.values())


@pytest.mark.costly
@pytest.mark.parametrize("target", [TARGET, CUDA])
def test_the_form_of_each_target(target: str) -> None:
    x = var("x", (1, 4, 9, 9))
    texts = [
        lowered(relay.nn.max_pool2d(x, (3, 3), (2, 2), padding=(1, 1)), x, target),
        lowered(relay.argmax(x, axis=[3]), x, target),
        lowered(relay.min(x, axis=[2, 3]), x, target),
    ]
    for text in texts:
        assert "e+38" not in text
        assert ("inf" if target == TARGET else "T.reinterpret") in text
    assert "-1" not in texts[1].replace("threadIdx", "")


def test_what_is_no_fold_stays() -> None:
    x = var("x", (4, 16))
    masked = relay.where(relay.less(x, relay.const(0.0)), relay.const(LOWEST), x)
    assert "e+38" in lowered(masked, x, TARGET)
    text = lowered(relay.max(masked, axis=[1]), x, TARGET)
    assert text.count("e+38") == text.count("inf") > 0
    load = tir.decl_buffer((8,), "float32")
    store = tir.BufferStore(load, tir.FloatImm("float32", float(LOWEST)), [0])
    functions = tvm.IRModule({"f": tir.PrimFunc([load], store)})
    plain = relay.Function([x], relay.nn.relu(x))
    assert start_folds(functions, plain, is_cpu=True).same_as(functions)
